# SPDX-License-Identifier: Apache-2.0
"""What the journal gets from those that move nodes."""

import threading
from typing import Any

import pytest

from hashring.ring import Host, Ring
from ironic_compute.journal.moves import Cause, Move, Reason
from ironic_compute.nodes.pins import Pin, set_pin
from ironic_compute.ownership.eviction import Refused, Terms
from ironic_compute.ownership.node_moves import MoveResult
from ironic_compute.ownership.rebalance_order import RebalanceOrder
from tests.simulation.faults import Unreachable
from tests.unit.ironic_compute.hosts import Cloud
from tests.unit.ironic_compute.ownership.moving import C1, C2, S1
from tests.unit.ironic_compute.ownership.test_node_moves import MovesDesk


@pytest.fixture
def desk(monkeypatch: pytest.MonkeyPatch) -> MovesDesk:
    """Server s1 on a node of c1, and no move so far."""
    made = MovesDesk(monkeypatch)
    made.one.moved.clear()
    return made


def _short(move: Move) -> tuple[str, str, str]:
    return move.kind, move.reason, move.by


def test_moved_server_is_noted_with_who_has_ordered_it(
    desk: MovesDesk,
) -> None:
    """And for how long it was under way."""
    desk.before_save = lambda: desk.cloud.clock.advance(1.5)
    desk.evictor.evict(
        desk.node, C2, Terms(Pin(C2, 'ann')), cause=Cause(Reason.PIN, 'ann')
    )
    assert desk.one.moved == [
        Move(
            at_s=desk.cloud.clock.wall_s(),
            kind='evict',
            reason='pin',
            source='c1',
            target='c2',
            node=desk.node,
            server=S1,
            seconds=1.5,
            by='ann',
        )
    ]


def test_refused_move_is_not_noted(desk: MovesDesk) -> None:
    """Nothing has changed."""
    desk.server.task_state = 'rebooting'
    with pytest.raises(Refused):
        desk.evictor.evict(desk.node, C2)
    assert not desk.one.moved


def test_order_of_an_operator_is_the_reason(desk: MovesDesk) -> None:
    """Of the server's move at once, of the free node's when it is pushed."""
    desk.moves.move(
        desk.node, Pin(C2, 'ann'), replaces=False, is_dry_run=False
    )
    desk.moves.move(
        desk.free, Pin(C2, 'bob'), replaces=False, is_dry_run=False
    )
    desk.one.rebalancer.run_round()
    assert [_short(move) for move in desk.one.moved] == [
        ('evict', 'pin', 'ann'),
        ('push', 'pin', 'bob'),
    ]
    assert desk.one.moved[1].node == desk.free
    assert desk.one.moved[1].server == ''


def test_rebalanced_server_is_noted(desk: MovesDesk) -> None:
    """The pool's operator has ordered it."""
    node = desk.misplace()
    desk.one.moved.clear()
    desk.moves.rebalance(node)
    assert [_short(move)[:2] for move in desk.one.moved] == [
        ('evict', 'rebalance')
    ]


def test_pushed_nodes_are_noted_with_the_reason() -> None:
    """A new host joined; then the old one was disabled."""
    cloud = Cloud(f'n{number}' for number in range(9))
    one = cloud.add('c1')
    cloud.show('c1')
    cloud.settle()
    assert not one.moved
    cloud.add('c2')
    cloud.show('c1', 'c2')
    cloud.settle()
    ring = Ring([C1, C2])
    away = {n for n in cloud.nodes if ring.target(n) == C2}
    assert {move.node for move in one.moved} == away
    assert {_short(move) for move in one.moved} == {('push', 'ring', '')}
    one.moved.clear()
    cloud.show('c2')
    cloud.settle()
    assert {_short(move) for move in one.moved} == {('push', 'disabled', '')}
    assert {move.node for move in one.moved} == cloud.nodes.keys() - away
    assert {(m.source, m.target) for m in one.moved} == {('c1', 'c2')}


def test_node_that_follows_its_server_is_noted(desk: MovesDesk) -> None:
    """Its row could not be written when the server moved."""
    rows, write = desk.one.rows, desk.one.rows.write_holder

    def fail(*args: object) -> bool:
        raise Unreachable('away')

    rows.write_holder = fail  # type: ignore[assignment,method-assign]
    desk.evictor.evict(desk.node, C2)
    rows.write_holder = write  # type: ignore[method-assign]
    desk.one.rebalancer.follow_instance(desk.node, C2)
    desk.one.rebalancer.follow_instance(desk.node, Host('c9'))
    assert [_short(move)[:2] for move in desk.one.moved] == [
        ('evict', 'rebalance'),
        ('follow', 'server'),
    ]


def test_second_move_of_a_server_is_told_of_the_first(
    desk: MovesDesk,
) -> None:
    """Who has ordered it, and where it goes."""
    said: list[str] = []

    def move_again() -> None:
        desk.before_save = lambda: None
        with pytest.raises(Refused) as refused:
            desk.evictor.evict(desk.node, C2)
        said.append(str(refused.value))

    desk.before_save = move_again
    cause = Cause(Reason.PIN, 'ann on ctl-1')
    desk.evictor.evict(desk.node, C2, cause=cause)
    assert said == [
        'Server s1 is being moved to host c2 (pin, ordered by ann on ctl-1); '
        'try again when that has ended'
    ]
    assert len(desk.one.moved) == 1


def test_second_order_for_a_node_is_told_of_the_first(
    desk: MovesDesk,
) -> None:
    """Also a dry run, the same order again, and an order to unpin it."""
    said: list[str | None] = []

    def order_again() -> None:
        desk.before_save = lambda: None
        for host, is_dry_run in ((C1, False), (C1, True), (C2, False)):
            result = desk.moves.move(
                desk.node,
                Pin(host, 'bob'),
                replaces=True,
                is_dry_run=is_dry_run,
            )
            said.append(result.why_not)
        said.append(desk.moves.unpin(desk.node).why_not)

    desk.before_save = order_again
    first = Pin(C2, 'ann on ctl-1')
    result = desk.moves.move(
        desk.node, first, replaces=False, is_dry_run=False
    )
    assert result.server == S1
    assert (
        said
        == [
            f'Node {desk.node} is just being moved to host c2 and pinned '
            f'there, ordered by ann on ctl-1; try again when that has ended'
        ]
        * 4
    )
    assert [_short(move) for move in desk.one.moved] == [
        ('evict', 'pin', 'ann on ctl-1')
    ]


@pytest.mark.parametrize('unpins', [False, True])
def test_rebalance_moves_no_node_that_is_being_pinned(
    desk: MovesDesk, unpins: bool
) -> None:
    """It would wait for the write of the pin, of which it does not know."""
    node = desk.node if unpins else desk.misplace()
    if unpins:
        for row in (desk.cloud.nova.rows[node], desk.one.held_nodes.row(node)):
            set_pin(row, Pin(C2, 'ann'))
    desk.writes.clear()
    said: list[MoveResult] = []
    other = threading.Thread(
        target=lambda: said.append(desk.moves.rebalance(node)), daemon=True
    )
    rows, write = desk.one.rows, desk.one.rows.write_pin

    def write_pin(row: Any, pin: Pin | None) -> None:
        other.start()
        for _ in range(500):
            if said or 'locked' in desk.writes:
                break
            other.join(0.01)
        write(row, pin)

    rows.write_pin = write_pin  # type: ignore[method-assign]
    if unpins:
        assert desk.moves.unpin(node).why_not is None
        what = 'unpinned'
    else:
        result = desk.moves.move(
            node, Pin(C1, 'ann'), replaces=False, is_dry_run=False
        )
        assert result == MoveResult(C1)
        what = 'moved to host c1 and pinned there, ordered by ann'
    other.join()
    assert desk.state(node) == (C1, None if unpins else C1, C1)
    assert said[0].why_not == (
        f'Node {node} is just being {what}; try again when that has ended'
    )


def test_nothing_is_ordered_for_a_node_that_a_rebalance_moves(
    desk: MovesDesk,
) -> None:
    """The refusal says who has ordered the rebalance."""
    node = desk.misplace()
    desk.moves.orders.begin(RebalanceOrder('k1', 'ann'), is_dry_run=False)
    said: list[str | None] = []
    other = threading.Thread(
        target=lambda: said.append(desk.moves.unpin(node).why_not), daemon=True
    )

    def unpin() -> None:
        other.start()
        other.join(5.0)

    desk.before_save = unpin
    assert desk.moves.rebalance(node, 'k1').server == S1
    assert said == [
        f'Node {node} is just being moved by a rebalance of the pool, ordered '
        f'by ann; try again when that has ended'
    ]


def test_order_that_was_refused_is_not_under_way(desk: MovesDesk) -> None:
    """The next one is carried out."""
    desk.server.task_state = 'rebooting'
    desk.moves.move(
        desk.node, Pin(C2, 'ann'), replaces=False, is_dry_run=False
    )
    desk.server.task_state = None
    result = desk.moves.move(
        desk.node, Pin(C2, 'bob'), replaces=False, is_dry_run=False
    )
    assert result.server == S1


def test_rebalance_of_another_order_moves_nothing(desk: MovesDesk) -> None:
    """The order under way is noted with who has given it."""
    node = desk.misplace()
    desk.one.moved.clear()
    order = RebalanceOrder('k1', 'ann on ctl-1')
    desk.moves.orders.begin(order, is_dry_run=False)
    for key in ('', 'k2'):
        result = desk.moves.rebalance(node, key)
        assert 'ordered by ann on ctl-1' in (result.why_not or '')
    assert not desk.one.moved
    assert desk.moves.rebalance(node, 'k1').server == S1
    assert [_short(move) for move in desk.one.moved] == [
        ('evict', 'rebalance', 'ann on ctl-1')
    ]

# SPDX-License-Identifier: Apache-2.0
"""An operator's requests: move, pin and unpin one node, rebalance the pool."""

import re
from collections.abc import Callable
from typing import Any

import pytest

from hashring.ring import Host, Ring
from ironic_compute.ironic_api.node_pool import NodePool
from ironic_compute.nodes.pins import Pin, read_pin, set_pin
from ironic_compute.ownership.departures import Asker
from ironic_compute.ownership.drain_order import DrainOrder
from ironic_compute.ownership.move_plan import PlannedMove
from ironic_compute.ownership.node_moves import (
    MoveResult,
    UnpinResult,
    make_node_moves,
)
from resource_tracker.node import NodeId
from tests.simulation.faults import Unreachable
from tests.simulation.nova import ServiceRecord
from tests.unit.ironic_compute.ownership.moving import C1, C2, S1, Desk

SETTLE_S = 5.0


class MovesDesk(Desk):
    """Host c1 with a server and free nodes; its requests of an operator."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        super().__init__(patch)
        self.askers: dict[tuple[NodeId, Host], Asker] = {}
        held_nodes, rows = self.one.held_nodes, self.one.rows
        self.cloud.clock.advance(SETTLE_S)
        self.moves = make_node_moves(
            held_nodes,
            rows,  # type: ignore[arg-type]
            self.evictor._client,
            self.one.pool,
            self.gate,
            self.evictor,
            lambda node, host: self.askers.get((node, host)),
            SETTLE_S,
            self.cloud.clock,
            self.one.rebalancer.why_not_pushed,
        )

    def move(
        self,
        node: NodeId,
        host: Host,
        *,
        by: str = 'ann',
        replaces: bool = False,
    ) -> MoveResult:
        """Check a move, and request it; both have the same answer."""
        pin = Pin(host, by)
        before = self.state(node)
        would = self.moves.move(node, pin, replaces=replaces, is_dry_run=True)
        assert self.state(node) == before
        result = self.moves.move(
            node, pin, replaces=replaces, is_dry_run=False
        )
        assert result == would
        return result

    def state(self, node: NodeId) -> tuple[str, str | None, str | None]:
        """Return the holder, the pin and the server's host in Nova."""
        row = self.cloud.nova.rows[node]
        pin = read_pin(row)
        return row.host, pin and pin.host, self.server.host

    def refused(self, node: NodeId, host: Host) -> str:
        """Return why a move is refused; nothing has changed then."""
        before = self.state(node)
        why_not = self.move(node, host).why_not
        assert self.state(node) == before
        return why_not or ''

    def misplace(self) -> NodeId:
        """Put the server on a node that the ring gives to c2."""
        ring = Ring([C1, C2])
        nodes = sorted(self.cloud.nodes)
        node = NodeId(next(n for n in nodes if ring.target(n) == C2))
        self.cloud.show('c1')
        self.cloud.clock.advance(SETTLE_S)
        self.cloud.settle()
        self.change_node(instance_uuid=None, provision_state='available')
        self.node = node
        self.change_node(instance_uuid=S1, provision_state='active')
        self.server.node = node
        self.one.audit()
        self.cloud.show('c1', 'c2')
        self.cloud.clock.advance(SETTLE_S)
        return node


@pytest.fixture
def desk(monkeypatch: pytest.MonkeyPatch) -> MovesDesk:
    """Server s1 on a node of c1."""
    return MovesDesk(monkeypatch)


def test_node_moves_with_its_server_and_is_pinned(desk: MovesDesk) -> None:
    """The answer names the server and the former host."""
    assert desk.move(desk.node, C2) == MoveResult(C1, S1)
    assert desk.state(desk.node) == (C2, C2, C2)
    assert desk.writes == ['locked', 'server', 'row']


@pytest.mark.parametrize('follows_at_once', [False, True])
def test_pin_that_was_not_written_is_said(
    desk: MovesDesk, follows_at_once: bool
) -> None:
    """The server has moved; the node follows it, and has no pin.

    The recovery may have the node follow before the command ends, because the
    target is told, and Nova and Ironic are asked, in between.
    """
    rows: Any = desk.one.rows
    if follows_at_once:
        desk.evictor._notify_given = lambda host, nodes: (
            desk.one.held_nodes.drop_node(desk.node)
        )

    def fail(row: Any, host: Host, service_id: int) -> bool:
        row.host = host
        raise Unreachable('no answer')

    rows.write_holder = fail
    pin = Pin(C2, 'ann')
    result = desk.moves.move(desk.node, pin, replaces=False, is_dry_run=False)
    assert desk.state(desk.node) == (C1, None, C2)
    assert 'may not be pinned' in (result.why_not or '')


def test_free_node_is_pinned_and_then_pushed(desk: MovesDesk) -> None:
    """Its rounds keep it there, whatever the ring says."""
    assert desk.move(desk.free, C2) == MoveResult(C1)
    assert desk.state(desk.free)[:2] == (C1, C2)
    desk.cloud.settle()
    assert desk.state(desk.free)[:2] == (C2, C2)
    desk.cloud.settle()
    assert desk.state(desk.free)[:2] == (C2, C2)


def test_node_at_its_host_is_only_pinned(desk: MovesDesk) -> None:
    """It stays when its server is deleted, or when the ring changes."""
    assert desk.move(desk.node, C1) == MoveResult(C1)
    assert desk.move(desk.free, C1) == MoveResult(C1)
    assert not desk.writes
    desk.cloud.add('c3')
    desk.cloud.show('c1', 'c2', 'c3')
    desk.cloud.settle()
    assert desk.state(desk.free)[:2] == (C1, C1)


def test_pinned_host_that_leaves_the_ring_gives_its_node(
    desk: MovesDesk,
) -> None:
    """The pin waits; the node comes back with the host."""
    desk.move(desk.free, C2)
    desk.cloud.settle()
    desk.cloud.show('c1')
    desk.cloud.settle()
    assert desk.state(desk.free)[:2] == (C1, C2)
    desk.cloud.show('c1', 'c2')
    desk.cloud.settle()
    assert desk.state(desk.free)[:2] == (C2, C2)


def test_pin_is_read_by_the_next_worker_of_the_host(desk: MovesDesk) -> None:
    """A worker that dies loses nothing."""
    desk.move(desk.free, C1)
    desk.one.held_nodes.drop_node(desk.free)
    desk.one.held_nodes.load_rows()
    row = desk.one.held_nodes.row(desk.free)
    assert read_pin(row) == Pin(C1, 'ann')


def test_pin_of_another_operator_is_not_replaced(desk: MovesDesk) -> None:
    """The refusal says who has ordered it, and how to end that."""
    desk.move(desk.node, C1, by='bob on ctl1')
    why_not = desk.refused(desk.node, C2)
    assert 'is pinned to host c1 by bob on ctl1; add --replace' in why_not
    assert desk.move(desk.node, C2, replaces=True) == MoveResult(C1, S1)


def test_same_pin_again_is_no_contradiction(desk: MovesDesk) -> None:
    """The answer to the first request may have been lost."""
    assert desk.move(desk.free, C1, by='bob') == MoveResult(C1)
    assert desk.move(desk.free, C1) == MoveResult(C1)


def test_unpinned_node_goes_where_the_ring_says(desk: MovesDesk) -> None:
    """A second request changes nothing."""
    desk.move(desk.free, C1)
    assert desk.moves.unpin(desk.free) == UnpinResult(C1, C1, C1)
    assert desk.state(desk.free)[:2] == (C1, None)
    assert desk.moves.unpin(desk.free) == UnpinResult(C1, None, C1)


def test_pin_that_was_written_late_is_removed(desk: MovesDesk) -> None:
    """The holder has not seen it: the write had no answer."""
    set_pin(desk.cloud.nova.rows[desk.free], Pin(C1, 'ann'))
    assert read_pin(desk.one.held_nodes.row(desk.free)) is None
    assert desk.moves.unpin(desk.free) == UnpinResult(C1, C1, C1)
    assert desk.state(desk.free)[:2] == (C1, None)


def _claim(desk: MovesDesk) -> None:
    desk.one.claims.claim(desk.free, 's9')


def _leave_pool(desk: MovesDesk) -> None:
    desk.node = desk.free
    desk.change_node(conductor_group='rack-2')


def _drain(desk: MovesDesk) -> None:
    record = desk.cloud.nova.services[C2]
    record.disabled, record.disabled_reason = True, DrainOrder().reason()
    desk.other.services.read_records()


def _hide(desk: MovesDesk) -> None:
    desk.cloud.hidden[desk.free] = Unreachable('away')


def _drop(desk: MovesDesk) -> None:
    desk.cloud.nova.rows[desk.free].host = Host('c7')


REASONS: dict[str, Callable[[MovesDesk], None]] = {
    'is being built on': _claim,
    'has left this pool': _leave_pool,
    'An operator has host c2 drained; end that first': _drain,
    'did not answer: .*away': _hide,
    'c1 does not hold node': _drop,
    'takes no nodes yet': lambda desk: desk.cloud.show('c1'),
    'is down in Nova': lambda desk: setattr(desk, 'is_up', False),
    'different availability zones': lambda desk: desk.zone(
        'a', 'c1', availability_zone='zone-1'
    ),
}


@pytest.mark.parametrize('reason', REASONS)
def test_free_node_is_not_pinned(desk: MovesDesk, reason: str) -> None:
    """One sentence says why, and nothing is written."""
    REASONS[reason](desk)
    why_not = desk.refused(desk.free, C2)
    assert re.search(reason, why_not), why_not


def test_unknown_host_is_refused(desk: MovesDesk) -> None:
    """With and without a server."""
    for node in (desk.node, desk.free):
        assert 'c9 is not a host of this pool' in desk.refused(
            node, Host('c9')
        )


def test_refusal_of_an_eviction_is_an_answer(desk: MovesDesk) -> None:
    """The operator reads the sentence of the worker."""
    desk.server.task_state = 'rebooting'
    assert 'has task rebooting' in desk.refused(desk.node, C2)


def test_node_that_is_not_held_is_refused(desk: MovesDesk) -> None:
    """It was given away since the command read its holder."""
    desk.one.held_nodes.drop_node(desk.free)
    assert 'does not hold' in desk.refused(desk.free, C2)
    result = desk.moves.unpin(desk.free)
    assert 'does not hold' in (result.why_not or '')


def test_nothing_is_written_without_the_lease(desk: MovesDesk) -> None:
    """The lease lapses between the read and the write."""
    wait = desk.gate.wait
    calls = []

    def lapse() -> None:
        calls.append(desk.gate)
        if len(calls) == 2:
            desk.gate._deadline_s = 0.0
        wait()

    desk.gate.wait = lapse  # type: ignore[method-assign]
    desk.one.rows._gate = desk.gate
    result = desk.moves.move(
        desk.free, Pin(C1, 'ann'), replaces=False, is_dry_run=False
    )
    assert 'lost the coordination backend' in (result.why_not or '')
    assert desk.state(desk.free)[:2] == (C1, None)
    assert read_pin(desk.one.held_nodes.row(desk.free)) is None


def test_pin_without_an_answer_is_said(desk: MovesDesk) -> None:
    """It may have been written; the command is run again."""

    def write_pin(*args: object) -> None:
        raise Unreachable('away')

    desk.one.rows.write_pin = write_pin  # type: ignore[assignment,method-assign]
    result = desk.moves.move(
        desk.free, Pin(C1, 'ann'), replaces=False, is_dry_run=False
    )
    assert 'run the command again: ' in (result.why_not or '')


# Rebalance of the pool


def test_plan_is_what_the_rebalance_does(desk: MovesDesk) -> None:
    """The plan has what other hosts should hold, and nothing else."""
    assert desk.moves.plan().moves == ()
    node = desk.misplace()
    plan = desk.moves.plan()
    (move,) = [m for m in plan.moves if m.server]
    assert move == PlannedMove(node, S1, C2)
    held = desk.one.held_nodes.rows()
    assert (plan.nodes_count, plan.servers_count) == (len(held), 1)
    assert desk.moves.rebalance(node) == MoveResult(C1, S1)
    assert desk.state(node) == (C2, None, C2)
    again = desk.moves.rebalance(node)
    assert 'does not hold node' in (again.why_not or '')


def test_pin_decides_in_a_rebalance(desk: MovesDesk) -> None:
    """A node is at home where it is pinned."""
    node = desk.misplace()
    desk.move(node, C1)
    assert not [m for m in desk.moves.plan().moves if m.server]
    result = desk.moves.rebalance(node)
    assert 'at host c1, where it should be' in (result.why_not or '')


def test_nothing_moves_before_all_agents_agree(desk: MovesDesk) -> None:
    """Another host might give the node back."""
    node = desk.misplace()
    desk.cloud.show('c1', 'c2', agreed=False)
    result = desk.moves.rebalance(node)
    assert 'do not agree' in (result.why_not or '')


def test_servers_of_a_disabled_host_are_left_to_its_drain(
    desk: MovesDesk,
) -> None:
    """An operator may have disabled it to keep things as they are."""
    desk.cloud.show('c2')
    desk.cloud.clock.advance(SETTLE_S)
    (move,) = [m for m in desk.moves.plan().moves if m.server]
    assert 'ironic-computectl host drain c1' in (move.why_not or '')
    result = desk.moves.rebalance(desk.node)
    assert 'takes no nodes any more' in (result.why_not or '')


def test_empty_ring_plans_nothing(desk: MovesDesk) -> None:
    """Nodes stay where they are."""
    desk.cloud.show()
    assert desk.moves.plan().moves == ()


def _separate_zones(desk: MovesDesk) -> None:
    desk.zone('a', 'c1', availability_zone='zone-1')
    desk.zone('b', 'c2', 'd1', availability_zone='zone-2')


def _let_zones_change(desk: MovesDesk) -> list[tuple[Any, Host]]:
    """Return a list that grows by each server whose zone is changed."""
    changed: list[tuple[Any, Host]] = []
    evictor: Any = desk.evictor
    evictor._change_zone = lambda instance, target: changed.append(
        (instance.uuid, target)
    )
    return changed


def _move(desk: MovesDesk, node: NodeId, host: Host) -> MoveResult:
    return desk.moves.move(
        node,
        Pin(host, 'ann'),
        replaces=False,
        is_dry_run=False,
        changes_zone=True,
    )


def test_server_changes_its_zone_if_that_is_wanted(desk: MovesDesk) -> None:
    """Otherwise the refusal names both zones, and the option."""
    _separate_zones(desk)
    changed = _let_zones_change(desk)
    why_not = desk.move(desk.node, C2).why_not or ''
    assert 'zones, zone-1 and zone-2; if that is wanted' in why_not
    assert '--change-zone' in why_not
    assert not changed
    assert _move(desk, desk.node, C2) == MoveResult('c1', S1)
    assert changed == [(S1, C2)]
    assert desk.holder == C2


def test_rebalance_changes_a_zone_if_that_is_wanted(desk: MovesDesk) -> None:
    """The plan says which servers would stay without the option."""
    node = desk.misplace()
    _separate_zones(desk)
    changed = _let_zones_change(desk)
    (move,) = [m for m in desk.moves.plan().moves if m.server]
    assert '--change-zone' in (move.why_not or '')
    assert desk.moves.rebalance(node).why_not == move.why_not
    assert not changed
    plan = desk.moves.plan(changes_zone=True)
    (move,) = [m for m in plan.moves if m.server]
    assert move == PlannedMove(node, S1, C2)
    result = desk.moves.rebalance(node, changes_zone=True)
    assert result == MoveResult(C1, S1)
    assert changed == [(S1, C2)]


def test_free_node_changes_its_zone_if_that_is_wanted(desk: MovesDesk) -> None:
    """No server is changed."""
    _separate_zones(desk)
    changed = _let_zones_change(desk)
    assert desk.move(desk.free, C2).why_not
    assert _move(desk, desk.free, C2) == MoveResult('c1')
    assert not changed


def test_server_whose_zone_could_not_be_changed_stays(desk: MovesDesk) -> None:
    """nova-conductor has no access to the API database."""
    evictor: Any = desk.evictor

    def fail(instance: Any, target: Host) -> None:
        raise RuntimeError('CantStartEngineError')

    evictor._change_zone = fail
    why_not = _move(desk, desk.node, C2).why_not or ''
    assert 'did not answer: CantStartEngineError' in why_not
    assert desk.holder == C1
    assert desk.server.host == C1


def test_server_that_a_user_needs_keeps_its_zone(desk: MovesDesk) -> None:
    """Its rebuild with another image found no host in the other zone."""
    _separate_zones(desk)
    changed = _let_zones_change(desk)
    desk.before_save = lambda: setattr(desk.server, 'task_state', 'rebooting')
    why_not = _move(desk, desk.node, C2).why_not or ''
    assert 'just requested something' in why_not
    assert changed == [(S1, C2), (S1, C1)]


def test_zone_of_a_server_that_has_moved_is_not_restored(
    desk: MovesDesk,
) -> None:
    """The first save had no answer; a request made Nova refuse the second."""
    _separate_zones(desk)
    changed = _let_zones_change(desk)
    desk.before_save = lambda: desk.save_first(task_state='rebooting')
    assert _move(desk, desk.node, C2) == MoveResult('c1', S1)
    assert changed == [(S1, C2)]


def test_zone_that_cannot_be_restored_is_in_the_log(
    desk: MovesDesk, caplog: pytest.LogCaptureFixture
) -> None:
    """The refusal is as without that."""
    evictor: Any = desk.evictor

    def fail_to_restore(instance: Any, target: Host) -> None:
        if target == C1:
            raise TimeoutError

    evictor._change_zone = fail_to_restore
    desk.before_save = lambda: setattr(desk.server, 'task_state', 'rebooting')
    why_not = _move(desk, desk.node, C2).why_not or ''
    assert 'just requested something' in why_not
    assert 'stays on host c1, and its request spec' in caplog.text


def test_node_moves_to_a_host_of_another_pool_that_asks_for_it(
    desk: MovesDesk,
) -> None:
    """An operator may choose that its server changes its zone."""
    _separate_zones(desk)
    _let_zones_change(desk)
    nova, target = desk.cloud.nova, Host('d1')
    nova.services[target] = ServiceRecord(nova.new_id(), target, mapped=True)
    assert 'not a host of this pool' in (
        _move(desk, desk.node, target).why_not or ''
    )
    pool = NodePool('rack-2')
    desk.askers[desk.node, target] = Asker(target, pool)
    desk.change_node(conductor_group='rack-2')
    assert _move(desk, desk.node, target) == MoveResult('c1', S1)
    assert (desk.server.host, desk.holder) == (target, target)

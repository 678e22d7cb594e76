# SPDX-License-Identifier: Apache-2.0
"""A node and its server move to another host, or nothing is written."""

from collections.abc import Callable
from typing import Any

import pytest
from nova import objects
from nova.compute import task_states, vm_states

from hashring.ring import Host
from ironic_compute.ownership.eviction import Refused
from tests.fakes.clock import ManualClock
from tests.simulation.faults import Unreachable
from tests.unit.ironic_compute.ownership.moving import C1, C2, S1, Desk


@pytest.fixture
def desk(monkeypatch: pytest.MonkeyPatch) -> Desk:
    """Server s1 on a node of c1."""
    return Desk(monkeypatch)


def _assert_nothing_moved(desk: Desk) -> None:
    assert (desk.server.host, desk.holder) == (C1, C1)
    assert desk.one.held_nodes.row(desk.node) is not None
    assert not desk.told
    assert not desk.actions
    assert not desk.patches


def test_server_and_node_move_in_this_order(desk: Desk) -> None:
    """The server first: its node follows it, and never the other way."""
    assert desk.evictor.evict(desk.node, C2) == S1
    assert desk.writes == ['locked', 'server', 'row']
    assert (desk.server.host, desk.server.node) == (C2, desk.node)
    assert desk.holder == C2
    assert desk.one.held_nodes.row(desk.node) is None
    assert desk.told == [(C2, [desk.node])]


def test_move_is_noted_without_the_names_of_hosts_for_users(
    desk: Desk,
) -> None:
    """Only administrators see the host of an event."""
    desk.evictor.evict(desk.node, C2)
    names = [(name, *rest[1:]) for name, *rest in desk.actions]
    assert names == [
        ('action_start', 'ironic-compute: move', None),
        ('event_start', 'ironic_compute_leave_host', C1),
        ('event_finish', 'ironic_compute_leave_host', None),
    ]
    value = {'op': 'add', 'path': '/instance_info/nova_host_id', 'value': C2}
    assert desk.patches == [[value]]


def test_node_without_the_host_in_ironic_is_not_changed_there(
    desk: Desk,
) -> None:
    """The field is changed, and never added."""
    desk.info.clear()
    desk.evictor.evict(desk.node, C2)
    assert not desk.patches


def test_server_has_moved_although_its_history_was_not_written(
    desk: Desk,
) -> None:
    """Nothing depends on what only people read."""
    desk.evictor._client.read_fields = None  # type: ignore[assignment,method-assign]
    desk.evictor.evict(desk.node, C2)
    assert (desk.server.host, desk.holder) == (C2, C2)


def test_check_writes_nothing(desk: Desk) -> None:
    """A dry run reads what the move reads."""
    assert desk.evictor.check(desk.node, C2) == S1
    assert not desk.writes
    _assert_nothing_moved(desk)
    desk.server.task_state = task_states.DELETING
    with pytest.raises(Refused, match='has task deleting'):
        desk.evictor.check(desk.node, C2)


def _change(**fields: Any) -> Callable[[Desk], None]:
    def change(desk: Desk) -> None:
        for name, value in fields.items():
            setattr(desk.server, name, value)

    return change


def _change_node(**fields: Any) -> Callable[[Desk], None]:
    return lambda desk: desk.change_node(**fields)


def _change_service(**fields: Any) -> Callable[[Desk], None]:
    def change(desk: Desk) -> None:
        for name, value in fields.items():
            setattr(desk.cloud.nova.services[C2], name, value)

    return change


def _give_row_away(desk: Desk) -> None:
    row = desk.cloud.nova.live_row(desk.node)
    assert row is not None
    row.host = Host('c7')


def _delete_service(desk: Desk) -> None:
    del desk.cloud.nova.services[C2]


def _add_zones(desk: Desk) -> None:
    desk.zone('a', 'c1', availability_zone='zone-1')
    desk.zone('b', 'c2', availability_zone='zone-2')


REASONS = {
    'has task rebooting': _change(task_state='rebooting'),
    'is shelved; only': _change(vm_state=vm_states.SHELVED),
    'is soft-delete; only': _change(vm_state=vm_states.SOFT_DELETED),
    'is deleted; only': _change(vm_state=vm_states.DELETED),
    'is building; only': _change(vm_state=vm_states.BUILDING),
    'is on host c7 and node': _change(host='c7'),
    'on host c1 and node n77': _change(node='n77'),
    'Ironic and Nova differ': _change_node(instance_uuid='s7'),
    'is deploying in Ironic': _change_node(provision_state='deploying'),
    'is clean wait in Ironic': _change_node(provision_state='clean wait'),
    'is servicing in Ironic': _change_node(provision_state='servicing'),
    'is made up in Ironic': _change_node(provision_state='made up'),
    'has left this pool': _change_node(conductor_group='rack-2'),
    'c1 does not hold node': _give_row_away,
    'Server s7 is being built': lambda d: d.one.claims.claim(d.node, 's7'),
    'c2 is disabled or unknown': _change_service(disabled=True),
    'host c2 is disabled or': _delete_service,
    'c2 is down in Nova': lambda desk: setattr(desk, 'is_up', False),
    'c2 takes no nodes yet': lambda desk: desk.cloud.show('c1'),
    'zones, zone-1 and zone-2': _add_zones,
    'in the same aggregates: fast': lambda desk: desk.zone('fast', 'c1'),
    'zones, zone-1 and nova': lambda desk: desk.zone(
        'a', 'c1', availability_zone='zone-1'
    ),
    'did not answer': lambda desk: desk.cloud.hidden.update(
        {desk.node: Unreachable('away')}
    ),
}


@pytest.mark.parametrize('reason', REASONS)
def test_move_is_refused_before_the_first_write(
    desk: Desk, reason: str
) -> None:
    """One sentence says why, and nothing has changed."""
    held_before = desk.one.held_nodes.rows().keys()
    REASONS[reason](desk)
    before = desk.server.host, desk.holder
    with pytest.raises(Refused, match=f'(?i){reason}'):
        desk.evictor.evict(desk.node, C2)
    assert desk.writes in ([], ['locked'])
    assert (desk.server.host, desk.holder) == before
    assert desk.one.held_nodes.rows().keys() == held_before
    assert not desk.told


@pytest.mark.parametrize(
    'state', ['deploy failed', 'rescue', 'service failed', 'service hold']
)
def test_node_that_waits_for_an_operator_moves(desk: Desk, state: str) -> None:
    """A drain would else wait for the repair of the hardware."""
    desk.change_node(provision_state=state)
    assert desk.evictor.evict(desk.node, C2) == S1
    assert (desk.server.host, desk.holder) == (C2, C2)


@pytest.mark.parametrize(
    ('target', 'reason'),
    [('c1', 'at host c1 already'), ('c9', 'c9 is not a host of this pool')],
)
def test_wrong_target_is_refused(desk: Desk, target: str, reason: str) -> None:
    """The same host, and one of which the pool knows nothing."""
    with pytest.raises(Refused, match=reason):
        desk.evictor.evict(desk.node, Host(target))
    _assert_nothing_moved(desk)


def test_node_without_a_server_is_refused(desk: Desk) -> None:
    """Only a node with a server is evicted, and only a held one."""
    with pytest.raises(Refused, match='no server on node'):
        desk.evictor.evict(desk.free, C2)
    desk.one.held_nodes.drop_node(desk.free)
    with pytest.raises(Refused, match='c1 does not hold'):
        desk.evictor.evict(desk.free, C2)


def test_node_that_is_not_read_yet_is_not_said_to_be_free(
    desk: Desk,
) -> None:
    """A new worker has the row before Ironic has answered."""
    held_nodes = desk.one.held_nodes
    row = held_nodes.row(desk.node)
    held_nodes.drop_node(desk.node)
    held_nodes.add_node(row, None, held_nodes.version())
    for act in (desk.evictor.check, desk.evictor.evict):
        with pytest.raises(Refused, match='has not been read from Ironic yet'):
            act(desk.node, C2)
    _assert_nothing_moved(desk)


def test_server_does_not_go_to_a_host_that_is_retired_during_the_reads(
    desk: Desk,
) -> None:
    """Nova or Ironic may take minutes, and the host may be empty."""
    client: Any = desk.evictor._client
    read_node = client.read_node

    def read_slowly(node: str) -> Any:
        desk.cloud.nova.services.pop(C2, None)
        return read_node(node)

    client.read_node = read_slowly
    with pytest.raises(Refused, match='c2 is disabled or unknown'):
        desk.evictor.evict(desk.node, C2)
    _assert_nothing_moved(desk)


@pytest.mark.parametrize('work', ['messages', 'in_progress'])
def test_server_is_not_moved_while_it_is_worked_on(
    desk: Desk, work: str
) -> None:
    """A message about it is handled, or recovery continues a task."""
    with (
        getattr(desk, work).shared(S1),
        pytest.raises(Refused, match='is being worked on'),
    ):
        desk.evictor.evict(desk.node, C2)
    assert not desk.writes
    _assert_nothing_moved(desk)
    assert desk.evictor.evict(desk.node, C2) == S1


def test_nothing_else_begins_during_the_writes(desk: Desk) -> None:
    """Messages wait until the server has its new host."""
    free = []

    def look() -> None:
        for work in (desk.messages, desk.in_progress):
            with work.exclusive(S1) as is_free:
                free.append(is_free)

    desk.before_save = look
    desk.evictor.evict(desk.node, C2)
    assert free == [False, False]
    look()
    assert free[2:] == [True, True]


def test_request_between_read_and_write_wins(desk: Desk) -> None:
    """nova-api has saved the task of a request meanwhile."""
    desk.before_save = lambda: setattr(desk.server, 'task_state', 'rebooting')
    with pytest.raises(Refused, match='just requested something'):
        desk.evictor.evict(desk.node, C2)
    _assert_nothing_moved(desk)


@pytest.mark.parametrize(
    'fields',
    [
        {'task_state': 'rebooting'},
        {'task_state': task_states.DELETING},
        {'vm_state': vm_states.STOPPED},
    ],
)
def test_request_after_a_save_without_an_answer_undoes_no_move(
    desk: Desk, fields: dict[str, str]
) -> None:
    """The second save is refused, and the first one was carried out."""
    desk.before_save = lambda: desk.save_first(**fields)
    assert desk.evictor.evict(desk.node, C2) == S1
    assert (desk.server.host, desk.holder) == (C2, C2)
    assert desk.told == [(C2, [desk.node])]


def test_refused_save_is_checked_again_if_nova_is_silent(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It may have been carried out before."""

    def lose(*args: Any, **kwargs: Any) -> None:
        raise Unreachable('no answer')

    def save_and_leave() -> None:
        desk.save_first(task_state='rebooting')
        monkeypatch.setattr(objects.Instance, 'get_by_uuid', lose)

    desk.before_save = save_and_leave
    with pytest.raises(Refused, match='did not answer'):
        desk.evictor.evict(desk.node, C2)
    assert desk.rechecked == [(desk.node, S1)]


def test_delete_between_read_and_write_wins(desk: Desk) -> None:
    """The VM state is compared as well: a delete ends without a task."""
    desk.before_save = lambda: setattr(desk.server, 'vm_state', 'deleted')
    with pytest.raises(Refused, match='just requested something'):
        desk.evictor.evict(desk.node, C2)
    desk.before_save = lambda: setattr(desk.server, 'deleted', True)
    desk.server.vm_state = vm_states.ACTIVE
    with pytest.raises(Refused, match='is gone'):
        desk.evictor.evict(desk.node, C2)
    _assert_nothing_moved(desk)


def test_lease_that_lapses_before_the_write_ends_the_move(
    desk: Desk,
) -> None:
    """What was read before a wait at the gate is not written after it."""
    clock: ManualClock = desk.cloud.clock
    desk.gate._deadline_s = clock.now_s() + 10.0
    desk.before_save = lambda: clock.advance(20.0)
    with pytest.raises(Refused, match='coordination backend'):
        desk.evictor.evict(desk.node, C2)
    _assert_nothing_moved(desk)
    # An earlier try of the save may have been sent.
    assert desk.rechecked == [(desk.node, S1)]


def test_unanswered_save_is_checked_again(desk: Desk) -> None:
    """It may have been carried out, or may be carried out later."""

    def lose() -> None:
        raise Unreachable('no answer')

    desk.before_save = lose
    with pytest.raises(Refused, match='did not say whether'):
        desk.evictor.evict(desk.node, C2)
    assert desk.rechecked == [(desk.node, S1)]
    _assert_nothing_moved(desk)


def test_node_whose_row_was_not_written_follows_later(desk: Desk) -> None:
    """The server has moved, so this is no refusal."""
    rows: Any = desk.one.rows

    def fail(*args: Any) -> bool:
        raise Unreachable('no answer')

    rows.write_holder = fail
    assert desk.evictor.evict(desk.node, C2) == S1
    assert (desk.server.host, desk.holder) == (C2, C1)
    assert desk.rechecked == [(desk.node, S1)]


def test_lapse_between_the_writes_leaves_the_node_held(desk: Desk) -> None:
    """Nothing was sent, so it can follow its server with the next lease."""
    rows: Any = desk.one.rows
    write = rows.write_holder

    def lapse(*args: Any) -> bool:
        rows._gate._deadline_s = desk.cloud.clock.now_s()
        return bool(write(*args))

    rows.write_holder = lapse
    assert desk.evictor.evict(desk.node, C2) == S1
    assert (desk.server.host, desk.holder) == (C2, C1)
    assert desk.rechecked == [(desk.node, S1)]
    with desk.one.held_nodes.locked_row(desk.node) as row:
        assert row is not None

# SPDX-License-Identifier: Apache-2.0
"""Lost builds, whose RPC message was lost, are found and ended."""

import types
from collections.abc import Callable
from typing import Any

import pytest
from nova.compute import task_states, vm_states

from ironic_compute import errors
from ironic_compute.recovery import decisions
from ironic_compute.recovery.failures import TaskFailures
from ironic_compute.recovery.in_progress import InProgress, StartThread
from ironic_compute.recovery.lost_builds import (
    LOST_STATES,
    LostBuilds,
    requests_node,
)
from resource_tracker.node import NodeId
from tests.fakes.clock import ManualClock

N1 = NodeId('n1')


@pytest.mark.parametrize(
    ('name', 'asks'),
    [
        ('resources:CUSTOM_BAREMETAL', True),
        ('resources1:CUSTOM_GOLD', True),
        ('resources_A:CUSTOM_GOLD', True),
        ('resources:VCPU', False),
        ('trait:CUSTOM_GOLD', False),
    ],
)
def test_builds_of_hypervisors_are_left_alone(name: str, asks: bool) -> None:
    """A flavor without a custom resource class is not bare metal."""
    assert requests_node({'hw:cpu_policy': 'shared', name: '1'}) is asks


class _Server(types.SimpleNamespace):
    row_updated_at: str | None = None

    def refresh(self) -> None:
        """Read the row again."""
        self.updated_at = self.row_updated_at or self.updated_at

    def save(self, **kwargs: Any) -> None:
        self.done.append(self.task_state or 'no task')

    def destroy(self) -> None:
        self.done.append('gone')


class _Lost(LostBuilds):
    """LostBuilds of a cell with some servers, all with one allocation."""

    def __init__(
        self,
        *servers: _Server,
        nodes: list[NodeId],
        begin: StartThread = lambda name, act: act(),
        lost_s: float = 0.0,
    ) -> None:
        self.done: list[str] = []
        self.clock = ManualClock()
        self.reads_count = 0
        self.unanswered: set[str] = set()
        self.rows: list[NodeId] = [N1, NodeId('n2')]
        held_nodes: Any = types.SimpleNamespace(rows=lambda: {N1: object()})
        super().__init__(
            held_nodes,
            _RecordedFailures(self.done),
            self._nodes,
            lambda context, server: self.done.append('delete finished'),
            InProgress(),
            self.clock,
            lost_s,
            begin,
            lambda: self.done.append('counted'),
        )
        self._servers, self._found = servers, nodes
        for server in servers:
            server.done = self.done

    def _nodes(self, context: Any, server: str) -> list[NodeId]:
        self.reads_count += 1
        if server in self.unanswered:
            raise errors.IronicUnavailable('no answer')
        return self._found

    def _list_without_host(self, context: Any) -> list[Any]:
        return list(self._servers)

    def _list_rows(self, context: Any, nodes: list[NodeId]) -> list[Any]:
        return [node for node in nodes if node in self.rows]


class _RecordedFailures(TaskFailures):
    """Records each action in ``done``."""

    def __init__(self, done: list[str]) -> None:
        super().__init__(
            lambda context, server: done.append('freed'),
            lambda context, server: done.append('node freed'),
        )
        self._done = done

    def fail_task(self, context: Any, instance: Any, sentence: str) -> None:
        if instance.uuid == 'broken':
            raise ValueError('it never works')
        self._done.append('error')
        instance.vm_state = vm_states.ERROR


def _server(
    vm_state: str, uuid: str = 's1', task_state: str | None = None
) -> _Server:
    return _Server(
        uuid=uuid,
        host=None,
        vm_state=vm_state,
        task_state=task_state,
        updated_at=None,
    )


@pytest.mark.parametrize(
    ('vm_state', 'done'),
    [
        (vm_states.BUILDING, ['error', 'freed', 'counted']),
        (vm_states.ERROR, ['freed']),
        (vm_states.DELETED, ['freed', 'gone']),
    ],
)
def test_the_allocation_is_deleted_last(
    vm_state: str, done: list[str]
) -> None:
    """The row is saved before the allocation is deleted.

    LostBuilds finds a server by its allocation, so a worker that is killed
    between the two steps leaves a server that the next round finds.
    """
    assert vm_state in LOST_STATES
    lost = _Lost(_server(vm_state), nodes=[N1])
    lost.check()
    assert lost.done == done


def test_allocations_of_a_failed_server_without_any_are_read_once() -> None:
    """A failed server without an allocation is not read again."""
    lost = _Lost(_server(vm_states.ERROR), nodes=[])
    lost.check()
    lost.check()
    assert (lost.done, lost.reads_count) == ([], 1)


def test_a_deleted_server_without_allocation_is_ended_by_any_host() -> None:
    """A deleted server without host and allocation is destroyed."""
    lost = _Lost(_server(vm_states.DELETED), nodes=[])
    lost.check()
    assert lost.done == ['freed', 'gone']


@pytest.mark.parametrize('nodes', [[N1], []])
@pytest.mark.parametrize('vm_state', [vm_states.BUILDING, vm_states.ERROR])
def test_a_delete_whose_message_was_lost_is_finished(
    vm_state: str, nodes: list[NodeId]
) -> None:
    """A build ended with its host cleared, then its delete was lost."""
    server = _server(vm_state, task_state=task_states.DELETING)
    lost = _Lost(server, nodes=nodes)
    lost.check()
    assert lost.done == ['delete finished']


def test_a_delete_of_a_server_that_had_failed_before_is_finished() -> None:
    """nova-api ended while it deleted a server in ERROR, which has no host."""
    server = _server(vm_states.ERROR)
    lost = _Lost(server, nodes=[])
    lost.check()
    server.task_state = task_states.DELETING
    lost.check()
    assert lost.done == ['delete finished']


def test_a_build_without_allocation_is_ended_by_any_host() -> None:
    """A worker ended when it had deleted the allocation of a failed build."""
    lost = _Lost(_server(vm_states.BUILDING), nodes=[])
    lost.check()
    assert lost.done == ['error', 'freed', 'counted']


def test_a_build_is_lost_after_a_time_on_the_clock_of_the_worker() -> None:
    """The clock of Nova's database may be minutes ahead or behind."""
    lost = _Lost(_server(vm_states.BUILDING), nodes=[N1], lost_s=600.0)
    lost.check()
    lost.clock.advance(599.0)
    lost.check()
    assert not lost.done
    lost.clock.advance(1.0)
    lost.check()
    assert lost.done == ['error', 'freed', 'counted']


def test_a_build_that_changes_is_not_lost() -> None:
    """A change of the Instance begins the time anew."""
    server = _server(vm_states.BUILDING)
    lost = _Lost(server, nodes=[N1], lost_s=600.0)
    lost.check()
    lost.clock.advance(599.0)
    server.updated_at = 'now'
    lost.check()
    lost.clock.advance(599.0)
    lost.check()
    assert not lost.done


def test_a_build_is_not_lost_while_messages_wait() -> None:
    """Nova-conductor sends it when RabbitMQ is there again, or later."""
    lost = _Lost(_server(vm_states.BUILDING), nodes=[N1], lost_s=600.0)
    lost.check()
    lost.clock.advance(600.0)
    lost.wait_anew()
    lost.check()
    lost.clock.advance(599.0)
    lost.check()
    assert not lost.done
    lost.clock.advance(1.0)
    lost.check()
    assert lost.done == ['error', 'freed', 'counted']


def test_a_build_is_not_lost_if_rabbitmq_goes_away_during_the_check() -> None:
    """The read of its record waits for RabbitMQ, and nothing has changed."""
    server = _server(vm_states.BUILDING)
    lost = _Lost(server, nodes=[N1], lost_s=600.0)
    server.refresh = lost.wait_anew
    lost.check()
    lost.clock.advance(600.0)
    lost.check()
    assert not lost.done


def test_a_build_on_another_hosts_node_is_left_alone() -> None:
    """A lost build is left alone if this host does not hold its node."""
    lost = _Lost(_server(vm_states.BUILDING), nodes=[NodeId('n2')])
    lost.check()
    assert not lost.done


@pytest.mark.parametrize(
    ('vm_state', 'task_state', 'done'),
    [
        (vm_states.BUILDING, None, ['error', 'freed', 'counted']),
        (vm_states.BUILDING, task_states.DELETING, ['delete finished']),
        (vm_states.ERROR, None, ['freed']),
        (vm_states.SHELVED_OFFLOADED, task_states.UNSHELVING, []),
    ],
)
def test_a_build_whose_node_nobody_holds_is_ended_by_any_host(
    vm_state: str, task_state: str | None, done: list[str]
) -> None:
    """Seed 8202550: the server was in BUILD for ever.

    Its node had left Ironic, and the Service of its holder was deleted, with
    the records of its nodes. A user may repeat an unshelve, so this host may
    not delete an allocation that it does not know to be the old one.
    """
    lost = _Lost(
        _server(vm_state, task_state=task_state), nodes=[NodeId('n3')]
    )
    lost.check()
    assert lost.done == done


def test_a_build_that_cannot_be_ended_does_not_stop_the_others() -> None:
    """If ending the first build raises, the second is ended as well."""
    lost = _Lost(
        _server(vm_states.BUILDING, 'broken'),
        _server(vm_states.BUILDING),
        nodes=[N1],
    )
    lost.check()
    assert lost.done == ['error', 'freed', 'counted']


def test_a_failed_placement_read_delays_only_its_own_build() -> None:
    """If Placement does not answer about a build, the next is ended."""
    first = _server(vm_states.ERROR, 'first')
    lost = _Lost(first, _server(vm_states.ERROR), nodes=[N1])
    lost.unanswered.add('first')
    lost.check()
    assert lost.done == ['freed']
    lost.unanswered.clear()
    lost.check()
    assert lost.done == ['freed'] * 3


def _lost_with_deferred_threads() -> tuple[_Lost, list[Callable[[], None]]]:
    """Return a lost build, and a list that gets the work of each thread."""
    begun: list[Callable[[], None]] = []
    lost = _Lost(
        _server(vm_states.BUILDING),
        nodes=[N1],
        begin=lambda name, act: begun.append(act),
    )
    return lost, begun


def test_a_check_does_not_wait_for_builds_to_be_ended() -> None:
    """Each check and each end of a build has a thread of its own."""
    lost, begun = _lost_with_deferred_threads()
    lost.check()
    assert (lost.done, lost.reads_count, len(begun)) == ([], 0, 1)
    begun.pop()()
    assert (lost.done, lost.reads_count, len(begun)) == ([], 1, 1)
    begun.pop()()
    assert lost.done == ['error', 'freed', 'counted']


def test_only_one_check_at_a_time_reads_placement() -> None:
    """While a check waits for Placement, another check does nothing."""
    lost, begun = _lost_with_deferred_threads()
    lost.check()
    with lost._is_checking:
        begun.pop()()
    assert lost.reads_count == 0
    lost.check()
    begun.pop()()
    assert lost.reads_count == 1


@pytest.mark.parametrize('task_state', decisions.UNSHELVING)
@pytest.mark.parametrize(
    ('nodes', 'done'), [([N1], ['node freed', 'no task']), ([], ['no task'])]
)
def test_lost_unshelving_leaves_the_server_shelved(
    task_state: str, nodes: list[NodeId], done: list[str]
) -> None:
    """A server whose unshelve was lost is shelved as before, not ERROR.

    It has no allocation if the unshelve had failed and its worker was killed
    before it cleared the task: no user could unshelve the server again. Any
    host ends that one, so nothing is freed: a slow host would free what the
    next unshelve has got.
    """
    server = _server(vm_states.SHELVED_OFFLOADED, task_state=task_state)
    lost = _Lost(server, nodes=nodes)
    lost.check()
    assert lost.done == done
    assert server.vm_state == vm_states.SHELVED_OFFLOADED


def test_unshelve_that_began_after_the_check_is_left_alone() -> None:
    """Another host ended the lost one; the new one has an allocation."""
    server = _server(
        vm_states.SHELVED_OFFLOADED, task_state=task_states.SPAWNING
    )

    def begin_later(name: str, act: Callable[[], object]) -> None:
        if name != 'lost-builds':
            server.row_updated_at = 'later'
        act()

    lost = _Lost(server, nodes=[], begin=begin_later)
    lost.check()
    assert not lost.done


def test_a_shelved_server_without_task_is_left_alone() -> None:
    """A server whose unshelve ended during the check is left alone."""
    lost = _Lost(_server(vm_states.SHELVED_OFFLOADED), nodes=[N1])
    lost.check()
    assert not lost.done


def test_only_bare_metal_servers_without_a_host_are_listed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Nova leaves deleted servers out; a virtual machine is not ours."""
    asked: list[Any] = []
    lists = [[_flavored('CUSTOM_GOLD'), _flavored('VCPU')], []]

    def list_servers(context: Any, filters: Any, **_: Any) -> list[Any]:
        asked.append((filters['host'], filters['deleted']))
        return lists.pop(0)

    monkeypatch.setattr(
        'nova.objects.InstanceList.get_by_filters', list_servers
    )
    found = LostBuilds._list_without_host(_Lost(nodes=[]), None)
    assert [server.uuid for server in found] == ['CUSTOM_GOLD']
    assert asked == [(None, False), (None, False)]


def _flavored(resource_class: str) -> Any:
    extra_specs = {f'resources:{resource_class}': '1'}
    flavor = types.SimpleNamespace(extra_specs=extra_specs)
    return types.SimpleNamespace(uuid=resource_class, flavor=flavor)

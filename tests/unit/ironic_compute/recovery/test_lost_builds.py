# SPDX-License-Identifier: Apache-2.0
"""What a worker left in the moment between two writes is found."""

import types
from collections.abc import Callable
from typing import Any

import pytest
from nova.compute import vm_states

from ironic_compute import errors
from ironic_compute.recovery import decisions
from ironic_compute.recovery.decisions import InterruptedTask
from ironic_compute.recovery.failures import TaskFailures
from ironic_compute.recovery.in_progress import InProgress, StartThread
from ironic_compute.recovery.lost_builds import (
    LOST_STATES,
    LostBuilds,
    requests_node,
)
from resource_tracker.node import NodeId

N1 = NodeId('n1')


@pytest.mark.parametrize(
    ('vm_state', 'task'),
    [
        (vm_states.BUILDING, InterruptedTask.BUILD),
        (vm_states.DELETED, InterruptedTask.DELETE),
        (vm_states.SHELVED_OFFLOADED, InterruptedTask.CLEAR_HOST),
        (vm_states.ACTIVE, None),
    ],
)
def test_a_row_without_a_task_may_be_unfinished(
    vm_state: str, task: InterruptedTask | None
) -> None:
    """Claimed a moment ago, or freed and not taken out of the database."""
    assert decisions.interrupted_task(vm_state, None) is task
    assert (vm_state in decisions.VM_STATES_WITHOUT_TASK) is (task is not None)


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
def test_builds_of_hypervisors_are_not_looked_at(
    name: str, asks: bool
) -> None:
    """They share the cell; their lost builds are not ours to end."""
    assert requests_node({'hw:cpu_policy': 'shared', name: '1'}) is asks


class _Server(types.SimpleNamespace):
    def refresh(self) -> None:
        """It is as it was."""

    def save(self, **kwargs: Any) -> None:
        self.done.append(self.task_state or 'no task')

    def destroy(self) -> None:
        self.done.append('gone')


class _Lost(LostBuilds):
    """Some servers wait, all with the same allocation."""

    def __init__(
        self,
        *servers: _Server,
        nodes: list[NodeId],
        begin: StartThread = lambda name, act: act(),
    ) -> None:
        self.done: list[str] = []
        self.asked_count = 0
        self.unanswered: set[str] = set()
        held_nodes: Any = types.SimpleNamespace(rows=lambda: {N1: object()})
        super().__init__(
            held_nodes,
            _Ending(self.done),
            self._nodes,
            InProgress(),
            600.0,
            begin,
        )
        self._servers, self._found = servers, nodes
        for server in servers:
            server.done = self.done

    def _nodes(self, context: Any, server: str) -> list[NodeId]:
        self.asked_count += 1
        if server in self.unanswered:
            raise errors.IronicUnavailable('no answer')
        return self._found

    def _list_without_host(self, context: Any) -> list[Any]:
        return list(self._servers)


class _Ending(TaskFailures):
    """Writes down what it does."""

    def __init__(self, done: list[str]) -> None:
        super().__init__(
            lambda context, server: done.append('freed'),
            lambda context, server: done.append('taken off'),
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
        uuid=uuid, host=None, vm_state=vm_state, task_state=task_state
    )


@pytest.mark.parametrize(
    ('vm_state', 'done'),
    [
        (vm_states.BUILDING, ['error', 'freed']),
        (vm_states.ERROR, ['freed']),
        (vm_states.DELETED, ['freed', 'gone']),
    ],
)
def test_the_allocation_is_the_last_to_go(
    vm_state: str, done: list[str]
) -> None:
    """It leads to the server; killed in between, the next round goes on."""
    assert vm_state in LOST_STATES
    lost = _Lost(_server(vm_state), nodes=[N1])
    lost.check()
    assert lost.done == done


def test_a_failed_server_without_allocation_is_asked_for_once() -> None:
    """There may be hundreds of them; nothing will ever give them one."""
    lost = _Lost(_server(vm_states.ERROR), nodes=[])
    lost.check()
    lost.check()
    assert (lost.done, lost.asked_count) == ([], 1)


def test_a_delete_that_lacks_only_its_end_is_anybodys() -> None:
    """Its host and its allocation are gone already."""
    lost = _Lost(_server(vm_states.DELETED), nodes=[])
    lost.check()
    assert lost.done == ['freed', 'gone']


def test_a_build_elsewhere_is_left_alone() -> None:
    """Its node is another worker's."""
    lost = _Lost(_server(vm_states.BUILDING), nodes=[NodeId('n2')])
    lost.check()
    assert not lost.done


def test_a_build_that_cannot_be_ended_does_not_stop_the_others() -> None:
    """The first one raises each time; the second is ended all the same."""
    lost = _Lost(
        _server(vm_states.BUILDING, 'broken'),
        _server(vm_states.BUILDING),
        nodes=[N1],
    )
    lost.check()
    assert lost.done == ['error', 'freed']


def test_a_build_that_placement_is_silent_about_waits_alone() -> None:
    """No answer about the first says nothing of it nor of the second."""
    first = _server(vm_states.ERROR, 'first')
    lost = _Lost(first, _server(vm_states.ERROR), nodes=[N1])
    lost.unanswered.add('first')
    lost.check()
    assert lost.done == ['freed']
    lost.unanswered.clear()
    lost.check()
    assert lost.done == ['freed'] * 3


def test_a_round_does_not_wait_for_builds_to_be_ended() -> None:
    """A teardown may take half an hour; others look meanwhile."""
    begun: list[Callable[[], None]] = []
    lost = _Lost(
        _server(vm_states.BUILDING),
        nodes=[N1],
        begin=lambda name, act: begun.append(act),
    )
    lost.check()
    assert (lost.done, lost.asked_count, len(begun)) == ([], 0, 1)
    begun.pop()()
    assert (lost.done, lost.asked_count, len(begun)) == ([], 1, 1)
    begun.pop()()
    assert lost.done == ['error', 'freed']


def test_one_look_at_a_time_asks_placement() -> None:
    """Who waits for a slow Placement is not joined by the next round."""
    begun: list[Callable[[], None]] = []
    lost = _Lost(
        _server(vm_states.BUILDING),
        nodes=[N1],
        begin=lambda name, act: begun.append(act),
    )
    lost.check()
    with lost._is_checking:
        begun.pop()()
    assert lost.asked_count == 0
    lost.check()
    begun.pop()()
    assert lost.asked_count == 1


@pytest.mark.parametrize('task_state', decisions.UNSHELVING)
def test_lost_unshelving_leaves_the_server_shelved(task_state: str) -> None:
    """Its data is on its volume: it is never put to ERROR."""
    server = _server(vm_states.SHELVED_OFFLOADED, task_state=task_state)
    lost = _Lost(server, nodes=[N1])
    lost.check()
    assert lost.done == ['taken off', 'no task']
    assert server.vm_state == vm_states.SHELVED_OFFLOADED


def test_server_that_is_shelved_for_good_is_left_alone() -> None:
    """Its unshelving ended while it was looked at."""
    lost = _Lost(_server(vm_states.SHELVED_OFFLOADED), nodes=[N1])
    lost.check()
    assert not lost.done

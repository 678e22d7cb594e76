# SPDX-License-Identifier: Apache-2.0
"""Interrupted tasks are resumed or ended according to row and Ironic."""

import types
from collections.abc import Sequence
from typing import Any

import pytest
from nova import exception as nova_exception
from nova.compute import power_state, vm_states
from nova.compute import task_states as tasks
from oslo_context import context as oslo_context

from hashring.ring import Host
from ironic_compute.recovery import decisions
from ironic_compute.recovery.interrupted_tasks import (
    WITHOUT_TASK_EVERY,
    InterruptedTasks,
)
from resource_tracker.node import NodeFacts

from .interrupted import (
    HOST,
    SHELVED,
    ResumesOne,
    Server,
    check_twice,
    make_node,
    make_server,
)


@pytest.fixture
def no_faults(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nova saves the faults of servers in its database."""
    monkeypatch.setattr(
        'nova.compute.utils.add_instance_fault_from_exc', lambda *args: None
    )


@pytest.mark.parametrize('task_state', [None, tasks.UNSHELVING])
def test_host_of_an_offloaded_server_is_cleared(
    task_state: str | None,
) -> None:
    """An offloaded server loses its host; its task stays as it is.

    The message that unshelves the server may still be in the queue.
    """
    server = make_server(SHELVED, task_state)
    check_twice(ResumesOne(server, None))
    assert server.done[0] == f'saved None {task_state}'
    assert (server.node, server.compute_id) == (None, None)


@pytest.mark.parametrize('task_state', [None, tasks.UNSHELVING])
def test_late_save_takes_no_host_from_a_server_that_is_unshelved(
    task_state: str | None,
) -> None:
    """nova-conductor may carry it out when the server is ACTIVE again."""
    server = make_server(SHELVED, task_state)
    server.row_vm_state = vm_states.ACTIVE
    check_twice(ResumesOne(server, None))
    assert not server.done


@pytest.mark.parametrize(
    ('is_volume', 'node', 'done'),
    [
        (True, make_node('active'), ['shelved']),
        (True, make_node('deleting'), ['node freed', 'saved None None']),
        (True, None, ['node freed', 'saved None None']),
        (False, make_node('active'), ['saved c1 None']),
    ],
)
def test_shelving_continues_from_the_state_of_the_node(
    is_volume: bool,
    node: NodeFacts | None,
    done: list[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """An interrupted shelving ends; a server without a volume stays."""
    monkeypatch.setattr(
        'nova.compute.utils.is_volume_backed_instance',
        lambda *args: is_volume,
    )
    server = make_server(vm_states.ACTIVE, tasks.SHELVING)
    interrupted = ResumesOne(server, node)
    interrupted.check()
    assert not server.done
    interrupted.check()
    assert server.done == done


@pytest.mark.parametrize(
    ('vm_state', 'task_state', 'node'),
    [
        (vm_states.BUILDING, tasks.SPAWNING, 'active'),
        (vm_states.BUILDING, tasks.SPAWNING, 'available'),
        (vm_states.BUILDING, None, 'active'),
        (vm_states.ACTIVE, tasks.REBUILDING, 'active'),
        (vm_states.ACTIVE, tasks.REBUILDING, 'deploying'),
        (vm_states.ACTIVE, tasks.PAUSING, 'active'),
        (vm_states.ACTIVE, tasks.RESCUING, 'rescue'),
        (vm_states.ACTIVE, tasks.RESCUING, 'rescue failed'),
        (SHELVED, tasks.SPAWNING, 'available'),
        (SHELVED, tasks.SPAWNING, 'active'),
        (SHELVED, tasks.UNSHELVING, 'available'),
        (SHELVED, None, 'available'),
    ],
)
def test_delete_that_was_requested_meanwhile_is_kept(
    vm_state: str,
    task_state: str | None,
    node: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A row that has got the task ``deleting`` meanwhile is not saved.

    If the message of the delete is lost, only the row shows the delete.
    """
    monkeypatch.setattr(
        'nova.compute.utils.add_instance_fault_from_exc', lambda *args: None
    )
    server = make_server(vm_state, task_state)
    server.row = tasks.DELETING
    check_twice(ResumesOne(server, make_node(node)))
    assert not [it for it in server.done if it.startswith('saved')]


def test_task_that_has_just_begun_is_left_alone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A build ended after the list was read; then a rebuild was requested.

    The rebuild's message is on its way, and would find the task ended.
    """
    monkeypatch.setattr(
        'nova.compute.utils.add_instance_fault_from_exc', lambda *args: None
    )
    server = make_server(vm_states.BUILDING, tasks.SPAWNING)
    refresh = {'vm_state': vm_states.ACTIVE, 'task_state': tasks.REBUILDING}
    server.refresh = lambda: vars(server).update(refresh)
    check_twice(ResumesOne(server, make_node('active')))
    assert not server.done


@pytest.mark.parametrize(
    ('task_state', 'node', 'vm_state', 'is_lost'),
    [
        (tasks.RESCUING, 'rescue', vm_states.RESCUED, False),
        (tasks.RESCUING, 'active', vm_states.ACTIVE, True),
        (tasks.UNRESCUING, 'active', vm_states.ACTIVE, False),
        (tasks.UNRESCUING, 'rescue', vm_states.RESCUED, True),
    ],
)
def test_rescue_ends_in_the_state_of_the_node(
    task_state: str,
    node: str,
    vm_state: str,
    is_lost: bool,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """A change that Ironic never began is logged, because it is lost."""
    server = make_server(vm_states.PAUSED, task_state)
    check_twice(ResumesOne(server, make_node(node)))
    assert (server.vm_state, server.task_state) == (vm_state, None)
    assert ('was lost' in caplog.text) == is_lost


class _Acts(ResumesOne):
    """Has the actions that a test gives, newest first."""

    actions: Sequence[Any] = ()

    def _context_of(self, instance: Any) -> Any:
        return InterruptedTasks._context_of(self, instance)

    def _list_actions(self, instance: Any) -> list[Any]:
        return list(self.actions)

    def request_id(self) -> Any:
        """Return the request id with which Nova's handlers are called."""
        return self._context_of(self._server).request_id


def test_handlers_end_the_last_action_of_a_user() -> None:
    """Without such an action, or its id, the context has an id of its own."""
    interrupted = _Acts(make_server(vm_states.ACTIVE, tasks.PAUSING), None)
    assert interrupted.request_id().startswith('req-')
    action = types.SimpleNamespace
    power_update = action(action='power-update', request_id='req-power')
    interrupted.actions = [power_update, action(action='p', request_id=None)]
    assert interrupted.request_id().startswith('req-')
    interrupted.actions = [
        power_update,
        action(action='pause', request_id='req-pause'),
        action(action='create', request_id='req-create'),
    ]
    assert interrupted.request_id() == 'req-pause'


def test_servers_of_this_host_alone_are_listed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Nova returns each server with a task; deleted ones are left out.

    Those that may be restored are not: their restore or their final delete
    would stay undone.
    """
    asked: list[Any] = []

    def list_servers(context: Any, filters: Any, **_: Any) -> list[Server]:
        asked.append(filters)
        return [server]

    monkeypatch.setattr(
        'nova.objects.InstanceList.get_by_filters', list_servers
    )
    server = make_server(vm_states.ACTIVE, tasks.PAUSING)
    interrupted = ResumesOne(server, None)
    assert InterruptedTasks._list_unfinished(interrupted, False) == [server]
    assert [(f['host'], f['deleted']) for f in asked] == [(HOST, False)]
    assert all(filters['soft_deleted'] for filters in asked)


class _Lists(ResumesOne):
    """Lists servers as Nova does: those without a task in a list of theirs."""

    _list_unfinished = InterruptedTasks._list_unfinished

    def _list_servers(self, filters: dict[str, Any]) -> list[Any]:
        key = 'task_state' if self._server.task_state else 'vm_state'
        return [self._server] if key in filters else []


@pytest.mark.parametrize('vm_state', [vm_states.BUILDING, SHELVED])
def test_server_without_a_task_is_handled_at_its_second_list(
    vm_state: str,
) -> None:
    """Rounds that do not list such servers do not reset their idle time."""
    server = make_server(vm_state, None)
    interrupted = _Lists(server, make_node('active'))
    for _ in range(WITHOUT_TASK_EVERY + 1):
        interrupted.check()
    assert server.done


@pytest.mark.parametrize(
    ('vm_state', 'task_state', 'kind'),
    [
        (vm_states.ACTIVE, tasks.REBOOT_STARTED, 'SOFT'),
        (vm_states.ACTIVE, tasks.REBOOT_STARTED_HARD, 'HARD'),
        (vm_states.ERROR, tasks.REBOOT_STARTED_HARD, 'HARD'),
    ],
)
def test_reboot_that_left_the_node_off_is_repeated_with_its_type(
    vm_state: str, task_state: str, kind: str
) -> None:
    """Nova refuses a hard reboot of a server with the task of a soft one."""
    server = make_server(vm_state, task_state)
    interrupted = ResumesOne(server, make_node('active'))
    components = interrupted._manager
    components.get_info = lambda instance, use_cache: types.SimpleNamespace(
        state=power_state.SHUTDOWN
    )
    components.reboot_instance = lambda context, instance, devices, kind: (
        server.done.append(kind)
    )
    interrupted.check()
    assert server.done == [kind]


@pytest.mark.usefixtures('no_faults')
def test_reboot_of_a_server_without_a_node_ends() -> None:
    """The driver names the server as not found, as if Nova lacked it."""
    server = make_server(vm_states.ERROR, tasks.REBOOT_STARTED_HARD)
    interrupted = ResumesOne(server, None)

    def get_info(instance: Server, use_cache: bool) -> Any:
        raise nova_exception.InstanceNotFound(instance_id=instance.uuid)

    interrupted._manager.get_info = get_info
    interrupted.check()
    assert (server.vm_state, server.task_state) == (vm_states.ERROR, None)
    assert server.done == ['saved c1 None']


@pytest.mark.parametrize(
    ('task_state', 'handler'),
    [
        (tasks.SOFT_DELETING, 'soft_delete_instance'),
        (tasks.REBOOTING_HARD, 'reboot_instance'),
        (tasks.POWERING_OFF, 'stop_instance'),
    ],
)
def test_request_for_a_server_in_error_is_done(
    task_state: str, handler: str
) -> None:
    """nova-api accepts it, and its message may be lost like any other."""
    server = make_server(vm_states.ERROR, task_state)
    interrupted = ResumesOne(server, make_node('active'))
    manager = interrupted._manager
    setattr(manager, handler, lambda *args: server.done.append(handler))
    interrupted.check()
    assert server.done == [handler]


@pytest.mark.parametrize('before', [vm_states.ERROR, vm_states.STOPPED])
@pytest.mark.parametrize('node', ['rescue', 'active'])
def test_lost_rescue_of_a_server_that_was_not_active_ends(
    before: str, node: str
) -> None:
    """Without a rescue, it is as before; a stopped one was shown as ACTIVE."""
    server = make_server(before, tasks.RESCUING)
    check_twice(ResumesOne(server, make_node(node)))
    after = vm_states.RESCUED if node == 'rescue' else before
    assert (server.vm_state, server.task_state) == (after, None)


def test_thread_has_the_id_of_the_request_that_it_continues() -> None:
    """The id of the user's request is in the log and in requests to Ironic."""
    server = make_server(vm_states.STOPPED, tasks.POWERING_ON)
    interrupted = _Acts(server, None)
    found = []

    def start_instance(context: Any, instance: Any) -> None:
        current = oslo_context.get_current()
        assert current is not None
        found.append((context.request_id, current.request_id))

    interrupted._manager.start_instance = start_instance
    request_id = 'req-11111111-1111-1111-1111-111111111111'
    interrupted.actions = [
        types.SimpleNamespace(action='start', request_id=request_id)
    ]
    check_twice(interrupted)
    assert set(found) == {(request_id, request_id)}


@pytest.mark.parametrize(
    ('requests', 'vm_state'),
    [
        ([('evacuate', 8), ('rebuild', 7)], vm_states.ACTIVE),
        ([('lock', 9), ('evacuate', 8)], vm_states.ACTIVE),
        ([('rebuild', 9), ('evacuate', 8)], vm_states.ERROR),
    ],
)
def test_lost_evacuation_leaves_the_server_as_it_was(
    requests: list[tuple[str, int]],
    vm_state: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Its request has the task of a rebuild, and would be refused.

    The host that refuses it may wait for Placement before it ends the task.
    """
    monkeypatch.setattr(
        'nova.compute.utils.add_instance_fault_from_exc', lambda *args: None
    )
    server = make_server(vm_states.ACTIVE, tasks.REBUILDING)
    interrupted = ResumesOne(server, make_node('active'))
    interrupted.requests = requests
    check_twice(interrupted)
    assert (server.vm_state, server.task_state) == (vm_state, None)


def test_lost_live_migration_leaves_the_server_as_it_was() -> None:
    """nova-conductor ended before it had refused or sent it."""
    assert tasks.MIGRATING in decisions.TASK_STATES
    server = make_server(vm_states.ACTIVE, tasks.MIGRATING)
    interrupted = ResumesOne(server, make_node('active'))
    interrupted.check()
    assert server.task_state == tasks.MIGRATING
    interrupted.check()
    assert (server.vm_state, server.task_state) == (vm_states.ACTIVE, None)


@pytest.mark.usefixtures('no_faults')
def test_rebuild_waits_while_another_host_holds_the_node() -> None:
    """Messages of a server whose eviction was interrupted are with that host.

    It may be down. After it has given the node away, they are on their way.
    """
    server = make_server(vm_states.ACTIVE, tasks.REBUILDING)
    interrupted = ResumesOne(server, make_node('active'))
    interrupted.other_holder = Host('c2')
    check_twice(interrupted)
    interrupted.check()
    interrupted.other_holder = None
    interrupted.check()
    assert not server.done
    interrupted.check()
    assert server.vm_state == vm_states.ERROR


@pytest.mark.parametrize(
    ('task_state', 'node'),
    [(tasks.REBUILDING, None), (tasks.PAUSING, make_node('active'))],
)
@pytest.mark.usefixtures('no_faults')
def test_nothing_waits_in_vain_for_another_host(
    task_state: str, node: NodeFacts | None
) -> None:
    """That host keeps a node that Ironic does not have the server on."""
    server = make_server(vm_states.ACTIVE, task_state)
    interrupted = ResumesOne(server, node)
    interrupted.other_holder = Host('c2')
    check_twice(interrupted)
    assert server.done == ['saved c1 None']

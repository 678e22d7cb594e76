# SPDX-License-Identifier: Apache-2.0
"""What was left half done goes on, or ends as its row and Ironic allow."""

import datetime
import types
from typing import Any

import pytest
from nova import exception as nova_exception
from nova.compute import task_states as tasks
from nova.compute import vm_states

from ironic_compute import errors
from ironic_compute.driver import nova_errors
from ironic_compute.recovery import decisions
from ironic_compute.recovery.decisions import InterruptedTask
from ironic_compute.recovery.failures import TaskFailures
from ironic_compute.recovery.in_progress import InProgress
from ironic_compute.recovery.interrupted_deploys import InterruptedDeploys
from ironic_compute.recovery.interrupted_tasks import InterruptedTasks
from resource_tracker.node import NodeFacts, NodeId

HOST, NODE, SERVER = 'c1', NodeId('n1'), 's1'
SHELVED = vm_states.SHELVED_OFFLOADED


class _Clock:
    """Time passes from one round to the next."""

    def __init__(self) -> None:
        self._now_s = 0.0

    def now_s(self) -> float:
        self._now_s += 100.0
        return self._now_s


class _Server(types.SimpleNamespace):
    """A server's row."""

    def refresh(self) -> None:
        """It is as it was."""

    def get_network_info(self) -> list[dict[str, str]]:
        """It has two ports."""
        return [{'id': 'p1'}, {'id': 'p2'}]

    def save(self, expected_task_state: Any = None) -> None:
        row = getattr(self, 'row', None)
        if row is not None and row not in (expected_task_state or [row]):
            raise nova_exception.UnexpectedTaskStateError(
                instance_uuid=self.uuid, expected={}, actual={}
            )
        self.done.append(f'saved {self.host} {self.task_state}')


class _Here(InterruptedTasks):
    """Takes up one server, at once."""

    def __init__(self, server: _Server, node: NodeFacts | None) -> None:
        self.done = server.done
        self.deploy_fails = self.is_deleted = self.is_away = False
        self.changed_at: str | None = None
        self.ports = ['p1', 'p2']
        self._server = server
        components: Any = types.SimpleNamespace(
            read_node_of_instance=lambda uuid: node,
            read_fields=lambda node, fields: {fields[0]: self.changed_at},
            wait_for_deploy=self._wait,
            soft_delete_instance=None,
            restore_instance=None,
            start_instance=None,
            network_api=types.SimpleNamespace(list_ports=self._list_ports),
            shelve_offload_instance=lambda *args: self.done.append('shelved'),
        )
        failures = TaskFailures(self._free_build, self._free_node)
        super().__init__(
            HOST,
            components,
            components,
            components,
            InterruptedDeploys(
                components, components, failures, components.network_api
            ),
            failures,
            InProgress(),
            _Clock(),  # type: ignore[arg-type]
            60.0,
            lambda name, act: act(),
        )

    def _wait(self, instance: Any, node: str) -> None:
        self.done.append('waited')
        if self.is_deleted:
            instance.task_state = tasks.DELETING
            raise nova_errors.Cancelled('it is to be deleted')
        if self.deploy_fails:
            raise errors.DeployFailed('the disk is broken')
        if self.is_away:
            raise errors.IronicNotReached('connection refused')

    def _list_ports(self, context: Any, device_id: str) -> Any:
        assert device_id == SERVER
        return {'ports': [{'id': port} for port in self.ports]}

    def _free_build(self, context: Any, instance: Any) -> None:
        self.done.append('given up')

    def _free_node(self, context: Any, instance: Any) -> None:
        self.done.append('taken off')
        instance.host = None

    def _list_unfinished(self) -> list[Any]:
        return [self._server]

    def _list_actions(self, instance: Any) -> list[Any]:
        return [
            types.SimpleNamespace(action='lock', start_time=_at(9)),
            types.SimpleNamespace(action='rebuild', start_time=_at(7)),
            types.SimpleNamespace(action='rebuild', start_time=_at(1)),
        ]

    def _context_of(self, instance: Any) -> Any:
        return None


def _server(vm_state: str, task_state: str | None) -> _Server:
    return _Server(
        uuid=SERVER,
        host=HOST,
        node=NODE,
        compute_id=1,
        vm_state=vm_state,
        task_state=task_state,
        updated_at=None,
        launched_at=None,
        key_name='mine',
        key_data=None,
        keypairs=[types.SimpleNamespace(name='mine', public_key='ssh-rsa')],
        done=[],
    )


def _node(state: str) -> NodeFacts:
    return NodeFacts(NODE, provision_state=state, instance_uuid=SERVER)


def _at(hour: int) -> datetime.datetime:
    return datetime.datetime(2026, 11, 2, hour, tzinfo=datetime.UTC)


def _take_up(resume: InterruptedTasks) -> None:
    """Look twice: nothing here is done before it has been idle a while."""
    resume.check()
    resume.check()


@pytest.mark.parametrize(
    ('vm_state', 'task_state', 'task'),
    [
        (vm_states.BUILDING, tasks.SPAWNING, InterruptedTask.BUILD),
        (vm_states.ACTIVE, tasks.SPAWNING, InterruptedTask.CLEAR_TASK),
        (vm_states.ERROR, tasks.SPAWNING, InterruptedTask.CLEAR_TASK),
        (SHELVED, tasks.SPAWNING, InterruptedTask.UNSHELVE),
        (SHELVED, tasks.UNSHELVING, InterruptedTask.CLEAR_HOST),
        (SHELVED, None, InterruptedTask.CLEAR_HOST),
        (SHELVED, tasks.DELETING, InterruptedTask.DELETE),
        (vm_states.SHELVED, tasks.UNSHELVING, InterruptedTask.CLEAR_TASK),
        (vm_states.SHELVED, tasks.SHELVING_OFFLOADING, InterruptedTask.SHELVE),
        (vm_states.ACTIVE, tasks.SHELVING, InterruptedTask.SHELVE),
    ],
)
def test_only_a_server_that_was_never_built_is_a_build(
    vm_state: str, task_state: str | None, task: InterruptedTask
) -> None:
    """To give up another one as a build would cost it its data."""
    assert decisions.interrupted_task(vm_state, task_state) is task
    is_found = (
        task_state in decisions.TASK_STATES
        or vm_state in decisions.VM_STATES_WITHOUT_TASK
    )
    assert is_found


@pytest.mark.parametrize('node', [None, _node('available')])
def test_unshelving_that_never_reached_ironic_is_undone(
    node: NodeFacts | None,
) -> None:
    """The server is shelved as before, with its key, and can try again."""
    server = _server(SHELVED, tasks.SPAWNING)
    _take_up(_Here(server, node))
    assert server.done[:2] == ['taken off', 'saved None None']
    assert (server.vm_state, server.key_data) == (SHELVED, 'ssh-rsa')


def test_unshelving_that_ironic_goes_on_with_is_waited_for() -> None:
    """It is ACTIVE at the end, and has its key again."""
    server = _server(SHELVED, tasks.SPAWNING)
    _take_up(_Here(server, _node('wait call-back')))
    assert server.done[:2] == ['waited', 'saved c1 None']
    assert (server.vm_state, server.key_data) == ('active', 'ssh-rsa')


def test_unshelving_that_failed_in_ironic_loses_nothing() -> None:
    """Its root disk is a volume."""
    server = _server(SHELVED, tasks.SPAWNING)
    resume = _Here(server, _node('deploying'))
    resume.deploy_fails = True
    _take_up(resume)
    assert server.done[:3] == ['waited', 'taken off', 'saved None None']
    assert server.vm_state == SHELVED


@pytest.mark.parametrize('task_state', [None, tasks.UNSHELVING])
def test_server_that_was_shelved_but_for_its_host_is_let_go(
    task_state: str | None,
) -> None:
    """A request to unshelve it may be on its way: nothing else changes."""
    server = _server(SHELVED, task_state)
    _take_up(_Here(server, None))
    assert server.done[0] == f'saved None {task_state}'
    assert (server.node, server.compute_id) == (None, None)


@pytest.mark.parametrize(
    ('is_volume', 'node', 'done'),
    [
        (True, _node('active'), ['shelved']),
        (True, _node('deleting'), ['taken off', 'saved None None']),
        (True, None, ['taken off', 'saved None None']),
        (False, _node('active'), ['saved c1 None']),
    ],
)
def test_shelving_goes_on_from_where_the_node_is(
    is_volume: bool,
    node: NodeFacts | None,
    done: list[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Nova's handler needs a node; a disk of the node's own is kept."""
    monkeypatch.setattr(
        'nova.compute.utils.is_volume_backed_instance',
        lambda *args: is_volume,
    )
    server = _server(vm_states.ACTIVE, tasks.SHELVING)
    resume = _Here(server, node)
    resume.check()
    assert not server.done
    resume.check()
    assert server.done == done


class _Failed(TaskFailures):
    """Needs no database for a fault."""

    def __init__(self, done: list[str]) -> None:
        self._done = done

    def fail_task(self, context: Any, instance: Any, sentence: str) -> None:
        self._done.append(sentence)


@pytest.mark.parametrize(
    ('task_state', 'node', 'changed_at', 'is_done'),
    [
        (tasks.REBUILD_SPAWNING, 'active', '2026-11-02T07:05:00+00:00', True),
        (tasks.REBUILD_SPAWNING, 'active', '2026-11-02T06:55:00+00:00', False),
        (tasks.REBUILD_SPAWNING, 'active', None, False),
        (tasks.REBUILDING, 'active', '2026-11-02T07:05:00+00:00', False),
        (tasks.REBUILD_SPAWNING, 'deploying', None, True),
        (tasks.REBUILDING, 'deploying', None, True),
        (tasks.REBUILD_SPAWNING, 'available', None, False),
    ],
)
def test_a_rebuild_is_done_only_if_the_node_was_deployed_since(
    task_state: str, node: str, changed_at: str | None, is_done: bool
) -> None:
    """Otherwise the user is told of a new disk and has the old one."""
    server = _server(vm_states.ACTIVE, task_state)
    resume = _Here(server, _node(node))
    resume._deploys._failures = _Failed(server.done)
    resume.changed_at = changed_at
    _take_up(resume)
    assert ('waited' in server.done) is is_done
    assert any('rebuild it again' in it for it in server.done) is not is_done


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
def test_delete_that_was_asked_for_meanwhile_is_kept(
    vm_state: str,
    task_state: str | None,
    node: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Its message may be lost, and then only the row knows of it."""
    monkeypatch.setattr(
        'nova.compute.utils.add_instance_fault_from_exc', lambda *args: None
    )
    server = _server(vm_state, task_state)
    server.row = tasks.DELETING
    _take_up(_Here(server, _node(node)))
    assert not [it for it in server.done if it.startswith('saved')]


@pytest.mark.parametrize('vm_state', [vm_states.BUILDING, SHELVED])
def test_build_that_ends_because_of_a_delete_is_left_to_it(
    vm_state: str,
) -> None:
    """The delete frees the node itself; the row goes on to ask for it."""
    server = _server(vm_state, tasks.SPAWNING)
    resume = _Here(server, _node('deploying'))
    resume.is_deleted = True
    resume.check()
    resume.check()
    assert set(server.done) <= {'waited'}
    assert server.task_state == tasks.DELETING


@pytest.mark.parametrize(
    ('vm_state', 'task_state'),
    [
        (vm_states.BUILDING, tasks.SPAWNING),
        (vm_states.ACTIVE, tasks.REBUILD_SPAWNING),
        (SHELVED, tasks.SPAWNING),
    ],
)
def test_a_deploy_is_not_given_up_while_ironic_is_away(
    vm_state: str, task_state: str
) -> None:
    """What becomes of it is asked again in the next round."""
    server = _server(vm_state, task_state)
    resume = _Here(server, _node('deploying'))
    resume.is_away = True
    _take_up(resume)
    assert set(server.done) == {'waited'}
    assert (server.vm_state, server.task_state) == (vm_state, task_state)
    resume.is_away = False
    resume.check()
    assert (server.vm_state, server.task_state) == (vm_states.ACTIVE, None)


@pytest.mark.parametrize(
    ('ports', 'ends'),
    [
        (['p1', 'p2'], ['saved c1 None']),
        (['p2'], ['saved c1 None']),  # The user has deleted the other.
        ([], ['given up']),
        (['p3'], ['given up']),
    ],
)
def test_a_build_that_was_given_up_but_for_its_row_is_not_active(
    ports: list[str], ends: list[str]
) -> None:
    """Ports go first; then nova-conductor was away, or the worker died."""
    server = _server(vm_states.BUILDING, tasks.SPAWNING)
    resume = _Here(server, _node('active'))
    resume.ports = ports
    _take_up(resume)
    assert server.done[:2] == ['waited', *ends]

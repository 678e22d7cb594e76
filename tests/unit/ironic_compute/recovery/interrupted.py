# SPDX-License-Identifier: Apache-2.0
"""A server with an interrupted task, and its recovery without threads."""

import datetime
import types
from typing import Any

from nova import context as nova_context
from nova import exception as nova_exception
from nova.compute import task_states as tasks
from nova.compute import vm_states

from hashring.ring import Host
from ironic_compute import errors
from ironic_compute.driver import nova_errors
from ironic_compute.ironic_api.descriptions import HOST_KEY
from ironic_compute.recovery.failures import TaskFailures
from ironic_compute.recovery.in_progress import InProgress
from ironic_compute.recovery.interrupted_deploys import InterruptedDeploys
from ironic_compute.recovery.interrupted_tasks import InterruptedTasks
from resource_tracker.node import NodeFacts, NodeId

HOST, NODE, SERVER = 'c1', NodeId('n1'), 's1'
SHELVED = vm_states.SHELVED_OFFLOADED


class Clock:
    """A clock that advances 100 seconds with each read."""

    def __init__(self) -> None:
        self._now_s = 0.0

    def now_s(self) -> float:
        self._now_s += 100.0
        return self._now_s


class Server(types.SimpleNamespace):
    """A server's row that records each save in ``done``."""

    def refresh(self) -> None:
        """Read the row again; nothing has changed."""

    def get_network_info(self) -> list[dict[str, str]]:
        """Return the two ports of the server."""
        return [{'id': 'p1'}, {'id': 'p2'}]

    def save(
        self, expected_task_state: Any = None, expected_vm_state: Any = None
    ) -> None:
        row = getattr(self, 'row', None)
        if row is not None and row not in (expected_task_state or [row]):
            raise nova_exception.UnexpectedTaskStateError(
                instance_uuid=self.uuid, expected={}, actual={}
            )
        row_vm_state = getattr(self, 'row_vm_state', None)
        if row_vm_state and row_vm_state not in (expected_vm_state or []):
            raise nova_exception.InstanceUpdateConflict(
                instance_uuid=self.uuid, expected={}, actual={}
            )
        self.done.append(f'saved {self.host} {self.task_state}')


class ResumesOne(InterruptedTasks):
    """InterruptedTasks of a host with one server, run without threads."""

    def __init__(self, server: Server, node: NodeFacts | None) -> None:
        self.done = server.done
        self.reported: list[Any] = []
        self.deploy_fails = self.is_deleted = self.is_away = False
        self.teardown_error: errors.IronicComputeError | None = None
        self.changed_at: str | None = None
        self.info = {HOST_KEY: HOST}
        self.ports = ['p1', 'p2']
        self.other_holder: Host | None = None
        self.requests = [('lock', 9), ('rebuild', 7), ('rebuild', 1)]
        self._server = server
        components: Any = types.SimpleNamespace(
            read_node_of_instance=lambda uuid: node,
            read_fields=lambda node, fields: {
                'provision_updated_at': self.changed_at,
                'instance_info': self.info,
            },
            wait_for_deploy=self._wait,
            soft_delete_instance=None,
            finish_delete=None,
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
                components,
                components,
                failures,
                components.network_api,
                lambda *arguments: self.reported.append(arguments[1:]),
            ),
            failures,
            lambda node: self.other_holder,
            InProgress(),
            Clock(),  # type: ignore[arg-type]
            60.0,
            lambda name, act: act(),
        )

    def _wait(self, instance: Any, node: str) -> None:
        self.done.append('waited')
        if self.is_deleted:
            instance.task_state = tasks.DELETING
            raise nova_errors.Cancelled('the server is to be deleted')
        if self.deploy_fails:
            raise errors.DeployFailed('the disk is broken')
        if self.is_away:
            raise errors.IronicNotReached('connection refused')

    def _list_ports(self, context: Any, device_id: str) -> Any:
        assert device_id == SERVER
        return {'ports': [{'id': port} for port in self.ports]}

    def _free_build(self, context: Any, instance: Any) -> None:
        self.done.append('build freed')

    def _free_node(self, context: Any, instance: Any) -> None:
        with nova_errors.as_nova_errors(instance):
            if self.teardown_error is not None:
                self.done.append('not freed')
                raise self.teardown_error
        self.done.append('node freed')
        instance.host = None

    def _list_unfinished(self, lists_all: bool) -> list[Any]:
        return [self._server]

    def _list_actions(self, instance: Any) -> list[Any]:
        return [
            types.SimpleNamespace(action=action, start_time=at_hour(hour))
            for action, hour in self.requests
        ]

    def _context_of(self, instance: Any) -> Any:
        return nova_context.get_admin_context()


def make_server(vm_state: str, task_state: str | None) -> Server:
    return Server(
        uuid=SERVER,
        host=HOST,
        node=NODE,
        compute_id=1,
        vm_state=vm_state,
        task_state=task_state,
        updated_at=None,
        launched_at=None,
        config_drive='True',
        key_name='mine',
        key_data=None,
        system_metadata={},
        keypairs=[types.SimpleNamespace(name='mine', public_key='ssh-rsa')],
        done=[],
    )


def make_node(state: str) -> NodeFacts:
    return NodeFacts(NODE, provision_state=state, instance_uuid=SERVER)


def at_hour(hour: int) -> datetime.datetime:
    return datetime.datetime(2026, 11, 2, hour, tzinfo=datetime.UTC)


def check_twice(interrupted: InterruptedTasks) -> None:
    """Run two rounds, because most tasks are handled after an idle time."""
    interrupted.check()
    interrupted.check()

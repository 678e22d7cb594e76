# SPDX-License-Identifier: Apache-2.0
"""Simulated Nova: the database, the message queues, Service records.

The semantics are those of Nova on which the real code relies: ``save``
writes the changed fields and returns the new record; ``create`` of a
ComputeNode takes over a live row without an error.
"""

import dataclasses
import math
from collections.abc import Mapping
from typing import Any, TypeVar

from nova import exception as nova_exception
from nova.compute import task_states, vm_states

from hashring.ring import Host
from ironic_compute.nodes.pins import read_pin
from ironic_compute.nodes.records import MADE, NEW
from resource_tracker.node import NodeId
from tests.simulation.broker import Broker
from tests.simulation.requests import TaskRequest
from tests.simulation.wire import PROMPT_S, SentRequest

_RecordT = TypeVar('_RecordT')

SERVICE_DOWN_S = 60.0
# Reasons for which a build may fail, and leave its allocation.
LATE_WRITE = 'a late write'
LATE_RELEASE = 'its allocation was deleted late'
LATE_UNDEPLOY = 'it was removed from its node late'
LOST = 'its message was lost'
UNSAVED = 'the failure of its build was not saved'


@dataclasses.dataclass
class ServiceRecord:
    """A Service of binary nova-compute."""

    id: int
    host: Host
    mapped: bool = False
    disabled: bool = False
    disabled_reason: str | None = None
    reported_s: float = 0.0
    created_s: float = -math.inf  # Before the life began.


@dataclasses.dataclass
class NodeRecord:
    """A row of compute_nodes."""

    id: int
    node: str
    host: Host
    service_id: int
    deleted: bool = False
    stats: dict[str, str] = dataclasses.field(default_factory=dict)
    fields: dict[str, Any] = dataclasses.field(default_factory=dict)
    created_s: float | None = None  # None after a transfer.
    came_late_s: float = -math.inf  # When a late write created it.
    former: tuple[Host, float] | None = None  # The former host, until when.

    @property
    def hypervisor_hostname(self) -> str:
        """The node, by the name of a field of Nova's object."""
        return self.node


@dataclasses.dataclass
class ServerRecord:
    """A row of instances."""

    uuid: str
    created_s: float
    vm_state: str = vm_states.BUILDING
    task_state: str | None = 'scheduling'
    host: Host | None = None
    node: str | None = None
    deleted: bool = False
    updated_at: float = 0.0
    was_active: bool = False
    is_given_up: bool = False  # Nova ends its build, though it is ACTIVE.
    delete_asked: bool = False
    is_reboot_due: bool = False  # A user waits for its reboot.
    has_left: bool = False  # Ironic has freed its last node.
    # Why its build may fail: see ``Cloud.check_server``.
    excuses: set[str] = dataclasses.field(default_factory=set)
    launched_at: Any = None
    image_ref: str = 'image-0'
    has_root_volume: bool = False
    system_metadata: dict[str, str] = dataclasses.field(default_factory=dict)
    # The accepted requests for tasks of this server, newest last.
    requests: list[TaskRequest] = dataclasses.field(default_factory=list)

    def may_fail(self) -> bool:
        """Return whether a reason was noted for which a build may fail.

        Some excuses are only for an allocation or a node that is missing.
        """
        return bool(self.excuses - {LATE_RELEASE, LATE_UNDEPLOY, UNSAVED})

    def excuse_task(self, why: str) -> None:
        """Note a reason for which the tasks of this server may fail.

        Besides the last request, those that a worker still works on.
        """
        for request in self.requests:
            if request is self.requests[-1] or request.is_at_work:
                request.excuses.add(why)


def copy_record(record: _RecordT) -> _RecordT:
    """Return a copy of a row, in a fraction of the time of ``replace``."""
    copy = object.__new__(type(record))
    vars(copy).update(vars(record))
    return copy


def _unexpected(server: ServerRecord) -> Exception:
    kind = nova_exception.UnexpectedTaskStateError
    if server.task_state == task_states.DELETING:
        kind = nova_exception.UnexpectedDeletingTaskStateError
    return kind(instance_uuid=server.uuid, expected={}, actual={})


class Nova:
    """The database and the message queues of one cell."""

    def __init__(self, world: Any) -> None:
        self._world = world
        self._ids = 0
        self.services: dict[Host, ServiceRecord] = {}
        self.rows: dict[str, NodeRecord] = {}
        self.servers: dict[str, ServerRecord] = {}
        # Nodes whose row was once deleted with its Service.
        self.rows_dropped: set[str] = set()
        self.broker = Broker(world)

    def new_id(self) -> int:
        self._ids += 1
        return self._ids

    def live_row(self, node: str) -> NodeRecord | None:
        row = self.rows.get(node)
        return None if row is None or row.deleted else row

    def server(self, uuid: str) -> ServerRecord:
        found = self.servers[uuid]
        if found.deleted:
            raise nova_exception.InstanceNotFound(instance_id=uuid)
        return found

    def is_up(self, host: Host) -> bool:
        """Return whether nova-api considers a Service up."""
        record = self.services.get(host)
        now_s = self._world.wrong_now_s()
        return record is not None and (
            abs(now_s - record.reported_s) < SERVICE_DOWN_S
        )

    def uses(self, host: Host) -> bool:
        """Return whether a host has rows or servers."""
        rows, servers = self.rows.values(), self.servers.values()
        return any(r.host == host and not r.deleted for r in rows) or any(
            s.host == host and not s.deleted for s in servers
        )

    def is_without_service(self, node: str) -> bool:
        """Return whether a node may have lost its holder's Service.

        The daemon of a deleted Service may still create a row or a provider.
        If neither the host nor the node comes back, no daemon looks for it.
        """
        row = self.rows.get(node)
        is_orphan = row is not None and row.host not in self.services
        return node in self.rows_dropped or is_orphan

    def insert_service(self, record: ServiceRecord) -> None:
        """``Service.create``: the database accepts one for each host.

        A request that comes late must not replace the present record, which
        may contain an operator's order.
        """
        if record.host in self.services:
            raise nova_exception.ServiceBinaryExists(
                host=record.host, binary='nova-compute'
            )
        self.services[record.host] = record

    def delete_service(self, host: Host) -> None:
        """Delete a Service with the rows and providers of its nodes."""
        record = self.services.pop(host, None)
        if record is None:
            return
        self._world.log(f'the Service of {host} is deleted')
        for row in self.rows.values():
            if row.service_id == record.id and not row.deleted:
                row.deleted = True
                self.rows_dropped.add(row.node)
                self._world.placement.drop_unused(NodeId(row.node))
        # A build that waits in the queue of this host finds no node there, or
        # nobody takes it from the queue any more.
        left = {row.node for row in self.rows.values() if row.host == host}
        left |= self.rows_dropped
        allocations = self._world.placement.allocations.items()
        servers = {server for server, node in allocations if node in left}
        for server in sorted(servers | self._list_begun(host)):
            self._world.excuse(server, 'its Service was deleted')
            self._world.tasks.excuse(server, 'its Service was deleted')

    def _list_begun(self, host: Host) -> set[str]:
        """Return the servers whose build or unshelve only a queue has.

        A build that is undone, to be done again, has no host in Nova, and its
        node may have been given to another host. Nova then deletes the
        Service, and nobody else can know of the message.
        """
        return {
            message.server
            for message in self.broker.messages_for(host)
            if message.name in ('build', 'unshelve')
        }

    def destroy_service(
        self, request: SentRequest, host: Host, number: int
    ) -> None:
        """``Service.destroy``, with which a worker retires its host.

        It is not simulated that it comes late, when an operator has ended
        the order and the host is in use again.
        """
        record = self.services.get(host)
        if record is None or record.id != number:
            raise nova_exception.ServiceNotFound(service_id=number)
        if self.uses(host) and request.late:
            return
        if self.uses(host):
            self._world.fail(f'{request.sender} retires {host}, in use')
        self._world.log(f'{request.sender} retires {host}')
        self.delete_service(host)

    # Changes of rows

    def create_row(
        self,
        request: SentRequest,
        node: str,
        host: Host,
        service_id: int,
        created_s: float = 0.0,
    ) -> NodeRecord:
        """Insert a row with no other fields than these."""
        fields = {
            'hypervisor_hostname': node,
            'host': host,
            'service_id': service_id,
            'stats': {NEW: f'{created_s:.0f}', MADE: f'{created_s:.3f}'},
        }
        return self.insert_row(request, fields)

    def insert_row(
        self, request: SentRequest, fields: Mapping[str, Any]
    ) -> NodeRecord:
        """``ComputeNode.create``: an upsert.

        A row gets the id of a deleted row of the same node (bug 1839560).
        """
        node, host = fields['hypervisor_hostname'], fields['host']
        present = self.live_row(node)
        if present is not None and present.host != host:
            self._world.check_creation(request, present)
            self._world.check_holder(request, present, host)
        if present is None:
            record = NodeRecord(self._id_of(node), node, host, 0)
            self.rows[node] = record
        else:
            record = present
            self._change_host(record, host)
        self._set(record, fields)
        now_s = self._world.kernel.now_s
        record.created_s = None if request.late else now_s
        if request.late:
            record.came_late_s = now_s
        self._world.log(f'{request.sender} creates the row of {node}')
        return copy_record(record)

    def _id_of(self, node: str) -> int:
        former = self.rows.get(node)
        return self.new_id() if former is None else former.id

    def update_row(
        self, request: SentRequest, node: str, changes: Mapping[str, Any]
    ) -> NodeRecord:
        """``ComputeNode.save``, which may have another host."""
        record = self.live_row(node)
        if record is None:
            raise nova_exception.ComputeHostNotFound(host=node)
        former, host = record.host, changes.get('host', record.host)
        if former != host:
            self._world.check_holder(request, record, host)
            self._world.log(f'{request.sender} gives {node} to {host}')
            self._change_host(record, host)
            record.created_s = None
        pin = read_pin(record)
        self._set(record, changes)
        if request.late and read_pin(record) != pin:
            self._world.moves.forget_pin(node)
        if former != host and self._world.faults.occurs('boot meets push'):
            self._world.load.boot(node, former)
        saved = copy_record(record)
        if former != host:
            self._world.moves.note_row(node)
        return saved

    @staticmethod
    def _set(record: NodeRecord, changes: Mapping[str, Any]) -> None:
        rest = dict(changes)
        record.host = rest.pop('host', record.host)
        record.service_id = rest.pop('service_id', record.service_id)
        record.stats = dict(rest.pop('stats', record.stats))
        record.fields = {**record.fields, **rest}

    def _change_host(self, record: NodeRecord, host: Host) -> None:
        record.former = (record.host, self._world.kernel.now_s)
        record.host = host

    def destroy_row(self, request: SentRequest, node: str, host: Host) -> None:
        """``ComputeNode.destroy``: fails if the host has changed."""
        record = self.live_row(node)
        if record is None or record.host != host:
            raise nova_exception.ObjectActionError(
                action='destroy', reason='host changed'
            )
        self._world.check_removal(request, node)
        self._world.log(f'{request.sender} deletes the row of {node}')
        record.deleted = True

    # Changes of servers

    def save_server(
        self,
        request: SentRequest,
        uuid: str,
        changes: dict[str, Any],
        expected: Any,
        expected_vm_states: Any = None,
    ) -> ServerRecord:
        """``Instance.save``."""
        record = self.server(uuid)
        self._world.check_resume(request, record)
        if expected is not None and record.task_state not in expected:
            raise _unexpected(record)
        if expected_vm_states and record.vm_state not in expected_vm_states:
            raise nova_exception.InstanceUpdateConflict(
                instance_uuid=uuid, expected={}, actual={}
            )
        former = copy_record(record)
        if request.late:
            # It may overwrite the task of a build, whose last save is refused
            # then: Nova shows the server ACTIVE for a moment and fails it.
            record.excuses.add(LATE_WRITE)
            record.is_given_up = True
        if request.way_s > PROMPT_S:
            record.excuse_task(LATE_WRITE)
        for name, value in changes.items():
            setattr(record, name, value)
        record.updated_at = self._world.kernel.now_s
        is_active = record.vm_state == vm_states.ACTIVE
        record.was_active |= is_active and not record.is_given_up
        if record.requests:
            states = f'{record.vm_state}, {record.task_state}'
            self._world.log(f'{request.sender} saves {uuid}: {states}')
        self._world.check_server(record)
        saved = copy_record(record)
        self._world.moves.note_save(request, former, record)
        return saved

    def destroy_server(self, uuid: str) -> None:
        """``Instance.destroy``."""
        record = self.server(uuid)
        self._world.log(f'server {uuid} is deleted')
        record.deleted = True
        record.updated_at = self._world.kernel.now_s

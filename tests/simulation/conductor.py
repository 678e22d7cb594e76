# SPDX-License-Identifier: Apache-2.0
"""Simulated nova-conductor: the requests of Nova's objects, on the wire.

The real code reads and writes Nova's records through Nova's objects, and
these through ``NovaObject.indirection_api``. The worker that sends a request
is the process whose task runs.
"""

import contextlib
import functools
import warnings
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from nova import exception as nova_exception
from nova import objects
from nova import rpc as nova_rpc
from nova import utils as nova_utils
from nova.objects import base
from oslo_versionedobjects import base as ovo_base

from tests.simulation.nova import (
    NodeRecord,
    Nova,
    ServerRecord,
    copy_record,
)
from tests.simulation.requests import TaskRequest
from tests.simulation.rows import Disks, Server

objects.register_all()

# Objects that the tasks of servers read; their requests are sent again.
_READ_BY_TASKS = frozenset({'BlockDeviceMappingList', 'InstanceActionList'})
_find_versions = ovo_base.obj_tree_get_versions
_found: dict[str, dict[str, str]] = {}


def _versions(
    objname: str, tree: dict[str, str] | None = None
) -> dict[str, str]:
    """Return the versions of an object's tree; find them only once."""
    if tree is not None:
        return _find_versions(objname, tree)
    if objname not in _found:
        _found[objname] = _find_versions(objname)
    return _found[objname]


class Conductor:
    """``nova.conductor.rpcapi.ConductorAPI`` of one world."""

    def __init__(self, world: Any) -> None:
        self._world = world
        self._nova: Nova = world.nova
        self._class_methods: Mapping[tuple[str, str], Callable[..., Any]] = {
            ('ComputeNode', 'get_by_nodename'): self._row_by_name,
            ('ComputeNodeList', 'get_all_by_host'): self._rows_by_host,
            ('ComputeNodeList', 'get_all_by_uuids'): self._rows_by_uuids,
            ('ComputeNodeList', 'get_by_pagination'): self._page_of_rows,
            ('InstanceList', 'get_by_filters'): self._servers,
            ('InstanceList', 'get_by_host_and_node'): self._servers_on,
            ('InstanceList', 'get_uuids_by_host'): self._uuids_by_host,
            ('InstanceActionList', 'get_by_instance_uuid'): self._actions,
            ('BlockDeviceMappingList', 'get_by_instance_uuid'): self._disks,
            ('Instance', 'get_by_uuid'): self._server,
            ('Service', 'get_by_compute_host'): self._service,
            ('AggregateList', 'get_all'): self._aggregates,
        }
        self._class_writes = frozenset(
            {
                ('InstanceAction', 'action_start'),
                ('InstanceActionEvent', 'event_start'),
                ('InstanceActionEvent', 'event_finish'),
            }
        )
        self._event_writes: Mapping[tuple[str, str], Callable[..., Any]] = {
            ('InstanceActionEvent', 'event_start'): self._start_event,
            (
                'InstanceActionEvent',
                'event_finish_with_failure',
            ): self._finish_event,
        }
        self._writes: Mapping[tuple[str, str], Callable[[Any], Any]] = {
            ('ComputeNode', 'create'): self._create_row,
            ('ComputeNode', 'save'): self._save_row,
            ('ComputeNode', 'destroy'): self._destroy_row,
            ('InstanceFault', 'create'): self._create_fault,
        }

    @contextlib.contextmanager
    def installed(self) -> Iterator[None]:
        """Answer the requests of Nova's objects of this process."""
        former = base.NovaObject.indirection_api
        synchronized, nova_utils.synchronized = (
            nova_utils.synchronized,
            self._synchronized,
        )
        notifiers = nova_rpc.LEGACY_NOTIFIER, nova_rpc.NOTIFIER
        nova_rpc.LEGACY_NOTIFIER = nova_rpc.NOTIFIER = _NoNotifier()
        base.NovaObject.indirection_api = self
        ovo_base.obj_tree_get_versions = _versions
        try:
            with warnings.catch_warnings():
                # The names of simulated nodes are no uuids.
                warnings.simplefilter('ignore', FutureWarning)
                yield
        finally:
            base.NovaObject.indirection_api = former
            nova_utils.synchronized = synchronized
            nova_rpc.LEGACY_NOTIFIER, nova_rpc.NOTIFIER = notifiers
            ovo_base.obj_tree_get_versions = _find_versions

    def _synchronized(self, server: str) -> Callable[..., Any]:
        """``nova.utils.synchronized``: the lock of a server, in a worker."""

        def decorate(function: Callable[..., Any]) -> Callable[..., Any]:
            @functools.wraps(function)
            def run(*args: Any, **kwargs: Any) -> Any:
                with self._worker.manager._lock(server):
                    return function(*args, **kwargs)

            return run

        return decorate

    @property
    def _worker(self) -> Any:
        return self._world.kernel.task.process

    # For Nova's objects

    def object_class_action_versions(
        self,
        context: Any,
        objname: str,
        objmethod: str,
        object_versions: Any,
        args: Any,
        kwargs: Any,
    ) -> Any:
        """Call a class method of an object; most of them only read."""
        write = self._event_writes.get((objname, objmethod))
        if write is not None and self._world.tasks.is_on:
            return write(context, *args, **kwargs)
        if (objname, objmethod) in self._class_writes:
            return self._worker.wire.wait_and_write(lambda request: None)
        read = self._class_methods[objname, objmethod]
        if objname in _READ_BY_TASKS and self._world.tasks.is_on:
            return self._read(lambda: read(context, *args, **kwargs))
        return self._worker.wire.read(lambda: read(context, *args, **kwargs))

    def object_action(
        self, context: Any, objinst: Any, objmethod: str, *_: Any
    ) -> tuple[dict[str, Any], Any]:
        """Call a method of an object, which writes.

        :returns: the changed fields, and the result, which is None always
        """
        return self._writes[objinst.obj_name(), objmethod](objinst), None

    # Reads of rows

    def _row_by_name(self, context: Any, node: str) -> Any:
        record = self._nova.live_row(node)
        if record is None:
            raise nova_exception.ComputeHostNotFound(host=node)
        return _row(context, record)

    def _rows_by_host(self, context: Any, host: str) -> list[Any]:
        return [_row(context, r) for r in self._live() if r.host == host]

    def _rows_by_uuids(self, context: Any, uuids: list[str]) -> list[Any]:
        found = [r for r in map(self._nova.live_row, uuids) if r is not None]
        if len(found) < len(uuids):
            self._world.load.freeze_before_create(self._worker)
        return [_row(context, record) for record in found]

    def _page_of_rows(
        self, context: Any, limit: int, marker: int | None
    ) -> list[Any]:
        live = {record.id: record for record in self._live()}
        if marker is not None and marker not in live:
            raise nova_exception.MarkerNotFound(marker=marker)
        numbers = sorted(n for n in live if n > (marker or 0))[:limit]
        return [_row(context, live[number]) for number in numbers]

    def _live(self) -> Iterator[NodeRecord]:
        return (r for r in self._nova.rows.values() if not r.deleted)

    # Writes of rows

    def _create_row(self, row: Any) -> dict[str, Any]:
        changes = row.obj_get_changes()
        record = self._worker.wire.write(
            lambda request: self._nova.insert_row(request, changes)
        )
        return {'id': record.id, **_answer(record)}

    def _save_row(self, row: Any) -> dict[str, Any]:
        node, changes = row.hypervisor_hostname, row.obj_get_changes()
        record = self._worker.wire.write(
            lambda request: self._nova.update_row(request, node, changes)
        )
        return _answer(record)

    def _destroy_row(self, row: Any) -> dict[str, Any]:
        node, host = row.hypervisor_hostname, row.host
        self._worker.wire.write(
            lambda request: self._nova.destroy_row(request, node, host)
        )
        return {}

    # Servers

    def _servers(
        self, context: Any, filters: Mapping[str, Any], **_: Any
    ) -> list[Server]:
        is_shown = context.read_deleted == 'yes'
        found = [
            record
            for record in self._nova.servers.values()
            if (is_shown or not record.deleted) and _matches(record, filters)
        ]
        worker = self._worker
        servers = [
            Server(self._nova, worker.wire, copy_record(record))
            for record in found
        ]
        if 'task_state' in filters:
            self._world.load.evict_before_resume(worker, found)
        return servers

    def _servers_on(
        self, context: Any, host: str, node: str, **_: Any
    ) -> list[Server]:
        return self._servers(context, {'host': host, 'node': node})

    def _uuids_by_host(self, context: Any, host: str) -> list[str]:
        return [s.uuid for s in self._servers(context, {'host': host})]

    def _server(self, context: Any, server: str, **_: Any) -> Server:
        record = copy_record(self._nova.server(server))
        return Server(self._nova, self._worker.wire, record)

    def _service(self, context: Any, host: str) -> None:
        if host not in self._nova.services:
            raise nova_exception.ComputeHostNotFound(host=host)

    def _aggregates(self, context: Any) -> list[Any]:
        return self._world.moves.aggregates

    # What only tasks use

    def _read(self, act: Callable[[], Any]) -> Any:
        wire = self._worker.wire
        return wire.repeat(lambda: wire.read(act))

    def _write(self, act: Callable[[Any], Any]) -> Any:
        wire = self._worker.wire
        return wire.repeat(lambda: wire.wait_and_write(act))

    def _actions(
        self, context: Any, server: str, **_: Any
    ) -> list[TaskRequest]:
        return self._nova.servers[server].requests[::-1]

    def _disks(self, context: Any, server: str) -> Disks:
        return Disks.of(self._nova.servers[server].has_root_volume)

    def _request(self, context: Any, server: str) -> TaskRequest:
        """Return the request of an action, or the last one: see Nova's DB."""
        requests = self._nova.servers[server].requests
        for request in requests:
            if request.id == context.request_id:
                return request
        if context.project_id or not requests:
            raise nova_exception.InstanceActionNotFound(
                request_id=context.request_id, instance_uuid=server
            )
        return requests[-1]

    def _start_event(
        self, context: Any, server: str, name: str, **_: Any
    ) -> None:
        self._world.kernel.require_task()
        self._write(
            lambda sent: self._request(context, server).start_event(name)
        )

    def _finish_event(
        self, context: Any, server: str, name: str, **results: Any
    ) -> None:
        self._world.kernel.require_task()
        has_failed = results['exc_tb'] is not None

        def finish(sent: Any) -> None:
            request = self._request(context, server)
            request.finish_event(name, 'Error' if has_failed else 'Success')
            self._world.task_checks.check_event(
                server, request, name, results['exc_val']
            )

        self._write(finish)

    def _create_fault(self, fault: Any) -> dict[str, Any]:
        self._worker.wire.wait_and_write(lambda request: None)
        return {}


class _NoNotifier:
    """Nova's notifier; notifications are off."""

    def prepare(self, **_: Any) -> '_NoNotifier':
        return self

    def is_enabled(self) -> bool:
        return False

    def error(self, *_: Any) -> None:
        """Do nothing."""


def _row(context: Any, record: NodeRecord) -> Any:
    """Return the ComputeNode object of a record.

    Without the checks of the fields' types, which take most of the time.
    """
    row = objects.ComputeNode(context)
    vars(row).update(
        {f'_obj_{name}': value for name, value in record.fields.items()},
        _obj_id=record.id,
        _obj_uuid=record.node,
        _obj_hypervisor_hostname=record.node,
        _obj_host=record.host,
        _obj_service_id=record.service_id,
        _obj_stats=dict(record.stats),
    )
    return row


def _answer(record: NodeRecord) -> dict[str, Any]:
    return {
        'host': record.host,
        'service_id': record.service_id,
        'stats': dict(record.stats),
        'obj_what_changed': [],
    }


def _matches(record: ServerRecord, filters: Mapping[str, Any]) -> bool:
    for name, wanted in filters.items():
        if name == 'soft_deleted':
            continue  # No user of the simulation deletes softly.
        value = getattr(record, name)
        if isinstance(wanted, list | tuple | set | frozenset):
            if value not in wanted:
                return False
        elif value != wanted:
            return False
    return True

# SPDX-License-Identifier: Apache-2.0
"""ComputeNode rows: read, create, update, delete them through the conductor.

Nova's scheduler knows a node by its row. Reads are in bulk, at most a thousand
rows in a reply, except the rows of a host at its start. A row is written only
when a field that the scheduler reads has changed, or when ``rebalance`` or
``new_nodes`` change its holder. ``ComputeNode.create()`` takes over an
existing row of the same uuid without an error, so it is no lock; ``save()``
returns the row, which shows whether this host still holds it.
"""

from collections.abc import Callable, Iterable, Mapping, Set
from typing import Any

import nova.conf
from nova import context as nova_context
from nova import exception as nova_exception
from nova import objects
from nova.objects import fields as obj_fields
from oslo_log import log as logging

from hashring.clock import Clock
from hashring.ring import Host
from ironic_compute.gate import Gate
from ironic_compute.nodes.pins import KEYS as PIN_KEYS
from ironic_compute.nodes.pins import Pin, set_pin
from ironic_compute.nodes.records import (
    MADE,
    NEW,
    Marker,
    MarkerGone,
    Page,
    ServerRow,
    node_of_row,
)
from ironic_compute.nodes.row_interning import intern_row
from resource_tracker.node import NodeFacts, NodeId
from resource_tracker.provider import capabilities_of

CONF = nova.conf.CONF
LOG = logging.getLogger(__name__)

_ROWS_PER_REPLY = 1000
# A page has fewer rows than a reply may have, because it contains rows of all
# hosts, and the row of a hypervisor is many times as long as that of a node.
_ROWS_PER_PAGE = 250

# The capacity in the row of every Ironic node. It is zero so that the
# scheduler puts no virtual machine on the node; the provider has the real
# inventory.
_NO_CAPACITY: Mapping[str, Any] = {
    'vcpus': 0,
    'vcpus_used': 0,
    'memory_mb': 0,
    'memory_mb_used': 0,
    'local_gb': 0,
    'local_gb_used': 0,
    # Zero, because the scheduler skips a row whose value here is None.
    'free_disk_gb': 0,
    'free_ram_mb': 0,
    'disk_available_least': 0,
    'current_workload': 0,
    'running_vms': 0,
    'cpu_info': '',
    'metrics': '[]',
    'numa_topology': None,
    'hypervisor_type': 'ironic',
    'hypervisor_version': 1,
}
# Fields that are written only together with another field. The scheduler does
# not read host_ip, and it differs in all rows of a host that has moved to
# another machine.
_NOT_WRITTEN_ALONE = frozenset({'host_ip'})

# A new row needs these values, but Nova does not use them for bare metal.
_RATIOS = (
    'cpu_allocation_ratio',
    'ram_allocation_ratio',
    'disk_allocation_ratio',
)

FAILED_BUILDS = 'failed_builds'


class ComputeNodes:
    """Reads and writes ComputeNode rows through nova-conductor.

    Any thread may call. Every method blocks for one RPC, or for one for each
    thousand rows or 250 servers. A write first blocks until the gate is open.

    :param page_rows: the number of rows in a page
    """

    def __init__(
        self, gate: Gate, clock: Clock, page_rows: int = _ROWS_PER_PAGE
    ) -> None:
        self._gate = gate
        self._clock = clock
        self._page_rows = page_rows
        self._context = nova_context.get_admin_context()

    def list_by_host(self, host: Host) -> list[Any]:
        """Return all rows whose holder is ``host``."""
        try:
            return list(
                objects.ComputeNodeList.get_all_by_host(self._context, host)
            )
        except nova_exception.ComputeHostNotFound:
            return []

    def list_by_nodes(self, nodes: Iterable[NodeId]) -> dict[NodeId, Any]:
        """Return the rows that exist for ``nodes``, by node."""
        wanted = sorted(nodes)
        found = {}
        for start in range(0, len(wanted), _ROWS_PER_REPLY):
            some = wanted[start : start + _ROWS_PER_REPLY]
            for row in objects.ComputeNodeList.get_all_by_uuids(
                self._context, some
            ):
                found[node_of_row(row)] = row
        return found

    def read_by_name(self, node: NodeId) -> Any | None:
        """Return the row of a node, also if its uuid is not the node's.

        Rows made before Nova 18 have another uuid, so :meth:`list_by_nodes`
        does not find them.

        :returns: None if the node has no row
        """
        try:
            return objects.ComputeNode.get_by_nodename(self._context, node)
        except nova_exception.ComputeHostNotFound:
            return None

    def read_page(self, marker: Marker | None) -> Page:
        """Return the next rows of the cell, of all hosts, in one RPC.

        :param marker: the marker of the page before; None for the first page
        :raises MarkerGone: the row at the marker was deleted; the caller must
            start again at the first page
        """
        try:
            rows = objects.ComputeNodeList.get_by_pagination(
                self._context, limit=self._page_rows, marker=marker
            )
        except nova_exception.MarkerNotFound as error:
            raise MarkerGone from error
        is_last = len(rows) < self._page_rows
        return Page(list(rows), None if is_last else Marker(rows[-1].id))

    def list_legacy_nodes(self, pages_max: int) -> frozenset[NodeId] | None:
        """Return the nodes whose row has another uuid than the node.

        Reads all rows of the cell, in one RPC for each 250 rows. Otherwise
        each of thousands of nodes would need a :meth:`read_by_name`.

        :param pages_max: give up after so many pages
        :returns: None if there are more pages, or a row was deleted meanwhile
        """
        names: set[NodeId] = set()
        marker = None
        for _ in range(pages_max):
            try:
                page = self.read_page(marker)
            except MarkerGone:
                return None
            names |= {
                node_of_row(r) for r in page.rows if r.uuid != node_of_row(r)
            }
            marker = page.marker
            if marker is None:
                return frozenset(names)
        return None

    def create_row(
        self,
        facts: NodeFacts,
        host: Host,
        service_id: int,
        is_wanted: Callable[[], bool],
    ) -> Any | None:
        """Create the row of a node that has no row, or a deleted one.

        Creating takes over a row that another host has created meanwhile.
        Therefore ``is_wanted`` is called after the wait at the gate, which
        may take long, and right before the request. The row gets a mark with
        the time (:data:`records.NEW`), which shows that it may still be taken
        over. An old mark is ignored, so no write is made only to remove it.

        :param is_wanted: returns whether this host should still create it
        :returns: None if the row is not wanted any more
        """
        row = objects.ComputeNode(self._context)
        row.host, row.service_id = host, service_id
        for ratio in _RATIOS:
            setattr(row, ratio, 1.0)
        row.uuid = facts.uuid
        _set_fields(row, facts)
        self._gate.wait()
        if not is_wanted():
            return None
        now_s = self._clock.wall_s()
        marks = {NEW: f'{now_s:.0f}', MADE: f'{now_s:.3f}'}
        row.stats = {**row.stats, **marks}
        row.create()
        return row

    def update_row(self, row: Any, facts: NodeFacts) -> None:
        """Write the row of a node if a field that the scheduler reads changed.

        nova-conductor's answer updates ``row``; its host may have changed.
        """
        scheduler_fields = _set_fields(row, facts)
        # Changes of an earlier save that failed count too. Changes of other
        # fields do not, because a row of stock nova-compute contains a list
        # that always counts as changed.
        if row.obj_what_changed() & scheduler_fields:
            self._save(row)

    def write_failed_builds(self, row: Any, count: int) -> None:
        """Write the number of successive failed builds on a node.

        The scheduler's BuildFailureWeigher reads it.
        """
        stats = dict(row.stats or {})
        if int(stats.get(FAILED_BUILDS) or 0) == count:
            return
        row.stats = {**stats, FAILED_BUILDS: str(count)}
        self._save(row)

    def _save(self, row: Any) -> None:
        self._gate.wait()
        _send(row)

    def write_holder(self, row: Any, host: Host, service_id: int) -> bool:
        """Make ``host`` the holder of a node.

        If a request without an answer may have reached Nova, ``row`` has the
        new host, so that ``HeldNodes`` reads it again before it is used. It is
        unchanged if no request was sent.

        :returns: whether the written row has this host; False if another host
            has taken it meanwhile
        :raises errors.GateShut: the lease is not in force, and the caller may
            not wait
        """
        self._gate.wait()
        row.host, row.service_id = host, service_id
        _send(row)
        return bool(row.host == host)

    def write_pin(self, row: Any, pin: Pin | None) -> None:
        """Pin a node, or remove its pin.

        nova-conductor's answer updates ``row``; its host may have changed.
        """
        self._gate.wait()
        set_pin(row, pin)
        _send(row)

    def take_row(
        self,
        row: Any,
        host: Host,
        service_id: int,
        is_wanted: Callable[[], bool],
    ) -> bool:
        """Make ``host`` the holder of a node that another host holds.

        :param is_wanted: see :meth:`create_row`
        :returns: see :meth:`write_holder`; False if the row is not wanted any
            more
        """
        self._gate.wait()
        if not is_wanted():
            return False
        row.host, row.service_id = host, service_id
        _send(row)
        return bool(row.host == host)

    def delete_row(self, row: Any) -> bool:
        """Delete a row, if its holder in the database is the one in ``row``.

        A row that is gone counts as deleted: an earlier request may have had
        no answer, or nova-conductor has carried out this one twice.

        :returns: False if another host has become the holder meanwhile (Nova
            deletes with compare-and-swap)
        """
        self._gate.wait()
        try:
            row.destroy()
        except nova_exception.ComputeHostNotFound:
            return True
        except nova_exception.ObjectActionError:
            return False
        return True

    def list_instances_on(self, node: NodeId, host: Host) -> list[str]:
        """Return the uuids of the Nova instances on a node of ``host``."""
        found = objects.InstanceList.get_by_host_and_node(
            self._context, host, node, expected_attrs=[]
        )
        return [instance.uuid for instance in found]

    def list_instances_of_any_host(self, node: NodeId) -> list[str]:
        """Return the uuids of all Nova instances on a node.

        Nova has no index for this search, so it is for rare events only.
        """
        found = objects.InstanceList.get_by_filters(
            self._context,
            {'node': str(node), 'deleted': False, 'soft_deleted': True},
            expected_attrs=[],
        )
        return [instance.uuid for instance in found]

    def read_servers(self, uuids: Iterable[str]) -> dict[str, ServerRow]:
        """Return the rows of servers, also of deleted ones, by uuid.

        A uuid that the result lacks was never a server of Nova.
        """
        wanted = sorted(uuids)
        found = {}
        for start in range(0, len(wanted), _ROWS_PER_PAGE):
            some = wanted[start : start + _ROWS_PER_PAGE]
            for server in objects.InstanceList.get_by_filters(
                nova_context.get_admin_context(read_deleted='yes'),
                {'uuid': some},
                expected_attrs=[],
            ):
                found[server.uuid] = ServerRow(
                    deleted=bool(server.deleted),
                    host=server.host,
                    vm_state=server.vm_state,
                    task_state=server.task_state,
                    node=server.node,
                )
        return found

    def list_servers_of_host(self, host: Host) -> frozenset[str]:
        """Return the uuids of a host's servers that are not deleted."""
        return frozenset(
            objects.InstanceList.get_uuids_by_host(self._context, host)
        )


def _send(row: Any) -> None:
    row.save()
    intern_row(row)  # The answer has replaced all values.


def _set_fields(row: Any, facts: NodeFacts) -> Set[str]:
    """Set the fields of a row that differ from the facts of its node.

    :returns: the names of all fields that the scheduler reads
    """
    wanted: dict[str, Any] = {
        **_NO_CAPACITY,
        'hypervisor_hostname': facts.uuid,
        'host_ip': CONF.my_ip,
        'stats': _stats(row, facts),
    }
    for name, value in wanted.items():
        known = _read_field(row, name)
        if known != value and str(known) != str(value):
            setattr(row, name, value)
            if name == 'stats':
                _warn_unknown_arch(facts)
    _set_hv_specs(row, facts)
    return (wanted.keys() | {'supported_hv_specs'}) - _NOT_WRITTEN_ALONE


_UNSET = object()


def _read_field(row: Any, name: str) -> Any:
    """Return a field of a row, or ``_UNSET``.

    An audit reads each field of thousands of rows. ``obj_attr_is_set`` makes
    a list of all fields at each call.
    """
    try:
        return getattr(row, name)
    except NotImplementedError:
        return _UNSET


def _set_hv_specs(row: Any, facts: NodeFacts) -> None:
    wanted = _hv_specs(facts)
    known = (
        [spec.to_list() for spec in row.supported_hv_specs]
        if row.obj_attr_is_set('supported_hv_specs')
        else None
    )
    if known != [spec.to_list() for spec in wanted]:
        row.supported_hv_specs = wanted


def _hv_specs(facts: NodeFacts) -> list[Any]:
    arch = _canonical_arch(facts)
    if arch is None:
        return []
    return [
        objects.HVSpec.from_list(
            [arch, obj_fields.HVType.BAREMETAL, obj_fields.VMMode.HVM]
        )
    ]


def _canonical_arch(facts: NodeFacts) -> str | None:
    raw = facts.properties.get('cpu_arch')
    # A property may be any JSON value: "cpu_arch=64" gives a number.
    name = None if raw is None else str(raw)
    try:
        arch: str | None = obj_fields.Architecture.canonicalize(name)
    except nova_exception.InvalidArchitectureName:
        return None
    return arch


def _warn_unknown_arch(facts: NodeFacts) -> None:
    """Warn that the cpu_arch of a node is ignored, as Nova lacks it.

    Called only when the row's stats change, so that it is logged once.
    """
    raw = facts.properties.get('cpu_arch')
    if raw is not None and _canonical_arch(facts) is None:
        LOG.warning(
            'Ignored the unknown cpu_arch %(arch)s of node %(node)s',
            {'arch': raw, 'node': facts.uuid},
        )


def _stats(row: Any, facts: NodeFacts) -> dict[str, str | None]:
    """Return the stats of a row.

    ComputeCapabilitiesFilter matches flavors against them. The marks of a new
    row, the pin and the count of failed builds are kept.
    """
    known = (row.stats if row.obj_attr_is_set('stats') else None) or {}
    ours = {FAILED_BUILDS: known.get(FAILED_BUILDS, '0')}
    kept = (NEW, MADE, *PIN_KEYS)
    ours |= {mark: known[mark] for mark in kept if mark in known}
    arch = facts.properties.get('cpu_arch')
    stats = {'cpu_arch': str(arch)} if arch else {}
    return {**stats, **capabilities_of(facts), **ours}

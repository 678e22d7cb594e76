# SPDX-License-Identifier: Apache-2.0
"""Reads the part of a snapshot that Nova has, in lists, through conductor.

A thousand records are read in one RPC. What the conductor cannot read, because
it has no API database, is None in the snapshot.
"""

import dataclasses
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, TypeVar

import attrs
from nova import context as nova_context
from nova import objects, servicegroup
from nova.compute import vm_states
from oslo_log import log as logging

from hashring.clock import Clock
from hashring.ring import Host
from ironic_compute.fsck.snapshot import (
    Aggregate,
    Flavor,
    Row,
    Server,
    Service,
)
from ironic_compute.nodes.compute_nodes import ComputeNodes
from ironic_compute.nodes.records import (
    Marker,
    MarkerGone,
    is_new_row,
    node_of_row,
)
from ironic_compute.pool.services import BINARY
from ironic_compute.recovery.lost_builds import requests_node
from ironic_compute.recovery.neglected_servers import (
    read_is_delete_unfinished,
)
from resource_tracker.node import NodeId

LOG = logging.getLogger(__name__)

RECORDS_PER_RPC = 1000
# A new record is confirmed within this time, and then the node is offered.
_NEW_S = 300.0
_TRIES_MAX = 5

Found = TypeVar('Found')


class RecordsKeepChanging(Exception):
    """Records were deleted during each try to read all pages."""


@attrs.define(eq=False, repr=False, slots=False)
class NovaReader:
    """Reads Nova; each method blocks for its RPCs.

    :param compute_nodes: must read ``RECORDS_PER_RPC`` rows in a page
    :param note: called with a sentence about what could not be read
    """

    _compute_nodes: ComputeNodes
    _clock: Clock
    _note: Callable[[str], None]

    def __attrs_post_init__(self) -> None:
        self._context = nova_context.get_admin_context()

    def read_rows(self) -> tuple[Row, ...]:
        """Read the records of all Ironic nodes of the cell.

        :raises RecordsKeepChanging: too many records are deleted meanwhile
        """
        since_s = self._clock.wall_s() - _NEW_S
        return tuple(self.read_records(lambda row: _row(row, since_s)))

    def read_rows_by_uuid(self, uuids: Iterable[str]) -> tuple[Row, ...]:
        """Read some records of Ironic nodes; one RPC for a thousand."""
        since_s = self._clock.wall_s() - _NEW_S
        return tuple(
            _row(row, since_s)
            for some in _batches(uuids)
            for row in objects.ComputeNodeList.get_all_by_uuids(
                self._context, some
            )
            if row.hypervisor_type == 'ironic'
        )

    def read_records(self, parse: Callable[[Any], Found]) -> list[Found]:
        """Read the records of all Ironic nodes of the cell, and parse each.

        :raises RecordsKeepChanging: too many records are deleted meanwhile
        """
        return self._read_all(parse, is_ironic=True)

    def read_other_holders(self) -> frozenset[Host]:
        """Read the hosts that hold nodes of other hypervisors.

        :raises RecordsKeepChanging: too many records are deleted meanwhile
        """
        found = self._read_all(lambda row: Host(row.host), is_ironic=False)
        return frozenset(found)

    def _read_all(
        self, parse: Callable[[Any], Found], *, is_ironic: bool
    ) -> list[Found]:
        for _ in range(_TRIES_MAX):
            try:
                return [
                    parse(row)
                    for row in self._rows()
                    if (row.hypervisor_type == 'ironic') is is_ironic
                ]
            except MarkerGone:
                continue
        raise RecordsKeepChanging(
            'ComputeNode records were deleted while they were read; try again'
        )

    def _rows(self) -> Iterator[Any]:
        marker: Marker | None = None
        while True:
            page = self._compute_nodes.read_page(marker)
            yield from page.rows
            marker = page.marker
            if marker is None:
                return

    def read_servers(self, hosts: Iterable[Host]) -> dict[str, Server]:
        """Read the servers of some hosts, and those that are being built."""
        # Nova leaves out servers that may be restored, unless it is asked.
        of_hosts = {
            'host': sorted(hosts),
            'deleted': False,
            'soft_deleted': True,
        }
        found = {each.uuid: _server(each) for each in self._list(of_hosts)}
        return found | self._read_without_host()

    def _list(
        self, filters: Mapping[str, Any], *attributes: str
    ) -> Iterator[Any]:
        marker: str | None = None
        while True:
            page = list(
                objects.InstanceList.get_by_filters(
                    self._context,
                    dict(filters),
                    sort_key='uuid',
                    sort_dir='asc',
                    limit=RECORDS_PER_RPC,
                    marker=marker,
                    expected_attrs=list(attributes),
                )
            )
            yield from page
            if len(page) < RECORDS_PER_RPC:
                return
            marker = page[-1].uuid

    def _read_without_host(self) -> dict[str, Server]:
        """Read the builds that have no host yet, with their flavors."""
        building = {'vm_state': vm_states.BUILDING}
        found = self._list(
            {'host': None, 'deleted': False, **building}, 'flavor'
        )
        return {
            each.uuid: _server(
                each, requests_node=requests_node(each.flavor.extra_specs)
            )
            for each in found
        }

    def read_servers_by_uuid(self, uuids: Iterable[str]) -> dict[str, Server]:
        """Read servers, also deleted ones; Nova has none of those missing."""
        context = nova_context.get_admin_context(read_deleted='yes')
        found: dict[str, Server] = {}
        for some in _batches(uuids):
            for each in objects.InstanceList.get_by_filters(
                context, {'uuid': some}, expected_attrs=[]
            ):
                found[each.uuid] = _server(each)
        return found

    def read_deletes(self, servers: Iterable[Server]) -> dict[str, Server]:
        """Read whether servers have an unfinished delete; 1 or 2 RPCs each."""
        return {
            each.uuid: dataclasses.replace(
                each,
                is_delete_unfinished=read_is_delete_unfinished(
                    self._context, each.uuid
                ),
            )
            for each in servers
        }

    def read_services(self) -> dict[Host, Service]:
        """Read the Service records of all nova-computes."""
        liveness = servicegroup.API()
        return {
            Host(each.host): Service(
                is_up=bool(liveness.service_is_up(each)),
                is_disabled=bool(each.disabled),
                is_forced_down=bool(each.forced_down),
            )
            for each in objects.ServiceList.get_by_binary(
                self._context, BINARY, include_disabled=True
            )
        }

    def read_mapped(self) -> frozenset[Host] | None:
        """Read which hosts are mapped to a cell."""
        found = self._try('host mappings', objects.HostMappingList.get_all)
        return None if found is None else frozenset(h.host for h in found)

    def read_aggregates(self) -> tuple[Aggregate, ...] | None:
        """Read the host aggregates."""
        found = self._try('host aggregates', objects.AggregateList.get_all)
        if found is None:
            return None
        return tuple(
            Aggregate(
                each.name,
                frozenset(map(Host, each.hosts)),
                each.metadata.get('availability_zone'),
            )
            for each in found
        )

    def read_flavors(self) -> tuple[Flavor, ...] | None:
        """Read the bare metal flavors."""
        found = self._try('flavors', objects.FlavorList.get_all)
        if found is None:
            return None
        return tuple(
            flavor
            for each in found
            if not each.disabled
            for flavor in flavors_of(each.name, each.extra_specs or {})
        )

    def _try(self, what: str, read: Callable[[Any], Found]) -> Found | None:
        """Read something of Nova's API database, if the conductor has it."""
        try:
            return read(self._context)
        except Exception as exc:
            # An error loses its class on the message bus.
            LOG.debug(
                'Could not read %(what)s: %(exc)s', {'what': what, 'exc': exc}
            )
            self._note(
                f'Not checked: {what}, which nova-conductor could not read '
                f'({type(exc).__name__}); it may have no API database'
            )
            return None


def flavors_of(name: str, specs: Mapping[str, str]) -> Iterator[Flavor]:
    """Yield a flavor if it is for bare metal only.

    That is one which requests a custom class and no CPU. The flavor of a
    virtual machine may request a custom class of some device.
    """
    if str(specs.get('resources:VCPU')) != '0':
        return
    traits = frozenset(
        key.removeprefix('trait:')
        for key, value in specs.items()
        if key.startswith('trait:CUSTOM_') and value == 'required'
    )
    for key, value in specs.items():
        resource_class = key.removeprefix('resources:')
        if resource_class.startswith('CUSTOM_') and str(value) != '0':
            yield Flavor(name, resource_class, traits)


def _batches(uuids: Iterable[str]) -> Iterator[list[str]]:
    wanted = sorted(uuids)
    for start in range(0, len(wanted), RECORDS_PER_RPC):
        yield wanted[start : start + RECORDS_PER_RPC]


def _row(record: Any, since_s: float) -> Row:
    return Row(
        node_of_row(record),
        record.uuid,
        Host(record.host),
        is_new_row(record, since_s),
    )


def _server(instance: Any, requests_node: bool | None = None) -> Server:
    changed_at = instance.updated_at or instance.created_at
    if instance.deleted_at is not None:
        changed_at = max(changed_at, instance.deleted_at)
    return Server(
        deleted=bool(instance.deleted),
        host=instance.host,
        vm_state=instance.vm_state,
        task_state=instance.task_state,
        uuid=instance.uuid,
        node=None if instance.node is None else NodeId(instance.node),
        changed_at_s=changed_at.timestamp(),
        requests_node=requests_node,
    )

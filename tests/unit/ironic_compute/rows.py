# SPDX-License-Identifier: Apache-2.0
"""The rows of the simulated Nova, with the methods of ``ComputeNodes``.

For tests of one class, without Nova's objects. The simulation itself has the
real ``ComputeNodes``.
"""

from collections.abc import Callable, Iterable
from typing import Any

from nova import exception as nova_exception

from hashring.clock import Clock
from hashring.ring import Host
from ironic_compute.nodes.pins import Pin, set_pin
from ironic_compute.nodes.records import Marker, MarkerGone, Page, ServerRow
from resource_tracker.node import NodeFacts, NodeId
from tests.simulation.nova import NodeRecord, Nova
from tests.simulation.wire import Wire

# A small page, so that a search has several pages even in a small cloud.
_ROWS_A_PAGE = 4


class Row:
    """A simulated ComputeNode object."""

    def __init__(self, record: NodeRecord) -> None:
        self.hypervisor_hostname = record.node
        self.take(record)

    def take(self, record: NodeRecord) -> None:
        """Copy the fields of a database record."""
        self.id = record.id
        self.host = record.host
        self.service_id = record.service_id
        self.stats = dict(record.stats)


class Rows:
    """`ironic_compute.nodes.compute_nodes.ComputeNodes`."""

    def __init__(
        self, nova: Nova, wire: Wire, gate: Any, clock: Clock
    ) -> None:
        self._nova = nova
        self._wire = wire
        self._gate = gate
        self._clock = clock
        # Nodes whose row has a uuid other than the node's.
        self.odd_ones: set[NodeId] = set()

    def list_by_host(self, host: Host) -> list[Row]:
        return self._wire.read(
            lambda: [
                Row(record)
                for record in self._nova.rows.values()
                if record.host == host and not record.deleted
            ]
        )

    def list_by_nodes(self, nodes: Iterable[NodeId]) -> dict[NodeId, Row]:
        wanted = sorted(nodes)

        def read() -> dict[NodeId, Row]:
            found = {
                node: self._nova.live_row(node)
                for node in wanted
                if node not in self.odd_ones
            }
            return {node: Row(row) for node, row in found.items() if row}

        return self._wire.read(read)

    def read_by_name(self, node: NodeId) -> Row | None:
        def read() -> Row | None:
            found = self._nova.live_row(node)
            return None if found is None else Row(found)

        return self._wire.read(read)

    def read_page(self, marker: Marker | None) -> Page:
        def read() -> Page:
            live = {r.id: r for r in self._nova.rows.values() if not r.deleted}
            if marker is not None and marker not in live:
                raise MarkerGone
            some = sorted(n for n in live if n > (marker or 0))[:_ROWS_A_PAGE]
            is_last = len(some) < _ROWS_A_PAGE
            return Page(
                [Row(live[number]) for number in some],
                None if is_last else Marker(some[-1]),
            )

        return self._wire.read(read)

    def list_legacy_nodes(self, pages_max: int) -> frozenset[NodeId]:
        return self._wire.read(lambda: frozenset(self.odd_ones))

    def create_row(
        self,
        facts: NodeFacts,
        host: Host,
        service_id: int,
        is_wanted: Callable[[], bool],
    ) -> Row | None:
        self._gate.wait()
        if not is_wanted():
            return None
        created_s = self._clock.wall_s()
        return Row(
            self._wire.write(
                lambda request: self._nova.create_row(
                    request, facts.uuid, host, service_id, created_s
                )
            )
        )

    def update_row(self, row: Row, facts: NodeFacts) -> None:
        """Do nothing: the simulated scheduler does not read rows."""

    def write_failed_builds(self, row: Row, count: int) -> None:
        """Do nothing: the simulated scheduler has no weighers."""

    def write_holder(self, row: Row, host: Host, service_id: int) -> bool:
        self._gate.wait()
        row.host, row.service_id = host, service_id
        node = row.hypervisor_hostname
        changes = {'host': host, 'service_id': service_id, 'stats': row.stats}
        record = self._wire.write(
            lambda request: self._nova.update_row(request, node, changes)
        )
        row.take(record)
        return bool(row.host == host)

    def write_pin(self, row: Row, pin: Pin | None) -> None:
        self._gate.wait()
        set_pin(row, pin)
        node, changes = row.hypervisor_hostname, {'stats': row.stats}
        row.take(
            self._wire.write(
                lambda request: self._nova.update_row(request, node, changes)
            )
        )

    def take_row(
        self,
        row: Row,
        host: Host,
        service_id: int,
        is_wanted: Callable[[], bool],
    ) -> bool:
        self._gate.wait()
        return is_wanted() and self.write_holder(row, host, service_id)

    def delete_row(self, row: Row) -> bool:
        self._gate.wait()
        node, host = row.hypervisor_hostname, row.host
        try:
            self._wire.write(
                lambda request: self._nova.destroy_row(request, node, host)
            )
        except nova_exception.ObjectActionError:
            return False
        return True

    def list_instances_on(self, node: NodeId, host: Host) -> list[str]:
        return self._wire.read(
            lambda: [
                server.uuid
                for server in self._nova.servers.values()
                if server.host == host
                and server.node == node
                and not server.deleted
            ]
        )

    def list_instances_of_any_host(self, node: NodeId) -> list[str]:
        return self._wire.read(
            lambda: [
                server.uuid
                for server in self._nova.servers.values()
                if server.node == node and not server.deleted
            ]
        )

    def read_servers(self, uuids: Iterable[str]) -> dict[str, ServerRow]:
        wanted = sorted(uuids)
        if not wanted:
            return {}

        def read() -> dict[str, ServerRow]:
            found = (self._nova.servers.get(uuid) for uuid in wanted)
            return {
                s.uuid: ServerRow(
                    s.deleted, s.host, s.vm_state, s.task_state, s.node
                )
                for s in found
                if s is not None
            }

        return self._wire.read(read)

    def list_servers_of_host(self, host: Host) -> frozenset[str]:
        return self._wire.read(
            lambda: frozenset(
                s.uuid
                for s in self._nova.servers.values()
                if s.host == host and not s.deleted
            )
        )

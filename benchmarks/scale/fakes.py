# SPDX-License-Identifier: Apache-2.0
"""The fakes of the simulation, for tens of thousands of nodes.

They answer like those of ``tests/simulation``, with the pages of the real
services, and without looking through all nodes for each answer.
"""

import bisect
import dataclasses
import itertools
from collections.abc import Callable
from typing import Any

from benchmarks.scale import services
from benchmarks.scale.clockwork import TaskExecutor
from ironic_compute.ironic_api import timestamps
from ironic_compute.paths.path_health import IRONIC, PLACEMENT
from resource_tracker.node import NodeFacts, NodeId
from tests.simulation import broker, conductor, ironic, placement
from tests.simulation.kernel import WALL_START_S
from tests.unit.hashring import coordination

# As in ``IronicReader``.
_LIST_PAGE = 500
_FIRST_PAGE, _CHANGES_PAGE = 20, 100
# A new node gets its provider and its traits; the inventory, which offers it,
# is the third request.
_REQUESTS_OF_NEW = 2
_PARALLELISM = 8
_PROPERTIES = {
    'cpu_arch': 'x86_64',
    'cpus': 64,
    'memory_mb': 524288,
    'local_gb': 1920,
    'capabilities': 'boot_mode:uefi,secure_boot:true,disk_label:gpt',
}
_TRAITS = ('CUSTOM_RACK_1', 'CUSTOM_GOLD', 'HW_CPU_X86_VMX')


class Ironic(ironic.Ironic):
    """Ironic's nodes, and the order in which they changed."""

    def __init__(self, world: Any) -> None:
        super().__init__(world)
        self.names: list[NodeId] = []
        self._changes: list[tuple[str, NodeId]] = []

    def fill(self, count: int) -> None:
        """Add nodes that were enrolled before, one a second."""
        facts = NodeFacts(
            NodeId(''),
            resource_class='baremetal',
            provision_state='available',
            power_state='power off',
            traits=frozenset(_TRAITS),
            properties=_PROPERTIES,
        )
        for number in range(count):
            node = NodeId(f'n{number:035}')
            stamp = timestamps.at(WALL_START_S - count + number)
            self.machines[node] = ironic.NodeMachine()
            self.nodes[node] = dataclasses.replace(
                facts, uuid=node, updated_at=stamp
            )
            self._changes.append((stamp, node))
        self.names = list(self.nodes)

    def changed_since(self, stamp: str) -> list[NodeFacts]:
        """Return the nodes changed at this time or later, newest first."""
        start = bisect.bisect_left(self._changes, (stamp, ''))
        if not stamp:
            start = max(0, len(self._changes) - _CHANGES_PAGE)
        return [self.nodes[node] for _, node in self._changes[start:][::-1]]

    def records(self, start: int) -> list[dict[str, Any]]:
        """Return a page of the list of all nodes, as ironicclient does."""
        page = self.names[start : start + _LIST_PAGE]
        return [_record(self.nodes[node]) for node in page]


def _record(facts: NodeFacts) -> dict[str, Any]:
    return {
        'uuid': facts.uuid,
        'name': None,
        'resource_class': facts.resource_class,
        'provision_state': facts.provision_state,
        'power_state': facts.power_state,
        'maintenance': facts.maintenance,
        'retired': facts.retired,
        'instance_uuid': facts.instance_uuid,
        'traits': list(_TRAITS),
        'properties': dict(facts.properties),
        'conductor_group': facts.conductor_group,
    }


class Client(ironic.Client):
    """``IronicClient`` of a worker; its lists have pages."""

    def list_nodes(
        self, pause: Callable[[], None] | None = None
    ) -> tuple[NodeFacts, ...]:
        """Read all nodes, in pages of 500; real is the parsing of each."""
        service = self._world.services[IRONIC]
        found: list[NodeFacts] = []
        for start in itertools.count(0, _LIST_PAGE):

            def read(start: int = start) -> list[dict[str, Any]]:
                page = self._ironic.records(start)
                cost_s = services.RPC_S + services.NODE_LISTED_S * len(page)
                service.charge('pages of nodes', cost_s)
                return page

            read_at_s = self._world.kernel.now_s
            page = self._read(read)
            found += [NodeFacts.parse(record, read_at_s) for record in page]
            if len(page) < _LIST_PAGE:
                return tuple(found)
            if pause is not None:
                pause()
        raise AssertionError('unreachable')

    def list_changed_nodes(self, since: str | None) -> list[NodeFacts]:
        """Read the pages of changed nodes, newest first."""
        service = self._world.services[IRONIC]

        def read() -> list[NodeFacts]:
            service.charge('pages of changes', services.CHANGES_PAGE_S)
            return self._ironic.changed_since(since or '')

        found: list[NodeFacts] = self._read(read)
        for _ in range(_FIRST_PAGE, len(found), _CHANGES_PAGE):
            self._read(read)
        return found


class Reporter(placement.Reporter):
    """The writer of one worker, which writes eight nodes at once."""

    def __init__(self, worker: Any, wire: Any) -> None:
        super().__init__(worker.world, wire, worker.gate, lambda: None)
        self._world = worker.world
        self._executor = TaskExecutor(worker, _PARALLELISM)
        self._queued: set[NodeId] = set()
        self.audits_count = 0

    def _want(self, node: NodeId, offered: bool) -> None:
        self._wanted[node] = offered
        is_written = self._placement.offered.get(node) == offered
        if not is_written and node not in self._queued:
            self._queued.add(node)
            self._executor.submit(self._write_node, node)

    def _write_node(self, node: NodeId) -> None:
        self._queued.discard(node)
        self._gate.wait()
        offered = self._wanted.get(node)
        if offered is None or self._placement.offered.get(node) == offered:
            return
        if node not in self._placement.offered:
            for _ in range(_REQUESTS_OF_NEW - 1):
                self._wire.write(lambda request: None)
        self._write(node, offered)

    def audit_providers(self) -> int:
        """Read the list of all providers, which nobody else has written."""
        service = self._world.services[PLACEMENT]
        cost_s = services.PROVIDER_LISTED_S * len(self._placement.offered)
        self._wire.read(lambda: service.charge('lists', cost_s))
        self.audits_count += 1
        return 0


class Conductor(conductor.Conductor):
    """nova-conductor; a reply of many rows takes longer."""

    def __init__(self, world: Any) -> None:
        super().__init__(world)
        self._records: list[Any] = []

    def _rows_by_host(self, context: Any, host: str) -> list[Any]:
        return self._counted(super()._rows_by_host(context, host))

    def _rows_by_uuids(self, context: Any, uuids: list[str]) -> list[Any]:
        return self._counted(super()._rows_by_uuids(context, uuids))

    def _page_of_rows(
        self, context: Any, limit: int, marker: int | None
    ) -> list[Any]:
        """Return rows in the order of their ids; none is ever deleted."""
        rows = self._nova.rows.values()
        self._records += itertools.islice(rows, len(self._records), None)
        start = bisect.bisect_right(
            self._records, marker or 0, key=lambda record: record.id
        )
        page = self._records[start : start + limit]
        return self._counted([conductor._row(context, r) for r in page])

    def _counted(self, rows: list[Any]) -> list[Any]:
        cost_s = services.RPC_S + services.ROW_READ_S * len(rows)
        self._world.conductor_service.charge('reads of rows', cost_s)
        self._world.rows_read_count += len(rows)
        return rows


class Broker(broker.Broker):
    """RabbitMQ; counts the messages between workers."""

    def __init__(self, world: Any) -> None:
        super().__init__(world)
        self.casts_count = 0

    def cast(self, host: Any, message: Any) -> None:
        self.casts_count += 1
        super().cast(host, message)


def counting_group(world: Any) -> Callable[..., coordination.FakeGroup]:
    """Return a class of clients whose requests the world counts."""

    class CountingGroup(coordination.FakeGroup):
        """A client of the coordination backend."""

        def _reach(self, what: str) -> None:
            world.backend_counts[what] += 1
            super()._reach(what)

    return CountingGroup

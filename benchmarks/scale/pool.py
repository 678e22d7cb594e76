# SPDX-License-Identifier: Apache-2.0
"""A pool in virtual time: its daemons with all options at their defaults."""

import collections
import dataclasses
from typing import Any

from benchmarks.scale import fakes
from benchmarks.scale.clockwork import MeteredKernel, TaskExecutor
from benchmarks.scale.services import ServedWire, Service
from hashring.opts import Timing
from hashring.ring import Host
from hashring.workers import ServiceFacts
from ironic_compute.feed.shared_reads import PoolReads
from ironic_compute.nodes.compute_nodes import ComputeNodes
from ironic_compute.ownership.pacing import Pace, RowWriters
from ironic_compute.ownership.rebalance import ROUND_INTERVAL_S
from ironic_compute.paths.path_health import (
    CONDUCTOR,
    IRONIC,
    NEUTRON,
    PLACEMENT,
    RABBITMQ,
)
from ironic_compute.pool.service_watcher import ServiceWatcher
from tests.simulation import shared_reads
from tests.simulation.cloud import Cloud
from tests.simulation.compute import ComputeWorker, Intervals
from tests.simulation.environment import Environment
from tests.simulation.loops import LoopTask
from tests.simulation.machine import Machine
from tests.simulation.makeup import BACKENDS, Makeup
from tests.simulation.nova import ServiceRecord
from tests.simulation.observing import start_observer
from tests.simulation.placement import Reporter as PlainReporter

# As by default.
_AGGREGATES_S = 300.0
AUDIT_S = 1800.0
ROW_PARALLELISM = 8
# RabbitMQ's limit is not simulated.
_UNLIMITED = 1000
# Seconds without an answer after which a path is probed by default.
_SILENCES_S = {
    RABBITMQ: 10.0,
    CONDUCTOR: 12.0,
    IRONIC: 12.0,
    PLACEMENT: None,
    NEUTRON: None,
}
_DEFAULTS = Intervals(
    pace=Pace(settle_s=5.0, confirm_s=80.0, push_budget=200),
    round_s=ROUND_INTERVAL_S,
    delta_s=10.0,
    recheck_s=AUDIT_S,
    services_s=60.0,
    report_s=10.0,
    queue_s=60.0,
    upkeep_s=60.0,
    idle_s=60.0,
    lost_s=300.0,
    page_rows=250,
)


class PoolWorker(ComputeWorker):
    """A worker with the loops and limits of a real one."""

    intervals = _DEFAULTS

    def _make_client(self, wire: Any) -> fakes.Client:
        return fakes.Client(self.world, wire, self.gate)

    def _make_reporter(self, wire: Any) -> PlainReporter:
        return fakes.Reporter(self, wire)

    def _make_row_writers(self) -> RowWriters:
        return RowWriters(ROW_PARALLELISM, TaskExecutor(self, ROW_PARALLELISM))

    def _make_shared_reads(self) -> PoolReads:
        self.reads = shared_reads.start(self, loses=False)
        return self.reads

    def start(self) -> None:
        """Start all loops, and the probes of the paths."""
        super().start()
        start_observer(self, self._path_health, self._receives, _SILENCES_S)

    def _run_rounds(self) -> None:
        for act in (
            self.rebalancer.try_round,
            self.removal.try_round,
            self.drain.try_round,
        ):
            LoopTask(self, 'round', act, ROUND_INTERVAL_S).start()

    def _run_services(self) -> None:
        watcher = ServiceWatcher(
            self.host,
            self.services,  # type: ignore[arg-type]
            self.pool,
            self.clock,
            send_facts=self.report_services,
            has_servers=self.held_nodes.has_servers,
            update_host_status=self.held_nodes.update_host_status,
            interval_s=self.intervals.services_s,
            aggregates_interval_s=_AGGREGATES_S,
        )
        loop = LoopTask(self, 'services', watcher.try_read)
        self.pool.on_services_stale(loop.wake)
        loop.start()


class PlainEnvironment(Environment):
    """Nothing is out of the ordinary."""

    def _has(self, kind: str) -> bool:
        return False


class SimulatedPool(Cloud):
    """A pool of daemons, with free nodes and without users.

    :param processes_count: of Ironic's API, Placement and nova-conductor each
    """

    kernel_class = MeteredKernel
    wire_class = ServedWire
    kernel: MeteredKernel

    def __init__(
        self, hosts_count: int, nodes_count: int, processes_count: int
    ) -> None:
        self._nodes_count = nodes_count
        self._processes_count = processes_count
        self.rows_read_count = 0
        self.backend_counts: collections.Counter[str] = collections.Counter()
        makeup = dataclasses.replace(
            Makeup(),
            environment=PlainEnvironment,
            timing=Timing(),
            worker=PoolWorker,
            group=fakes.counting_group(self),
            compute_nodes=ComputeNodes,
        )
        super().__init__(0, makeup, BACKENDS[0], hosts_count)

    def prepare(self) -> None:
        """Replace the fakes by those for many nodes; nothing ever fails."""
        self.faults.calm = True
        super().prepare()
        self.services = {
            path: Service(self.kernel, path, count, self.ANSWERS)
            for path, count in (
                (IRONIC, self._processes_count),
                (PLACEMENT, self._processes_count),
                (CONDUCTOR, self._processes_count),
                (RABBITMQ, _UNLIMITED),
                (NEUTRON, _UNLIMITED),
            )
        }
        self.conductor_service = self.services[CONDUCTOR]
        self.audit_interval_s = AUDIT_S
        self.nova.broker = self.broker = fakes.Broker(self)
        self.conductor = fakes.Conductor(self)
        self.ironic: fakes.Ironic = fakes.Ironic(self)
        self.ironic.fill(self._nodes_count)

    def create_service(self, host: Host) -> ServiceRecord:
        """Create a Service; its host is mapped to the cell at once."""
        record = ServiceRecord(
            self.nova.new_id(), host, mapped=True, created_s=self.kernel.now_s
        )
        self.nova.services[host] = record
        return record

    def log(self, what: str) -> None:
        """Log nothing, because there are thousands of lines."""

    def add_host(self) -> None:
        """Start the daemon of one more host."""
        home = Host(f'c{len(self.homes) + 1}')
        self.homes.append(home)
        self.facts[home] = ServiceFacts(
            mapped=True, disabled=False, exists=True
        )
        machine = Machine(self, home)
        self.machines.append(machine)
        machine.boot()

    def kill_half(self) -> None:
        """Kill half of the machines for good."""
        for machine in self.machines[: len(self.machines) // 2]:
            machine.stays_dead = True
            machine.kill(0.0)

    # What is waited for

    def step(self) -> None:
        """Run the next event."""
        self.kernel.step()
        if self.broken is not None:
            raise self.broken

    def is_agreed(self) -> bool:
        """Return whether all workers know that all have the whole ring."""
        homes, agreed = frozenset(self.homes), set()
        for worker in self.workers():
            status = worker.pool.ring_status()
            if worker.serving and status.agreed:
                agreed.add(worker.host)
            if status.ring.hosts != homes:
                return False
        return agreed == homes

    def is_served(self) -> bool:
        """Return whether each host has a worker that may act."""
        acting = {w.host for w in self.workers() if w.may_act}
        return acting == set(self.homes)

    def is_reported(self) -> bool:
        """Return whether Placement offers all nodes."""
        offered = self.placement.offered
        return len(offered) == self._nodes_count and all(offered.values())

    def is_balanced(self) -> bool:
        """Return whether each node is held by its target, and offered."""
        if not (self.is_agreed() and self.is_reported()):
            return False
        hosts = {worker.host: worker for worker in self.workers()}
        ring = next(iter(hosts.values())).pool.ring_status().ring
        held_count = 0
        for worker in hosts.values():
            rows = worker.held_nodes.rows()
            held_count += len(rows)
            if any(ring.target(node) != worker.host for node in rows):
                return False
        return held_count == self._nodes_count

    def request_audits(self) -> None:
        """Have the reader list all nodes now, and tell the others."""
        for worker in self.workers():
            worker.reporter.audits_count = 0
            if worker.reads.is_reader():
                worker.feed.request_audit()

    def is_audited(self) -> bool:
        """Return whether each worker has compared the nodes of the list.

        Then it reads the rows of those that it does not hold.
        """
        return all(worker.reporter.audits_count for worker in self.workers())

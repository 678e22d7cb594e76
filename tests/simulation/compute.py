# SPDX-License-Identifier: Apache-2.0
"""A simulated worker that serves the nodes and servers of one host.

Real are ComputeNodes, HeldNodes, Rebalancer, Removal, NodeCache, ClaimBook,
the manager, the tracker, NodeFeed and NodeChanges, RpcGating,
InterruptedTasks, StrayInstances and LostBuilds. This module replaces the
components and the recovery loop of the daemon: it builds the real objects and
runs them in simulated threads.
"""

import contextlib
import dataclasses
import itertools
import math
import types
from collections.abc import Callable, Iterable
from concurrent import futures
from typing import Any

from nova import exception as nova_exception
from nova.compute import task_states

from hashring.clock import Clock
from hashring.ring import Host
from ironic_compute.feed.node_feed import NodeFeed
from ironic_compute.feed.shared_reads import ReadsAlone, SharedReads
from ironic_compute.feed.startup import FeedStartup
from ironic_compute.manager.tracker import BareMetalTracker
from ironic_compute.nodes.compute_nodes import ComputeNodes
from ironic_compute.nodes.held_nodes import HeldNodes, HostStatus
from ironic_compute.nodes.node_cache import NodeCache
from ironic_compute.nodes.unconfirmed_rows import UnconfirmedRows
from ironic_compute.ownership.departures import RETRY_S, Departures
from ironic_compute.ownership.node_changes import NodeChanges
from ironic_compute.ownership.node_moves import make_node_moves
from ironic_compute.ownership.pacing import Pace, RowWriters
from ironic_compute.ownership.row_audit import RowAudit
from ironic_compute.ownership.unheld_nodes import UnheldNodes
from ironic_compute.paths.path_health import RABBITMQ
from ironic_compute.pool import host_aggregates
from ironic_compute.pool.foreign_hosts import ForeignHosts
from ironic_compute.pool.view import PoolView, RingStatus
from ironic_compute.recovery.failures import TaskFailures
from ironic_compute.recovery.lost_builds import LostBuilds
from ironic_compute.recovery.lost_hosts import LostHosts
from ironic_compute.worker.rpc_gating import RpcGating
from resource_tracker.claims import ClaimBook
from resource_tracker.node import NodeId
from tests.simulation import shared_reads
from tests.simulation.broker import Message
from tests.simulation.driver import Driver
from tests.simulation.faults import Unreachable
from tests.simulation.handlers import LiveTasks
from tests.simulation.ironic import Client
from tests.simulation.kernel import Kernel, Lock, Task
from tests.simulation.loops import LoopTask
from tests.simulation.notifications import Listener
from tests.simulation.nova import ServiceRecord, copy_record
from tests.simulation.nova_manager import FAILURES
from tests.simulation.observing import ObservedWires, start_observer
from tests.simulation.placement import Reporter
from tests.simulation.rows import Server, Services
from tests.simulation.scheduling import ReportClient
from tests.simulation.wire import Wire
from tests.simulation.worker import Worker

PACE = Pace(
    settle_s=5.0,
    confirm_s=8.0,
    push_budget=10,
)
DELTA_S = 4.0
# Seconds between two audits, in the worlds.
AUDITS_S = (15.0, 60.0)

_STARTED_REBOOTS = (
    task_states.REBOOT_STARTED,
    task_states.REBOOT_STARTED_HARD,
)


@dataclasses.dataclass(frozen=True)
class Intervals:
    """How often a simulated worker does what; much is sooner than by default.

    :param page_rows: rows in a page; few, so that a search has several pages
        even in a small cloud
    """

    pace: Pace = PACE
    round_s: float = 2.0
    delta_s: float = DELTA_S
    recheck_s: float = 15.0
    confirm_s: float = 10.0
    services_s: float = 8.0
    report_s: float = 10.0
    reports_s: float = 30.0
    first_look_s: float = 5.0
    queue_s: float = 10.0
    upkeep_s: float = 10.0
    idle_s: float = 20.0
    # More than a drain, a hung loop and a restart one after the other.
    lost_s: float = 150.0
    quiet_s: float = 50.0
    page_rows: int = 4


class Inline(futures.Executor):
    """An executor that runs each call at once, in the caller's task."""

    def __init__(self, world: Any) -> None:
        self._world = world

    def submit(
        self, act: Callable[..., Any], /, *args: Any, **kwargs: Any
    ) -> futures.Future[Any]:
        done: futures.Future[Any] = futures.Future()
        try:
            done.set_result(act(*args, **kwargs))
        except FAILURES as exc:
            done.set_exception(exc)
        return done


class RecordingPoolView(PoolView):
    """The real PoolView, which also records its last agreement for checks.

    ``alone_s``: when all agents had last had the same ring for so long that
    no other host could still create a row.
    """

    def __init__(self, worker: Any) -> None:
        super().__init__(worker.clock)
        self._kernel = worker.kernel
        self.alone_s = -math.inf

    def ring_status(self) -> RingStatus:
        standing = super().ring_status()
        if (standing.agreed_for_s or 0.0) >= PACE.confirm_s:
            self.alone_s = self._kernel.now_s
        return standing


class AwaitedRows(UnconfirmedRows):
    """The real UnconfirmedRows; a wait blocks the simulated task."""

    def __init__(self, clock: Clock, new_s: float, kernel: Kernel) -> None:
        super().__init__(clock, new_s)
        self._kernel = kernel

    def wait_confirmed(self, node: NodeId, timeout_s: float) -> None:
        for _ in range(round(timeout_s)):
            if node in self:
                self._kernel.sleep(1.0)


class ComputeWorker(Worker):
    """A worker that serves the nodes of one host for one tenure."""

    intervals = Intervals()

    def __init__(
        self, world: Any, machine: Any, host: Host, tenure: int
    ) -> None:
        super().__init__(world, machine, host, tenure)
        makeup = world.makeup
        self.pool: RecordingPoolView = RecordingPoolView(self)
        wires = self._make_wires()
        self._path_health = wires.health
        self.wire = wires.conductor
        self.call_neutron = wires.call_neutron
        # The manager and the tracker share it, as in IronicComputeManager.
        self.reportclient = ReportClient(world, wires.placement)
        self.live_tasks = LiveTasks(self.kernel)
        self.client = self._make_client(wires.ironic)
        self.compute_nodes: ComputeNodes = makeup.compute_nodes(
            self.gate, self.clock, self.intervals.page_rows
        )
        self.services = Services(world.nova, self.wire)
        self._reports = LoopTask(self, 'reports', self._write_reports)
        self.reporter = self._make_reporter(wires.placement)
        claims = ClaimBook()
        self.unheld = UnheldNodes()
        self.held_nodes: HeldNodes = makeup.held_nodes(
            host,
            self.compute_nodes,
            NodeCache(self.clock),
            claims,
            self.reporter,
            AwaitedRows(
                self.clock,
                self.intervals.pace.confirm_s + makeup.clock_skew_s,
                self.kernel,
            ),
            self.unheld.add,
            lambda: Lock(self.kernel),
        )
        self._make_ownership()
        self.row_audit = RowAudit(
            self.held_nodes,
            self.compute_nodes,
            self.clock,
        )
        self.removal = makeup.removal(
            self.held_nodes,
            self.compute_nodes,
            self.client,
            self.reporter,
            self.clock,
            lambda node: self.feed.request_read(node),
            self.intervals.confirm_s,
        )
        self._make_feed()
        self.tracker = BareMetalTracker(
            host,
            self.held_nodes,
            claims,
            self.compute_nodes,
            self.client,  # type: ignore[arg-type]
            self.reportclient,
            self.feed.request_read,
            confirm_timeout_s=2 * self.intervals.pace.confirm_s,
            repeat_read=lambda server, read: self.driver.repeat_read(read),
        )
        self.driver = Driver(
            world,
            self.client,
            self.feed.accept_read,
            self.excuse_task,
            self.call_neutron,
        )
        self._make_recovery()
        self._make_rpc()
        self._resuming: set[Task] = set()

    def _make_wires(self) -> ObservedWires:
        return ObservedWires(self)

    def _make_client(self, wire: Wire) -> Client:
        return Client(
            self.world,
            wire,
            self.gate,
            self.live_tasks.server_at_work,
            self.world.pools.node_pool(self.machine),
        )

    def _make_reporter(self, wire: Wire) -> Reporter:
        return Reporter(self.world, wire, self.gate, self._reports.wake)

    def _make_row_writers(self) -> RowWriters:
        return RowWriters(1, Inline(self.world))

    def _make_feed(self) -> None:
        """``Components._make_feed``."""
        changes = NodeChanges(
            self.held_nodes,
            self.unheld,
            self.new_nodes,
            self.removal,
            self.row_audit,
            self.reporter,  # type: ignore[arg-type]
            self.clock,
            request_read=lambda node: self.feed.request_read(node),
        )
        options = types.SimpleNamespace(
            delta_interval_s=self.intervals.delta_s,
            audit_interval_s=self.world.audit_interval_s,
            use_notifications=True,
        )
        self.feed: NodeFeed = self.world.makeup.feed(
            types.SimpleNamespace(ironic_compute=options),
            self.client,
            changes,
            self.clock,
            self.host,
            lambda *loop: LoopTask(self, *loop),
            lambda conf, host, events: Listener(self.world, self, events),
            self._make_shared_reads(),
        )
        startup = FeedStartup(
            self.client.check_pool, self.feed.start, lambda exc: self.exit(1)
        )
        self._startup = LoopTask(self, 'pool', startup.try_start)

    def _make_shared_reads(self) -> SharedReads:
        if not self.world.environment.has_shared_reads:
            return ReadsAlone()
        return shared_reads.start(self, loses=True)

    def _make_ownership(self) -> None:
        makeup = self.world.makeup
        self.foreign = foreign = ForeignHosts(
            self.services,  # type: ignore[arg-type]
            self.pool,
            lambda host: True,
            lambda host, nodes: self.world.pools.request_nodes(
                self, host, nodes
            ),
        )
        writers = self._make_row_writers()
        settle_s = self.machine.timing.settle_s
        pace = dataclasses.replace(
            self.intervals.pace,
            settle_s=settle_s,
            disagree_s=settle_s + self.intervals.services_s,
        )
        self.new_nodes = makeup.new_nodes(
            self.unheld,
            self.held_nodes,
            self.compute_nodes,
            self.services,
            foreign,
            self.pool,
            self.clock,
            pace,
            writers,
            lambda node: self.feed.request_read(node),
            lambda: self.feed.request_audit(),
        )
        self.rebalancer = makeup.rebalancer(
            self.held_nodes,
            self.compute_nodes,
            self.services,
            self.new_nodes,
            foreign,
            self.pool,
            self.gate,
            pace,
            writers,
            self._cast_given,
        )

    def _make_recovery(self) -> None:
        makeup = self.world.makeup
        self.manager: Any = makeup.manager(self)
        failures = TaskFailures(
            self.manager._free_build, self.manager._free_node
        )
        client: Any = self.client
        deploys = makeup.deploys(
            client, self.driver, failures, None, lambda *_: None
        )
        self._resume = makeup.resume(
            self.host,
            self.manager,
            self.client,
            self.driver,
            deploys,
            failures,
            self.manager._find_other_holder,
            self.live_tasks,
            self.clock,
            self.intervals.idle_s,
            self._begin_task,
        )
        self._strays = makeup.strays(
            self.held_nodes,
            self.compute_nodes,
            self.rebalancer.follow_instance,
            self.driver.free,
            LostHosts(self.held_nodes, client).restore,
            self.live_tasks,
            self._begin_task,
        )
        self.manager.follow(self._strays)
        self.evictor = makeup.evictor(
            self.held_nodes,
            self.compute_nodes,
            self.client,
            self.services,
            self.pool,
            self.gate,
            self.manager.messages,
            self.live_tasks,
            self.manager._lock,
            host_aggregates.find_difference,
            self._strays.recheck,
            self._cast_given,
        )
        self.world.moves.observe(self, self.evictor)
        retirement = makeup.retirement(
            self.host,
            self.compute_nodes,
            self.services,
            self.gate,
            self.clock,
            lambda host: None,
            lambda: None,
            self.machine.workers.report,
            self._is_own_agent_away,
            self.intervals.quiet_s,
        )
        self.drain = makeup.draining(
            self.held_nodes,
            self.compute_nodes,
            self.services,
            self.pool,
            self.gate,
            self.clock,
            self.evictor,
            retirement,
            self.machine.timing.settle_s,
            lambda: None,
        )
        self.departures: Departures = makeup.departures(
            self.held_nodes,
            self.client,
            self.evictor,
            self.rebalancer.push,
            self.new_nodes.hold_if_ours,
            self.feed.request_read,
            self._cast_given,
            self.gate,
            self.clock,
            self._make_row_writers(),
            self.intervals.pace.push_budget,
            self._wake_departures,
        )
        self._departing = LoopTask(self, 'departures', self._give_nodes)
        self.moves = make_node_moves(
            self.held_nodes,
            self.compute_nodes,
            client,
            self.pool,
            self.gate,
            self.evictor,
            self.departures.find_asker,
            self.machine.timing.settle_s,
            self.clock,
        )
        self._lost = LostBuilds(
            self.held_nodes,
            failures,
            self.manager.list_allocated_nodes,
            self.manager.finish_delete,
            self.live_tasks,  # type: ignore[arg-type]
            self.clock,
            self.intervals.lost_s,
            self._begin_task,
        )

    def _is_own_agent_away(self) -> bool:
        """``Components.is_own_agent_away``."""
        is_home = self.host == self.machine.home
        return not is_home and self.pool.has_member(self.host)

    def _begin_task(self, name: str, act: Callable[[], None]) -> None:
        task = self.spawn(act)
        if name.startswith('resume-'):
            self._resuming.add(task)

    def is_resuming(self) -> bool:
        """Return whether the running task continues an interrupted one."""
        return self.kernel.task in self._resuming

    def excuse_task(self, why: str) -> None:
        """Note why the task that the running thread works on may fail."""
        self.world.tasks.excuse(self.live_tasks.server_at_work(), why)

    def excuse_begun_reboot(self) -> None:
        """Excuse a reboot that recovery has begun and not requested yet."""
        server = self.live_tasks.server_at_work()
        if server is not None and self.is_resuming():
            record = self.world.nova.servers[server]
            if record.task_state in _STARTED_REBOOTS:
                self.excuse_task('recovery was killed at its request')

    # Records

    def server_of(self, record: Any) -> Server:
        return Server(self.world.nova, self.wire, record)

    def server_sent(self, uuid: str) -> Server:
        """Return a server as a message has it."""
        return self.server_of(copy_record(self.world.nova.servers[uuid]))

    # Start

    def start(self) -> None:
        """Report the host up, read its held nodes, start all loops."""
        if self.world.environment.has_path_faults:
            start_observer(self, self._path_health, self._receives)
        record = self._retried(self._service)
        if record is None:
            self.exit(1)
        self.held_nodes.host_status = HostStatus(
            service_id=record.id, disabled=record.disabled
        )
        self._retried(self.held_nodes.load_rows)
        self.spawn(self._follow_gate)
        for run in (
            self._report,
            self._run_rounds,
            self._run_services,
            self._run_recovery,
        ):
            self.spawn(run)
        self._startup.start()
        self._reports.start()
        if self.world.pools.is_on:
            self._departing.start()

    def _receives(self) -> bool:
        """``RpcGating.should_receive``."""
        return self.gate.is_open() and not self.draining

    def _retried(self, act: Callable[[], Any]) -> Any:
        # Nova's Service waits for nova-conductor as long as it takes.
        is_endless = self.world.environment.has_path_faults
        for _ in itertools.count() if is_endless else range(5):
            try:
                return act()
            except Unreachable:
                self.kernel.sleep(0.5)
        self.exit(1)
        return None

    def _service(self) -> ServiceRecord | None:
        """``Service.start`` of Nova."""
        found = self._read_service()
        if found is not None or self.host != self.machine.home:
            return found
        with contextlib.suppress(nova_exception.ServiceBinaryExists):
            found = self.wire.write(
                lambda request: self.world.create_service(self.host),
                gated=False,
            )
        # Nova refuses a second one. The first may be of an earlier request
        # that had no answer.
        return found or self._read_service()

    def _read_service(self) -> ServiceRecord | None:
        services = self.world.nova.services
        found: ServiceRecord | None = self.wire.read(
            lambda: services.get(self.host)
        )
        return found

    def _report(self) -> None:
        """Send Nova's own heartbeat, which does not wait at the gate."""
        nova = self.world.nova

        def report(request: Any) -> None:
            # A conductor writes it, by the clock of its machine.
            if self.host not in nova.services:
                raise nova_exception.ServiceNotFound(service_id=self.host)
            nova.services[self.host].reported_s = self.world.wrong_now_s()

        while True:
            self._tolerant(lambda: self.wire.write(report, gated=False))
            self.kernel.sleep(self.intervals.report_s)

    def _tolerant(self, act: Callable[[], Any]) -> None:
        """Run one round of a loop; an error does not end the loop."""
        try:
            act()
        except FAILURES as exc:
            self.world.log(f'{self.name}: {exc}')

    # Messages

    def _make_rpc(self) -> None:
        self._rpc_gating: RpcGating = self.world.makeup.rpc_gating(
            self.gate, self.exit, self.spawn
        )
        server = self.world.makeup.rpc_server(
            self, self._rpc_gating.deliveries, self.manager.serve
        )
        self._rpc_gating.servers.append(server)

    def _follow_gate(self) -> None:
        """Serve RPC while the gate is open, until the worker drains."""
        while not self.draining:
            self.kernel.sleep(self._rpc_gating.follow_gate())
        self._rpc_gating.stop_receiving()

    def _cast_given(self, host: Host, nodes: list[NodeId]) -> None:
        if self.machine.paths.loses_requests(RABBITMQ):
            return
        message = Message('given', '', nodes=tuple(nodes))
        self.world.nova.broker.cast(host, message)

    def given(self, nodes: Iterable[NodeId]) -> None:
        """``Components._given``."""
        nodes = list(nodes)
        self.unheld.mark_given(nodes)
        for node in nodes:
            self.world.feed_checks.note_given(self, node)
            self.feed.request_read(node)

    # Loops

    def _run_rounds(self) -> None:
        while True:
            self._tolerant(self.rebalancer.run_round)
            self._tolerant(self.removal.run_round)
            if self.world.environment.has_moves:
                self._tolerant(self.drain.run_round)
            self.kernel.sleep(self.intervals.round_s)

    def _wake_departures(self) -> None:
        self._departing.wake()

    def _give_nodes(self) -> float:
        """``Departures.try_round``."""
        try:
            return self.departures.run_round()
        except FAILURES as exc:
            self.world.log(f'{self.name}: {exc}')
            return RETRY_S

    def _write_reports(self) -> float:
        """Write to Placement; return the seconds until the next try."""
        try:
            self.reporter.write()
        except FAILURES as exc:
            self.world.log(f'{self.name}: {exc}')
            return self.intervals.round_s
        return self.intervals.reports_s

    def _run_services(self) -> None:
        while True:
            self._tolerant(self._read_services)
            self.world.feed_checks.check_given(self)
            self.kernel.sleep(self.intervals.services_s)

    def _read_services(self) -> None:
        self.services.read_records()
        known = self.pool.known or (self.host,)
        own = self.services.find_record(self.host)
        if own is not None:
            self.held_nodes.update_host_status(disabled=own.disabled)
        self.report_services(self.services.facts(known))

    def _run_recovery(self) -> None:
        """``RecoveryLoop._run_round``."""
        served_s = anew_s = self.clock.now_s()
        was_served, lost_s = True, -math.inf
        wait_s = self.intervals.first_look_s
        while True:
            self.kernel.sleep(wait_s)
            if self.draining:
                return
            now_s, wait_s = self.clock.now_s(), self.intervals.upkeep_s
            is_open = self.gate.is_open()
            is_served = is_open and not self._path_health.is_failing(RABBITMQ)
            if not (is_served and was_served):
                served_s = now_s
                self._resume.wait_anew()
                self._lost.wait_anew()
            was_served = is_served
            if not is_open:
                wait_s = self.intervals.first_look_s
                continue
            if now_s - anew_s >= self.intervals.recheck_s:
                anew_s = now_s
                self._strays.forget_checked()
            self._tolerant(self._resume.check)
            self._tolerant(self._strays.check)
            is_due = now_s - lost_s >= self.intervals.lost_s
            if is_due and now_s - served_s >= self.intervals.queue_s:
                lost_s = now_s
                self._tolerant(self._lost.check)

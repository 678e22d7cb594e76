# SPDX-License-Identifier: Apache-2.0
"""Composition root of a worker: creates, connects, checks, starts its objects.

The worker process creates ``Components`` before Nova's Service; no request is
sent then. The compute manager loads the held nodes when it has the Service
record, starts all threads when Nova starts to serve RPC, and stops them. The
objects live as long as the process, which serves one host in one tenure.
"""

import dataclasses
from collections.abc import Callable, Iterable
from typing import Any

import nova.conf
from oslo_log import log as logging

from hashring.clock import Clock
from hashring.ring import Host
from ironic_compute import errors
from ironic_compute.agent import exit_codes, pipe
from ironic_compute.feed.node_feed import NodeFeed
from ironic_compute.feed.shared_reads import PoolReads
from ironic_compute.feed.startup import FeedStartup
from ironic_compute.gate import LeaseGate
from ironic_compute.ironic_api.client import IronicClient, make_client
from ironic_compute.journal import move_file
from ironic_compute.journal.moves import MoveRecorder
from ironic_compute.loop_thread import LoopThread
from ironic_compute.metrics import Metrics
from ironic_compute.nodes import placement_reports
from ironic_compute.nodes.compute_nodes import ComputeNodes
from ironic_compute.nodes.held_nodes import HeldNodes, HostStatus
from ironic_compute.nodes.node_cache import NodeCache
from ironic_compute.nodes.unconfirmed_rows import UnconfirmedRows, new_row_s
from ironic_compute.ownership import peer_endpoints, peer_rpc
from ironic_compute.ownership.departures import Asker
from ironic_compute.ownership.new_nodes import NewNodes
from ironic_compute.ownership.node_changes import NodeChanges
from ironic_compute.ownership.operator_requests import OperatorRequests
from ironic_compute.ownership.pacing import Pace, RowWriters
from ironic_compute.ownership.rebalance import ROUND_INTERVAL_S, Rebalancer
from ironic_compute.ownership.removal import Removal
from ironic_compute.ownership.row_audit import RowAudit
from ironic_compute.ownership.unheld_nodes import UnheldNodes
from ironic_compute.paths import probes, traffic
from ironic_compute.paths.path_health import (
    PLACEMENT,
    RABBITMQ,
    PathHealth,
)
from ironic_compute.paths.path_observer import PathObserver
from ironic_compute.pool.foreign_hosts import ForeignHosts
from ironic_compute.pool.host_mappings import HostMappings
from ironic_compute.pool.service_watcher import ServiceWatcher
from ironic_compute.pool.services import ServiceDirectory
from ironic_compute.pool.view import PoolView
from ironic_compute.worker import executors
from ironic_compute.worker.rpc_gating import RpcGating
from resource_tracker.claims import ClaimBook
from resource_tracker.node import NodeId
from resource_tracker.placement import Placement

CONF = nova.conf.CONF
LOG = logging.getLogger(__name__)


@dataclasses.dataclass(frozen=True, slots=True)
class Tenure:
    """The host a worker serves, with the state its agent keeps up to date.

    :param is_home: the host is the agent's own, not an adopted one
    :param gate: the lease gate of the host
    :param pool: the newest view of the pool
    :param metrics_fd: the inherited socket on which the agent requests the
        metrics of this worker; None if it does not
    """

    host: Host
    is_home: bool
    gate: LeaseGate
    pool: PoolView
    clock: Clock
    metrics_fd: int | None = None


@dataclasses.dataclass(frozen=True, slots=True)
class WorkerHooks:
    """The calls of a worker's components to the process around them.

    :param send: sends a message to the agent; any thread may call it, it
        does not block, and the message may be lost
    :param before_serving: called once, before the first RPC is received
    :param exit_process: ends this process at once with an exit status
    """

    send: Callable[[pipe.Message], None]
    before_serving: Callable[[], None]
    exit_process: Callable[[int], None]


def make_path_observer(
    tenure: Tenure,
    health: PathHealth,
    calls: probes.ProbeCalls,
    receives_rpc: Callable[[], bool],
    send: Callable[[pipe.Message], None],
    others_s: float | None = None,
) -> PathObserver:
    """Return the path observer of a worker, not started yet.

    :param receives_rpc: whether the worker's own queue is read at present
    :param send: sends a message to the agent
    :param others_s: seconds between two probes of Placement and Neutron; None:
        they are only probed after a failure
    """
    pace = probes.ProbePace(
        conductor_s=float(CONF.report_interval),
        ironic_s=CONF.ironic_compute.delta_interval_s,
        others_s=others_s,
    )
    is_doubted = tenure.pool.is_doubted
    return PathObserver(
        health,
        probes.make_probes(
            calls, health, tenure.clock, pace, receives_rpc, is_doubted
        ),
        tenure.clock,
        lambda states: send(pipe.Paths(states)),
        is_doubted,
    )


class Components:
    """All objects of one worker; the compute manager starts and stops them.

    ``path_observer`` may be started before all others.

    :param path_health: notes which services this worker reaches
    :param client: client of Ironic's API; made from nova.conf unless given
    :param placement: client of Placement's API; made from nova.conf unless
        given
    """

    def __init__(
        self,
        tenure: Tenure,
        hooks: WorkerHooks,
        path_health: PathHealth,
        client: IronicClient | None = None,
        placement: Placement | None = None,
    ) -> None:
        self._tenure, self._hooks = tenure, hooks
        self.gate, self.clock = tenure.gate, tenure.clock
        self.pool = tenure.pool
        self.rpc_gating = RpcGating(
            tenure.gate,
            hooks.exit_process,
            limit_count=executors.count_messages_at_once(CONF),
        )
        self.claims = ClaimBook()
        self.compute_nodes = ComputeNodes(tenure.gate, tenure.clock)
        mappings = HostMappings(
            lambda host: host in tenure.pool.confirmed_mappings
        )
        self.services = ServiceDirectory(mappings)
        self.metrics = Metrics(tenure.host, tenure.clock)
        self.journal = move_file.MoveFile(
            move_file.worker_path(CONF.ironic_compute.state_path, tenure.host)
        )
        self.moves = MoveRecorder(
            tenure.clock, self.journal.add, self.metrics.count_move
        )
        self.client = client or make_client(CONF, tenure.gate)
        self._path_health = path_health
        self.client.set_meter(
            traffic.IronicTraffic(
                path_health, tenure.clock, self.metrics.time_ironic_request
            ).request
        )
        self.node_cache = NodeCache(tenure.clock)
        placement = self._make_reporting(placement)
        self.path_observer = self._make_path_observer(placement)
        self.unheld = UnheldNodes()
        self.held_nodes = HeldNodes(
            tenure.host,
            self.compute_nodes,
            self.node_cache,
            self.claims,
            self.reconciler,
            UnconfirmedRows(tenure.clock, new_row_s(CONF)),
            on_unheld=self.unheld.add,
        )
        self.row_audit = RowAudit(
            self.held_nodes, self.compute_nodes, tenure.clock
        )
        self._make_rebalancer()
        self._make_feed()
        self.peer_endpoint = peer_endpoints.PeerEndpoint(
            self._given,
            self.removal.forget_node,
            self._make_requests(mappings),
        )
        self._make_threads()

    def _make_reporting(self, placement: Placement | None) -> Placement:
        """Make what reports nodes to Placement; return the client."""
        tenure = self._tenure
        meter = traffic.PlacementTraffic(
            self._path_health, tenure.clock, self.metrics
        )
        # Of Nova's own client of Placement.
        self.nova_placement = traffic.SessionTraffic(
            PLACEMENT, self._path_health, tenure.clock
        )
        placement = placement or placement_reports.make_placement(
            CONF, tenure.clock, meter, tenure.gate
        )
        self.reconciler = placement_reports.make_reconciler(
            CONF, tenure.host, tenure.gate, tenure.clock, meter, placement
        )
        return placement

    def _make_path_observer(self, placement: Placement) -> PathObserver:
        host = self._tenure.host
        return make_path_observer(
            self._tenure,
            self._path_health,
            probes.ProbeCalls(
                rabbitmq=lambda: peer_rpc.check_queue(
                    host, probes.TIMEOUT_S, probes.RETRIES_COUNT
                ),
                new_connection=lambda: probes.connect_to_rabbitmq(
                    peer_rpc.queue_of(host)
                ),
                ironic=lambda: self.client.check_access(probes.TIMEOUT_S),
                placement=lambda: placement.check_access(probes.TIMEOUT_S),
                neutron=probes.ping_neutron,
            ),
            self.rpc_gating.should_receive,
            self._hooks.send,
        )

    def _make_threads(self) -> None:
        tenure = self._tenure
        watcher = ServiceWatcher(
            tenure.host,
            self.services,
            tenure.pool,
            tenure.clock,
            send_facts=lambda facts: self._hooks.send(pipe.Services(facts)),
            has_servers=self.held_nodes.has_servers,
            update_host_status=self.held_nodes.update_host_status,
            interval_s=CONF.ironic_compute.services_interval_s,
            aggregates_interval_s=CONF.resource_tracker.aggregates_interval_s,
        )
        self._service_thread = LoopThread('services', watcher.try_read)
        tenure.pool.on_services_stale(self._service_thread.wake)
        startup = FeedStartup(
            self.client.check_pool, self.feed.start, self._refuse
        )
        self._threads = (
            LoopThread('pool', startup.try_start),
            LoopThread(
                'rebalance', self.rebalancer.try_round, ROUND_INTERVAL_S
            ),
            self._service_thread,
            LoopThread('removal', self.removal.try_round),
            self.pool_reads,
        )

    def _make_requests(self, mappings: HostMappings) -> OperatorRequests:
        return OperatorRequests(
            self._tenure.pool,
            self.compute_nodes,
            self.clock,
            self.client,
            make_directory=lambda: ServiceDirectory(mappings),
            is_ironic_compute=peer_rpc.is_ironic_compute,
            read_mapping=mappings.read,
            send_to_agent=self._hooks.send,
        )

    def _make_feed(self) -> None:
        tenure = self._tenure
        self.removal = Removal(
            self.held_nodes,
            self.compute_nodes,
            self.client,
            self.reconciler,
            tenure.clock,
            request_read=lambda node: self.feed.request_read(node),
        )
        self.node_changes = NodeChanges(
            self.held_nodes,
            self.unheld,
            self.new_nodes,
            self.removal,
            self.row_audit,
            self.reconciler,
            tenure.clock,
            request_read=lambda node: self.feed.request_read(node),
        )
        self.pool_reads: PoolReads = PoolReads(
            tenure.host,
            lambda: tenure.pool.ring_status().ring.hosts,
            lambda: tenure.pool.known,
            peer_rpc.notify_changes,
            peer_rpc.notify_listed,
            CONF.ironic_compute.delta_interval_s,
            LoopThread,
        )
        self.feed: NodeFeed = NodeFeed(
            CONF,
            self.client,
            self.node_changes,
            tenure.clock,
            host=tenure.host,
            shared=self.pool_reads,
        )
        self.feed_endpoint = peer_endpoints.FeedEndpoint(
            self.feed.accept_changes, self.feed.accept_listed
        )

    def _make_rebalancer(self) -> None:
        options, tenure = CONF.ironic_compute, self._tenure
        asker = Asker(tenure.host, self.client.pool)
        self.foreign = ForeignHosts(
            self.services,
            tenure.pool,
            peer_rpc.is_ironic_compute,
            lambda holder, nodes: peer_rpc.request_nodes(holder, nodes, asker),
        )
        pace = Pace(
            settle_s=options.settle_s,
            # Within this time each worker reads Nova's Service records again,
            # so all agents should have the same ring then.
            disagree_s=options.settle_s + options.services_interval_s,
            confirm_s=options.confirm_s,
            push_budget=options.push_budget,
        )
        self.row_writers = RowWriters(options.row_parallelism)
        self.new_nodes = NewNodes(
            self.unheld,
            self.held_nodes,
            self.compute_nodes,
            self.services,
            self.foreign,
            tenure.pool,
            tenure.clock,
            pace,
            self.row_writers,
            lambda node: self.feed.request_read(node),
            lambda: self.feed.request_audit(),
            self.moves,
        )
        self.rebalancer = Rebalancer(
            self.held_nodes,
            self.compute_nodes,
            self.services,
            self.new_nodes,
            self.foreign,
            tenure.pool,
            tenure.gate,
            pace,
            self.row_writers,
            peer_rpc.notify_given,
            self.moves,
        )

    def _given(self, nodes: Iterable[NodeId]) -> None:
        nodes = list(nodes)
        self.unheld.mark_given(nodes)
        for node in nodes:
            self.feed.request_read(node)

    # For the manager

    def check_service_record(self, service_ref: Any) -> None:
        """Check that an adopted host still has a Service record in Nova.

        Only the home worker may create a record; otherwise a host that was
        deleted in Nova would come back. No request is sent to Ironic here,
        because an Ironic that does not answer would delay the report that
        the host is up.

        :param service_ref: the host's Service record, or None
        :raises errors.ConfigError: an adopted host has no record
        """
        if service_ref is None and not self._tenure.is_home:
            raise errors.ConfigError(
                f'Host {self._tenure.host} has no Service record in Nova any '
                f'more and is not taken over; if it is to live on, start its '
                f'own daemon'
            )

    def load_held_nodes(
        self, service_ref: Any, capability_traits: Any
    ) -> None:
        """Read the rows of the held nodes; blocks for one RPC.

        :param service_ref: the host's Service record
        :param capability_traits: trait -> whether the driver has it
        """
        traits = frozenset(
            trait for trait, wanted in capability_traits.items() if wanted
        )
        self.held_nodes.host_status = HostStatus(
            service_id=service_ref.id,
            disabled=bool(service_ref.disabled),
            capability_traits=traits,
            traits_of_capabilities=frozenset(
                CONF.resource_tracker.capability_traits
            ),
        )
        self.held_nodes.load_rows()

    def start(self) -> None:
        """Start all threads; receive RPC whenever the lease is in force."""
        self._hooks.before_serving()
        self.rpc_gating.start()
        self._hooks.send(pipe.IsServing())
        self._serve_metrics()
        self.journal.start()
        for thread in self._threads:
            thread.start()

    def stop(self) -> None:
        """Stop all threads; nothing is written after this."""
        self.rpc_gating.stop()
        for thread in self._threads:
            thread.stop()
        self.path_observer.stop()
        self.feed.stop()
        self.row_writers.stop()
        self.journal.stop()
        self.reconciler.stop()

    def leave(self) -> None:
        """End this process now; the next worker resumes unfinished tasks.

        Nova's own shutdown would wait about a minute for all threads.
        """
        self.rpc_gating.stop_receiving()
        self._hooks.exit_process(0)

    def _refuse(self, exc: errors.ConfigError) -> None:
        """End this process, because its configuration is wrong."""
        LOG.error('This worker ends: %(error)s', {'error': exc})
        self._hooks.send(pipe.CannotStart(str(exc)))
        self._hooks.exit_process(exit_codes.EX_CONFIG)

    def set_disabled(self, disabled: bool) -> None:
        """Set or remove the disabled trait of all held nodes' providers."""
        self.held_nodes.update_host_status(disabled=disabled)

    def read_services_soon(self) -> None:
        """Start a read of Nova's Service records; does not block."""
        self._service_thread.wake()

    def reaches_rabbitmq(self) -> bool:
        """Return whether RabbitMQ answers this worker, as far as it knows."""
        return not self._path_health.is_failing(RABBITMQ)

    def is_own_agent_away(self) -> bool:
        """Return whether the host was adopted, and its own agent is a member.

        That agent is half alive, or its worker keeps dying.
        """
        tenure = self._tenure
        return not tenure.is_home and tenure.pool.has_member(tenure.host)

    def send_to_agent(self, message: pipe.Message) -> None:
        """Send a message to the agent; it may be lost; does not block."""
        self._hooks.send(message)

    def _serve_metrics(self) -> None:
        gauges = placement_reports.WorkerGauges(
            self.held_nodes, self.reconciler, self.rebalancer.misplaced
        )
        self.metrics.register_gauges(gauges)
        self.metrics.register_findings(gauges.findings)
        self.metrics.register_paths(self._path_health.states)
        tenure, options = self._tenure, CONF.ironic_compute
        self.metrics.serve(options, tenure.metrics_fd, is_first=tenure.is_home)

# SPDX-License-Identifier: Apache-2.0
"""Everything one worker is made of, put together in one place.

Built before Nova's Service (nothing is asked of anyone yet), loaded when the
Service record is known, started when RPC is served. Lives as long as its
process, which serves one host in one tenure.
"""

import dataclasses
import math
import threading
from collections.abc import Callable, Iterable
from typing import Any

import nova.conf
from oslo_log import log as logging

from hashring.clock import Clock
from hashring.ring import Host
from hashring.workers import HostAdded, MappingConfirmed, ServiceFacts
from ironic_compute import errors
from ironic_compute.feed.node_feed import NodeFeed
from ironic_compute.gate import LeaseGate
from ironic_compute.ironic_api.client import IronicClient, make_client
from ironic_compute.metrics import Metrics
from ironic_compute.nodes import placement_reports
from ironic_compute.nodes.compute_nodes import ComputeNodes
from ironic_compute.nodes.held_nodes import HeldNodes, HostStatus
from ironic_compute.nodes.node_cache import NodeCache
from ironic_compute.ownership import peer_rpc
from ironic_compute.ownership.new_nodes import NewNodes
from ironic_compute.ownership.node_changes import NodeChanges
from ironic_compute.ownership.operator_requests import OperatorRequests
from ironic_compute.ownership.pacing import Pace, RowWriters
from ironic_compute.ownership.rebalance import Rebalancer
from ironic_compute.ownership.removal import Removal
from ironic_compute.ownership.row_audit import RowAudit
from ironic_compute.ownership.unheld_nodes import UnheldNodes
from ironic_compute.pool.foreign_hosts import ForeignHosts
from ironic_compute.pool.host_aggregates import HostAggregates
from ironic_compute.pool.host_mappings import HostMappings
from ironic_compute.pool.services import PollInterval, ServiceDirectory
from ironic_compute.pool.view import PoolView
from resource_tracker.claims import ClaimBook
from resource_tracker.node import NodeId
from resource_tracker.placement import Placement

CONF = nova.conf.CONF
LOG = logging.getLogger(__name__)

_ROUND_S = 1.0
_ASK_AGAIN_S = 1.0
_REQUEST_S = 60.0
# For controllers whose clocks differ.
_CLOCKS_S = 30.0


def _new_s(conf: Any) -> float:
    """Return how long a new row may yet turn out to be another's.

    As long as a conductor may be about a request to create it. The option is
    oslo.messaging's, and there as soon as there is a bus.
    """
    name = 'rpc_response_timeout'
    request_s = getattr(conf, name, _REQUEST_S)
    longest_s: float = max(request_s, conf.ironic_compute.confirm_s)
    return longest_s + _CLOCKS_S


@dataclasses.dataclass(frozen=True, slots=True)
class Tenure:
    """What a worker was started for, and its ties to its agent.

    :param is_home: the host is its agent's own, not adopted
    """

    host: Host
    is_home: bool
    gate: LeaseGate
    pool: PoolView
    clock: Clock


class Components:
    """The parts of one worker; the manager starts and stops them.

    :param client: how Ironic is asked; made from nova.conf unless given
    :param placement: how Placement is asked; likewise
    """

    def __init__(
        self,
        tenure: Tenure,
        client: IronicClient | None = None,
        placement: Placement | None = None,
    ) -> None:
        self._tenure = tenure
        self.gate, self.clock = tenure.gate, tenure.clock
        self._stopping = threading.Event()
        self._look_now = threading.Event()
        self.claims = ClaimBook()
        self.compute_nodes = ComputeNodes(tenure.gate, tenure.clock)
        mappings = HostMappings(
            lambda host: host in tenure.pool.confirmed_mappings
        )
        self.services = ServiceDirectory(mappings)
        self.metrics = Metrics(tenure.host, tenure.clock)
        self.client = client or make_client(CONF, tenure.gate)
        self.client.measure(self.metrics.time_ironic_request)
        self.node_cache = NodeCache(tenure.clock)
        self.aggregates = HostAggregates()
        self._aggregates_read_at_s = -math.inf
        self.reconciler = placement_reports.make_reconciler(
            CONF, tenure, self.metrics, placement
        )
        self.held_nodes = HeldNodes(
            tenure.host,
            self.compute_nodes,
            self.node_cache,
            self.claims,
            self.reconciler,
            tenure.clock,
            new_s=_new_s(CONF),
        )
        self.row_audit = RowAudit(
            self.held_nodes, self.compute_nodes, tenure.clock
        )
        self._make_handover()
        self.held_nodes.on_stranger = self.unheld.add
        self._make_feed()
        self.on_order: Callable[[HostAdded | MappingConfirmed], None]
        self.on_order = lambda order: None
        self.peer_endpoint = peer_rpc.PeerEndpoint(
            self._given, self.removal.forget_node, self._make_orders(mappings)
        )
        self.on_services: Callable[[dict[Host, ServiceFacts]], None]
        self.on_services = lambda facts: None
        self.on_serving: Callable[[], None] = lambda: None
        self.on_stopping: Callable[[], None] = lambda: None
        self.on_left: Callable[[], None] = lambda: None
        self.on_refused: Callable[[errors.ConfigError], None] = LOG.error
        tenure.pool.on_services_stale(self._look_now.set)

    def _make_orders(self, mappings: HostMappings) -> OperatorRequests:
        return OperatorRequests(
            self._tenure.pool,
            self.compute_nodes,
            self.clock,
            make_directory=lambda: ServiceDirectory(mappings),
            is_ironic_compute=peer_rpc.is_ironic_compute,
            list_nodes=lambda: {node.uuid for node in self.client.nodes()},
            read_mapping=mappings.read,
            send_to_agent=lambda order: self.on_order(order),
        )

    def _make_feed(self) -> None:
        tenure = self._tenure
        self.removal = Removal(
            self.held_nodes, self.compute_nodes, self.client, self.reconciler
        )
        self.node_changes = NodeChanges(
            self.held_nodes,
            self.unheld,
            self.new_nodes,
            self.removal,
            self.row_audit,
            self.reconciler,
            tenure.clock,
            request_read=lambda node: self.feed.poke(node),
        )
        self.feed = NodeFeed(
            CONF,
            self.client,
            self.node_changes,
            tenure.clock,
            host=tenure.host,
        )

    def _make_handover(self) -> None:
        options, tenure = CONF.ironic_compute, self._tenure
        foreign = ForeignHosts(
            self.services, tenure.pool, peer_rpc.is_ironic_compute
        )
        pace = Pace(
            settle_s=options.settle_s,
            # By then everybody has looked at Nova's services again.
            disagree_s=options.settle_s + options.services_interval_s,
            confirm_s=options.confirm_s,
            push_budget=options.push_budget,
        )
        self._writers = RowWriters(options.row_parallelism)
        self.unheld = UnheldNodes()
        self.new_nodes = NewNodes(
            self.unheld,
            self.held_nodes,
            self.compute_nodes,
            self.services,
            foreign,
            tenure.pool,
            tenure.clock,
            pace,
            self._writers,
        )
        self.rebalancer = Rebalancer(
            self.held_nodes,
            self.compute_nodes,
            self.services,
            self.new_nodes,
            foreign,
            tenure.pool,
            tenure.gate,
            pace,
            self._writers,
            peer_rpc.notify_given,
        )

    def _given(self, nodes: Iterable[NodeId]) -> None:
        nodes = list(nodes)
        self.unheld.mark_given(nodes)
        for node in nodes:
            self.feed.poke(node)

    # For the manager

    def check_service_record(self, service_ref: Any) -> None:
        """Refuse to serve what cannot or must not be served.

        Only the home worker may create a Service record; otherwise a host
        that was deleted in Nova would come back. Ironic is not asked: one
        that swallows requests would keep the host from being reported up.

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
        """Take the Service record and read which nodes are held."""
        traits = frozenset(
            trait for trait, wanted in capability_traits.items() if wanted
        )
        self.held_nodes.status = HostStatus(
            service_id=service_ref.id,
            disabled=bool(service_ref.disabled),
            capability_traits=traits,
            traits_of_capabilities=frozenset(
                CONF.resource_tracker.capability_traits
            ),
        )
        self.held_nodes.load()

    def start(self) -> None:
        """Start all threads."""
        self.on_serving()
        self._serve_metrics()
        for target, name in (
            (self._start_feed, 'pool'),
            (self._keep_rounds, 'handover'),
            (self._keep_services, 'services'),
        ):
            threading.Thread(target=target, name=name, daemon=True).start()

    def stop(self) -> None:
        """Stop all threads; nothing is written after this."""
        self.on_stopping()
        self._stopping.set()
        self._look_now.set()
        self.feed.stop()
        self._writers.stop()
        self.reconciler.stop()

    def set_disabled(self, disabled: bool) -> None:
        """Show on each provider whether the host is disabled."""
        self.held_nodes.change_status(disabled=disabled)

    def read_services_soon(self) -> None:
        """Look at Nova's services now; returns at once."""
        self._look_now.set()

    def _serve_metrics(self) -> None:
        options = CONF.ironic_compute
        if options.metrics_port:
            self.metrics.register_gauges(
                placement_reports.ReportedFigures(
                    self.node_cache, self.reconciler
                )
            )
            self.metrics.serve(
                options.metrics_address,
                options.metrics_port + (0 if self._tenure.is_home else 1),
            )

    # Threads of its own

    def _start_feed(self) -> None:
        """Read the pool once Ironic has said that it can tell it apart."""
        has_told = False
        while not self._stopping.is_set():
            try:
                self.client.check_pool()
            except errors.ConfigError as exc:
                return self.on_refused(exc)
            except Exception as exc:
                LOG.log(
                    logging.DEBUG if has_told else logging.WARNING,
                    'Ironic does not answer yet; going on without it: '
                    '%(error)s',
                    {'error': exc},
                )
                has_told = True
                self._stopping.wait(_ASK_AGAIN_S)
            else:
                return self.feed.start()
        return None

    def _keep_rounds(self) -> None:
        while not self._stopping.wait(_ROUND_S):
            try:
                self.rebalancer.run_round()
            except Exception:
                LOG.exception('Could not hand nodes over; trying again')

    def _keep_services(self) -> None:
        poll = PollInterval(CONF.ironic_compute.services_interval_s)
        while not self._stopping.is_set():
            self._look_now.clear()
            interval_s = poll.interval_s
            try:
                all_mapped = self._tell_services()
                agreed = self._tenure.pool.ring_status().agreed
                interval_s = poll.next_s(is_settled=all_mapped and agreed)
            except Exception as exc:
                LOG.warning(
                    'Could not read the Service records of Nova and will '
                    'try again: %(error)s',
                    {'error': exc},
                )
            self._look_now.wait(interval_s)

    def _tell_services(self) -> bool:
        """Tell what Nova says; return whether all hosts are mapped."""
        self.services.read_records()
        known = self._tenure.pool.known or (self._tenure.host,)
        facts: dict[Host, ServiceFacts] = self.services.facts(known)
        own = self.services.find_record(self._tenure.host)
        if own is not None:
            self.set_disabled(bool(own.disabled))
        self.on_services(facts)
        self._look_at_aggregates()
        return all(one.mapped or not one.exists for one in facts.values())

    def _look_at_aggregates(self) -> None:
        """Read Nova's host aggregates, less often than its services."""
        interval_s = CONF.resource_tracker.aggregates_interval_s
        now_s = self._tenure.clock.now_s()
        if interval_s and now_s - self._aggregates_read_at_s >= interval_s:
            self._aggregates_read_at_s = now_s
            aggregates = self.aggregates.read_for(
                self._tenure.host, self._tenure.pool.known
            )
            self.held_nodes.change_status(aggregates=aggregates)

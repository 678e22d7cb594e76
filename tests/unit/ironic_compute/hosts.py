# SPDX-License-Identifier: Apache-2.0
"""Test fixtures: the hosts of one pool, over one table of rows, no threads.

The objects of ``ironic_compute`` are real: HeldNodes, UnheldNodes, NewNodes,
Rebalancer, Removal, RowAudit, NodeCache, ClaimBook, PoolView. Fakes are Nova
(that of the simulation, which answers at once), Ironic's lists, and a
Placement that records which host reported a node last. A test calls the hosts
step by step, in any order.
"""

import collections
import dataclasses
import math
import types
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from hashring.ring import Host
from hashring.workers import WorkerView
from ironic_compute import errors
from ironic_compute.gate import LeaseGate
from ironic_compute.ironic_api.node_pool import NodePool
from ironic_compute.journal.moves import Move, MoveRecorder
from ironic_compute.nodes.held_nodes import HeldNodes, HostStatus
from ironic_compute.nodes.node_cache import NodeCache
from ironic_compute.nodes.unconfirmed_rows import UnconfirmedRows
from ironic_compute.ownership.new_nodes import NewNodes
from ironic_compute.ownership.node_changes import NodeChanges
from ironic_compute.ownership.pacing import Pace, RowWriters
from ironic_compute.ownership.rebalance import Rebalancer
from ironic_compute.ownership.removal import Removal
from ironic_compute.ownership.row_audit import RowAudit
from ironic_compute.ownership.unheld_nodes import UnheldNodes
from ironic_compute.pool.foreign_hosts import Answer, ForeignHosts
from ironic_compute.pool.view import PoolView
from resource_tracker.claims import ClaimBook
from resource_tracker.node import NodeFacts, NodeId
from resource_tracker.provider import Situation
from tests.fakes.clock import ManualClock
from tests.simulation.compute import Inline
from tests.simulation.nova import Nova, ServiceRecord
from tests.simulation.rows import Services
from tests.simulation.wire import SentRequest
from tests.unit.ironic_compute.rows import Rows


class _Wire:
    """Carries out each request to Nova at once."""

    def __init__(self, host: Host) -> None:
        self._request = SentRequest(host, host, late=False)

    def read(self, act: Any) -> Any:
        """Send a reading request."""
        return act()

    def write(self, act: Any, *, gated: bool = True) -> Any:
        """Send a changing request."""
        return act(self._request)


class Cloud:
    """Nova's records, Ironic's nodes and Placement's providers of one pool.

    :param nodes: the uuids of the nodes in Ironic
    """

    def __init__(self, nodes: Iterable[str]) -> None:
        self.clock = ManualClock(start_s=100.0)
        self.nodes = {NodeId(n): NodeFacts(NodeId(n)) for n in nodes}
        self.hidden: dict[str, Exception] = {}
        self.providers: dict[str, Host] = {}
        self.removed: list[str] = []
        self.moved: list[tuple[str, Host, Host]] = []
        self.hosts: dict[Host, One] = {}
        self.stock: set[Host] = set()
        self.requested: list[tuple[Host, Host, list[NodeId]]] = []
        self.answer = Answer.RECEIVED
        self.nova = Nova(
            types.SimpleNamespace(
                kernel=types.SimpleNamespace(now_s=0.0),
                faults=types.SimpleNamespace(occurs=lambda what: False),
                wrong_now_s=lambda: 0.0,
                log=lambda what: None,
                check_creation=lambda request, row: None,
                check_holder=self._note_move,
                check_resume=lambda request, server: None,
                check_server=lambda server: None,
                moves=types.SimpleNamespace(
                    note_row=lambda node: None,
                    note_save=lambda request, former, record: None,
                ),
                check_removal=lambda request, node: self.removed.append(node),
            )
        )

    def _note_move(self, request: SentRequest, row: Any, host: Host) -> None:
        self.moved.append((row.node, row.host, host))

    def add(self, host: str) -> 'One':
        """Start a worker of a host that has a Service record."""
        name = Host(host)
        self.hosts[name] = One(self, name)
        for one in self.hosts.values():
            one.services.read_records()
        return self.hosts[name]

    def show(self, *ring: str, agreed: bool = True) -> None:
        """Deliver a ring to all workers.

        :param agreed: all agents have the ring from now on
        """
        for one in self.hosts.values():
            one.show(*ring, agreed=agreed)

    def read_node(self, node: str) -> NodeFacts:
        """See IronicClient."""
        if node in self.hidden:
            raise self.hidden[node]
        if node not in self.nodes:
            raise errors.NodeNotFound(node)
        return self.nodes[NodeId(node)]

    def can_list_all_nodes(self) -> bool:
        """See IronicClient."""
        return True

    pool = NodePool('')

    def is_in_pool(self, facts: NodeFacts) -> bool:
        """See IronicClient."""
        return self.pool.contains(facts)

    def holders(self) -> dict[str, list[Host]]:
        """Return, for each node, the hosts that count it as held."""
        return {
            node: [h for h, o in self.hosts.items() if o.held_nodes.row(node)]
            for node in self.nodes
        }

    def rounds(self, one: 'One', count: int) -> None:
        """Run a round of one host in each of ``count`` seconds."""
        for _ in range(count):
            one.rebalancer.run_round()
            self.clock.advance(1.0)

    def settle(self) -> None:
        """Run audits and rounds of all hosts until nothing changes."""
        for _ in range(4):
            for one in self.hosts.values():
                one.audit()
            for one in self.hosts.values():
                self.clock.advance(1.0)
                one.rebalancer.run_round()


@dataclasses.dataclass(frozen=True)
class Parts:
    """The classes that a worker is made of; a test may replace one."""

    unheld: Callable[..., UnheldNodes] = UnheldNodes
    new_nodes: Callable[..., NewNodes] = NewNodes
    removal: Callable[..., Removal] = Removal
    node_changes: Callable[..., NodeChanges] = NodeChanges


class One:
    """The worker of one host; it is also the Placement of that worker.

    :param client: the IronicClient of the removal; unless given, the cloud
    """

    def __init__(
        self,
        cloud: Cloud,
        host: Host,
        client: Any = None,
        parts: Parts | None = None,
    ) -> None:
        parts = parts or Parts()
        self._cloud = cloud
        self.host = host
        self.reads_requested: list[NodeId] = []
        self.audits_requested = 0
        nova, gate = cloud.nova, LeaseGate(cloud.clock, math.inf)
        record = nova.services.setdefault(
            host, ServiceRecord(nova.new_id(), host, mapped=True)
        )
        wire: Any = _Wire(host)
        self.rows = Rows(nova, wire, gate, cloud.clock)
        services: Any = Services(nova, wire)
        self.services = services
        self.claims = ClaimBook()
        self.pool = PoolView(cloud.clock)
        rows: Any = self.rows
        self.unheld = parts.unheld()
        self.held_nodes = HeldNodes(
            host,
            rows,
            NodeCache(cloud.clock),
            self.claims,
            self,
            UnconfirmedRows(cloud.clock, new_s=90.0),
            on_unheld=lambda facts: self.unheld.add(facts),
        )
        self.held_nodes.host_status = HostStatus(service_id=record.id)
        self.foreign = foreign = ForeignHosts(
            self.services,
            self.pool,
            lambda host: host not in cloud.stock,
            self._request_nodes,
        )
        pace = Pace(settle_s=0.0, confirm_s=1.0, push_budget=99)
        writers = RowWriters(1, Inline(None))
        self.moved: list[Move] = []
        self.moves = MoveRecorder(cloud.clock, self.moved.append)
        self.new_nodes = parts.new_nodes(
            self.unheld,
            self.held_nodes,
            rows,
            self.services,
            foreign,
            self.pool,
            cloud.clock,
            pace,
            writers,
            self.reads_requested.append,
            self._request_audit,
            self.moves,
        )
        self.rebalancer = Rebalancer(
            self.held_nodes,
            rows,
            self.services,
            self.new_nodes,
            foreign,
            self.pool,
            gate,
            pace,
            writers,
            self._notify_given,
            self.moves,
        )
        me: Any = self
        self.removal = parts.removal(
            self.held_nodes,
            rows,
            client or cloud,
            me,
            cloud.clock,
            request_read=self.reads_requested.append,
        )
        self.row_audit = RowAudit(self.held_nodes, rows, cloud.clock)
        idle: Any = types.SimpleNamespace(audit_providers=lambda: 0)
        self.node_changes = parts.node_changes(
            self.held_nodes,
            self.unheld,
            self.new_nodes,
            self.removal,
            self.row_audit,
            idle,
            cloud.clock,
            request_read=self.reads_requested.append,
        )
        self.held_nodes.load_rows()

    def show(
        self, *ring: str, agreed: bool = True, until_s: float = math.inf
    ) -> None:
        """Deliver a ring to this worker.

        :param agreed: all agents have the ring from now on
        :param until_s: when the agents were last found to agree
        """
        hosts = tuple(Host(host) for host in ring)
        known = tuple(sorted(self._cloud.hosts))
        since_s = self._cloud.clock.now_s() if agreed else None
        view = WorkerView(
            math.inf,
            ring=hosts,
            agreed_since_s=since_s,
            agreed_until_s=until_s,
            known=known,
        )
        self.pool.update(view)

    def audit(self, nodes: Iterable[str] | None = None) -> None:
        """Deliver a full list of the pool's nodes.

        :param nodes: the nodes in the list; unless given, all of Ironic's
        """
        wanted = self._cloud.nodes if nodes is None else nodes
        listed = {NodeId(n): self._cloud.nodes[NodeId(n)] for n in wanted}
        self.services.read_records()
        self.node_changes.audit_nodes(listed)

    def _request_audit(self) -> None:
        self.audits_requested += 1

    def _notify_given(self, host: Host, nodes: list[NodeId]) -> None:
        if host in self._cloud.hosts:
            self._cloud.hosts[host].unheld.mark_given(nodes)

    def _request_nodes(self, holder: Host, nodes: Sequence[NodeId]) -> Answer:
        self._cloud.requested.append((self.host, holder, list(nodes)))
        return self._cloud.answer

    # Placement

    def submit(self, facts: NodeFacts, situation: Situation) -> None:
        """See Reconciler."""
        if situation.confirmed:
            self._cloud.providers[facts.uuid] = self.host

    def withdraw_node(self, node: NodeId, row_id: str) -> None:
        """See Reconciler."""
        self._cloud.providers.pop(node, None)

    def forget_node(self, node: NodeId) -> None:
        """See Reconciler."""

    def delete_provider(self, node: NodeId) -> bool:
        """See Reconciler."""
        self._cloud.removed.append(f'provider of {node}')
        self._cloud.providers.pop(node, None)
        return True


class Counted:
    """Counts the requests of one host to Nova, by kind."""

    def __init__(self, one: One) -> None:
        self.counts: collections.Counter[str] = collections.Counter()
        self._wire: Any = one.rows._wire
        one.rows._wire = self  # type: ignore[assignment]

    def read(self, act: Any) -> Any:
        """Count a reading request."""
        self.counts['read'] += 1
        return self._wire.read(act)

    def write(self, act: Any, *, gated: bool = True) -> Any:
        """Count a changing request."""
        self.counts['write'] += 1
        return self._wire.write(act, gated=gated)

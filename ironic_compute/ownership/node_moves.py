# SPDX-License-Identifier: Apache-2.0
"""Moves of single nodes that an operator requests.

``ironic-computectl node move`` sends the request to the holder of the node,
whose worker alone may write. The node is pinned to its new host: it stays
there when it is free, whatever the ring says, until ``node unpin``. A node
with a server is evicted at once; a free node is only pinned, and the
rebalancer pushes it. ``pool rebalance --with-servers`` requests the moves of
its plan here, too. Of two orders that contradict each other, the one that is
under way goes on, and the other is refused with who has given the first.
"""

import contextlib
import dataclasses
import threading
from collections.abc import Callable, Iterator

import attrs

from hashring.clock import Clock
from hashring.ring import Host
from ironic_compute.gate import Gate
from ironic_compute.ironic_api.client import IronicClient
from ironic_compute.journal.moves import Cause, Reason
from ironic_compute.nodes.compute_nodes import ComputeNodes
from ironic_compute.nodes.held_nodes import HeldNodes
from ironic_compute.nodes.pins import Pin, target_of
from ironic_compute.ownership.departures import Asker
from ironic_compute.ownership.eviction import Evictor, Refused, Terms
from ironic_compute.ownership.move_plan import MovePlanner, PlannedMove
from ironic_compute.ownership.pinning import Pinning
from ironic_compute.ownership.rebalance_order import RebalanceOrders
from ironic_compute.pool.view import PoolView
from resource_tracker.node import NodeId

FindAsker = Callable[[NodeId, Host], Asker | None]


@dataclasses.dataclass(frozen=True, slots=True)
class MoveResult:
    """What has become of the request to move a node, as RPC sends it.

    :param holder: the host that held the node before
    :param server: the server that moved with the node; None if the node was
        only pinned, or the request refused
    :param why_not: a sentence with the reason of a refusal and what to do
    """

    holder: str
    server: str | None = None
    why_not: str | None = None


@dataclasses.dataclass(frozen=True, slots=True)
class UnpinResult:
    """What has become of the request to unpin a node, as RPC sends it.

    :param holder: the host that holds the node
    :param former: the host that it was pinned to; None: it had no pin
    :param target: the host that the ring names for it
    :param why_not: a sentence with the reason of a refusal and what to do
    """

    holder: str
    former: str | None = None
    target: str | None = None
    why_not: str | None = None


@dataclasses.dataclass(frozen=True, slots=True)
class HostPlan:
    """What a rebalance of the pool moves away from one host, as RPC sends it.

    :param nodes_count: the nodes that the host holds
    :param servers_count: those of them that have a server
    """

    nodes_count: int
    servers_count: int
    moves: tuple[PlannedMove, ...]


@attrs.define(eq=False, repr=False, slots=False)
class NodeMoves:
    """Carries out the requests for the nodes of one host.

    Any thread may call; a call blocks for some requests to Nova and Ironic.

    :param find_asker: returns who asks for a node, if it is the named host
    :param settle_s: seconds without a change of the ring before a rebalance
    :param orders: the order to rebalance the pool that is under way
    """

    _held_nodes: HeldNodes
    _pool: PoolView
    _evictor: Evictor
    _pinning: Pinning
    _planner: MovePlanner
    _find_asker: FindAsker
    _settle_s: float
    orders: RebalanceOrders

    def __attrs_post_init__(self) -> None:
        self._lock = threading.Lock()
        # What is just being done to a node upon an operator's order.
        self._under_way: dict[NodeId, str] = {}

    # One node to a host that an operator names

    def move(
        self,
        node: NodeId,
        pin: Pin,
        *,
        replaces: bool,
        is_dry_run: bool,
        changes_zone: bool = False,
    ) -> MoveResult:
        """Pin a node to a host, and give the node to that host.

        The host may be of the pool that the node has gone to, if it asks for
        the node and the node has a server.

        :param replaces: also if the node is pinned to another host
        :param changes_zone: also if that host is in another availability zone
        :param is_dry_run: write nothing; return what would be returned now
        """
        holder = self._held_nodes.host
        what = (
            f'moved to host {pin.host} and pinned there, ordered by {pin.by}'
        )
        try:
            with self._alone_on(node, None if is_dry_run else what):
                if not replaces:
                    self._pinning.check_may_replace(node, pin)
                server = self._move(
                    node, pin, is_dry_run=is_dry_run, changes_zone=changes_zone
                )
        except Refused as exc:
            return MoveResult(holder, why_not=str(exc))
        return MoveResult(holder, server=server)

    @contextlib.contextmanager
    def _alone_on(self, node: NodeId, what: str | None) -> Iterator[None]:
        """Note the order for a node for the block; None: note nothing.

        What the order does follows from the pin, which no other order may
        change meanwhile.

        :raises Refused: another order for it is under way
        """
        with self._lock:
            other = self._under_way.get(node)
            if other is not None:
                raise Refused(
                    f'Node {node} is just being {other}; try again when that '
                    f'has ended'
                )
            if what is not None:
                self._under_way[node] = what
        try:
            yield
        finally:
            if what is not None:
                del self._under_way[node]

    def _move(
        self, node: NodeId, pin: Pin, *, is_dry_run: bool, changes_zone: bool
    ) -> str | None:
        if self._must_evict(node, pin.host):
            return self._evict(
                node, pin, is_dry_run=is_dry_run, changes_zone=changes_zone
            )
        pins = self._pinning.check if is_dry_run else self._pinning.pin
        pins(node, pin, changes_zone=changes_zone)
        return None

    def _must_evict(self, node: NodeId, target: Host) -> bool:
        facts = self._held_nodes.facts(node)
        has_server = facts is None or facts.instance_uuid is not None
        return has_server and target != self._held_nodes.host

    def _evict(
        self, node: NodeId, pin: Pin, *, is_dry_run: bool, changes_zone: bool
    ) -> str:
        asker = self._find_asker(node, pin.host)
        pool = None if asker is None else asker.pool
        terms = Terms(pin, pool, changes_zone)
        if is_dry_run:
            return self._evictor.check(node, pin.host, terms)
        cause = Cause(Reason.PIN, pin.by)
        return self._evictor.evict(node, pin.host, terms, cause=cause)

    def unpin(self, node: NodeId) -> UnpinResult:
        """Remove the pin of a node; the ring decides its host again."""
        holder = self._held_nodes.host
        try:
            with self._alone_on(node, 'unpinned'):
                former = self._pinning.unpin(node)
        except Refused as exc:
            return UnpinResult(holder, why_not=str(exc))
        return UnpinResult(
            holder,
            None if former is None else former.host,
            self._pool.ring_status().ring.target(node),
        )

    # Rebalance of the pool

    def plan(self, *, changes_zone: bool = False) -> HostPlan:
        """Return which nodes of this host other hosts should hold.

        Their holder pushes the free ones by itself.

        :param changes_zone: servers may go to hosts in other availability
            zones
        """
        terms = Terms(changes_zone=changes_zone)
        rows, ring = self._held_nodes.rows(), self._pool.ring_status().ring
        facts = [self._held_nodes.facts(node) for node in rows]
        servers = [each for each in facts if each and each.instance_uuid]
        moves = self._planner.plan_moves(ring, terms) if ring.hosts else []
        return HostPlan(
            len(rows), len(servers), tuple(map(self._unless_disabled, moves))
        )

    def _unless_disabled(self, move: PlannedMove) -> PlannedMove:
        """Leave the servers of a host that takes no nodes to its drain."""
        here = self._held_nodes.host
        is_enabled = here in self._pool.ring_status().ring.hosts
        if is_enabled or move.server is None:
            return move
        why_not = (
            f'Host {here} takes no nodes; its servers move if it is drained: '
            f'ironic-computectl host drain {here}'
        )
        return dataclasses.replace(move, why_not=why_not)

    def rebalance(
        self, node: NodeId, order: str = '', *, changes_zone: bool = False
    ) -> MoveResult:
        """Give a node and its server to the host that should hold it.

        :param order: the key of the order to rebalance; '' if a command of an
            older release requests the move
        :param changes_zone: also if that host is in another availability zone
        """
        holder = self._held_nodes.host
        why_not = self.orders.why_not(order)
        if why_not is not None:
            return MoveResult(holder, why_not=why_not)
        cause = Cause(Reason.REBALANCE, self.orders.by(order))
        by = f', ordered by {cause.by}' if cause.by else ''
        what = f'moved by a rebalance of the pool{by}'
        try:
            with self._alone_on(node, what):
                target = self._find_target(node)
                terms = Terms(changes_zone=changes_zone)
                server = self._evictor.evict(node, target, terms, cause=cause)
        except Refused as exc:
            return MoveResult(holder, why_not=str(exc))
        return MoveResult(holder, server=server)

    def _find_target(self, node: NodeId) -> Host:
        """Return the host that should hold a node.

        :raises Refused: it is this one, or it may be another one soon
        """
        here, row = self._held_nodes.host, self._held_nodes.row(node)
        status = self._pool.ring_status()
        if row is None or here not in status.ring.hosts:
            raise Refused(
                f'Host {here} does not hold node {node}, or takes no nodes '
                f'any more'
            )
        if not (status.agreed and status.settled_for_s >= self._settle_s):
            raise Refused(
                'The hosts of this pool have just changed, or its daemons do '
                'not agree on them yet; try again in a minute'
            )
        target = target_of(row, status.ring)
        if target is None or target == here:
            raise Refused(f'Node {node} is at host {here}, where it should be')
        return target


def make_node_moves(
    held_nodes: HeldNodes,
    compute_nodes: ComputeNodes,
    client: IronicClient,
    pool: PoolView,
    gate: Gate,
    evictor: Evictor,
    find_asker: FindAsker,
    settle_s: float,
    clock: Clock,
    why_not_pushed: Callable[[NodeId], str | None] = lambda node: None,
) -> NodeMoves:
    """Make what carries out an operator's requests about single nodes.

    :param why_not_pushed: returns why a free node is not pushed at present
    """
    return NodeMoves(
        held_nodes,
        pool,
        evictor,
        Pinning(held_nodes, compute_nodes, client, gate, evictor),
        MovePlanner(held_nodes, compute_nodes, evictor, why_not_pushed),
        find_asker,
        settle_s,
        RebalanceOrders(clock),
    )

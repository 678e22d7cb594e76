# SPDX-License-Identifier: Apache-2.0
"""Who holds a node: writes ``ComputeNode.host``, with ``new_nodes``.

What changes a holder follows from the ring of the pool: a node that no host
holds is taken by the ring's target (``new_nodes``), and a *free node* that
the ring gives to another host is pushed to it by its present holder, and by
nobody else.

A node with an instance is never pushed. Rows of hosts that exist are left to
them. All of it is repeated each round: what was cut short is taken up again.
"""

import itertools
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from oslo_log import log as logging

from hashring.ring import Host, Ring
from ironic_compute.gate import Gate
from ironic_compute.nodes.compute_nodes import ComputeNodes
from ironic_compute.nodes.held_nodes import HeldNodes
from ironic_compute.nodes.records import unmark
from ironic_compute.ownership.new_nodes import NewNodes
from ironic_compute.ownership.pacing import Pace, RowWriters
from ironic_compute.pool.foreign_hosts import ForeignHosts
from ironic_compute.pool.services import ServiceDirectory
from ironic_compute.pool.view import PoolView, RingStatus
from resource_tracker.node import NodeId

LOG = logging.getLogger(__name__)

# A round is a second. Each look at such a node is two requests to Nova.
_ASK_AGAIN_ROUNDS = 60


class Rebalancer:
    """Take new nodes, push free ones: ``run_round``, about each second.

    One thread calls ``run_round``; ``follow_instance`` may be called from any.

    :param newcomers: what takes the nodes that are not held here
    :param foreign: hosts of the rows that belong to nobody of the pool
    :param tell: called with a host and the nodes it was just given
    """

    def __init__(
        self,
        held_nodes: HeldNodes,
        compute_nodes: ComputeNodes,
        services: ServiceDirectory,
        new_nodes: NewNodes,
        foreign: ForeignHosts,
        pool: PoolView,
        gate: Gate,
        pace: Pace,
        writers: RowWriters,
        tell: Callable[[Host, list[NodeId]], None],
    ) -> None:
        self._held_nodes = held_nodes
        self._compute_nodes = compute_nodes
        self._services = services
        self._new_nodes = new_nodes
        self._foreign = foreign
        self._pool = pool
        self._gate = gate
        self._pace = pace
        self._writers = writers
        self._tell = tell
        self._sorted_for: tuple[Ring, frozenset[NodeId]] | None = None
        self._elsewhere: dict[NodeId, Host] = {}
        self._with_server: set[NodeId] = set()
        self._rounds_count = 0

    def follow_instance(self, node: NodeId, host: Host) -> None:
        """Give a node to the host that its server is on.

        ``Instance.host`` is the truth for a node with a server.
        """
        record = self._services.find_record(host)
        if record is None:
            return
        with self._held_nodes.still(node) as row:
            if row is None:
                return
            unmark(row)
            if not self._compute_nodes.give(row, host, record.id):
                return
            self._held_nodes.drop(node)
        LOG.info(
            'Gave node %(node)s to host %(host)s, where its server is',
            {'node': node, 'host': host},
        )
        self._tell(host, [node])

    def run_round(self) -> None:
        """Do what the ring asks for now, within the budget."""
        if not self._gate.is_open() or not self._pool.ring_status().ring.hosts:
            return
        if not self._services.is_read:
            return  # Else each host would seem to be gone.
        self._new_nodes.place_nodes()
        if self._foreign.is_stock_compute_up():
            return
        standing = self._pool.ring_status()
        if standing.settled_for_s >= self._patience_s(standing):
            self._push(standing.ring)

    def _patience_s(self, standing: RingStatus) -> float:
        """Return how long a ring must have stayed before nodes follow it.

        Who still has the ring before would give them back at once.
        """
        pace = self._pace
        if standing.agreed:
            return pace.settle_s
        return max(pace.settle_s, pace.disagree_s)

    def _push(self, ring: Ring) -> None:
        self._rounds_count += 1
        if self._rounds_count % _ASK_AGAIN_ROUNDS == 0:
            self._with_server.clear()
        free = (n for n in self._misplaced(ring) if self._is_free(n))
        some = itertools.islice(free, self._pace.push_budget)
        moves = {node: self._elsewhere[node] for node in some}
        given = self._writers.for_each(
            lambda node: self._give(node, moves[node]), moves
        )
        self._report_pushes([n for n in moves if given.get(n)], moves)

    def _misplaced(self, ring: Ring) -> Iterable[NodeId]:
        """Return the held nodes that the ring gives to other hosts.

        Looked up anew when the ring or the held nodes have changed: a round
        about nothing must cost nothing with thousands of nodes.
        """
        held = frozenset(self._held_nodes.rows())
        if (ring, held) != self._sorted_for:
            self._sorted_for = (ring, held)
            here = (None, self._held_nodes.host)
            targets = ((node, ring.target(node)) for node in sorted(held))
            self._elsewhere = {n: t for n, t in targets if t not in here}
        return self._elsewhere

    def _is_free(self, node: NodeId) -> bool:
        return (
            node not in self._with_server
            and node not in self._held_nodes.unconfirmed()
            and self._held_nodes.is_free(node)
        )

    def _give(self, node: NodeId, target: Host) -> bool:
        """Push one free node; True if it changed hands."""
        record = self._services.find_record(target)
        if record is None:
            return False
        with self._held_nodes.leaving(node) as row:
            if row is None or not self._is_ours_now(node, row):
                return False
            if self._compute_nodes.instances_on(node, self._held_nodes.host):
                # Nova has a server there that Ironic knows nothing of.
                self._with_server.add(node)
                return False
            unmark(row)
            return self._compute_nodes.give(row, target, record.id)

    def _is_ours_now(self, node: NodeId, row: Any) -> bool:
        """Read the row again; a late write may have given it to another."""
        current = self._compute_nodes.named(node)
        if current is None or current.host != self._held_nodes.host:
            row.host = current and current.host  # So it is dropped.
        return bool(row.host == self._held_nodes.host)

    def _report_pushes(
        self, given: list[NodeId], moves: Mapping[NodeId, Host]
    ) -> None:
        for target in sorted({moves[node] for node in given}):
            nodes = [node for node in given if moves[node] == target]
            LOG.info(
                'Pushed %(count)d free nodes to host %(target)s',
                {'count': len(nodes), 'target': target},
            )
            self._tell(target, nodes)

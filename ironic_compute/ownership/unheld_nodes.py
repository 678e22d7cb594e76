# SPDX-License-Identifier: Apache-2.0
"""Waiting lists of the pool's nodes that this host does not hold.

The feed adds nodes, the list of each audit replaces them, and ``new_nodes``
takes the nodes whose rows are due to be read. A node that no host may take
now, or that another host holds, waits in a separate list until there is a
reason to read its row again. Nothing here sends a request.
"""

import threading
from collections.abc import Container, Iterable, Mapping, Set

from hashring.ring import Ring
from ironic_compute.pool.view import RingStatus
from resource_tracker.node import NodeFacts, NodeId

# Seconds between two reads of the rows of nodes without a holder.
_RECHECK_S = 10.0
# Seconds between two reads of the rows of nodes that foreign hosts hold, and
# the number of such rows in one read.
_FOREIGN_RECHECK_S = 30.0
_FOREIGN_COUNT = 100


class UnheldNodes:
    """The nodes of the pool that this host does not hold.

    Any thread may call; no method blocks. A node is *due* when its row is to
    be read in the next pass. A *pass* is one run of ``NewNodes.place_nodes``.
    """

    def __init__(self) -> None:
        self._due: dict[NodeId, NodeFacts] = {}
        self._placing: set[NodeId] = set()
        self._unplaced: dict[NodeId, NodeFacts] = {}
        self._unplaced_ring: tuple[Ring, bool] | None = None
        self._recheck_at_s = 0.0
        self._of_pool: set[NodeId] = set()
        self._of_foreign: dict[NodeId, NodeFacts] = {}
        self._foreign_recheck_at_s = 0.0
        self._given: set[NodeId] = set()
        # Given nodes that no read of Ironic has found since.
        self._awaited: set[NodeId] = set()
        # Those of them that the last audit did not list.
        self._unlisted: set[NodeId] = set()
        # Given nodes that no pass has placed since.
        self._arriving: set[NodeId] = set()
        self._listed: set[NodeId] = set()
        # Nodes that another worker has listed, whose rows are due to be read
        # and whose facts are not known here.
        self._unread: set[NodeId] = set()
        self._to_find_by_name: set[NodeId] = set()
        # No pass has begun since a list has made all rows due.
        self._is_reset = False
        self._is_first_pass = False
        self._lock = threading.Lock()

    # Called by the feed, by the audit and for messages of other hosts

    def add(self, facts: NodeFacts) -> None:
        """Add a node of the pool, or replace its facts.

        It may be in two lists: it is due again when the rows of all nodes are,
        or when it has changed, while a pass places it.
        """
        node = facts.uuid
        with self._lock:
            is_waiting = False
            for waiting in (self._due, self._unplaced, self._of_foreign):
                if node in waiting:
                    waiting[node], is_waiting = facts, True
            if not is_waiting and node not in self._of_pool:
                self._due[node] = facts

    def mark_missing(self, node: NodeId) -> None:
        """Remove a node that Ironic does not have, or has in another pool.

        A pass that has begun does not create or take the node's row then. A
        node that was given to this host is awaited again. Of a node that comes
        back the row is read: its holder may have removed that.
        """
        with self._lock:
            if node in self._arriving:
                self._awaited.add(node)
            self._placing.discard(node)
            self._of_pool.discard(node)
            self._due.pop(node, None)
            self._unplaced.pop(node, None)
            self._of_foreign.pop(node, None)

    def reset_from_list(
        self, nodes: Mapping[NodeId, NodeFacts], held: Container[NodeId]
    ) -> None:
        """Replace all waiting lists by the nodes that an audit has read.

        The rows of all nodes, except the held ones, are read again. A node
        that was given here is awaited until two audits have not listed it: the
        first one may have begun before, or Ironic did not show the node. If it
        is due already, it stays due.

        :param nodes: a live view, as in ``feed.Sink``
        """
        with self._lock:
            listed = frozenset(nodes)
            gone = (self._awaited & self._unlisted) - listed
            # A build or an audit of rows may hold a node before a pass does.
            self._arriving -= gone | {n for n in self._arriving if n in held}
            self._awaited -= gone | listed
            self._unlisted = set(self._awaited)
            self._of_pool.clear()
            self._of_foreign.clear()
            unsettled = self._due.keys() | self._unplaced.keys()
            self._to_find_by_name |= self._listed & unsettled
            self._unplaced = {}
            given = {n: f for n, f in self._due.items() if n in self._arriving}
            # A node may vanish from ``nodes`` during this loop.
            found = {n: nodes.get(n) for n in nodes if n not in held}
            listed_due = {n: f for n, f in found.items() if f is not None}
            self._due = {**given, **listed_due}
            self._listed = set(listed_due)
            self._unread = set()
            self._is_reset = True
            # A node may have been held when it was given, and be gone now.
            self._arriving &= self._awaited | self._due.keys() | self._placing

    def is_settled(self) -> bool:
        """Return whether no node waits, except those of other hosts."""
        with self._lock:
            return self._is_settled()

    def _is_settled(self) -> bool:
        return not (
            self._due
            or self._placing
            or self._unplaced
            or self._of_foreign
            or self._awaited
            or self._arriving
        )

    def check_listed(
        self, names: Set[NodeId], held: Container[NodeId]
    ) -> None:
        """Make the rows of nodes due that another worker has listed.

        Nothing waited before the list was read: see ``is_settled``. If a node
        waits by now, its row may not be read again in the next pass.
        """
        with self._lock:
            self._is_reset |= self._is_settled()
            self._listed = {node for node in names if node not in held}
            self._of_pool &= self._listed
            self._unread = set(self._listed)

    def mark_given(self, nodes: Iterable[NodeId]) -> None:
        """Make nodes due because another host gave them to this host."""
        with self._lock:
            for node in nodes:
                self._given.add(node)
                self._awaited.add(node)
                self._unlisted.discard(node)
                self._arriving.add(node)
                self._of_pool.discard(node)
                for waiting in (self._unplaced, self._of_foreign):
                    if node in waiting:
                        self._due.setdefault(node, waiting.pop(node))

    def mark_found(self, node: NodeId) -> None:
        """Record that a read of this one node has found it in Ironic."""
        with self._lock:
            self._awaited.discard(node)

    def is_awaited(self, node: NodeId) -> bool:
        """Return whether a node was given here, and no read found it since."""
        return node in self._awaited

    def is_arriving(self, node: NodeId) -> bool:
        """Return whether a node was given here, and no pass placed it since.

        Then its row names this host, unless it was given away again.
        """
        return node in self._arriving

    def facts(self, node: NodeId) -> NodeFacts | None:
        """Return the newest facts of a node that is in a waiting list.

        None if it is in no list, or if another host of the pool holds it.
        """
        return (
            self._due.get(node)
            or self._unplaced.get(node)
            or self._of_foreign.get(node)
        )

    # Called by ``NewNodes`` in a pass

    def take_due(
        self, status: RingStatus, now_s: float
    ) -> dict[NodeId, NodeFacts]:
        """Begin a pass; return the nodes whose rows are due."""
        with self._lock:
            self._recheck_unplaced(status, now_s)
            self._recheck_foreign(now_s)
            due, self._due = self._due, {}
            self._placing = set(due)
            self._given.clear()
            self._is_first_pass, self._is_reset = self._is_reset, False
            return due

    def is_first_pass(self) -> bool:
        """Return whether a list made all rows due just before this pass."""
        return self._is_first_pass

    def take_unread(self) -> set[NodeId]:
        """Return the nodes of a told list whose rows are due."""
        with self._lock:
            unread, self._unread = self._unread, set()
            return unread

    def recheck_of_pool(self) -> None:
        """Make the rows of all nodes of the pool's other hosts due."""
        with self._lock:
            self._unread |= self._of_pool

    def put_back_unread(self, nodes: Set[NodeId]) -> None:
        """Make the rows of these nodes due again."""
        with self._lock:
            self._unread |= nodes

    def forget_holder(self, node: NodeId) -> None:
        """Have the row of a node read again when its facts come."""
        with self._lock:
            self._of_pool.discard(node)

    def _recheck_unplaced(self, status: RingStatus, now_s: float) -> None:
        """Make nodes without a holder due after a ring change or 10 s.

        Their rows are not read each second, because agents may disagree about
        the ring for hours while one of them has no worker.
        """
        ring = status.ring, status.agreed
        if ring != self._unplaced_ring or now_s >= self._recheck_at_s:
            self._unplaced_ring = ring
            self._recheck_at_s = now_s + _RECHECK_S
            self._due = {**self._unplaced, **self._due}
            self._unplaced = {}

    def _recheck_foreign(self, now_s: float) -> None:
        """Make some nodes of foreign hosts due.

        A foreign host sends no message when it drops a node, for example upon
        ``ironic-computectl node forget`` in the pool that the node left.
        """
        if now_s < self._foreign_recheck_at_s:
            return
        self._foreign_recheck_at_s = now_s + _FOREIGN_RECHECK_S
        for node in list(self._of_foreign)[:_FOREIGN_COUNT]:
            self._due.setdefault(node, self._of_foreign.pop(node))

    def pop_due(self, node: NodeId) -> NodeFacts | None:
        """Remove a node that this host holds now; return its facts.

        None if it was not due.
        """
        with self._lock:
            self._arriving.discard(node)
            self._unplaced.pop(node, None)
            self._of_foreign.pop(node, None)
            return self._due.pop(node, None)

    def is_placing(self, node: NodeId) -> bool:
        """Return whether a node is in the present pass and not missing."""
        return node in self._placing

    def put_back(self, nodes: Mapping[NodeId, NodeFacts]) -> None:
        """Make the nodes due again that a pass could not place.

        Facts that the feed added during the pass are newer, and are kept.
        """
        with self._lock:
            left = nodes.keys() & self._placing - self._unplaced.keys()
            self._due = {**{n: nodes[n] for n in left}, **self._due}

    def set_unplaced(self, facts: NodeFacts) -> None:
        """Put a node without a holder on its waiting list.

        This host may not take it now. It is due again when the ring changes,
        or after 10 s.
        """
        with self._lock:
            if facts.uuid in self._placing:
                self._arriving.discard(facts.uuid)
                self._unplaced[facts.uuid] = facts

    def set_held_elsewhere(self, facts: NodeFacts, *, in_pool: bool) -> None:
        """Put a node whose row names another host on its waiting list.

        :param in_pool: whether the other host belongs to the pool. Such a host
            sends a message when it gives the node to this host; the row of a
            foreign host is read again after 30 s
        """
        node = facts.uuid
        with self._lock:
            if node not in self._placing:
                return
            if node in self._given:
                # The row may have been read before the other host gave the
                # node to this host; read it again.
                self._due.setdefault(node, facts)
                return
            self._arriving.discard(node)
            if in_pool:
                self._of_pool.add(node)
            else:
                self._of_foreign[node] = facts

    def must_find_by_name(self, node: NodeId) -> bool:
        """Return whether no host has taken a node between two audits.

        The node may have a row with another uuid, which is found by the node's
        name only.
        """
        return node in self._to_find_by_name

    def set_found_no_row(self, node: NodeId) -> None:
        """Record that a node has no row of its name; do not search again."""
        with self._lock:
            self._to_find_by_name.discard(node)

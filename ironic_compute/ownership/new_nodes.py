# SPDX-License-Identifier: Apache-2.0
"""Nodes of the pool that are not held here: new ones, orphans, given ones.

A *new node* gets its row from the ring's target, once all live agents have
said for a while that they have this very ring; the row is *unconfirmed*
until it was read again as ours. An *orphan* (its host has no Service record)
is taken by the ring's target. Rows of hosts that exist are left to them.
"""

import dataclasses
import threading
from collections.abc import Iterable, Mapping
from typing import Any

from oslo_log import log as logging

from hashring.clock import Clock
from hashring.ring import Host, Ring
from ironic_compute.nodes.compute_nodes import ComputeNodes
from ironic_compute.nodes.held_nodes import HeldNodes, Moment
from ironic_compute.ownership.pacing import Pace, RowWriters
from ironic_compute.pool.foreign_hosts import ForeignHosts
from ironic_compute.pool.services import ServiceDirectory
from ironic_compute.pool.view import PoolView
from resource_tracker.node import NodeFacts, NodeId

LOG = logging.getLogger(__name__)

# Looked at together: about as many rows as are created in a second.
_SLICE_COUNT = 100
# Good for so long at least: what is looked at may be written then.
_LOOK_S = 5.0
# To ask for so many nodes by name costs as much as to read a page of rows.
_NAMES_A_PAGE = 4


@dataclasses.dataclass(frozen=True, slots=True)
class _Look:
    """What was seen at one moment of the rows of some nodes."""

    rows: Mapping[NodeId, Any]
    read_at: Moment
    began_at_s: float


class NewNodes:
    """Take what is ours of the nodes that are met.

    One thread calls ``place_nodes``, when the gate is open; any thread may
    call the other methods.

    :param foreign: hosts of the rows that belong to nobody of the pool
    """

    def __init__(
        self,
        held_nodes: HeldNodes,
        compute_nodes: ComputeNodes,
        services: ServiceDirectory,
        foreign: ForeignHosts,
        pool: PoolView,
        clock: Clock,
        pace: Pace,
        writers: RowWriters,
    ) -> None:
        self._held_nodes = held_nodes
        self._compute_nodes = compute_nodes
        self._services = services
        self._foreign = foreign
        self._pool = pool
        self._clock = clock
        self._pace = pace
        self._writers = writers
        self._strangers: dict[NodeId, NodeFacts] = {}
        self._placing: set[NodeId] = set()
        self._waiting: dict[NodeId, NodeFacts] = {}
        self._waits_for: tuple[Ring, bool] | None = None
        self._look_again_at_s = 0.0
        self._of_others: dict[NodeId, Host] = {}
        self._of_foreign: dict[NodeId, NodeFacts] = {}
        self._foreign_at_s = 0.0
        self._listed: set[NodeId] = set()
        self._given: set[NodeId] = set()
        self._rowless: set[NodeId] = set()
        self._odd: frozenset[NodeId] | None = None
        self._new_since_s: dict[NodeId, float] = {}
        self._lock = threading.Lock()

    def add_unheld(self, facts: NodeFacts) -> None:
        """Remember a node of the pool that is not held here."""
        node = facts.uuid
        with self._lock:
            if node in self._waiting:
                self._waiting[node] = facts
            elif node in self._of_foreign:
                self._of_foreign[node] = facts
            elif node not in self._of_others:
                self._strangers[node] = facts

    def mark_missing(self, node: NodeId) -> None:
        """Take no node that Ironic does not have, or has in another pool."""
        with self._lock:
            self._placing.discard(node)
            self._strangers.pop(node, None)
            self._waiting.pop(node, None)
            self._of_foreign.pop(node, None)

    def reset_from_list(self, nodes: Mapping[NodeId, NodeFacts]) -> None:
        """A full list of the pool was read: look at every row again."""
        held = self._held_nodes.rows()
        with self._lock:
            self._foreign.clear()
            self._of_others.clear()
            self._of_foreign.clear()
            unsettled = self._strangers.keys() | self._waiting.keys()
            self._rowless |= self._listed & unsettled
            self._waiting = {}
            self._strangers = {n: f for n, f in nodes.items() if n not in held}
            self._listed = set(self._strangers)

    def mark_given(self, nodes: Iterable[NodeId]) -> None:
        """Another host says it gave us ``nodes``: look at their rows."""
        with self._lock:
            for node in nodes:
                self._given.add(node)
                self._of_others.pop(node, None)
                for known in (self._waiting, self._of_foreign):
                    if node in known:
                        self._strangers[node] = known.pop(node)

    def hold_if_ours(self, node: NodeId) -> None:
        """Read one node's row now: a build says that it is ours."""
        facts = (
            self._strangers.get(node)
            or self._waiting.get(node)
            or self._of_foreign.get(node)
        )
        read_at = self._held_nodes.moment()
        row = self._compute_nodes.of_nodes([node]).get(
            node
        ) or self._compute_nodes.named(node)
        if row is not None and row.host == self._held_nodes.host:
            self._held_nodes.hold(row, facts, read_at)

    def place_nodes(self) -> None:
        """Find out whose the nodes are that were met, and take ours."""
        with self._lock:
            self._end_waits()
            self._look_at_foreign()
            strangers, self._strangers = self._strangers, {}
            self._placing = set(strangers)
            self._given.clear()
        if strangers:
            self._place_all(strangers)
        self._confirm()

    def _place_all(self, strangers: Mapping[NodeId, NodeFacts]) -> None:
        """Place them; new ones a slice at a time.

        So the first are offered before the last are created, and a row is
        created soon after it was looked for. Those that could not be placed
        are met again.
        """
        left = set(strangers)
        try:
            look = self._look(strangers)
            rowless = {n for n in left - look.rows.keys() if self._may_take(n)}
            self._odd = self._odd_ones(left - look.rows.keys())
            left -= self._place_some(strangers, left - rowless, look)
            nodes = sorted(rowless)
            for start in range(0, len(nodes), _SLICE_COUNT):
                some = nodes[start : start + _SLICE_COUNT]
                look = self._look(some) if start else look
                left -= self._place_some(strangers, some, look)
                self._confirm()
        finally:
            with self._lock:  # What was met since is newer.
                left = left & self._placing - self._waiting.keys()
                again = {node: strangers[node] for node in left}
                self._strangers = {**again, **self._strangers}

    def _look(self, nodes: Iterable[NodeId]) -> _Look:
        read_at, now_s = self._held_nodes.moment(), self._clock.now_s()
        return _Look(self._compute_nodes.of_nodes(nodes), read_at, now_s)

    def _place_some(
        self,
        strangers: Mapping[NodeId, NodeFacts],
        nodes: Iterable[NodeId],
        look: _Look,
    ) -> set[NodeId]:
        """Return those that were placed."""
        placed = self._writers.for_each(
            lambda node: self._place(strangers[node], look), sorted(nodes)
        )
        return set(placed)

    def _odd_ones(self, rowless: Iterable[NodeId]) -> frozenset[NodeId] | None:
        """Return which rows have another uuid; None: to be asked for each.

        Such rows are as old as Nova 18 and no new ones come about, so what
        is found here is as good as a look just before a row is created.
        """
        asked_count = sum(1 for node in rowless if self._is_asked_for(node))
        pages_max = asked_count // _NAMES_A_PAGE
        return self._compute_nodes.odd(pages_max) if pages_max else None

    def _end_waits(self) -> None:
        """Look anew at the nodes nobody could take, if there is a reason.

        An agent without a worker keeps the pool from agreeing for hours, and
        their rows are not read each second for so long.
        """
        standing, now_s = self._pool.ring_status(), self._clock.now_s()
        sight = standing.ring, standing.agreed
        if sight != self._waits_for or now_s >= self._look_again_at_s:
            self._waits_for = sight
            self._look_again_at_s = now_s + self._pace.recheck_s
            self._strangers = {**self._waiting, **self._strangers}
            self._waiting = {}

    def _look_at_foreign(self) -> None:
        """Look at some nodes again that hosts of no agent of ours hold.

        Those hosts tell nobody here when they let a node go, as upon
        ``ironic-computectl node forget`` in the pool that it leaves.
        """
        now_s = self._clock.now_s()
        if now_s < self._foreign_at_s:
            return
        self._foreign_at_s = now_s + self._pace.foreign_recheck_s
        for node in list(self._of_foreign)[:_SLICE_COUNT]:
            self._strangers.setdefault(node, self._of_foreign.pop(node))

    def _wait(self, facts: NodeFacts) -> None:
        with self._lock:
            if facts.uuid in self._placing:
                self._waiting[facts.uuid] = facts

    def _place(self, facts: NodeFacts, look: _Look) -> None:
        """Find out whose a node is that we do not hold."""
        row = look.rows.get(facts.uuid) or self._old_row(facts.uuid)
        holder = Host(row.host) if row is not None and row.host else None
        if holder == self._held_nodes.host:
            self._hold(row, facts, look.read_at)
        elif holder is not None and self._services.find_record(holder):
            self._leave(facts, holder)
        elif not self._may_take(facts.uuid):
            self._wait(facts)
        elif row is None:
            self._create(facts, look)
        else:
            self._take_orphan(row, facts, look.read_at)

    def _leave(self, facts: NodeFacts, holder: Host) -> None:
        with self._lock:
            self._foreign.note_holder(holder, facts.uuid)
            if facts.uuid not in self._placing:
                return
            if facts.uuid in self._given:
                # Its row was read before that, maybe: look once more.
                self._strangers.setdefault(facts.uuid, facts)
            elif holder in self._pool.known:
                self._of_others[facts.uuid] = holder
            else:
                self._of_foreign[facts.uuid] = facts

    def _old_row(self, node: NodeId) -> Any | None:
        """Return a row that has another uuid than its node.

        Asked before each creation, or there would be two rows and two
        holders (bugs 1771806, 1798172), and about what no host has taken
        from one list to the next.
        """
        if not self._is_asked_for(node):
            return None
        is_odd = self._odd is None or node in self._odd
        row = self._compute_nodes.named(node) if is_odd else None
        if row is None:
            with self._lock:
                self._rowless.discard(node)
        return row

    def _is_asked_for(self, node: NodeId) -> bool:
        return node in self._rowless or self._may_take(node)

    def _may_take(self, node: NodeId) -> bool:
        standing = self._pool.ring_status()
        return (
            standing.agreed
            and standing.ring.target(node) == self._held_nodes.host
            and self._held_nodes.status.service_id is not None
        )

    def _is_wanted(self, node: NodeId) -> bool:
        return node in self._placing and self._may_take(node)

    def _hold(
        self,
        row: Any,
        facts: NodeFacts,
        read_at: Moment,
        *,
        created: bool = False,
    ) -> None:
        """Hold a node; what it was is not told if that is denied by now."""
        self._held_nodes.hold(row, None, read_at, created=created)
        # Whoever denies it from now on finds it held.
        if facts.uuid in self._placing:
            self._held_nodes.observe(facts)

    def _create(self, facts: NodeFacts, look: _Look) -> None:
        service_id = self._held_nodes.status.service_id
        assert service_id is not None  # noqa: S101 - see _may_take
        row = self._compute_nodes.create(
            facts,
            self._held_nodes.host,
            service_id,
            lambda: self._may_create(facts.uuid, look),
        )
        if row is not None:
            self._hold(row, facts, look.read_at, created=True)
            LOG.info('Took up new node %(node)s', {'node': facts.uuid})
        elif self._is_wanted(facts.uuid):
            self.add_unheld(facts)  # Too long ago: look again.
        else:
            self._wait(facts)

    def _may_create(self, node: NodeId, look: _Look) -> bool:
        """Say whether nobody else can have a confirmed row of a node.

        Only the target of an agreed ring creates one. All have had this ring
        since we saw that there is no row; and what was on its way from the
        time of another ring is not confirmed yet.
        """
        looked_ago_s = self._clock.now_s() - look.began_at_s
        return (
            self._is_wanted(node)
            and (self._pool.ring_status().agreed_for_s or 0.0) >= looked_ago_s
            and looked_ago_s <= max(self._pace.confirm_s, _LOOK_S)
        )

    def _take_orphan(
        self, row: Any, facts: NodeFacts, read_at: Moment
    ) -> None:
        service_id = self._held_nodes.status.service_id
        assert service_id is not None  # noqa: S101 - see _may_take
        if facts.instance_uuid is not None:
            # Its instance names that host too: an evict, not done here.
            LOG.warning(
                'Node %(node)s has an instance and its host %(holder)s has '
                'no Service record; start a daemon of that name again',
                {'node': facts.uuid, 'holder': row.host},
            )
            return
        former = row.host
        if self._services.read_exists(former):
            return  # Since we looked at all of them.
        if not self._is_wanted(facts.uuid):
            return
        if self._compute_nodes.give(row, self._held_nodes.host, service_id):
            self._hold(row, facts, read_at)
            LOG.info(
                'Took node %(node)s of host %(holder)s, which Nova does not '
                'know any more',
                {'node': facts.uuid, 'holder': former},
            )

    def _confirm(self) -> None:
        """Offer the new nodes that nobody can be about to take from us.

        Another target's request is as old as its ring: it is done with once
        all have had ours for ``confirm_s``, as they say when the row is
        there. Where they do not, the while counts from our own first sight
        of the row, which may be the work of the worker before us.
        """
        now_s, confirm_s = self._clock.now_s(), self._pace.confirm_s
        self._new_since_s = {
            node: self._new_since_s.get(node, now_s)
            for node in sorted(self._held_nodes.unconfirmed())
        }
        standing, host = self._pool.ring_status(), self._held_nodes.host
        is_ours_alone = (standing.agreed_for_s or 0.0) >= confirm_s
        agreed_until_s = standing.agreed_until_s if is_ours_alone else 0.0
        ripe = [
            node
            for node, since_s in self._new_since_s.items()
            if now_s - since_s >= confirm_s
            or (
                since_s <= agreed_until_s
                and standing.ring.target(node) == host
            )
        ]
        if ripe:
            found = self._compute_nodes.of_nodes(ripe)
            self._writers.for_each(
                lambda node: self._held_nodes.confirm(node, found.get(node)),
                ripe,
            )

# SPDX-License-Identifier: Apache-2.0
"""Who holds a node: the only writer of ``ComputeNode.host``.

Three things change a holder, and each follows from the ring of the pool:

* a *new node* gets its row from the ring's target, once all live agents have
  said for a while that they have this very ring; the row is *unconfirmed*
  until it was read again as ours;
* a *free node* that the ring gives to another host is pushed to it by its
  present holder, and by nobody else;
* an *orphan* (its host has no Service record) is taken by the ring's target.

A node with an instance is never pushed. Rows of hosts that exist are left to
them. All of it is repeated each round: what was cut short is taken up again.
"""

import dataclasses
import functools
import itertools
import threading
from collections.abc import Callable, Iterable, Mapping
from concurrent import futures
from typing import Any

from oslo_log import log as logging

from hashring.clock import Clock
from hashring.ring import Host, Ring
from ironic_compute.foreign import ForeignHosts
from ironic_compute.gate import Gate
from ironic_compute.holdings import Holdings, Moment
from ironic_compute.rows import Rows
from ironic_compute.services import ServiceDirectory
from ironic_compute.view import Pool, Standing
from resource_tracker.node import NodeFacts, NodeId

LOG = logging.getLogger(__name__)


@dataclasses.dataclass(frozen=True, slots=True)
class Pace:
    """How fast holders may change; see the options of the same names."""

    settle_s: float
    confirm_s: float
    push_budget: int
    parallelism: int
    disagree_s: float = 0.0
    """How long the ring must have stayed where not all have the same."""
    look_again_s: float = 10.0
    """Between two looks at rows that nobody may change now."""


class Handover:
    """Take new nodes, push free ones; ``round`` is called about each second.

    ``meet`` may be called from any thread; ``round`` from one.

    :param foreign: hosts of the rows that belong to nobody of the pool
    :param tell: called with a host and the nodes it was just given
    :param writers: what writes several rows at once; threads unless given
    """

    def __init__(
        self,
        holdings: Holdings,
        rows: Rows,
        services: ServiceDirectory,
        foreign: ForeignHosts,
        pool: Pool,
        gate: Gate,
        clock: Clock,
        pace: Pace,
        tell: Callable[[Host, list[NodeId]], None],
        writers: futures.Executor | None = None,
    ) -> None:
        self._holdings = holdings
        self._rows = rows
        self._services = services
        self._foreign = foreign
        self._pool = pool
        self._gate = gate
        self._clock = clock
        self._pace = pace
        self._tell = tell
        self._strangers: dict[NodeId, NodeFacts] = {}
        self._waiting: dict[NodeId, NodeFacts] = {}
        self._waits_for: tuple[Ring, bool] | None = None
        self._look_again_at_s = 0.0
        self._of_others: dict[NodeId, Host] = {}
        self._listed: set[NodeId] = set()
        self._rowless: set[NodeId] = set()
        self._new_since_s: dict[NodeId, float] = {}
        self._sorted_for: tuple[Ring, frozenset[NodeId]] | None = None
        self._elsewhere: dict[NodeId, Host] = {}
        self._lock = threading.Lock()
        self._writers = writers or futures.ThreadPoolExecutor(
            pace.parallelism, thread_name_prefix='rows'
        )

    def meet(self, facts: NodeFacts) -> None:
        """Remember a node of the pool that is not held here."""
        node = facts.uuid
        with self._lock:
            if node in self._waiting:
                self._waiting[node] = facts
            elif node not in self._of_others:
                self._strangers[node] = facts

    def listed(self, nodes: Mapping[NodeId, NodeFacts]) -> None:
        """A full list of the pool was read: look at every row again."""
        held = self._holdings.rows()
        with self._lock:
            self._foreign.anew()
            self._of_others.clear()
            unsettled = self._strangers.keys() | self._waiting.keys()
            self._rowless |= self._listed & unsettled
            self._waiting = {}
            self._strangers = {n: f for n, f in nodes.items() if n not in held}
            self._listed = set(self._strangers)

    def given(self, nodes: Iterable[NodeId]) -> None:
        """Another host says it gave us ``nodes``: look at their rows."""
        with self._lock:
            for node in nodes:
                self._of_others.pop(node, None)
                if node in self._waiting:
                    self._strangers[node] = self._waiting.pop(node)

    def look_at(self, node: NodeId) -> None:
        """Read one node's row now: a build says that it is ours."""
        facts = self._strangers.get(node) or self._waiting.get(node)
        read_at = self._holdings.moment()
        row = self._rows.of_nodes([node]).get(node) or self._rows.named(node)
        if row is not None and row.host == self._holdings.host:
            self._holdings.hold(row, facts, read_at)

    def follow(self, node: NodeId, host: Host) -> None:
        """Give a node to the host that its server is on.

        ``Instance.host`` is the truth for a node with a server.
        """
        record = self._services.record(host)
        if record is None:
            return
        with self._holdings.still(node) as row:
            if row is None or not self._rows.give(row, host, record.id):
                return
            self._holdings.drop(node)
        LOG.info(
            'Gave node %(node)s to host %(host)s, where its server is',
            {'node': node, 'host': host},
        )
        self._tell(host, [node])

    def stop(self) -> None:
        """Write nothing more."""
        self._writers.shutdown(wait=False, cancel_futures=True)

    def round(self) -> None:
        """Do what the ring asks for now, within the budget."""
        if not self._gate.is_open() or not self._pool.standing().ring.hosts:
            return
        if not self._services.is_read:
            return  # Else each host would seem to be gone.
        self._sort_strangers()
        self._confirm()
        if self._foreign.interferes():
            return
        standing = self._pool.standing()
        if standing.settled_for_s >= self._patience_s(standing):
            self._push(standing.ring)

    def _patience_s(self, standing: Standing) -> float:
        """Return how long a ring must have stayed before nodes follow it.

        Who still has the ring before would give them back at once.
        """
        pace = self._pace
        if standing.agreed:
            return pace.settle_s
        return max(pace.settle_s, pace.disagree_s)

    # New nodes, orphans, and nodes that were given to us

    def _sort_strangers(self) -> None:
        with self._lock:
            self._end_waits()
            strangers, self._strangers = self._strangers, {}
        if not strangers:
            return
        placed: Mapping[NodeId, Any] = {}
        read_at = self._holdings.moment()
        try:
            found = self._rows.of_nodes(strangers)
            placed = self._each(
                lambda node: self._place(
                    strangers[node], found.get(node), read_at
                ),
                strangers,
            )
        finally:
            for node in sorted(strangers.keys() - placed.keys()):
                self.meet(strangers[node])

    def _end_waits(self) -> None:
        """Look anew at the nodes nobody could take, if there is a reason.

        An agent without a worker keeps the pool from agreeing for hours, and
        their rows are not read each second for so long.
        """
        standing, now_s = self._pool.standing(), self._clock.now_s()
        sight = standing.ring, standing.agreed
        if sight != self._waits_for or now_s >= self._look_again_at_s:
            self._waits_for = sight
            self._look_again_at_s = now_s + self._pace.look_again_s
            self._strangers = {**self._waiting, **self._strangers}
            self._waiting = {}

    def _wait(self, facts: NodeFacts) -> None:
        with self._lock:
            self._waiting[facts.uuid] = facts

    def _place(
        self, facts: NodeFacts, row: Any | None, read_at: Moment
    ) -> None:
        """Find out whose a node is that we do not hold."""
        row = row or self._old_row(facts.uuid)
        holder = Host(row.host) if row is not None and row.host else None
        if holder == self._holdings.host:
            self._holdings.hold(row, facts, read_at)
        elif holder is not None and self._services.record(holder):
            with self._lock:
                self._of_others[facts.uuid] = holder
                self._foreign.note(holder, facts.uuid)
        elif not self._may_take(facts.uuid):
            self._wait(facts)
        elif row is None:
            self._create(facts, read_at)
        else:
            self._take_orphan(row, facts, read_at)

    def _old_row(self, node: NodeId) -> Any | None:
        """Return a row that has another uuid than its node.

        Asked before each creation, or there would be two rows and two
        holders (bugs 1771806, 1798172), and about what no host has taken
        from one list to the next.
        """
        if node not in self._rowless and not self._may_take(node):
            return None
        row = self._rows.named(node)
        if row is None:
            with self._lock:
                self._rowless.discard(node)
        return row

    def _may_take(self, node: NodeId) -> bool:
        standing = self._pool.standing()
        return (
            standing.agreed
            and standing.ring.target(node) == self._holdings.host
            and self._holdings.status.service_id is not None
        )

    def _create(self, facts: NodeFacts, read_at: Moment) -> None:
        service_id = self._holdings.status.service_id
        assert service_id is not None  # noqa: S101 - see _may_take
        wanted = functools.partial(self._may_take, facts.uuid)
        row = self._rows.create(facts, self._holdings.host, service_id, wanted)
        if row is None:
            self._wait(facts)
            return
        self._holdings.hold(row, facts, read_at)
        LOG.info('Took up new node %(node)s', {'node': facts.uuid})

    def _take_orphan(
        self, row: Any, facts: NodeFacts, read_at: Moment
    ) -> None:
        service_id = self._holdings.status.service_id
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
        if self._services.is_there_now(former):
            return  # Since we looked at all of them.
        if self._rows.give(row, self._holdings.host, service_id):
            self._holdings.hold(row, facts, read_at)
            LOG.info(
                'Took node %(node)s of host %(holder)s, which Nova does not '
                'know any more',
                {'node': facts.uuid, 'holder': former},
            )

    def _confirm(self) -> None:
        """Offer the new nodes whose row is still ours after a while.

        The while is counted from our own first sight of the row, which may
        be the work of the worker before us.
        """
        now_s, since_s = self._clock.now_s(), self._new_since_s
        self._new_since_s = {
            node: since_s.get(node, now_s)
            for node in sorted(self._holdings.unconfirmed())
        }
        ripe = [
            node
            for node, first_seen_s in self._new_since_s.items()
            if now_s - first_seen_s >= self._pace.confirm_s
        ]
        if ripe:
            found = self._rows.of_nodes(ripe)
            self._each(
                lambda node: self._holdings.confirm(node, found.get(node)),
                ripe,
            )

    # Free nodes that belong elsewhere

    def _push(self, ring: Ring) -> None:
        free = (n for n in self._misplaced(ring) if self._is_free(n))
        some = itertools.islice(free, self._pace.push_budget)
        moves = {node: self._elsewhere[node] for node in some}
        given = self._each(lambda node: self._give(node, moves[node]), moves)
        self._report_pushes([n for n in moves if given.get(n)], moves)

    def _misplaced(self, ring: Ring) -> Iterable[NodeId]:
        """Return the held nodes that the ring gives to other hosts.

        Looked up anew when the ring or the held nodes have changed: a round
        about nothing must cost nothing with thousands of nodes.
        """
        held = frozenset(self._holdings.rows())
        if (ring, held) != self._sorted_for:
            self._sorted_for = (ring, held)
            here = (None, self._holdings.host)
            targets = ((node, ring.target(node)) for node in sorted(held))
            self._elsewhere = {n: t for n, t in targets if t not in here}
        return self._elsewhere

    def _is_free(self, node: NodeId) -> bool:
        return (
            node not in self._holdings.unconfirmed()
            and self._holdings.is_free(node)
        )

    def _give(self, node: NodeId, target: Host) -> bool:
        """Push one free node; True if it changed hands."""
        record = self._services.record(target)
        if record is None:
            return False
        with self._holdings.leaving(node) as row:
            if row is None or not self._is_ours_now(node, row):
                return False
            if self._rows.instances_on(node, self._holdings.host):
                return False
            return self._rows.give(row, target, record.id)

    def _is_ours_now(self, node: NodeId, row: Any) -> bool:
        """Read the row again; a late write may have given it to another."""
        current = self._rows.named(node)
        if current is None or current.host != self._holdings.host:
            row.host = current and current.host  # So it is dropped.
        return bool(row.host == self._holdings.host)

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

    def _each(
        self, act: Callable[[NodeId], Any], nodes: Iterable[NodeId]
    ) -> dict[NodeId, Any]:
        """Do ``act`` for all nodes in parallel; one's error harms only it."""
        running = {self._writers.submit(act, node): node for node in nodes}
        done = {}
        for future in futures.as_completed(running):
            node = running[future]
            error = future.exception()
            if error is None:
                done[node] = future.result()
                continue
            LOG.warning(
                'Could not settle who holds node %(node)s and will try '
                'again: %(error)s',
                {'node': node, 'error': error},
            )
        return done

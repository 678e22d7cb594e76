# SPDX-License-Identifier: Apache-2.0
"""Queue of the nodes whose providers must be written, with the due times.

A pure data structure; ``reconciler`` locks it and carries out the writes. It
has one entry for each node. The newest wanted provider replaces an older one,
and a node with a write in progress is not taken again.

The report of a node that a build has claimed can wait, because the build's
allocation already keeps other builds off the node. A burst of a hundred builds
would otherwise delay the nodes that have become free, and those that must not
be offered any more. Such a report is deferred by some seconds even if the
queue is empty. A build that fails within that time needs no report.
"""

import dataclasses
import heapq
import itertools

from resource_tracker.claims import Claim
from resource_tracker.node import NodeId
from resource_tracker.provider import WantedProvider
from resource_tracker.provider_state import ProviderState


@dataclasses.dataclass(frozen=True, slots=True)
class Settled:
    """The provider in Placement is as wanted.

    :param recheck_after_s: set if a class that is not wanted is still in use
    """

    recheck_after_s: float | None = None


@dataclasses.dataclass(frozen=True, slots=True)
class Failed:
    """The write failed.

    :param retry_after_s: None: Placement refused the write, so it is tried
        again only when the node changes
    """

    retry_after_s: float | None = None


@dataclasses.dataclass(frozen=True, slots=True)
class Interrupted:
    """The write was not allowed: the gate shut, or the node was dropped."""


@dataclasses.dataclass(frozen=True, slots=True)
class ReadAt:
    """The provider must be read first, and no change makes that urgent.

    :param at_s: the time of the read, which the read rate determines
    """

    at_s: float


Outcome = Settled | Failed | Interrupted | ReadAt


@dataclasses.dataclass(slots=True, eq=False)
class Entry:
    """The queue's entry of one node. All times are seconds of the clock.

    :param written: the provider that was written completely; None during a
        write and after a failure
    :param due_s: when to write; None: there is nothing to do
    :param failures_count: consecutive failures
    :param kept: unwanted classes that stay because something is allocated
    :param may_read: the provider may be read before the next write, because
        the node has changed or the read rate allows it
    :param can_wait: a build has claimed the node, so other nodes go first
    :param dirty_since_s: when the oldest change that is not written was due;
        None: all is written
    """

    node: NodeId
    wanted: WantedProvider
    written: WantedProvider | None = None
    due_s: float | None = None
    failures_count: int = 0
    kept: frozenset[str] = frozenset()
    state: ProviderState = dataclasses.field(default_factory=ProviderState)
    may_read: bool = False
    can_wait: bool = False
    dirty_since_s: float | None = None


_Queue = list[tuple[float, int, Entry]]


@dataclasses.dataclass(frozen=True, slots=True)
class WorkItem:
    """A node to be written now.

    :param wanted: the provider to write, also if the entry changes meanwhile
    """

    entry: Entry
    wanted: WantedProvider


class WorkQueue:
    """The entries of all nodes; the caller must hold a lock.

    :param deferred_max: number of deferred nodes that are taken at the same
        time
    :param deferral_s: seconds by which a node that can wait is deferred
    """

    def __init__(self, deferred_max: int = 1, deferral_s: float = 0.0) -> None:
        self._entries: dict[NodeId, Entry] = {}
        self._busy: set[NodeId] = set()
        self._order = itertools.count()
        self._due: _Queue = []
        self._deferred: _Queue = []
        self._deferred_max = deferred_max
        self._deferral_s = deferral_s
        self._deferred_taken: set[NodeId] = set()

    def entry(self, node: NodeId) -> Entry | None:
        """Return the entry of a node, or None."""
        return self._entries.get(node)

    def put(
        self,
        wanted: WantedProvider,
        now_s: float,
        *,
        claim: Claim | None = None,
        occupied: bool = False,
    ) -> bool:
        """Set the wanted provider of a node; return whether to wake a thread.

        :param claim: the claim of a build on the node. Its allocation has
            changed the provider; if the new generation is not known, the
            provider is read first, because a conflict would cost more requests
        :param occupied: Ironic's record of the node shows a server
        """
        entry = self._entries.get(wanted.uuid)
        could_wait = entry is not None and entry.can_wait
        can_wait = claim is not None or (occupied and could_wait)
        if entry is None:
            entry = self._entries[wanted.uuid] = Entry(wanted.uuid, wanted)
        elif wanted == entry.wanted and self._is_handled(entry):
            return not can_wait and self._end_deferral(entry, now_s)
        elif _differs_in_aggregates_only(wanted, entry.wanted):
            if entry.due_s is not None:
                # Perhaps it waits for its turn to be read.
                entry.wanted = wanted
                return False
        else:
            # The read rate does not delay a read for a changed node.
            entry.may_read = True
            if claim and entry.node not in self._busy:
                entry.state.apply_allocation(claim.generation)
        entry.wanted, entry.can_wait = wanted, can_wait
        self._schedule_change(entry, now_s + self._deferral_s * can_wait)
        return True

    def _end_deferral(self, entry: Entry, now_s: float) -> bool:
        """Write a deferred node at once; False if it is not deferred."""
        if entry.due_s is None or not entry.can_wait:
            return False
        entry.can_wait = False
        self._schedule_change(entry, now_s)
        return True

    def _schedule_change(self, entry: Entry, due_s: float) -> None:
        """Schedule a change, or keep the earlier time of an unwritten one."""
        since_s = entry.dirty_since_s
        entry.dirty_since_s = due_s if since_s is None else min(since_s, due_s)
        self._schedule(entry, entry.dirty_since_s)

    def mark_stale(self, node: NodeId, at_s: float) -> None:
        """Schedule a read of a provider that another client has written.

        Ignored while the node is being written, because the changed generation
        may be the result of that write.
        """
        if node in self._busy or node not in self._entries:
            return
        entry = self._entries[node]
        entry.state.is_stale, entry.written = True, None
        if entry.due_s is None:
            entry.may_read = True
            self._schedule(entry, at_s)

    def schedule_rewrite(self, node: NodeId, at_s: float) -> None:
        """Write a node again, because Placement supports more of its traits.

        A write in progress does not replace the new one, because it may have
        begun before Placement supported the traits.
        """
        entry = self._entries.get(node)
        if entry is not None and entry.due_s is None:
            entry.written = None
            self._schedule(entry, at_s)

    def list_nodes_wanting(self, traits: frozenset[str]) -> list[NodeId]:
        """Return the nodes whose wanted providers have any of these traits."""
        return [
            node
            for node, entry in self._entries.items()
            if traits & entry.wanted.traits
        ]

    def idle_entries(self) -> dict[NodeId, Entry]:
        """Return the entries of the nodes that are not being written."""
        return {
            node: entry
            for node, entry in self._entries.items()
            if node not in self._busy
        }

    def take(self, now_s: float) -> WorkItem | None:
        """Return the node that has been due longest, and mark it busy.

        Nodes that can wait come after all others. The node is busy until
        ``finish``.
        """
        for queue in self._open_queues():
            while queue and queue[0][0] <= now_s:
                due_s, _, entry = heapq.heappop(queue)
                if entry.due_s == due_s and self._is_ready(entry):
                    return self._taken(entry)
        return None

    def _open_queues(self) -> tuple[_Queue, ...]:
        if len(self._deferred_taken) < self._deferred_max:
            return self._due, self._deferred
        return (self._due,)

    def _taken(self, entry: Entry) -> WorkItem:
        entry.due_s = None
        # A failed write may leave a mixture of the old and the new provider.
        entry.written = None
        self._busy.add(entry.node)
        if entry.can_wait:
            self._deferred_taken.add(entry.node)
        return WorkItem(entry, entry.wanted)

    def finish(self, item: WorkItem, outcome: Outcome, now_s: float) -> None:
        """Record the outcome of a write; the node can be taken again.

        If the node was forgotten meanwhile, the outcome has no effect.
        """
        entry = item.entry
        self._apply(item, outcome, now_s)
        if entry.wanted != item.wanted:
            # The wanted provider changed during the write. It is written at
            # once, even if the write failed and has a later retry time.
            entry.dirty_since_s = entry.dirty_since_s or now_s
            self._schedule(entry, now_s)
        self.unlock_node(entry.node)

    def is_current(self, entry: Entry) -> bool:
        """Return whether an entry is still in the queue."""
        return self._entries.get(entry.node) is entry

    def forget(self, node: NodeId) -> Entry | None:
        """Remove the entry of a node and return it."""
        return self._entries.pop(node, None)

    def restore(self, entry: Entry) -> None:
        """Put back the entry of a node that is busy, unless it has another.

        A request to delete its provider may have had no answer, and the disk
        cache may have lost what it had.
        """
        entry.state.is_saved = False
        self._entries.setdefault(entry.node, entry)

    def lock_node(self, node: NodeId) -> bool:
        """Mark a node busy, so that it is not taken; False if it is busy."""
        if node in self._busy:
            return False
        self._busy.add(node)
        return True

    def unlock_node(self, node: NodeId) -> None:
        """Mark a node as not busy."""
        self._busy.discard(node)
        self._deferred_taken.discard(node)
        entry = self._entries.get(node)
        if entry is not None and entry.due_s is not None:
            # ``take`` drops the heap's item of a node that is busy, so the
            # node is scheduled again.
            self._schedule(entry, entry.due_s)

    def retry_now(self, node: NodeId, now_s: float) -> None:
        """Write a node at once that is waiting for its next try."""
        entry = self._entries.get(node)
        if entry is not None and entry.due_s is not None:
            self._schedule(entry, now_s)

    def backlog(self) -> tuple[int, float | None]:
        """Return the number of unwritten changes and the oldest's due time."""
        since_s = [
            entry.dirty_since_s
            for entry in self._entries.values()
            if entry.dirty_since_s is not None
        ]
        return len(since_s), min(since_s, default=None)

    def dirty_since_s(self) -> dict[NodeId, float]:
        """Return the nodes with an unwritten change, and when it was due."""
        return {
            node: entry.dirty_since_s
            for node, entry in self._entries.items()
            if entry.dirty_since_s is not None
        }

    def next_due_s(self) -> float | None:
        """Return the earliest due time of the nodes that may be taken now.

        None: there is no such node.
        """
        return min((q[0][0] for q in self._open_queues() if q), default=None)

    def is_idle(self) -> bool:
        """Return whether no change waits and no write is in progress."""
        return not self._busy and not any(
            entry.due_s is not None and entry.written != entry.wanted
            for entry in self._entries.values()
        )

    def _is_handled(self, entry: Entry) -> bool:
        """Return whether the node is written, being written, or scheduled."""
        return (
            entry.written == entry.wanted
            or entry.due_s is not None
            or entry.node in self._busy
        )

    def _is_ready(self, entry: Entry) -> bool:
        return self.is_current(entry) and entry.node not in self._busy

    def _schedule(self, entry: Entry, due_s: float) -> None:
        entry.due_s = due_s
        queue = self._deferred if entry.can_wait else self._due
        heapq.heappush(queue, (due_s, next(self._order), entry))

    def _apply(self, item: WorkItem, outcome: Outcome, now_s: float) -> None:
        entry = item.entry
        match outcome:
            case Settled(recheck_after_s=delay_s):
                self._mark_written(item)
            case Failed(retry_after_s=delay_s):
                entry.failures_count += 1
            case Interrupted():
                delay_s = 0.0
            case ReadAt(at_s=at_s):
                # The node has not changed, so no change of it can be late.
                entry.may_read, entry.dirty_since_s = True, None
                delay_s = at_s - now_s
        if delay_s is not None:
            self._schedule(entry, now_s + delay_s)

    def _mark_written(self, item: WorkItem) -> None:
        item.entry.written, item.entry.failures_count = item.wanted, 0
        item.entry.can_wait, item.entry.dirty_since_s = False, None
        item.entry.may_read = False


def _differs_in_aggregates_only(
    one: WantedProvider, other: WantedProvider
) -> bool:
    """Return whether not the node differs but its host's aggregates."""
    if one == other:
        return False
    return one == dataclasses.replace(other, aggregates=one.aggregates)

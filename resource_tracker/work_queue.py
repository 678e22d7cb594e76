# SPDX-License-Identifier: Apache-2.0
"""Which nodes are to be said to Placement, in which order, and when.

A plain value that decides; ``reconciler`` locks it, waits for it and carries
it out. It holds one entry a node: the newest that is wanted counts, and a
node that is being said is not taken a second time.

A node that a build has can wait: Nova's allocation keeps it from all others
already. A hundred builds at once would else stand before the node that has
just come free, and before the one that must not be offered any more. It also
waits a little if there is nothing else to do: the build itself is the better
for it, and one that fails at once never has to be said.
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
    """Placement says what is wanted."""


@dataclasses.dataclass(frozen=True, slots=True)
class RecheckAfter:
    """All that can be said is said; something allocated keeps the rest."""

    seconds: float


@dataclasses.dataclass(frozen=True, slots=True)
class RetryAfter:
    """It did not work and may work later."""

    seconds: float


@dataclasses.dataclass(frozen=True, slots=True)
class Rejected:
    """Placement will not take it; it is tried when it is wanted again."""


@dataclasses.dataclass(frozen=True, slots=True)
class Interrupted:
    """The right to write was missing; nobody's fault."""


@dataclasses.dataclass(frozen=True, slots=True)
class ReadAt:
    """Its provider has to be read first; nothing has changed, so it waits.

    :param at_s: its place in the order of those that are read
    """

    at_s: float


Outcome = Settled | RecheckAfter | RetryAfter | Rejected | Interrupted | ReadAt


@dataclasses.dataclass(slots=True, eq=False)
class Entry:
    """One node.

    :param said: what Placement acknowledged as a whole; None while trying
    :param due_s: when to say it; None: nothing to do before a change
    :param failures_count: in a row
    :param kept: classes that could not go, because something is allocated
    :param may_read: its turn has come, or it is urgent
    :param can_wait: a build has it, and all others go first
    :param dirty_since_s: when that was to be said which is not said yet
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
    """One node to be said now, as it is wanted now."""

    entry: Entry
    wanted: WantedProvider


class WorkQueue:
    """The entries of all nodes; not for two threads at once.

    :param patient_max: of the nodes that can wait, so many are said at once
    :param patience_s: how long they do
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
        """Return what is kept of a node."""
        return self._entries.get(node)

    def put(
        self,
        wanted: WantedProvider,
        now_s: float,
        *,
        claim: Claim | None = None,
        occupied: bool = False,
    ) -> bool:
        """Note what is wanted of a node; say if there is something to do.

        :param claim: a build has the node, so its allocation was written to
            the provider since; to read that first, where it is not told, is
            cheaper than a write that conflicts
        :param occupied: a server has it
        """
        entry = self._entries.get(wanted.uuid)
        could_wait = entry is not None and entry.can_wait
        can_wait = claim is not None or (occupied and could_wait)
        if entry is None:
            entry = self._entries[wanted.uuid] = Entry(wanted.uuid, wanted)
        elif wanted == entry.wanted and self._is_handled(entry):
            return not can_wait and self._end_deferral(entry, now_s)
        else:
            entry.may_read = True  # It changed: nothing is more urgent.
            if claim and entry.node not in self._busy:
                entry.state.apply_allocation(claim.generation)
        entry.wanted, entry.can_wait = wanted, can_wait
        self._schedule_change(entry, now_s + self._deferral_s * can_wait)
        return True

    def _end_deferral(self, entry: Entry, now_s: float) -> bool:
        """Let a node whose build is gone wait no longer; say if it did."""
        if entry.due_s is None or not entry.can_wait:
            return False
        entry.can_wait = False
        self._schedule_change(entry, now_s)
        return True

    def _schedule_change(self, entry: Entry, due_s: float) -> None:
        """Have a wish said by then, or by when the one before it was due."""
        since_s = entry.dirty_since_s
        entry.dirty_since_s = due_s if since_s is None else min(since_s, due_s)
        self._schedule(entry, entry.dirty_since_s)

    def mark_stale(self, node: NodeId, at_s: float) -> None:
        """Somebody else wrote a node's provider: look at it then.

        Not if we are at work on the node: it may have been us.
        """
        if node in self._busy or node not in self._entries:
            return
        entry = self._entries[node]
        entry.state.is_stale, entry.written = True, None
        if entry.due_s is None:
            entry.may_read = True
            self._schedule(entry, at_s)

    def schedule_rewrite(self, node: NodeId, at_s: float) -> None:
        """More can be said of a node by now: say it then, if not before.

        Who is just saying it may have begun too early to know.
        """
        entry = self._entries.get(node)
        if entry is not None and entry.due_s is None:
            entry.written = None
            self._schedule(entry, at_s)

    def list_nodes_wanting(self, traits: frozenset[str]) -> list[NodeId]:
        """Return the nodes that are to have any of these traits."""
        return [
            node
            for node, entry in self._entries.items()
            if traits & entry.wanted.traits
        ]

    def idle_entries(self) -> dict[NodeId, Entry]:
        """Return the entries that nobody is working on."""
        return {
            node: entry
            for node, entry in self._entries.items()
            if node not in self._busy
        }

    def take(self, now_s: float) -> WorkItem | None:
        """Return the node that is due longest; it is busy until ``done``.

        Those that can wait come after all others.
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
        # A pass that fails leaves neither the old nor the new.
        entry.written = None
        self._busy.add(entry.node)
        if entry.can_wait:
            self._deferred_taken.add(entry.node)
        return WorkItem(entry, entry.wanted)

    def finish(self, item: WorkItem, outcome: Outcome, now_s: float) -> None:
        """Note how it went, and let the node be taken again.

        An entry that was forgotten meanwhile is noted and never looked at.
        """
        entry = item.entry
        self._apply(item, outcome, now_s)
        if entry.wanted != item.wanted:
            # No wait for what is newer.
            entry.dirty_since_s = entry.dirty_since_s or now_s
            self._schedule(entry, now_s)
        self.unlock_node(entry.node)

    def is_current(self, entry: Entry) -> bool:
        """Say whether an entry was not forgotten."""
        return self._entries.get(entry.node) is entry

    def forget(self, node: NodeId) -> Entry | None:
        """Strike a node out; return what was known of it."""
        return self._entries.pop(node, None)

    def lock_node(self, node: NodeId) -> bool:
        """Keep a node from being taken; False if it is busy."""
        if node in self._busy:
            return False
        self._busy.add(node)
        return True

    def unlock_node(self, node: NodeId) -> None:
        """Let a node be taken again."""
        self._busy.discard(node)
        self._deferred_taken.discard(node)
        entry = self._entries.get(node)
        if entry is not None and entry.due_s is not None:
            # Its place in the order may have come and gone while it was busy.
            self._schedule(entry, entry.due_s)

    def retry_now(self, node: NodeId, now_s: float) -> None:
        """Say a node now that waits for another try."""
        entry = self._entries.get(node)
        if entry is not None and entry.due_s is not None:
            self._schedule(entry, now_s)

    def backlog(self) -> tuple[int, float | None]:
        """Return how many wishes are not said yet, and since when."""
        since_s = [
            entry.dirty_since_s
            for entry in self._entries.values()
            if entry.dirty_since_s is not None
        ]
        return len(since_s), min(since_s, default=None)

    def next_due_s(self) -> float | None:
        """Return when to call ``take`` at the latest; None: no need."""
        return min((q[0][0] for q in self._open_queues() if q), default=None)

    def is_idle(self) -> bool:
        """Say whether all that can be said is said."""
        return not self._busy and not any(
            entry.due_s is not None and entry.written != entry.wanted
            for entry in self._entries.values()
        )

    def _is_handled(self, entry: Entry) -> bool:
        """Say whether what is wanted is said, under way, or to be tried."""
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
            case Settled():
                self._mark_written(item)
            case RecheckAfter(seconds=delay_s):
                self._mark_written(item)
                self._schedule(entry, now_s + delay_s)
            case RetryAfter(seconds=delay_s):
                entry.failures_count += 1
                self._schedule(entry, now_s + delay_s)
            case Rejected():
                entry.failures_count += 1
            case Interrupted():
                self._schedule(entry, now_s)
            case ReadAt(at_s=at_s):
                # Not a change, so it is not late either.
                entry.may_read, entry.dirty_since_s = True, None
                self._schedule(entry, at_s)

    def _mark_written(self, item: WorkItem) -> None:
        item.entry.written, item.entry.failures_count = item.wanted, 0
        item.entry.can_wait, item.entry.dirty_since_s = False, None

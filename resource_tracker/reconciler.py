# SPDX-License-Identifier: Apache-2.0
"""Reports changed nodes to Placement; audits for changes by others; read rate.

Each worker has one. ``submit`` queues the wanted provider of a node and
returns at once; a fixed number of threads write. The newest submit of a node
replaces older ones, and two writes of one node never overlap. The acknowledged
state of each provider is kept, so an unchanged node costs no request. A
provider of which nothing is known is read first: at once if its node changes,
else at a limited rate. The same holds for a provider that an audit finds
changed by another client. A failed write is retried with growing delays and
logged once; while Placement does not answer, all nodes share one delay. No
lock is held during a request, and no write is sent while the lease gate is
shut.
"""

import threading
from collections.abc import Callable, Iterable
from typing import Protocol

import attrs
from oslo_log import log as logging

from resource_tracker import errors, work_queue
from resource_tracker.claims import Claim
from resource_tracker.delta import KnownProvider
from resource_tracker.disk_cache import DiskCache, NoDiskCache
from resource_tracker.meter import Meter, NoMeter
from resource_tracker.node import NodeFacts, NodeId
from resource_tracker.outage import Outage
from resource_tracker.placement import Clock, ListedProvider, Placement
from resource_tracker.provider import (
    Situation,
    WantedProvider,
    has_server,
    wanted_provider,
    withdrawn_provider,
)
from resource_tracker.provider_sync import NotRead, ProviderSync
from resource_tracker.report_log import ReportLog

LOG = logging.getLogger(__name__)

_GATE_POLL_S = 0.5
# Longest wait in seconds. It is short, because a test that moves its clock
# does not wake the waiting thread.
_CLOCK_POLL_S = 1.0
# Seconds. Longer than the time from a build's claim to its first request to
# Ironic on an idle machine, and shorter than any deploy.
_DEFERRAL_S = 2.0
# Seconds after which a resource class that stays because it is in use is
# checked again.
_KEPT_RECHECK_S = 60.0


class Gate(Protocol):
    """The lease gate, checked before each write."""

    def is_open(self) -> bool:
        """Return whether writing is allowed now, without blocking."""

    def wait(self) -> None:
        """Block until writing is allowed."""


class _NotAllowed(Exception):
    """The gate is shut, the node was dropped, or the reconciler stops."""


@attrs.define(eq=False, repr=False, slots=False)
class Reconciler:
    """Reports the nodes of one worker to Placement; any thread may call.

    ``audit_providers``, ``delete_provider``, ``drain`` and ``stop`` block; all
    other methods return at once.

    :param parallelism: number of threads, and so of nodes that are reported at
        the same time; the threads start with the first submit
    :param retry_first_s: seconds from the first failure to the next try;
        doubled after each further failure
    :param retry_max_s: longest time between two tries, in seconds
    :param read_rate: the number of providers that are read in a second
        although their nodes have not changed
    :param deferral_s: seconds by which the report of a node that a build has
        claimed is deferred
    :param disk_cache: states that an earlier process saved
    :param meter: counts requests and reports
    :param outage: the pauses while Placement does not answer
    """

    _placement: Placement
    _gate: Gate
    _clock: Clock
    _parallelism: int
    _retry_first_s: float = 1.0
    _retry_max_s: float = 60.0
    _read_rate: float = 20.0
    _deferral_s: float = _DEFERRAL_S
    _disk_cache: DiskCache = attrs.field(factory=NoDiskCache)
    _meter: Meter = attrs.field(factory=NoMeter)
    _outage: Outage = attrs.field(factory=Outage)

    def __attrs_post_init__(self) -> None:
        self._next_read_s = 0.0
        self._provider_sync = ProviderSync(
            self._placement, self._clock, self._disk_cache
        )
        self._report_log = ReportLog()
        lock = threading.Lock()
        self._work_to_do = threading.Condition(lock)
        self._work_done = threading.Condition(lock)
        self._lock = lock
        # At most half of the threads write deferred nodes, so that the others
        # are free for nodes that cannot wait.
        self._nodes = work_queue.WorkQueue(
            max(1, self._parallelism // 2), self._deferral_s
        )
        self._stopped = False
        self._threads: list[threading.Thread] = []

    # For callers

    def submit(self, facts: NodeFacts, situation: Situation) -> None:
        """Report a node; replaces an older report that is not written yet.

        :param facts: the node as Ironic returned it
        :param situation: the other facts that the provider depends on
        """
        occupied = has_server(facts)
        self._put(wanted_provider(facts, situation), situation.claim, occupied)
        self._report_log.log_missing_class(facts)
        self._report_log.log_overlong_capabilities(facts, situation)

    def withdraw_node(self, node: NodeId, row_id: str) -> None:
        """Reserve the provider of a node that Ironic does not have any more.

        The rest of the provider stays unchanged.

        :param row_id: see ``Situation``
        """
        self._put(withdrawn_provider(node, row_id))

    def _put(
        self,
        provider: WantedProvider,
        claim: Claim | None = None,
        occupied: bool = False,
    ) -> None:
        with self._lock:
            if self._stopped:
                return
            now_s = self._clock.now_s()
            if self._nodes.put(
                provider, now_s, claim=claim, occupied=occupied
            ):
                self._work_to_do.notify()
            self._start_threads()

    def forget_node(self, node: NodeId) -> None:
        """Write nothing more for a node that the host does not hold any more.

        A request under way is not cancelled. It cannot overwrite the write of
        the next holder, because it carries the generation from before that
        write.
        """
        with self._lock:
            self._nodes.forget(node)
        self._report_log.forget_node(node)
        self._disk_cache.discard(node)

    def audit_providers(self) -> int:
        """Find providers that other clients have written or deleted.

        Sends one list request. Schedules a read of each changed provider, and
        a write of each node with a trait that Placement supports only since
        its upgrade.

        :returns: number of changed providers
        :raises errors.PlacementError: Placement did not answer
        """
        before = self._idle_providers()
        listed = self._provider_sync.provider_index.reload()
        drifted = [
            node
            for node, known in self._idle_providers().items()
            # Providers that this worker wrote while the list was read are
            # skipped, because the list may show them before or after the
            # write.
            if known is before.get(node)
            and is_drifted(known, listed.get(known.uuid))
        ]
        self._schedule_reads(drifted, self._nodes.mark_stale)
        self._meter.count_drift(len(drifted))
        self._rewrite_for_new_traits()
        return len(drifted)

    def _idle_providers(self) -> dict[NodeId, KnownProvider]:
        """Return the known providers of nodes without a write in progress."""
        with self._lock:
            return {
                node: entry.state.known
                for node, entry in self._nodes.idle_entries().items()
                if entry.state.known is not None
            }

    def _rewrite_for_new_traits(self) -> None:
        """Schedule writes of nodes with a trait that is only now supported."""
        if new_traits := self._placement.read_new_traits():
            with self._lock:
                nodes = self._nodes.list_nodes_wanting(new_traits)
            self._schedule_reads(nodes, self._nodes.schedule_rewrite)

    def delete_provider(self, node: NodeId) -> bool:
        """Delete the provider of a node that Ironic has deleted.

        Writes nothing more for the node, unless the provider stays. Blocks
        until a write of the node in progress has ended, until the gate is
        open, and for Placement.

        :returns: False if something is allocated, so that the provider stays
        :raises errors.PlacementError: Placement did not delete it; at once, if
            it does not answer at present
        """
        with self._lock:
            if self._outage.pause_s(self._clock.now_s()):
                raise errors.PlacementUnavailable('Placement does not answer')
            entry = self._nodes.forget(node)
            self._work_done.wait_for(lambda: self._nodes.lock_node(node))
        began_s, is_deleted = self._clock.now_s(), False
        try:
            is_deleted = self._delete_provider(node, entry)
        except errors.PlacementError as exc:
            self._note_failure(exc, began_s)
            raise
        finally:
            if is_deleted:
                self._report_log.forget_node(node)
                self._disk_cache.discard(node)
            with self._lock:
                if entry is not None and not is_deleted:
                    self._nodes.restore(entry)
                self._nodes.unlock_node(node)
                self._work_to_do.notify()
                self._work_done.notify_all()
        return is_deleted

    def backlog(self) -> tuple[int, float]:
        """Return the number of unwritten changes, and the age of the oldest.

        :returns: the count, and the seconds since the oldest change was due
        """
        with self._lock:
            count, since_s = self._nodes.backlog()
        now_s = self._clock.now_s()
        # A deferred change is due in the future; its age is 0.
        age_s = 0.0 if since_s is None else max(0.0, now_s - since_s)
        return count, age_s

    def dirty_nodes(self) -> dict[NodeId, float]:
        """Return the nodes with an unwritten change, and its age in seconds.

        See :meth:`backlog`.
        """
        with self._lock:
            since_s = self._nodes.dirty_since_s()
        now_s = self._clock.now_s()
        return {node: max(0.0, now_s - at_s) for node, at_s in since_s.items()}

    def drain(self, timeout_s: float) -> bool:
        """Block until all changes are written.

        A change that waits for a retry counts as unwritten, one that Placement
        refused does not.

        :returns: False if ``timeout_s`` seconds have passed before
        """
        with self._lock:
            return self._work_done.wait_for(self._nodes.is_idle, timeout_s)

    def stop(self, timeout_s: float = 5.0) -> bool:
        """Send no new request, and wait for the requests under way.

        :param timeout_s: longest wait, in seconds
        :returns: False if a request is still under way; its thread then ends
            after the answer and sends no other
        """
        with self._lock:
            self._stopped = True
            self._work_to_do.notify_all()
        deadline_s = self._clock.now_s() + timeout_s
        for thread in self._threads:
            thread.join(max(0.0, deadline_s - self._clock.now_s()))
        return not any(thread.is_alive() for thread in self._threads)

    # In the threads

    def _start_threads(self) -> None:
        """Start the missing threads.

        The constructor does not start them, because the process may fork
        between its construction and the first ``submit``.
        """
        while len(self._threads) < self._parallelism:
            name = f'placement-{len(self._threads)}'
            thread = threading.Thread(target=self._run, name=name, daemon=True)
            # If the thread cannot be started, the next submit tries again.
            thread.start()
            self._threads.append(thread)

    def _run(self) -> None:
        while (item := self._next_item()) is not None:
            outcome = self._sync(item)
            self._discard_if_dropped(item.entry)
            with self._lock:
                self._nodes.finish(item, outcome, self._clock.now_s())
                self._work_to_do.notify()
                self._work_done.notify_all()

    def _discard_if_dropped(self, entry: work_queue.Entry) -> None:
        """Discard what a write has left of a node that was dropped meanwhile.

        The node is still busy, so no other thread writes it. If it is dropped
        after this, whoever drops it discards all.
        """
        with self._lock:
            if self._nodes.is_current(entry):
                return
        self._report_log.forget_node(entry.node)
        self._disk_cache.discard(entry.node)

    def _next_item(self) -> work_queue.WorkItem | None:
        """Wait for a node that is due; None: the reconciler stops."""
        with self._lock:
            while not self._stopped:
                item: work_queue.WorkItem | None = None
                now_s = self._clock.now_s()
                pause_s = self._outage.pause_s(now_s)
                wait_s: float | None = min(pause_s, _CLOCK_POLL_S)
                if not self._gate.is_open():
                    wait_s = _GATE_POLL_S
                elif not pause_s:
                    item = self._nodes.take(now_s)
                    wait_s = self._wait_s(now_s)
                if item is not None:
                    self._outage.begin_try(now_s)
                    return item
                self._work_to_do.wait(wait_s)
        return None

    def _wait_s(self, now_s: float) -> float | None:
        due_s = self._nodes.next_due_s()
        if due_s is None:
            return None
        return min(max(due_s - now_s, 0.0), _CLOCK_POLL_S)

    def _sync(self, item: work_queue.WorkItem) -> work_queue.Outcome:
        entry, began_s = item.entry, self._clock.now_s()
        try:
            outcome = self._provider_sync.sync(
                item.wanted,
                entry.state,
                lambda: self._require_current(entry),
                may_read=entry.may_read,
            )
        except _NotAllowed:
            return work_queue.Interrupted()
        except Exception as exc:
            self._note_failure(exc, began_s)
            return self._report_failed(entry, exc)
        self._note_answer()
        if isinstance(outcome, NotRead):
            self._report_log.mark_answered(entry)
            return work_queue.ReadAt(self._reserve_read_time_s())
        self._report_succeeded(entry)
        if outcome.kept:
            self._report_log.log_kept_classes(entry, item.wanted, outcome.kept)
        entry.kept = outcome.kept
        return work_queue.Settled(_KEPT_RECHECK_S if outcome.kept else None)

    def _note_failure(self, exc: Exception, began_s: float) -> None:
        with self._lock:
            self._outage.note_failure(exc, began_s, self._clock.now_s())

    def _note_answer(self) -> None:
        """End an outage of Placement, if there is one; wake all threads."""
        with self._lock:
            if self._outage.note_answer():
                self._work_to_do.notify_all()

    def _reserve_read_time_s(self) -> float:
        """Return the next time at which ``read_rate`` allows a read.

        The caller has this time alone: the next call returns a later one.
        """
        with self._lock:
            turn_s = max(self._next_read_s, self._clock.now_s())
            self._next_read_s = turn_s + 1.0 / self._read_rate
        return turn_s

    def _schedule_reads(
        self,
        nodes: Iterable[NodeId],
        schedule: Callable[[NodeId, float], None],
    ) -> None:
        """Schedule nodes that have not changed, ``read_rate`` a second.

        :param schedule: called with each node and its time
        """
        for node in nodes:
            at_s = self._reserve_read_time_s()
            with self._lock:
                schedule(node, at_s)
                self._work_to_do.notify()

    def _require_current(self, entry: work_queue.Entry) -> None:
        """Raise ``_NotAllowed`` unless a write of the entry may be sent."""
        with self._lock:
            allowed = self._nodes.is_current(entry) and not self._stopped
        if not allowed or not self._gate.is_open():
            raise _NotAllowed

    def _report_succeeded(self, entry: work_queue.Entry) -> None:
        since_s = entry.dirty_since_s
        if since_s is not None:
            self._meter.count_report(self._clock.now_s() - since_s)
        waiting = self._report_log.log_success(entry)
        if waiting:
            with self._lock:
                for node in waiting:
                    self._nodes.retry_now(node, self._clock.now_s())
                self._work_to_do.notify_all()

    def _report_failed(
        self, entry: work_queue.Entry, exc: Exception
    ) -> work_queue.Outcome:
        self._report_log.log_failure(entry, exc)
        doubled_s = self._retry_first_s * 2.0 ** min(entry.failures_count, 30)
        delay_s = min(self._retry_max_s, doubled_s)
        match exc:
            case errors.Retriable():
                return work_queue.Failed(retry_after_s=delay_s)
            case errors.TrackerError():
                return work_queue.Failed()
            case _:
                return work_queue.Failed(retry_after_s=self._retry_max_s)

    def _delete_provider(
        self, node: NodeId, entry: work_queue.Entry | None
    ) -> bool:
        known = entry.state.known if entry else None
        uuid = (
            known.uuid if known else self._placement.read_provider_uuid(node)
        )
        if uuid is None:
            return True
        self._gate.wait()
        try:
            self._placement.delete_provider(uuid)
        except errors.ProviderInUse as exc:
            self._report_log.log_kept_provider(node, exc)
            return False
        return True


def is_drifted(known: KnownProvider, listed: ListedProvider | None) -> bool:
    """Return whether another client wrote or deleted a provider."""
    return listed is None or listed.generation != known.generation

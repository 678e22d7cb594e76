# SPDX-License-Identifier: Apache-2.0
"""Make Placement say what is wanted of each node, by difference alone.

``submit`` says what is known of a node and returns at once; a bounded set of
threads does the rest. Of several submits of one node the newest counts, and
writes of one node never overlap. What Placement acknowledged is remembered,
so a node about which nothing changed costs no request. A provider that we
know nothing of is read, at a bounded rate unless its node changes; and one
that an audit shows to be written by others likewise. What fails and may
pass is tried again, ever less often, and said once. No lock is held across a
request, and no request that writes leaves while the gate is shut.
"""

import threading
from collections.abc import Callable, Iterable
from typing import Protocol

from oslo_log import log as logging

from resource_tracker import errors, work_queue
from resource_tracker.claims import Claim
from resource_tracker.delta import KnownProvider
from resource_tracker.disk_cache import DiskCache, NoDiskCache
from resource_tracker.meter import Meter, NoMeter
from resource_tracker.node import NodeFacts, NodeId
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
# Whoever moves the clock need not know of us: that late we notice.
_CLOCK_POLL_S = 1.0
# Longer than a build takes to come to its driver, on a quiet machine, and
# shorter than any deploy.
_DEFERRAL_S = 2.0
# How often a class that is in use is looked at again.
_KEPT_RECHECK_S = 60.0


class Gate(Protocol):
    """What stands before each request that changes something."""

    def is_open(self) -> bool:
        """Say whether writing is allowed now; returns at once."""

    def wait(self) -> None:
        """Block until it is."""


class _NotAllowed(Exception):
    """The gate is shut, the node is another's, or we are stopping."""


class Reconciler:
    """Report nodes to Placement; any thread may call.

    All but ``audit``, ``remove``, ``drain`` and ``stop`` return at once.

    :param parallelism: nodes reported at once, each by a thread of its own;
        they start with the first submit
    :param retry_first_s: wait after a first failure; doubles each time
    :param retry_max_s: longest wait between two tries
    :param read_rate: providers read in a second when nothing has changed
    :param patience_s: how long the node of a build waits for its turn
    :param ledger: what an earlier life was told by Placement
    :param meter: what is counted
    """

    def __init__(
        self,
        placement: Placement,
        gate: Gate,
        clock: Clock,
        *,
        parallelism: int,
        retry_first_s: float = 1.0,
        retry_max_s: float = 60.0,
        read_rate: float = 20.0,
        deferral_s: float = _DEFERRAL_S,
        disk_cache: DiskCache | None = None,
        meter: Meter | None = None,
    ) -> None:
        self._placement = placement
        self._gate = gate
        self._clock = clock
        self._disk_cache = disk_cache or NoDiskCache()
        self._meter = meter or NoMeter()
        self._read_interval_s = 1.0 / read_rate
        self._next_read_s = 0.0
        self._provider_sync = ProviderSync(placement, clock, self._disk_cache)
        self._report_log = ReportLog()
        self._retry_first_s = retry_first_s
        self._retry_max_s = retry_max_s
        lock = threading.Lock()
        self._work_to_do = threading.Condition(lock)
        self._work_done = threading.Condition(lock)
        self._lock = lock
        # The others are for nodes that cannot wait.
        self._nodes = work_queue.WorkQueue(
            max(1, parallelism // 2), deferral_s
        )
        self._stopped = False
        self._parallelism = parallelism
        self._threads: list[threading.Thread] = []

    # What callers say

    def submit(self, facts: NodeFacts, situation: Situation) -> None:
        """Say what is known of a node; the newest call for a node wins."""
        occupied = has_server(facts)
        self._put(wanted_provider(facts, situation), situation.claim, occupied)
        self._report_log.log_missing_class(facts)

    def withdraw_node(self, node: NodeId) -> None:
        """Let nobody be sent to a node that Ironic denies; else as it is."""
        self._put(withdrawn_provider(node))

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
        """Write nothing more for a node: it is another's.

        A request that has left already is not called back; its generation
        is its fence.
        """
        with self._lock:
            self._nodes.forget(node)
        self._report_log.forget_node(node)
        self._disk_cache.discard(node)

    def audit_providers(self) -> int:
        """Find the providers that others have written, or deleted.

        One request for all; those that are not as we know them are read
        again soon. Nodes that lack a trait which Placement did not know are
        written again if it does by now. Blocks for Placement.

        :returns: how many there are
        :raises errors.PlacementError: Placement did not answer
        """
        before = self._idle_providers()
        listed = self._provider_sync.provider_index.reload()
        drifted = [
            node
            for node, held in self._idle_providers().items()
            # What we wrote meanwhile the list may show or not.
            if held is before.get(node)
            and is_drifted(held, listed.get(held.uuid))
        ]
        self._schedule_reads(drifted, self._nodes.mark_stale)
        self._meter.count_drift(len(drifted))
        self._rewrite_for_new_traits()
        return len(drifted)

    def _idle_providers(self) -> dict[NodeId, KnownProvider]:
        """Return what is known of each node that nobody is working on."""
        with self._lock:
            return {
                node: entry.state.known
                for node, entry in self._nodes.idle_entries().items()
                if entry.state.known is not None
            }

    def _rewrite_for_new_traits(self) -> None:
        """Have the nodes written that lack a trait Placement knows by now."""
        if new_traits := self._placement.read_new_traits():
            with self._lock:
                nodes = self._nodes.list_nodes_wanting(new_traits)
            self._schedule_reads(nodes, self._nodes.schedule_rewrite)

    def delete_provider(self, node: NodeId) -> bool:
        """Delete the provider of a node that Ironic has deleted.

        Nothing more is written for the node. Blocks for what is just being
        written for it, for the gate, and for Placement.

        :returns: False if something is allocated on it; it stays then
        :raises errors.PlacementError: Placement did not do it
        """
        with self._lock:
            entry = self._nodes.forget(node)
            self._work_done.wait_for(lambda: self._nodes.lock_node(node))
        self._report_log.forget_node(node)
        self._disk_cache.discard(node)
        try:
            return self._delete_provider(node, entry)
        finally:
            with self._lock:
                self._nodes.unlock_node(node)
                self._work_to_do.notify()
                self._work_done.notify_all()

    def acknowledged_provider(self, node: NodeId) -> KnownProvider | None:
        """Return what Placement last acknowledged of a node."""
        with self._lock:
            entry = self._nodes.entry(node)
        return entry.state.known if entry else None

    def backlog(self) -> tuple[int, float]:
        """Return how many changes are not said yet, and the oldest's age.

        :returns: a count, and seconds
        """
        with self._lock:
            count, since_s = self._nodes.backlog()
        now_s = self._clock.now_s()
        # What can wait is not late yet.
        age_s = 0.0 if since_s is None else max(0.0, now_s - since_s)
        return count, age_s

    def drain(self, timeout_s: float) -> bool:
        """Wait until nothing is left to report; False if time runs out.

        What waits for another try is left; what was refused is not.
        """
        with self._lock:
            return self._work_done.wait_for(self._nodes.is_idle, timeout_s)

    def stop(self, timeout_s: float = 5.0) -> bool:
        """Begin no request more, and wait for those that have left.

        :returns: False if one is still out after this time; its thread ends
            with it and writes no other
        """
        with self._lock:
            self._stopped = True
            self._work_to_do.notify_all()
        deadline_s = self._clock.now_s() + timeout_s
        for thread in self._threads:
            thread.join(max(0.0, deadline_s - self._clock.now_s()))
        return not any(thread.is_alive() for thread in self._threads)

    # What the threads do

    def _start_threads(self) -> None:
        """Start late: the process may fork between making and using us."""
        while len(self._threads) < self._parallelism:
            name = f'placement-{len(self._threads)}'
            thread = threading.Thread(target=self._run, name=name, daemon=True)
            thread.start()  # It may fail, and is tried again then.
            self._threads.append(thread)

    def _run(self) -> None:
        while (item := self._next_item()) is not None:
            outcome = self._sync(item)
            with self._lock:
                self._nodes.finish(item, outcome, self._clock.now_s())
                if not self._nodes.is_current(item.entry):
                    self._report_log.forget_node(item.entry.node)
                    self._disk_cache.discard(item.entry.node)
                self._work_to_do.notify()
                self._work_done.notify_all()

    def _next_item(self) -> work_queue.WorkItem | None:
        """Wait for a node that is due; None: the end."""
        with self._lock:
            while not self._stopped:
                item: work_queue.WorkItem | None = None
                wait_s: float | None = _GATE_POLL_S
                if self._gate.is_open():
                    now_s = self._clock.now_s()
                    item = self._nodes.take(now_s)
                    wait_s = self._wait_s(now_s)
                if item is not None:
                    return item
                self._work_to_do.wait(wait_s)
        return None

    def _wait_s(self, now_s: float) -> float | None:
        due_s = self._nodes.next_due_s()
        if due_s is None:
            return None
        return min(max(due_s - now_s, 0.0), _CLOCK_POLL_S)

    def _sync(self, item: work_queue.WorkItem) -> work_queue.Outcome:
        entry = item.entry
        provider_sync = self._provider_sync
        sync = (
            provider_sync.sync
            if entry.may_read
            else provider_sync.sync_if_read
        )
        try:
            outcome = sync(
                item.wanted, entry.state, lambda: self._require_current(entry)
            )
        except _NotAllowed:
            return work_queue.Interrupted()
        except Exception as exc:
            return self._report_failed(entry, exc)
        if isinstance(outcome, NotRead):
            self._report_log.mark_answered(entry)
            return work_queue.ReadAt(self._reserve_read_time_s())
        self._report_succeeded(entry)
        if outcome.kept:
            self._report_log.log_kept_classes(entry, item.wanted, outcome.kept)
        entry.kept = outcome.kept
        return (
            work_queue.RecheckAfter(_KEPT_RECHECK_S)
            if outcome.kept
            else work_queue.Settled()
        )

    def _reserve_read_time_s(self) -> float:
        """Return when the next provider is read that has not changed."""
        with self._lock:
            turn_s = max(self._next_read_s, self._clock.now_s())
            self._next_read_s = turn_s + self._read_interval_s
        return turn_s

    def _schedule_reads(
        self,
        nodes: Iterable[NodeId],
        schedule: Callable[[NodeId, float], None],
    ) -> None:
        """Have nodes looked at that have not changed, each when it may be."""
        for node in nodes:
            at_s = self._reserve_read_time_s()
            with self._lock:
                schedule(node, at_s)
                self._work_to_do.notify()

    def _require_current(self, entry: work_queue.Entry) -> None:
        """The fence before each write."""
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
                return work_queue.RetryAfter(delay_s)
            case errors.TrackerError():
                return work_queue.Rejected()
            case _:
                return work_queue.RetryAfter(self._retry_max_s)

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
    """Say whether somebody else wrote a provider, or deleted it.

    An older list than what we know shows a lower generation.
    """
    return listed is None or listed.generation != known.generation

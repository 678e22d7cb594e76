# SPDX-License-Identifier: Apache-2.0
"""Make Placement say what is wanted of each node, by difference alone.

``submit`` says what is known of a node and returns at once; a bounded set of
threads does the rest. Of several submits of one node the newest counts, and
writes of one node never overlap. What Placement acknowledged is remembered,
so a node about which nothing changed costs no request. What fails and may
pass is tried again, ever less often, and said once. No lock is held across a
request, and no request that writes leaves while the gate is shut.
"""

import threading
from typing import Protocol

from oslo_log import log as logging

from resource_tracker import dirty, errors
from resource_tracker.delta import KnownProvider
from resource_tracker.narrator import Narrator
from resource_tracker.node import NodeFacts, NodeId
from resource_tracker.placement import Placement
from resource_tracker.provider import Situation, wanted
from resource_tracker.scribe import Clock, Scribe

LOG = logging.getLogger(__name__)

_GATE_LOOK_S = 0.5
# Whoever moves the clock need not know of us: that late we notice.
_CLOCK_LOOK_S = 1.0
# How often a class that is in use is looked at again.
_KEPT_LOOK_S = 60.0


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

    All but ``remove``, ``drain`` and ``stop`` return at once.

    :param parallelism: nodes reported at once, each by a thread of its own;
        they start with the first submit
    :param retry_first_s: wait after a first failure; doubles each time
    :param retry_max_s: longest wait between two tries
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
    ) -> None:
        self._placement = placement
        self._gate = gate
        self._clock = clock
        self._scribe = Scribe(placement, clock)
        self._narrator = Narrator()
        self._retry_first_s = retry_first_s
        self._retry_max_s = retry_max_s
        lock = threading.Lock()
        self._work_to_do = threading.Condition(lock)
        self._work_done = threading.Condition(lock)
        self._lock = lock
        self._nodes = dirty.DirtyNodes()
        self._stopped = False
        self._parallelism = parallelism
        self._threads: list[threading.Thread] = []

    # What callers say

    def submit(self, facts: NodeFacts, situation: Situation) -> None:
        """Say what is known of a node; the newest call for a node wins."""
        provider = wanted(facts, situation)
        with self._lock:
            if self._stopped:
                return
            if self._nodes.want(provider, self._clock.now_s()):
                self._work_to_do.notify()
            self._start_threads()
        self._narrator.described(facts)

    def forget(self, node: NodeId) -> None:
        """Write nothing more for a node: it is another's.

        A request that has left already is not called back; its generation
        is its fence.
        """
        with self._lock:
            self._nodes.forget(node)
        self._narrator.forgotten(node)

    def remove(self, node: NodeId) -> bool:
        """Delete the provider of a node that Ironic has deleted.

        Nothing more is written for the node. Blocks for what is just being
        written for it, for the gate, and for Placement.

        :returns: False if something is allocated on it; it stays then
        :raises errors.PlacementError: Placement did not do it
        """
        with self._lock:
            entry = self._nodes.forget(node)
            self._work_done.wait_for(lambda: self._nodes.hold(node))
        self._narrator.forgotten(node)
        try:
            return self._delete(node, entry)
        finally:
            with self._lock:
                self._nodes.release(node)
                self._work_to_do.notify()
                self._work_done.notify_all()

    def acknowledged(self, node: NodeId) -> KnownProvider | None:
        """Return what Placement last acknowledged of a node."""
        with self._lock:
            entry = self._nodes.entry(node)
        return entry.memory.known if entry else None

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
            thread = threading.Thread(
                target=self._work, name=name, daemon=True
            )
            self._threads.append(thread)
            thread.start()

    def _work(self) -> None:
        while (task := self._next()) is not None:
            outcome = self._say(task)
            with self._lock:
                self._nodes.done(task, outcome, self._clock.now_s())
                if not self._nodes.is_current(task.entry):
                    self._narrator.forgotten(task.entry.node)
                self._work_to_do.notify()
                self._work_done.notify_all()

    def _next(self) -> dirty.Task | None:
        """Wait for a node that is due; None: the end."""
        with self._lock:
            while not self._stopped:
                task: dirty.Task | None = None
                wait_s: float | None = _GATE_LOOK_S
                if self._gate.is_open():
                    now_s = self._clock.now_s()
                    task = self._nodes.take(now_s)
                    wait_s = self._idle_s(now_s)
                if task is not None:
                    return task
                self._work_to_do.wait(wait_s)
        return None

    def _idle_s(self, now_s: float) -> float | None:
        due_s = self._nodes.next_due_s()
        if due_s is None:
            return None
        return min(max(due_s - now_s, 0.0), _CLOCK_LOOK_S)

    def _say(self, task: dirty.Task) -> dirty.Outcome:
        entry = task.entry
        try:
            said = self._scribe.say(
                task.wanted, entry.memory, lambda: self._require(entry)
            )
        except _NotAllowed:
            return dirty.Interrupted()
        except Exception as exc:
            return self._failed(entry, exc)
        self._succeeded(entry)
        if said.kept:
            self._narrator.kept(entry, task.wanted, said.kept)
        entry.kept = said.kept
        return dirty.LookAgain(_KEPT_LOOK_S) if said.kept else dirty.Settled()

    def _require(self, entry: dirty.Entry) -> None:
        """The fence before each write."""
        with self._lock:
            allowed = self._nodes.is_current(entry) and not self._stopped
        if not allowed or not self._gate.is_open():
            raise _NotAllowed

    def _succeeded(self, entry: dirty.Entry) -> None:
        waiting = self._narrator.succeeded(entry)
        if waiting:
            with self._lock:
                for node in waiting:
                    self._nodes.hurry(node, self._clock.now_s())
                self._work_to_do.notify_all()

    def _failed(self, entry: dirty.Entry, exc: Exception) -> dirty.Outcome:
        self._narrator.failed(entry, exc)
        doubled_s = self._retry_first_s * 2.0 ** min(entry.failures_count, 30)
        delay_s = min(self._retry_max_s, doubled_s)
        match exc:
            case errors.Retriable():
                return dirty.RetryAfter(delay_s)
            case errors.TrackerError():
                return dirty.Refused()
            case _:
                return dirty.RetryAfter(self._retry_max_s)

    def _delete(self, node: NodeId, entry: dirty.Entry | None) -> bool:
        known = entry.memory.known if entry else None
        uuid = known.uuid if known else self._placement.find(node)
        if uuid is None:
            return True
        self._gate.wait()
        try:
            self._placement.delete(uuid)
        except errors.ProviderInUse as exc:
            self._narrator.could_not_remove(node, exc)
            return False
        return True

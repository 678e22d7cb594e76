# SPDX-License-Identifier: Apache-2.0
"""The lock thread: sends lock requests to the backend, one after the other.

A lock request can hang as long as the backend is away; therefore the agent's
main loop does not send it itself but submits it here and reads the result
later. A release must be sent before the next attempt, so there is one thread
and one queue. A result carries the ticket of its request; `Assignment` ignores
the results of outdated requests.
"""

import queue
import threading

from oslo_log import log as logging

from hashring import errors
from hashring.clock import Clock
from hashring.events import (
    BreakLock,
    LockChecked,
    LockGranted,
    LockRefused,
    LockReleased,
    Prove,
    Release,
    TryLock,
)
from hashring.group import Group
from hashring.lease import Lease
from hashring.ring import Host

LOG = logging.getLogger(__name__)

Request = BreakLock | TryLock | Prove | Release
Answer = LockGranted | LockRefused | LockChecked | LockReleased


class LockThread:
    """Sends the lock requests of one agent.

    The agent's main thread calls `start`, `submit`, `busy`, `answers` and
    `end`.

    :param lease: a lease of this agent. Only its margin is used, which decides
        whether a lock was granted too late.
    """

    def __init__(self, group: Group, lease: Lease, clock: Clock) -> None:
        self._group = group
        self._lease = lease
        self._clock = clock
        self._requests: queue.SimpleQueue[Request | None] = queue.SimpleQueue()
        self._answers: queue.SimpleQueue[Answer] = queue.SimpleQueue()
        self._submitted_count = 0
        self._answered_count = 0
        self._thread = threading.Thread(
            target=self._run, name='locks', daemon=True
        )

    # ---- for the agent

    def start(self) -> None:
        """Start the thread; returns at once."""
        self._thread.start()

    def submit(self, request: Request) -> None:
        """Queue a request; returns at once."""
        if not isinstance(request, BreakLock):
            self._submitted_count += 1
        self._requests.put(request)

    @property
    def busy(self) -> bool:
        """Whether the result of a request is still missing."""
        return self._submitted_count > self._answered_count

    def answers(self) -> list[Answer]:
        """Return all results since the last call; never blocks."""
        found = []
        while not self._answers.empty():
            found.append(self._answers.get())
        self._answered_count += len(found)
        return found

    def end(self, timeout_s: float) -> None:
        """Finish the queue and stop; wait at most ``timeout_s`` seconds."""
        self._requests.put(None)
        if self._thread.is_alive():
            self._thread.join(timeout_s)

    # ---- the thread

    def _run(self) -> None:
        while True:
            request = self._requests.get()
            if request is None:
                return
            self._serve(request)

    def run_pending(self) -> None:
        """Send all queued requests in the caller's thread; for simulations."""
        while not self._requests.empty():
            request = self._requests.get()
            if request is not None:
                self._serve(request)

    def _serve(self, request: Request) -> None:
        try:
            answer = self._carry_out(request)
        except errors.BackendUnavailable as exc:
            LOG.debug(
                'Could not %(what)s: %(why)s', {'what': request, 'why': exc}
            )
            answer = _failed(request)
        # Even a bug must not end this thread, because then no lock would be
        # requested or released any more.
        except Exception:
            LOG.exception('Lock request %(what)s failed', {'what': request})
            answer = _failed(request)
        if answer is not None:
            self._answers.put(answer)

    def _carry_out(self, request: Request) -> Answer | None:
        host = request.host
        match request:
            case BreakLock(token=token):
                self._group.break_lock(host, token)
                return None
            case TryLock(ticket=ticket):
                return self._try(host, ticket)
            case Prove(ticket=ticket):
                return LockChecked(host, ticket, self._group.owns_lock(host))
            case Release(ticket=ticket):
                self._group.release(host)
                return LockReleased(host, ticket)

    def _try(self, host: Host, ticket: int) -> Answer:
        sent_s = self._clock.now_s()
        if not self._group.try_lock(host):
            return LockRefused(host, ticket)
        counts = self._lease.grant_counts(sent_s, self._clock.now_s())
        # If ``counts`` is false, `Assignment` requests the release of the lock
        # until it succeeds, because each heartbeat renews the lock until then.
        return LockGranted(host, ticket, counts, self._group.token(host))


def _failed(request: Request) -> Answer | None:
    """Return the result of a request that failed.

    The backend may have carried out the request. The result is nevertheless
    that the lock was not granted, was not kept, or was not released, because
    that is always safe to act on.
    """
    match request:
        case BreakLock():
            return None
        case TryLock(host=host, ticket=ticket):
            return LockRefused(host, ticket)
        case Prove(host=host, ticket=ticket):
            return LockChecked(host, ticket, ours=False)
        case Release(host=host, ticket=ticket):
            return LockReleased(host, ticket, done=False)

# SPDX-License-Identifier: Apache-2.0
"""The lock thread: one request after the other, in order.

A lock request can hang as long as the backend is away, so it runs where
nobody waits for it. Order matters (a release before the next attempt), so
there is one thread and one queue. Answers carry the ticket of their
question; whoever asked decides whether it still wants to know.
"""

import queue
import threading

from oslo_log import log as logging

from hashring import errors
from hashring.clock import Clock
from hashring.events import (
    BreakLock,
    Denied,
    Granted,
    Prove,
    Proven,
    Release,
    Released,
    TryLock,
)
from hashring.group import Group
from hashring.lease import Lease
from hashring.ring import Host

LOG = logging.getLogger(__name__)

Request = BreakLock | TryLock | Prove | Release
Answer = Granted | Denied | Proven | Released


class LockThread:
    """Carries out lock requests.

    :param lease: any lease of this agent, for the rule of late grants.
    """

    def __init__(self, group: Group, lease: Lease, clock: Clock) -> None:
        self._group = group
        self._lease = lease
        self._clock = clock
        self._requests: queue.SimpleQueue[Request | None] = queue.SimpleQueue()
        self._answers: queue.SimpleQueue[Answer] = queue.SimpleQueue()
        self._asked_count = 0
        self._answered_count = 0
        self._thread = threading.Thread(
            target=self._run, name='locks', daemon=True
        )

    # ---- for the agent

    def start(self) -> None:
        self._thread.start()

    def ask(self, request: Request) -> None:
        """Queue a request; returns at once."""
        if not isinstance(request, BreakLock):
            self._asked_count += 1
        self._requests.put(request)

    @property
    def busy(self) -> bool:
        """An answer is still to come."""
        return self._asked_count > self._answered_count

    def answers(self) -> list[Answer]:
        """All answers since the last call; never blocks."""
        found = []
        while not self._answers.empty():
            found.append(self._answers.get())
        self._answered_count += len(found)
        return found

    def end(self, timeout_s: float) -> None:
        """Serve what is queued, then end; wait at most so long."""
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
        """Serve what is queued, in the caller's thread: for simulations."""
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
        # A thread that dies silently would freeze every host.
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
                return Proven(host, ticket, self._group.still_ours(host))
            case Release(ticket=ticket):
                self._group.release(host)
                return Released(host, ticket)

    def _try(self, host: Host, ticket: int) -> Answer:
        sent_s = self._clock.now_s()
        if not self._group.try_lock(host):
            return Denied(host, ticket)
        counts = self._lease.grant_counts(sent_s, self._clock.now_s())
        # One that does not count is given back by whoever asked, who tries
        # again until it is done: each heartbeat renews it until then.
        return Granted(host, ticket, counts, self._group.token(host))


def _failed(request: Request) -> Answer | None:
    """What a request without an answer counts as: the worse of the two."""
    match request:
        case BreakLock():
            return None
        case TryLock(host=host, ticket=ticket):
            return Denied(host, ticket)
        case Prove(host=host, ticket=ticket):
            return Proven(host, ticket, ours=False)
        case Release(host=host, ticket=ticket):
            return Released(host, ticket, done=False)

# SPDX-License-Identifier: Apache-2.0
"""Assignment: the state machine that decides which hosts this agent serves.

`hashring.agent` passes each event (a heartbeat's result, the result of a lock
request, an event of a worker, a stop request, a tick) to `Assignment.handle`
and carries out the effects that it returns, in their order. Pure: it blocks
on nothing and logs nothing; the caller passes the time.

Effects follow from the state, not from the event: each call first applies
the event, then goes through all hosts and returns the effects that are due.
Therefore an event that comes twice does no harm.

The rules: a worker runs only under a lock that was granted within one
unbroken lease. After an interruption a worker goes on only if the backend
proves that the lock was not lost meanwhile. A lock is released only after
its worker has ended.
"""

from collections.abc import Iterator

import attrs

from hashring import events
from hashring.adoption import Presence, PresenceWatch
from hashring.duplicate_home import DEAD_ENTRY_TERMS, DuplicateHome
from hashring.errors import EX_CONFIG
from hashring.group import Boot, LockToken, Traits
from hashring.host_states import (
    CERTAIN,
    UNCERTAIN,
    WITH_WORKER,
    WITHOUT_LOCK,
    Hold,
    HostState,
    Phase,
    Signal,
)
from hashring.lease import SHUT_NOW_S
from hashring.lease_terms import LeaseTerms
from hashring.opts import Timing
from hashring.ring import Host
from hashring.workers import WorkerExited, WorkerServing


@attrs.define(eq=False, repr=False, slots=False)
class Assignment:
    """The state machine of one agent; only its main thread calls it.

    :param home: the home host of this agent
    :param boot: the boot of this agent
    :param traits: the traits of the coordination backend
    :param left_lock: the token of the home lock that an earlier agent process
        on this machine had last; that process is certainly dead
    :param lease_terms: the lease terms that are known already
    :param keeps_s: for how many seconds the backend keeps entries of a dead
        process, if that is longer than the lease term
    :param home_hold: the state of the home host, if agents have died before
    """

    _home: Host
    _boot: Boot
    _timing: Timing
    _traits: Traits
    _left_lock: LockToken | None = None
    _lease_terms: LeaseTerms = attrs.field(
        default=attrs.Factory(
            lambda self: LeaseTerms(self._timing.lease_term_s), takes_self=True
        )
    )

    _keeps_s: float = 0.0
    _home_hold: Hold = attrs.field(
        default=attrs.Factory(lambda self: Hold(self._home), takes_self=True)
    )

    def __attrs_post_init__(self) -> None:
        self._presence_watch = PresenceWatch(
            self._boot, self._timing.adopt_step_s
        )
        self._holds = {self._home: self._home_hold}
        self._known: frozenset[Host] = frozenset()
        self._lease_status = events.LeaseStatus(deadline_s=0.0, epoch=0)
        # The last epoch (unbroken run of heartbeats) in which this agent held
        # the lease, and the time from which it did.
        self._held_epoch = 0
        self._held_since_s = 0.0
        keeps_s = max(self._keeps_s, self._timing.lease_term_s)
        self.dead_entry_s = DEAD_ENTRY_TERMS * keeps_s
        """Seconds after which the entry of a dead process is gone."""
        self._duplicate_home = DuplicateHome(
            self._home, self._boot, self.dead_entry_s
        )
        self._leave: events.Leave | None = None
        self._is_half_alive = False
        self._last_ticket = 0

    # ---- the present state

    def serving(self) -> tuple[Host, ...]:
        """Return the hosts whose lock this agent certainly has, sorted."""
        return tuple(
            sorted(h.host for h in self._holds.values() if h.phase in CERTAIN)
        )

    def phases(self) -> dict[Host, Phase]:
        """Return the phase of each host that this agent ever tried to lock."""
        return {host: hold.phase for host, hold in self._holds.items()}

    def states(self) -> tuple[HostState, ...]:
        """Return the state of each host that this agent ever tried to lock."""
        return tuple(hold.state() for hold in self._holds.values())

    def has_run_well(self, now_s: float) -> bool:
        """Return whether the death of this agent would be no sign of a fault.

        The worker of the home host has served for long, or the agent is
        leaving: a service manager that loses its patience then may kill it.
        """
        is_served = self.holds_home() and self._home_hold.is_healthy(now_s)
        return is_served or self._leave is not None

    def holds_home(self) -> bool:
        """Return whether this agent certainly has the home lock."""
        return self._home_hold.phase in CERTAIN

    @property
    def epoch(self) -> int:
        """The number of the unbroken lease in which `serving` is valid."""
        return self._lease_status.epoch

    def wants_home(self, now_s: float) -> bool:
        """Return whether other agents must leave the home host alone.

        False while its worker keeps dying here, and while this agent is half
        alive; other agents may adopt it.
        """
        hold = self._home_hold
        keeps_dying = hold.keeps_dying and now_s < hold.hold_off_until_s
        return not (keeps_dying or self._is_half_alive)

    def deadline_s(self) -> float:
        """Return when the lease gates of all workers shut, on CLOCK_BOOTTIME.

        Return ``SHUT_NOW_S`` while the lease is interrupted or not all locks
        are proven to have survived the interruption.
        """
        holds = self._holds.values()
        if any(hold.phase in UNCERTAIN for hold in holds):
            return SHUT_NOW_S
        return self._lease_status.deadline_s

    @property
    def seen_term_s(self) -> float:
        """The longest lease term of this agent and of members it has read."""
        return self._lease_terms.seen_s

    @property
    def longest_term_s(self) -> float:
        """The longest lease term of which a holder may still act."""
        return self._lease_terms.longest_s

    def opens_s(self, now_s: float) -> dict[Host, float]:
        """Return when the gate of each new worker may open at the earliest.

        Empty unless the backend can forget a lock, for example in a restart.
        If it has, the agent that had the lock before may not have noticed the
        loss and may act for up to one term of its own after this agent was
        granted the lock.
        """
        if not self._traits.forgets:
            return {}
        term_s = self._lease_terms.longest_s
        opens = {
            hold.host: hold.granted_at_s + term_s
            for hold in self._holds.values()
            if hold.phase in WITH_WORKER
        }
        return {host: at_s for host, at_s in opens.items() if now_s < at_s}

    @property
    def leaving(self) -> events.Leave | None:
        """The request to leave, or None while the agent serves."""
        return self._leave

    @property
    def has_workers(self) -> bool:
        """Whether a worker of this agent may still run."""
        return bool(self.tenures())

    def tenures(self) -> dict[Host, int]:
        """Return the hosts that may have a worker, each with its tenure."""
        return {
            hold.host: hold.tenure
            for hold in self._holds.values()
            if hold.phase in WITH_WORKER
        }

    @property
    def has_serving_worker(self) -> bool:
        """Whether a worker of this agent may use the ring."""
        return any(
            h.phase in WITH_WORKER and h.serves_since_s is not None
            for h in self._holds.values()
        )

    @property
    def finished(self) -> bool:
        """Whether the agent is leaving and has neither a lock nor a worker."""
        idle = all(h.phase is Phase.IDLE for h in self._holds.values())
        return self._leave is not None and idle

    # ---- events

    def handle(
        self, event: events.Event, now_s: float
    ) -> tuple[events.Effect, ...]:
        """Apply an event; return the effects to carry out, in this order.

        :param now_s: this agent's clock, CLOCK_BOOTTIME
        """
        return (*self._apply(event, now_s), *self._advance_all(now_s))

    def _apply(
        self, event: events.Event, now_s: float
    ) -> Iterator[events.Effect]:
        match event:
            case events.LeaseStatus():
                self._lease_status = event
                self._presence_watch.update(event.view, now_s)
                self._lease_terms.update(event.view, now_s)
            case events.Tick():
                pass
            case events.KnownHosts(hosts=hosts):
                self._known = hosts
            case events.HalfAlive(is_half_alive=is_half_alive):
                self._is_half_alive = is_half_alive
            case events.LockGranted() | events.LockRefused():
                yield from self._apply_lock_result(event, now_s)
            case events.LockChecked():
                yield from self._apply_lock_check(event)
            case events.LockReleased():
                self._apply_release(event, now_s)
            case WorkerExited():
                yield from self._apply_exit(event, now_s)
            case events.Leave():
                self._leave = event
            case WorkerServing(host=host, tenure=tenure):
                hold = self._holds.get(host)
                if hold is not None and tenure in (0, hold.tenure):
                    hold.serves_since_s = now_s

    # ---- results of lock requests

    def _apply_lock_result(
        self, event: events.LockGranted | events.LockRefused, now_s: float
    ) -> Iterator[events.Effect]:
        hold = self._find_hold(event.host, event.ticket, Phase.TRYING)
        if hold is None:
            return
        if isinstance(event, events.LockRefused):
            hold.move(Signal.REFUSED)
            hold.retry_at_s = now_s + self._retry_s(hold)
        elif not (event.counts and self._is_usable(hold, now_s)):
            hold.move(Signal.GRANTED_LATE)
            yield self._release(hold, events.Why.USELESS)
        else:
            yield self._start(hold, now_s)

    def _retry_s(self, hold: Hold) -> float:
        if hold.host == self._home:
            return self._timing.loop_interval_s
        return self._timing.adopt_step_s

    def _is_usable(self, hold: Hold, now_s: float) -> bool:
        in_force = now_s < self._lease_status.deadline_s
        same_lease = hold.epoch == self._lease_status.epoch
        wanted = self._reason_to_stop(hold.host, now_s) is None
        return in_force and same_lease and wanted

    def _start(self, hold: Hold, now_s: float) -> events.Effect:
        hold.move(Signal.GRANTED)
        if hold.host == self._home:
            self._left_lock = None
        hold.tenure = hold.ticket
        hold.granted_at_s, hold.serves_since_s = now_s, None
        why = (
            events.Why.HOME if hold.host == self._home else events.Why.ADOPTED
        )
        return events.Start(hold.host, hold.tenure, why, hold.orphan_for_s)

    def _apply_lock_check(
        self, event: events.LockChecked
    ) -> Iterator[events.Effect]:
        hold = self._find_hold(event.host, event.ticket, Phase.PROVING)
        if hold is None:
            return
        if event.ours:
            hold.move(Signal.PROVEN)
            yield events.ResumeWorker(hold.host)
        else:
            yield from self._kill(hold, Signal.LOST, events.Why.NOT_PROVEN)

    def _apply_release(self, event: events.LockReleased, now_s: float) -> None:
        hold = self._find_hold(event.host, event.ticket, Phase.RELEASING)
        if hold is None:
            return
        if event.done:
            hold.move(Signal.RELEASED)
        else:
            # `_advance` repeats the request after `due_s`. Without a release
            # each heartbeat would renew the lock for ever, although the host
            # has no worker.
            hold.due_s = now_s + self._timing.loop_interval_s

    def _find_hold(self, host: Host, ticket: int, phase: Phase) -> Hold | None:
        hold = self._holds.get(host)
        if hold is None or hold.ticket != ticket or hold.phase is not phase:
            return None  # The result of an outdated request is ignored.
        return hold

    def _apply_exit(
        self, event: WorkerExited, now_s: float
    ) -> Iterator[events.Effect]:
        hold = self._holds.get(event.host)
        if hold is None or hold.phase not in WITH_WORKER:
            return
        if event.tenure not in (0, hold.tenure):
            return
        stopped = hold.phase is Phase.STOPPING
        if not stopped:
            hold.record_death(now_s)
        hold.move(Signal.EXITED)
        yield self._release(
            hold, hold.ends_why if stopped else events.Why.EXITED
        )
        if event.fatal and event.host == self._home:
            yield from self._abort(event.fatal)

    def _abort(self, message: str) -> Iterator[events.Effect]:
        if self._leave is None:
            yield events.Abort(message, EX_CONFIG)
        self._leave = events.Leave(restarting=False)

    # ---- effects that are due

    def _advance_all(self, now_s: float) -> Iterator[events.Effect]:
        in_force = now_s < self._lease_status.deadline_s
        if in_force and self._held_epoch != self._lease_status.epoch:
            self._held_epoch = self._lease_status.epoch
            self._held_since_s = now_s
        for hold in list(self._holds.values()):
            if hold.phase not in WITHOUT_LOCK:
                yield from self._advance(hold, now_s, in_force)
        if not in_force:
            self._duplicate_home.forget()
        if self._leave is None and in_force:
            yield from self._check_duplicate_home(now_s)
        if self._leave is None and in_force:
            yield from self._try_hosts(now_s)

    def _advance(
        self, hold: Hold, now_s: float, in_force: bool
    ) -> Iterator[events.Effect]:
        if hold.phase in WITH_WORKER:
            hold.forgive(now_s)  # However this tenure will end.
        if hold.phase in CERTAIN and self._is_lock_lost(hold):
            yield from self._kill(hold, Signal.LOST, events.Why.FORGOTTEN)
        if hold.phase in CERTAIN and self._is_half_alive:
            # It is not drained: its tasks would wait for the path that fails.
            yield from self._kill(hold, Signal.LOST, events.Why.HALF_ALIVE)
        if hold.phase in WITH_WORKER:
            yield from self._advance_lease(hold, in_force)
        if hold.phase is Phase.SERVING:
            yield from self._stop_if_unwanted(hold, now_s)
        if hold.phase is Phase.STOPPING and now_s >= hold.due_s:
            yield from self._kill(hold, Signal.OVERDUE, events.Why.OVERDUE)
        if hold.phase is Phase.RELEASING and 0 < hold.due_s <= now_s:
            yield self._release(hold, hold.ends_why, again=True)

    def _is_lock_lost(self, hold: Hold) -> bool:
        # If this lock was granted after the read of the locks had begun, the
        # entry of the host in the lost ones may be about an earlier lock.
        status = self._lease_status
        return (
            hold.host in status.lost and hold.granted_at_s <= status.read_at_s
        )

    def _advance_lease(
        self, hold: Hold, in_force: bool
    ) -> Iterator[events.Effect]:
        epoch = self._lease_status.epoch
        if not in_force or hold.epoch != epoch:
            if hold.phase is Phase.STOPPING:
                yield from self._kill(hold, Signal.LAPSED, events.Why.LAPSED)
            elif hold.phase is not Phase.PAUSED:
                if hold.phase is Phase.SERVING:
                    yield events.Pause(hold.host)
                hold.move(Signal.LAPSED)
        if hold.phase is not Phase.PAUSED:
            return
        if self._leave is not None:
            yield from self._kill(hold, Signal.UNWANTED, events.Why.LEAVING)
        elif self._is_half_alive:
            yield from self._kill(hold, Signal.UNWANTED, events.Why.HALF_ALIVE)
        elif in_force:
            hold.move(Signal.RENEWED)
            hold.epoch = epoch
            hold.ticket = self._ticket()
            yield events.Prove(hold.host, hold.ticket)

    def _stop_if_unwanted(
        self, hold: Hold, now_s: float
    ) -> Iterator[events.Effect]:
        why = self._reason_to_stop(hold.host, now_s)
        if why is None:
            return
        hold.move(Signal.UNWANTED)
        hold.ends_why = why
        hold.due_s = now_s + self._timing.drain_timeout_s
        yield events.Stop(hold.host, why)

    def _reason_to_stop(self, host: Host, now_s: float) -> events.Why | None:
        if self._leave is not None:
            return events.Why.LEAVING
        if self._is_half_alive:
            return events.Why.HALF_ALIVE
        if host == self._home:
            return None
        if self._presence_watch.presence(host, now_s) is Presence.HOME:
            return events.Why.HAND_BACK
        if host not in self._known:
            return events.Why.UNKNOWN
        return None

    def _try_hosts(self, now_s: float) -> Iterator[events.Effect]:
        if self._is_half_alive:
            return
        home = self._home_hold
        if home.phase is Phase.IDLE and now_s >= home.retry_at_s:
            yield from self._try(home, 0.0)
        if now_s < self._held_since_s + self._lease_terms.longest_s:
            # After a start of all agents, or an outage of the backend, other
            # agents may join the group up to one term later than this one.
            # Until then their hosts are not adopted.
            return
        mine = frozenset(
            hold.host
            for hold in self._holds.values()
            if hold.phase not in WITHOUT_LOCK
        )
        foreign = self._known - {self._home}
        for due in self._presence_watch.due_adoptions(foreign, mine, now_s):
            hold = self._holds.setdefault(due.host, Hold(due.host))
            if hold.phase is Phase.IDLE and now_s >= hold.retry_at_s:
                yield from self._try(hold, due.orphan_for_s)

    def _try(self, hold: Hold, orphan_for_s: float) -> Iterator[events.Effect]:
        if hold.host == self._home and self._left_lock is not None:
            # A request to break the dead process's lock precedes each try,
            # because an earlier such request may have failed. It frees only
            # the lock with this token.
            yield events.BreakLock(hold.host, self._left_lock)
        hold.move(Signal.WANTED)
        hold.orphan_for_s = orphan_for_s
        hold.epoch = self._lease_status.epoch
        hold.ticket = self._ticket()
        yield events.TryLock(hold.host, hold.ticket)

    def _check_duplicate_home(self, now_s: float) -> Iterator[events.Effect]:
        view = self._lease_status.view
        rival = self._duplicate_home.find_rival(view, now_s)
        if rival is not None and not self.holds_home():
            yield from self._abort(self._duplicate_home.message(rival, view))

    # ---- helpers

    def _kill(
        self, hold: Hold, signal: Signal, why: events.Why
    ) -> Iterator[events.Effect]:
        """Kill the worker, then release its lock, in this order."""
        hold.move(signal)
        yield events.Kill(hold.host, why)
        yield self._release(hold, why)

    def _release(
        self, hold: Hold, why: events.Why, *, again: bool = False
    ) -> events.Effect:
        hold.ends_why = why
        hold.due_s = 0.0
        hold.ticket = self._ticket()
        return events.Release(hold.host, hold.ticket, why, again)

    def _ticket(self) -> int:
        self._last_ticket += 1
        return self._last_ticket

# SPDX-License-Identifier: Apache-2.0
"""Which hosts this agent serves: a pure machine.

Views, lock outcomes, worker events and this agent's own time go in through
`handle`; effects come out, to be carried out in their order. It opens
nothing, waits for nothing and logs nothing.

It answers to the state, not to the event: each call first takes the event
in, then looks at every host and says what is missing. Twice is once.

What it holds to: a worker runs only under a lock that was granted in a
lease without a gap; when the lease is interrupted, a worker goes on only
if the backend proves that the very same acquisition survived; a lock is
given back only when its worker is dead.
"""

from collections.abc import Iterator

from hashring.adoption import Presence, PresenceWatch
from hashring.duplicate_home import DuplicateHome
from hashring.errors import EX_CONFIG
from hashring.events import (
    Abort,
    BreakLock,
    Denied,
    Effect,
    Event,
    Granted,
    Kill,
    Known,
    LeaseStatus,
    Leave,
    Pause,
    Prove,
    Proven,
    Release,
    Released,
    ResumeWorker,
    Start,
    Stop,
    Tick,
    TryLock,
    Why,
)
from hashring.group import Boot, LockToken, Traits
from hashring.host_states import (
    CERTAIN,
    UNCERTAIN,
    WITH_WORKER,
    Hold,
    Phase,
    Signal,
)
from hashring.opts import Timing
from hashring.ring import Host
from hashring.workers import WorkerExited, WorkerServing

# A boot that died is listed for a term, and for another one whenever the
# backend restarts or elects a leader meanwhile: etcd and zookeeper begin
# each term anew then.
TERMS_OF_PATIENCE = 3


class Assignment:
    """The machine of one agent.

    :param left_lock: the last acquisition of the home's lock by an earlier
        life on this machine, all of which are certainly dead.
    """

    def __init__(
        self,
        home: Host,
        boot: Boot,
        timing: Timing,
        traits: Traits,
        *,
        left_lock: LockToken | None = None,
    ) -> None:
        self._home = home
        self._boot = boot
        self._timing = timing
        self._traits = traits
        self._left_lock = left_lock
        self._watch = PresenceWatch(boot, timing.adopt_step_s)
        self._holds = {home: Hold(home)}
        self._known: frozenset[Host] = frozenset()
        self._standing = LeaseStatus(deadline_s=0.0, epoch=0)
        self._steady_epoch = 0  # The epoch whose first moment we saw in force
        self._steady_since_s = 0.0  # at this instant.
        patience_s = TERMS_OF_PATIENCE * timing.lease_term_s
        self._duplicate_home = DuplicateHome(home, boot, patience_s)
        self._leave: Leave | None = None
        self._last_ticket = 0

    # ---- what others may ask

    def serving(self) -> tuple[Host, ...]:
        """Hosts whose lock is certainly ours and whose worker may act."""
        return tuple(
            sorted(h.host for h in self._holds.values() if h.phase in CERTAIN)
        )

    def phases(self) -> dict[Host, Phase]:
        return {host: hold.phase for host, hold in self._holds.items()}

    def holds_home(self) -> bool:
        return self._holds[self._home].phase in CERTAIN

    @property
    def epoch(self) -> int:
        """The lease's epoch that `serving` is true for."""
        return self._standing.epoch

    def wants_home(self, now_s: float) -> bool:
        """False while our own worker keeps dying: peers may adopt."""
        hold = self._holds[self._home]
        return not (hold.yields and now_s < hold.retry_at_s)

    def deadline_s(self) -> float:
        """When gates shut; 0.0 while any lock waits to be proven."""
        holds = self._holds.values()
        if any(hold.phase in UNCERTAIN for hold in holds):
            return 0.0
        return self._standing.deadline_s

    def opens_s(self, now_s: float) -> dict[Host, float]:
        """Gates that stay shut at first, and until when.

        A backend that forgot a lock has let us take it while its last
        holder, not told yet, may act for up to a term.
        """
        if not self._traits.forgets:
            return {}
        term_s = self._timing.lease_term_s
        opens = {
            hold.host: hold.granted_at_s + term_s
            for hold in self._holds.values()
            if hold.phase in WITH_WORKER
        }
        return {host: at_s for host, at_s in opens.items() if now_s < at_s}

    @property
    def leaving(self) -> Leave | None:
        return self._leave

    @property
    def has_workers(self) -> bool:
        return any(h.phase in WITH_WORKER for h in self._holds.values())

    @property
    def finished(self) -> bool:
        """We leave, and nothing is left in our hands."""
        idle = all(h.phase is Phase.IDLE for h in self._holds.values())
        return self._leave is not None and idle

    # ---- the one way in

    def handle(self, event: Event, now_s: float) -> tuple[Effect, ...]:
        """Take an event in; say what is to be done, in this order."""
        return (*self._take(event, now_s), *self._settle(now_s))

    def _take(self, event: Event, now_s: float) -> Iterator[Effect]:
        match event:
            case LeaseStatus():
                self._standing = event
                self._watch.see(event.view, now_s)
            case Known(hosts=hosts):
                self._known = hosts
            case Granted() | Denied():
                yield from self._answered(event, now_s)
            case Proven():
                yield from self._proven(event)
            case Released():
                self._released(event, now_s)
            case WorkerExited():
                yield from self._exited(event, now_s)
            case Leave():
                self._leave = event
            case WorkerServing() | Tick():
                pass

    # ---- answers

    def _answered(
        self, event: Granted | Denied, now_s: float
    ) -> Iterator[Effect]:
        hold = self._asked(event.host, event.ticket, Phase.TRYING)
        if hold is None:
            return
        if isinstance(event, Denied):
            hold.move(Signal.DENIED)
            hold.retry_at_s = now_s + self._retry_s(hold)
        elif not (event.counts and self._usable(hold, now_s)):
            hold.move(Signal.GRANTED_LATE)
            yield self._release(hold, Why.USELESS)
        else:
            yield self._begin(hold, now_s)

    def _retry_s(self, hold: Hold) -> float:
        if hold.host == self._home:
            return self._timing.loop_interval_s
        return self._timing.adopt_step_s

    def _usable(self, hold: Hold, now_s: float) -> bool:
        in_force = now_s < self._standing.deadline_s
        same_lease = hold.epoch == self._standing.epoch
        wanted = self._unwanted(hold.host, now_s) is None
        return in_force and same_lease and wanted

    def _begin(self, hold: Hold, now_s: float) -> Effect:
        hold.move(Signal.GRANTED)
        if hold.host == self._home:
            self._left_lock = None
        hold.tenure = hold.ticket
        hold.granted_at_s = now_s
        why = Why.HOME if hold.host == self._home else Why.ADOPTED
        return Start(hold.host, hold.tenure, why, hold.orphan_for_s)

    def _proven(self, event: Proven) -> Iterator[Effect]:
        hold = self._asked(event.host, event.ticket, Phase.PROVING)
        if hold is None:
            return
        if event.ours:
            hold.move(Signal.PROVEN)
            yield ResumeWorker(hold.host)
        else:
            yield from self._drop(hold, Signal.LOST, Why.NOT_PROVEN)

    def _released(self, event: Released, now_s: float) -> None:
        hold = self._asked(event.host, event.ticket, Phase.RELEASING)
        if hold is None:
            return
        if event.done:
            hold.move(Signal.RELEASED)
        else:
            # Asked again by _settle: until it is done, each heartbeat
            # would go on renewing a lock without a worker.
            hold.due_s = now_s + self._timing.loop_interval_s

    def _asked(self, host: Host, ticket: int, phase: Phase) -> Hold | None:
        hold = self._holds.get(host)
        if hold is None or hold.ticket != ticket or hold.phase is not phase:
            return None  # The answer to a question we no longer have.
        return hold

    def _exited(self, event: WorkerExited, now_s: float) -> Iterator[Effect]:
        hold = self._holds.get(event.host)
        if hold is None or hold.phase not in WITH_WORKER:
            return
        if event.tenure not in (0, hold.tenure):
            return
        stopped = hold.phase is Phase.STOPPING
        if not stopped:
            hold.died(now_s)
        hold.move(Signal.EXITED)
        yield self._release(hold, hold.ends_why if stopped else Why.EXITED)
        if event.fatal and event.host == self._home:
            yield from self._give_up(event.fatal)

    def _give_up(self, message: str) -> Iterator[Effect]:
        if self._leave is None:
            yield Abort(message, EX_CONFIG)
        self._leave = Leave(restarting=False)

    # ---- what is missing

    def _settle(self, now_s: float) -> Iterator[Effect]:
        in_force = now_s < self._standing.deadline_s
        if in_force and self._steady_epoch != self._standing.epoch:
            self._steady_epoch = self._standing.epoch
            self._steady_since_s = now_s
        for hold in list(self._holds.values()):
            yield from self._settle_hold(hold, now_s, in_force)
        if self._leave is None and in_force:
            yield from self._check_rivals(now_s)
        if self._leave is None and in_force:
            yield from self._take_up(now_s)

    def _settle_hold(
        self, hold: Hold, now_s: float, in_force: bool
    ) -> Iterator[Effect]:
        if hold.phase in CERTAIN and self._forgotten(hold):
            yield from self._drop(hold, Signal.LOST, Why.FORGOTTEN)
        if hold.phase in WITH_WORKER:
            yield from self._settle_lease(hold, in_force)
        if hold.phase is Phase.SERVING:
            yield from self._settle_wish(hold, now_s)
        if hold.phase is Phase.STOPPING and now_s >= hold.due_s:
            yield from self._drop(hold, Signal.OVERDUE, Why.OVERDUE)
        if hold.phase is Phase.RELEASING and 0 < hold.due_s <= now_s:
            yield self._release(hold, hold.ends_why, again=True)

    def _forgotten(self, hold: Hold) -> bool:
        # A list read before this grant speaks of an older one.
        standing = self._standing
        return (
            hold.host in standing.lost
            and hold.granted_at_s <= standing.read_at_s
        )

    def _settle_lease(self, hold: Hold, in_force: bool) -> Iterator[Effect]:
        epoch = self._standing.epoch
        if not in_force or hold.epoch != epoch:
            if hold.phase is Phase.STOPPING:
                yield from self._drop(hold, Signal.LAPSED, Why.LAPSED)
            elif hold.phase is not Phase.PAUSED:
                if hold.phase is Phase.SERVING:
                    yield Pause(hold.host)
                hold.move(Signal.LAPSED)
        if hold.phase is not Phase.PAUSED:
            return
        if self._leave is not None:
            yield from self._drop(hold, Signal.UNWANTED, Why.LEAVING)
        elif in_force:
            hold.move(Signal.RENEWED)
            hold.epoch = epoch
            hold.ticket = self._ticket()
            yield Prove(hold.host, hold.ticket)

    def _settle_wish(self, hold: Hold, now_s: float) -> Iterator[Effect]:
        why = self._unwanted(hold.host, now_s)
        if why is None:
            return
        hold.move(Signal.UNWANTED)
        hold.ends_why = why
        hold.due_s = now_s + self._timing.drain_timeout_s
        yield Stop(hold.host, why)

    def _unwanted(self, host: Host, now_s: float) -> Why | None:
        if self._leave is not None:
            return Why.LEAVING
        if host == self._home:
            return None
        if self._watch.presence(host, now_s) is Presence.HOME:
            return Why.HAND_BACK
        if host not in self._known:
            return Why.UNKNOWN
        return None

    def _take_up(self, now_s: float) -> Iterator[Effect]:
        home = self._holds[self._home]
        if home.phase is Phase.IDLE and now_s >= home.retry_at_s:
            yield from self._try(home, 0.0)
        if now_s < self._steady_since_s + self._timing.lease_term_s:
            # After a start or an outage the others need as long as we did
            # to come back into the list.
            return
        mine = frozenset(
            hold.host
            for hold in self._holds.values()
            if hold.phase not in (Phase.IDLE, Phase.TRYING)
        )
        foreign = self._known - {self._home}
        for turn in self._watch.turns(foreign, mine, now_s):
            hold = self._holds.setdefault(turn.host, Hold(turn.host))
            if hold.phase is Phase.IDLE and now_s >= hold.retry_at_s:
                yield from self._try(hold, turn.orphan_for_s)

    def _try(self, hold: Hold, orphan_for_s: float) -> Iterator[Effect]:
        if hold.host == self._home and self._left_lock is not None:
            # With each try: the request may be lost, and harms nobody.
            yield BreakLock(hold.host, self._left_lock)
        hold.move(Signal.WANTED)
        hold.orphan_for_s = orphan_for_s
        hold.epoch = self._standing.epoch
        hold.ticket = self._ticket()
        yield TryLock(hold.host, hold.ticket)

    def _check_rivals(self, now_s: float) -> Iterator[Effect]:
        view = self._standing.view
        rival = self._duplicate_home.serving(view, now_s)
        if rival is not None and not self.holds_home():
            yield from self._give_up(self._duplicate_home.message(rival, view))

    # ---- small change

    def _drop(self, hold: Hold, signal: Signal, why: Why) -> Iterator[Effect]:
        """Kill the worker, then give the lock back: never the reverse."""
        hold.move(signal)
        yield Kill(hold.host, why)
        yield self._release(hold, why)

    def _release(self, hold: Hold, why: Why, *, again: bool = False) -> Effect:
        hold.ends_why = why
        hold.due_s = 0.0
        hold.ticket = self._ticket()
        return Release(hold.host, hold.ticket, why, again)

    def _ticket(self) -> int:
        self._last_ticket += 1
        return self._last_ticket

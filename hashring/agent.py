# SPDX-License-Identifier: Apache-2.0
"""The agent: one loop that feeds the assignment and does what it says.

The loop runs in the caller's thread, the main one, because workers are
started from it and die with it. It calls no backend: heartbeats have a
thread (`pulse`), locks have one (`locksmith`), and what they learned is
read without waiting. So whatever the backend does, the loop goes round,
sees the deadline pass, and tells the workers.

It knows workers only through the `Workers` protocol, and Nova not at all.
"""

import dataclasses
import socket
from collections.abc import Callable, Sequence

from hashring.assignment import Assignment
from hashring.clock import Clock
from hashring.errors import EX_CONFIG
from hashring.events import (
    Abort,
    BreakLock,
    Effect,
    Event,
    Granted,
    Kill,
    Known,
    LeaseStatus,
    Leave,
    Prove,
    Release,
    Start,
    Stop,
    Tick,
    TryLock,
)
from hashring.group import Group, Member, MemberState
from hashring.heartbeat import HeartbeatThread, State
from hashring.lock_thread import Answer, LockThread
from hashring.operator_log import OperatorLog
from hashring.opts import Timing
from hashring.pool import Pool
from hashring.ring import Host
from hashring.state_dir import SavedState
from hashring.workers import (
    HostAdded,
    MappingConfirmed,
    ServicesRead,
    WorkerEvent,
    WorkerExited,
    Workers,
    WorkerServing,
    WorkerView,
)

# While an answer of the lock thread is due, the loop looks this often.
BUSY_INTERVAL_S = 0.05
# What is left undone so long after the drain's end is left undone.
LEAVE_SLACK_S = 10.0
# How long the last words may take, each.
FAREWELL_S = 3.0


class Agent:
    """One daemon's part in the pool.

    :param membership: the group, not yet connected.
    :param workers: who runs the worker processes.
    :param timing: the durations; `Timing.from_conf(conf)`.
    :param saved_state: the state directory, already opened.
    :param machine: the name of this machine, for other operators.
    :param find_overlap: returns the reason why the group of the given name
        cannot serve the same nodes as this one; None if there is none.
    :param on_turn: called at each turn of the loop, e.g. for a watchdog.
    """

    def __init__(
        self,
        *,
        membership: Group,
        workers: Workers,
        home: Host,
        timing: Timing,
        clock: Clock,
        saved_state: SavedState,
        machine: str = '',
        version: str = '',
        find_overlap: Callable[[str], str | None] = lambda group: None,
        on_turn: Callable[[], None] | None = None,
    ) -> None:
        self.exit_message: str | None = None  # Why it ended, if by itself.
        self._group = membership
        self._workers = workers
        self._home = home
        self._timing = timing
        self._clock = clock
        self._saved_state = saved_state
        self._find_overlap = find_overlap
        self._on_turn = on_turn
        self._stop_wish: Leave | None = None
        self._status = 0
        self._leave_by_s = 0.0
        self._asked_at_s = 0.0
        self._me = Member(
            home,
            membership.boot,
            machine=machine or socket.gethostname(),
            version=version,
        )
        self.assignment = Assignment(
            home,
            membership.boot,
            timing,
            membership.traits,
            left_lock=saved_state.read_home_lock(home),
        )
        self._remembered = (
            saved_state.read_known(),
            saved_state.read_confirmed_mappings(),
        )
        known, confirmed_mappings = self._remembered
        self.pool = Pool(home, known, timing.settle_s, confirmed_mappings)
        self.pulse = HeartbeatThread(membership, self._me, timing, clock)
        self.lock_thread = LockThread(
            membership, self.pulse.state().lease, clock
        )
        self._operator_log = OperatorLog(home, clock.now_s())

    # ---- for the caller

    def run(self) -> int:
        """Serve until stopped; the exit status of the process.

        0 after `request_stop`; 78 when the configuration cannot work, with
        the operator's sentence in `exit_message`.
        """
        self.pulse.start()
        self.lock_thread.start()
        while not self._may_go():
            self.turn()
        self._close()
        return self._status

    def request_stop(self, *, drain: bool = False) -> None:
        """Ask the loop to end; safe in a signal handler.

        :param drain: we shall not be back soon: hosts may be adopted at
            once. Otherwise the others wait `restart_grace_s`.
        """
        # An assignment, no lock: a handler may interrupt anything.
        self._stop_wish = Leave(restarting=not drain)

    def turn(self) -> None:
        """One round: take in all there is, act, tell the workers."""
        self._listen()
        for answer in self.lock_thread.answers():
            self._note_home_lock(answer)
            self._feed(answer)
        for event in self._workers.events(self._patience_s()):
            self._hear(event)
        self._heed_stop()
        self._feed(Known(self.pool.known))
        self._feed(Tick())
        self._tell()
        if self._on_turn is not None:
            self._on_turn()

    # ---- in

    def _patience_s(self) -> float:
        if self.lock_thread.busy:
            return BUSY_INTERVAL_S
        return self._timing.loop_interval_s

    def _listen(self) -> None:
        now_s = self._clock.now_s()
        state = self.pulse.state()
        self._asked_at_s = state.asked_at_s  # For what `pool` sees now.
        self._operator_log.lease(state, now_s)
        held = state.lease.held(now_s)
        self.pool.see(
            state.view, now_s, in_force=held, epoch=state.lease.epoch
        )
        dissenters = self.pool.dissenters() if held else ()
        self._operator_log.agreement(dissenters, now_s)
        self._feed(_standing(state))
        self._heed_neighbours(state.neighbours)

    def _note_home_lock(self, answer: Answer) -> None:
        """Write down what our next life may free, should we die with it."""
        if not isinstance(answer, Granted) or answer.token is None:
            return
        if answer.host == self._home:
            self._saved_state.write_home_lock(self._home, answer.token)

    def _hear(self, event: WorkerEvent) -> None:
        match event:
            case ServicesRead(services=services):
                self.pool.learn(services)
            case HostAdded(host=host):
                self.pool.add_host(host)
            case MappingConfirmed(host=host):
                self.pool.confirm_mapping(host)
            case WorkerServing() | WorkerExited():
                self._feed(event)

    def _heed_neighbours(self, groups: Sequence[str]) -> None:
        """Leave if another pool works on the same nodes."""
        reasons = filter(None, map(self._find_overlap, groups))
        exit_message = next(reasons, None)
        if exit_message is not None and self.assignment.leaving is None:
            effect = Abort(exit_message, EX_CONFIG)
            self._operator_log.effect(effect)
            self._carry_out(effect)
            self._feed(Leave(restarting=False))

    def _heed_stop(self) -> None:
        wish = self._stop_wish
        if wish is None or wish == self.assignment.leaving:
            return
        if self._status == 0:  # A reason of our own is stronger.
            self._feed(wish)

    def _feed(self, event: Event) -> None:
        before = self.assignment.leaving
        now_s = self._clock.now_s()
        effects = self.assignment.handle(event, now_s)
        if before is None and self.assignment.leaving is not None:
            self._begin_to_leave(self.assignment.leaving, now_s)
        for effect in effects:
            self._operator_log.effect(effect)
            self._carry_out(effect)

    def _begin_to_leave(self, leave: Leave, now_s: float) -> None:
        self._operator_log.leaving(restarting=leave.restarting)
        patience_s = self._timing.drain_timeout_s + LEAVE_SLACK_S
        self._leave_by_s = now_s + patience_s

    # ---- out

    def _carry_out(self, effect: Effect) -> None:
        match effect:
            case TryLock() | Prove() | Release() | BreakLock():
                self.lock_thread.ask(effect)
            case Start(host=host, tenure=tenure):
                self._workers.start(host, tenure)
            case Stop(host=host):
                self._workers.stop(host)
            case Kill(host=host):
                self._workers.kill(host)
            case Abort(message=message, status=status):
                self.exit_message = message
                self._status = status
            case _:
                pass  # Told only.

    def _tell(self) -> None:
        now_s = self._clock.now_s()
        self._remember()
        # Before anybody else: what others may do once they hear of our ring,
        # our workers may not do any more.
        self._workers.deliver_view(
            WorkerView(
                deadline_s=self.assignment.deadline_s(),
                ring=tuple(sorted(self.pool.ring.hosts)),
                agreed_since_s=self.pool.agreed_since_s(now_s),
                agreed_until_s=self._asked_at_s,
                known=tuple(sorted(self.pool.heard_of)),
                opens_s=self.assignment.opens_s(now_s),
                confirmed_mappings=tuple(sorted(self.pool.confirmed_mappings)),
            )
        )
        self.pulse.wish(self._self_portrait(now_s), self.assignment.epoch)

    def _remember(self) -> None:
        """Write down what the next life shall know of the pool."""
        known, confirmed_mappings = self._remembered
        pool, folder = self.pool, self._saved_state
        if pool.known != known and folder.write_known(pool.known):
            known = pool.known
        if (
            pool.confirmed_mappings != confirmed_mappings
            and folder.write_confirmed_mappings(pool.confirmed_mappings)
        ):
            confirmed_mappings = pool.confirmed_mappings
        self._remembered = known, confirmed_mappings

    def _self_portrait(self, now_s: float) -> Member:
        leaving = self.assignment.leaving
        state, grace_s = MemberState.UP, 0.0
        if leaving is not None and leaving.restarting:
            state = MemberState.RESTARTING
            grace_s = self._timing.restart_grace_s
        elif leaving is not None:
            state = MemberState.LEAVING
        return dataclasses.replace(
            self._me,
            state=state,
            grace_s=grace_s,
            serving=self.assignment.serving(),
            wants_home=self.assignment.wants_home(now_s),
            ring=self.pool.ring.digest,
            known=tuple(sorted(self.pool.known)),
            confirmed_mappings=tuple(sorted(self.pool.confirmed_mappings)),
        )

    # ---- the end

    def _may_go(self) -> bool:
        if self.assignment.leaving is None:
            return False
        now_s = self._clock.now_s()
        if now_s >= self._leave_by_s:
            return True
        if self.assignment.has_workers:
            return False
        # Locks given back and our last word heard: but not at any price.
        self._leave_by_s = min(self._leave_by_s, now_s + FAREWELL_S)
        me = self._self_portrait(now_s)
        heard = self.pulse.wish(me, self.assignment.epoch)
        return heard and self.assignment.finished

    def _close(self) -> None:
        for host in self.assignment.phases():
            self._workers.kill(host)
        self.lock_thread.end(FAREWELL_S)
        self.pulse.end(FAREWELL_S)
        leaving = self.assignment.leaving
        # For a restart our entry stays until its term ends: it is what
        # tells the others to wait.
        leave = leaving is not None and not leaving.restarting
        self._group.close(leave=leave, timeout_s=FAREWELL_S)
        self._saved_state.close()


def _standing(state: State) -> LeaseStatus:
    return LeaseStatus(
        deadline_s=state.lease.deadline_s,
        epoch=state.lease.epoch,
        view=state.view,
        lost=state.lost,
        read_at_s=state.read_at_s,
    )

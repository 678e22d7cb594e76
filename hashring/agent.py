# SPDX-License-Identifier: Apache-2.0
"""The agent's main loop: events, effects, and the order of publishing views.

The loop runs in the main thread of the agent process, because the kernel ends
a worker when the thread that started it ends. It sends no request to the
coordination backend: the heartbeat thread (`heartbeat`) and the lock thread
(`lock_thread`) do, and the loop reads their results without waiting. Therefore
the loop notices the end of the lease, and reports it to the workers, even
while the backend hangs.

The loop starts and stops workers through the `Workers` protocol and does not
import Nova.
"""

import dataclasses
import socket
from collections.abc import Callable

import attrs

from hashring import events, paths, workers
from hashring.admission import Admission, FindOverlap
from hashring.agent_deaths import AgentDeaths
from hashring.agent_status import AgentStatus
from hashring.assignment import Assignment
from hashring.clock import Clock
from hashring.counts import EventCounter, HostMove
from hashring.errors import EX_CONFIG
from hashring.group import Group, Member, MemberState
from hashring.half_alive import HalfAliveWatch
from hashring.heartbeat import HeartbeatState, HeartbeatThread
from hashring.lease_terms import LeaseTerms
from hashring.lock_thread import Answer, LockThread, Request
from hashring.operator_log import OperatorLog
from hashring.opts import Timing
from hashring.path_proofs import PathProofs
from hashring.path_worker import PathWorker
from hashring.pool import Pool
from hashring.ring import Host
from hashring.saved_pool import SavedPool
from hashring.state_dir import SavedState

# Seconds between two turns of the main loop while the lock thread has
# unfinished requests, or the first heartbeat is not answered.
BUSY_INTERVAL_S = 0.05
# A leaving agent exits this many seconds after drain_timeout_s, even if it
# still has a worker or a lock.
LEAVE_SLACK_S = 10.0
# At its exit the agent waits at most so many seconds for the last lock
# request, then as long for the last heartbeat, then as long for the end of the
# connection to the backend.
CLOSE_TIMEOUT_S = 3.0


@attrs.define(eq=False, kw_only=True, repr=False, slots=False)
class Agent:
    """The main loop of one agent process.

    Only `request_stop` may be called from outside the main thread.

    :param membership: the connection to the group, not yet connected.
    :param workers: starts and stops the worker processes.
    :param home: the home host of this agent.
    :param timing: the durations; `Timing.from_conf(conf)`.
    :param saved_state: the state directory, already opened.
    :param machine: the name of this machine; others can read it.
    :param version: the version of this package; others can read it.
    :param page: the URL of this agent's port; others can read it.
    :param find_overlap: the agent exits with the message that it returns.
    :param on_turn: called after each turn of the loop, to feed a watchdog.
    :param on_status: called with the status after each turn; must not block.
    :param on_host_move: called when a host moves here or away; as above.
    """

    _group: Group = attrs.field(alias='membership')
    _workers: workers.Workers
    _home: Host
    _timing: Timing
    _clock: Clock
    _saved_state: SavedState
    _machine: str = attrs.field(factory=socket.gethostname)
    _version: str = ''
    _page: str = ''
    _find_overlap: FindOverlap = lambda group: None
    _on_turn: Callable[[], None] | None = None
    _on_status: Callable[[AgentStatus], None] | None = None
    _on_host_move: Callable[[HostMove], None] = lambda move: None

    def __attrs_post_init__(self) -> None:
        # The error because of which the agent exits; None if it exits on
        # request.
        self.exit_message: str | None = None
        self._stop_request: events.Leave | None = None
        self._status = 0
        self._leave_by_s = 0.0
        self._members_as_of_s = 0.0
        # What `assignment` has as the known hosts.
        self._adoptable: frozenset[Host] = frozenset()
        # When this agent last published no ring.
        self._no_ring_at_s = 0.0
        boot, home, now_s = self._group.boot, self._home, self._clock.now_s()
        term_s = self._timing.lease_term_s
        self._saved_pool = saved = SavedPool(self._saved_state)
        self._deaths = AgentDeaths(self._saved_state)
        self.assignment = Assignment(
            home,
            boot,
            self._timing,
            self._group.traits,
            left_lock=self._saved_state.read_home_lock(home),
            keeps_s=self._group.keeps_s,
            home_hold=self._deaths.new_hold(home, now_s),
            lease_terms=LeaseTerms(term_s, saved.longest_term_s),
        )
        self._me = Member(
            home,
            boot,
            machine=self._machine,
            version=self._version,
            page=self._page,
            wants_home=self.assignment.wants_home(now_s),
            lease_term_s=term_s,
        )
        self._admission = Admission(
            self._me, self.assignment.dead_entry_s, self._find_overlap
        )
        self._published = self._me
        self.pool = Pool(
            home,
            saved.known,
            self._timing.settle_s,
            saved.confirmed_mappings,
            saved.marks,
        )
        self.heartbeat_thread = HeartbeatThread(
            self._group, self._me, self._timing, self._clock
        )
        self.lock_thread = LockThread(
            self._group, self.heartbeat_thread.state().lease, self._clock
        )
        self._operator_log = OperatorLog(home, self._group.backend_name, now_s)
        self._counter = EventCounter(self._on_host_move)
        self._observed_paths = paths.ObservedPaths()
        self._path_states: dict[paths.Path, paths.PathState] = {}
        self._path_proofs = PathProofs(boot)
        self._half_alive = HalfAliveWatch(boot, self._timing.half_alive_s)
        self._path_worker = PathWorker(self._workers, self._clock)

    # ---- for the caller

    def run(self) -> int:
        """Run the loop until the agent has left; return its exit status.

        The status is 0 after `request_stop`, and 78 if the configuration
        cannot work; then `exit_message` has the reason, for the operator.
        Blocks for the life of the agent.
        """
        self.heartbeat_thread.start()
        self.lock_thread.start()
        while not self._may_exit():
            self.turn()
        self._close()
        return self._status

    def request_stop(self, *, for_good: bool = False) -> None:
        """Request that the loop ends; returns at once.

        Signal handlers and any thread may call it.

        :param for_good: this agent will not be started again soon, so that
            other agents may adopt its host at once. Otherwise they wait
            ``restart_grace_s``.
        """
        # This must not take a lock: a signal handler may have interrupted
        # the thread that holds it.
        self._stop_request = events.Leave(restarting=not for_good)

    def turn(self) -> None:
        """Handle all events, carry out their effects, publish the new view.

        This is one turn of the main loop. It waits up to ``loop_interval_s``
        for an event of a worker.
        """
        self.heartbeat_thread.note_turn()
        self._read_heartbeats()
        for answer in self.lock_thread.answers():
            self._save_home_lock(answer)
            self._handle(answer)
        for event in self._workers.events(self._wait_s()):
            self._handle_worker_event(event)
        self._apply_stop_request()
        adoptable = self._admission.adoptable(self.pool.known)
        if adoptable != self._adoptable:
            self._adoptable = adoptable
            self._handle(events.KnownHosts(adoptable))
        self._handle(events.Tick())
        if self.assignment.has_run_well(self._clock.now_s()):
            self._deaths.end()
        self._keep_path_worker()
        self._publish_view()
        if self._on_status is not None:
            self._on_status(self.status())
        if self._on_turn is not None:
            self._on_turn()

    # ---- events

    def _wait_s(self) -> float:
        leaves = self.assignment.leaving is not None
        may_exit_soon = leaves and not self.assignment.has_workers
        is_joining = self.heartbeat_thread.state().is_joining
        if self.lock_thread.busy or may_exit_soon or is_joining:
            return BUSY_INTERVAL_S
        return self._timing.loop_interval_s

    def _read_heartbeats(self) -> None:
        now_s = self._clock.now_s()
        state = self.heartbeat_thread.state()
        self._members_as_of_s = state.requested_at_s
        self._operator_log.log_lease(state, now_s)
        held = state.lease.held(now_s)
        self._counter.note_lease(held=held)
        # A list that was requested earlier may still show the former ring.
        is_newer = state.requested_at_s > self._no_ring_at_s
        self.pool.update_members(
            state.view,
            now_s,
            in_force=held and is_newer,
            epoch=state.lease.epoch,
        )
        disagreeing_members = self.pool.disagreeing_members() if held else ()
        self._operator_log.log_disagreement(disagreeing_members, now_s)
        self._operator_log.log_lease_terms(state.view.members)
        self._handle(state.lease_status())
        self._judge_paths(state, now_s, held=held)
        self._check_other_groups(state)

    def _judge_paths(
        self, state: HeartbeatState, now_s: float, *, held: bool
    ) -> None:
        """Decide whether this agent is half alive; needs a lease."""
        view = state.view
        tenures = self.assignment.tenures() | self._path_worker.tenures()
        states = self._path_states = self._observed_paths.combined(
            tenures, now_s
        )
        watch = self._half_alive
        if not watch.is_half_alive:  # Then its cause was logged.
            self._operator_log.log_paths(states, view.members, now_s)
        if not held:
            self._path_proofs.forget()
            watch.note_without_lease(states, now_s)
            return
        self._path_proofs.update(view, now_s)
        was_half_alive = watch.is_half_alive
        watch.update(states, view, now_s, state.requested_at_s)
        self._operator_log.log_half_alive(
            watch.cause, watch.return_wait_s, now_s
        )
        if watch.is_half_alive is not was_half_alive:
            self._handle(events.HalfAlive(watch.is_half_alive))

    def _save_home_lock(self, answer: Answer) -> None:
        """Save the token of the home lock, for the next agent process.

        If this process is killed, the next one can break that lock at once
        instead of waiting for its term to end.
        """
        if not isinstance(answer, events.LockGranted) or answer.token is None:
            return
        if answer.host == self._home:
            self._saved_state.write_home_lock(self._home, answer.token)

    def _handle_worker_event(self, event: workers.WorkerEvent) -> None:
        self._counter.note_event(event, self._clock.now_s())
        match event:
            case workers.ServicesRead(services=services):
                self.pool.update_services(services)
            case workers.PathsObserved(host, states, tenure):
                self._observed_paths.update(host, tenure, states)
            case workers.HostAdded(host=host):
                self.pool.add_host(host)
            case workers.HostForgotten(host=host):
                self.pool.forget_host(host)
            case workers.HostRetired(host=host):
                self._retire(host)
            case workers.MappingConfirmed(host=host):
                self.pool.confirm_mapping(host)
            case workers.WorkerExited(host=workers.NO_HOST):
                self._path_worker.note_exit(event)
            case workers.WorkerServing() | workers.WorkerExited():
                self._handle(event)

    def _retire(self, host: Host) -> None:
        """Forget a host that is empty; end if it is this agent's home.

        This agent's next worker would make the home host a new Service.
        """
        if host == self._home:
            self.pool.retire_home()
            self.request_stop(for_good=True)
        else:
            self.pool.forget_host(host)

    def _check_other_groups(self, state: HeartbeatState) -> None:
        """Leave if another group's pool has nodes of this agent's pool."""
        now_s, holds_home = self._clock.now_s(), self.assignment.holds_home()
        groups = state.other_groups if state.lease.held(now_s) else None
        exit_message = self._admission.why_refused(
            state.view.up(), groups, now_s, holds_home=holds_home
        )
        self._operator_log.log_former_pool(self._admission.former_pool)
        if exit_message is not None and self.assignment.leaving is None:
            effect = events.Abort(exit_message, EX_CONFIG)
            self._operator_log.log_effect(effect)
            self._carry_out(effect)
            self._handle(events.Leave(restarting=False))

    def _apply_stop_request(self) -> None:
        request = self._stop_request
        if request is None or request == self.assignment.leaving:
            return
        # An agent that exits with an error will not be back soon, so it does
        # not announce a restart.
        if self._status == 0:
            self._handle(request)

    def _handle(self, event: events.Event) -> None:
        before = self.assignment.leaving
        now_s = self._clock.now_s()
        effects = self.assignment.handle(event, now_s)
        if before is None and self.assignment.leaving is not None:
            self._begin_to_leave(self.assignment.leaving, now_s)
        for effect in effects:
            self._operator_log.log_effect(effect)
            self._counter.note_effect(effect, now_s)
            self._carry_out(effect)

    def _begin_to_leave(self, leave: events.Leave, now_s: float) -> None:
        self._operator_log.log_leaving(restarting=leave.restarting)
        limit_s = self._timing.drain_timeout_s + LEAVE_SLACK_S
        self._leave_by_s = now_s + limit_s

    # ---- effects

    def _carry_out(self, effect: events.Effect) -> None:
        if isinstance(effect, Request):
            self.lock_thread.submit(effect)
            return
        match effect:
            case events.Start(host=host, tenure=tenure):
                has_servers = host in self.pool.with_servers
                self._workers.start(host, tenure, has_servers)
            case events.Stop(host=host):
                self._workers.stop(host)
            case events.Kill(host=host):
                self._workers.kill(host)
            case events.Abort(message=message, status=status):
                self.exit_message = message
                self._status = status
            case _:
                pass  # `_handle` has logged the effect; nothing else is to do.

    def _keep_path_worker(self) -> None:
        """Keep a worker that observes the paths while no other one does."""
        if self.assignment.leaving is not None:
            self._path_worker.kill()
        elif self._half_alive.is_half_alive:
            self._path_worker.start()
        elif self.assignment.has_workers:
            self._path_worker.kill()

    def _publish_view(self) -> None:
        now_s = self._clock.now_s()
        self._saved_pool.save(self.pool, self.assignment.longest_term_s)
        # Our workers get the view before it is published to the group: peers
        # may act on the new ring as soon as they read it, so our workers must
        # already have left the old one.
        self._workers.deliver_view(
            workers.WorkerView(
                deadline_s=self.assignment.deadline_s(),
                ring=tuple(sorted(self.pool.ring.hosts)),
                agreed_since_s=self.pool.agreed_since_s(now_s),
                agreed_until_s=self._members_as_of_s,
                known=tuple(sorted(self.pool.hosts_to_read)),
                opens_s=self.assignment.opens_s(now_s),
                confirmed_mappings=tuple(sorted(self.pool.confirmed_mappings)),
                doubted_paths=self._path_proofs.doubted_paths,
                member_homes=tuple(sorted(self.pool.member_homes)),
            )
        )
        self._published = self._member(now_s)
        self.heartbeat_thread.set_member(
            self._published, self.assignment.epoch
        )

    def status(self) -> AgentStatus:
        """Return the status after the last turn; other threads may read it."""
        now_s = self._clock.now_s()
        cause = self._half_alive.cause
        return AgentStatus(
            turned_at_s=now_s,
            me=self._published,
            heartbeat=self.heartbeat_thread.state(),
            deadline_s=self.assignment.deadline_s(),
            hosts=self.assignment.states(),
            opens_s=self.assignment.opens_s(now_s),
            known=self.pool.known,
            ring=self.pool.ring,
            agreed_since_s=self.pool.agreed_since_s(now_s),
            lost_path=None if cause is None else cause.path,
            counts=self._counter.counts,
            services=self.pool.services,
            unserved_since_s=self.pool.unserved_since_s,
        )

    def _member(self, now_s: float) -> Member:
        ring = self.pool.ring.digest
        if not self.assignment.has_serving_worker:
            # Without a worker nobody here reads Nova's Services, so the ring
            # may be out of date for ever; other agents must not wait for it.
            ring, self._no_ring_at_s = '', now_s
        leaving = self.assignment.leaving
        state, grace_s = MemberState.UP, 0.0
        if leaving is not None and leaving.restarting:
            state = MemberState.RESTARTING
            grace_s = self._timing.restart_grace_s
        elif leaving is not None:
            state = MemberState.LEAVING
        serving = self.assignment.serving()
        wants_home = self.assignment.wants_home(now_s)
        return dataclasses.replace(
            self._me,
            state=state,
            grace_s=grace_s,
            serving=serving,
            with_servers=tuple(
                host for host in serving if host in self.pool.with_servers
            ),
            wants_home=wants_home,
            ring=ring,
            known=self.pool.known_to_publish(),
            confirmed_mappings=self.pool.mappings_to_publish(),
            marks=self.pool.marks,
            seen_term_s=self.assignment.seen_term_s,
            working_paths=self._observed_paths.worked(lasting=wants_home),
            failing_paths=self._observed_paths.published(now_s),
            path_proofs=self._path_proofs.proofs(self._path_states),
            is_half_alive=self._half_alive.is_half_alive,
            is_admitted=self._admission.is_admitted,
        )

    # ---- the end

    def _may_exit(self) -> bool:
        """Return whether the agent has left, or has no more time to leave."""
        if self.assignment.leaving is None:
            return False
        now_s = self._clock.now_s()
        if now_s >= self._leave_by_s:
            return True
        if self.assignment.has_workers:
            return False
        # Until the locks are released, the last record is published, and the
        # others have read that the home host is retired: they would adopt it.
        is_known = self.pool.is_retirement_known()
        limit_s = CLOSE_TIMEOUT_S if is_known else self._timing.lease_term_s
        self._leave_by_s = min(self._leave_by_s, now_s + limit_s)
        me = self._member(now_s)
        is_published = self.heartbeat_thread.set_member(
            me, self.assignment.epoch
        )
        return is_published and is_known and self.assignment.finished

    def _close(self) -> None:
        """Shut down: workers, lock thread, heartbeat thread, group, state.

        Workers end first, because a lock may be released only after its
        worker has ended.
        """
        self._path_worker.kill()
        for host in self.assignment.phases():
            self._workers.kill(host)
        self.lock_thread.end(CLOSE_TIMEOUT_S)
        self.heartbeat_thread.end(CLOSE_TIMEOUT_S)
        leaving = self.assignment.leaving
        # If the agent restarts, its entry stays in the group until its term
        # ends, because other agents read from it how long to wait.
        leave = leaving is not None and not leaving.restarting
        self._group.close(leave=leave, timeout_s=CLOSE_TIMEOUT_S)
        self._saved_state.close()

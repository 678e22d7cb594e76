# SPDX-License-Identifier: Apache-2.0
"""Assignment: rules that the transcripts do not spell out.

The transcripts in ``tests/transcripts`` show whole situations.
"""

import pytest

from hashring import events
from hashring.adoption import View
from hashring.assignment import Assignment
from hashring.group import Boot, Member
from hashring.host_states import Phase
from hashring.opts import Timing
from hashring.ring import Host
from hashring.workers import WorkerExited, WorkerServing
from tests.unit.hashring import coordination

C1 = Host('c1')
ME = Member(C1, Boot('me'))
HELD = events.LeaseStatus(12.0, 1, View((ME,)))


@pytest.fixture
def serving() -> Assignment:
    """An assignment that serves its home host under ticket 1."""
    made = Assignment(C1, ME.boot, Timing(), coordination.CACHE)
    assert made.handle(HELD, 0.0) == (events.TryLock(C1, 1),)
    made.handle(events.LockGranted(C1, 1), 0.0)
    return made


def test_no_lock_is_requested_without_a_lease() -> None:
    """Before the first counted heartbeat nothing is requested."""
    made = Assignment(C1, ME.boot, Timing(), coordination.CACHE)
    assert made.handle(events.Tick(), 0.0) == ()
    assert made.phases() == {C1: Phase.IDLE}


def test_event_that_comes_twice_has_no_effect(serving: Assignment) -> None:
    """A repeated grant, and a result of an older request, are ignored."""
    assert serving.handle(events.LockGranted(C1, 1), 1.0) == ()
    assert serving.handle(events.LockReleased(C1, 1), 1.0) == ()
    assert serving.handle(HELD, 1.0) == ()
    assert serving.serving() == (C1,)


def test_exit_of_an_older_worker_is_ignored(serving: Assignment) -> None:
    """Only the exit of the worker of this tenure releases the lock."""
    assert serving.handle(WorkerExited(C1, 1, tenure=7), 1.0) == ()
    (effect,) = serving.handle(WorkerExited(C1, 1, tenure=1), 1.0)
    assert isinstance(effect, events.Release)
    assert not serving.holds_home()


def test_gate_opens_a_term_after_the_grant(serving: Assignment) -> None:
    """On a backend that forgets locks a new worker waits for one term."""
    assert serving.opens_s(14.9) == {C1: 15.0}
    assert serving.opens_s(15.0) == {}


def test_gate_opens_after_the_longest_term(serving: Assignment) -> None:
    """The former holder may be an agent with a longer term than this one."""
    other = Member(Host('c2'), Boot('other'), lease_term_s=40.0)
    old = Member(Host('c3'), Boot('old'))  # It publishes no term.
    for now_s, members in (
        (1.0, (ME, old)),
        (2.0, (ME, old, other)),
        (3.0, (ME, old)),
    ):
        status = events.LeaseStatus(99.0, 1, View(members))
        serving.handle(status, now_s)
        opens_s = 40.0 if now_s >= 2.0 else 15.0
        assert serving.opens_s(now_s) == {C1: opens_s}
    serving.handle(events.LeaseStatus(99.0, 1, View((ME,))), 43.1)
    assert serving.opens_s(14.9) == {C1: 15.0}


def test_start_that_takes_long_is_no_healthy_tenure(
    serving: Assignment,
) -> None:
    """Deaths count on unless the worker has served for two minutes."""
    status = events.LeaseStatus(1e6, 1, View((ME,)))
    now_s = 0.0
    for serves_s in (0.0, 0.0, 119.0, 121.0):
        now_s += 500.0 - serves_s
        if serves_s:
            serving.handle(WorkerServing(C1, 0), now_s)
        now_s += serves_s
        (release,) = serving.handle(WorkerExited(C1, 1), now_s)
        assert isinstance(release, events.Release)
        assert serving.wants_home(now_s) is (serves_s != 119.0)
        serving.handle(events.LockReleased(C1, release.ticket), now_s)
        now_s += 20.0
        (tried,) = serving.handle(status, now_s)
        assert isinstance(tried, events.TryLock)
        serving.handle(events.LockGranted(C1, tried.ticket), now_s)


def test_deaths_before_a_long_tenure_do_not_count(
    serving: Assignment,
) -> None:
    """However that tenure ended: here, its lock was lost."""
    status = events.LeaseStatus(1e6, 1, View((ME,)))
    now_s = 0.0
    for _ in range(2):
        (release,) = serving.handle(WorkerExited(C1, 1), now_s)
        now_s = serve_again(serving, release, status, now_s)
    serving.handle(WorkerServing(C1, 0), now_s)
    now_s += 3600.0
    lost = events.LeaseStatus(1e6, 1, View((ME,)), frozenset({C1}), now_s)
    _, release = serving.handle(lost, now_s)
    now_s = serve_again(serving, release, status, now_s)
    (release,) = serving.handle(WorkerExited(C1, 1), now_s)
    assert serving.wants_home(now_s)
    serve_again(serving, release, status, now_s)
    assert serving.holds_home()


def serve_again(
    assignment: Assignment,
    release: events.Effect,
    status: events.LeaseStatus,
    now_s: float,
) -> float:
    """Release the home host, and begin a new tenure of it; return when."""
    assert isinstance(release, events.Release)
    released = events.LockReleased(C1, release.ticket)
    tried = assignment.handle(released, now_s)
    now_s += 2.0
    tried += assignment.handle(status, now_s)
    assert isinstance(tried[0], events.TryLock)
    assignment.handle(events.LockGranted(C1, tried[0].ticket), now_s)
    return now_s


def test_agent_is_finished_when_all_is_released(serving: Assignment) -> None:
    """A leaving agent is finished once its lock is released."""
    (stop,) = serving.handle(events.Leave(restarting=False), 1.0)
    assert isinstance(stop, events.Stop) and not serving.finished
    (release,) = serving.handle(WorkerExited(C1, 0, tenure=1), 2.0)
    assert isinstance(release, events.Release) and not serving.finished
    assert not serving.has_workers
    serving.handle(events.LockReleased(C1, release.ticket), 3.0)
    assert serving.finished


def test_home_stays_wanted_after_the_hold_off(serving: Assignment) -> None:
    """A refused lock does not make the agent refuse its home host again."""
    now_s = 0.0
    status = events.LeaseStatus(1e6, 1, View((ME,)))
    while serving.wants_home(now_s):
        (release,) = serving.handle(WorkerExited(C1, 1), now_s)
        assert isinstance(release, events.Release)
        serving.handle(events.LockReleased(C1, release.ticket), now_s)
        if not serving.wants_home(now_s):
            break
        now_s += 2.0
        (tried,) = serving.handle(status, now_s)
        assert isinstance(tried, events.TryLock)
        serving.handle(events.LockGranted(C1, tried.ticket), now_s)
    for _ in range(3):
        now_s += 15.0
        (tried,) = serving.handle(events.Tick(), now_s)
        assert isinstance(tried, events.TryLock)
        assert serving.wants_home(now_s)
        serving.handle(events.LockRefused(C1, tried.ticket), now_s)
        assert serving.wants_home(now_s)


def test_half_alive_agent_kills_its_workers_and_stands_back(
    serving: Assignment,
) -> None:
    """A worker is not drained: its tasks wait for the path that fails."""
    kill, release = serving.handle(events.HalfAlive(True), 1.0)
    assert kill == events.Kill(C1, events.Why.HALF_ALIVE)
    assert isinstance(release, events.Release)
    assert not serving.wants_home(1.0)
    serving.handle(events.LockReleased(C1, release.ticket), 2.0)
    held = events.LeaseStatus(1e6, 1, View((ME,)))
    orphans = events.KnownHosts(frozenset({C1, Host('c9')}))
    for event in (held, orphans, events.Tick()):
        assert serving.handle(event, 1000.0) == ()
    (tried,) = serving.handle(events.HalfAlive(False), 1001.0)
    assert serving.wants_home(1001.0)
    assert isinstance(tried, events.TryLock) and tried.host == C1


def test_half_alive_agent_does_not_use_a_lock_that_comes_then() -> None:
    """It was requested before."""
    made = Assignment(C1, ME.boot, Timing(), coordination.CACHE)
    made.handle(HELD, 0.0)
    made.handle(events.HalfAlive(True), 1.0)
    (release,) = made.handle(events.LockGranted(C1, 1), 1.0)
    assert isinstance(release, events.Release)


def test_half_alive_agent_kills_a_draining_or_paused_worker(
    serving: Assignment,
) -> None:
    """Neither can end by itself."""
    serving.handle(events.Tick(), 12.0)
    assert serving.phases() == {C1: Phase.PAUSED}
    kill, release = serving.handle(events.HalfAlive(True), 13.0)
    assert kill == events.Kill(C1, events.Why.HALF_ALIVE)
    assert isinstance(release, events.Release)


def test_entry_of_a_dead_process_is_no_rival_while_the_backend_keeps_it() -> (
    None
):
    """The URL may set longer time-outs than the lease term."""
    dead = Member(C1, Boot('dead'), serving=(C1,), lease_term_s=15.0)
    made = Assignment(C1, ME.boot, Timing(), coordination.CACHE, keeps_s=60.0)
    status = events.LeaseStatus(1e6, 1, View((ME, dead)))
    ends = [_aborts(made, status, at_s) for at_s in (0.0, 60.0, 179.0, 180.0)]
    assert ends == [False, False, False, True]


def _aborts(assignment: Assignment, event: events.Event, now_s: float) -> bool:
    effects = assignment.handle(event, now_s)
    return any(isinstance(effect, events.Abort) for effect in effects)


def test_entry_of_a_dead_process_may_outlive_an_outage_of_the_backend() -> (
    None
):
    """ZooKeeper and etcd begin all terms anew at the end of their outage."""
    dead = Member(C1, Boot('dead'), serving=(C1,))
    made = Assignment(C1, ME.boot, Timing(), coordination.ZOOKEEPER)
    view = View((ME, dead))
    assert not _aborts(made, events.LeaseStatus(14.0, 1, view), 2.0)
    for now_s in (13.0, 14.0, 40.0, 70.0):
        assert not _aborts(made, events.Tick(), now_s)
    again = events.LeaseStatus(1e6, 2, view)
    ends = [_aborts(made, again, at_s) for at_s in (72.0, 116.9, 117.0)]
    assert ends == [False, False, True]

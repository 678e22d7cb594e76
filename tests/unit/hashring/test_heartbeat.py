# SPDX-License-Identifier: Apache-2.0
"""The heartbeat thread, one heartbeat at a time."""

import dataclasses
import logging
from typing import Any

import pytest

from hashring import errors
from hashring.clock import SystemClock
from hashring.group import Boot, Member
from hashring.heartbeat import HeartbeatThread
from hashring.lease import Verdict
from hashring.opts import Timing
from hashring.ring import Host
from tests.fakes.clock import ManualClock
from tests.unit.hashring.coordination import CACHE, FakeGroup, Service

TIMING = Timing()
ME = Member(Host('c1'), Boot('b1'))


class Scene:
    """A fake service, a client of it, and the heartbeat thread."""

    def __init__(self) -> None:
        self.clock = ManualClock()
        self.service = Service(self.clock.now_s, 15.0, CACHE)
        self.slow_s = 0.0
        # How long the locks are read.
        self.locks_s = 0.0
        self.broken: Exception | None = None
        # The errors of two kinds of requests alone.
        self.refused: Exception | None = None
        self.groups_broken: Exception | None = None
        # How many connections work from now on; None: all do.
        self.lucky_count: int | None = None
        self.group = FakeGroup(self.service, ME.boot, self._fault)
        self.heartbeat_thread = HeartbeatThread(
            self.group, ME, TIMING, self.clock
        )

    def _fault(self, where: str) -> None:
        if self.broken is not None:
            raise self.broken
        if where == 'before publish' and self.refused is not None:
            raise self.refused
        if where == 'before groups' and self.groups_broken is not None:
            raise self.groups_broken
        if self.lucky_count is not None:
            used_count = self.group.reconnects_count - self._reconnects_count
            if used_count > self.lucky_count:
                raise errors.BackendUnavailable('reset')
        if where == 'after heartbeat':
            self.clock.advance(self.slow_s)
        if where == 'before lost':
            self.clock.advance(self.locks_s)

    def beat(self, after_s: float = 3.0) -> None:
        self._reconnects_count = self.group.reconnects_count
        self.clock.advance(after_s)
        self.heartbeat_thread.note_turn()
        self.heartbeat_thread.beat()

    def held(self) -> bool:
        return self.heartbeat_thread.state().lease.held(self.clock.now_s())


@pytest.fixture
def scene() -> Scene:
    return Scene()


def test_the_first_beat_joins_and_counts(scene: Scene) -> None:
    """After one heartbeat the agent is a member and has a lease."""
    scene.beat()
    assert scene.held()
    assert scene.heartbeat_thread.state().view.members == (ME,)


def test_agent_joins_until_its_first_heartbeat_is_answered(
    scene: Scene,
) -> None:
    """Its record in the group is not enough; an error is an answer."""
    state = scene.heartbeat_thread.state()
    assert state.is_joining
    lease = state.lease.joined(1.0)
    assert dataclasses.replace(state, lease=lease).is_joining
    scene.broken = errors.BackendUnavailable('reset')
    scene.beat()
    assert not scene.heartbeat_thread.state().is_joining
    scene.broken = None
    scene.beat()
    assert not scene.heartbeat_thread.state().is_joining


def test_changed_record_is_published_with_the_next_heartbeat(
    scene: Scene,
) -> None:
    """A changed record is published with the next heartbeat."""
    scene.beat()
    epoch = scene.heartbeat_thread.state().lease.epoch
    wish = dataclasses.replace(ME, serving=(Host('c1'),))
    assert not scene.heartbeat_thread.set_member(wish, epoch)
    assert scene.heartbeat_thread.is_urgent
    scene.beat()
    assert scene.heartbeat_thread.set_member(wish, epoch)
    assert not scene.heartbeat_thread.is_urgent
    assert scene.service.members() == (wish,)


def test_an_older_record_that_came_late_is_replaced(scene: Scene) -> None:
    """An older record that a delayed request wrote is replaced."""
    scene.beat()
    epoch = scene.heartbeat_thread.state().lease.epoch
    wish = dataclasses.replace(ME, ring='digest')
    scene.heartbeat_thread.set_member(wish, epoch)
    scene.beat()
    scene.service.rewrite(ME)
    scene.beat()
    assert scene.service.members() == (ME,)
    scene.beat()
    assert scene.service.members() == (wish,)
    assert scene.heartbeat_thread.set_member(wish, epoch)


def test_new_epoch_publishes_no_host_as_served(
    scene: Scene,
) -> None:
    """In a new epoch no host is published as served at first."""
    scene.beat()
    epoch = scene.heartbeat_thread.state().lease.epoch
    scene.heartbeat_thread.set_member(
        dataclasses.replace(ME, serving=(Host('c1'),)), epoch
    )
    scene.beat()
    scene.service.forget()
    scene.beat()
    scene.beat()
    assert scene.held()
    assert scene.heartbeat_thread.state().lease.epoch > epoch
    assert scene.service.members() == (ME,)


def test_member_that_the_backend_forgot_joins_again(scene: Scene) -> None:
    """A member list without the agent ends the lease; it joins again."""
    scene.beat()
    scene.service.forget()
    scene.beat()
    assert not scene.held()
    assert scene.heartbeat_thread.state().verdict is Verdict.NOT_LISTED
    scene.beat()
    assert scene.held()


def test_a_slow_heartbeat_does_not_count(scene: Scene) -> None:
    """A heartbeat that returns after more than a term does not count."""
    scene.beat()
    scene.slow_s = 14.0
    scene.beat()
    assert not scene.held()
    scene.slow_s = 0.0
    scene.beat(0.1)
    assert scene.held()


def test_lock_granted_while_others_are_read_is_not_lost(scene: Scene) -> None:
    """What was read may be about the lock that was released before it."""
    scene.beat()
    scene.locks_s = 1.0
    scene.beat()
    granted_s = scene.clock.now_s() - 0.5
    state = scene.heartbeat_thread.state()
    assert state.requested_at_s <= state.read_at_s < granted_s


def test_lost_locks_are_reported(scene: Scene) -> None:
    """A lock that the backend lost is in the state."""
    scene.beat()
    assert scene.group.try_lock(Host('c1'))
    scene.service.give_back(Host('c1'), scene.service.token(Host('c1')))
    scene.beat()
    assert scene.heartbeat_thread.state().lost == {'c1'}
    assert scene.heartbeat_thread.state().read_at_s == scene.clock.now_s()


def test_other_groups_are_read_until_this_agent_is_admitted(
    scene: Scene,
) -> None:
    """Other groups are read two terms after the start, and each term then."""
    scene.service.other_groups = {'dead': ()}
    scene.beat()
    scene.beat()
    assert scene.heartbeat_thread.state().other_groups is None
    for name in ('other', 'later'):
        scene.service.other_groups = {name: ()}
        for _ in range(10):
            scene.beat()
        assert scene.heartbeat_thread.state().other_groups == {name: ()}
    admitted = dataclasses.replace(ME, is_admitted=True)
    scene.heartbeat_thread.set_member(admitted, 0)
    scene.service.other_groups = {'last': ()}
    for _ in range(20):
        scene.beat()
    assert scene.heartbeat_thread.state().other_groups == {'later': ()}


@pytest.mark.parametrize('joins_before', [False, True])
def test_other_groups_are_read_two_terms_after_an_outage(
    scene: Scene, joins_before: bool
) -> None:
    """The backend has lost the others, and they have not joined yet.

    An agent that read at once would find itself alone, and be admitted.
    """
    if joins_before:
        scene.beat()
    scene.broken = errors.BackendUnavailable('no route')
    for _ in range(20):
        scene.beat()
    scene.broken = None
    scene.service.forget()
    for _ in range(10):
        scene.beat()
    assert scene.held()
    assert scene.heartbeat_thread.state().other_groups is None
    for _ in range(10):
        scene.beat()
    assert scene.heartbeat_thread.state().other_groups == {}


def test_other_groups_read_before_an_outage_are_forgotten(
    scene: Scene,
) -> None:
    """They would be compared with the few agents that have joined again."""
    scene.service.other_groups = {'other': ()}
    for _ in range(15):
        scene.beat()
    assert scene.heartbeat_thread.state().other_groups == {'other': ()}
    scene.broken = errors.BackendUnavailable('no route')
    for _ in range(20):
        scene.beat()
    scene.broken = None
    for _ in range(30):
        if scene.held():
            break
        scene.beat()
    assert scene.held()
    assert scene.heartbeat_thread.state().other_groups is None


def test_outage_is_logged_once(
    scene: Scene, caplog: pytest.LogCaptureFixture
) -> None:
    """An outage is logged once, and so is its end."""
    caplog.set_level(logging.INFO)
    scene.beat()
    scene.broken = errors.BackendUnavailable('refused')
    scene.beat()
    assert caplog.messages == []
    for _ in range(5):
        scene.beat()
    scene.broken = None
    for _ in range(3):
        scene.beat()
    assert caplog.messages == [
        'The coordination backend etcd3+http://etcd:2379 does not answer, '
        'trying on: refused',
        'The coordination backend etcd3+http://etcd:2379 answers again',
    ]


def test_lease_is_renewed_though_no_record_is_accepted(
    scene: Scene, caplog: pytest.LogCaptureFixture
) -> None:
    """An etcd without space renews leases; its refusal is logged once."""
    scene.beat()
    wish = dataclasses.replace(ME, serving=(Host('c1'),), ring='digest')
    scene.heartbeat_thread.set_member(wish, 1)
    scene.refused = errors.RequestRefused('no space')
    for _ in range(20):
        scene.beat()
        assert scene.held()
    assert scene.heartbeat_thread.state().failure == 'no space'
    assert caplog.messages == [
        'The coordination backend etcd3+http://etcd:2379 does not answer, '
        'trying on: no space',
    ]
    scene.refused = None
    scene.beat()
    scene.beat()
    assert scene.service.members() == (wish,)
    assert scene.heartbeat_thread.state().failure is None


@pytest.mark.parametrize(
    'change', [{'serving': ()}, {'wants_home': False}], ids=str
)
def test_lease_ends_if_others_would_wait_in_vain(
    scene: Scene, change: dict[str, Any]
) -> None:
    """A record that cannot be replaced must not keep a host for this agent."""
    former = dataclasses.replace(ME, serving=(Host('c1'),))
    scene.beat()
    scene.heartbeat_thread.set_member(former, 1)
    scene.beat()
    assert scene.service.members() == (former,)
    scene.heartbeat_thread.set_member(dataclasses.replace(former, **change), 1)
    scene.refused = errors.RequestRefused('no space')
    for _ in range(5):
        scene.beat()
    assert not scene.held()


def test_wish_for_the_home_host_that_is_refused_ends_no_lease(
    scene: Scene,
) -> None:
    """Others may adopt it, as before; this agent serves others' hosts."""
    former = dataclasses.replace(ME, serving=(Host('c2'),), wants_home=False)
    scene.beat()
    scene.heartbeat_thread.set_member(former, 1)
    scene.beat()
    assert scene.service.members() == (former,)
    wish = dataclasses.replace(former, wants_home=True)
    scene.heartbeat_thread.set_member(wish, 1)
    scene.refused = errors.RequestRefused('no space')
    for _ in range(20):
        scene.beat()
        assert scene.held()


def test_former_record_renews_no_lease_that_has_lapsed(scene: Scene) -> None:
    """The record may name hosts whose locks were lost meanwhile."""
    served = dataclasses.replace(ME, serving=(Host('c1'),))
    scene.beat()
    scene.heartbeat_thread.set_member(served, 1)
    scene.beat()
    scene.slow_s = 14.0
    scene.beat()
    scene.slow_s = 0.0
    scene.refused = errors.RequestRefused('no space')
    for _ in range(20):
        scene.beat()
        assert not scene.held()


def test_other_groups_that_cannot_be_read_are_logged(
    scene: Scene, caplog: pytest.LogCaptureFixture
) -> None:
    """Until they are read, this agent adopts no host."""
    scene.groups_broken = errors.BackendUnavailable('bad group')
    for _ in range(20):
        scene.beat()
    assert scene.held()
    assert caplog.messages == [
        'The coordination backend etcd3+http://etcd:2379 does not answer, '
        'trying on: bad group',
    ]


def test_failed_heartbeat_is_repeated_sooner(scene: Scene) -> None:
    """A single lost server of the backend costs no lease."""
    assert scene.heartbeat_thread.pause_s == 1.0  # It has not joined yet.
    scene.beat()
    assert scene.heartbeat_thread.pause_s == TIMING.heartbeat_interval_s
    scene.broken = errors.BackendUnavailable('away')
    scene.beat()
    assert scene.heartbeat_thread.pause_s == 1.0
    scene.broken = None
    scene.beat()
    assert scene.heartbeat_thread.pause_s == TIMING.heartbeat_interval_s


def test_first_failure_is_logged_before_the_first_connection(
    scene: Scene, caplog: pytest.LogCaptureFixture
) -> None:
    """Without a backend an agent says at once what it waits for."""
    scene.broken = errors.BackendUnavailable('refused')
    scene.beat()
    assert caplog.messages == [
        'The coordination backend etcd3+http://etcd:2379 does not answer, '
        'trying on: refused'
    ]


def test_single_failures_are_not_logged(
    scene: Scene, caplog: pytest.LogCaptureFixture
) -> None:
    """A heartbeat that succeeds starts the count of failures anew."""
    scene.beat()
    for _ in range(3):
        scene.broken = errors.BackendUnavailable('refused')
        scene.beat()
        scene.broken = None
        scene.beat()
    assert caplog.messages == []


def test_lease_ends_when_the_group_lacks_this_agent(scene: Scene) -> None:
    """The answer "not in the group" is no heartbeat, but a new epoch."""
    scene.beat()
    epoch = scene.heartbeat_thread.state().lease.epoch
    scene.broken = errors.NotInGroup('expired')
    scene.beat()
    state = scene.heartbeat_thread.state()
    assert (state.verdict, scene.held()) == (Verdict.NOT_LISTED, False)
    assert state.lease.epoch == epoch + 1


def test_unexpected_exception_does_not_end_the_thread(scene: Scene) -> None:
    """After an unexpected exception the next heartbeat is sent."""
    scene.broken = RuntimeError('a mistake')
    scene.beat()
    assert (
        scene.heartbeat_thread.state().failure == "RuntimeError('a mistake')"
    )
    scene.broken = None
    scene.beat()
    assert scene.held()


def test_the_thread_beats_and_ends() -> None:
    """The started thread joins by itself and stops at `end`."""
    clock = SystemClock()
    service = Service(clock.now_s, 15.0, CACHE)
    heartbeat_thread = HeartbeatThread(
        FakeGroup(service, ME.boot), ME, TIMING, clock
    )
    heartbeat_thread.start()
    ends_s = clock.now_s() + 10.0
    while not heartbeat_thread.state().lease.held(clock.now_s()):
        assert clock.now_s() < ends_s
        clock.sleep(0.01)
    heartbeat_thread.end(5.0)
    assert not heartbeat_thread._thread.is_alive()


def test_lapsed_lease_is_renewed_when_the_backend_answers_steadily(
    scene: Scene,
) -> None:
    """Its locks may end meanwhile, so that another agent can adopt."""
    scene.beat()
    scene.broken = errors.BackendUnavailable('reset')
    for _ in range(4):
        scene.beat()
    assert not scene.held()
    scene.broken, failed_count = None, scene.group.reconnects_count
    for count in range(1, 7):
        scene.beat(1.0)
        assert not scene.held()
        # An open connection may work while most new ones are reset.
        assert scene.group.reconnects_count - failed_count == 2 * count
    for _ in range(3):
        scene.beat(1.0)
    assert scene.held()
    reconnects_count = scene.group.reconnects_count
    scene.beat()
    assert scene.group.reconnects_count == reconnects_count


def test_single_answers_renew_no_lapsed_lease(scene: Scene) -> None:
    """Most connections are reset; an open one works for some requests."""
    scene.beat()
    scene.broken = errors.BackendUnavailable('reset')
    for _ in range(5):
        scene.beat()
    for lucky_count in (1, 5, 6, 15):
        scene.broken = None
        for _ in range(lucky_count):
            scene.beat(1.0)
        assert not scene.held()
        assert scene.service.members() == ()
        scene.broken = errors.BackendUnavailable('reset')
        scene.beat(1.0)
    scene.broken = None
    for _ in range(22):
        scene.beat(1.0)
    assert scene.held()


def test_failure_within_the_term_costs_nothing(scene: Scene) -> None:
    """One success is enough as long as the lease is in force."""
    scene.beat()
    for _ in range(5):
        scene.broken = errors.BackendUnavailable('reset')
        for _ in range(3):
            scene.beat()
        scene.broken = None
        scene.beat(1.0)
        assert scene.held()


def test_agent_that_starts_before_the_backend_is_not_on_probation(
    scene: Scene,
) -> None:
    """It has no lock that could end."""
    scene.broken = errors.BackendUnavailable('refused')
    for _ in range(5):
        scene.beat()
    scene.broken = None
    scene.beat()
    assert scene.held()
    # A client that has not connected yet cannot read.
    assert scene.group.reconnects_count == 0


def test_heartbeat_after_a_failed_one_needs_two_connections(
    scene: Scene,
) -> None:
    """One that works while most are reset must not renew the lease."""
    scene.beat()
    scene.broken = errors.BackendUnavailable('reset')
    scene.beat()
    scene.broken = None
    scene.lucky_count = 1
    scene.beat()
    assert scene.heartbeat_thread.state().failure is not None
    scene.lucky_count = 2
    scene.beat()
    assert scene.heartbeat_thread.state().failure is None


def test_no_heartbeat_is_sent_while_the_main_loop_hangs(
    scene: Scene, caplog: pytest.LogCaptureFixture
) -> None:
    """Its workers may not act any more, and others must get its hosts."""
    scene.beat()
    for _ in range(12):
        scene.clock.advance(3.0)
        scene.heartbeat_thread.beat()
    assert not scene.held()
    assert scene.service.members() == ()
    assert caplog.text.count('has not turned for 18 s') == 1
    assert not scene.heartbeat_thread.is_urgent
    scene.heartbeat_thread.note_turn()
    assert scene.heartbeat_thread.is_urgent
    for _ in range(2):  # It joins anew, as the service has forgotten it.
        scene.beat()
    assert scene.held()


def test_process_that_stood_still_is_not_taken_for_a_hung_loop(
    scene: Scene, caplog: pytest.LogCaptureFixture
) -> None:
    """The machine was suspended, and this thread is the first that goes on.

    So it is after a slow start of the agent, before the first turn.
    """
    scene.clock.advance(600.0)
    scene.heartbeat_thread.beat()
    assert 'has not turned' not in caplog.text
    scene.beat(0.1)
    assert scene.held()

# SPDX-License-Identifier: Apache-2.0
"""The lock thread: order of requests, results, and failed requests."""

import pytest

from hashring import errors, events
from hashring.clock import SystemClock
from hashring.group import Boot, LockToken
from hashring.lease import Lease
from hashring.lock_thread import Answer, LockThread, Request
from hashring.ring import Host
from tests.fakes.clock import ManualClock
from tests.unit.hashring.coordination import (
    ETCD,
    ZOOKEEPER,
    FakeGroup,
    Service,
)

C1 = Host('c1')


class Scene:
    """A lock thread over the fake service."""

    def __init__(self) -> None:
        self.clock = ManualClock()
        self.service = Service(self.clock.now_s, 15.0, ZOOKEEPER)
        self.slow_s = 0.0
        self.broken: Exception | None = None
        self.group = FakeGroup(self.service, Boot('b1'), self._fault)
        self.lock_thread = LockThread(self.group, Lease(15.0, 3.0), self.clock)

    def _fault(self, where: str) -> None:
        if self.broken is not None:
            raise self.broken
        self.clock.advance(self.slow_s)

    def ask(self, *requests: Request) -> list[Answer]:
        for request in requests:
            self.lock_thread.submit(request)
        self.lock_thread.run_pending()
        return self.lock_thread.answers()


@pytest.fixture
def scene() -> Scene:
    return Scene()


def test_requests_are_served_in_order(scene: Scene) -> None:
    """A release that was submitted before a try is done before it."""
    answers = scene.ask(
        events.TryLock(C1, 1),
        events.Prove(C1, 2),
        events.Release(C1, 3, events.Why.HAND_BACK),
        events.BreakLock(C1, LockToken('1')),
        events.TryLock(C1, 4),
    )
    assert answers == [
        events.LockGranted(C1, 1),
        events.LockChecked(C1, 2, ours=True),
        events.LockReleased(C1, 3),
        events.LockGranted(C1, 4),
    ]
    assert not scene.lock_thread.busy


@pytest.mark.parametrize(
    'error', [errors.BackendUnavailable('away'), ValueError('a mistake')]
)
def test_failed_request_has_the_less_favourable_result(
    scene: Scene, error: Exception
) -> None:
    """A failed request counts as refused, not proven, not released."""
    assert scene.ask(events.TryLock(C1, 1)) == [events.LockGranted(C1, 1)]
    scene.broken = error
    assert scene.ask(
        events.TryLock(C1, 2),
        events.Prove(C1, 3),
        events.Release(C1, 4, events.Why.HAND_BACK),
        events.BreakLock(C1, LockToken('1')),
    ) == [
        events.LockRefused(C1, 2),
        events.LockChecked(C1, 3, ours=False),
        events.LockReleased(C1, 4, done=False),
    ]


def test_a_slow_grant_is_given_back(scene: Scene) -> None:
    """A slow grant does not count, and its lock can be released."""
    scene.slow_s = 1.0
    assert scene.ask(events.TryLock(C1, 1)) == [
        events.LockGranted(C1, 1, counts=False)
    ]
    assert scene.ask(events.Release(C1, 2, events.Why.USELESS)) == [
        events.LockReleased(C1, 2)
    ]
    assert scene.service.take(C1)


def test_grant_has_the_token_of_its_lock() -> None:
    """A token breaks the lock of its own acquisition and no other."""
    clock = ManualClock()
    service = Service(clock.now_s, 15.0, ETCD)
    group = FakeGroup(service, Boot('b1'))
    lock_thread = LockThread(group, Lease(15.0, 3.0), clock)
    tokens = []
    for ticket in (1, 3):
        lock_thread.submit(events.TryLock(C1, ticket))
        lock_thread.submit(events.Release(C1, ticket + 1, events.Why.LEAVING))
        lock_thread.run_pending()
        granted, _ = lock_thread.answers()
        assert (
            isinstance(granted, events.LockGranted)
            and granted.token is not None
        )
        tokens.append(granted.token)
    assert len(set(tokens)) == 2
    lock_thread.submit(events.TryLock(C1, 5))
    for token in tokens:
        lock_thread.submit(events.BreakLock(C1, token))
    lock_thread.run_pending()
    (granted,) = lock_thread.answers()
    assert (
        isinstance(granted, events.LockGranted) and granted.token is not None
    )
    assert not service.take(C1)
    lock_thread.submit(events.BreakLock(C1, granted.token))
    lock_thread.run_pending()
    assert service.take(C1)


def test_lock_whose_release_failed_is_acquired_again(scene: Scene) -> None:
    """A lock whose release failed can be acquired again."""
    assert scene.ask(events.TryLock(C1, 1)) == [events.LockGranted(C1, 1)]
    scene.broken = errors.BackendUnavailable('away')
    scene.ask(events.Release(C1, 2, events.Why.HAND_BACK))
    scene.broken = None
    assert scene.ask(events.TryLock(C1, 3)) == [events.LockGranted(C1, 3)]


def test_the_thread_serves_and_ends() -> None:
    """The started thread serves a request and stops at `end`."""
    clock = SystemClock()
    service = Service(clock.now_s, 15.0, ZOOKEEPER)
    group = FakeGroup(service, Boot('b1'))
    lock_thread = LockThread(group, Lease(15.0, 3.0), clock)
    lock_thread.start()
    lock_thread.submit(events.TryLock(C1, 1))
    assert lock_thread.busy
    lock_thread.end(5.0)
    assert lock_thread.answers() == [events.LockGranted(C1, 1)]
    assert not lock_thread.busy

# SPDX-License-Identifier: Apache-2.0
"""The promises of `Group`, on every backend and on the fake."""

import contextlib
import dataclasses
import itertools
import threading
from collections.abc import Iterator

import kazoo.exceptions
import kazoo.recipe.lock
import pytest

from hashring import errors
from hashring.clock import SystemClock
from hashring.group import Group, LockToken, Member, MemberState
from hashring.membership import read_pools
from hashring.ring import Host
from tests.contract.coordination.backends import (
    TERM_S,
    BackendUnderTest,
    Tooz,
    persist,
)

CLOCK = SystemClock()
# Valid base64, as tokens of etcd, and a number, as tokens of the fake.
OF_NOBODY = LockToken('9999')
_names = itertools.count(1)


@pytest.fixture
def host() -> Host:
    """A host whose lock no other test uses."""
    return Host(f'host-{next(_names)}')


class Clients:
    """The connections of one test."""

    def __init__(self, backend: BackendUnderTest) -> None:
        self._backend = backend
        self._groups: list[Group] = []

    def join(self, home: str) -> tuple[Group, Member]:
        group, me = self._backend.group(home)
        persist(group.connect)
        persist(lambda: group.join(me))
        group.heartbeat()
        self._groups.append(group)
        return group, me

    def close(self) -> None:
        # In parallel, because each driver takes a second to stop.
        threads = [
            threading.Thread(
                target=group.close, kwargs={'leave': True, 'timeout_s': 5.0}
            )
            for group in self._groups
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()


@pytest.fixture
def clients(backend: BackendUnderTest) -> Iterator[Clients]:
    made = Clients(backend)
    yield made
    made.close()


def beat_for(seconds: float, *groups: Group) -> None:
    ends_s = CLOCK.now_s() + seconds
    while CLOCK.now_s() < ends_s:
        for group in groups:
            group.heartbeat()
            group.members()
        CLOCK.sleep(TERM_S / 10)


def test_members_see_each_other(clients: Clients) -> None:
    """Two members read what each of them has published."""
    (one, me), (two, you) = clients.join('c1'), clients.join('c2')
    assert one.members() == two.members() == (me, you)


def test_publishing_replaces(clients: Clients) -> None:
    """A changed record is read at once by both members."""
    (one, me), (two, you) = clients.join('c1'), clients.join('c2')
    changed = dataclasses.replace(
        me,
        state=MemberState.RESTARTING,
        grace_s=30.5,
        serving=(Host('c1'), Host('c4')),
        wants_home=False,
        ring='abc',
    )
    one.publish(changed)
    assert two.members() == (changed, you)
    assert one.members() == (changed, you)


def test_other_groups_are_seen_while_somebody_is_up_in_them(
    backend: BackendUnderTest, clients: Clients
) -> None:
    """Only groups with a live member of another home host are read."""
    if not isinstance(backend, Tooz):
        pytest.skip('the fake has one group')
    one, _ = clients.join('c1')
    assert one.other_groups() == {}
    backend.pool = 'another/*'
    clients.join('c1')
    assert one.other_groups() == {}
    two, you = clients.join('c2')
    assert list(one.other_groups()) == ['another/*']
    two.publish(dataclasses.replace(you, state=MemberState.LEAVING))
    assert one.other_groups() == {}


def test_one_home_twice(clients: Clients) -> None:
    """Two processes with one home host are two members."""
    (_, me), (two, again) = clients.join('c1'), clients.join('c1')
    assert set(two.members()) == {me, again}


def test_joining_twice_is_once(clients: Clients) -> None:
    """A member can join again while its entry exists."""
    one, me = clients.join('c1')
    persist(lambda: one.join(me))
    assert one.members() == (me,)


@pytest.mark.slow
def test_silent_member_vanishes_after_a_term(
    backend: BackendUnderTest, clients: Clients
) -> None:
    """A member without heartbeats vanishes after a term."""
    if backend.name == 'zookeeper':
        pytest.skip('kazoo beats by itself as long as the process lives')
    (one, me), (_, silent) = clients.join('c1'), clients.join('c2')
    beat_for(TERM_S * 0.5, one)
    assert set(one.members()) == {me, silent}
    beat_for(TERM_S * 1.2, one)
    assert one.members() == (me,)


def test_expired_member_can_join_again(
    backend: BackendUnderTest, clients: Clients
) -> None:
    """A member can join again after it was silent for over a term."""
    (one, me), (two, you) = clients.join('c1'), clients.join('c2')
    beat_for(TERM_S * 1.5, two)
    if backend.name != 'zookeeper':  # kazoo sends heartbeats by itself.
        assert two.members() == (you,)
    one.join(me)
    one.heartbeat()
    assert two.members() == (me, you)


def test_leaving_member_is_gone_at_once(clients: Clients) -> None:
    """A member that leaves is gone at once."""
    (one, me), (two, _) = clients.join('c1'), clients.join('c2')
    two.close(leave=True, timeout_s=5.0)
    assert one.members() == (me,)


def test_member_that_closes_without_leaving_stays_listed(
    clients: Clients,
) -> None:
    """A member that closes without leaving stays listed."""
    (one, me), (two, you) = clients.join('c1'), clients.join('c2')
    two.close(leave=False, timeout_s=5.0)
    assert one.members() == (me, you)


def test_lock_has_one_holder(clients: Clients, host: Host) -> None:
    """A lock is refused to another member until it is released."""
    (one, _), (two, _) = clients.join('c1'), clients.join('c2')
    assert one.try_lock(host)
    assert not two.try_lock(host)
    one.release(host)
    assert two.try_lock(host)
    two.release(host)


def test_holder_can_acquire_its_lock_again(
    clients: Clients, host: Host
) -> None:
    """The holder of a lock can acquire it again."""
    one, _ = clients.join('c1')
    assert one.try_lock(host)
    assert one.try_lock(host)
    one.release(host)
    one.release(host)  # A second release does nothing.


def test_refused_try_blocks_no_other_member(
    backend: BackendUnderTest,
    clients: Clients,
    host: Host,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A refused try that could not be undone blocks no other member."""
    if backend.name != 'zookeeper':
        pytest.skip('a try leaves nothing behind there')
    (one, _), (two, _) = clients.join('c1'), clients.join('c2')
    assert one.try_lock(host)
    with monkeypatch.context() as patched:
        patched.setattr(kazoo.recipe.lock.Lock, '_delete_node', _lost)
        assert not two.try_lock(host)
    one.release(host)
    assert not one.try_lock(host)
    two.heartbeat()  # `two` does not try again.
    assert one.try_lock(host)
    one.release(host)
    assert two.try_lock(host)
    two.release(host)
    assert one.try_lock(host)
    one.release(host)


def test_failed_first_try_does_not_break_heartbeats(
    clients: Clients, host: Host, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A first try that failed does not make the heartbeat fail."""
    one, _ = clients.join('c1')
    with monkeypatch.context() as patched:
        patched.setattr(kazoo.recipe.lock.Lock, '_ensure_path', _lost)
        patched.setattr(kazoo.recipe.lock.Lock, '_inner_acquire', _lost)
        with contextlib.suppress(errors.BackendUnavailable):
            one.try_lock(host)
    one.heartbeat()
    assert one.try_lock(host)
    one.release(host)


def _lost(*args: object) -> None:
    raise kazoo.exceptions.ConnectionLoss


def test_a_race_has_one_winner(clients: Clients, host: Host) -> None:
    """A lock that three members request at once is granted once."""
    groups = [clients.join(f'c{n}')[0] for n in range(3)]
    won: list[int] = []

    def race(number: int) -> None:
        if groups[number].try_lock(host):
            won.append(number)

    for _ in range(5):
        won.clear()
        threads = [threading.Thread(target=race, args=(n,)) for n in range(3)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert len(won) == 1
        groups[won[0]].release(host)


def test_proof_of_a_lock(clients: Clients, host: Host) -> None:
    """`owns_lock` is True for a held lock and False otherwise."""
    one, _ = clients.join('c1')
    assert not one.owns_lock(host)
    assert one.try_lock(host)
    assert one.owns_lock(host)
    assert one.lost_locks() == frozenset()
    one.release(host)
    assert not one.owns_lock(host)


@pytest.mark.slow
def test_a_held_lock_lasts_as_long_as_it_is_renewed(
    clients: Clients, host: Host
) -> None:
    """Heartbeats keep a lock for longer than its term."""
    (one, _), (two, _) = clients.join('c1'), clients.join('c2')
    assert one.try_lock(host)
    for _ in range(2):
        beat_for(TERM_S * 0.8, one, two)
        assert not two.try_lock(host)
    one.release(host)


@pytest.mark.slow
def test_a_lock_outlives_its_silent_holder_by_a_term(
    backend: BackendUnderTest, clients: Clients, host: Host
) -> None:
    """A silent holder loses its lock after a term."""
    if backend.name in ('file', 'zookeeper'):
        pytest.skip('a live process keeps its lock there, however silent')
    (one, me), (two, _) = clients.join('c1'), clients.join('c2')
    assert one.try_lock(host)
    beat_for(TERM_S * 0.4, two)
    assert not two.try_lock(host)
    beat_for(TERM_S * 1.1, two)
    assert two.try_lock(host)
    one.heartbeat()  # Succeeds, although the lock is lost.
    assert not one.owns_lock(host)
    one.release(host)
    assert not one.try_lock(host)
    one.join(me)
    assert me in one.members()
    two.release(host)


def test_the_lock_of_a_dead_holder_can_be_broken(
    backend: BackendUnderTest, clients: Clients, host: Host
) -> None:
    """A lock can be broken with its token, on backends with tokens."""
    (one, _), (two, _) = clients.join('c1'), clients.join('c1')
    assert one.try_lock(host)
    token = one.token(host)
    assert (token is not None) is backend.traits.breaks
    two.break_lock(host, token or OF_NOBODY)
    assert one.lost_locks() == (
        {host} if backend.traits.breaks else frozenset()
    )
    assert two.try_lock(host) is backend.traits.breaks


def test_no_lock_is_broken_that_was_taken_again_since(
    clients: Clients, host: Host
) -> None:
    """A token breaks no later lock and no other member's lock."""
    (one, _), (two, _) = clients.join('c1'), clients.join('c1')
    assert one.token(host) is None
    assert one.try_lock(host)
    former = one.token(host) or OF_NOBODY
    one.release(host)
    assert one.token(host) is None
    two.break_lock(host, former)  # The lock is free, so nothing happens.
    assert one.try_lock(host)
    two.break_lock(host, former)
    two.break_lock(host, OF_NOBODY)
    assert not two.try_lock(host)


def test_read_pools_does_not_join(
    backend: BackendUnderTest, clients: Clients
) -> None:
    """`read_pools` reads the members without joining."""
    if not isinstance(backend, Tooz):
        pytest.skip('the fake is not observed by URL')
    assert backend.pool not in read_pools(backend.url, term_s=TERM_S)
    one, me = clients.join('c1')
    pools = read_pools(backend.url, term_s=TERM_S)
    # An agent is no pool, although etcd has it under the name of its pool.
    assert [p for p in pools if p.startswith(backend.pool)] == [backend.pool]
    assert pools[backend.pool] == (me,)
    assert one.members() == (me,)


@pytest.mark.slow
def test_an_outage_is_an_error_and_passes(
    backend: BackendUnderTest, clients: Clients, host: Host
) -> None:
    """The same connection works again after an outage."""
    if backend.name == 'file':
        pytest.skip('a folder does not go away')
    one, me = clients.join('c1')
    assert one.try_lock(host)
    backend.stop()
    failed: list[errors.BackendUnavailable] = []

    def beat() -> None:
        try:
            one.heartbeat()
        except errors.BackendUnavailable as exc:
            failed.append(exc)

    # In a thread, because some drivers block instead of raising.
    thread = threading.Thread(target=beat, daemon=True)
    thread.start()
    thread.join(TERM_S)
    waited = thread.is_alive()
    backend.start()
    thread.join(30.0)
    assert not thread.is_alive()
    assert failed or waited
    persist(lambda: one.join(me))
    one.heartbeat()
    assert one.members() == (me,)
    if backend.traits.forgets:
        assert one.lost_locks() == {host}
    one.release(host)
    assert one.try_lock(host)
    one.release(host)


@pytest.mark.slow
def test_a_backend_that_is_down_at_start_is_waited_for(
    backend: BackendUnderTest,
) -> None:
    """A connection made during an outage works after it."""
    if backend.name == 'file':
        pytest.skip('a folder does not go away')
    backend.stop()
    group, me = backend.group('c1')
    connected = threading.Event()

    def connect() -> None:
        while not connected.is_set():
            try:
                group.connect()
                group.join(me)
                connected.set()
            except errors.BackendUnavailable:
                CLOCK.sleep(0.2)

    thread = threading.Thread(target=connect, daemon=True)
    thread.start()
    assert not connected.wait(1.0)
    backend.start()
    assert connected.wait(40.0)
    thread.join()
    group.heartbeat()
    assert me in group.members()
    group.close(leave=True, timeout_s=5.0)

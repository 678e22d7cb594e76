# SPDX-License-Identifier: Apache-2.0
"""A master of Redis that Sentinel has replaced, and that does not know it."""

import pathlib
import shutil
from collections.abc import Iterator

import pytest

from hashring import errors
from hashring.clock import SystemClock
from hashring.group import Member
from hashring.membership import Membership, new_boot
from hashring.ring import Host
from tests.contract.coordination import redis_sentinel
from tests.contract.coordination.backends import persist
from tests.contract.coordination.clusters import wait_for
from tests.contract.coordination.redis_sentinel import RedisSentinel

CLOCK = SystemClock()
HOST = Host('c1')
TERM_S = 30.0

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        shutil.which('redis-sentinel') is None,
        reason='Sentinel is not installed',
    ),
]


@pytest.fixture
def sentinel(tmp_path: pathlib.Path) -> Iterator[RedisSentinel]:
    """A running cluster."""
    made = RedisSentinel(tmp_path, down_after_s=1.0)
    made.start()
    yield made
    made.stop()


def join(sentinel: RedisSentinel) -> Membership:
    """Return a member that logs in with a password."""
    user = f'{redis_sentinel.USER}:{redis_sentinel.PASSWORD}@'
    url = sentinel.url().replace('redis://', f'redis://{user}')
    boot = new_boot()
    group = Membership(url, 'pool', HOST, boot, term_s=TERM_S)
    persist(group.connect)
    group.join(Member(HOST, boot, machine='here', known=(HOST,)))
    return group


def test_replaced_master_keeps_no_lease(sentinel: RedisSentinel) -> None:
    """Its client gets no lease there, and goes on at the new master."""
    group = join(sentinel)
    assert group.try_lock(HOST)
    group.heartbeat()
    former = sentinel.leader()
    sentinel.cut_off(former)
    wait_for(lambda: sentinel.leader() is not former)
    with pytest.raises(errors.BackendUnavailable, match='no replica'):
        group.heartbeat()
    began_s = CLOCK.now_s()
    persist(group.heartbeat)
    # Sentinel may take its `failover-timeout` to give the new master a
    # replica; what must not pass meanwhile is the term of the lease.
    assert CLOCK.now_s() - began_s < TERM_S
    assert group.owns_lock(HOST)
    assert not join(sentinel).try_lock(HOST)
    group.close(leave=True, timeout_s=5.0)

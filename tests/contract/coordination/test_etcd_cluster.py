# SPDX-License-Identifier: Apache-2.0
"""A group on an etcd cluster goes on when one of its servers is gone."""

import pathlib
import shutil
from collections.abc import Iterator

import pytest

from hashring import errors
from hashring.clock import SystemClock
from hashring.group import Member
from hashring.membership import Membership, new_boot, read_pools
from hashring.ring import Host
from tests.contract.coordination.backends import persist
from tests.contract.coordination.etcd_cluster import EtcdCluster

CLOCK = SystemClock()
HOST = Host('c1')
# A member that does not answer costs one time-out of 3 s, and the election of
# another leader one or two seconds.
TERM_S = 15.0

pytestmark = pytest.mark.skipif(
    shutil.which('etcd') is None, reason='etcd is not installed'
)


@pytest.fixture
def cluster(tmp_path: pathlib.Path) -> Iterator[EtcdCluster]:
    """A running cluster."""
    made = EtcdCluster(tmp_path)
    made.start()
    yield made
    made.stop()


@pytest.fixture
def group(cluster: EtcdCluster) -> Iterator[Membership]:
    """A member with the lock of a host, connected to the first server."""
    group, me = _join(cluster)
    assert group.try_lock(HOST)
    assert group.members() == (me,)
    yield group
    group.close(leave=True, timeout_s=5.0)


def _join(cluster: EtcdCluster) -> tuple[Membership, Member]:
    boot = new_boot()
    group = Membership(cluster.url(), 'pool', HOST, boot, term_s=TERM_S)
    me = Member(HOST, boot, machine='here', known=(HOST,))
    persist(group.connect)
    group.join(me)
    return group, me


def assert_goes_on(group: Membership) -> None:
    """A heartbeat works within half a term, and nothing is lost."""
    began_s = CLOCK.now_s()
    persist(group.heartbeat)
    assert CLOCK.now_s() - began_s < TERM_S / 2
    assert group.owns_lock(HOST)
    assert group.boot in {m.boot for m in group.members()}
    assert group.lost_locks() == frozenset()


def test_dead_server(cluster: EtcdCluster, group: Membership) -> None:
    """The next heartbeat goes to another server; lock and lease stay."""
    token = group.token(HOST)
    cluster.members[0].stop()
    assert_goes_on(group)
    assert group.token(HOST) == token


def test_dead_leader(cluster: EtcdCluster, group: Membership) -> None:
    """The others elect a leader; the group goes on within the term."""
    cluster.leader().stop()
    assert_goes_on(group)


def test_frozen_server(cluster: EtcdCluster, group: Membership) -> None:
    """A server that keeps its connections open costs one time-out."""
    cluster.members[0].freeze()
    assert_goes_on(group)
    cluster.members[0].thaw()


def test_lock_is_seen_through_each_server(
    cluster: EtcdCluster, group: Membership
) -> None:
    """Nobody gets the lock through another server than its holder's."""
    cluster.members[0].stop()
    other, _ = _join(cluster)
    assert not other.try_lock(HOST)
    assert_goes_on(group)
    other.close(leave=True, timeout_s=5.0)


def test_minority_serves_nobody(
    cluster: EtcdCluster, group: Membership
) -> None:
    """One server of three proves nothing; with two the group goes on."""
    cluster.members[1].stop()
    cluster.members[2].stop()
    # A leader notices only after a second that nobody follows it.
    CLOCK.sleep(3.0)
    for _ in cluster.members:
        with pytest.raises(errors.BackendUnavailable):
            group.heartbeat()
    cluster.members[1].start()
    assert_goes_on(group)


def test_tools_read_pools_while_the_first_server_is_away(
    cluster: EtcdCluster, group: Membership
) -> None:
    """The operator's tools find the pool, too."""
    cluster.members[0].stop()
    found = read_pools(cluster.url(), term_s=TERM_S)
    assert [m.home for m in found['pool']] == [HOST]

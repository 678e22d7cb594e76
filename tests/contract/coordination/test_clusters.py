# SPDX-License-Identifier: Apache-2.0
"""A ZooKeeper ensemble and a Redis with Sentinel that lose servers.

Three agents send heartbeats as they do in a daemon. A lost server must not
interrupt their leases, so that each host is served all the time.
"""

from collections.abc import Iterator

import pytest

from hashring import errors
from hashring.membership import Membership, new_boot
from hashring.ring import Host
from tests.contract.coordination.clusters import (
    KINDS,
    LEASE_S,
    TIMING,
    Agent,
    Cluster,
    Faults,
    Watch,
    agents_of,
    followers,
)

pytestmark = pytest.mark.slow


@pytest.fixture(scope='module', params=['ensemble', 'sentinel'])
def shared(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Cluster]:
    """Each kind of cluster; it is started once for all tests."""
    is_installed, make = KINDS[request.param]
    if not is_installed():
        pytest.skip(f'{request.param} is not installed')
    made = make(tmp_path_factory.mktemp(request.param))
    made.start()
    yield made
    made.stop()


@pytest.fixture
def cluster(shared: Cluster) -> Cluster:
    """The cluster, with all of its servers."""
    shared.await_whole()
    return shared


@pytest.fixture
def agents(cluster: Cluster) -> Iterator[list[Agent]]:
    """Three agents that serve their hosts, each with another first server."""
    with agents_of(cluster) as made:
        yield made


@pytest.fixture
def faults(cluster: Cluster) -> Iterator[Faults]:
    """Faults of the cluster; they end with the test."""
    made = Faults(cluster)
    yield made
    made.end()


@pytest.mark.parametrize('name', Faults.NAMES)
def test_lost_server_interrupts_no_lease(
    agents: list[Agent], faults: Faults, name: str
) -> None:
    """Leases and locks go on, and each agent can prove its lock."""
    epochs = [agent.thread.state().lease.epoch for agent in agents]
    watch = Watch(agents)
    watch.run(0.1)
    faults.begin(name)
    watch.run(LEASE_S + 3.0)
    assert all(agent.is_held() for agent in agents)
    assert watch.longest_pause_s < LEASE_S
    assert [a.thread.state().lease.epoch for a in agents] == epochs
    for agent in agents:
        assert agent.group.owns_lock(agent.home)
        assert agent.thread.state().lost == frozenset()


def test_rolling_restart(cluster: Cluster, agents: list[Agent]) -> None:
    """Each server is restarted when the one before is back."""
    epochs = [agent.thread.state().lease.epoch for agent in agents]
    for server in (*followers(cluster), cluster.leader()):
        server.stop()
        server.start()
        cluster.await_whole()
        assert all(agent.is_held() for agent in agents)
    assert [a.thread.state().lease.epoch for a in agents] == epochs
    assert all(agent.group.owns_lock(agent.home) for agent in agents)


def test_leader_without_followers_confirms_nothing(
    cluster: Cluster, agents: list[Agent]
) -> None:
    """It answers as before, while the others may have another leader."""
    frozen = followers(cluster)
    for server in frozen:
        server.freeze()
    try:
        for agent in agents:
            with pytest.raises(errors.BackendUnavailable):
                agent.group.heartbeat()
    finally:
        for server in frozen:
            server.thaw()


def test_lock_is_refused_through_each_server(
    cluster: Cluster, agents: list[Agent]
) -> None:
    """Nobody gets a lock that was granted through another server."""
    for number in range(3):
        other = Membership(
            cluster.url(number),
            'pool',
            Host('other'),
            new_boot(),
            term_s=TIMING.lease_term_s,
        )
        other.connect()
        for agent in agents:
            assert not other.try_lock(agent.home)
        other.close(leave=True, timeout_s=5.0)

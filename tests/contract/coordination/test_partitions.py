# SPDX-License-Identifier: Apache-2.0
"""One server of three is cut off from the others; agents still reach it.

It must confirm no lease. An agent that knows the other servers goes on there
in time, so that its host is served without a gap; one that knows only this
server loses its lease before anybody else gets the lock of its host.
"""

import dataclasses
import threading
from collections.abc import Callable, Iterator

import pytest

from hashring import errors
from hashring.membership import Membership
from hashring.opts import Timing
from hashring.ring import Host
from tests.contract.coordination.backends import persist
from tests.contract.coordination.clusters import (
    CLOCK,
    KINDS,
    LEASE_S,
    Agent,
    Cluster,
    Watch,
    agents_of,
    find_server,
    wait_for,
)
from tests.contract.coordination.partitions import Partitions

# Of the agent that knows one server: short, so that its lock ends soon.
LONE_TIMING = Timing(lease_term_s=6.0, lease_margin_s=2.0)
LONE_LEASE_S = LONE_TIMING.lease_term_s - LONE_TIMING.lease_margin_s

pytestmark = pytest.mark.slow


@dataclasses.dataclass(frozen=True)
class Split:
    """A cluster, and its network, which can be partitioned."""

    kind: str
    cluster: Cluster
    network: Partitions

    def serves_lone(self, role: str) -> bool:
        """Return whether an agent that knows one server goes on.

        An agent that knows one Sentinel still reaches the master, and that
        one has a replica unless it was cut off itself.
        """
        return self.kind == 'sentinel' and role == 'follower'


@pytest.fixture(scope='module', params=KINDS)
def shared(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Split]:
    """Each kind of cluster; it is started once for all tests."""
    is_installed, make = KINDS[request.param]
    if not is_installed():
        pytest.skip(f'{request.param} is not installed')
    network = Partitions()
    cluster = make(tmp_path_factory.mktemp(request.param), network)
    cluster.start()
    yield Split(request.param, cluster, network)
    cluster.stop()
    network.close()


@pytest.fixture
def split(shared: Split) -> Iterator[Split]:
    """The cluster, with all of its servers; partitions end with the test."""
    shared.cluster.await_whole()
    yield shared
    shared.network.heal()


@pytest.fixture
def agents(split: Split) -> Iterator[list[Agent]]:
    """Three agents that serve their hosts, each with another first server."""
    with agents_of(split.cluster) as made:
        yield made


@pytest.fixture
def new_lone(split: Split) -> Iterator[Callable[[int], Agent]]:
    """Starts an agent that knows one server only, by its number."""
    made: list[Agent] = []

    def start(number: int) -> Agent:
        agent = Agent(split.cluster.url_of(number), 'lone', LONE_TIMING)
        made.append(agent)
        wait_for(agent.is_held)
        assert agent.group.try_lock(agent.home)
        return agent

    yield start
    for agent in made:
        agent.close()


class Taker:
    """Requests a lock again and again, in a thread, until it is granted."""

    def __init__(self, group: Membership, host: Host) -> None:
        self._group = group
        self._host = host
        # When the grant returned.
        self.granted_s: float | None = None
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        while self.granted_s is None and not self._ended.wait(0.5):
            try:
                if self._group.try_lock(self._host):
                    self.granted_s = CLOCK.now_s()
            except errors.BackendUnavailable:
                continue

    def end(self) -> None:
        """Wait until the last request has returned."""
        self._ended.set()
        self._thread.join(30.0)


@pytest.mark.parametrize('role', ['follower', 'leader'])
def test_isolated_server(
    split: Split,
    agents: list[Agent],
    new_lone: Callable[[int], Agent],
    role: str,
    record_property: Callable[[str, object], None],
) -> None:
    """Hosts are served without a gap, and no host by two agents."""
    isolated = split.cluster.members.index(find_server(split.cluster, role))
    lone = new_lone(isolated)
    majority = agents[(isolated + 1) % len(agents)].group
    epochs = [agent.thread.state().lease.epoch for agent in agents]
    watch = Watch([*agents, lone])
    watch.run(0.1)
    split.network.isolate(isolated)
    isolated_s = CLOCK.now_s()

    if split.serves_lone(role):
        watch.run(2 * LONE_LEASE_S)
        assert lone.is_held()
    else:
        taker = Taker(majority, lone.home)
        watch.run_until(lambda: taker.granted_s is not None)
        taker.end()
        # No heartbeat since has counted.
        assert watch.sent_s[lone.home] <= isolated_s
        assert taker.granted_s is not None
        assert watch.sent_s[lone.home] + LONE_LEASE_S <= taker.granted_s
        assert not lone.is_held()
    watch.run_until(
        lambda: all(watch.sent_s[a.home] > isolated_s for a in agents)
    )

    gap_s = max(0.0, watch.longest_pause_s - LEASE_S)
    record_property('seconds without a lease', f'{gap_s:.1f}')
    record_property('longest pause in s', f'{watch.longest_pause_s:.1f}')
    print(f'{split.kind} {role}: pause {watch.longest_pause_s:.1f} s')
    assert gap_s == 0.0, f'heartbeats paused for {watch.longest_pause_s:.1f} s'

    split.network.heal()
    split.cluster.await_whole()
    if not split.serves_lone(role):
        _assert_lock_has_moved(lone, majority)
    assert all(agent.is_held() for agent in agents)
    assert [a.thread.state().lease.epoch for a in agents] == epochs
    for agent in agents:
        assert agent.group.owns_lock(agent.home)
        assert agent.thread.state().lost == frozenset()


def _assert_lock_has_moved(lone: Agent, owner: Membership) -> None:
    """The agent that was alone learns of it, and gets the lock back later."""
    persist(lambda: lone.group.owns_lock(lone.home))
    assert not lone.group.owns_lock(lone.home)
    assert not lone.group.try_lock(lone.home)
    assert owner.owns_lock(lone.home)
    owner.release(lone.home)
    wait_for(lambda: lone.group.try_lock(lone.home))

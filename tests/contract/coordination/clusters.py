# SPDX-License-Identifier: Apache-2.0
"""Clusters of three servers, and agents that send heartbeats to them."""

import contextlib
import functools
import pathlib
import shutil
import threading
from collections.abc import Callable, Iterator, Mapping
from concurrent import futures
from typing import Protocol

from hashring import errors
from hashring.clock import SystemClock
from hashring.group import Member
from hashring.heartbeat import HeartbeatThread
from hashring.membership import Membership, new_boot
from hashring.opts import Timing
from hashring.ring import Host
from tests.contract.coordination import servers
from tests.contract.coordination.etcd_cluster import EtcdCluster
from tests.contract.coordination.partitions import Partitions, PeerNetwork
from tests.contract.coordination.redis_sentinel import RedisSentinel
from tests.contract.coordination.zookeeper_ensemble import ZooKeeperEnsemble

CLOCK = SystemClock()
TIMING = Timing()
# From the sending of a heartbeat to the end of the lease.
LEASE_S = TIMING.lease_term_s - TIMING.lease_margin_s


class Cluster(Protocol):
    """Three servers, of which one is asked to lead by the others."""

    members: list[servers.Server]

    def start(self) -> None: ...

    def stop(self) -> None: ...

    def url(self, first: int = 0) -> str: ...

    def url_of(self, number: int) -> str: ...

    def leader(self) -> servers.Server: ...

    def await_whole(self) -> None:
        """Wait until every server follows the leader."""
        ...


class Agent:
    """The heartbeat thread of an agent, which has the lock of its host.

    Another thread is the agent's main loop, because heartbeats end if that
    does not turn.
    """

    def __init__(self, url: str, home: str, timing: Timing = TIMING) -> None:
        self.home = Host(home)
        self.boot = new_boot()
        self.group = Membership(
            url, 'pool', self.home, self.boot, term_s=timing.lease_term_s
        )
        me = Member(self.home, self.boot, machine='here', known=(self.home,))
        self.thread = HeartbeatThread(self.group, me, timing, CLOCK)
        self._ended = threading.Event()
        self._loop = threading.Thread(target=self._turn, daemon=True)
        self.thread.start()
        self._loop.start()

    def _turn(self) -> None:
        while not self._ended.wait(timeout=1.0):
            self.thread.note_turn()

    def is_held(self) -> bool:
        return self.thread.state().lease.held(CLOCK.now_s())

    def close(self) -> None:
        self.thread.end(5.0)
        self._ended.set()
        self._loop.join()
        # Otherwise etcd keeps the lock for its term.
        with contextlib.suppress(errors.BackendUnavailable):
            self.group.release(self.home)
        self.group.close(leave=True, timeout_s=5.0)


@contextlib.contextmanager
def agents_of(cluster: Cluster) -> Iterator[list[Agent]]:
    """Three agents that serve their hosts, each with another first server."""
    made = [Agent(cluster.url(n), f'c{n}') for n in range(3)]
    try:
        wait_for(lambda: all(agent.is_held() for agent in made))
        for agent in made:
            wait_for(functools.partial(agent.group.try_lock, agent.home))
        yield made
    finally:
        with futures.ThreadPoolExecutor() as pool:
            list(pool.map(Agent.close, made))


class Watch:
    """Watches the leases of agents, and measures the pauses of heartbeats."""

    def __init__(self, agents: list[Agent]) -> None:
        self._agents = agents
        # Of each agent: when its last heartbeat that counts was sent.
        self.sent_s: dict[Host, float] = {}
        self.longest_pause_s = 0.0

    def run(self, for_s: float) -> None:
        """Watch for some seconds."""
        ends_s = CLOCK.now_s() + for_s
        self.run_until(lambda: CLOCK.now_s() >= ends_s)

    def run_until(self, holds: Callable[[], bool]) -> None:
        """Watch until a condition holds, which must not block."""
        ends_s = CLOCK.now_s() + 60.0
        while not holds():
            assert CLOCK.now_s() < ends_s
            for agent in self._agents:
                self._look_at(agent)
            CLOCK.sleep(0.05)

    def _look_at(self, agent: Agent) -> None:
        lease = agent.thread.state().lease
        if not lease.counted or lease.base_s is None:
            return
        last_s = self.sent_s.get(agent.home, lease.base_s)
        pause_s = lease.base_s - last_s
        self.longest_pause_s = max(self.longest_pause_s, pause_s)
        self.sent_s[agent.home] = lease.base_s


def wait_for(holds: Callable[[], bool], most_s: float = 60.0) -> None:
    """Wait until a condition holds."""
    ends_s = CLOCK.now_s() + most_s
    while not holds():
        assert CLOCK.now_s() < ends_s
        CLOCK.sleep(0.1)


def followers(cluster: Cluster) -> list[servers.Server]:
    """Return the servers that do not lead."""
    leader = cluster.leader()
    return [server for server in cluster.members if server is not leader]


def find_server(cluster: Cluster, role: str) -> servers.Server:
    """Return the leader, or a follower."""
    return cluster.leader() if role == 'leader' else followers(cluster)[0]


def _has_zookeeper() -> bool:
    return servers.KINDS['zookeeper'].installed()


class Make(Protocol):
    """Makes a cluster in a folder."""

    def __call__(
        self, folder: pathlib.Path, network: PeerNetwork | None = None
    ) -> Cluster: ...


# The name of each kind, whether it is installed, and how it is made.
KINDS: Mapping[str, tuple[Callable[[], bool], Make]] = {
    'etcd': (lambda: shutil.which('etcd') is not None, EtcdCluster),
    'ensemble': (_has_zookeeper, ZooKeeperEnsemble),
    'sentinel': (
        lambda: shutil.which('redis-sentinel') is not None,
        RedisSentinel,
    ),
}


class Faults:
    """Faults of one server, by name; each lasts until `end`.

    :param network: of the cluster, if it can be partitioned
    """

    NAMES = (
        'dead follower',
        'dead leader',
        'frozen follower',
        'frozen leader',
    )
    # Clients reach a server that is cut off from the two others.
    PARTITIONS = ('isolated follower', 'isolated leader')

    def __init__(
        self, cluster: Cluster, network: Partitions | None = None
    ) -> None:
        self._cluster = cluster
        self._network = network
        self._end: Callable[[], None] | None = None

    def begin(self, name: str) -> None:
        """Kill, freeze or isolate the leader, or one of the others."""
        what, whom = name.split()
        server = find_server(self._cluster, whom)
        if what == 'dead':
            server.stop()
            self._end = server.start
        elif what == 'frozen':
            server.freeze()
            self._end = server.thaw
        else:
            assert self._network is not None
            self._network.isolate(self._cluster.members.index(server))
            self._end = self._network.heal

    def end(self) -> None:
        """Start or thaw the server, or have the others reach it."""
        if self._end is not None:
            self._end()
        self._end = None

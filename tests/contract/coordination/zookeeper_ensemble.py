# SPDX-License-Identifier: Apache-2.0
"""A real ZooKeeper ensemble of three servers on loopback ports, for tests."""

import contextlib
import pathlib
import socket
from collections.abc import Callable, Sequence
from typing import TypeVar

from hashring.clock import SystemClock
from tests.contract.coordination import servers
from tests.contract.coordination.partitions import Direct, PeerNetwork
from tests.free_ports import find_free_ports

SIZE = 3
# A server that was cut off finds the others again two seconds after it could,
# instead of up to a minute.
_NOTIFICATION_MS = 2000
# A follower gives up after half a second if its leader does not listen yet.
# This leader would wait for it for initLimit ticks, and nobody would lead.
_EPOCH_WAIT_MS = 2000
_Found = TypeVar('_Found')


class ZooKeeperEnsemble:
    """Three servers that elect a leader.

    :param sync_limit: ``syncLimit`` in zoo.cfg, in ticks of two seconds
    """

    def __init__(
        self,
        folder: pathlib.Path,
        network: PeerNetwork | None = None,
        sync_limit: int = 2,
    ) -> None:
        network = network or Direct()
        self._sync_limit = sync_limit
        # Of each server: the port of the quorum, and that of elections.
        self._peers = [
            (find_free_ports(1), find_free_ports(1)) for _ in range(SIZE)
        ]
        # The same of each server, as the others know it.
        self._known = [
            (network.port(number, quorum), network.port(number, election))
            for number, (quorum, election) in enumerate(self._peers)
        ]
        # A server tells the others where it listens, and they would connect to
        # it there; but not if it listens everywhere.
        self._listens_at = '0.0.0.0' if network.can_split else '127.0.0.1'
        self.members = [self._member(folder, number) for number in range(SIZE)]
        for number, member in enumerate(self.members):
            network.add(number, member)

    def _member(self, folder: pathlib.Path, number: int) -> servers.Server:
        own = folder / f'zk{number}'
        (own / 'data').mkdir(parents=True)
        (own / 'data' / 'myid').write_text(f'{number + 1}')

        def command(folder: pathlib.Path, port: int) -> Sequence[str]:
            (folder / 'zoo.cfg').write_text(self._config(number, folder, port))
            return servers.zookeeper_command(folder)

        return servers.Server(
            servers.Kind('zookeeper', command, lambda: True), own
        )

    def _config(self, number: int, folder: pathlib.Path, port: int) -> str:
        peers = '\n'.join(self._peer(number, other) for other in range(SIZE))
        return (
            f'dataDir={folder}/data\nclientPort={port}\n'
            'clientPortAddress=127.0.0.1\nadmin.enableServer=false\n'
            f'tickTime=2000\ninitLimit=10\nsyncLimit={self._sync_limit}\n'
            f'fastleader.maxNotificationInterval={_NOTIFICATION_MS}\n'
            f'leader.maxTimeToWaitForEpoch={_EPOCH_WAIT_MS}\n{peers}\n'
        )

    def _peer(self, number: int, other: int) -> str:
        """Return a server's line about another one, or about itself."""
        host, ports = '127.0.0.1', self._known[other]
        if number == other:
            host, ports = self._listens_at, self._peers[other]
        return f'server.{other + 1}={host}:{ports[0]}:{ports[1]}'

    def start(self) -> None:
        """Start all servers; returns when one of them leads."""
        for member in self.members:
            member.launch()
        for member in self.members:
            member.await_up()
        self.await_whole()

    def stop(self) -> None:
        """Kill all servers."""
        for member in self.members:
            member.stop()

    def url(self, first: int = 0) -> str:
        """Return ``backend_url``.

        :param first: the number of the server that is named first
        """
        places = [member.place for member in self.members]
        places = places[first:] + places[:first]
        return f'zookeeper://{places[0]}?hosts={",".join(places[1:])}'

    def url_of(self, number: int) -> str:
        """Return ``backend_url`` with one server only."""
        return self.members[number].url

    def leader(self) -> servers.Server:
        """Wait until a server leads; return it."""
        return _wait_for(self._find_leader)

    def await_whole(self) -> None:
        """Wait until two servers follow a third."""
        _wait_for(self._is_whole)

    def _find_leader(self) -> servers.Server | None:
        leading = [m for m in self.members if 'Mode: leader' in _status(m)]
        return leading[0] if leading else None

    def _is_whole(self) -> bool:
        modes = ' '.join(map(_status, self.members))
        following = modes.count('Mode: follower')
        return (following, modes.count('Mode: leader')) == (SIZE - 1, 1)


def _wait_for(find: Callable[[], _Found | None]) -> _Found:
    clock = SystemClock()
    ends_s = clock.now_s() + 60.0
    while not (found := find()):
        assert clock.now_s() < ends_s, 'the ensemble is not whole'
        clock.sleep(0.2)
    return found


def _status(member: servers.Server) -> str:
    """Ask a server for its mode; '' if it does not answer."""
    host, _, port = member.place.rpartition(':')
    with (
        contextlib.suppress(OSError),
        socket.create_connection((host, int(port)), 1.0) as asked,
    ):
        asked.sendall(b'srvr')
        return asked.makefile().read()
    return ''

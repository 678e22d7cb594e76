# SPDX-License-Identifier: Apache-2.0
"""A real etcd cluster of three members on loopback ports, for tests."""

import contextlib
import pathlib
from collections.abc import Sequence
from typing import Any

import requests

from hashring.clock import SystemClock
from tests.contract.coordination import servers
from tests.contract.coordination.partitions import Direct, PeerNetwork
from tests.free_ports import find_free_ports

SIZE = 3


class EtcdCluster:
    """Three members, each a server of its own."""

    def __init__(
        self, folder: pathlib.Path, network: PeerNetwork | None = None
    ) -> None:
        network = network or Direct()
        self._peers = [find_free_ports(1) for _ in range(SIZE)]
        # Of each member: the port by which it is known to the others.
        self._known = [network.port(n, p) for n, p in enumerate(self._peers)]
        self.members = [self._member(folder, number) for number in range(SIZE)]
        for number, member in enumerate(self.members):
            network.add(number, member)

    def _member(self, folder: pathlib.Path, number: int) -> servers.Server:
        own = folder / f'm{number}'
        own.mkdir()

        def command(folder: pathlib.Path, port: int) -> Sequence[str]:
            return self._command(number, folder, port)

        return servers.Server(
            servers.Kind('etcd3+http', command, lambda: True), own
        )

    def _command(
        self, number: int, folder: pathlib.Path, port: int
    ) -> Sequence[str]:
        peers = [f'http://127.0.0.1:{port}' for port in self._known]
        client = f'http://127.0.0.1:{port}'
        everybody = ','.join(f'm{n}={url}' for n, url in enumerate(peers))
        return (
            'etcd',
            f'--name=m{number}',
            f'--data-dir={folder}/data',
            f'--listen-client-urls={client}',
            f'--advertise-client-urls={client}',
            f'--listen-peer-urls=http://127.0.0.1:{self._peers[number]}',
            f'--initial-advertise-peer-urls={peers[number]}',
            f'--initial-cluster={everybody}',
            '--log-level=error',
        )

    def start(self) -> None:
        """Start all members; none listens before there is a majority."""
        for member in self.members:
            member.launch()
        for member in self.members:
            member.await_up()

    def stop(self) -> None:
        """Kill all members."""
        for member in self.members:
            member.stop()

    def url(self, first: int = 0) -> str:
        """Return ``backend_url``.

        :param first: the number of the member that is named first
        """
        ordered = self.members[first:] + self.members[:first]
        others = ','.join(member.place for member in ordered[1:])
        return f'{ordered[0].url}?hosts={others}'

    def url_of(self, number: int) -> str:
        """Return ``backend_url`` with one member only."""
        return self.members[number].url

    def leader(self) -> servers.Server:
        """Return the member that the others follow."""
        for member in self.members:
            status = _status(member)
            if status['leader'] == status['header']['member_id']:
                return member
        raise AssertionError('no member leads')

    def await_whole(self) -> None:
        """Wait until all members follow the same one."""
        clock = SystemClock()
        ends_s = clock.now_s() + 60.0
        while not self._is_whole():
            assert clock.now_s() < ends_s, 'the cluster is not whole'
            clock.sleep(0.2)

    def _is_whole(self) -> bool:
        with contextlib.suppress(requests.RequestException, KeyError):
            return len({_status(m)['leader'] for m in self.members}) == 1
        return False


def _status(member: servers.Server) -> dict[str, Any]:
    found: dict[str, Any] = requests.post(
        f'http://{member.place}/v3/maintenance/status', json={}, timeout=5
    ).json()
    return found

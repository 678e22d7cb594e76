# SPDX-License-Identifier: Apache-2.0
"""A real etcd cluster of three members on loopback ports, for tests."""

import pathlib
from collections.abc import Sequence

import requests

from tests.contract.coordination import servers

SIZE = 3


class EtcdCluster:
    """Three members, each a server of its own."""

    def __init__(self, folder: pathlib.Path) -> None:
        self._peers = [servers.free_port() for _ in range(SIZE)]
        self.members = [self._member(folder, number) for number in range(SIZE)]

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
        peers = [f'http://127.0.0.1:{port}' for port in self._peers]
        client = f'http://127.0.0.1:{port}'
        everybody = ','.join(f'm{n}={url}' for n, url in enumerate(peers))
        return (
            'etcd',
            f'--name=m{number}',
            f'--data-dir={folder}/data',
            f'--listen-client-urls={client}',
            f'--advertise-client-urls={client}',
            f'--listen-peer-urls={peers[number]}',
            f'--initial-advertise-peer-urls={peers[number]}',
            f'--initial-cluster={everybody}',
            '--log-level=error',
        )

    def start(self) -> None:
        """Start all members; none listens before there is a majority."""
        for member in self.members:
            member.launch()
        for member in self.members:
            member.await_port()

    def stop(self) -> None:
        """Kill all members."""
        for member in self.members:
            member.stop()

    def url(self) -> str:
        """Return ``backend_url``, with the first member first."""
        first, *others = (m.url for m in self.members)
        places = ','.join(url.rpartition('/')[2] for url in others)
        return f'{first}?hosts={places}'

    def leader(self) -> servers.Server:
        """Return the member that the others follow."""
        for member in self.members:
            status = requests.post(
                f'http://{member.url.rpartition("/")[2]}/v3/maintenance/status',
                json={},
                timeout=5,
            ).json()
            if status['leader'] == status['header']['member_id']:
                return member
        raise AssertionError('no member leads')

# SPDX-License-Identifier: Apache-2.0
"""Redis with two replicas and three Sentinels on loopback ports, for tests."""

import contextlib
import pathlib
from collections.abc import Sequence
from typing import Any

import redis
from redis.backoff import NoBackoff
from redis.retry import Retry

from hashring.clock import SystemClock
from tests.contract.coordination import servers
from tests.contract.coordination.certificates import Certificates
from tests.contract.coordination.partitions import Direct, PeerNetwork

SIZE = 3
MASTER_NAME = 'pool'
# A user beside that of Sentinel and the replicas, who have no password.
USER, PASSWORD = 'agent', 'letters'


class RedisSentinel:
    """Three servers of Redis, the first of which is the master at first.

    :param down_after_s: Sentinel's ``down-after-milliseconds``, in seconds
    :param password: of the Sentinels; None: they demand none
    :param users: further lines of their configuration
    :param tls: of all servers and Sentinels, which then speak TLS only and
        demand a certificate of their clients
    """

    def __init__(
        self,
        folder: pathlib.Path,
        network: PeerNetwork | None = None,
        down_after_s: float = 3.0,
        password: str | None = None,
        users: str = '',
        tls: Certificates | None = None,
    ) -> None:
        self._tls = tls
        self._password = password
        self._users = users
        self._network = network or Direct()
        self._down_after_s = down_after_s
        self.members = [self._redis(folder, n) for n in range(SIZE)]
        # Of each server: the port by which Sentinel knows it.
        self._known = [
            self._network.port(number, member.port)
            for number, member in enumerate(self.members)
        ]
        self.sentinels = [self._sentinel(folder, n) for n in range(SIZE)]
        for group in (self.members, self.sentinels):
            for number, server in enumerate(group):
                self._network.add(number, server)

    def _redis(self, folder: pathlib.Path, number: int) -> servers.Server:
        own = folder / f'redis{number}'
        own.mkdir()

        def command(folder: pathlib.Path, port: int) -> Sequence[str]:
            config = folder / 'redis.conf'
            if not config.exists():
                config.write_text(self._config(number, folder, port))
            # Sentinel has the server rewrite this file at a failover.
            return ('redis-server', str(config))

        return servers.Server(
            servers.Kind('redis', command, lambda: True), own
        )

    def _config(self, number: int, folder: pathlib.Path, port: int) -> str:
        replica = ''
        if number:
            replica = f'replicaof 127.0.0.1 {self._known[0]}\n'
        return (
            f'{self._listen(port)}bind 127.0.0.1\ndir {folder}\n'
            f'replica-announce-ip 127.0.0.1\n'
            f'replica-announce-port {self._known[number]}\n'
            f'save ""\nappendonly yes\nrepl-diskless-sync-delay 0\n{replica}'
            f'user {USER} on >{PASSWORD} ~* &* +@all\n'
        )

    def _sentinel(self, folder: pathlib.Path, number: int) -> servers.Server:
        own = folder / f'sentinel{number}'
        own.mkdir()

        def command(folder: pathlib.Path, port: int) -> Sequence[str]:
            config = folder / 'sentinel.conf'
            if not config.exists():
                config.write_text(self._sentinel_config(number, folder, port))
            return ('redis-sentinel', str(config))

        return servers.Server(
            servers.Kind('redis', command, lambda: True), own
        )

    def _sentinel_config(
        self, number: int, folder: pathlib.Path, port: int
    ) -> str:
        known = self._network.port(number, port)
        down_after_ms = int(self._down_after_s * 1000)
        return (
            f'{self._listen(port)}bind 127.0.0.1\ndir {folder}\n'
            f'sentinel announce-ip 127.0.0.1\n'
            f'sentinel announce-port {known}\n'
            f'sentinel monitor {MASTER_NAME} 127.0.0.1 {self._known[0]} 2\n'
            f'sentinel down-after-milliseconds {MASTER_NAME} {down_after_ms}\n'
            f'sentinel failover-timeout {MASTER_NAME} 10000\n'
            f'{self._login}{self._users}'
        )

    def _listen(self, port: int) -> str:
        """The lines about the port, and about TLS."""
        if self._tls is None:
            return f'port {port}\n'
        return (
            f'port 0\ntls-port {port}\ntls-replication yes\n'
            f'tls-cert-file {self._tls.certificate}\n'
            f'tls-key-file {self._tls.key}\n'
            f'tls-ca-cert-file {self._tls.authority}\n'
        )

    @property
    def _login(self) -> str:
        """The lines about the password of the Sentinels."""
        if self._password is None:
            return ''
        return (
            f'requirepass {self._password}\n'
            f'sentinel sentinel-pass {self._password}\n'
        )

    def start(self) -> None:
        """Start all; returns when a failover would be possible."""
        for server in (*self.members, *self.sentinels):
            server.start()
        self.await_whole()

    def await_whole(self) -> None:
        """Wait until two servers follow the one that Sentinel has chosen.

        :raises AssertionError: they do not for a minute
        """
        clock = SystemClock()
        ends_s = clock.now_s() + 60.0
        while not (self._is_agreed() and self._is_replicated()):
            assert clock.now_s() < ends_s, 'Redis is not whole'
            clock.sleep(0.2)

    def _is_agreed(self) -> bool:
        """Return whether the Sentinels name one master and all replicas."""
        states = self._master_states()
        return len({state.get('port') for state in states}) == 1 and all(
            state.get('num-slaves') == SIZE - 1
            and state.get('num-other-sentinels') == SIZE - 1
            and state.get('flags') == 'master'
            for state in states
        )

    def _master_states(self) -> list[dict[str, Any]]:
        """Return what each Sentinel says about the master."""
        return [self._master_state(sentinel) for sentinel in self.sentinels]

    def _master_state(self, sentinel: servers.Server) -> dict[str, Any]:
        with (
            contextlib.suppress(redis.RedisError),
            self._connected(sentinel, self._password) as client,
        ):
            found: dict[str, Any] = client.sentinel_master(MASTER_NAME)
            return found
        return {}

    def _is_replicated(self) -> bool:
        """Return whether all replicas follow the master."""
        with contextlib.suppress(redis.RedisError):
            with self._connected(self.leader()) as client:
                state = client.info('replication')
            replicas = [state.get(f'slave{n}', {}) for n in range(SIZE - 1)]
            return all(each.get('state') == 'online' for each in replicas)
        return False

    def stop(self) -> None:
        """Kill all servers and Sentinels."""
        for server in (*self.sentinels, *self.members):
            server.stop()

    def url(self, first: int = 0) -> str:
        """Return ``backend_url``.

        :param first: the number of the Sentinel that is named first
        """
        places = [server.place for server in self.sentinels]
        places = places[first:] + places[:first]
        others = '&'.join(f'sentinel_fallback={place}' for place in places[1:])
        return f'redis://{places[0]}?sentinel={MASTER_NAME}&{others}'

    def url_of(self, number: int) -> str:
        """Return ``backend_url`` with one Sentinel only."""
        return f'redis://{self.sentinels[number].place}?sentinel={MASTER_NAME}'

    def cut_off(self, server: servers.Server) -> None:
        """Let no replica and no Sentinel reach a server; clients still can."""
        with redis.Redis(
            '127.0.0.1',
            server.port,
            username=USER,
            password=PASSWORD,
            **self._client_tls,
        ) as client:
            client.execute_command('ACL SETUSER default off')
            client.execute_command('CLIENT KILL USER default')

    def leader(self) -> servers.Server:
        """Return the master that a majority of the Sentinels name."""
        named = [state['port'] for state in self._master_states() if state]
        most = max(range(SIZE), key=lambda n: named.count(self._known[n]))
        return self.members[most]

    def _connected(
        self, server: servers.Server, password: str | None = None
    ) -> redis.Redis:
        return redis.Redis(
            '127.0.0.1',
            server.port,
            password=password,
            socket_timeout=1.0,
            retry=Retry(NoBackoff(), 0),
            **self._client_tls,
        )

    @property
    def _client_tls(self) -> dict[str, Any]:
        """The arguments of a client about TLS."""
        if self._tls is None:
            return {}
        return {
            'ssl': True,
            'ssl_certfile': str(self._tls.certificate),
            'ssl_keyfile': str(self._tls.key),
            'ssl_ca_certs': str(self._tls.authority),
        }

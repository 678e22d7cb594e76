# SPDX-License-Identifier: Apache-2.0
"""Real coordination servers (etcd, redis, memcached, ZooKeeper) for tests.

Each is started from its Debian package on a free loopback port and stopped
by its pid. `stop` and then `start` is an outage: the port and the directory
stay the same, so the server finds its files again.
"""

import contextlib
import dataclasses
import os
import pathlib
import shutil
import signal
import socket
import subprocess
from collections.abc import Callable, Sequence

from hashring.clock import SystemClock
from tests.contract import children
from tests.free_ports import find_free_ports

ZOOKEEPER_JAR = pathlib.Path('/usr/share/java/zookeeper.jar')
START_TIMEOUT_S = 40.0


def _accepts(port: int) -> bool:
    """Return whether a server accepts connections."""
    with contextlib.suppress(OSError):
        socket.create_connection(('127.0.0.1', port), 1.0).close()
        return True
    return False


def _serves(port: int) -> bool:
    """Return whether a ZooKeeper serves.

    Its port accepts connections before, for seconds on a busy machine, and
    clients wait for the answer until they time out.
    """
    with (
        contextlib.suppress(OSError),
        socket.create_connection(('127.0.0.1', port), 1.0) as connection,
    ):
        connection.sendall(b'srvr')
        return b'Mode: ' in connection.makefile('rb').read()
    return False


@dataclasses.dataclass(frozen=True, slots=True)
class Kind:
    """How to find, start and reach one kind of server.

    :param is_up: returns whether the server at a port has started
    """

    scheme: str
    command: Callable[[pathlib.Path, int], Sequence[str]]
    installed: Callable[[], bool]
    is_up: Callable[[int], bool] = _accepts


class Server:
    """One server process."""

    def __init__(self, kind: Kind, folder: pathlib.Path) -> None:
        self._kind = kind
        self._folder = folder
        self._port = find_free_ports(1)
        self._process: subprocess.Popen[bytes] | None = None
        self.place = f'127.0.0.1:{self._port}'
        self.url = f'{kind.scheme}://{self.place}'

    @property
    def port(self) -> int:
        """Where clients reach the server."""
        return self._port

    @property
    def pid(self) -> int | None:
        """The id of the server's process; None while there is none."""
        return None if self._process is None else self._process.pid

    def start(self) -> None:
        """Start the server; returns when it is up."""
        self.launch()
        self.await_up()

    def launch(self) -> None:
        """Start the server, and do not wait for it."""
        log = (self._folder / 'server.log').open('ab')
        command = self._kind.command(self._folder, self._port)
        with log:
            self._process = children.start(
                command, stdout=log, stderr=log, cwd=self._folder
            )

    def await_up(self) -> None:
        """Wait until the server is up."""
        assert self._process is not None
        clock = SystemClock()
        ends_s = clock.now_s() + START_TIMEOUT_S
        while not self._kind.is_up(self._port):
            assert self._process.poll() is None, self._last_words()
            assert clock.now_s() < ends_s, self._last_words()
            clock.sleep(0.1)

    def stop(self) -> None:
        """Kill the server and wait until it has ended."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None

    def lose_data(self) -> None:
        """Delete what a stopped server has on its disk."""
        shutil.rmtree(self._folder / 'data')

    def freeze(self) -> None:
        """Let the server answer nothing until `thaw`."""
        assert self._process is not None
        self._process.send_signal(signal.SIGSTOP)

    def thaw(self) -> None:
        """Let the server answer again."""
        assert self._process is not None
        self._process.send_signal(signal.SIGCONT)

    def _last_words(self) -> str:
        return (self._folder / 'server.log').read_text()[-2000:]


def _etcd(folder: pathlib.Path, port: int) -> Sequence[str]:
    client, peer = (
        f'http://127.0.0.1:{p}' for p in (port, find_free_ports(1))
    )
    return (
        'etcd',
        f'--data-dir={folder}/data',
        f'--listen-client-urls={client}',
        f'--advertise-client-urls={client}',
        f'--listen-peer-urls={peer}',
        f'--initial-advertise-peer-urls={peer}',
        f'--initial-cluster=default={peer}',
        '--log-level=error',
    )


def _redis(folder: pathlib.Path, port: int) -> Sequence[str]:
    return (
        *('redis-server', '--port', str(port), '--bind', '127.0.0.1'),
        *('--dir', str(folder), '--save', '', '--appendonly', 'no'),
    )


def _memcached(folder: pathlib.Path, port: int) -> Sequence[str]:
    user = 'root' if os.geteuid() == 0 else str(os.geteuid())
    return ('memcached', '-l', '127.0.0.1', '-p', str(port), '-u', user)


def _zookeeper(folder: pathlib.Path, port: int) -> Sequence[str]:
    config = folder / 'zoo.cfg'
    config.write_text(
        f'dataDir={folder}/data\nclientPort={port}\n'
        'clientPortAddress=127.0.0.1\n'
        # Sessions last 2 to 20 ticks.
        'tickTime=500\nadmin.enableServer=false\n'
    )
    return zookeeper_command(folder)


def zookeeper_command(
    folder: pathlib.Path, *jars: pathlib.Path
) -> Sequence[str]:
    """Return the command of a server whose zoo.cfg is in the folder."""
    classes = ':'.join(map(str, (folder, ZOOKEEPER_JAR, *jars)))
    return (
        *('java', '-Xmx96m', '-XX:+UseSerialGC', '-XX:TieredStopAtLevel=1'),
        *('-cp', classes),
        'org.apache.zookeeper.server.quorum.QuorumPeerMain',
        f'{folder}/zoo.cfg',
    )


def _has(program: str) -> Callable[[], bool]:
    return lambda: shutil.which(program) is not None


KINDS = {
    'etcd': Kind('etcd3+http', _etcd, _has('etcd')),
    'redis': Kind('redis', _redis, _has('redis-server')),
    'memcached': Kind('memcached', _memcached, _has('memcached')),
    'zookeeper': Kind(
        'zookeeper',
        _zookeeper,
        lambda: _has('java')() and ZOOKEEPER_JAR.exists(),
        _serves,
    ),
}

# SPDX-License-Identifier: Apache-2.0
"""The network between the servers of a cluster, which can be partitioned.

Servers know each other by ports of this network, which passes their bytes on.
A server that is cut off keeps its connections to the others, but no byte
arrives, in either direction. Clients reach it all the time.

All servers know a server by the same port, so this network must find out who
opens a connection: it looks for the process that has the other end.
"""

import asyncio
import contextlib
import os
import pathlib
import threading
from collections.abc import Callable, Coroutine
from typing import Any, Protocol, TypeVar

from tests.contract.coordination import servers

_CHUNK_BYTES = 65536
_LOCAL = '127.0.0.1'
# A server that is refused tries again, but one that was accepted and is reset
# then takes the other one for broken: followers of ZooKeeper connect to their
# new leader before it listens, and would start another election.
_ATTEMPTS, _ATTEMPT_S = 50, 0.1
# Of a line of /proc/net/tcp: the columns with both addresses and the inode.
_HERE, _THERE, _INODE = 1, 2, 9
_Result = TypeVar('_Result')


class PeerNetwork(Protocol):
    """How the servers of a cluster reach each other.

    Servers of one side are never cut off from each other.
    """

    can_split: bool

    def add(self, side: int, server: servers.Server) -> None:
        """Take note of a server and the side that it is on."""
        ...

    def port(self, side: int, port: int) -> int:
        """Return the port by which all servers know a port of one side."""
        ...


class Direct:
    """Servers connect to each other directly."""

    can_split = False

    def add(self, side: int, server: servers.Server) -> None:
        pass

    def port(self, side: int, port: int) -> int:
        return port


class Partitions:
    """A network in which one side can be cut off; it runs in a thread."""

    can_split = True

    def __init__(self) -> None:
        self._servers: list[tuple[int, servers.Server]] = []
        self._listening: list[asyncio.Server] = []
        self._connections: set[_Connection] = set()
        self._isolated: int | None = None
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(
            target=self._loop.run_forever, name='partitions', daemon=True
        )
        self._thread.start()

    # ---- for the test

    def add(self, side: int, server: servers.Server) -> None:
        self._servers.append((side, server))

    def port(self, side: int, port: int) -> int:
        return self._run(self._listen(side, port))

    def isolate(self, side: int) -> None:
        """Lose all bytes between the servers of one side and all others."""
        self._run(self._set_isolated(side))

    def heal(self) -> None:
        """Pass on all bytes again.

        A connection that has lost bytes cannot go on, so it is reset.
        """
        self._run(self._set_isolated(None))

    def close(self) -> None:
        """Reset all connections and listen no longer."""
        self._run(self._end())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(10.0)

    def _run(self, work: Coroutine[Any, Any, _Result]) -> _Result:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(30.0)

    # ---- in the thread

    def is_cut(self, source: int | None, target: int) -> bool:
        """Return whether bytes between two sides are lost.

        :param source: None for a client
        """
        isolated = self._isolated
        if source is None or isolated is None:
            return False
        return (source == isolated) != (target == isolated)

    async def _listen(self, side: int, port: int) -> int:
        async def accept(
            reader: asyncio.StreamReader, writer: asyncio.StreamWriter
        ) -> None:
            await self._accept(side, port, reader, writer)

        server = await asyncio.start_server(accept, _LOCAL, 0)
        self._listening.append(server)
        known: int = server.sockets[0].getsockname()[1]
        return known

    async def _accept(
        self,
        side: int,
        port: int,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
    ) -> None:
        try:
            source = self._find_side(writer)
        except LookupError:
            writer.transport.abort()  # It has ended already.
            return

        def is_cut() -> bool:
            return self.is_cut(source, side)

        connection = _Connection(is_cut, reader, writer)
        self._connections.add(connection)
        try:
            await connection.run(port)
        finally:
            self._connections.discard(connection)

    def _find_side(self, writer: asyncio.StreamWriter) -> int | None:
        """Return the side of the other end; None for a client."""
        port = writer.get_extra_info('peername')[1]
        inode = _inode(port, writer.get_extra_info('sockname')[1])
        for side, server in self._servers:
            if server.pid is not None and _has_socket(server.pid, inode):
                return side
        return None

    async def _set_isolated(self, side: int | None) -> None:
        self._isolated = side
        for connection in tuple(self._connections):
            if side is None and connection.has_lost:
                connection.reset()

    async def _end(self) -> None:
        for listening in self._listening:
            listening.close()
        tasks = asyncio.all_tasks() - {asyncio.current_task()}
        for connection in tuple(self._connections):
            connection.reset()
        if tasks:
            await asyncio.wait(tasks, timeout=10.0)


class _Connection:
    """One connection to a server, which may lose bytes."""

    def __init__(
        self,
        is_cut: Callable[[], bool],
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
    ) -> None:
        self.has_lost = False
        self._is_cut = is_cut
        self._reader = reader
        self._writers = [writer]

    def reset(self) -> None:
        """End both connections at once."""
        for writer in self._writers:
            writer.transport.abort()

    async def run(self, port: int) -> None:
        """Pass on the bytes to and from a port until one side has ended."""
        with contextlib.suppress(OSError):
            if self._is_cut():
                await self._pump(self._reader, None)
            else:
                await self._run_both(port)
        self.reset()

    async def _run_both(self, port: int) -> None:
        reader, writer = await _connect(port)
        self._writers.append(writer)
        there = self._pump(self._reader, writer)
        back = self._pump(reader, self._writers[0])
        await asyncio.gather(there, back)

    async def _pump(
        self,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter | None,
    ) -> None:
        while data := await reader.read(_CHUNK_BYTES):
            if self._loses() or writer is None:
                continue
            writer.write(data)
            await writer.drain()
        # The end of a connection is lost like its bytes.
        if not self._loses() and writer is not None:
            writer.write_eof()

    def _loses(self) -> bool:
        self.has_lost = self.has_lost or self._is_cut()
        return self.has_lost


async def _connect(
    port: int,
) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """Connect to a server that may not listen yet.

    :raises OSError: it does not for some seconds
    """
    for _ in range(_ATTEMPTS):
        with contextlib.suppress(ConnectionRefusedError):
            return await asyncio.open_connection(_LOCAL, port)
        await asyncio.sleep(_ATTEMPT_S)
    raise ConnectionRefusedError(port)


def _inode(port: int, remote_port: int) -> str:
    """Return the inode of the socket with these ports.

    :raises LookupError: there is none
    """
    # Java's sockets are those of IPv6, although they have IPv4 addresses.
    for table in ('tcp', 'tcp6'):
        lines = pathlib.Path('/proc/net', table).read_text().splitlines()
        for columns in map(str.split, lines[1:]):
            ports = _port(columns[_HERE]), _port(columns[_THERE])
            if ports == (port, remote_port):
                return columns[_INODE]
    raise LookupError(port)


def _port(address: str) -> int:
    return int(address.rpartition(':')[2], 16)


def _has_socket(pid: int, inode: str) -> bool:
    """Return whether a process has a socket open."""
    folder = f'/proc/{pid}/fd'
    with contextlib.suppress(OSError):
        for name in os.listdir(folder):
            with contextlib.suppress(OSError):
                if os.readlink(f'{folder}/{name}') == f'socket:[{inode}]':
                    return True
    return False

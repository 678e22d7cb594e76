# SPDX-License-Identifier: Apache-2.0
"""TCP proxies that can refuse, swallow or reset the connections of a host.

It runs as a process of its own, with one listener for each host and service.
A Unix socket takes orders: one JSON object per line, listener -> way. The
answer has the counts of all listeners. No byte of a connection is logged.
"""

import asyncio
import contextlib
import dataclasses
import enum
import json
import pathlib
import random
import socket
import struct
import sys
from collections.abc import Mapping
from typing import Any

_CHUNK_BYTES = 65536
# With ``resets``: the share of the connections that are reset, and after how
# many bytes at most. A request alone is often shorter, so some are reset
# before their request has arrived, and some before its answer has. The others
# pass on so many bytes, and draw again: one lucky connection that is kept open
# would hide the loss for ever.
_RESET_SHARE = 0.9
_RESET_AFTER_BYTES = 1000
_LUCKY_BYTES = 20_000
# With these options, the kernel ends a connection with RST instead of FIN.
_RESET_ON_CLOSE = struct.pack('ii', 1, 0)

Place = tuple[str, int]


@dataclasses.dataclass(frozen=True, slots=True)
class Upstream:
    """The service behind a listener.

    :param expired: where the same service has a certificate that has
        expired; None: hosts reach it without TLS
    """

    place: Place
    expired: Place | None = None


class Direction(enum.Enum):
    """Where bytes go: OUT to the service, IN to the host."""

    OUT = enum.auto()
    IN = enum.auto()

    @property
    def opposite(self) -> 'Direction':
        """The other direction."""
        return Direction.IN if self is Direction.OUT else Direction.OUT


class Way(enum.StrEnum):
    """What a listener does with the bytes of its connections."""

    PASS = 'pass'  # noqa: S105
    REFUSED = 'refused'  # Nothing listens; present connections are reset.
    BLACK_HOLE = 'black-hole'  # Connections stay open; all bytes are lost.
    ONE_WAY_OUT = 'one-way-out'  # The host's bytes arrive, answers are lost.
    ONE_WAY_IN = 'one-way-in'  # The host's bytes are lost, answers arrive.
    RESETS = 'resets'  # Connections are reset after some bytes; see above.
    EXPIRED = 'expired'  # Connections are reset; then the certificate is old.

    def passes(self, direction: Direction) -> bool:
        """Return whether bytes in this direction arrive."""
        only = (
            Way.ONE_WAY_OUT if direction is Direction.OUT else Way.ONE_WAY_IN
        )
        return self in (only, Way.PASS, Way.RESETS, Way.EXPIRED)


_ENDS_CONNECTIONS = (Way.REFUSED, Way.EXPIRED)


@dataclasses.dataclass(slots=True)
class Counts:
    """What one listener has done since the start of the process."""

    accepted: int = 0
    resets: int = 0
    lost_bytes: int = 0

    def __str__(self) -> str:
        return (
            f'{self.accepted} connections accepted, {self.resets} reset, '
            f'{self.lost_bytes} bytes lost'
        )


class Listener:
    """One listener: connections of one host to one service."""

    def __init__(
        self, place: Place, upstream: Upstream, rng: random.Random
    ) -> None:
        self.way = Way.PASS
        self.counts = Counts()
        self.rng = rng
        self._upstream = upstream
        self.connections: set[_Connection] = set()
        self._place = place
        self._server: asyncio.Server | None = None

    async def open(self) -> None:
        """Listen."""
        self._server = await asyncio.start_server(self._accept, *self._place)

    @property
    def target(self) -> Place:
        """Where new connections lead at present."""
        expired = self._upstream.expired if self.way is Way.EXPIRED else None
        return expired or self._upstream.place

    async def turn(self, way: Way) -> None:
        """Treat all connections another way from now on.

        A connection that has lost bytes cannot go on, so it is reset. So is
        each one when the certificate expires: TLS checks it at the start of a
        connection only.

        :raises ValueError: there is no certificate that could expire
        """
        if way is Way.EXPIRED and self._upstream.expired is None:
            raise ValueError('hosts reach this service without TLS')
        self.way = way
        if way is Way.REFUSED and self._server is not None:
            self._server.close()
            self._server = None
        for connection in tuple(self.connections):
            if way in _ENDS_CONNECTIONS or connection.has_lost:
                connection.reset()
            else:
                connection.draw_lot()
        if way is not Way.REFUSED and self._server is None:
            await self.open()

    def _accept(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        self.counts.accepted += 1
        connection = _Connection(self, reader, writer)
        self.connections.add(connection)
        connection.start()


class _Connection:
    """One connection of a host, and the one to the service behind it."""

    def __init__(
        self,
        listener: Listener,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
    ) -> None:
        self.has_lost = False
        self._listener = listener
        self._reader, self._writer = reader, writer
        self._upstream: asyncio.StreamWriter | None = None
        self._task: asyncio.Task[None] | None = None
        self._left_bytes = 0
        self._is_doomed = False
        self.draw_lot()

    def start(self) -> None:
        """Serve the connection in a task of its own."""
        self._task = asyncio.create_task(self._run())

    def draw_lot(self) -> None:
        """Choose whether the connection is reset, and after how many bytes."""
        rng = self._listener.rng
        self._is_doomed = (
            self._listener.way is Way.RESETS and rng.random() < _RESET_SHARE
        )
        self._left_bytes = (
            rng.randint(0, _RESET_AFTER_BYTES)
            if self._is_doomed
            else _LUCKY_BYTES
        )

    def reset(self) -> None:
        """End both connections with RST."""
        self._listener.counts.resets += 1
        for writer in (self._writer, self._upstream):
            if writer is not None:
                _abort(writer)
        if self._task is not None:
            self._task.cancel()

    async def _run(self) -> None:
        try:
            # A service behind a broken path sees no new connection.
            if self._listener.way.passes(Direction.OUT):
                await self._run_both()
            else:
                self.has_lost = True
                await self._pump(Direction.OUT, self._reader, None)
        except OSError:
            self.reset()
        finally:
            self._listener.connections.discard(self)
            for writer in (self._writer, self._upstream):
                if writer is not None:
                    writer.close()

    async def _run_both(self) -> None:
        reader, self._upstream = await asyncio.open_connection(
            *self._listener.target
        )
        await asyncio.gather(
            self._pump(Direction.OUT, self._reader, self._upstream),
            self._pump(Direction.IN, reader, self._writer),
        )

    async def _pump(
        self,
        direction: Direction,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter | None,
    ) -> None:
        """Pass on bytes until their sender has ended the connection.

        The end of a connection is lost like its bytes: the other side keeps
        its connection then, until it ends it itself or the way changes.
        """
        while data := await self._read(direction, reader):
            if writer is None or not self._passes(direction):
                self._lose(len(data))
            elif self._is_over(len(data)):
                self.reset()
            else:
                await self._write(direction, writer, data)
        if writer is None or not self._passes(direction):
            self._lose(0)
            return
        with contextlib.suppress(OSError):
            writer.write_eof()

    async def _read(
        self, direction: Direction, reader: asyncio.StreamReader
    ) -> bytes:
        """Return some bytes; none if their sender has ended or reset."""
        try:
            return await reader.read(_CHUNK_BYTES)
        except OSError:
            if self._passes(direction):
                raise
            return b''

    async def _write(
        self, direction: Direction, writer: asyncio.StreamWriter, data: bytes
    ) -> None:
        try:
            writer.write(data)
            await writer.drain()
        except OSError:
            # The receiver's RST is lost on its way back, like its bytes.
            if self._passes(direction.opposite):
                raise
            self._lose(len(data))

    def _passes(self, direction: Direction) -> bool:
        return self._listener.way.passes(direction)

    def _lose(self, size: int) -> None:
        self.has_lost = True
        self._listener.counts.lost_bytes += size

    def _is_over(self, size: int) -> bool:
        """Return whether these bytes are too many for a doomed connection."""
        self._left_bytes -= size
        if self._left_bytes >= 0:
            return False
        if not self._is_doomed:
            self.draw_lot()
            return False
        return True


def _abort(writer: asyncio.StreamWriter) -> None:
    with contextlib.suppress(OSError):
        writer.get_extra_info('socket').setsockopt(
            socket.SOL_SOCKET, socket.SO_LINGER, _RESET_ON_CLOSE
        )
    writer.transport.abort()


class TcpProxy:
    """All listeners, and the socket that takes orders.

    :param control: the path of the Unix socket
    :param places: name of a listener -> where it listens, and its service
    """

    def __init__(
        self,
        control: pathlib.Path,
        places: Mapping[str, tuple[Place, Upstream]],
        rng: random.Random,
    ) -> None:
        self._control = control
        self._listeners = {
            name: Listener(place, upstream, rng)
            for name, (place, upstream) in places.items()
        }

    async def serve(self) -> None:
        """Serve until the process is stopped."""
        for listener in self._listeners.values():
            await listener.open()
        self._control.unlink(missing_ok=True)
        server = await asyncio.start_unix_server(
            self._take_orders, self._control
        )
        async with server:
            await server.serve_forever()

    async def _take_orders(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        with contextlib.suppress(OSError):
            while line := await reader.readline():
                answer = json.dumps(await self._answer(line))
                writer.write(answer.encode() + b'\n')
                await writer.drain()
        writer.close()

    async def _answer(self, line: bytes) -> dict[str, Any]:
        try:
            ways = {n: Way(w) for n, w in json.loads(line).items()}
            if unknown := sorted(ways.keys() - self._listeners.keys()):
                return {'error': f'there is no listener {unknown[0]}'}
            for name, way in ways.items():
                await self._listeners[name].turn(way)
        except (ValueError, OSError) as exc:
            return {'error': str(exc)}
        return {
            name: dataclasses.asdict(listener.counts)
            for name, listener in self._listeners.items()
        }


def order(
    control: pathlib.Path, ways: Mapping[str, Way], timeout_s: float = 10.0
) -> dict[str, Counts]:
    """Have the proxy treat connections another way; return all counts.

    :param ways: name of a listener -> way; may be empty
    :raises OSError: the proxy does not run
    :raises ValueError: the proxy refused the order
    """
    with socket.socket(socket.AF_UNIX) as client:
        client.settimeout(timeout_s)
        client.connect(str(control))
        client.sendall(json.dumps(dict(ways)).encode() + b'\n')
        with client.makefile('rb') as answers:
            answer = json.loads(answers.readline())
    if 'error' in answer:
        raise ValueError(answer['error'])
    return {name: Counts(**counts) for name, counts in answer.items()}


def argument(
    control: pathlib.Path,
    places: Mapping[str, tuple[Place, Upstream]],
    seed: int,
) -> str:
    """Return the argument of the program."""
    listed = {
        name: (place, upstream.place, upstream.expired)
        for name, (place, upstream) in places.items()
    }
    return json.dumps(
        {'control': str(control), 'places': listed, 'seed': seed}
    )


def _place(read: list[Any]) -> Place:
    address, port = read
    return address, port


def _parse(text: str) -> TcpProxy:
    read = json.loads(text)
    places = {
        name: (_place(at), Upstream(_place(to), expired and _place(expired)))
        for name, (at, to, expired) in read['places'].items()
    }
    control = pathlib.Path(read['control'])
    return TcpProxy(control, places, random.Random(read['seed']))


if __name__ == '__main__':
    asyncio.run(_parse(sys.argv[1]).serve())

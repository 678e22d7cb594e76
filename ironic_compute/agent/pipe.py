# SPDX-License-Identifier: Apache-2.0
"""The two pipes between an agent and a worker: one JSON line a message.

Down goes the appointment to a host, then views (deadline, ring, known hosts);
the newest view is all that counts, so an unread one may be replaced. Up go
facts: serving, what Nova says of the known hosts, a sign of life, what an
operator says of a host, and the sentence of a worker that cannot start.
Neither side ever blocks on the other: a stopped worker must not stop its
agent, nor the other way round.
"""

import collections
import dataclasses
import errno
import json
import os
import posix
import select
from collections.abc import Iterator
from typing import Any

from hashring.ring import Host
from hashring.workers import (
    HostAdded,
    MappingConfirmed,
    ServiceFacts,
    WorkerView,
)

_CHUNK_BYTES = 65536


@dataclasses.dataclass(frozen=True, slots=True)
class Appointment:
    """What makes a process the worker of a host; it never changes."""

    host: Host
    is_home: bool
    """The host is its agent's own, not one taken over."""


@dataclasses.dataclass(frozen=True, slots=True)
class IsServing:
    """The worker receives RPC."""


@dataclasses.dataclass(frozen=True, slots=True)
class IsAlive:
    """The worker's own loop turned."""


@dataclasses.dataclass(frozen=True, slots=True)
class Services:
    """What Nova says of the hosts this pool knows."""

    facts: dict[Host, ServiceFacts]


@dataclasses.dataclass(frozen=True, slots=True)
class CannotStart:
    """One sentence for the operator: what is wrong and what to do."""

    sentence: str


Order = HostAdded | MappingConfirmed
Message = IsServing | IsAlive | Services | CannotStart | Order


def encode_appointment(appointment: Appointment) -> bytes:
    """Return the line that appoints a worker."""
    return _line(dataclasses.asdict(appointment))


def decode_appointment(line: bytes) -> Appointment:
    """Read a line made by :func:`encode_appointment`."""
    raw = json.loads(line)
    return Appointment(host=Host(raw['host']), is_home=raw['is_home'])


def encode_view(view: WorkerView) -> bytes:
    """Return the line that tells a worker ``view``."""
    raw = dataclasses.asdict(view)
    # The key keeps its first name, so that an agent and a worker of two
    # releases understand each other during an upgrade.
    raw['vouched'] = raw.pop('confirmed_mappings')
    return _line(raw)


def decode_view(line: bytes) -> WorkerView:
    """Read a line made by :func:`encode_view`."""
    raw = json.loads(line)
    return WorkerView(
        deadline_s=raw['deadline_s'],
        ring=tuple(raw['ring']),
        # An agent that was started before an upgrade says less.
        agreed_since_s=raw.get('agreed_since_s'),
        agreed_until_s=raw.get('agreed_until_s', 0.0),
        known=tuple(raw['known']),
        opens_s=raw['opens_s'],
        confirmed_mappings=tuple(raw['vouched']),
    )


def encode_message(message: Message) -> bytes:
    """Return the line that tells an agent ``message``."""
    match message:
        case IsServing():
            return _line({'is': 'serving'})
        case IsAlive():
            return _line({'is': 'alive'})
        case Services(facts=facts):
            services = {h: dataclasses.asdict(f) for h, f in facts.items()}
            return _line({'is': 'services', 'services': services})
        case CannotStart(sentence=sentence):
            return _line({'is': 'cannot start', 'sentence': sentence})
        case HostAdded(host=host):
            return _line({'is': 'admitted', 'host': host})
        case MappingConfirmed(host=host):
            return _line({'is': 'vouched', 'host': host})


def decode_message(line: bytes) -> Message:
    """Read a line made by :func:`encode_message`.

    :raises ValueError: the line is none of ours
    """
    raw = json.loads(line)
    match raw['is']:
        case 'serving':
            return IsServing()
        case 'alive':
            return IsAlive()
        case 'services':
            return Services(
                {
                    Host(host): ServiceFacts(**facts)
                    for host, facts in raw['services'].items()
                }
            )
        case 'cannot start':
            return CannotStart(raw['sentence'])
        case 'admitted':
            return HostAdded(Host(raw['host']))
        case 'vouched':
            return MappingConfirmed(Host(raw['host']))
        case other:
            raise ValueError(f'unknown message {other!r}')


def _line(raw: dict[str, Any]) -> bytes:
    return json.dumps(raw, separators=(',', ':')).encode() + b'\n'


class LineReader:
    """Read whole lines from a pipe; one thread may use it."""

    def __init__(self, fd: int) -> None:
        os.set_blocking(fd, False)
        self._fd = fd
        self._rest = b''
        self._unread: collections.deque[bytes] = collections.deque()

    def fileno(self) -> int:
        """Return the descriptor, as ``select`` asks for it."""
        return self._fd

    def lines(self, timeout_s: float | None = None) -> Iterator[bytes]:
        """Yield what is there, waiting up to ``timeout_s`` for something.

        :raises EOFError: the other side is gone
        """
        # select, not a blocking read: under eventlet a blocking read of a
        # pipe would stop every thread of the process. And an object, not a
        # number: eventlet's select takes the number 0 for nothing to watch.
        patience_s = 0 if self._unread else timeout_s
        ready, _, _ = select.select([self], [], [], patience_s)
        if ready:
            self._take_in(os.read(self._fd, _CHUNK_BYTES))
        while self._unread:
            yield self._unread.popleft()

    def next_line(self) -> bytes:
        """Wait for one line, and leave those behind it.

        :raises EOFError: the other side is gone
        """
        while not self._unread:
            select.select([self], [], [])
            self._take_in(os.read(self._fd, _CHUNK_BYTES))
        return self._unread.popleft()

    def _take_in(self, chunk: bytes) -> None:
        if not chunk:
            raise EOFError
        *whole, self._rest = (self._rest + chunk).split(b'\n')
        self._unread.extend(whole)


class NewestLineWriter:
    """Write lines to a pipe without ever blocking.

    A line that the reader has not taken yet is replaced by the next one;
    a line half written is finished first.
    """

    def __init__(self, fd: int) -> None:
        os.set_blocking(fd, False)
        self._fd = fd
        self._rest = b''

    def write(self, line: bytes) -> bool:
        """Send ``line``; return False if the pipe is full or closed."""
        if self._rest and not self._flush(self._rest):
            return False
        return self._flush(line)

    def _flush(self, data: bytes) -> bool:
        try:
            # Not os.write: eventlet's waits where the kernel would not.
            sent = posix.write(self._fd, data)
        except OSError as exc:
            if exc.errno not in (errno.EAGAIN, errno.EPIPE, errno.EBADF):
                raise
            return False
        self._rest = data[sent:]
        return not self._rest

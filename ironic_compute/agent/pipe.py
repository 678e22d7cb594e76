# SPDX-License-Identifier: Apache-2.0
"""Messages and pipes between an agent and a worker; a message is a JSON line.

The agent sends the appointment to a host, then views (lease deadline, ring,
known hosts, and what the operator has told it to do). A newer view replaces
one that the worker has not read yet. The worker sends that it starts, that it
serves RPC, that it is alive, the state of Nova's Service records, the states
of its paths to other services, an operator's requests about a host, and the
reason if it cannot start. No call blocks on the other process, because a
stopped worker must not stop its agent, and a stopped agent must not stop its
workers.
"""

import collections
import dataclasses
import errno
import json
import os
import posix
import select
from collections.abc import Iterator, Mapping
from typing import Any

from hashring import workers
from hashring.paths import Path, PathState
from hashring.ring import Host

_CHUNK_BYTES = 65536


@dataclasses.dataclass(frozen=True, slots=True)
class Appointment:
    """The host that a worker process serves; sent once."""

    host: Host
    """`NO_HOST` for a worker that only observes the paths."""
    is_home: bool
    """The host is its agent's own, not an adopted one."""
    metrics_fd: int | None = None
    """The inherited socket on which the agent requests metrics, if it does."""
    pool: Mapping[str, str | None] | None = None
    """The options of ``[ironic]`` that define the agent's pool."""


@dataclasses.dataclass(frozen=True, slots=True)
class Instructions:
    """How often the operator has given each instruction to this agent.

    They are counted and sent with each view, because a view may be lost.
    """

    reloads: int = 0
    """Read the configuration again."""
    reports: int = 0
    """Write a report of all threads."""


NO_INSTRUCTIONS = Instructions()


@dataclasses.dataclass(frozen=True, slots=True)
class IsServing:
    """Message of a worker: it has begun to receive RPC."""


@dataclasses.dataclass(frozen=True, slots=True)
class IsAlive:
    """Message of a worker every few seconds: it does not hang."""


@dataclasses.dataclass(frozen=True, slots=True)
class IsStarting:
    """First message of a worker, sent before it imports Nova.

    An agent of an older release reads it as `IsAlive`.
    """


@dataclasses.dataclass(frozen=True, slots=True)
class Services:
    """Message of a worker: the state of each host's Service record in Nova."""

    facts: dict[Host, workers.ServiceFacts]


@dataclasses.dataclass(frozen=True, slots=True)
class Paths:
    """Message of a worker: the states of its paths to other services."""

    states: dict[Path, PathState]


@dataclasses.dataclass(frozen=True, slots=True)
class CannotStart:
    """Message of a worker: it cannot start; a sentence with cause and cure."""

    sentence: str


Message = (
    IsStarting
    | IsServing
    | IsAlive
    | Services
    | Paths
    | CannotStart
    | workers.OperatorRequest
    | workers.HostRetired
)


def encode_appointment(appointment: Appointment) -> bytes:
    """Return the line that appoints a worker."""
    return _line(dataclasses.asdict(appointment))


def decode_appointment(line: bytes) -> Appointment:
    """Read a line made by :func:`encode_appointment`."""
    raw = json.loads(line)
    return Appointment(
        host=Host(raw['host']),
        is_home=raw['is_home'],
        # An agent of an older release sends neither.
        metrics_fd=raw.get('metrics_fd'),
        pool=raw.get('pool'),
    )


def encode_view(
    view: workers.WorkerView, instructions: Instructions = NO_INSTRUCTIONS
) -> bytes:
    """Return a view as a line for a worker."""
    raw = dataclasses.asdict(view)
    raw['instructions'] = dataclasses.asdict(instructions)
    # This JSON key has the name of earlier releases, so that an agent and a
    # worker of two releases can read each other's views during an upgrade.
    raw['vouched'] = raw.pop('confirmed_mappings')
    return _line(raw)


def decode_view(line: bytes) -> workers.WorkerView:
    """Read a line made by :func:`encode_view`."""
    raw = json.loads(line)
    return workers.WorkerView(
        deadline_s=raw['deadline_s'],
        ring=tuple(raw['ring']),
        # An agent of an older release sends fewer keys.
        agreed_since_s=raw.get('agreed_since_s'),
        agreed_until_s=raw.get('agreed_until_s', 0.0),
        known=tuple(raw['known']),
        opens_s=raw['opens_s'],
        confirmed_mappings=tuple(raw['vouched']),
        doubted_paths=tuple(map(Path, raw.get('doubted_paths', ()))),
        member_homes=tuple(raw.get('member_homes', ())),
    )


def decode_instructions(line: bytes) -> Instructions:
    """Read the instructions from a line made by :func:`encode_view`."""
    # An agent of an older release sends none.
    raw = json.loads(line).get('instructions', {})
    return Instructions(raw.get('reloads', 0), raw.get('reports', 0))


def encode_message(message: Message) -> bytes:
    """Return a message as a line for an agent."""
    match message:
        case IsStarting():
            return _line({'is': 'alive', 'starting': True})
        case IsServing():
            return _line({'is': 'serving'})
        case IsAlive():
            return _line({'is': 'alive'})
        case Services(facts=facts):
            services = {h: dataclasses.asdict(f) for h, f in facts.items()}
            return _line({'is': 'services', 'services': services})
        case Paths(states=states):
            paths = {p: dataclasses.asdict(s) for p, s in states.items()}
            return _line({'is': 'paths', 'paths': paths})
        case CannotStart(sentence=sentence):
            return _line({'is': 'cannot start', 'sentence': sentence})
        case workers.HostAdded(host=host):
            return _line({'is': 'admitted', 'host': host})
        case workers.HostForgotten(host=host):
            return _line({'is': 'forgotten', 'host': host})
        case workers.HostRetired(host=host):
            return _line({'is': 'retired', 'host': host})
        case workers.MappingConfirmed(host=host):
            return _line({'is': 'vouched', 'host': host})


def decode_message(line: bytes) -> Message:
    """Read a line made by :func:`encode_message`.

    :raises ValueError: the line is no message of a worker of this release
    """
    try:
        return _parse_message(json.loads(line))
    except (KeyError, TypeError, ValueError) as exc:
        raise ValueError(f'unknown message {line!r}: {exc!r}') from exc


def _parse_message(raw: Any) -> Message:
    match raw['is']:
        case 'serving':
            return IsServing()
        case 'alive':
            return IsStarting() if 'starting' in raw else IsAlive()
        case 'services':
            return Services(
                {
                    Host(host): _parse_facts(facts)
                    for host, facts in raw['services'].items()
                }
            )
        case 'paths':
            return Paths(
                {
                    Path(path): _parse_path_state(state)
                    for path, state in raw['paths'].items()
                }
            )
        case 'cannot start':
            return CannotStart(raw['sentence'])
        case 'admitted':
            return workers.HostAdded(Host(raw['host']))
        case 'forgotten':
            return workers.HostForgotten(Host(raw['host']))
        case 'retired':
            return workers.HostRetired(Host(raw['host']))
        case 'vouched':
            return workers.MappingConfirmed(Host(raw['host']))
        case _:
            raise ValueError('this release has no such message')


def _parse_facts(raw: dict[str, Any]) -> workers.ServiceFacts:
    # A worker of a newer release may send more fields, one of an older
    # release does not send the two latter.
    fields = dataclasses.fields(workers.ServiceFacts)
    raw = {'has_servers': None, 'service_id': None, **raw}
    return workers.ServiceFacts(**{f.name: raw[f.name] for f in fields})


def _parse_path_state(raw: dict[str, Any]) -> PathState:
    # A worker of a newer release may send more fields, one of an older release
    # does not send the two latter.
    fields = dataclasses.fields(PathState)
    raw = {'answered_s': None, 'failed_s': None, **raw}
    return PathState(**{f.name: raw[f.name] for f in fields})


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
        """Return the file descriptor; ``select`` calls this method."""
        return self._fd

    def lines(self, timeout_s: float | None = None) -> Iterator[bytes]:
        """Yield all lines in the pipe, after waiting for the first one.

        :param timeout_s: seconds to wait at most

        :raises EOFError: the other process has closed the pipe
        """
        # select is used and not a blocking read, because under eventlet a
        # blocking read of a pipe would stop every thread of the process. It
        # gets an object and not a number, because eventlet's select ignores
        # file descriptor 0.
        wait_s = 0 if self._unread else timeout_s
        ready, _, _ = select.select([self], [], [], wait_s)
        if ready:
            self._split(os.read(self._fd, _CHUNK_BYTES))
        while self._unread:
            yield self._unread.popleft()

    def next_line(self) -> bytes:
        """Block until a line has come; return it and keep the later ones.

        :raises EOFError: the other process has closed the pipe
        """
        while not self._unread:
            select.select([self], [], [])
            self._split(os.read(self._fd, _CHUNK_BYTES))
        return self._unread.popleft()

    def _split(self, chunk: bytes) -> None:
        if not chunk:
            raise EOFError
        *whole, self._rest = (self._rest + chunk).split(b'\n')
        self._unread.extend(whole)


class NewestLineWriter:
    """Write lines to a pipe without blocking.

    A line that does not fit into the pipe waits and is replaced by the next
    line; a line that is partly written is completed first.
    """

    def __init__(self, fd: int) -> None:
        os.set_blocking(fd, False)
        self._fd = fd
        self._rest = b''

    def write(self, line: bytes) -> bool:
        """Send a line; return False if the pipe is full or closed."""
        if self._rest and not self._flush(self._rest):
            return False
        return self._flush(line)

    def _flush(self, data: bytes) -> bool:
        try:
            # posix.write is used, because eventlet's os.write blocks on a full
            # pipe.
            sent = posix.write(self._fd, data)
        except OSError as exc:
            if exc.errno not in (errno.EAGAIN, errno.EPIPE, errno.EBADF):
                raise
            return False
        self._rest = data[sent:]
        return not self._rest

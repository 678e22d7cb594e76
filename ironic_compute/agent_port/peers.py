# SPDX-License-Identifier: Apache-2.0
"""Figures of other agents' hosts, and their moves, read from their ports.

Only while somebody looks at the status page, or at the members of the group in
``/api/v1/ring``, for which each port is asked for ``/healthz``. An agent
publishes the URL of its port with its membership; one of a loopback address is
read on its own machine only. What an answer says of nodes counts for the hosts
that its agent publishes to serve and for no others. An answer that is late,
malformed or missing leaves a host without figures, or leaves moves out. A port
that gives no answer at all is the first sign that its agent has died: its
lease ends later.
"""

import collections
import contextlib
import dataclasses
import http.client
import ipaddress
import json
import threading
import urllib.parse
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, TypeVar

from oslo_log import log as logging

from hashring.clock import Clock
from hashring.group import Boot, Member
from hashring.ring import Host
from ironic_compute.agent_port.figures import HostFigures
from ironic_compute.journal.moves import Move, parse_move

LOG = logging.getLogger(__name__)

PATH = '/api/v1/nodes'
MOVES_PATH = '/api/v1/moves'
HEALTH_PATH = '/healthz'
# For a command that reads the ring of each daemon of a pool. If each of them
# asked all the others meanwhile, the requests would grow with the square of
# the pool. A daemon of an older release ignores the query, and asks nobody.
RING_WITHOUT_PORTS = '/api/v1/ring?ports=no'
# Those of one machine that its port shows, and those of the pool on the page.
MOVES_COUNT = 50
# Seconds to wait for one agent, and for all of them together.
_PEER_MAX_S = 0.6
_ALL_MAX_S = 0.8
_THREADS_COUNT = 8
_ANSWER_MAX_BYTES = 1 << 20

_Answer = TypeVar('_Answer')


def published_url(address: str, port: int, machine: str) -> str:
    """Return the URL of an agent's port.

    :param address: on which the port is served; may be a name
    :param machine: the name of this machine
    """
    try:
        ip = ipaddress.ip_address(address)
    except ValueError:
        return f'http://{address}:{port}/'
    if ip.is_unspecified:
        return f'http://{machine}:{port}/'
    return (
        f'http://[{ip}]:{port}/' if ip.version == 6 else f'http://{ip}:{port}/'
    )


def split_url(url: str) -> tuple[str, int] | None:
    """Return the machine and the port of a published URL.

    :returns: None if it is none
    """
    try:
        parts = urllib.parse.urlsplit(url)
        machine, port = parts.hostname, parts.port
    except ValueError:
        return None
    if parts.scheme != 'http' or not machine or not port:
        return None
    return machine, port


def is_reachable(member: Member, machine: str) -> bool:
    """Return whether a machine can reach the port of an agent.

    An agent on a loopback address is reached on its own machine only.
    """
    place = split_url(member.page)
    if place is None:
        return False
    return member.machine == machine or not _is_loopback(place[0])


def _is_loopback(name: str) -> bool:
    try:
        return ipaddress.ip_address(name).is_loopback
    except ValueError:
        return name == 'localhost'


@dataclasses.dataclass(frozen=True, slots=True)
class PeerAnswer:
    """What the port of one agent has answered.

    :param is_silent: it did not answer at all
    """

    home: Host
    figures: Mapping[Host, HostFigures] = dataclasses.field(
        default_factory=dict
    )
    moves: Sequence[Move] = ()
    is_silent: bool = False


@dataclasses.dataclass(frozen=True, slots=True)
class PeerAnswers:
    """What the ports of other agents have answered so far.

    :param silent: the home hosts of those whose port did not answer
    """

    figures: Mapping[Host, HostFigures]
    moves: Sequence[Move]
    silent: frozenset[Host]


class PeerReader:
    """Asks the ports of other agents, all at once; any thread may call.

    Its threads are daemons: a name server that hangs must not keep the agent
    from its exit.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._places = threading.Semaphore(_THREADS_COUNT)

    def read(self, members: Iterable[Member]) -> PeerAnswers:
        """Return the figures of all hosts that these agents serve, and moves.

        Blocks for less than a second, however many do not answer.

        :param members: agents whose port this machine can reach
        """
        return _combine(self._ask_all(members, read_peer))

    def find_answering(self, members: Iterable[Member]) -> dict[Boot, bool]:
        """Return whether the ports of these agents answer anything.

        Blocks for less than a second, however many do not answer. An agent
        is missing if that was too short to know.

        :param members: agents whose port this machine can reach
        """

        def ask(member: Member) -> tuple[Boot, bool]:
            return member.boot, answers(member)

        return dict(self._ask_all(members, ask))

    def _ask_all(
        self, members: Iterable[Member], ask: Callable[[Member], _Answer]
    ) -> tuple[_Answer, ...]:
        waiting = collections.deque(members)
        found: list[_Answer] = []
        ends_s = self._clock.now_s() + _ALL_MAX_S
        threads = [
            self._start(waiting, ask, found)
            for _ in range(len(waiting))
            if self._places.acquire(blocking=False)
        ]
        for thread in threads:
            thread.join(max(ends_s - self._clock.now_s(), 0.0))
        waiting.clear()
        # Threads that are late may still add to the list.
        return tuple(found)

    def _start(
        self,
        waiting: collections.deque[Member],
        ask: Callable[[Member], _Answer],
        found: list[_Answer],
    ) -> threading.Thread:
        def read_some() -> None:
            try:
                # Another thread may take the last one first.
                with contextlib.suppress(IndexError):
                    while True:
                        found.append(ask(waiting.popleft()))
            finally:
                self._places.release()

        thread = threading.Thread(
            target=read_some, name='agent-port-peer', daemon=True
        )
        try:
            thread.start()
        except RuntimeError:  # The process has too many threads.
            self._places.release()
            raise
        return thread


def _combine(found: Sequence[PeerAnswer]) -> PeerAnswers:
    return PeerAnswers(
        {h: figures for each in found for h, figures in each.figures.items()},
        [move for each in found for move in each.moves],
        frozenset(each.home for each in found if each.is_silent),
    )


def read_peer(member: Member) -> PeerAnswer:
    """Ask the port of one agent for the figures of its hosts, and for moves.

    The moves are those of its machine. An agent waits for the figures of a
    worker that hangs for almost as long as they are waited for here, so it is
    asked first whether it answers at all.
    """
    if not answers(member):
        return PeerAnswer(member.home, is_silent=True)
    return PeerAnswer(
        member.home,
        parse_answer(get(member, PATH) or b'', member.serving),
        parse_moves(get(member, MOVES_PATH) or b''),
    )


def answers(member: Member, timeout_s: float = _PEER_MAX_S) -> bool:
    """Return whether the port of an agent answers anything; blocks.

    An agent that says that it is not well answers, too.

    :param timeout_s: seconds for which a single read or write may block
    """
    return get(member, HEALTH_PATH, timeout_s) is not None


def get(
    member: Member, path: str, timeout_s: float = _PEER_MAX_S
) -> bytes | None:
    """Return what the port of an agent answers; empty if it is an error.

    :param timeout_s: seconds for which a single read or write may block
    :returns: None if there is no answer
    """
    where = split_url(member.page)
    if where is None:
        return b''
    connection = http.client.HTTPConnection(*where, timeout=timeout_s)
    try:
        connection.request('GET', path)
        answer = connection.getresponse()
        text = answer.read(_ANSWER_MAX_BYTES)
        return text if answer.status == http.HTTPStatus.OK else b''
    # UnicodeError: no name of a machine can be as this one is.
    except (OSError, http.client.HTTPException, UnicodeError) as exc:
        LOG.debug(
            'The port of the daemon of %(home)s did not answer: %(why)r',
            {'home': member.home, 'why': exc},
        )
        return None
    finally:
        connection.close()


def parse_moves(text: bytes) -> list[Move]:
    """Return the moves in an answer; none if one of them is malformed."""
    try:
        rows = json.loads(text)[:MOVES_COUNT]
        return [parse_move(row) for row in rows]
    except (ValueError, TypeError, KeyError, RecursionError):
        return []


def parse_answer(
    text: bytes, serving: Iterable[Host]
) -> dict[Host, HostFigures]:
    """Return the figures in an answer.

    :param serving: the hosts of which the agent may speak
    """
    try:
        return parse_figures(json.loads(text), serving)
    except (ValueError, RecursionError):
        return {}


def parse_figures(
    rows: Any, serving: Iterable[Host]
) -> dict[Host, HostFigures]:
    """Return the figures in the rows of an answer; see `parse_answer`."""
    allowed = frozenset(serving)
    try:
        found = {Host(str(row['host'])): _figures(row) for row in rows}
    except (ValueError, TypeError, KeyError, AttributeError):
        return {}
    return {host: each for host, each in found.items() if host in allowed}


def _figures(row: Mapping[str, object]) -> HostFigures:
    return HostFigures(
        nodes=_count(row['nodes']),
        servers=_count(row['servers']),
        without_class=_count(row['without_class']),
        moving={Host(host): n for host, n in _counts(row['moving'])},
        staying={Host(host): n for host, n in _counts(row['staying'])},
        dirty=_count(row['dirty']),
        oldest_dirty_s=float(str(row['oldest_dirty_s'])),
        # An older release does not have them.
        findings=dict(_counts(row.get('findings', {}))),
    )


def _counts(value: object) -> list[tuple[str, int]]:
    if not isinstance(value, dict):
        raise TypeError('expected an object')
    return [(str(name), _count(count)) for name, count in value.items()]


def _count(value: object) -> int:
    return int(str(value))

# SPDX-License-Identifier: Apache-2.0
"""How long builds took from their message to the driver, out of a log; pure.

A build's *own* time is what lies between its message and the call of the
driver's ``spawn``, without the moments in which a request of this build to
another service was under way: conductor, Placement, Neutron, Ironic. An RPC
lasts from Nova's asking to Nova's having the answer (``telling``). What
waits for a lock, a thread or a periodic task is therefore in it. Beside the
build its networks are allocated: what that thread asks for counts from the
last word of the build itself on, which waits for it then, if it is silent.
"""

import bisect
import collections
import dataclasses
import re
from collections.abc import Iterable, Mapping, Sequence

from benchmarks.logs import Line, kind_of

_BUILD = 'build_and_run_instance'
_RECEIVED = re.compile(rf'Receive incoming message .* method: {_BUILD}\.')
_SERVED = re.compile(rf'Replied success message .* method: {_BUILD}\.')
_SERVER = r'\[instance: (?P<server>\S+)\] '
_BEGUN = re.compile(_SERVER + r'Starting instance\.\.\.')
_SPAWNED = re.compile(_SERVER + 'Start spawning the instance on the hyperv')
_AGAIN = re.compile(
    # Other lines have it at their end, as what went wrong before.
    _SERVER + r'Build of instance \S+ was re-scheduled: (?P<why>.*)'
)
# Lines of ``telling``.
_RPC = re.compile(r'^RPC (?P<end>begins|ends): (?P<what>.*)')
_CONNECT = re.compile('^(Starting new HTTP|Resetting dropped) connection')
_ANSWER = re.compile(
    r':(?P<port>\d+) "(?P<method>[A-Z]+) (?P<path>\S+) HTTP/\S+" \d+'
)
_NAMED = re.compile(r'[0-9a-f]{8}-[0-9a-f-]{27}')


@dataclasses.dataclass(frozen=True, slots=True)
class Call:
    """A request of a build to another service, while it was under way."""

    kind: str
    thread: tuple[int, str]
    begun_s: float
    ended_s: float


@dataclasses.dataclass(frozen=True, slots=True)
class Build:
    """One build, from its message to the driver.

    :param received_s: when the RPC server took the message up
    :param begun_s: when Nova's code for this server began
    :param spawned_s: when the driver was called
    """

    server: str
    received_s: float
    begun_s: float
    spawned_s: float
    calls: Sequence[Call] = ()

    @property
    def total_s(self) -> float:
        """From the message to the driver."""
        return self.spawned_s - self.received_s

    @property
    def queued_s(self) -> float:
        """From the message to Nova's code for this server."""
        return self.begun_s - self.received_s

    @property
    def own_s(self) -> float:
        """What of it was spent here, not in other services."""
        elsewhere_s, end_s = 0.0, self.received_s
        for call in sorted(self.calls, key=lambda call: call.begun_s):
            begun_s = max(call.begun_s, end_s)
            end_s = max(min(call.ended_s, self.spawned_s), end_s)
            elsewhere_s += max(0.0, end_s - begun_s)
        return self.total_s - elsewhere_s


def builds(lines: Sequence[Line], services: Mapping[int, str]) -> list[Build]:
    """Find all builds that have come to the driver.

    :param services: port -> the service that listens there
    """
    messages = _messages(lines)
    begun: dict[str, tuple[float, float]] = {}
    calls = _calls(lines, services)
    spoken_s: dict[tuple[int, str], list[float]] = collections.defaultdict(
        list
    )
    for line in lines:
        spoken_s[line.thread].append(line.at_s)
    found = []
    for line in lines:
        if hit := _BEGUN.search(line.text):
            waiting = messages[line.request]
            received_s = waiting.popleft() if waiting else line.at_s
            begun[hit['server']] = received_s, line.at_s
        elif hit := _SPAWNED.search(line.text):
            # Of one that was under way before the log begins.
            if hit['server'] not in begun:
                continue
            times = begun.pop(hit['server'])
            asked = calls[line.request]
            found.append(
                Build(
                    hit['server'],
                    *times,
                    line.at_s,
                    _waited_for(asked, line, spoken_s[line.thread], *times),
                )
            )
    return found


def _messages(
    lines: Iterable[Line],
) -> dict[str, collections.deque[float]]:
    """Return when the messages of each request were taken up.

    Whose it is stands only in the line at its end.
    """
    found: dict[str, collections.deque[float]] = collections.defaultdict(
        collections.deque
    )
    open_s: dict[tuple[int, str], float] = {}
    for line in lines:
        if _RECEIVED.search(line.text):
            open_s[line.thread] = line.at_s
        elif _SERVED.search(line.text) and line.thread in open_s:
            found[line.request].append(open_s.pop(line.thread))
    return found


def _waited_for(
    calls: Iterable[Call],
    end: Line,
    spoken_s: Sequence[float],
    received_s: float,
    begun_s: float,
) -> list[Call]:
    """Return the requests that a build waited for, and only so long.

    :param end: the build's last line, in its own thread
    :param spoken_s: when that thread had anything to say
    """
    found = []
    for call in calls:
        if call.begun_s < received_s or call.begun_s >= end.at_s:
            continue
        from_s = call.begun_s
        if call.thread != end.thread and call.ended_s > begun_s:
            # Of another thread, beside the build.
            place = bisect.bisect_left(spoken_s, call.ended_s) - 1
            from_s = max(from_s, spoken_s[place] if place >= 0 else from_s)
            if call.ended_s > end.at_s or from_s >= call.ended_s:
                continue
        found.append(dataclasses.replace(call, begun_s=from_s))
    return found


def _calls(
    lines: Iterable[Line], services: Mapping[int, str]
) -> dict[str, list[Call]]:
    """Return what each request asked of other services."""
    reader = _Calls(services)
    for line in lines:
        reader.read(line)
    return reader.found


class _Calls:
    """Pairs the beginning of a request with its end."""

    def __init__(self, services: Mapping[int, str]) -> None:
        self.found: dict[str, list[Call]] = collections.defaultdict(list)
        self._services = services
        self._calling: dict[tuple[int, str], float] = {}
        self._connected: dict[tuple[int, str], float] = {}

    def read(self, line: Line) -> None:
        """Take in the next line."""
        if line.logger == 'benchmarks.rpc':
            self._read_rpc(line)
        elif line.logger.startswith('urllib3'):
            self._read_http(line)

    def _read_rpc(self, line: Line) -> None:
        hit = _RPC.match(line.text)
        if hit and hit['end'] == 'begins':
            self._calling[line.thread] = line.at_s
        elif hit and line.thread in self._calling:
            begun_s = self._calling.pop(line.thread)
            self._note(line, f'RPC {hit["what"]}', begun_s, line.at_s)

    def _read_http(self, line: Line) -> None:
        if _CONNECT.search(line.text):
            self._connected[line.thread] = line.at_s
        elif hit := _ANSWER.search(line.text):
            port = int(hit['port'])
            service = self._services.get(port, str(port))
            kind = f'{service} {hit["method"]} {kind_of(hit["path"])}'
            begun_s = self._connected.pop(line.thread, line.at_s)
            self._note(line, kind, begun_s, line.at_s)

    def _note(
        self, asked: Line, kind: str, begun_s: float, ended_s: float
    ) -> None:
        call = Call(kind, asked.thread, begun_s, ended_s)
        self.found[asked.request].append(call)


def kinds(found: Iterable[Build]) -> dict[str, list[float]]:
    """Return how long the requests of builds took, by kind."""
    took_s: dict[str, list[float]] = collections.defaultdict(list)
    for build in found:
        for call in build.calls:
            took_s[call.kind].append(call.ended_s - call.begun_s)
    return dict(took_s)


def sent_again(lines: Iterable[Line]) -> collections.Counter[str]:
    """Count the builds that were sent elsewhere, by the reason told."""
    return collections.Counter(
        _NAMED.sub('…', hit['why'])
        for hit in (_AGAIN.match(line.text) for line in lines)
        if hit
    )

# SPDX-License-Identifier: Apache-2.0
"""Durations of builds, from their message to the driver, out of a log.

A build's *own* time lasts from its message to the call of the driver's
``spawn``, without the time of this build's requests to other services:
conductor, Placement, Neutron, Ironic. The time of an RPC includes the
encoding of the request and the wait for the thread that reads the answer
(see ``rpc_log``). Waits for a lock, a thread or a periodic task are own time.
The networks are allocated in another thread beside the build; its requests
count from the build's last log line on, because from then the build waits
for the networks.
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
    # The text is matched at its begin, because lines about other failures have
    # it at their end.
    _SERVER + r'Build of instance \S+ was re-scheduled: (?P<why>.*)'
)
# Lines of ``rpc_log``.
_RPC = re.compile(r'^RPC (?P<end>begins|ends): (?P<what>.*)')
_CONNECT = re.compile('^(Starting new HTTP|Resetting dropped) connection')
_ANSWER = re.compile(
    r':(?P<port>\d+) "(?P<method>[A-Z]+) (?P<path>\S+) HTTP/\S+" \d+'
)
_NAMED = re.compile(r'[0-9a-f]{8}-[0-9a-f-]{27}')


@dataclasses.dataclass(frozen=True, slots=True)
class Call:
    """One request of a build to another service."""

    kind: str
    thread: tuple[int, str]
    begun_s: float
    ended_s: float


@dataclasses.dataclass(frozen=True, slots=True)
class Build:
    """One build, from its message to the driver.

    :param received_s: when the RPC server took the message
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
        """Seconds from the message to the call of the driver."""
        return self.spawned_s - self.received_s

    @property
    def queued_s(self) -> float:
        """Seconds from the message to the start of Nova's code for it."""
        return self.begun_s - self.received_s

    @property
    def own_s(self) -> float:
        """Seconds of the build without the requests to other services."""
        elsewhere_s, end_s = 0.0, self.received_s
        for call in sorted(self.calls, key=lambda call: call.begun_s):
            begun_s = max(call.begun_s, end_s)
            end_s = max(min(call.ended_s, self.spawned_s), end_s)
            elsewhere_s += max(0.0, end_s - begun_s)
        return self.total_s - elsewhere_s


def builds(lines: Sequence[Line], services: Mapping[int, str]) -> list[Build]:
    """Return all builds for which the driver was called.

    :param services: port -> name of the service that listens there
    """
    messages = _messages(lines)
    begun: dict[str, tuple[float, float]] = {}
    calls = _calls(lines, services)
    line_times_s: dict[tuple[int, str], list[float]] = collections.defaultdict(
        list
    )
    for line in lines:
        line_times_s[line.thread].append(line.at_s)
    found = []
    for line in lines:
        if hit := _BEGUN.search(line.text):
            waiting = messages[line.request]
            received_s = waiting.popleft() if waiting else line.at_s
            begun[hit['server']] = received_s, line.at_s
        elif hit := _SPAWNED.search(line.text):
            # The log does not have the begin of this build.
            if hit['server'] not in begun:
                continue
            times = begun.pop(hit['server'])
            asked = calls[line.request]
            found.append(
                Build(
                    hit['server'],
                    *times,
                    line.at_s,
                    _waited_for(
                        asked, line, line_times_s[line.thread], *times
                    ),
                )
            )
    return found


def _messages(
    lines: Iterable[Line],
) -> dict[str, collections.deque[float]]:
    """Return the times at which build messages arrived, by request id.

    The log line of the arrival does not have the request id; the line of the
    end does.
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
    line_times_s: Sequence[float],
    received_s: float,
    begun_s: float,
) -> list[Call]:
    """Return the requests that a build waited for, cut to the wait.

    :param end: the build's last line, in its own thread
    :param line_times_s: the times of the lines of that thread
    """
    found = []
    for call in calls:
        if call.begun_s < received_s or call.begun_s >= end.at_s:
            continue
        from_s = call.begun_s
        if call.thread != end.thread and call.ended_s > begun_s:
            # Another thread sent the request while the build went on.
            place = bisect.bisect_left(line_times_s, call.ended_s) - 1
            from_s = max(from_s, line_times_s[place] if place >= 0 else from_s)
            if call.ended_s > end.at_s or from_s >= call.ended_s:
                continue
        found.append(dataclasses.replace(call, begun_s=from_s))
    return found


def _calls(
    lines: Iterable[Line], services: Mapping[int, str]
) -> dict[str, list[Call]]:
    """Return the requests to other services, by the build's request id."""
    reader = _Calls(services)
    for line in lines:
        reader.read(line)
    return reader.found


class _Calls:
    """Pairs the line of a request's start with the line of its end."""

    def __init__(self, services: Mapping[int, str]) -> None:
        self.found: dict[str, list[Call]] = collections.defaultdict(list)
        self._services = services
        self._calling: dict[tuple[int, str], float] = {}
        self._connected: dict[tuple[int, str], float] = {}

    def read(self, line: Line) -> None:
        """Process the next line of the log."""
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
    """Return the durations of the requests of builds, by kind."""
    took_s: dict[str, list[float]] = collections.defaultdict(list)
    for build in found:
        for call in build.calls:
            took_s[call.kind].append(call.ended_s - call.begun_s)
    return dict(took_s)


def sent_again(lines: Iterable[Line]) -> collections.Counter[str]:
    """Return how many builds were sent to another node, by reason."""
    return collections.Counter(
        _NAMED.sub('…', hit['why'])
        for hit in (_AGAIN.match(line.text) for line in lines)
        if hit
    )

# SPDX-License-Identifier: Apache-2.0
"""Durations of servers from the cast to ACTIVE, beside Ironic's share.

Nova's part comes from the compute process's log: *Receive incoming message*,
and *Took … seconds to build instance*, which is logged when the server is
ACTIVE. Ironic's part comes from its conductor's log, which has a line for
each change of a provision state: it lasts from the end of ``available`` to
the begin of ``active``.
"""

import dataclasses
import re
from collections.abc import Iterable, Mapping, Sequence

from benchmarks.builds import Build
from benchmarks.logs import Line, at_s

_ACTIVE = re.compile(
    r'\[instance: (?P<server>\S+)\] Took [\d.]+ seconds to build instance'
)
_MOVED = re.compile(
    r'^(?P<stamp>\S+ \S+) \d+ \S+ ironic\.conductor\.task_manager .*'
    r'Node (?P<node>\S+) moved to provision state "(?P<state>[^"]+)" '
    r'from state "(?P<before>[^"]+)"'
)
# A server may become ACTIVE within this multiple of Ironic's own time.
FACTOR = 1.5


@dataclasses.dataclass(frozen=True, slots=True)
class Span:
    """The time in which Ironic deployed a node, in seconds since the epoch."""

    begun_s: float
    ended_s: float

    @property
    def took_s(self) -> float:
        """The duration in seconds."""
        return self.ended_s - self.begun_s


@dataclasses.dataclass(frozen=True, slots=True)
class Deploy:
    """One server that became ACTIVE.

    :param active_s: seconds from its cast to ACTIVE
    :param waited_s: seconds from its cast until Nova began its build
    :param ironic_s: seconds of Ironic's own deploy
    """

    active_s: float
    waited_s: float
    ironic_s: float

    @property
    def over_s(self) -> float:
        """Seconds beyond the allowed multiple of Ironic's time; can be < 0."""
        return self.active_s - FACTOR * self.ironic_s


def spans(lines: Iterable[str]) -> dict[str, Span]:
    """Return the last complete deploy of each node."""
    begun_s: dict[str, float] = {}
    found = {}
    for hit in filter(None, map(_MOVED.match, lines)):
        node = hit['node']
        if hit['before'] == 'available':
            begun_s[node] = at_s(hit['stamp'])
        elif hit['state'] == 'active' and node in begun_s:
            found[node] = Span(begun_s.pop(node), at_s(hit['stamp']))
    return found


def deploys(
    lines: Iterable[Line],
    builds: Iterable[Build],
    of_ironic: Mapping[str, Span],
    nodes: Mapping[str, str],
) -> list[Deploy]:
    """Return the deploys, with the times of Nova and of Ironic.

    :param builds: the last build of each server counts
    :param nodes: the node of each server
    """
    last = {build.server: build for build in builds}
    found = []
    for hit, at in ((_ACTIVE.search(line.text), line.at_s) for line in lines):
        if not hit or hit['server'] not in last:
            continue
        build = last[hit['server']]
        span = of_ironic.get(nodes.get(build.server, ''))
        if span is not None:
            active_s = at - build.received_s
            found.append(Deploy(active_s, build.queued_s, span.took_s))
    return found


def at_once(of_ironic: Sequence[Span]) -> int:
    """Return the largest number of deploys at the same moment."""
    moments = sorted(
        # A deploy that ends when another begins does not overlap it.
        [(span.begun_s, 1) for span in of_ironic]
        + [(span.ended_s, -1) for span in of_ironic]
    )
    most, now = 0, 0
    for _, change in moments:
        now += change
        most = max(most, now)
    return most

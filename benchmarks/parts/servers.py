# SPDX-License-Identifier: Apache-2.0
"""Servers booted at once, and their builds in the compute log."""

import statistics
import time
from collections.abc import Iterable, Iterator, Sequence

from onemachine import allocations
from onemachine.content import Content, each
from onemachine.naming import server_names
from onemachine.progress import CloudError, print_line, step

from benchmarks import builds, logs
from benchmarks.database import Database
from benchmarks.stage import Note, Stage

_LOOK_S = 0.2
POINTS = {'p50': 0.5, 'p99': 0.99, 'max': 1.0}


class Boots:
    """Servers that are booted at once, or in turn.

    ``await_all`` and ``record`` add the figures to a note.

    :param pace_s: seconds between two boots; 0: all at once
    """

    def __init__(self, stage: Stage, count: int, pace_s: float = 0.0) -> None:
        self._stage = stage
        self._tail = logs.Tail(stage.subject.layout.log(stage.subject.name))
        self._database = Database(stage.subject.layout)
        self._begun_s = time.monotonic()
        names = server_names(str(count))
        asked = stage.content.create_servers(_paced(names, pace_s))
        self.ids = [server.id for server in asked]

    def await_all(self, note: Note, part: str) -> None:
        """Wait until every server is ACTIVE or in ERROR."""
        states: dict[str, str] = {}
        max_s = self._stage.plan.boot_max_s
        while time.monotonic() - self._begun_s < max_s:
            states = self._database.server_states(self.ids)
            ended = set(states.values()) <= {'active', 'error'}
            if ended and len(states) == len(self.ids):
                break
            time.sleep(_LOOK_S)
        seconds = time.monotonic() - self._begun_s
        active_count = list(states.values()).count('active')
        everyone = active_count == len(self.ids)
        note.figure(f'{part}_s', seconds if everyone else None)
        note.figure(f'{part}_count', len(self.ids))
        note.figure(f'{part}_failed_count', len(self.ids) - active_count)
        self._database.close()

    def record(self, note: Note, part: str) -> None:
        """Add the figures of the builds in the compute process's log."""
        lines = logs.parsed(self._tail.lines())
        again = builds.sent_again(lines)
        note.figure(f'{part}_retried_count', again.total())
        note.detail(f'{part} retried', dict(again))
        found = builds.builds(lines, self._stage.subject.ports)
        note.figure(f'{part}_built_count', len(found))
        for name, values in (
            ('own', [build.own_s * 1000 for build in found]),
            ('claim_all', [build.total_s * 1000 for build in found]),
            ('claim_queue', [build.queued_s * 1000 for build in found]),
        ):
            note.spread(f'{part}_{name}_ms', values, POINTS)
        took_s = builds.kinds(found)
        note.detail(
            f'{part} requests',
            {
                kind: len(values) / len(found)
                for kind, values in took_s.items()
            },
        )
        note.detail(
            f'{part} request ms',
            {k: statistics.median(v) * 1000 for k, v in took_s.items()},
        )


def _paced(names: Iterable[str], pace_s: float) -> Iterator[str]:
    """Yield the names, with a wait between two of them."""
    for name in names:
        yield name
        time.sleep(pace_s)


def boot_meanwhile(stage: Stage, note: Note) -> None:
    """Boot some servers during another measurement."""
    count = min(stage.plan.meanwhile_count, stage.nodes_count // 2)
    boots = Boots(stage, count)
    boots.await_all(note, 'adoption_boot')
    boots.record(note, 'adoption_boot')
    clear(stage.content, stage.plan.boot_max_s)


def clear(content: Content, max_s: float) -> None:
    """Delete all servers."""
    content.delete((), max_s)


def health(stage: Stage, note: Note, part: str) -> None:
    """Count the problems that Nova's tools find while the servers exist."""
    with step("Asking Nova's own tools"):
        layout = stage.subject.layout
        note.figure(f'{part}_audit_found', allocations.orphans(layout))
        note.figure(f'{part}_heal_found', allocations.unallocated(layout))
        note.figure(f'{part}_strays', allocations.strays(layout))
        note.figure(f'{part}_bare', allocations.bare(layout))


def try_clear(content: Content, max_s: float) -> None:
    """Delete the servers that a failed part has left."""
    try:
        clear(content, max_s)
    except CloudError as exc:
        print_line(f'Servers are left: {exc}')


def delete(content: Content, servers: Sequence[str]) -> None:
    """Request the deletion of servers; return before they are deleted."""
    each(content.cloud.compute.delete_server, servers)

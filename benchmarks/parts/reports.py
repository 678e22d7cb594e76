# SPDX-License-Identifier: Apache-2.0
"""Reports of nodes: first, arrivals, idle, restart, adoption."""

import os
import re
import time

from onemachine.content import THROUGH_API_MAX
from onemachine.progress import CloudError

from benchmarks import logs, proc
from benchmarks.parts import servers
from benchmarks.parts.changes import pause
from benchmarks.results import OURS
from benchmarks.stage import Note, Stage, note_window
from benchmarks.window import Window

_WORKER = re.compile(r'Started the worker of host')
_READS = re.compile(
    r'"GET /resource_providers/(?P<node>[0-9a-f-]{36})\S* HTTP'
)


def first(stage: Stage, note: Note) -> None:
    """Measure the first report of all nodes to an empty Placement."""
    stage.stop()
    stage.subject.forget()
    window = Window(stage.subject)
    stage.start()
    note.figure('first_s', stage.settled(window))
    note_window(note, 'first', window)
    for what in ('placement', 'rpc'):
        count = note.figures[f'first_{what}'] or 0.0
        note.figure(f'first_{what}_per_node', count / stage.nodes_count)


def arrival(stage: Stage, note: Note) -> None:
    """Measure the report of nodes that are enrolled while the subject runs.

    The nodes are written into Ironic's database, so there is no notification.
    """
    stage.stop()
    # More nodes than this are not enrolled through the API but copied in
    # Ironic's database.
    stage.content.withdraw(min(THROUGH_API_MAX, stage.nodes_count // 2))
    stage.subject.forget()
    stage.start_again()
    pause(stage)
    window = Window(stage.subject)
    stage.content.enroll(stage.nodes_count)
    arrival_s = stage.settled(window)
    note.figure('arrival_s', arrival_s)
    note_window(note, 'arrival', window)
    busy_s = (note.figures['arrival_server_cpu_s'] or 0.0) / (
        os.cpu_count() or 1
    )
    if arrival_s is not None and busy_s:
        note.figure('arrival_per_server_cpu', arrival_s / busy_s)


def idle(stage: Stage, note: Note) -> None:
    """Measure the cost of a time in which nothing changes."""
    stage.have()
    window = Window(stage.subject)
    time.sleep(stage.plan.idle_s)
    minutes = window.seconds / 60
    for what, counts in window.counts().items():
        note.detail(
            f'idle {what}', {k: n / minutes for k, n in counts.items()}
        )
        note.figure(f'idle_{what}_per_min', counts.total() / minutes)
        if what == 'rpc' and stage.subject.kind == OURS:
            own_count = logs.of_our_own(counts)
            note.figure('idle_own_rpc_per_min', own_count / minutes)
    for who, cpu_s in window.cpu_s().items():
        note.figure(f'idle_{who}_cpu_percent', cpu_s / minutes / 60 * 100)
    note.figure('rss_worker_mib', proc.rss_mib(stage.subject.worker()))
    note.figure('rss_client_mib', proc.rss_mib(stage.subject.client()))
    note.figure('pss_client_mib', proc.pss_mib(stage.subject.client()))


def restart(stage: Stage, note: Note) -> None:
    """Measure a restart without changes."""
    stage.have()
    stopped_s = time.time()
    stage.stop()
    window = Window(stage.subject)
    started = stage.start()
    note.figure('restart_serves_s', started.took_s)
    note.figure('restart_unserved_s', started.served_s - stopped_s)
    note.figure('restart_s', stage.settled(window))
    note_window(note, 'restart', window)
    if stage.subject.kind == OURS:
        note.figure('replaced_unserved_s', stage.replace())


def killed(stage: Stage, note: Note) -> None:
    """Measure a start after ``kill -9``, as systemd would do it."""
    stage.have()
    killed_s = time.time()
    stage.kill()
    started = stage.start()
    note.figure('killed_serves_s', started.took_s)
    note.figure('killed_unserved_s', started.served_s - killed_s)


def adoption(stage: Stage, note: Note) -> None:
    """Measure a start of ours without its disk cache.

    An adopting machine starts in the same way.
    """
    if stage.subject.kind != OURS:
        return
    stage.have()
    stage.stop()
    stage.subject.remove_disk_cache()
    tail = logs.Tail(stage.subject.layout.log(stage.subject.name))
    reading = _Reading(stage)
    started = stage.start()
    lines = logs.parsed(tail.lines())
    begun_s = _begun_s(lines)
    note.figure('adoption_serves_s', started.served_s - begun_s)
    servers.boot_meanwhile(stage, note)
    verified_s = reading.wait_end(begun_s, stage.plan.settle_max_s)
    note.figure('adoption_verified_s', verified_s)
    note.figure('adoption_reads', reading.count)


def _begun_s(lines: list[logs.Line]) -> float:
    for line in lines:
        if _WORKER.search(line.text):
            return line.at_s
    raise CloudError('the agent does not say when it started its worker')


class _Reading:
    """Counts the reads of single providers by our own threads."""

    def __init__(self, stage: Stage) -> None:
        self._tail = logs.Tail(stage.subject.layout.log(stage.subject.name))
        self._nodes_count = stage.nodes_count
        self._first_s: dict[str, float] = {}
        self.count = 0

    def _look(self) -> None:
        for line in logs.parsed(self._tail.lines()):
            hit = _READS.search(line.text)
            if hit and line.thread[1].startswith('placement'):
                self.count += 1
                # Only the first read of each provider counts, because a later
                # read may follow a build.
                self._first_s.setdefault(hit['node'], line.at_s)

    def wait_end(self, begun_s: float, max_s: float) -> float | None:
        """Return the seconds until each provider was read, or None."""
        while time.time() - begun_s < max_s:
            self._look()
            if len(self._first_s) >= self._nodes_count:
                return max(self._first_s.values()) - begun_s
            time.sleep(0.5)
        return None

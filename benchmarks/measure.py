# SPDX-License-Identifier: Apache-2.0
"""One run: a first report, an idle while, a restart, changes, boots."""

import dataclasses
import statistics
import time
from collections.abc import Callable
from typing import Any

from onemachine.content import Content, server_names
from onemachine.progress import CloudError, say, step

from benchmarks import logs, proc
from benchmarks.results import OURS, Run
from benchmarks.subjects import Subject

_LOOK_S = 0.5
# Whoever asks Placement for nothing so long has come to an end.
_SILENCE_S = 25.0


@dataclasses.dataclass(frozen=True, slots=True)
class Plan:
    """How long each part takes at most."""

    idle_s: float = 300.0
    settle_max_s: float = 3600.0
    changes_count: int = 20
    change_max_s: float = 900.0
    boots_count: int = 20
    boot_max_s: float = 900.0


class Window:
    """Everything that is counted, from its making until it is asked."""

    def __init__(self, subject: Subject) -> None:
        self._subject = subject
        self._begun_s = time.monotonic()
        log = subject.layout.log
        self._tallies = {
            'placement': logs.Tally(log('api-placement'), logs.requests),
            'ironic': logs.Tally(log('api-ironic'), logs.requests),
            'rpc': logs.Tally(log(subject.name), logs.rpcs),
        }
        self._client_s = proc.cpu_s(subject.client())
        self._servers_s = proc.cpu_s(subject.servers())

    @property
    def seconds(self) -> float:
        """How long it has been open."""
        return time.monotonic() - self._begun_s

    def counts(self) -> dict[str, logs.Counts]:
        """Return what was asked, by whom it was asked of and by kind."""
        return {what: one.counts() for what, one in self._tallies.items()}

    def client_cpu_s(self) -> float:
        """Return the CPU of the compute process."""
        return proc.cpu_s(self._subject.client()) - self._client_s

    def servers_cpu_s(self) -> float:
        """Return the CPU of all servers."""
        return proc.cpu_s(self._subject.servers()) - self._servers_s

    def asked_placement(self) -> int:
        """Return how often Placement was asked."""
        return self._tallies['placement'].counts().total()


class Bench:
    """Measures one subject with so many nodes."""

    def __init__(self, subject: Subject, nodes_count: int, plan: Plan) -> None:
        self._subject = subject
        self._nodes_count = nodes_count
        self._plan = plan
        self._content = Content(subject.layout)
        self._figures: dict[str, float | None] = {}
        self._details: dict[str, dict[str, int]] = {}

    def run(self) -> Run:
        """Measure everything; the subject is stopped in the end."""
        subject = self._subject
        subject.forget()
        try:
            for part in (
                self._first,
                self._idle,
                self._restart,
                self._changes,
                self._boots,
            ):
                with step(f'{subject.kind}: {part.__name__.strip("_")}'):
                    part()
        finally:
            subject.stop()
        return Run(
            subject.kind, self._nodes_count, self._figures, self._details
        )

    def _first(self) -> None:
        window = Window(self._subject)
        self._subject.start()
        self._note_end('first', window, self._settled(window, self._is_full))

    def _restart(self) -> None:
        self._subject.stop()
        window = Window(self._subject)
        self._subject.start()
        self._figures['restart_up_s'] = window.seconds
        self._note_end('restart', window, self._settled(window, lambda: True))

    def _idle(self) -> None:
        window = Window(self._subject)
        time.sleep(self._plan.idle_s)
        minutes = window.seconds / 60
        for what, counts in self._noted_counts('idle', window).items():
            self._figures[f'idle_{what}_per_min'] = counts.total() / minutes
            if what == 'rpc' and self._subject.kind == OURS:
                own = logs.of_our_own(counts) / minutes
                self._figures['idle_own_rpc_per_min'] = own
        for who, cpu_s in (
            ('client', window.client_cpu_s()),
            ('server', window.servers_cpu_s()),
        ):
            self._figures[f'idle_{who}_cpu_percent'] = (
                cpu_s * 100 / (minutes * 60)
            )
        self._figures['rss_mib'] = proc.rss_mib(self._subject.client())

    def _changes(self) -> None:
        """Set maintenance on some nodes, one a second, and look for each."""
        waiting: dict[str, float] = {}
        took_s: list[float] = []
        nodes = self._free_nodes()[: self._plan.changes_count]
        metal = self._content._metal
        for node in nodes:
            metal.set_node_maintenance(node.id, 'benchmark')
            waiting[node.id] = time.monotonic()
            self._look_for(waiting, took_s, 1.0)
        self._look_for(waiting, took_s, self._plan.change_max_s)
        endless = [float('inf')] * len(waiting)
        for name, of in (('median', statistics.median), ('max', max)):
            self._figures[f'change_{name}_s'] = _finite(of, took_s + endless)
        for node in nodes:
            metal.unset_node_maintenance(node.id)

    def _look_for(
        self, waiting: dict[str, float], took_s: list[float], max_s: float
    ) -> None:
        deadline_s = time.monotonic() + max_s
        while waiting and time.monotonic() < deadline_s:
            for node in self._subject.reserved() & set(waiting):
                took_s.append(time.monotonic() - waiting.pop(node))
            time.sleep(0.05)

    def _boots(self) -> None:
        """Boot servers at once; how long until all are ACTIVE."""
        if not self._plan.boots_count:
            return
        self._wait_full()
        names = server_names(str(self._plan.boots_count))
        begun_s = time.monotonic()
        try:
            self._content.boot_all(names, self._plan.boot_max_s)
            self._figures['boot_s'] = time.monotonic() - begun_s
        except CloudError as exc:
            say(f'Not all were booted: {exc}')
            self._figures['boot_s'] = None
        self._content.delete((), self._plan.boot_max_s)

    # Parts of parts

    def _is_full(self) -> bool:
        return self._subject.offered_count() >= self._nodes_count

    def _wait_full(self) -> None:
        deadline_s = time.monotonic() + self._plan.settle_max_s
        while not self._is_full() and time.monotonic() < deadline_s:
            time.sleep(_LOOK_S)

    def _free_nodes(self) -> list[Any]:
        found = self._content.nodes().values()
        return sorted(found, key=lambda node: str(node.id))

    def _settled(
        self, window: Window, is_complete: Callable[[], bool]
    ) -> float | None:
        """Wait until Placement is left alone; return when that began."""
        asked_count, last_s = -1, 0.0
        while window.seconds < self._plan.settle_max_s:
            now_count = window.asked_placement()
            if now_count != asked_count:
                asked_count, last_s = now_count, window.seconds
            elif window.seconds - last_s > _SILENCE_S and is_complete():
                return last_s
            time.sleep(_LOOK_S)
        return None

    def _note_end(
        self, part: str, window: Window, seconds: float | None
    ) -> None:
        self._figures[f'{part}_s'] = seconds
        for what, counts in self._noted_counts(part, window).items():
            self._figures[f'{part}_{what}'] = counts.total()
        self._figures[f'{part}_client_cpu_s'] = window.client_cpu_s()
        self._figures[f'{part}_server_cpu_s'] = window.servers_cpu_s()

    def _noted_counts(
        self, part: str, window: Window
    ) -> dict[str, logs.Counts]:
        counts = window.counts()
        for what, found in counts.items():
            self._details[f'{part} {what}'] = dict(found.most_common())
        return counts


def _finite(
    of: Callable[[list[float]], float], values: list[float]
) -> float | None:
    found = of(values) if values else float('inf')
    return None if found == float('inf') else found

# SPDX-License-Identifier: Apache-2.0
"""The environment of each part: the subject in its cloud, and its figures."""

import dataclasses
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from onemachine.content import Content
from onemachine.dials import Dials
from onemachine.progress import CloudError, step, wait_until

from benchmarks import logs, results
from benchmarks.subjects import Subject
from benchmarks.window import Window

_LOOK_S = 0.5
# A subject that sends Placement no request for so long has settled.
_SILENCE_S = 25.0
# The shortest interval between two audits that our daemon accepts.
OFTEN = {'OS_IRONIC_COMPUTE__AUDIT_INTERVAL_S': '10'}
_SERVES = 'Join ServiceGroup membership'
_LEAVES = 'Leaving for a restart'


@dataclasses.dataclass(frozen=True, slots=True)
class Plan:
    """The amounts that are measured, and the time-outs in seconds."""

    idle_s: float = 300.0
    settle_max_s: float = 3600.0
    changes_count: int = 20
    pace_s: float = 1.0
    pause_max_s: float = 120.0
    burst_count: int = 200
    change_max_s: float = 1200.0
    boots_count: int = 200
    claims_count: int = 100
    claim_pace_s: float = 4.0
    cleaned_count: int = 100
    deploys_count: int = 100
    deploy_delay_s: int = 60
    meanwhile_count: int = 10
    boot_max_s: float = 1800.0


@dataclasses.dataclass(frozen=True, slots=True)
class Started:
    """The times at which a subject was started and began to serve RPC."""

    asked_s: float
    served_s: float

    @property
    def took_s(self) -> float:
        """Seconds from the start until RPC was served."""
        return self.served_s - self.asked_s


class Note:
    """The figures and details of one part."""

    def __init__(self) -> None:
        self.figures: dict[str, float | None] = {}
        self.details: dict[str, dict[str, float]] = {}

    def figure(self, name: str, value: float | None) -> None:
        """Add a figure; an infinite value means: it did not end in time."""
        self.figures[name] = results.finite(value)

    def spread(
        self, name: str, values: Sequence[float], points: Mapping[str, float]
    ) -> None:
        """Add percentiles of some values; without values add nothing."""
        for point, share in points.items():
            if values:
                self.figure(
                    f'{name}_{point}', results.percentile(values, share)
                )

    def detail(self, name: str, counts: Mapping[str, float]) -> None:
        """Add counts by kind, the largest first."""
        ordered = sorted(counts.items(), key=lambda item: -item[1])
        self.details[name] = dict(ordered)


class Stage:
    """One subject (ours or stock) in its cloud, with a number of nodes."""

    def __init__(self, subject: Subject, nodes_count: int, plan: Plan) -> None:
        self.subject = subject
        self.nodes_count = nodes_count
        self.plan = plan
        self.content = Content(subject.layout)
        self._options: Mapping[str, str] | None = None

    # The subject

    def start(self, options: Mapping[str, str] | None = None) -> Started:
        """Start the subject; its log has the time at which it serves."""
        tail = logs.Tail(self.subject.layout.log(self.subject.name))
        self._options = options or {}
        asked_s = self.subject.start(options)
        # Nova has the Service before RPC is served.
        served = wait_until(
            f'{self.subject.name} says it serves',
            lambda: _times(tail, _SERVES),
            self.plan.settle_max_s,
        )
        return Started(asked_s, served[0])

    def replace(self) -> float:
        """Replace our daemon; return for how many seconds nobody served."""
        log = self.subject.layout.log(self.subject.name)
        leaving, serving = logs.Tail(log), logs.Tail(log)
        self.subject.replace()
        served = wait_until(
            f'the successor of {self.subject.name} says it serves',
            lambda: _times(serving, _SERVES),
            self.plan.settle_max_s,
        )
        return served[0] - _times(leaving, _LEAVES)[0]

    def stop(self) -> None:
        """Stop the subject if it runs."""
        self._options = None
        self.subject.stop()

    def kill(self) -> None:
        """Kill the subject and all its processes with ``kill -9``."""
        self._options = None
        self.subject.kill()

    def have(self, options: Mapping[str, str] | None = None) -> None:
        """Run the subject with these options until all nodes are offered."""
        wanted = (options or {}) if self.subject.kind == results.OURS else {}
        if self._options != wanted:
            self.stop()
            with step(f'Letting {self.subject.kind} settle'):
                self._settle(wanted)
        self.wait_full()

    def start_again(self) -> None:
        """Start the subject, and wait until it has settled.

        Placement need not offer all nodes then.
        """
        window = Window(self.subject)
        self.start()
        if self.settled(window, lambda: True) is None:
            raise CloudError('it does not come to an end')

    def _settle(self, options: Mapping[str, str]) -> None:
        window = Window(self.subject)
        self.start(options)
        if options:
            # Each audit sends requests to Placement, so there is no silence.
            time.sleep(_SILENCE_S)
        elif self.settled(window) is None:
            raise CloudError('it does not come to an end')

    def is_full(self) -> bool:
        """Return whether Placement offers all nodes."""
        return self.subject.offered_count() >= self.nodes_count

    def wait_full(self) -> None:
        """Wait until Placement offers all nodes."""
        wait_until(
            f'{self.nodes_count} nodes offered',
            self.is_full,
            self.plan.settle_max_s,
        )

    def wait_available(self) -> None:
        """Wait until Ironic has all nodes available."""
        wait_until(
            f'{self.nodes_count} nodes available',
            lambda: len(self.free_nodes(self.nodes_count)) == self.nodes_count,
            self.plan.change_max_s,
        )

    def settled(
        self, window: Window, is_complete: Callable[[], bool] | None = None
    ) -> float | None:
        """Wait until no more requests reach Placement.

        :returns: seconds from the window's begin to the last request; None: it
            did not settle in time
        """
        done = is_complete or self.is_full
        asked_count, last_s = -1, 0.0
        while window.seconds < self.plan.settle_max_s:
            now_count = window.placement_count()
            if now_count != asked_count:
                asked_count, last_s = now_count, window.seconds
            elif window.seconds - last_s > _SILENCE_S and done():
                return last_s
            time.sleep(_LOOK_S)
        return None

    # The cloud

    def turn(self, dials: Mapping[str, str]) -> None:
        """Change settings of Ironic, and restart the processes they affect.

        The restart waits until no node is being cleaned, because a cleaning
        that is interrupted fails for good.
        """
        wait_until(
            'no node is being cleaned',
            lambda: self.subject.unclean_count() == 0,
            self.plan.change_max_s,
        )
        concerned = [
            process
            for name, value in dials.items()
            if Dials(self.subject.layout).turn(name, value)
            for process in Dials.CONCERNS[name]
        ]
        if concerned:
            self.subject.cloud.restart_ironic(*dict.fromkeys(concerned))

    def free_nodes(self, count: int) -> list[str]:
        """Return some available nodes, always the same ones."""
        found = self.content.nodes().values()
        free = [str(n.id) for n in found if n.provision_state == 'available']
        return sorted(free)[:count]

    @property
    def metal(self) -> Any:
        """The API of Ironic."""
        return self.content.metal


def note_window(note: Note, part: str, window: Window) -> None:
    """Add the counts of a window to a note."""
    for what, counts in window.counts().items():
        note.detail(f'{part} {what}', dict(counts))
        note.figure(f'{part}_{what}', counts.total())
    for who, cpu_s in window.cpu_s().items():
        note.figure(f'{part}_{who}_cpu_s', cpu_s)


def _times(tail: logs.Tail, words: str) -> list[float]:
    """Return the times of the new lines that begin with these words."""
    lines = logs.parsed(tail.lines())
    return [line.at_s for line in lines if line.text.startswith(words)]

# SPDX-License-Identifier: Apache-2.0
"""Runs the parts of a benchmark in turn, and returns each result."""

import traceback
from collections.abc import Iterable, Iterator

from onemachine.progress import print_line, step

from benchmarks import proc
from benchmarks.parts import PARTS
from benchmarks.parts.servers import try_clear
from benchmarks.results import Run
from benchmarks.stage import Note, Plan, Stage
from benchmarks.subjects import Subject


class Bench:
    """Measures one subject (ours or stock) with a number of nodes.

    :param stolen_max_percent: the results of a part are discarded if the
        hypervisor gave a larger share of the CPU to other machines meanwhile
    """

    def __init__(
        self,
        subject: Subject,
        nodes_count: int,
        plan: Plan,
        stolen_max_percent: float,
    ) -> None:
        self._stage = Stage(subject, nodes_count, plan)
        self._stolen_max_percent = stolen_max_percent
        self.failed: list[str] = []

    def run(self, parts: Iterable[str]) -> Iterator[Run]:
        """Measure the parts, and yield their results.

        If a part fails, this is logged, and the next part starts the subject
        again. The subject is stopped at the end.
        """
        try:
            for part in parts:
                note, before = Note(), proc.processors_now()
                if self._measure(part, note) and self._is_ours(
                    part, before.stolen_percent(proc.processors_now()), note
                ):
                    yield self._run_of(part, note)
        finally:
            self._stage.stop()

    def _measure(self, part: str, note: Note) -> bool:
        name = self._name(part)
        try:
            with step(name):
                PARTS[part](self._stage, note)
        except Exception:
            traceback.print_exc()
            print_line(f'{name} failed; its figures are not kept')
            self.failed.append(name)
            try_clear(self._stage.content, self._stage.plan.boot_max_s)
            self._stage.stop()
            return False
        return True

    def _is_ours(self, part: str, stolen_percent: float, note: Note) -> bool:
        """Record the stolen share of the CPU; return whether it is allowed."""
        note.figure(f'{part}_stolen_percent', stolen_percent)
        if stolen_percent <= self._stolen_max_percent:
            return True
        name = self._name(part)
        print_line(
            f'{name} is not kept: other machines had {stolen_percent:.0f} % '
            f'of these processors meanwhile (--stolen-max)'
        )
        self.failed.append(name)
        return False

    def _name(self, part: str) -> str:
        kind = self._stage.subject.kind
        return f'{kind}, {self._stage.nodes_count} nodes: {part}'

    def _run_of(self, part: str, note: Note) -> Run:
        return Run(
            self._stage.subject.kind,
            self._stage.nodes_count,
            part,
            note.figures,
            note.details,
        )

# SPDX-License-Identifier: Apache-2.0
"""The parts of a benchmark, one after the other, each kept when it is done."""

import traceback
from collections.abc import Iterable, Iterator

from onemachine.progress import say, step

from benchmarks.parts import PARTS
from benchmarks.parts.servers import try_clear
from benchmarks.results import Run
from benchmarks.stage import Note, Plan, Stage
from benchmarks.subjects import Subject


class Bench:
    """Measures one subject with so many nodes."""

    def __init__(self, subject: Subject, nodes_count: int, plan: Plan) -> None:
        self._stage = Stage(subject, nodes_count, plan)
        self.failed: list[str] = []

    def run(self, parts: Iterable[str]) -> Iterator[Run]:
        """Measure; the subject is stopped in the end.

        A part that fails is told, and the next one begins anew.
        """
        try:
            for part in parts:
                note = Note()
                if self._measure(part, note):
                    yield self._run_of(part, note)
        finally:
            self._stage.stop()

    def _measure(self, part: str, note: Note) -> bool:
        kind = self._stage.subject.kind
        name = f'{kind}, {self._stage.nodes_count} nodes: {part}'
        try:
            with step(name):
                PARTS[part](self._stage, note)
        except Exception:
            traceback.print_exc()
            say(f'{name} failed; its figures are not kept')
            self.failed.append(name)
            try_clear(self._stage.content, self._stage.plan.boot_max_s)
            self._stage.stop()
            return False
        return True

    def _run_of(self, part: str, note: Note) -> Run:
        return Run(
            self._stage.subject.kind,
            self._stage.nodes_count,
            part,
            note.figures,
            note.details,
        )

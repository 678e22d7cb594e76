# SPDX-License-Identifier: Apache-2.0
"""How often all nodes were read while something else was measured."""

import re

from benchmarks import logs
from benchmarks.results import OURS
from benchmarks.stage import Stage

# Ours says so; of stock it is the periodic task that reports all nodes.
_OURS = re.compile(r'^Read \d+ nodes in ')
_STOCK = re.compile('Running periodic task .*update_available_resource')


class Audits:
    """Counts from its making."""

    def __init__(self, stage: Stage) -> None:
        subject = stage.subject
        self._pattern = _OURS if subject.kind == OURS else _STOCK
        self._tail = logs.Tail(subject.layout.log(subject.name))

    def count(self) -> int:
        """Return how many lists of all nodes ended, or tasks began."""
        lines = logs.parsed(self._tail.lines())
        return sum(bool(self._pattern.search(line.text)) for line in lines)

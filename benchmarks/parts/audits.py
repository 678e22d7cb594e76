# SPDX-License-Identifier: Apache-2.0
"""Counts the reads of all nodes during another measurement."""

import re

from benchmarks import logs
from benchmarks.results import OURS
from benchmarks.stage import Stage

# Our daemon logs the end of each audit. Stock logs the begin of the periodic
# task that reads all nodes.
_OURS = re.compile(r'^Read \d+ nodes in ')
_STOCK = re.compile('Running periodic task .*update_available_resource')


class Audits:
    """Counts the reads of all nodes from its creation on."""

    def __init__(self, stage: Stage) -> None:
        subject = stage.subject
        self._pattern = _OURS if subject.kind == OURS else _STOCK
        self._tail = logs.Tail(subject.layout.log(subject.name))

    def count(self) -> int:
        """Return how many audits ended, or periodic tasks began."""
        lines = logs.parsed(self._tail.lines())
        return sum(bool(self._pattern.search(line.text)) for line in lines)

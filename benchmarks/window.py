# SPDX-License-Identifier: Apache-2.0
"""Everything that is counted while it is open."""

import time

from benchmarks import logs, proc
from benchmarks.subjects import Subject


class Window:
    """Counts from its making until it is asked."""

    def __init__(self, subject: Subject) -> None:
        self._subject = subject
        self._begun_s = time.monotonic()
        log = subject.layout.log
        self._tallies = {
            'placement': logs.Tally(log('api-placement'), logs.requests),
            'ironic': logs.Tally(log('api-ironic'), logs.requests),
            'rpc': logs.Tally(log(subject.name), logs.rpcs),
        }
        self._cpu_s = self._cpu_now_s()

    def _cpu_now_s(self) -> dict[str, float]:
        subject = self._subject
        return {
            'worker': proc.cpu_s(subject.worker()),
            'client': proc.cpu_s(subject.client()),
            'server': proc.cpu_s(subject.servers()),
        }

    @property
    def seconds(self) -> float:
        """How long it has been open."""
        return time.monotonic() - self._begun_s

    def counts(self) -> dict[str, logs.Counts]:
        """Return what was asked, by whom it was asked of and by kind."""
        return {what: one.counts() for what, one in self._tallies.items()}

    def cpu_s(self) -> dict[str, float]:
        """Return the CPU of the worker, of its whole family, of servers."""
        now_s = self._cpu_now_s()
        return {who: now_s[who] - was_s for who, was_s in self._cpu_s.items()}

    def asked_placement(self) -> int:
        """Return how often Placement was asked."""
        return self._tallies['placement'].counts().total()

# SPDX-License-Identifier: Apache-2.0
"""Counts of requests, RPCs and CPU time during one measurement."""

import time

from benchmarks import logs, proc
from benchmarks.subjects import Subject


class Window:
    """Counts requests, RPCs and CPU time from its creation on."""

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
        """Seconds since the creation."""
        return time.monotonic() - self._begun_s

    def counts(self) -> dict[str, logs.Counts]:
        """Return the requests by service and kind, and the RPCs."""
        return {what: one.counts() for what, one in self._tallies.items()}

    def cpu_s(self) -> dict[str, float]:
        """Return CPU seconds of worker, all compute processes, and servers."""
        now_s = self._cpu_now_s()
        return {who: now_s[who] - was_s for who, was_s in self._cpu_s.items()}

    def placement_count(self) -> int:
        """Return the number of requests to Placement."""
        return self._tallies['placement'].counts().total()

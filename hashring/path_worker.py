# SPDX-License-Identifier: Apache-2.0
"""The path worker: observes the paths of an agent that serves no host.

An agent that has given its hosts away has no other worker that could notice
that the services answer again.
"""

import attrs

from hashring.clock import Clock
from hashring.ring import Host
from hashring.workers import NO_HOST, WorkerExited, Workers

# Seconds before the worker is started again after it has ended by itself.
_HOLD_OFF_S = 30.0


@attrs.define(eq=False, repr=False, slots=False)
class PathWorker:
    """Starts and kills the path worker; the main thread makes all calls."""

    _workers: Workers
    _clock: Clock

    def __attrs_post_init__(self) -> None:
        self._tenure = 0
        self._is_running = False
        self._due_s = 0.0

    def tenures(self) -> dict[Host, int]:
        """Return the pseudo host of the worker with its tenure, if it runs."""
        return {NO_HOST: self._tenure} if self._is_running else {}

    def start(self) -> None:
        """Start the worker unless it runs or has just ended."""
        if not self._is_running and self._clock.now_s() >= self._due_s:
            self._tenure += 1
            self._is_running = True
            self._workers.start(NO_HOST, self._tenure)

    def kill(self) -> None:
        """Kill the worker if it runs."""
        if self._is_running:
            self._is_running = False
            self._workers.kill(NO_HOST)

    def note_exit(self, event: WorkerExited) -> None:
        """Note that the worker has ended by itself."""
        if event.tenure == self._tenure and self._is_running:
            self._is_running = False
            self._due_s = self._clock.now_s() + _HOLD_OFF_S

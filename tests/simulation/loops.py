# SPDX-License-Identifier: Apache-2.0
"""Loops of a simulated worker: ``LoopThread``, as a task of the kernel."""

from typing import Any

from ironic_compute.loop_thread import Act
from tests.simulation.kernel import Task


class LoopTask:
    """Calls a function in a simulated thread, again and again."""

    def __init__(
        self, worker: Any, name: str, act: Act, first_wait_s: float = 0.0
    ) -> None:
        self._worker = worker
        self._kernel = worker.kernel
        self._act = act
        self._first_wait_s = first_wait_s
        self._task: Task | None = None
        self._is_woken = False
        self._is_stopped = False

    def start(self) -> None:
        self._task = self._worker.spawn(self._run)

    def wake(self) -> None:
        self._is_woken = True
        if self._task is not None:
            self._kernel.wake(self._task)

    def stop(self) -> None:
        self._is_stopped = True
        self.wake()

    def _run(self) -> None:
        wait_s: float | None = self._first_wait_s
        while wait_s is not None:
            if not self._is_woken:
                self._kernel.idle(wait_s)
            self._is_woken = False
            if self._is_stopped:
                return
            wait_s = self._act()

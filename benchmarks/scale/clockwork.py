# SPDX-License-Identifier: Apache-2.0
"""Virtual time whose tasks are charged with the processor time they use."""

import collections
import time
from collections.abc import Callable
from concurrent import futures
from typing import Any

from tests.simulation.kernel import Kernel, Task
from tests.simulation.machine import AgentProcess

# A lost wake-up would end after this time.
_WAIT_S = 30.0


class MeteredKernel(Kernel):
    """The queue of events; measures the processor time of its processes.

    What a fake does for a task is not charged to the task.
    """

    def __init__(self, seed: int) -> None:
        super().__init__(seed)
        self.cpu_s: collections.Counter[str] = collections.Counter()
        self._outside_s = 0.0

    def run_outside(self, act: Callable[[], Any]) -> Any:
        """Call a function of a fake; its time is not the running task's."""
        began_s = time.thread_time()
        try:
            return act()
        finally:
            self._outside_s += time.thread_time() - began_s

    def _run(self, task: Task) -> None:
        outside_s, began_s = self._outside_s, time.thread_time()
        super()._run(task)
        spent_s = time.thread_time() - began_s
        is_agent = isinstance(task.process, AgentProcess)
        kind = 'agents' if is_agent else 'workers'
        self.cpu_s[kind] += spent_s - (self._outside_s - outside_s)


class _Call:
    """A call that some task of an executor makes; see ``futures.Future``."""

    def __init__(self, kernel: Kernel, act: Callable[[], Any]) -> None:
        self._kernel = kernel
        self._act = act
        self._waits: Task | None = None
        self._is_done = False
        self._value: Any = None
        self._error: Exception | None = None

    def run(self) -> None:
        try:
            self._value = self._act()
        except Exception as exc:
            self._error = exc
        self._is_done = True
        if self._waits is not None:
            self._kernel.wake(self._waits)

    def exception(self) -> Exception | None:
        """Block until the call has ended; return its error."""
        while not self._is_done:
            self._waits = self._kernel.require_task()
            self._kernel.idle(_WAIT_S)
        return self._error

    def result(self) -> Any:
        """Return the result of a call that has ended."""
        return self._value


class TaskExecutor(futures.Executor):
    """``ThreadPoolExecutor`` in virtual time, for one worker."""

    def __init__(self, worker: Any, parallelism: int) -> None:
        self._worker = worker
        self._free_count = parallelism
        self._waiting: collections.deque[_Call] = collections.deque()

    def submit(  # type: ignore[override]
        self, act: Callable[..., Any], /, *args: Any
    ) -> _Call:
        """Call a function in one of the tasks."""
        call = _Call(self._worker.kernel, lambda: act(*args))
        self._waiting.append(call)
        if self._free_count:
            self._free_count -= 1
            self._worker.spawn(self._run)
        return call

    def _run(self) -> None:
        while self._waiting:
            self._waiting.popleft().run()
        self._free_count += 1

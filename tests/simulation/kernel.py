# SPDX-License-Identifier: Apache-2.0
"""Simulated time, threads and processes: one real thread, one event queue.

A thread of the real daemons is a task here: a greenlet that switches at each
request and each wait. Therefore the real code runs unchanged, and the order
of all events follows from the seed alone. A step is one event: a task runs to
its next wait, or an action of the world runs.

A task belongs to a process. The tasks of a frozen process wait until it
thaws; the tasks of a killed process never run again.

Chance has many streams: each process draws from its own one, and so does each
fault and each kind of user. So one request more of a worker changes neither
when machines fail nor what users request.
"""

import contextlib
import heapq
import random
from collections.abc import Callable, Iterator
from typing import Any

import greenlet
from greenlet import getcurrent

# The wall time of the start, in seconds since 1970.
WALL_START_S = 1_700_000_000.0


class Process:
    """A process that can be frozen and killed, with its tasks.

    :param within: the machine with which this process is frozen
    """

    def __init__(self, name: str, within: 'Process | None' = None) -> None:
        self.name = name
        self.rng: random.Random | None = None
        self.alive = True
        self.tasks: dict[Task, None] = {}  # A set in order of insertion.
        self._within = within
        self._thaws_s = 0.0

    @property
    def thaws_s(self) -> float:
        """When the process runs again, in simulated time; past if it runs."""
        within, own_s = self._within, self._thaws_s
        if within is None or own_s >= within._thaws_s:
            return own_s
        return within._thaws_s

    def freeze(self, until_s: float) -> None:
        """Stop the process until then, as SIGSTOP does."""
        self._thaws_s = max(self._thaws_s, until_s)

    def thaw(self, now_s: float) -> None:
        """Let the process run again now, if it does not."""
        self._thaws_s = min(self._thaws_s, now_s)


class Task:
    """One thread of a process."""

    __slots__ = ('alarm', 'greenlet', 'is_idle', 'process')

    def __init__(self, process: Process) -> None:
        self.process = process
        self.greenlet: Any = None
        self.alarm = 0  # Only its queued event with this number is valid.
        self.is_idle = False  # It may be woken before its time.


class Kernel:
    """The queue of events; ``step`` runs the next one.

    :ivar rng: the stream of whatever happens now
    :ivar thaw_s: seconds after a freeze until each thread has run again; they
        may run in any order
    """

    def __init__(self, seed: int) -> None:
        self._seed = seed
        self.rng = self.stream('start')
        self.now_s = 0.0
        self.thaw_s = 0.0
        self.steps_count = 0
        self.task: Task | None = None  # The running task.
        self._events: list[Any] = []
        # The tasks that were to run while their process was frozen.
        self._postponed: list[tuple[Task, int]] = []
        self._hub = getcurrent()  # What makes the world also runs its steps.
        self._seq = 0

    # For the world

    def stream(self, name: str) -> random.Random:
        """Return the random stream of this name."""
        return random.Random(f'{name} {self._seed}')

    @contextlib.contextmanager
    def drawing(self, name: str) -> Iterator[random.Random]:
        """Draw from the stream of this name meanwhile.

        What is planned meanwhile draws from it, too, when it happens.
        """
        former, self.rng = self.rng, self.stream(name)
        try:
            yield self.rng
        finally:
            self.rng = former

    def step(self) -> Process | None:
        """Run the next event; return the process that it belongs to."""
        while True:
            at_s, _, _, target, alarm, rng = heapq.heappop(self._events)
            if not isinstance(target, Task):
                self.rng = rng
                self.now_s = at_s
                self.steps_count += 1
                target()
                return None
            if target.alarm != alarm or target.greenlet is None:
                continue
            thaws_s = target.process.thaws_s
            if thaws_s <= at_s:
                self.rng = self._stream_of(target.process)
                self.now_s = at_s
                self.steps_count += 1
                self._run(target)
                return target.process
            self._push(thaws_s + self._thaw_delay_s(target), target, alarm)
            self._postponed.append((target, alarm))

    def at(self, at_s: float, act: Callable[[], object]) -> None:
        """Run an action at this time."""
        self._push(at_s, act, 0)

    def later(self, delay_s: float, act: Callable[[], object]) -> None:
        """Run an action after a delay."""
        self._push(self.now_s + delay_s, act, 0)

    def spawn(
        self, process: Process, run: Callable[[], object], delay_s: float = 0.0
    ) -> Task:
        """Start a task."""
        task = Task(process)
        task.greenlet = greenlet.greenlet(run, self._hub)
        process.tasks[task] = None
        self._push(self.now_s + delay_s, task, 0)
        return task

    def end(self, process: Process) -> list[Task]:
        """Kill a process; returns its tasks.

        May be called by one of its own tasks, whose next wait is its last.
        """
        process.alive = False
        tasks, process.tasks = list(process.tasks), {}
        for task in tasks:
            if task is not self.task and task.greenlet is not None:
                doomed, task.greenlet = task.greenlet, None
                doomed.parent = getcurrent()
                doomed.throw(greenlet.GreenletExit)
        return tasks

    def run_postponed(self) -> None:
        """Run all tasks now whose process was frozen when they were due."""
        postponed, self._postponed = self._postponed, []
        for task, alarm in postponed:
            self._push(self.now_s, task, alarm)

    # For tasks

    def require_task(self) -> Task:
        """Return the present task; end it if its process was killed."""
        task = self.task
        if (
            task is None
            or task.greenlet is not getcurrent()
            or not task.process.alive
        ):
            raise greenlet.GreenletExit
        return task

    def sleep(self, seconds: float) -> None:
        """Block the present task in simulated time."""
        task = self.require_task()
        alarm = task.alarm = task.alarm + 1
        self._push(self.now_s + seconds, task, alarm)
        self._hub.switch()

    def idle(self, seconds: float) -> None:
        """Block the present task until then, or until `wake`."""
        task = self.task
        if task is not None:
            task.is_idle = True
        self.sleep(seconds)
        if task is not None:
            task.is_idle = False

    def wake(self, task: Task) -> None:
        """Wake a task that is idle; one that waits for a reply waits on."""
        if task.greenlet is not None and task.is_idle:
            task.alarm += 1
            self._push(self.now_s, task, task.alarm)

    # Internal

    def _run(self, task: Task) -> None:
        running = task.greenlet
        self.task = task
        try:
            running.switch()
        finally:
            self.task = None
        if running.dead:
            task.greenlet = None
            task.process.tasks.pop(task, None)

    def _thaw_delay_s(self, task: Task) -> float:
        if not self.thaw_s:
            return 0.0
        return self._stream_of(task.process).uniform(0.0, self.thaw_s)

    def _stream_of(self, process: Process) -> random.Random:
        if process.rng is None:
            process.rng = self.stream(process.name)
        return process.rng

    def _push(self, at_s: float, target: Any, alarm: int) -> None:
        seq = self._seq = self._seq + 1
        rng = self.rng
        order = rng.random()  # A random order of simultaneous events.
        heapq.heappush(self._events, (at_s, order, seq, target, alarm, rng))


class Lock:
    """A ``threading.Lock`` for tasks."""

    def __init__(self, kernel: Kernel) -> None:
        self._kernel = kernel
        self._taken = False

    def __enter__(self) -> bool:
        while self._taken:
            self._kernel.sleep(0.2)
        self._taken = True
        return True

    def __exit__(self, *exc: object) -> None:
        self._taken = False


class Clock:
    """The clock of one machine: its own start, and up to 1 % fast or slow.

    It goes on while the machine is frozen, as CLOCK_BOOTTIME does. The wall
    time is up to one second off, as with NTP, and ``ahead_s`` more.
    """

    def __init__(self, kernel: Kernel, start_s: float, rate: float) -> None:
        self._kernel = kernel
        self._start_s = start_s
        self._rate = rate
        self.ahead_s = 0.0

    def now_s(self) -> float:
        return self._start_s + self._kernel.now_s * self._rate

    def wall_s(self) -> float:
        off_s = (self._rate - 1.0) * 100.0
        return WALL_START_S + self._kernel.now_s + off_s + self.ahead_s

    def sleep(self, seconds: float) -> None:
        self._kernel.sleep(seconds / self._rate)

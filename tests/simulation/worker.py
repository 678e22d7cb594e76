# SPDX-License-Identifier: Apache-2.0
"""A simulated worker process: lease gate, pool view, start, drain, exit.

The gate and the pool view are the real ones. A subclass adds the work that
the worker does while its gate is open.
"""

from collections.abc import Callable
from typing import Any

from hashring.clock import Clock
from hashring.ring import Host
from hashring.workers import (
    ServiceFacts,
    WorkerExited,
    WorkerServing,
    WorkerView,
)
from ironic_compute.gate import LeaseGate, check_may_wait
from ironic_compute.pool.view import PoolView, update_pool_and_gate
from tests.simulation.kernel import Kernel, Process, Task

# Seconds after which a worker without a view exits, and after which a silent
# worker is killed.
SILENCE_S = 60.0
ALIVE_INTERVAL_S = 5.0


class Gate(LeaseGate):
    """The real gate; a wait at it blocks the simulated task.

    :param on_wait: called before each wait; may freeze the worker
    """

    def __init__(
        self, clock: Clock, kernel: Kernel, on_wait: Callable[[], None]
    ) -> None:
        super().__init__(clock, clock.now_s())
        self._kernel = kernel
        self._on_wait = on_wait

    def wait(self) -> None:
        self._on_wait()
        while not self.is_open():
            check_may_wait()
            self._kernel.sleep(0.5)

    def shut_for_s(self) -> float:
        """Return the seconds since the deadline; 0 while the gate is open."""
        return max(0.0, self._clock.now_s() - self._deadline_s)


class Worker(Process):
    """A worker that serves one host for one tenure on one machine."""

    def __init__(
        self, world: Any, machine: Any, host: Host, tenure: int
    ) -> None:
        life = f'{machine.home}.{machine.boots_count}'
        super().__init__(f'worker {host}.{tenure}@{life}', machine)
        self.world = world
        self.kernel: Kernel = world.kernel
        self.machine = machine
        self.host = host
        self.tenure = tenure
        self.clock: Clock = machine.clock
        self.gate: LeaseGate = world.makeup.gate(
            self.clock, self.kernel, self._stick_at_gate
        )
        # How long this process is frozen when it comes to the gate next in
        # the storm.
        self.sticks_s = 0.0
        self.pool = PoolView(self.clock)
        self.serving = False
        self.draining = False
        self.alive_s = self._received_s = self.clock.now_s()
        self._received: list[WorkerView] = []
        self._listener: Task = self.spawn(self._listen)
        self.spawn(self._begin, world.faults.choose(0.1, 0.5, 2.0))

    def spawn(self, run: Any, delay_s: float = 0.0) -> Task:
        """Start a thread of this process."""
        return self.kernel.spawn(self, run, delay_s)

    def _stick_at_gate(self) -> None:
        """Be frozen between a decision and the write that it is about."""
        stuck_s, self.sticks_s = self.sticks_s, 0.0
        if self.world.faults.calm:
            return
        if self.world.faults.occurs('freeze at gate'):
            stuck_s = self.world.faults.choose(1.0, 16.0, 45.0)
        if stuck_s:
            self.world.freeze(self, stuck_s)
            self.kernel.sleep(0.001)

    # For its agent

    def receive(self, view: WorkerView) -> None:
        """Receive a view from the pipe; a frozen worker reads it later."""
        self._received.append(view)
        if self.thaws_s <= self.kernel.now_s:
            self.kernel.wake(self._listener)

    def stop(self) -> None:
        """Start to drain, as on SIGTERM."""
        if not self.draining:
            self.draining = True
            self.spawn(self._drain)

    # What its threads do

    def _listen(self) -> None:
        while True:
            received, self._received = self._received, []
            for view in received:
                update_pool_and_gate(
                    view, self.host, self.pool, self.gate, self.clock
                )
            self.alive_s = self.clock.now_s()
            if received:
                self._received_s = self.clock.now_s()
            if self.clock.now_s() - self._received_s > SILENCE_S:
                self.exit(1)
            self.kernel.idle(ALIVE_INTERVAL_S)

    def _begin(self) -> None:
        self.start()
        self.serving = True
        self.world.note_serving(self)
        self.machine.workers.report(WorkerServing(self.host, self.tenure))

    def _drain(self) -> None:
        self.kernel.sleep(self.world.faults.choose(0.0, 1.0, 4.0, 60.0))
        self.exit(0)

    def start(self) -> None:
        """Prepare to serve."""
        self.report_services(self.world.facts)

    def report_services(self, facts: dict[Host, ServiceFacts]) -> None:
        """Report the Services to the agent."""
        self.machine.workers.report_services(facts)

    def exit(self, status: int, fatal: str | None = None) -> None:
        """Exit with this status."""
        self.machine.workers.reap(
            self, WorkerExited(self.host, status, fatal, self.tenure)
        )
        self.kernel.sleep(0.0)  # Never returns.

    # For the world

    @property
    def may_act(self) -> bool:
        """Whether the worker could send a changing request now."""
        return self.alive and self.serving and self.gate.is_open()

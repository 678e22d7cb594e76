# SPDX-License-Identifier: Apache-2.0
"""A worker process as its agent knows it: gate, view, start, drain, end.

The gate and what a worker takes from a view are the real ones. What it does
behind the gate comes from a subclass; by itself it only has it open.
"""

from typing import Any

from hashring.clock import Clock
from hashring.ring import Host
from hashring.workers import (
    ServiceFacts,
    WorkerExited,
    WorkerServing,
    WorkerView,
)
from ironic_compute.gate import LeaseGate
from ironic_compute.pool.view import PoolView, update_pool_and_gate
from tests.simulation.kernel import Kernel, Process, Task

# A worker that hears nothing for so long ends by itself; one that is silent
# for so long is killed.
SILENCE_S = 60.0
ALIVE_INTERVAL_S = 5.0


class Gate(LeaseGate):
    """The real gate; waiting at it is a task's wait."""

    def __init__(self, clock: Clock, kernel: Kernel) -> None:
        super().__init__(clock, clock.now_s())
        self._kernel = kernel

    def wait(self) -> None:
        while not self.is_open():
            self._kernel.sleep(0.5)


class Worker(Process):
    """Serves one host in one tenure on one machine."""

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
        self.gate: LeaseGate = world.makeup.gate(self.clock, self.kernel)
        self.pool = PoolView(self.clock)
        self.serving = False
        self.draining = False
        self.heard_s = self._told_s = self.clock.now_s()
        self._news: list[WorkerView] = []
        self._listener: Task = self.spawn(self._listen)
        self.spawn(self._begin, world.faults.choose(0.1, 0.5, 2.0))

    def spawn(self, run: Any, delay_s: float = 0.0) -> Task:
        """Start a thread of this process."""
        return self.kernel.spawn(self, run, delay_s)

    # For its agent

    def hear(self, view: WorkerView) -> None:
        """A line comes through the pipe, and is read when it can be."""
        self._news.append(view)
        if self.thaws_s <= self.kernel.now_s:
            self.kernel.wake(self._listener)

    def stop(self) -> None:
        """SIGTERM."""
        if not self.draining:
            self.draining = True
            self.spawn(self._drain)

    # What its threads do

    def _listen(self) -> None:
        while True:
            news, self._news = self._news, []
            for view in news:
                update_pool_and_gate(
                    view, self.host, self.pool, self.gate, self.clock
                )
            self.heard_s = self.clock.now_s()
            if news:
                self._told_s = self.clock.now_s()
            if self.clock.now_s() - self._told_s > SILENCE_S:
                self.exit(1)
            self.kernel.sleep(ALIVE_INTERVAL_S)

    def _begin(self) -> None:
        self.start()
        self.serving = True
        self.machine.workers.report(WorkerServing(self.host, self.tenure))

    def _drain(self) -> None:
        self.kernel.sleep(self.world.faults.choose(0.0, 1.0, 4.0, 60.0))
        self.exit(0)

    def start(self) -> None:
        """Prepare to serve."""
        self.tell_facts(self.world.facts)

    def tell_facts(self, facts: dict[Host, ServiceFacts]) -> None:
        """Tell the agent what Nova says."""
        self.machine.workers.learn(facts)

    def exit(self, status: int, fatal: str | None = None) -> None:
        """End by itself."""
        self.machine.workers.bury(
            self, WorkerExited(self.host, status, fatal, self.tenure)
        )
        self.kernel.sleep(0.0)  # Never returns.

    # For the world

    @property
    def may_act(self) -> bool:
        """Its gate is open: it would send what changes something."""
        return self.alive and self.serving and self.gate.is_open()

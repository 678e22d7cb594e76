# SPDX-License-Identifier: Apache-2.0
"""A simulated machine: a clock, a disk, fake workers, and a real agent."""

import dataclasses
import random
from collections.abc import Mapping
from typing import Protocol

from hashring import errors
from hashring.agent import Agent
from hashring.opts import Timing
from hashring.ring import Host
from hashring.workers import (
    ServiceFacts,
    ServicesRead,
    WorkerEvent,
    WorkerExited,
    WorkerServing,
    WorkerView,
)
from tests.fakes.clock import ManualClock
from tests.fakes.controller import Controller
from tests.unit.hashring import coordination

TIMING = Timing(settle_s=5.0, drain_timeout_s=10.0)


class Surroundings(Protocol):
    """The parts of the world that a machine uses."""

    rng: random.Random
    now_s: float
    service: coordination.Service
    facts: dict[Host, ServiceFacts]

    def log(self, what: str) -> None: ...

    def occurs(self, fault: str, factor: float = 1.0) -> bool: ...

    def hang(self, machine: 'Machine', where: str) -> None: ...


class Killed(BaseException):
    """The agent process was killed; unwinds its present request."""


@dataclasses.dataclass(slots=True)
class Worker:
    """A fake worker process that starts, serves and drains."""

    host: Host
    tenure: int
    serves_at_s: float  # On the clock of its machine.
    view: WorkerView | None = None
    serving: bool = False
    exits_at_s: float | None = None

    def gate_open(self, now_s: float) -> bool:
        view = self.view
        if view is None or not self.serving:
            return False
        opens_s = view.opens_s.get(self.host, 0.0)
        return opens_s <= now_s < view.deadline_s


class FakeWorkers:
    """`hashring.workers.Workers` of one machine, without processes."""

    def __init__(self, world: Surroundings, clock: ManualClock) -> None:
        self._world = world
        self._clock = clock
        self._events: list[WorkerEvent] = []
        self.live: dict[Host, Worker] = {}

    def start(
        self, host: Host, tenure: int, has_servers: bool = False
    ) -> None:
        assert host not in self.live, f'{host} has a worker already'
        delay_s = self._world.rng.choice((0.0, 0.0, 1.0, 3.0))
        starts_s = self._clock.now_s() + delay_s
        self.live[host] = Worker(host, tenure, starts_s)
        self._world.log(f'start {host}')

    def stop(self, host: Host) -> None:
        worker = self.live.get(host)
        if worker is not None:
            drain_s = self._world.rng.choice((0.0, 1.0, 4.0, 60.0))
            worker.exits_at_s = self._clock.now_s() + drain_s

    def kill(self, host: Host) -> None:
        self.live.pop(host, None)

    def deliver_view(self, view: WorkerView) -> None:
        for worker in self.live.values():
            worker.view = view

    def events(self, timeout_s: float) -> list[WorkerEvent]:
        found, self._events = self._events, []
        return found

    def say(self, event: WorkerEvent) -> None:
        """Queue an event of a worker for the agent."""
        self._events.append(event)

    def run(self, facts: Mapping[Host, ServiceFacts]) -> None:
        """Run one step of all worker processes."""
        now_s = self._clock.now_s()
        for worker in list(self.live.values()):
            if worker.exits_at_s is not None and now_s >= worker.exits_at_s:
                self.crash(worker.host)
            elif not worker.serving and now_s >= worker.serves_at_s:
                worker.serving = True
                self._events.append(WorkerServing(worker.host, worker.tenure))
                self._events.append(ServicesRead(facts))

    def crash(self, host: Host) -> None:
        worker = self.live.pop(host, None)
        if worker is not None:
            self._events.append(WorkerExited(host, 1, tenure=worker.tenure))


class Machine(Controller):
    """A controller with a clock, a disk, and at most one agent."""

    def __init__(
        self, world: Surroundings, home: Host, timing: Timing = TIMING
    ) -> None:
        super().__init__(home)
        self.world = world
        self.timing = timing
        rate = world.rng.uniform(0.99, 1.01)
        self.clock = ManualClock(world.rng.uniform(0, 1e6), rate)
        self.agent: Agent | None = None
        self.workers = FakeWorkers(world, self.clock)
        self.frozen_until_s = 0.0  # In world time.
        self.cut_until_s = 0.0  # Without a route to the service until then.
        self.returns_at_s = 0.0  # When the killed agent is started again.
        self._beats_at_s = 0.0
        self._busy: set[str] = set()

    def boot(self) -> None:
        group = coordination.FakeGroup(
            self.world.service, self.next_boot(), self.fault
        )
        self.workers = FakeWorkers(self.world, self.clock)
        self.agent = self.new_agent(
            group, self.workers, self.timing, self.clock
        )
        self._beats_at_s = 0.0
        self._busy.clear()
        self.world.log(f'boot {group.boot}')

    def kill(self, down_s: float) -> None:
        """Kill the agent; its workers die with it."""
        self.agent = None
        self.workers = FakeWorkers(self.world, self.clock)
        self.returns_at_s = self.world.now_s + down_s
        self.world.log(f'kill {self.home} for {down_s:.0f} s')

    @property
    def frozen(self) -> bool:
        return self.world.now_s < self.frozen_until_s

    def fault(self, where: str) -> None:
        """Cause the faults of one request of this machine's agent."""
        agent = self.agent
        if self.world.now_s < self.cut_until_s:
            raise errors.BackendUnavailable('no route')
        self.world.hang(self, where)
        if self.agent is not agent:
            raise Killed
        if self.world.occurs('lose', 0.3):
            raise errors.BackendUnavailable(f'lost {where}')

    def run(self) -> None:
        """Run one step of all threads of this machine, in any order."""
        if self.frozen:
            return
        if self.agent is None:
            if self.world.now_s >= self.returns_at_s:
                self.boot()
            return
        actors = ['beat', 'locks', 'turn', 'workers']
        self.world.rng.shuffle(actors)
        for actor in actors:
            if actor not in self._busy and not self.frozen:
                self._act(actor)

    def _act(self, actor: str) -> None:
        agent = self.agent
        if agent is None:
            return
        self._busy.add(actor)
        try:
            self._do(actor, agent)
        except Killed:
            return  # The next agent has a new set.
        if self.agent is agent:
            self._busy.discard(actor)

    def _do(self, actor: str, agent: Agent) -> None:
        match actor:
            case 'beat':
                self._beat(agent)
            case 'locks':
                agent.lock_thread.run_pending()
            case 'turn':
                agent.turn()
                leaving = agent.assignment.leaving
                if leaving is not None and agent.assignment.finished:
                    self.world.log(f'left {self.home}')
                    self.kill(self.world.rng.uniform(0.5, 40.0))
            case _:
                self.workers.run(self.world.facts)

    def _beat(self, agent: Agent) -> None:
        now_s = self.clock.now_s()
        if agent.heartbeat_thread.is_urgent or now_s >= self._beats_at_s:
            self._beats_at_s = now_s + self.timing.heartbeat_interval_s
            agent.heartbeat_thread.beat()

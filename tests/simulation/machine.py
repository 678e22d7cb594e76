# SPDX-License-Identifier: Apache-2.0
"""A simulated controller: a clock, a disk, a real agent and its workers.

Real are Agent, Assignment, HeartbeatThread, LockThread, Lease and Pool,
unless the world's makeup replaces one by a planted defect.
"""

from typing import Any

from hashring import errors
from hashring.agent import Agent
from hashring.group import Boot
from hashring.ring import Host
from hashring.workers import (
    NO_HOST,
    PathsObserved,
    ServiceFacts,
    ServicesRead,
    WorkerEvent,
    WorkerExited,
    WorkerServing,
    WorkerView,
)
from tests.fakes.controller import Controller
from tests.simulation.disk import FOREIGN_FILES, Files, MemoryStateDir
from tests.simulation.environment import Folder
from tests.simulation.kernel import Clock, Process
from tests.simulation.observing import PathWorker
from tests.simulation.paths import MachinePaths
from tests.simulation.worker import SILENCE_S, Worker

TURN_MIN_S = 0.25
POLL_S = 60.0
REJOIN_S = 1.0


class Workers:
    """`hashring.workers.Workers` of one agent process."""

    def __init__(self, world: Any, machine: 'Machine') -> None:
        self._world = world
        self._machine = machine
        self._events: list[WorkerEvent] = []
        self.live: dict[Host, Worker] = {}

    # For the agent

    def start(
        self, host: Host, tenure: int, has_servers: bool = False
    ) -> None:
        if host in self.live:
            self._world.fail(f'{self.live[host].name} runs already')
        if host not in (*self._world.homes, NO_HOST):
            self._world.fail(f'{self._machine.home} serves {host}, foreign')
        kind = PathWorker if host == NO_HOST else self._world.makeup.worker
        worker = kind(self._world, self._machine, host, tenure)
        self.live[host] = worker
        self._world.log(f'start {worker.name}')
        if self._world.path_checks is not None:
            self._world.path_checks.note_start(worker)

    def stop(self, host: Host) -> None:
        if host in self.live:
            self.live[host].stop()

    def kill(self, host: Host) -> None:
        worker = self.live.pop(host, None)
        if worker is not None:
            self._world.end(worker)
            # The protocol allows that it is reaped later.
            exited = WorkerExited(host, -9, tenure=worker.tenure)
            self._world.kernel.later(
                self._world.faults.choose(0.1, 2.0, 10.0),
                lambda: self._events.append(exited),
            )

    def deliver_view(self, view: WorkerView) -> None:
        for worker in self.live.values():
            worker.receive(view)
        if self._world.faults.occurs('stuck'):
            self._machine.be_stuck()

    def events(self, timeout_s: float) -> list[WorkerEvent]:
        self._world.kernel.sleep(max(timeout_s, TURN_MIN_S))
        now_s = self._machine.clock.now_s()
        for worker in list(self.live.values()):
            if now_s - worker.alive_s > SILENCE_S:
                self.crash(worker.host)
        found, self._events = self._events, []
        return found

    # For the workers and the world

    def report(self, event: WorkerServing | PathsObserved) -> None:
        self._events.append(event)

    def report_services(self, facts: dict[Host, ServiceFacts]) -> None:
        self._events.append(ServicesRead(facts))

    def reap(self, worker: Worker, event: WorkerExited) -> None:
        if self.live.get(worker.host) is worker:
            del self.live[worker.host]
            self._events.append(event)
        self._world.end(worker)

    def crash(self, host: Host) -> None:
        worker = self.live[host]
        self.reap(worker, WorkerExited(host, -9, tenure=worker.tenure))


class AgentProcess(Process):
    """One agent process: three simulated threads run the real agent."""

    def __init__(self, world: Any, machine: 'Machine', boot: Boot) -> None:
        super().__init__(f'agent {boot}', machine)
        self._world = world
        self._machine = machine
        self._kernel = world.kernel
        self._boot = boot
        makeup = world.makeup
        self.agent = machine.new_agent(
            makeup.group(machine.lock_service, boot, machine.around_request),
            machine.workers,
            machine.timing,
            machine.clock,
            makeup.agent,
        )
        spawn = self._kernel.spawn
        self._beats = spawn(self, self._beat)
        self._locks = spawn(self, self._lock)
        spawn(self, self._turn, world.rng.uniform(0.0, 0.5))

    def _turn(self) -> None:
        agent = self.agent
        while True:
            agent.turn()
            if agent.lock_thread.busy:
                self._kernel.wake(self._locks)
            if agent.heartbeat_thread.is_urgent:
                self._kernel.wake(self._beats)
            leaving = agent.assignment.leaving
            if leaving is not None and agent.assignment.finished:
                self._leave(drains=not leaving.restarting)

    def _leave(self, *, drains: bool) -> None:
        self._kernel.sleep(0.5)  # Time to publish the last record.
        service = self._machine.lock_service
        if drains and service.up:
            service.remove(self._boot)
        self._machine.kill(self._world.faults.choose(0.5, 5.0, 40.0), 'left')
        self._kernel.sleep(0.0)

    def _beat(self) -> None:
        heartbeat_thread, clock = (
            self.agent.heartbeat_thread,
            self._machine.clock,
        )
        interval_s = self._machine.timing.heartbeat_interval_s
        while True:
            due_s = clock.now_s() + interval_s
            heartbeat_thread.beat()
            self._kernel.sleep(0.1)
            if not heartbeat_thread.state().lease.counted:
                due_s = clock.now_s() + REJOIN_S
            while clock.now_s() < due_s and not heartbeat_thread.is_urgent:
                self._kernel.idle(due_s - clock.now_s() + 0.01)

    def _lock(self) -> None:
        while True:
            self.agent.lock_thread.run_pending()
            self._kernel.idle(POLL_S)


class Machine(Controller, Process):
    """A controller whose agent is killed and started again."""

    def __init__(self, world: Any, home: Host) -> None:
        Controller.__init__(self, home)
        Process.__init__(self, f'machine {home}')
        self.world = world
        self.group = ''
        if world.environment.has_pools and int(home[1:]) % 2 == 0:
            self.group = 'rack-2'
        rng = world.rng
        self.clock = Clock(
            world.kernel, rng.uniform(1e3, 1e6), rng.uniform(0.99, 1.01)
        )
        self.files: Files = {}
        self._older_files: Files = {}
        self.saved_state: MemoryStateDir = world.makeup.state_dir(self.files)
        self.clock.ahead_s = world.environment.ahead_s()
        self.timing = world.makeup.timing
        self.process: AgentProcess | None = None
        self.workers = Workers(world, self)
        self.cut_until_s = (
            0.0  # Without a route to the lock service until then.
        )
        self.paths = MachinePaths(world.kernel)
        self.steady_until_s = 0.0  # No other cut begins until then.
        self.stays_dead = False

    @property
    def lock_service(self) -> Any:
        """The lock service of the agents of this machine's pool."""
        return self.world.lock_service(self.group)

    @property
    def agent(self) -> Agent | None:
        return self.process.agent if self.process else None

    def boot(self) -> None:
        """Start the agent, unless it runs."""
        if self.process is not None or self.stays_dead:
            return
        self._open_folder()
        boot = self.next_boot()
        self.timing = self.world.environment.timing(self.world.makeup.timing)
        self.workers = Workers(self.world, self)
        self.process = AgentProcess(self.world, self, boot)
        self.world.log(f'boot {boot}')
        if self.world.faults.occurs('return meets cut'):
            self._cut_others()

    def _open_folder(self) -> None:
        kind = self.world.environment.folder()
        if kind is not Folder.OWN and not self.world.faults.calm:
            self._replace_folder(kind)
        self.saved_state = self.world.makeup.state_dir(self.files)
        self.saved_state.open()

    def _replace_folder(self, kind: Folder) -> None:
        other = self.world.rng.choice(self.world.machines)
        older, self._older_files = self._older_files, self.files
        self.files = dict(
            {
                Folder.LOST: {},
                Folder.OLDER: older,
                Folder.OF_ANOTHER_MACHINE: other.files,
                Folder.OF_ANOTHER_POOL: FOREIGN_FILES,
            }[kind]
        )
        self.world.log(f'{self.home} has a folder: {kind.value}')

    def _cut_others(self) -> None:
        """Cut off the other machines, so that they do not see this return.

        This agent requests its lock each second and gets it as soon as it
        ends.
        """
        for other in self.world.machines:
            if other is not self:
                other.cut(self.world.faults.choose(20.0, 30.0), 3.0)

    def kill(self, down_s: float, why: str = 'kill') -> None:
        """Kill the agent; its workers die with it."""
        process, self.process = self.process, None
        self.world.log(f'{why} {self.home} for {down_s:.1f} s')
        for worker in list(self.workers.live.values()):
            self.world.end(worker)
        self.workers.live.clear()
        if process is not None:
            self.world.end(process)
        self.world.kernel.later(down_s, self.boot)

    def cut(self, cut_s: float, steady_s: float) -> None:
        """Cut the machine off from the lock service for a while."""
        now_s = self.world.kernel.now_s
        if now_s >= self.steady_until_s and not self.world.faults.calm:
            self.cut_until_s = now_s + cut_s
            self.steady_until_s = now_s + cut_s + steady_s
            self.world.log(f'cut {self.home} for {cut_s:.1f} s')

    def be_stuck(self) -> None:
        """Let the main loop hang, and often the network too."""
        stuck_s = self.world.faults.choose(5.0, 30.0, 45.0)
        self.world.log(f'loop of {self.home} stuck for {stuck_s:.1f} s')
        if self.world.rng.random() < 0.5:
            self.cut(stuck_s * self.world.rng.uniform(0.5, 0.95), 0.0)
        self.world.kernel.sleep(stuck_s)

    def around_request(self, where: str) -> None:
        """Cause the faults of one request to the lock service."""
        world, faults = self.world, self.world.faults
        # A folder does not go away, and no answer of it is lost.
        is_remote = world.backend.traits.shared
        if is_remote and world.kernel.now_s < self.cut_until_s:
            world.kernel.sleep(0.1)
            raise errors.BackendUnavailable('no route')
        delay_s = world.rng.uniform(0.001, 0.03)
        if where == 'after heartbeat' and faults.occurs('slow beat'):
            delay_s = world.rng.uniform(8.0, 14.5)
            if world.rng.random() < 0.5:  # A cut follows.
                world.kernel.later(
                    delay_s + 0.1, lambda: self.cut(faults.choose(20.0), 0.0)
                )
        elif faults.occurs('slow'):
            delay_s = faults.choose(0.5, 1.0, 3.0, 14.0, 20.0)
        elif faults.occurs('die'):
            self.kill(faults.choose(0.5, 5.0, 30.0), f'kill {where}')
        elif faults.occurs('stick'):
            self.world.freeze(self, faults.choose(1.0, 13.0, 16.0, 45.0))
        world.kernel.sleep(delay_s)
        if is_remote and faults.occurs('lose'):
            raise errors.BackendUnavailable(f'lost {where}')

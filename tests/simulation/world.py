# SPDX-License-Identifier: Apache-2.0
"""The simulated world without Nova: machines, one lock service, one seed.

Simulated are time, the lock service and the faults. During the storm each
step checks safety; in the calm afterwards every host must be served within a
limit. The seed is the only input; a failure shows the seed and the last log
lines.
"""

import random
from collections.abc import Iterator
from typing import Any

from hashring.ring import Host
from hashring.workers import ServiceFacts
from tests.simulation.environment import STEPS_PER_S
from tests.simulation.faults import Faults
from tests.simulation.kernel import Kernel, Process
from tests.simulation.machine import AgentProcess, Machine
from tests.simulation.makeup import Backend, Makeup
from tests.simulation.wire import Wire

STORY_LENGTH_COUNT = 60
# Seconds for which a request may be under way; the margin covers them.
REACH_S = 2.0


class Broken(AssertionError):
    """An invariant was violated."""


class World:
    """The world of one seed."""

    kernel_class = Kernel
    wire_class = Wire

    def __init__(
        self,
        seed: int,
        makeup: Makeup,
        backend: Backend,
        hosts_count: int,
    ) -> None:
        self.seed = seed
        self.makeup = makeup
        self.backend = backend
        self.environment = makeup.environment(seed, makeup.certain)
        self.kernel = self.kernel_class(seed)
        self.kernel.thaw_s = self.environment.thaw_s
        self.faults = Faults(
            self.kernel, makeup.certain, self.environment.quiet_s
        )
        if self.environment.has_only_path_faults:
            self.faults.disarm()
        self.story: list[str] = []
        self.logs_all = False
        self.broken: Broken | None = None
        self.service = backend.new_service(
            self.kernel, makeup.timing.lease_term_s
        )
        # Pools on other backends, or with other prefixes, share no locks.
        self._lock_services = {'': self.service}
        if self.environment.has_pools:
            self._lock_services['rack-2'] = backend.new_service(
                self.kernel, makeup.timing.lease_term_s
            )
        # All workers that have begun to serve, those that might act at the
        # last check, and who acted last for each host.
        self._serving: list[Any] = []
        self._checked: list[Any] = []
        self._acting: dict[Host, Any] = {}
        self._acted: set[str] = set()
        self.homes = [Host(f'c{n + 1}') for n in range(hosts_count)]
        fine = ServiceFacts(mapped=True, disabled=False, exists=True)
        self.facts = dict.fromkeys(self.homes, fine)
        self.machines = [Machine(self, home) for home in self.homes]
        self.prepare()
        for machine in self.machines:
            self.kernel.later(self.rng.uniform(0, 10), machine.boot)

    def prepare(self) -> None:
        """Plan the faults."""
        plan = self.faults.plan
        plan('kill', self._cause_kill)
        plan('crash', self._cause_crash)
        plan('freeze', self._cause_freeze)
        plan('freeze agent', self._cause_freeze_agent)
        plan('freeze worker', self._cause_freeze_worker)
        plan('cut', self._cause_cut)
        plan('stop', self._cause_stop)
        plan('outage', self._cause_outage)
        if self.environment.is_mixed:
            plan('restart', self._cause_restart)
        if self.environment.has_wrong_clocks:
            self.faults.repeat('clock', STEPS_PER_S, self._cause_step)

    # For all parts of the world

    @property
    def rng(self) -> random.Random:
        """The random stream of whatever happens now."""
        return self.kernel.rng

    def lock_service(self, group: str) -> Any:
        """Return the lock service of the agents of a conductor group."""
        return self._lock_services[group]

    def log(self, what: str) -> None:
        """Add a line to the log of this world."""
        self.story.append(f'{self.kernel.now_s:8.2f} {what}')

    def end(self, process: Process) -> None:
        """Kill a process."""
        self.kernel.end(process)

    def freeze(self, process: Process, freeze_s: float) -> None:
        """Stop a process for a while."""
        process.freeze(self.kernel.now_s + freeze_s)
        self.kernel.later(freeze_s, lambda: None)  # A step, hence a check.
        self.log(f'freeze {process.name} for {freeze_s:.1f} s')

    def note_serving(self, worker: Any) -> None:
        """Note a worker that begins to serve: from now on it may act."""
        self._serving.append(worker)

    def workers(self) -> Iterator[Any]:
        """Yield all live workers."""
        for machine in self.machines:
            yield from machine.workers.live.values()

    # Faults

    def _cause_kill(self) -> None:
        machine = self.rng.choice(self.machines)
        if machine.process is not None:
            machine.kill(self.faults.choose(0.5, 5.0, 30.0, 80.0))

    def _cause_crash(self) -> None:
        workers = list(self.workers())
        if workers:
            worker = self.rng.choice(workers)
            self.log(f'crash {worker.name}')
            worker.machine.workers.crash(worker.host)

    def _cause_freeze(self) -> None:
        machine = self.rng.choice(self.machines)
        self.freeze(machine, self.faults.choose(1, 5, 13, 16, 45))

    def _cause_freeze_agent(self) -> None:
        machine = self.rng.choice(self.machines)
        if machine.process is not None:
            self.freeze(machine.process, self.faults.choose(1, 13, 16, 45))

    def _cause_freeze_worker(self) -> None:
        workers = list(self.workers())
        if workers:
            worker = self.rng.choice(workers)
            self.freeze(worker, self.faults.choose(1, 5, 13, 18, 45))

    def _cause_cut(self) -> None:
        machine = self.rng.choice(self.machines)
        machine.cut(self.faults.choose(2, 10, 30), self.faults.choose(3, 10))

    def _cause_stop(self) -> None:
        machine = self.rng.choice(self.machines)
        if machine.agent is not None:
            for_good = self.rng.random() < 0.3
            machine.agent.request_stop(for_good=for_good)
            self.log(f'stop {machine.home}{" for good" * for_good}')

    def _cause_outage(self) -> None:
        if not self.service.up:
            return
        self._begin_outage(self.faults.choose(2, 20, 60))

    def _cause_restart(self) -> None:
        """Restart the lock service; one machine has no route for longer.

        Then only the end of its own term stops that machine.
        """
        if self.service.up:
            self._begin_outage(self.faults.choose(2.0))
            machine = self.rng.choice(self.machines)
            machine.cut(self.faults.choose(15.0, 35.0), 3.0)

    def _cause_step(self) -> None:
        machine = self.rng.choice(self.machines)
        machine.clock.ahead_s = self.environment.ahead_s()
        self.log(f'clock of {machine.home} steps')

    def wrong_now_s(self) -> float:
        """Return the time by the wall clock of any machine."""
        if not self.environment.has_wrong_clocks:
            return self.kernel.now_s
        machine = self.rng.choice(self.machines)
        return self.kernel.now_s + machine.clock.ahead_s

    def _begin_outage(self, down_s: float) -> None:
        if not self.backend.traits.shared:
            return
        for service in self._lock_services.values():
            service.up = False
            if self.backend.traits.forgets:
                service.forget()
        self.log(f'lock service down for {down_s:.1f} s')
        self.kernel.later(down_s, self._end_outage)

    def _end_outage(self) -> None:
        for service in self._lock_services.values():
            service.up = True

    def heal(self) -> None:
        """Begin the calm; in some seeds one machine stays dead."""
        self.log('calm')
        self.faults.calm = True
        self._end_outage()
        now_s, dead = self.kernel.now_s, self._find_lasting_dead()
        for machine in self.machines:
            machine.cut_until_s = 0.0
            machine.paths.heal_all()
            machine.thaw(now_s)
            if machine.process is not None:
                machine.process.thaw(now_s)
            for worker in machine.workers.live.values():
                worker.thaw(now_s)
        for machine in dead:
            machine.stays_dead = True
            machine.kill(0.0, 'kill for good')
        for machine in self.machines:
            self.kernel.later(self.rng.uniform(0.0, 3.0), machine.boot)

    def _find_lasting_dead(self) -> list[Machine]:
        """Return the first machine in every second seed, if others know it."""
        first = self.machines[0]
        is_dead = self.seed % 2 and self.is_known_elsewhere(first.home)
        return [first] if is_dead else []

    def is_known_elsewhere(self, home: Host) -> bool:
        """Return whether a machine knows the home host of another one.

        To agents that never knew it, it would be a foreign host.
        """
        return any(
            home in machine.saved_state.read_known()
            for machine in self.machines
            if machine.home != home
        )

    # Invariants

    def check(self) -> None:
        """Check invariant 1: no host has two workers with an open gate.

        A worker that was replaced must not act again either. The check is
        needed after a step of a worker and after an action of the world,
        such as a thaw: an agent's step opens no gate.
        """
        now_s = self.kernel.now_s
        acting = [
            worker
            for worker in self._serving
            if worker.may_act and worker.thaws_s <= now_s
        ]
        if acting != self._checked:  # If the same may act, all is well again.
            self._check_acting(now_s)
            self._checked = acting
            self._serving = [w for w in self._serving if w.alive]

    def _check_acting(self, now_s: float) -> None:
        seen: dict[Host, Any] = {}
        for machine in self.machines:
            for worker in machine.workers.live.values():
                if worker.may_act and worker.thaws_s <= now_s:
                    other = seen.setdefault(worker.host, worker)
                    if other is not worker:
                        self.fail(f'{worker.name} and {other.name} may act')
        for host, worker in seen.items():
            former = self._acting.get(host)
            if former is not worker:
                self._check_successor(former, worker)
                self._acting[host] = worker

    def _check_successor(self, former: Any, worker: Any) -> None:
        """Check a worker that begins to act for a host."""
        if worker.name in self._acted:
            self.fail(f'{worker.name} acts again after {former.name}')
        if former is not None:
            self._check_gap(former, worker)
            self._acted.add(former.name)

    def _check_gap(self, former: Any, worker: Any) -> None:
        """Check that the former worker's gate shut long enough ago."""
        shut_s = former.gate.shut_for_s()
        if former.alive and shut_s < REACH_S:
            self.fail(
                f'{worker.name} acts {shut_s:.2f} s after the gate of '
                f'{former.name} has shut'
            )

    def find_problem(self) -> str | None:
        """Return a host that is not served as it should be, or None.

        Every home host of a live agent must be served by that agent, and
        every other known host by any agent.
        """
        served = {
            worker.host: worker.machine.home
            for worker in self.workers()
            if worker.may_act
        }
        known = self.known()
        for machine in self.machines:
            home, where = machine.home, served.get(machine.home)
            if machine.agent is not None and where != home:
                return f'{home} is served by {where}, not at home'
            if where is None and home in known:
                return f'{home} is orphaned'
        return None

    def known(self) -> set[Host]:
        """Return the hosts that any live agent knows."""
        return {
            host
            for machine in self.machines
            if machine.agent is not None
            for host in machine.agent.pool.known
        }

    def fail(self, what: str) -> None:
        """Raise `Broken` with the seed and the last log lines."""
        length = len(self.story) if self.logs_all else STORY_LENGTH_COUNT
        tail = '\n'.join(self.story[-length:])
        self.broken = Broken(
            f'{what}\n{tail}\nat {self.kernel.now_s:.2f} s: {what}; run it '
            f'again: python -m tests.simulation --seed {self.seed}'
        )
        raise self.broken

    # A whole run

    def live(self, storm_s: float, calm_s: float) -> None:
        """Run the storm, then the calm until no problem is left."""
        while self.kernel.now_s < storm_s:
            self._step()
        with self.kernel.drawing('calm'):
            self.heal()
        ends_s = self.kernel.now_s + calm_s
        looks_s = self.kernel.now_s
        while self.kernel.now_s < ends_s:
            self._step()
            if self.kernel.now_s >= looks_s:
                looks_s = self.kernel.now_s + 2.0
                if self.find_problem() is None:
                    return
        self.fail(
            f'not well after {calm_s:.0f} s of calm: {self.find_problem()}'
        )

    def _step(self) -> None:
        process = self.kernel.step()
        if self.broken is not None:  # Some handler has caught the exception.
            raise self.broken
        if not isinstance(process, AgentProcess):
            self.check()

    def end_all(self) -> None:
        """End every task of this world."""
        for machine in self.machines:
            for worker in machine.workers.live.values():
                self.kernel.end(worker)
            if machine.process is not None:
                self.kernel.end(machine.process)

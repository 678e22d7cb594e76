# SPDX-License-Identifier: Apache-2.0
"""A simulated world of several real agents in one thread, made from a seed.

Real are Agent, Assignment, HeartbeatThread, LockThread, Lease and Pool.
Simulated are time (each machine's clock is up to 1 % fast or slow), the
coordination service, the workers, and faults: machines freeze, agents and
workers are killed, requests hang before or after they took effect, the
service goes down or forgets.

While a request hangs, the world goes on inside it, and so do the other
threads of that agent; therefore one thread shows the races of many.
"""

import dataclasses
import itertools
import random
from collections.abc import Iterator, Sequence

from hashring.group import Traits
from hashring.ring import Host
from hashring.workers import ServiceFacts
from tests.unit.hashring import coordination
from tests.unit.hashring.machine import TIMING, Machine

STEP_S = 0.5
NEST_MAX_COUNT = 3
# Each seed has some of these faults and not others, so that rare faults occur
# together in some seeds.
FAULTS = (
    'kill',
    'freeze',
    'crash',
    'cut',
    'stop',
    'service',
    'hang',
    'lose',
    'slow beat',
)


class World:
    """The machines and the coordination service of one seed."""

    def __init__(
        self,
        seed: int,
        traits: Traits,
        hosts_count: int,
        *,
        revives: bool,
        terms_s: Sequence[float] = (TIMING.lease_term_s,),
    ) -> None:
        self.seed = seed
        self.rng = random.Random(seed)
        self.now_s = 0.0
        self.calm = False
        self.story: list[str] = []
        self.service = coordination.Service(
            lambda: self.now_s,
            TIMING.lease_term_s,
            traits,
            revives=revives,
        )
        self._rates = {
            fault: self.rng.choice((0.0, 0.005, 0.02, 0.08))
            for fault in FAULTS
        }
        homes = [Host(f'c{n + 1}') for n in range(hosts_count)]
        fine = ServiceFacts(mapped=True, disabled=False, exists=True)
        self.facts = dict.fromkeys(homes, fine)
        self.machines = [
            Machine(self, home, dataclasses.replace(TIMING, lease_term_s=term))
            for home, term in zip(homes, itertools.cycle(terms_s))
        ]
        self._nested_count = 0
        self._service_back_s = 0.0

    # ---- one step

    def step(self) -> None:
        self.now_s += STEP_S
        for machine in self.machines:
            machine.clock.advance(STEP_S)
        if not self.calm:
            self._cause_faults()
        elif self.service.up is False:
            self.service.up = True
        machines = self.machines[:]
        self.rng.shuffle(machines)
        for machine in machines:
            machine.run()
        self.check_safety()

    def hang(self, machine: Machine, where: str) -> None:
        """Let time pass during a request of this machine."""
        if self.calm or self._nested_count >= NEST_MAX_COUNT:
            return
        if where == 'after heartbeat' and self.occurs('slow beat', 4.0):
            hang_s = self.rng.uniform(8.0, 14.5)
        elif self.occurs('hang', 1.0):
            hang_s = self.rng.choice((0.5, 1.0, 3.0, 14.0, 20.0))
        else:
            return
        until_s = self.now_s + hang_s
        self.log(f'{machine.home} hangs until {until_s:.1f} {where}')
        self._nested_count += 1
        while self.now_s < until_s or machine.frozen:
            self.step()
        self._nested_count -= 1

    def occurs(self, fault: str, factor: float = 1.0) -> bool:
        """Return whether this fault happens now."""
        share = self._rates[fault] * factor
        return not self.calm and self.rng.random() < share

    def _cause_faults(self) -> None:
        """Cause the faults of this step."""
        rng = self.rng
        machine = rng.choice(self.machines)
        if not self.service.up and self.now_s >= self._service_back_s:
            self.service.up = True
            self.log('service up')
        if self.occurs('kill') and machine.agent is not None:
            machine.kill(rng.choice((0.5, 5.0, 30.0, 80.0)))
        elif self.occurs('freeze'):
            freeze_s = rng.choice((1.0, 5.0, 13.0, 16.0, 45.0))
            machine.frozen_until_s = self.now_s + freeze_s
            self.log(f'freeze {machine.home} for {freeze_s:.0f} s')
        elif self.occurs('crash') and machine.workers.live:
            host = rng.choice(sorted(machine.workers.live))
            machine.workers.crash(host)
            self.log(f'worker {host} crashes on {machine.home}')
        elif self.occurs('cut'):
            cut_s = rng.choice((2.0, 10.0, 30.0))
            machine.cut_until_s = self.now_s + cut_s
            self.log(f'cut {machine.home} for {cut_s:.0f} s')
        elif self.occurs('stop') and machine.agent is not None:
            machine.agent.request_stop(for_good=rng.random() < 0.3)
            self.log(f'stop {machine.home}')
        elif self.occurs('service', 0.5):
            self._cause_outage()

    def _cause_outage(self) -> None:
        self.service.up = False
        down_s = self.rng.choice((2.0, 20.0, 60.0))
        self._service_back_s = self.now_s + down_s
        if self.service.traits.forgets:
            self.service.forget()
        self.log(f'service down for {down_s:.0f} s')

    def heal(self, dead: int = 0) -> None:
        """End all faults; the first ``dead`` machines stay down."""
        self.calm = True
        self.service.up = True
        for machine in self.machines:
            machine.frozen_until_s = machine.cut_until_s = 0.0
            machine.returns_at_s = min(machine.returns_at_s, self.now_s)
        for machine in self.machines[:dead]:
            machine.kill(1e9)

    # ---- what must hold

    def open_gates(self) -> Iterator[tuple[Host, Machine]]:
        for machine in self.machines:
            if machine.frozen:
                continue
            now_s = machine.clock.now_s()
            for worker in machine.workers.live.values():
                if worker.gate_open(now_s):
                    yield worker.host, machine

    def check_safety(self) -> None:
        """Check that no host has two workers with an open gate."""
        seen: dict[Host, Machine] = {}
        for host, machine in self.open_gates():
            assert host not in seen, self.failure(
                f'{host} is served by {seen[host].home} and {machine.home}'
            )
            seen[host] = machine

    def find_problem(self) -> str | None:
        """Return a host that is not served as it should be, or None.

        Every home host of a live agent must be served by that agent, and
        every other known host by any agent.
        """
        served = {host: machine.home for host, machine in self.open_gates()}
        known = {
            host
            for machine in self.machines
            if machine.agent is not None
            for host in machine.agent.pool.known
        }
        for machine in self.machines:
            home = machine.home
            where = served.get(home)
            if machine.agent is not None and where != home:
                return f'{home} is served by {where}, not at home'
            if where is None and home in known:
                return f'{home} is orphaned'
        return None

    def log(self, what: str) -> None:
        self.story.append(f'{self.now_s:7.1f} {what}')

    def failure(self, what: str) -> str:
        story = '\n'.join(self.story[-40:])
        return f'{what} at {self.now_s:.1f} s, seed={self.seed}\n{story}'


def run(
    seed: int,
    traits: Traits,
    *,
    revives: bool = False,
    terms_s: Sequence[float] = (TIMING.lease_term_s,),
    storm_s: float = 150.0,
    calm_s: float = 400.0,
) -> World:
    """Run a world through faults and calm; raise if a check fails."""
    world = World(
        seed,
        traits,
        hosts_count=2 + seed % 3,
        revives=revives,
        terms_s=terms_s,
    )
    while world.now_s < storm_s:
        world.step()
    world.heal(dead=seed % 2)
    ends_s = world.now_s + calm_s
    while world.now_s < ends_s:
        world.step()
        if world.find_problem() is None:
            return world
    raise AssertionError(world.failure(f'no liveness: {world.find_problem()}'))

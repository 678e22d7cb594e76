# SPDX-License-Identifier: Apache-2.0
"""Machines, one lock service, one seed: the half without Nova.

Invented are time, the lock service, and what goes wrong. In the storm the
safety of each step is checked; in the calm after it every host must be
served again within a budget. The seed is the whole input: a failure prints
it, with the end of the story.
"""

import random
from collections.abc import Iterator
from typing import Any

from hashring.ring import Host
from hashring.workers import ServiceFacts
from tests.simulation.faults import Faults
from tests.simulation.kernel import Kernel, Process
from tests.simulation.machine import Machine
from tests.simulation.makeup import Backend, Makeup

STORY_LENGTH_COUNT = 60
# How long a request may take that the margin is there for.
REACH_S = 2.0


class Broken(AssertionError):
    """Something that must always hold did not."""


class World:
    """One seed's life."""

    def __init__(
        self,
        seed: int,
        makeup: Makeup,
        backend: Backend,
        hosts_count: int,
        rng: random.Random | None = None,
    ) -> None:
        self.seed = seed
        self.makeup = makeup
        self.backend = backend
        self.rng = rng or random.Random(seed)
        self.kernel = Kernel(self.rng)
        self.faults = Faults(self.kernel, self.rng)
        self.story: list[str] = []
        self.tells_all = False
        self.broken: Broken | None = None
        self.service = backend.service(
            lambda: self.kernel.now_s,
            makeup.timing.lease_term_s,
            backend.traits,
            revives=backend.revives,
        )
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
        """Make plans for what goes wrong."""
        plan = self.faults.plan
        plan('kill', self._strike_kill)
        plan('crash', self._strike_crash)
        plan('freeze', self._strike_freeze)
        plan('freeze agent', self._strike_freeze_agent)
        plan('freeze worker', self._strike_freeze_worker)
        plan('cut', self._strike_cut)
        plan('stop', self._strike_stop)
        plan('outage', self._strike_outage)

    # For everybody

    def tell(self, what: str) -> None:
        """Add a line to the story."""
        self.story.append(f'{self.kernel.now_s:8.2f} {what}')

    def end(self, process: Process) -> None:
        """Kill a process."""
        self.kernel.end(process)

    def freeze(self, process: Process, freeze_s: float) -> None:
        """Stop a process for a while."""
        process.freeze(self.kernel.now_s + freeze_s)
        self.tell(f'freeze {process.name} for {freeze_s:.1f} s')

    def workers(self) -> Iterator[Any]:
        """All living workers."""
        for machine in self.machines:
            yield from machine.workers.live.values()

    # What goes wrong

    def _strike_kill(self) -> None:
        machine = self.rng.choice(self.machines)
        if machine.process is not None:
            machine.kill(self.faults.choose(0.5, 5.0, 30.0, 80.0))

    def _strike_crash(self) -> None:
        workers = list(self.workers())
        if workers:
            worker = self.rng.choice(workers)
            self.tell(f'crash {worker.name}')
            worker.machine.workers.crash(worker.host)

    def _strike_freeze(self) -> None:
        machine = self.rng.choice(self.machines)
        self.freeze(machine, self.faults.choose(1, 5, 13, 16, 45))

    def _strike_freeze_agent(self) -> None:
        machine = self.rng.choice(self.machines)
        if machine.process is not None:
            self.freeze(machine.process, self.faults.choose(1, 13, 16, 45))

    def _strike_freeze_worker(self) -> None:
        workers = list(self.workers())
        if workers:
            worker = self.rng.choice(workers)
            self.freeze(worker, self.faults.choose(1, 5, 13, 18, 45))

    def _strike_cut(self) -> None:
        machine = self.rng.choice(self.machines)
        machine.cut(self.faults.choose(2, 10, 30), self.faults.choose(3, 10))

    def _strike_stop(self) -> None:
        machine = self.rng.choice(self.machines)
        if machine.agent is not None:
            drain = self.rng.random() < 0.3
            machine.agent.request_stop(drain=drain)
            self.tell(f'stop {machine.home}{" for good" * drain}')

    def _strike_outage(self) -> None:
        if not self.service.up:
            return
        self.service.up = False
        down_s = self.faults.choose(2, 20, 60)
        if self.backend.traits.forgets:
            self.service.forget()
        self.tell(f'lock service down for {down_s:.1f} s')
        self.kernel.later(down_s, self._service_returns)

    def _service_returns(self) -> None:
        self.service.up = True

    def heal(self) -> None:
        """The calm begins; now and then one machine stays dead."""
        self.tell('calm')
        self.faults.calm = True
        self.service.up = True
        dead = self._to_stay_dead()
        for machine in self.machines:
            machine.cut_until_s = 0.0
            machine.thaw()
            if machine.process is not None:
                machine.process.thaw()
            for worker in machine.workers.live.values():
                worker.thaw()
        for machine in dead:
            machine.stays_dead = True
            machine.kill(0.0, 'kill for good')
        for machine in self.machines:
            self.kernel.later(self.rng.uniform(0.0, 3.0), machine.boot)

    def _to_stay_dead(self) -> list[Machine]:
        """The first machine in every second seed, if anybody knows it.

        A host that nobody else has met is a foreign one to those who live.
        """
        first, *others = self.machines
        met = any(first.home in m.saved_state.read_known() for m in others)
        return [first] if self.seed % 2 and met else []

    # What must hold

    def check(self) -> None:
        """Invariant 1: no host has two workers with an open gate.

        Nor does one that has been replaced ever act again.
        """
        seen: dict[Host, Any] = {}
        now_s = self.kernel.now_s
        for machine in self.machines:
            for worker in machine.workers.live.values():
                if worker.may_act and worker.thaws_s <= now_s:
                    other = seen.setdefault(worker.host, worker)
                    if other is not worker:
                        self.fail(f'{worker.name} and {other.name} may act')
        if seen:
            self._change(seen)

    def _change(self, seen: dict[Host, Any]) -> None:
        """Somebody begins to act for a host."""
        for host, worker in seen.items():
            former: Any = self._acting.get(host)
            if former is not worker:
                if worker.name in self._acted:
                    self.fail(f'{worker.name} acts again after {former.name}')
                if former is not None:
                    self._check_gap(former, worker)
                    self._acted.add(former.name)
                self._acting[host] = worker

    def _check_gap(self, former: Any, worker: Any) -> None:
        """The last request of the former has had the margin to arrive."""
        shut_s = former.gate.shut_for_s()
        if former.alive and shut_s < REACH_S:
            self.fail(
                f'{worker.name} acts {shut_s:.2f} s after the gate of '
                f'{former.name} has shut'
            )

    def amiss(self) -> str | None:
        """What is not as it should be, in the calm.

        Every host is served once, at home where its agent lives, and
        elsewhere if anybody has ever heard of it.
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
        """The hosts that anybody has ever heard of and not forgotten."""
        return {
            host
            for machine in self.machines
            if machine.agent is not None
            for host in machine.agent.pool.known
        }

    def fail(self, what: str) -> None:
        """Something did not hold: say so with the seed and the story."""
        length = len(self.story) if self.tells_all else STORY_LENGTH_COUNT
        tail = '\n'.join(self.story[-length:])
        self.broken = Broken(
            f'{what}\n{tail}\nat {self.kernel.now_s:.2f} s: {what}; run it '
            f'again: python -m tests.simulation --seed {self.seed}'
        )
        raise self.broken

    # A whole life

    def live(self, storm_s: float, calm_s: float) -> None:
        """Storm, then calm until all is well."""
        while self.kernel.now_s < storm_s:
            self._step()
        self.heal()
        ends_s = self.kernel.now_s + calm_s
        looks_s = self.kernel.now_s
        while self.kernel.now_s < ends_s:
            self._step()
            if self.kernel.now_s >= looks_s:
                looks_s = self.kernel.now_s + 2.0
                if self.amiss() is None:
                    return
        self.fail(f'not well after {calm_s:.0f} s of calm: {self.amiss()}')

    def _step(self) -> None:
        self.kernel.step()
        if self.broken:  # And somebody's handler has swallowed it.
            raise self.broken
        self.check()

    def end_all(self) -> None:
        """End every task, so that nothing of this world is left."""
        for machine in self.machines:
            for worker in machine.workers.live.values():
                self.kernel.end(worker)
            if machine.process is not None:
                self.kernel.end(machine.process)

# SPDX-License-Identifier: Apache-2.0
"""Checks of half-alive agents against what is true of the paths.

The checks know which paths are cut, and since when; agents know only what
their workers have observed. In a world in which only paths fail, it is also
checked that what must happen does happen.
"""

import dataclasses
import math
from typing import Any

from hashring.group import Boot, Member, MemberState, PathProof
from hashring.half_alive import Cause
from hashring.paths import Path
from hashring.ring import Host
from hashring.workers import NO_HOST
from tests.simulation.paths import BUSY_PATHS, PATHS, Loss

STEP_S = 0.5
# An agent publishes a failure after five seconds, and whoever proves that the
# path works must have had its answer after that; less the one per cent by
# which clocks differ, and a step.
PROVEN_AFTER_S = 4.0
# The agent knows that a path answers again when no request that failed was
# sent for ten seconds, after one answer more (1.5 s), a report and a turn.
NOTICED_S = 15.0
# The two answers take so much longer on a slow path.
SLOWER_S = 8.0
# A failure is noticed after up to 17 s; another agent needs up to 20 s to
# prove that the path works there, the proof must last for ten seconds, and a
# request must have failed since (13 s).
HALF_ALIVE_S = 58.0
# If the other agents were half alive, they must know that their paths work,
# for as long as a failure must last, before they serve again.
BACK_S = 45.0
# The lock is released, then tried by each other agent in its turn; the new
# worker needs two seconds, and its gate a term if the backend forgets locks.
ADOPTED_S = 25.0
# What was published is known to all after two heartbeats.
KNOWN_S = 8.0
# A cut that is shorter than one probe moves nothing.
SHORT_S = 4.0
# A cut that is longer is certainly noticed.
LONG_S = 20.0
# Who was cut off for long must prove for ten seconds that its path works.
PROVEN_FOR_S = 9.0
# A proof is published up to 20 s after the path works, and then to be known.
PROVEN_S = 20.0 + KNOWN_S
RECENT_S = 30.0
FIRST_WAIT_TERMS = 3


@dataclasses.dataclass
class _PathFacts:
    """What is true of one path of one machine."""

    whole_s: float = -math.inf
    """When a request could have an answer last."""
    slow_s: float = -math.inf
    """When it was slow last."""
    cuts_s: list[float] = dataclasses.field(default_factory=list)
    """When it was seen cut lately."""
    began_s: float = math.inf
    """Since when it was cut without a longer pause."""
    long_cut_s: float = -math.inf
    """When it was cut last, after it had been cut for long."""
    missed_s: float = -math.inf
    """When it was so while an agent was there on which no path fails."""

    def noticed_s(self) -> float:
        """Return after how long at most the end of a cut is noticed."""
        was_slow = bool(self.cuts_s) and self.slow_s > self.cuts_s[-1]
        return NOTICED_S + SLOWER_S * was_slow


def _new_paths() -> dict[Path, _PathFacts]:
    return {path: _PathFacts() for path in PATHS}


@dataclasses.dataclass
class _ListedFacts:
    """What others read of one machine; its record outlives its agent."""

    home_wanted_s: float = -math.inf
    """When its record last said that it wants its home host."""
    proofs_s: dict[PathProof, float] = dataclasses.field(default_factory=dict)
    """When its record last had each proof, as of an agent that serves."""


@dataclasses.dataclass
class _Facts:
    """What is true of one machine and its present boot."""

    boot: Boot | None = None
    paths: dict[Path, _PathFacts] = dataclasses.field(
        default_factory=_new_paths
    )
    listed: _ListedFacts = dataclasses.field(default_factory=_ListedFacts)
    steady_since_s: float = math.inf
    """Since when nothing but its paths fails."""
    well_since_s: float = math.inf
    """Since when all paths work, too."""
    sick_since_s: float = math.inf
    """Since when it has published that a path fails."""
    fit_since_s: float = math.inf
    """Since when it has published that all paths work."""
    half_alive_since_s: float = math.inf
    cause: Path | None = None
    """The path because of which it is half alive, or was last."""
    begins_count: int = 0
    """How often it became half alive."""
    needed_s: float = -math.inf
    """When nobody else that could serve better was there last."""


class PathChecks:
    """Checks a world each half second, and each worker that is started."""

    def __init__(self, world: Any) -> None:
        self._world = world
        self._is_certain = world.environment.has_only_path_faults
        self._facts = {machine: _Facts() for machine in world.machines}
        # The last worker of each host.
        self._workers: dict[Host, Any] = {}
        # The workers that were seen to drain.
        self._draining: set[Any] = set()
        world.kernel.later(STEP_S, self._step)

    @property
    def _now_s(self) -> float:
        return float(self._world.kernel.now_s)

    def _since(self, since_s: float, holds: bool) -> float:
        return min(since_s, self._now_s) if holds else math.inf

    def _step(self) -> None:
        self._world.kernel.later(STEP_S, self._step)
        members = self._world.service.members()
        for machine in self._world.machines:
            self._update(machine, members)
            self._note_listed(machine, members)
        for machine in self._world.machines:
            self._note_missed_paths(machine)
            self._note_drains(machine)
            self._check_half_alive(machine)
            if self._is_certain and not self._world.faults.calm:
                self._check_served(machine)

    # What is true

    def _update(self, machine: Any, members: tuple[Member, ...]) -> None:
        agent = machine.agent
        boot = None if agent is None else agent.heartbeat_thread._group.boot
        facts = self._facts[machine]
        if boot != facts.boot:
            facts = self._facts[machine] = _Facts(
                boot, facts.paths, facts.listed
            )
        facts.steady_since_s = self._since(
            facts.steady_since_s, self._is_steady(machine)
        )
        is_well = not any(machine.paths.find(p, *Loss) for p in PATHS)
        facts.well_since_s = self._since(
            facts.well_since_s, is_well and math.isfinite(facts.steady_since_s)
        )
        for path, path_facts in facts.paths.items():
            is_cut = math.isfinite(machine.paths.failing_since_s(path))
            if math.isinf(machine.paths.lost_since_s(path)):
                path_facts.whole_s = self._now_s
            if machine.paths.find(path, Loss.SLOW) is not None:
                path_facts.slow_s = self._now_s
            self._update_path(path_facts, is_cut=is_cut)
        self._update_published(facts, members)

    def _is_steady(self, machine: Any) -> bool:
        world, agent = self._world, machine.agent
        if agent is None or agent.assignment.leaving is not None:
            return False
        processes = (machine.process, *machine.workers.live.values())
        is_running = all(p.thaws_s <= self._now_s for p in processes)
        lease = agent.heartbeat_thread.state().lease
        return (
            is_running
            and world.service.up
            and machine.cut_until_s <= self._now_s
            and lease.held(machine.clock.now_s())
        )

    def _update_path(self, facts: _PathFacts, *, is_cut: bool) -> None:
        now_s, cuts_s = self._now_s, facts.cuts_s
        if not is_cut:
            return
        if not cuts_s or now_s - cuts_s[-1] > facts.noticed_s():
            facts.began_s = now_s
        cuts_s.append(now_s)
        del cuts_s[: -int(RECENT_S / STEP_S)]
        count = int(LONG_S / STEP_S)
        if len(cuts_s) >= count and cuts_s[-1] - cuts_s[-count] < LONG_S:
            facts.long_cut_s = now_s

    def _update_published(
        self, facts: _Facts, members: tuple[Member, ...]
    ) -> None:
        serving = [
            m
            for m in members
            if m.state is not MemberState.LEAVING and not m.is_half_alive
        ]
        mine = [m for m in serving if m.boot == facts.boot]
        is_sick = any(m.failing_paths for m in mine)
        facts.sick_since_s = self._since(facts.sick_since_s, is_sick)
        facts.fit_since_s = self._since(
            facts.fit_since_s, bool(mine) and not is_sick
        )
        if not any(
            m.boot != facts.boot
            and not m.failing_paths
            and (m.wants_home or m.working_paths)
            for m in serving
        ):
            facts.needed_s = self._now_s

    def _note_listed(self, machine: Any, members: tuple[Member, ...]) -> None:
        facts = self._facts[machine].listed
        for member in members:
            if member.home != machine.home:
                continue
            wants_home = member.wants_home
            if member.is_half_alive and wants_home:
                self._fail(machine, 'half alive, and wants its home')
            if member.state is MemberState.UP and wants_home:
                facts.home_wanted_s = self._now_s
            if not member.is_half_alive:
                proofs = dict.fromkeys(member.path_proofs, self._now_s)
                facts.proofs_s |= proofs

    def _note_missed_paths(self, machine: Any) -> None:
        """Note which paths fail on a machine and certainly work elsewhere."""
        proven_s = self._now_s - PROVEN_S
        is_better_there = any(
            max(other.well_since_s, other.fit_since_s) < proven_s
            for other in self._others(machine).values()
        )
        for path, path_facts in self._facts[machine].paths.items():
            # Where most connections are reset, the few probes of a path that
            # is not used may all have an answer.
            is_certain = machine.paths.find(path, Loss.RESETS) is None
            is_missed = is_certain and path_facts.long_cut_s == self._now_s
            if is_better_there and is_missed:
                path_facts.missed_s = self._now_s

    def _others(self, machine: Any) -> dict[Any, _Facts]:
        return {m: f for m, f in self._facts.items() if m is not machine}

    # When an agent becomes half alive, and when it comes back

    def _check_half_alive(self, machine: Any) -> None:
        facts, agent = self._facts[machine], machine.agent
        cause = None if agent is None else agent._half_alive.cause
        was_half_alive = math.isfinite(facts.half_alive_since_s)
        if cause is not None and not was_half_alive:
            self._world.log(f'{machine.home} is half alive: {cause.path}')
            facts.begins_count += 1
            facts.cause = cause.path
            self._check_begin(machine, facts, cause)
        elif cause is None and was_half_alive:
            self._world.log(f'{machine.home} is not half alive any more')
            self._check_return(machine, facts)
        facts.half_alive_since_s = self._since(
            facts.half_alive_since_s, cause is not None
        )

    def _check_begin(self, machine: Any, facts: _Facts, cause: Cause) -> None:
        age_s = machine.clock.now_s() - cause.since_s
        if age_s < machine.timing.half_alive_s:
            self._fail(machine, f'half alive after {age_s:.1f} s')
        own = facts.paths[cause.path]
        # A new worker of the agent may have noticed the failure late.
        since_s = min(self._now_s - age_s, own.whole_s)
        self._check_proof(machine, cause, since_s)
        if self._is_certain:
            self._check_cut(machine, own, cause.path)

    def _check_proof(self, machine: Any, cause: Cause, since_s: float) -> None:
        """Check that the service can have answered the other agent.

        :param since_s: when the agent's own path has failed
        """
        proven_s = since_s + PROVEN_AFTER_S
        path, peer, others = cause.path, cause.peer, self._others(machine)
        facts = next((f for m, f in others.items() if m.home == peer), None)
        if facts is None or facts.paths[path].whole_s < proven_s:
            self._fail(machine, f'half alive, and {peer} lacks {path}, too')
        elif self._is_certain and not self._was_proven(machine, path):
            self._fail(machine, f'half alive when {path} is back')

    def _was_proven(self, machine: Any, path: Path) -> bool:
        """Return whether any agent had the path for as long as it takes.

        It need not be the agent that is named as the peer: of several agents
        that prove the path, one may have been cut off until just now. Where
        most connections are reset, two of its requests may have had an answer
        by luck.
        """
        boot = self._facts[machine].boot
        assert boot is not None
        proof, since_s = PathProof(path, boot), self._now_s - PROVEN_FOR_S
        return any(
            facts.listed.proofs_s.get(proof, -math.inf) >= since_s - KNOWN_S
            and (
                other.paths.find(path, Loss.RESETS) is not None
                or facts.paths[path].long_cut_s <= since_s
            )
            for other, facts in self._others(machine).items()
        )

    def _check_cut(self, machine: Any, facts: _PathFacts, path: Path) -> None:
        recent = [s for s in facts.cuts_s if self._now_s - s < RECENT_S]
        if len(recent) * STEP_S < SHORT_S:
            self._fail(machine, f'half alive after a moment without {path}')
        lasted_s = self._now_s - facts.began_s
        if lasted_s < machine.timing.half_alive_s - 2.5:
            self._fail(machine, f'half alive after {lasted_s:.1f} s')
        if self._now_s - recent[-1] > facts.noticed_s():
            self._fail(machine, f'half alive, and {path} works again')

    def _check_return(self, machine: Any, facts: _Facts) -> None:
        """Check that the agent has waited, longer after each relapse.

        The path that was the cause must have worked meanwhile. Another path
        may have failed, unless an agent was there that had all paths: if it
        fails for all, no agent serves better than this one.
        """
        after_s = machine.timing.half_alive_s
        wait_s = FIRST_WAIT_TERMS * after_s * 2 ** (facts.begins_count - 1)
        worked_s = facts.half_alive_since_s
        if self._is_certain:
            assert facts.cause is not None
            missed_s = (path.missed_s for path in facts.paths.values())
            cause_cut_s = facts.paths[facts.cause].long_cut_s
            worked_s = max(worked_s, cause_cut_s, *missed_s)
        waited_s = self._now_s - worked_s
        was_needed = self._now_s - facts.needed_s < 2 * after_s
        if waited_s < 0.98 * wait_s - 1.0 and not was_needed:
            self._fail(machine, f'serves again after {waited_s:.1f} s')

    # Who serves

    def note_start(self, worker: Any) -> None:
        """Check that a machine may start a worker."""
        machine, host = worker.machine, worker.host
        if host == NO_HOST:
            return
        agent, former = machine.agent, self._workers.get(host)
        self._workers[host] = worker
        if agent is not None and agent._half_alive.is_half_alive:
            self._fail(machine, f'half alive, and serves {host}')
        if not self._is_certain or self._world.faults.calm:
            return
        # A host that has never been served has no Service, so that each
        # adopter's worker ends at once, whoever is the next to try.
        if host != machine.home and host in self._world.nova.services:
            self._check_adopter(machine, host)
        if former is not None and former.machine is not machine:
            self._check_move(machine, former)

    def _check_adopter(self, machine: Any, host: Host) -> None:
        known_s = self._now_s - KNOWN_S
        is_better_there = any(
            other.fit_since_s < known_s and other.steady_since_s < known_s
            for other in self._facts.values()
        )
        facts = self._facts[machine]
        is_sick = max(facts.sick_since_s, facts.steady_since_s) < known_s
        if is_sick and is_better_there:
            self._fail(machine, f'sick, and adopts {host}')

    def _check_move(self, machine: Any, former: Any) -> None:
        """Check that a host leaves a machine for a reason only.

        A worker that drains hands its host back to its home. That may take a
        minute; if the home becomes half alive meanwhile, the drain goes on
        nevertheless, and any agent may adopt the host after it.
        """
        host, agent = former.host, former.machine.agent
        is_steady = self._facts[former.machine].steady_since_s < self._now_s
        # A worker ends if its host has no Service.
        has_service = host in self._world.nova.services
        if (
            machine.home != host
            and is_steady
            and has_service
            and not former.draining
            and not (agent and agent._half_alive.is_half_alive)
        ):
            self._fail(machine, f'takes {host} from {former.machine.home}')

    def _note_drains(self, machine: Any) -> None:
        """Check of each worker that begins to drain that its home wants it."""
        agent = machine.agent
        if agent is None or agent.assignment.leaving is not None:
            return
        for worker in machine.workers.live.values():
            if worker.draining and worker not in self._draining:
                self._draining.add(worker)
                wanted_s = self._home_wanted_s(worker.host)
                # A host without a Service is not of the pool any more.
                has_service = worker.host in self._world.nova.services
                is_unwanted = has_service and self._now_s - wanted_s > KNOWN_S
                if self._is_certain and is_unwanted:
                    self._fail(machine, f'drains {worker.host}, unwanted')

    def _home_wanted_s(self, host: Host) -> float:
        homes = (f.listed for m, f in self._facts.items() if m.home == host)
        return max((f.home_wanted_s for f in homes), default=-math.inf)

    def _check_served(self, machine: Any) -> None:
        """Check that an agent gives its hosts away if it cannot serve."""
        facts, world = self._facts[machine], self._world
        cut_s = min(machine.paths.failing_since_s(p) for p in BUSY_PATHS)
        others = [f for m, f in self._facts.items() if m is not machine]
        begin_s = max(
            cut_s, facts.steady_since_s, *(f.well_since_s for f in others)
        )
        lasts_s = self._now_s - begin_s - HALF_ALIVE_S
        if any(f.begins_count for f in others):
            lasts_s -= BACK_S
        if lasts_s < 0.0:
            return
        if not machine.agent._half_alive.is_half_alive:
            self._fail(machine, 'not half alive, though it cannot serve')
        terms_s = max(m.timing.lease_term_s for m in world.machines)
        home = machine.home
        is_served = any(w.may_act for w in world.workers() if w.host == home)
        is_known = home in world.nova.services and home in world.known()
        if lasts_s > ADOPTED_S + terms_s and is_known and not is_served:
            self._fail(machine, 'not served by an agent that can')

    def _fail(self, machine: Any, what: str) -> None:
        self._world.fail(f'{machine.home}: {what}')

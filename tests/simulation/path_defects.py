# SPDX-License-Identifier: Apache-2.0
"""Planted defects of half-alive agents; see ``defects``."""

import dataclasses
import math
from collections.abc import Callable, Mapping
from typing import Any

from hashring.adoption import PresenceWatch, View
from hashring.agent import Agent
from hashring.assignment import Assignment
from hashring.group import PathProof
from hashring.half_alive import Cause, HalfAliveWatch
from hashring.path_proofs import PathProofs
from hashring.paths import Path, PathStates, failing
from hashring.ring import Host
from ironic_compute.paths.path_health import PathHealth
from tests.simulation.handlers import Manager
from tests.simulation.makeup import Makeup, with_parts


class MovesAfterAMoment(HalfAliveWatch):
    """A path that failed for a moment is enough."""

    def _find_cause(
        self, states: PathStates, view: View, now_s: float
    ) -> Cause | None:
        provers = self._find_provers(states, view, now_s)
        for path in failing(states, now_s):
            if path in provers:
                since_s = states[path].failing_since_s or now_s
                return Cause(path, since_s, '', provers[path])
        return None


class MovesAtTheFirstProof(HalfAliveWatch):
    """The end of an outage that is noticed late moves hosts."""

    def _find_cause(
        self, states: PathStates, view: View, now_s: float
    ) -> Cause | None:
        self._proven_since_s = dict.fromkeys(states, -math.inf)
        return super()._find_cause(states, view, now_s)


class NeedsNoProof(HalfAliveWatch):
    """An agent that has not noticed the outage yet counts as well."""

    def _find_provers(
        self, states: PathStates, view: View, now_s: float
    ) -> dict[Path, Host]:
        paths = failing(states, now_s)
        proofs = tuple(PathProof(path, self._boot) for path in paths)
        members = tuple(
            dataclasses.replace(member, path_proofs=proofs)
            for member in view.members
        )
        return super()._find_provers(states, View(members), now_s)


class LetsGoAlone(HalfAliveWatch):
    """An agent gives its hosts away although nobody can serve them."""

    def _find_provers(
        self, states: PathStates, view: View, now_s: float
    ) -> dict[Path, Host]:
        alone = dict.fromkeys(failing(states, now_s), Host('nobody'))
        return alone | super()._find_provers(states, view, now_s)


class ForgetsFailures(PathHealth):
    """One answer ends a failure, although most requests fail."""

    def note_answer(self, path: Path) -> None:
        super().note_answer(path)
        self._observed[path].failing_since_s = None


class ReturnsAtOnce(HalfAliveWatch):
    """The first moment in which all paths work brings the hosts back."""

    @property
    def return_wait_s(self) -> float:
        return 0.0


class WaitsAsLongAgain(HalfAliveWatch):
    """A path that comes and goes moves the hosts each time."""

    @property
    def return_wait_s(self) -> float:
        return 3 * self._after_s


class BelievesOldAnswers(PathProofs):
    """An answer that came before the failure is a proof."""

    def proofs(self, states: PathStates) -> tuple[PathProof, ...]:
        return tuple(
            sorted(
                proof
                for proof in self._read_at_s
                if proof.path in states
                and states[proof.path].answered_s is not None
            )
        )


class AdoptsThoughSick(PresenceWatch):
    """An agent that fails on a path adopts although others do not."""

    def update(self, view: View, now_s: float) -> None:
        super().update(_AllFit(view.members), now_s)


class _AllFit(View):
    def fit(self) -> Any:
        return self.up()


class WantsItsHome(Assignment):
    """A half-alive agent has others leave its home host alone."""

    def wants_home(self, now_s: float) -> bool:
        return True


class DeletesAllocationsOnce(Manager):
    """The delete of an allocation that has no answer is not repeated."""

    def __init__(self, worker: Any) -> None:
        super().__init__(worker)
        del self.reportclient.delete_allocation_for_instance


def _with_watch(kind: type[HalfAliveWatch]) -> Makeup:
    def make(**arguments: Any) -> Agent:
        agent = Agent(**arguments)
        timing = arguments['timing']
        boot = arguments['membership'].boot
        agent._half_alive = kind(boot, timing.half_alive_s)
        return agent

    return with_parts('failing paths', agent=make)


def _with_old_answers(**arguments: Any) -> Agent:
    agent = Agent(**arguments)
    agent._path_proofs = BelievesOldAnswers(arguments['membership'].boot)
    return agent


def _with_sick_adopters(**arguments: Any) -> Agent:
    agent = Agent(**arguments)
    agent.assignment._presence_watch = AdoptsThoughSick(
        arguments['membership'].boot, arguments['timing'].adopt_step_s
    )
    return agent


def makeups(
    with_assignment: Callable[[type[Assignment]], Any],
) -> Mapping[str, Makeup]:
    """Return the makeup of each defect."""
    return {
        'half alive after a moment': _with_watch(MovesAfterAMoment),
        'half alive at the first proof': _with_watch(MovesAtTheFirstProof),
        'half alive without a proof': _with_watch(NeedsNoProof),
        'half alive alone': _with_watch(LetsGoAlone),
        'one answer ends a failure': with_parts(
            'failing paths', 'resets', path_health=ForgetsFailures
        ),
        'half alive for a moment': _with_watch(ReturnsAtOnce),
        'half alive again and again': _with_watch(WaitsAsLongAgain),
        'old answer counts as a proof': with_parts(
            'failing paths', agent=_with_old_answers
        ),
        'sick agent adopts': with_parts(
            'failing paths', 'kill', agent=_with_sick_adopters
        ),
        'half-alive agent keeps its home': with_parts(
            'failing paths', agent=with_assignment(WantsItsHome)
        ),
        'allocation deleted once': with_parts(
            'failing paths', manager=DeletesAllocationsOnce
        ),
    }


# Name of a defect -> a seed that detects it.
SEEDS: dict[str, int] = {
    'half alive after a moment': 5,
    'half alive at the first proof': 60067,
    'half alive without a proof': 2,
    'half alive alone': 1,
    'one answer ends a failure': 7,
    'half alive for a moment': 7,
    'half alive again and again': 305,
    'old answer counts as a proof': 60019,
    'sick agent adopts': 263,
    'half-alive agent keeps its home': 2,
    'allocation deleted once': 18,
}

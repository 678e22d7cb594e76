# SPDX-License-Identifier: Apache-2.0
"""Paths: whether a controller reaches each service that its workers need.

The lease says only that an agent reaches the coordination backend. Workers
observe their paths to all other services and report them to their agent, which
combines the reports and publishes which paths fail. Pure.
"""

import dataclasses
from collections.abc import Iterable, Mapping
from typing import NewType

from hashring.ring import Host

# The name of a service, as it is shown to operators: 'RabbitMQ'.
Path = NewType('Path', str)

# A path that fails for a moment is not published, because each change of the
# record costs the backend a write.
_PUBLISHED_AFTER_S = 5.0
# A new worker has started, and has sent a request on each path that it uses,
# so many seconds after the former one has ended.
_KEPT_S = 30.0


@dataclasses.dataclass(frozen=True, slots=True)
class PathState:
    """The state of one path, as a worker has observed it."""

    failing_since_s: float | None = None
    """Since when no request had an answer (CLOCK_BOOTTIME); None: it works."""
    why: str = ''
    """What the last failed request ended with; for operators."""
    answered_s: float | None = None
    """When a request had its last answer (CLOCK_BOOTTIME); None: never."""
    failed_s: float | None = None
    """When the last request was sent that had no answer (CLOCK_BOOTTIME)."""


# A path that is missing has not been observed yet.
PathStates = Mapping[Path, PathState]


@dataclasses.dataclass(frozen=True, slots=True)
class _Failure:
    """A failure of one path, of whichever workers have met it."""

    state: PathState
    began_s: float
    """When it began for the first of them."""
    reported_s: float
    """When a worker that has met it was last there."""


class ObservedPaths:
    """The newest states of paths that each worker of an agent has reported.

    A failure outlives its worker until another worker has used the path.
    Otherwise other agents would take this agent for a well one meanwhile, and
    would withdraw their proofs, so that it would be half alive later.

    What works outlives its worker, too, but only for other agents to read.
    Otherwise agents on which a path fails would know of nobody that is better
    off while this agent's workers are exchanged, and would adopt hosts.
    Unless the workers keep dying: then the agent is no better than others.
    """

    def __init__(self) -> None:
        self._states: dict[tuple[Host, int], PathStates] = {}
        self._failures: dict[Path, _Failure] = {}
        # Path -> when a worker for which it works was last there.
        self._worked_s: dict[Path, float] = {}
        # The paths that work for a worker that is there.
        self._working: tuple[Path, ...] = ()

    def update(self, host: Host, tenure: int, states: PathStates) -> None:
        """Replace what the worker of a host has reported."""
        self._states[host, tenure] = states

    def combined(
        self, tenures: Mapping[Host, int], now_s: float
    ) -> dict[Path, PathState]:
        """Return the paths of the controller.

        :param tenures: the hosts that have a worker now, with its tenure; what
            others have reported is forgotten, except for failures
        """
        self._states = {
            worker: states
            for worker, states in self._states.items()
            if tenures.get(worker[0]) == worker[1]
        }
        states = combine(self._states.values())
        self._update_failures(states, now_s)
        self._update_working(states, now_s)
        return {p: f.state for p, f in self._failures.items()} | states

    def _update_failures(self, states: PathStates, now_s: float) -> None:
        """Note the failures that workers report; keep those of ended ones."""
        former = self._failures
        kept = {
            path: failure
            for path, failure in former.items()
            if path not in states and now_s - failure.reported_s < _KEPT_S
        }
        met = {
            path: _note_failure(former.get(path), states[path], now_s)
            for path in failing(states, now_s)
        }
        self._failures = kept | met

    def _update_working(self, states: PathStates, now_s: float) -> None:
        """Note the paths that work; keep those of workers that have ended."""
        kept = {
            path: worked_s
            for path, worked_s in self._worked_s.items()
            if path not in states and now_s - worked_s < _KEPT_S
        }
        self._working = working(states)
        self._worked_s = kept | dict.fromkeys(self._working, now_s)

    def worked(self, *, lasting: bool) -> tuple[Path, ...]:
        """Return the working paths that others are to know, sorted.

        :param lasting: whether also those of workers that have just ended
        """
        return tuple(sorted(self._worked_s)) if lasting else self._working

    def published(self, now_s: float) -> tuple[Path, ...]:
        """Return the failing paths that others are to know, sorted."""
        return tuple(
            sorted(
                path
                for path, failure in self._failures.items()
                if now_s - failure.began_s >= _PUBLISHED_AFTER_S
            )
        )


def _note_failure(
    former: _Failure | None, state: PathState, now_s: float
) -> _Failure:
    """Return the failure that a state shows; it may have begun earlier.

    Another worker may have met it before. If the path had an answer between
    the two, it has failed anew.
    """
    since_s = began_s = state.failing_since_s or 0.0
    if former is not None and (
        since_s == former.state.failing_since_s
        or (state.answered_s or 0.0) <= former.began_s
    ):
        began_s = min(since_s, former.began_s)
    return _Failure(state, began_s, now_s)


def combine(reports: Iterable[PathStates]) -> dict[Path, PathState]:
    """Return the paths of a controller, from the reports of its workers.

    A path works if it works for any worker: the connection of one worker can
    be broken alone. But then it has no answer that could prove to another
    controller that it works: most requests may be lost, and the worker that
    sends few of them may have been lucky. A path that fails for all has failed
    since it last worked for one of them.
    """
    combined: dict[Path, PathState] = {}
    failing_for_one: set[Path] = set()
    for states in reports:
        for path, state in states.items():
            combined[path] = _better(combined.get(path, state), state)
            if state.failing_since_s is not None:
                failing_for_one.add(path)
    for path in failing_for_one & {*working(combined)}:
        combined[path] = dataclasses.replace(combined[path], answered_s=None)
    return combined


def _better(one: PathState, other: PathState) -> PathState:
    return max(one, other, key=_rank)


def _rank(state: PathState) -> tuple[bool, float, float]:
    since_s = state.failing_since_s
    return since_s is None, since_s or 0.0, state.answered_s or 0.0


def working(states: PathStates) -> tuple[Path, ...]:
    """Return the paths that work, sorted."""
    return tuple(
        sorted(p for p, s in states.items() if s.failing_since_s is None)
    )


def failing(
    states: PathStates, now_s: float, after_s: float = 0.0
) -> tuple[Path, ...]:
    """Return the paths that have failed for so many seconds, sorted."""
    return tuple(
        sorted(
            path
            for path, state in states.items()
            if state.failing_since_s is not None
            and now_s - state.failing_since_s >= after_s
        )
    )

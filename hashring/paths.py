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


class ObservedPaths:
    """The newest states of paths that each worker of an agent has reported."""

    def __init__(self) -> None:
        self._states: dict[tuple[Host, int], PathStates] = {}

    def update(self, host: Host, tenure: int, states: PathStates) -> None:
        """Replace what the worker of a host has reported."""
        self._states[host, tenure] = states

    def combined(self, tenures: Mapping[Host, int]) -> dict[Path, PathState]:
        """Return the paths of the controller.

        :param tenures: the hosts that have a worker now, with its tenure; what
            others have reported is forgotten
        """
        self._states = {
            worker: states
            for worker, states in self._states.items()
            if tenures.get(worker[0]) == worker[1]
        }
        return combine(self._states.values())


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

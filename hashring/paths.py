# SPDX-License-Identifier: Apache-2.0
"""Paths: whether a controller reaches each service that its workers need.

The lease says only that an agent reaches the coordination backend. Workers
observe their paths to all other services and report them to their agent, which
combines the reports and publishes which paths fail. Pure.
"""

import dataclasses
from collections.abc import Iterable, Mapping
from typing import NewType

# The name of a service, as it is shown to operators: 'RabbitMQ'.
Path = NewType('Path', str)


@dataclasses.dataclass(frozen=True, slots=True)
class PathState:
    """The state of one path, as a worker has observed it."""

    failing_since_s: float | None = None
    """Since when no request had an answer (CLOCK_BOOTTIME); None: it works."""
    why: str = ''
    """What the last failed request ended with; for operators."""
    is_vital: bool = True
    """Without this path, no request of a user can be served."""


# A path that is missing has not been observed yet.
PathStates = Mapping[Path, PathState]


def combine(reports: Iterable[PathStates]) -> dict[Path, PathState]:
    """Return the paths of a controller, from the reports of its workers.

    A path works if it works for any worker: the connection of one worker can
    be broken alone. A path that fails for all has failed since it last worked
    for one of them.
    """
    combined: dict[Path, PathState] = {}
    for states in reports:
        for path, state in states.items():
            combined[path] = _better(combined.get(path, state), state)
    return combined


def _better(one: PathState, other: PathState) -> PathState:
    if one.failing_since_s is None or other.failing_since_s is None:
        return one if one.failing_since_s is None else other
    return max(one, other, key=lambda state: state.failing_since_s or 0.0)


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

# SPDX-License-Identifier: Apache-2.0
"""Run a list of steps; if one fails, undo the steps so far in reverse order.

The build of a server uses it. The failed step is undone too, because it may
have done half of its work. Undoing stops at the first step that cannot be
undone: the node then still carries the server's uuid, so the next delete of
the server finds the node and removes the rest.
"""

import dataclasses
from collections.abc import Callable, Iterable

from oslo_log import log as logging

LOG = logging.getLogger(__name__)


def _do_nothing() -> None:
    """Undo a step that changes nothing."""


@dataclasses.dataclass(frozen=True, slots=True)
class UndoableStep:
    """One step, and the function that undoes it.

    :param name: for the log, after "Could not undo: "
    """

    name: str
    do: Callable[[], None]
    undo: Callable[[], None] = _do_nothing


def run_or_undo(steps: Iterable[UndoableStep]) -> None:
    """Run all steps in order; after an error undo the steps that have begun.

    :raises Exception: the error of the failed step, after the undoing
    """
    begun: list[UndoableStep] = []
    try:
        for step in steps:
            begun.append(step)
            step.do()
    except Exception:
        _undo_all(begun)
        raise


def _undo_all(begun: list[UndoableStep]) -> None:
    for step in reversed(begun):
        try:
            step.undo()
        except Exception:
            LOG.exception('Could not undo: %(what)s', {'what': step.name})
            return

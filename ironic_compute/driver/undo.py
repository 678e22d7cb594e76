# SPDX-License-Identifier: Apache-2.0
"""Steps that are undone in reverse when one of them fails.

The step that failed is undone too, because it may have done half of its
work. Undoing ends at the first step that cannot be undone: what is left is
then still marked as the server's own, and whoever destroys the server finds
it.
"""

import dataclasses
from collections.abc import Callable, Iterable

from oslo_log import log as logging

LOG = logging.getLogger(__name__)


def _nothing() -> None:
    """Undo a step that changes nothing."""


@dataclasses.dataclass(frozen=True, slots=True)
class Step:
    """One thing to do, and how it is undone.

    :param what: for the log, after "Could not undo: "
    """

    what: str
    do: Callable[[], None]
    undo: Callable[[], None] = _nothing


def run(steps: Iterable[Step]) -> None:
    """Do all steps, or none."""
    begun: list[Step] = []
    try:
        for step in steps:
            begun.append(step)
            step.do()
    except Exception:
        _undo(begun)
        raise


def _undo(begun: list[Step]) -> None:
    for step in reversed(begun):
        try:
            step.undo()
        except Exception:
            LOG.exception('Could not undo: %(what)s', {'what': step.what})
            return

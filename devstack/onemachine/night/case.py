# SPDX-License-Identifier: Apache-2.0
"""What a case of the night has: its message, its cause and its cure."""

import dataclasses
from collections.abc import Callable, Mapping

from onemachine.night.pool import Pool

Kept = Mapping[str, str]
"""What a case has chosen, for its message and for its end."""


@dataclasses.dataclass(frozen=True, slots=True)
class Case:
    """One way to break the pool.

    :param message: the complaint of a user or of an alert, with fields that
        ``begin`` fills in; it has the symptom and never the cause
    :param begin: breaks the pool, and returns what it has chosen
    :param shows: whether the symptom of the message can be seen
    :param undo: takes back what ``begin`` did; the operator may have done so
        already, or something else
    """

    message: str
    cause: str
    cure: str
    begin: Callable[[Pool], Kept]
    shows: Callable[[Pool, Kept], bool]
    undo: Callable[[Pool, Kept], None]


def undo_nothing(pool: Pool, kept: Kept) -> None:
    """Leave all to :meth:`Pool.restore`."""

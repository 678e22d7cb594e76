# SPDX-License-Identifier: Apache-2.0
"""Probation: how long the backend must answer before a lapsed lease returns.

If most connections to the backend are reset, one heartbeat in ten succeeds. An
agent that used each of them would keep its locks, and lose its lease again and
again: its hosts would be served for seconds at a time, and no other agent
could adopt them. Therefore an agent whose lease has lapsed because of failed
requests renews nothing until the backend has answered for some seconds. Its
locks end meanwhile. Pure.
"""

import dataclasses
from typing import Self

# Less than the rest of a term: locks that have survived the restart of the
# backend are renewed in time.
STEADY_S = 6.0
# Once an answer was followed by a failure.
STEADY_AFTER_RELAPSE_S = 18.0


@dataclasses.dataclass(frozen=True, slots=True)
class Probation:
    """What the backend has answered since the lease has lapsed.

    :param answers_since_s: since when all requests have been answered; None:
        the last one was not
    :param has_relapsed: whether a request failed after another was answered
    """

    answers_since_s: float | None = None
    has_relapsed: bool = False

    def after_answer(self, now_s: float) -> Self:
        """Return the probation after a request that was answered."""
        if self.answers_since_s is not None:
            return self
        return dataclasses.replace(self, answers_since_s=now_s)

    def after_failure(self) -> Self:
        """Return the probation after a request that failed."""
        relapses = self.answers_since_s is not None
        return dataclasses.replace(
            self,
            answers_since_s=None,
            has_relapsed=self.has_relapsed or relapses,
        )

    def has_ended(self, now_s: float) -> bool:
        """Return whether the backend has answered for long enough."""
        if self.answers_since_s is None:
            return False
        wait_s = STEADY_AFTER_RELAPSE_S if self.has_relapsed else STEADY_S
        return now_s - self.answers_since_s >= wait_s

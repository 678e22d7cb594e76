# SPDX-License-Identifier: Apache-2.0
"""The life of one host in one agent, as a table.

The manual's diagram is made from `TRANSITIONS`. A pair that is not in it
is a mistake of ours and raises, with the host's recent story.
"""

import dataclasses
import enum
from collections.abc import Mapping

from hashring import backoff, errors
from hashring.events import Why
from hashring.ring import Host

STORY_LENGTH_COUNT = 12

# A worker that dies again and again is started again after a pause that
# doubles; from the third death on the peers may take its host meanwhile.
HOLD_OFF_S = 1.0
HOLD_OFF_YIELDING_S = 15.0
HOLD_OFF_MAX_S = 300.0
DEATHS_TO_YIELD_COUNT = 3
# A tenure this long makes earlier deaths forgotten.
HEALTHY_AFTER_S = 120.0


class Phase(enum.Enum):
    """Where this agent stands with a host."""

    IDLE = 'idle'
    """Nothing of ours: no lock, no worker."""
    TRYING = 'trying'
    """The lock was asked for; no answer yet."""
    SERVING = 'serving'
    """The lock is ours and its worker runs: a tenure."""
    STOPPING = 'stopping'
    """The worker drains; the lock is still ours."""
    PAUSED = 'paused'
    """The lease ran out: the gate is shut, the lock may be lost."""
    PROVING = 'proving'
    """The lease is back; the driver was asked whether the lock survived."""
    RELEASING = 'releasing'
    """The worker is dead; the lock is being given back."""


class Signal(enum.Enum):
    """What can happen to a host."""

    WANTED = 'wanted'
    """We should serve it."""
    GRANTED = 'granted'
    """The lock is ours, in time."""
    GRANTED_LATE = 'granted late'
    """The lock is ours, but of no use any more."""
    DENIED = 'denied'
    """Somebody else has the lock, or the backend did not answer."""
    UNWANTED = 'unwanted'
    """We should not serve it any more."""
    EXITED = 'exited'
    """Its worker ended."""
    LAPSED = 'lapsed'
    """The lease ran out, or heartbeats were interrupted."""
    RENEWED = 'renewed'
    """Heartbeats count again."""
    PROVEN = 'proven'
    """The very same acquisition of the lock survived."""
    LOST = 'lost'
    """The lock is gone, or cannot be proven to be the same."""
    OVERDUE = 'overdue'
    """Its worker took too long to end."""
    RELEASED = 'released'
    """The lock is not ours any more, for certain."""


TRANSITIONS: Mapping[tuple[Phase, Signal], Phase] = {
    (Phase.IDLE, Signal.WANTED): Phase.TRYING,
    (Phase.TRYING, Signal.GRANTED): Phase.SERVING,
    (Phase.TRYING, Signal.GRANTED_LATE): Phase.RELEASING,
    (Phase.TRYING, Signal.DENIED): Phase.IDLE,
    (Phase.SERVING, Signal.UNWANTED): Phase.STOPPING,
    (Phase.SERVING, Signal.EXITED): Phase.RELEASING,
    (Phase.SERVING, Signal.LAPSED): Phase.PAUSED,
    (Phase.SERVING, Signal.LOST): Phase.RELEASING,
    (Phase.STOPPING, Signal.EXITED): Phase.RELEASING,
    (Phase.STOPPING, Signal.LAPSED): Phase.RELEASING,
    (Phase.STOPPING, Signal.LOST): Phase.RELEASING,
    (Phase.STOPPING, Signal.OVERDUE): Phase.RELEASING,
    (Phase.PAUSED, Signal.RENEWED): Phase.PROVING,
    (Phase.PAUSED, Signal.UNWANTED): Phase.RELEASING,
    (Phase.PAUSED, Signal.EXITED): Phase.RELEASING,
    (Phase.PROVING, Signal.PROVEN): Phase.SERVING,
    (Phase.PROVING, Signal.LOST): Phase.RELEASING,
    (Phase.PROVING, Signal.EXITED): Phase.RELEASING,
    (Phase.PROVING, Signal.LAPSED): Phase.PAUSED,
    (Phase.RELEASING, Signal.RELEASED): Phase.IDLE,
}

WITH_WORKER = frozenset(
    {Phase.SERVING, Phase.STOPPING, Phase.PAUSED, Phase.PROVING}
)
CERTAIN = frozenset({Phase.SERVING, Phase.STOPPING})
UNCERTAIN = frozenset({Phase.PAUSED, Phase.PROVING})


@dataclasses.dataclass(slots=True)
class Hold:
    """What this agent remembers of one host; changed by `Assignment` alone."""

    host: Host
    phase: Phase = Phase.IDLE
    tenure: int = 0  # The ticket of the lock it is served under.
    ticket: int = 0  # The last request made; older answers are not ours.
    epoch: int = 0  # The lease's epoch in which the lock was last certain.
    granted_at_s: float = 0.0
    retry_at_s: float = 0.0
    due_s: float = 0.0  # When the patience of this phase ends; 0: never.
    orphan_for_s: float = 0.0
    ends_why: Why = Why.EXITED  # Why this tenure ends.
    deaths_count: int = 0
    story: tuple[str, ...] = ()

    def move(self, signal: Signal) -> None:
        """Go to the next phase.

        :raises InvalidTransition: the pair is not in the table.
        """
        after = TRANSITIONS.get((self.phase, signal))
        if after is None:
            raise errors.InvalidTransition(
                f'{self.host}: {signal.value} while {self.phase.value} '
                f'after {", ".join(self.story) or "nothing"}'
            )
        step = f'{signal.value}->{after.value}'
        self.story = (*self.story, step)[-STORY_LENGTH_COUNT:]
        self.phase = after

    def died(self, now_s: float) -> None:
        """Its worker ended by itself: wait before the next one."""
        if now_s - self.granted_at_s > HEALTHY_AFTER_S:
            self.deaths_count = 0
        self.deaths_count += 1
        self.retry_at_s = now_s + hold_off_s(self.deaths_count)

    @property
    def yields(self) -> bool:
        """Its worker keeps dying here: somebody else may try."""
        return self.deaths_count >= DEATHS_TO_YIELD_COUNT


def hold_off_s(deaths_count: int) -> float:
    """How long a host waits after the n-th death of its worker in a row."""
    over_count = deaths_count - DEATHS_TO_YIELD_COUNT
    if over_count < 0:
        return backoff.wait_s(HOLD_OFF_S, deaths_count - 1, HOLD_OFF_MAX_S)
    return backoff.wait_s(HOLD_OFF_YIELDING_S, over_count, HOLD_OFF_MAX_S)

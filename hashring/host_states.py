# SPDX-License-Identifier: Apache-2.0
"""Host states: the phases of one host in one agent, and their transitions.

`hashring.assignment` has one `Hold` for each host that it ever tried to serve.
`TRANSITIONS` is the whole state machine; a pair of phase and signal that is
not in it is a bug and raises, with the recent transitions of the host. Pure.
"""

import dataclasses
import enum
from collections.abc import Mapping

from hashring import backoff, errors
from hashring.events import Why
from hashring.ring import Host

HISTORY_LENGTH_COUNT = 12

# Seconds before a worker that died is started again; they double with each
# consecutive death. From the third death on other agents may adopt the host
# during this wait.
HOLD_OFF_S = 1.0
HOLD_OFF_YIELDING_S = 15.0
HOLD_OFF_MAX_S = 300.0
DEATHS_TO_YIELD_COUNT = 3
# When a worker has served for so many seconds, earlier deaths of the worker do
# not count any more.
HEALTHY_AFTER_S = 120.0


class Phase(enum.Enum):
    """The progress of one host in this agent: its lock and its worker."""

    IDLE = 'idle'
    """This agent has neither the lock nor a worker."""
    TRYING = 'trying'
    """The lock was requested; there is no result yet."""
    SERVING = 'serving'
    """This agent has the lock and a worker: a tenure."""
    STOPPING = 'stopping'
    """The worker drains; this agent still has the lock."""
    PAUSED = 'paused'
    """The lease has ended: the gate is shut and the lock may be lost."""
    PROVING = 'proving'
    """The lease is back; a check whether the lock was kept is under way."""
    RELEASING = 'releasing'
    """The worker has ended; the lock is being released."""


class Signal(enum.Enum):
    """An occurrence that moves a host from one phase to another."""

    WANTED = 'wanted'
    """This agent should serve the host."""
    GRANTED = 'granted'
    """The lock was granted in time."""
    GRANTED_LATE = 'granted late'
    """The lock was granted too late to be used."""
    REFUSED = 'refused'
    """Another agent has the lock, or the backend did not answer."""
    UNWANTED = 'unwanted'
    """This agent should no longer serve the host."""
    EXITED = 'exited'
    """The worker of the host ended."""
    LAPSED = 'lapsed'
    """The lease ended, or the run of heartbeats was interrupted."""
    RENEWED = 'renewed'
    """The lease is held again."""
    PROVEN = 'proven'
    """The lock was kept during the interruption."""
    LOST = 'lost'
    """The lock is lost, or cannot be proven to have been kept."""
    OVERDUE = 'overdue'
    """The worker did not end within `drain_timeout_s`."""
    RELEASED = 'released'
    """The lock is certainly released."""


TRANSITIONS: Mapping[tuple[Phase, Signal], Phase] = {
    (Phase.IDLE, Signal.WANTED): Phase.TRYING,
    (Phase.TRYING, Signal.GRANTED): Phase.SERVING,
    (Phase.TRYING, Signal.GRANTED_LATE): Phase.RELEASING,
    (Phase.TRYING, Signal.REFUSED): Phase.IDLE,
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

# Tuples, because they are searched in each turn of the main loop: a set would
# call the hash function of `Enum`, which is slow, each time.
WITHOUT_LOCK = (Phase.IDLE, Phase.TRYING)
WITH_WORKER = (Phase.SERVING, Phase.STOPPING, Phase.PAUSED, Phase.PROVING)
CERTAIN = (Phase.SERVING, Phase.STOPPING)
UNCERTAIN = (Phase.PAUSED, Phase.PROVING)


@dataclasses.dataclass(frozen=True, slots=True)
class HostState:
    """The part of a `Hold` that other threads may read; immutable."""

    host: Host
    phase: Phase
    serves_since_s: float | None = None
    """When its worker began to serve (CLOCK_BOOTTIME); None: not yet."""
    restarts_at_s: float = 0.0
    """When a worker that died is started again (CLOCK_BOOTTIME)."""


@dataclasses.dataclass(slots=True)
class Hold:
    """The state of one host in this agent; only `Assignment` changes it."""

    host: Host
    phase: Phase = Phase.IDLE
    tenure: int = 0
    """The ticket of the request by which the present lock was granted."""
    ticket: int = 0
    """The ticket of the newest lock request; results of older requests are
    ignored."""
    epoch: int = 0
    """The number of the unbroken lease in which the lock was last certain."""
    granted_at_s: float = 0.0
    serves_since_s: float | None = None
    """When the worker of this tenure began to serve; None: not yet."""
    retry_at_s: float = 0.0
    hold_off_until_s: float = 0.0
    """Until when the worker is not started again because it died."""
    due_s: float = 0.0
    """When this phase times out (CLOCK_BOOTTIME); 0.0: never."""
    orphan_for_s: float = 0.0
    ends_why: Why = Why.EXITED
    """The reason for the end of this tenure."""
    deaths_count: int = 0
    history: tuple[str, ...] = ()

    def move(self, signal: Signal) -> None:
        """Go to the phase to which the table of transitions leads.

        :raises InvalidTransition: the table has no such transition.
        """
        after = TRANSITIONS.get((self.phase, signal))
        if after is None:
            raise errors.InvalidTransition(
                f'{self.host}: {signal.value} while {self.phase.value} '
                f'after {", ".join(self.history) or "nothing"}'
            )
        step = f'{signal.value}->{after.value}'
        self.history = (*self.history, step)[-HISTORY_LENGTH_COUNT:]
        self.phase = after

    def state(self) -> HostState:
        """Return what other threads may read."""
        return HostState(
            self.host, self.phase, self.serves_since_s, self.hold_off_until_s
        )

    def is_healthy(self, now_s: float) -> bool:
        """Return whether the worker has served long enough."""
        since_s = self.serves_since_s
        return since_s is not None and now_s - since_s > HEALTHY_AFTER_S

    def forgive(self, now_s: float) -> None:
        """Forget earlier deaths if the worker has served long enough."""
        if self.is_healthy(now_s):
            self.deaths_count = 0

    def record_death(self, now_s: float) -> None:
        """Count a worker that ended without a stop request; delay the next."""
        self.forgive(now_s)
        self.deaths_count += 1
        self.hold_off_until_s = now_s + hold_off_s(self.deaths_count)
        self.retry_at_s = self.hold_off_until_s

    @property
    def keeps_dying(self) -> bool:
        """Whether the worker keeps dying, so others may adopt the host."""
        return self.deaths_count >= DEATHS_TO_YIELD_COUNT


def hold_off_s(deaths_count: int) -> float:
    """Return the seconds to wait after the n-th consecutive death."""
    over_count = deaths_count - DEATHS_TO_YIELD_COUNT
    if over_count < 0:
        return backoff.wait_s(HOLD_OFF_S, deaths_count - 1, HOLD_OFF_MAX_S)
    return backoff.wait_s(HOLD_OFF_YIELDING_S, over_count, HOLD_OFF_MAX_S)

# SPDX-License-Identifier: Apache-2.0
"""Time, as an argument.

The only module of the package that imports `time`. Durations and
deadlines are counted on CLOCK_BOOTTIME: it never jumps, and it counts the
seconds in which the machine was suspended, so that a lease cannot outlive
a closed lid. All processes of one machine share it, so an agent's deadline
means the same to its workers; no two machines share it, so no instant is
ever sent to another member.
"""

import time
from typing import Protocol


class Clock(Protocol):
    """What the rest of the code knows of time."""

    def now_s(self) -> float:
        """Seconds since this machine started, suspended time included."""
        ...

    def wall_s(self) -> float:
        """Seconds since 1970: for people and records, never for leases."""
        ...

    def sleep(self, seconds: float) -> None:
        """Wait; only for threads that nobody needs to wake."""
        ...


class SystemClock:
    """The machine's own clock."""

    def now_s(self) -> float:
        return time.clock_gettime(time.CLOCK_BOOTTIME)

    def wall_s(self) -> float:
        return time.time()

    def sleep(self, seconds: float) -> None:
        time.sleep(seconds)


class ManualClock:
    """A clock that moves only when told: for tests and simulations.

    :param start_s: where both scales begin, in seconds.
    :param rate: how fast it runs against `advance`; 1.01 gains 1 %.
    """

    def __init__(self, start_s: float = 1000.0, rate: float = 1.0) -> None:
        self._now_s = start_s
        self._rate = rate

    def now_s(self) -> float:
        return self._now_s

    def wall_s(self) -> float:
        return 1_700_000_000.0 + self._now_s

    def sleep(self, seconds: float) -> None:
        self.advance(seconds)

    def advance(self, seconds: float) -> None:
        """Let `seconds` of the world's time pass."""
        assert seconds >= 0  # noqa: S101 (our own mistake)
        self._now_s += seconds * self._rate

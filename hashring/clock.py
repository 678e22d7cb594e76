# SPDX-License-Identifier: Apache-2.0
"""The clock (CLOCK_BOOTTIME), passed as an argument so that tests can move it.

No other module of hashring imports `time`. Durations and deadlines are
measured on CLOCK_BOOTTIME, which never jumps and which also counts the time
for which the machine was suspended; therefore a lease ends during a
suspension, too. All processes of one machine share this clock, so an agent
can pass a deadline to its workers. Machines do not share it, so no instant
is ever sent to another machine.
"""

import time
from typing import Protocol


class Clock(Protocol):
    """The time as all other modules read it; any thread may use it."""

    def now_s(self) -> float:
        """Return the seconds since boot, including suspended time."""

    def wall_s(self) -> float:
        """Return the seconds since 1970; for records, never for leases."""

    def sleep(self, seconds: float) -> None:
        """Block for so many seconds; nothing can end the wait earlier."""


class SystemClock:
    """The clock of the machine."""

    def now_s(self) -> float:
        return time.clock_gettime(time.CLOCK_BOOTTIME)

    def wall_s(self) -> float:
        return time.time()

    def sleep(self, seconds: float) -> None:
        time.sleep(seconds)

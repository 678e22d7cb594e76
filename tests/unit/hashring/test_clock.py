# SPDX-License-Identifier: Apache-2.0
"""The system clock and the manual clock."""

import time

from hashring.clock import SystemClock
from tests.fakes.clock import ManualClock


def test_system_clock_is_the_boot_time() -> None:
    """The system clock reads CLOCK_BOOTTIME, which processes share."""
    before_s = time.clock_gettime(time.CLOCK_BOOTTIME)
    now_s = SystemClock().now_s()
    assert before_s <= now_s <= time.clock_gettime(time.CLOCK_BOOTTIME)


def test_manual_clock_moves_only_when_advanced() -> None:
    """The manual clock gains by its rate and never runs by itself."""
    clock = ManualClock(start_s=100.0, rate=1.5)
    wall_s = clock.wall_s()
    assert clock.now_s() == clock.now_s() == 100.0
    clock.advance(10.0)
    clock.sleep(2.0)
    assert clock.now_s() == 118.0
    assert clock.wall_s() - wall_s == 18.0

# SPDX-License-Identifier: Apache-2.0
"""A clock for tests and simulations, which only the test moves."""


class ManualClock:
    """A `hashring.clock.Clock` that only `advance` moves.

    :param start_s: the first value of `now_s`, in seconds.
    :param rate: the speed of this clock; at 1.01 it gains 1 %.
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
        """Let so many seconds of real time pass."""
        assert seconds >= 0
        self._now_s += seconds * self._rate

# SPDX-License-Identifier: Apache-2.0
"""What goes wrong, and when: all of it from the seed.

Each seed arms some faults and leaves others out, so that rare ones meet in
some seeds instead of in none. Faults of machines come by themselves, at
random instants; faults of requests strike one request, before it is sent,
on its way, or after it was carried out. In the calm nothing goes wrong.
"""

import random
from collections.abc import Callable

from tests.simulation.kernel import Kernel

# Fault of a machine or a service -> per second, in a world that arms it.
RATES = {
    'kill': (0.005, 0.02, 0.05),
    'crash': (0.005, 0.02, 0.05),
    'freeze': (0.005, 0.02, 0.05),
    'freeze agent': (0.005, 0.02, 0.05),
    'freeze worker': (0.005, 0.02, 0.05),
    'cut': (0.005, 0.02, 0.05),
    'stop': (0.005, 0.02, 0.05),
    'outage': (0.004, 0.01, 0.02),
    'ironic ill': (0.01, 0.02, 0.05),
    'disable': (0.005, 0.02, 0.05),
    'half evict': (0.005, 0.02),
    'node leaves': (0.005, 0.02),
    'node comes': (0.005, 0.02),
}
# What users do, per second, always.
USE = {'boot': (0.05, 0.1, 0.3), 'delete': (0.05, 0.1, 0.2)}
# What happens in any cloud: its chance, always.
HABITS = {'lag': (0.2, 0.4), 'boot meets push': (0.2, 0.5)}
# How likely a world arms each fault: some see few, and those for long.
SEVERITIES = (0.15, 0.4, 0.75)
# Fault of one request -> its chance.
CHANCES = {
    'slow': (0.01, 0.03, 0.1),
    'slow beat': (0.02, 0.1, 0.3),
    'lose': (0.005, 0.02, 0.08),
    'die': (0.002, 0.005, 0.01),
    'stick': (0.002, 0.005, 0.01),
    'no answer': (0.005, 0.02, 0.08),
    'late': (0.005, 0.02, 0.05),
    'short list': (0.02, 0.1, 0.3),
    'message lost': (0.02, 0.1, 0.3),
    'message twice': (0.02, 0.1, 0.3),
    'return meets cut': (0.3, 0.6),
    'deploy fails': (0.05, 0.2),
    'stuck': (0.003, 0.01, 0.02),
}


class Unreachable(Exception):
    """No answer; the request may have been carried out, now or later."""


class Faults:
    """The dice of one world."""

    def __init__(self, kernel: Kernel, rng: random.Random) -> None:
        self.calm = False
        self._kernel = kernel
        self._rng = rng
        self._severity = rng.choice(SEVERITIES)
        self._rates = {kind: self._arm(some) for kind, some in RATES.items()}
        self._rates |= {kind: rng.choice(some) for kind, some in USE.items()}
        self._chances = {
            kind: self._arm(some) for kind, some in CHANCES.items()
        }
        self._chances |= {
            kind: rng.choice(some) for kind, some in HABITS.items()
        }

    def _arm(self, strengths: tuple[float, ...]) -> float:
        if self._rng.random() >= self._severity:
            return 0.0
        return self._rng.choice(strengths)

    def plan(self, kind: str, strike: Callable[[], object]) -> None:
        """Let a fault of a machine come again and again."""
        rate = self._rates[kind]
        if rate:
            self._plan(rate, strike)

    def _plan(self, rate: float, strike: Callable[[], object]) -> None:
        def happen() -> None:
            if not self.calm:
                strike()
                self._plan(rate, strike)

        self._kernel.later(self._rng.expovariate(rate), happen)

    def strikes(self, kind: str) -> bool:
        """Whether this fault strikes the present request."""
        chance = self._chances[kind]
        return chance > 0 and not self.calm and self._rng.random() < chance

    def choose(self, *durations_s: float) -> float:
        """One of these durations, not to the second."""
        return self._rng.choice(durations_s) * self._rng.uniform(0.8, 1.2)

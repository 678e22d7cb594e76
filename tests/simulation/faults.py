# SPDX-License-Identifier: Apache-2.0
"""Faults: which ones a seed has, and when they occur.

Each seed has some of the faults and not others, so that rare faults occur
together in some seeds. Faults of machines occur at random times; faults of
requests occur before a request is sent, on its way, or after it was carried
out. During the calm no fault occurs.
"""

from collections.abc import Callable, Mapping

import oslo_messaging

from tests.simulation.kernel import Kernel

# Faults of processes and networks.
_PROCESS_FAULTS = (
    'kill',
    'crash',
    'freeze',
    'freeze agent',
    'freeze worker',
    'cut',
    'stop',
)
# Fault of a machine or a service -> its rates per second, in worlds with it.
RATES = {
    **dict.fromkeys(_PROCESS_FAULTS, (0.005, 0.02, 0.05)),
    'outage': (0.004, 0.01, 0.02),
    'broker cut': (0.01, 0.03, 0.1),
    'ironic ill': (0.01, 0.02, 0.05),
    'disable': (0.005, 0.02, 0.05),
    'half evict': (0.005, 0.02),
    'node leaves': (0.005, 0.02),
    'node comes': (0.005, 0.02),
    'node denied': (0.02, 0.1),
}
# Action of users and operators -> its rates per second.
USE = {
    'boot': (0.05, 0.1, 0.3),
    'delete': (0.05, 0.1, 0.2),
    'maintenance': (0.01, 0.05),
    # Of the lock service, in mixed worlds.
    'restart': (0.02, 0.05),
}
# Race that occurs in any cloud -> its chances, in every world.
HABITS = {'lag': (0.2, 0.4), 'boot meets push': (0.2, 0.5)}
# How likely a world has each fault.
SEVERITIES = (0.15, 0.4, 0.75)
# Fault of one request -> its chances, in worlds with it.
CHANCES = {
    'slow': (0.01, 0.03, 0.1),
    'slow beat': (0.02, 0.1, 0.3),
    'lose': (0.005, 0.02, 0.08),
    'die': (0.002, 0.005, 0.01),
    'stick': (0.002, 0.005, 0.01),
    'no answer': (0.005, 0.02, 0.08),
    'late': (0.005, 0.02, 0.05),
    'node given twice': (0.1, 0.3),
    'short list': (0.02, 0.1, 0.3),
    'message lost': (0.02, 0.1, 0.3),
    'message twice': (0.02, 0.1, 0.3),
    'return meets cut': (0.3, 0.6),
    'freeze at gate': (0.002, 0.005, 0.01),
    'freeze in removal': (0.3, 0.6),
    'freeze before create': (0.2, 0.5),
    'evict meets resume': (0.2, 0.5),
    'deploy fails': (0.05, 0.2),
    'stuck': (0.003, 0.01, 0.02),
}


class Unreachable(oslo_messaging.MessagingTimeout):  # type: ignore[misc]
    """No reply; the request may have been carried out, now or later."""


class Faults:
    """The faults of one world.

    :param certain: the kinds that occur, and as often as in any world
    :param quiet_s: how long users are at work before the first fault
    """

    def __init__(
        self,
        kernel: Kernel,
        certain: frozenset[str] = frozenset(),
        quiet_s: float = 0.0,
    ) -> None:
        self.calm = False
        self._quiet_s = quiet_s
        self._kernel = kernel
        self._certain = certain
        self._severity = kernel.stream('severity').choice(SEVERITIES)
        self._rates = self._arm(RATES) | self._arm(USE, always=True)
        self._chances = self._arm(CHANCES) | self._arm(HABITS, always=True)

    def _arm(
        self, kinds: Mapping[str, tuple[float, ...]], *, always: bool = False
    ) -> dict[str, float]:
        return {
            kind: self._strength(kind, some, always)
            for kind, some in kinds.items()
        }

    def _strength(
        self, kind: str, strengths: tuple[float, ...], always: bool
    ) -> float:
        rng = self._kernel.stream(f'strength of {kind}')
        if kind in self._certain:
            return strengths[-1]
        if not always and rng.random() >= self._severity:
            return 0.0
        return rng.choice(strengths)

    def disarm(self) -> None:
        """Let nothing fail; users act, and races of any cloud occur."""
        self._rates = {
            kind: rate if kind in USE else 0.0
            for kind, rate in self._rates.items()
        }
        self._chances = {
            kind: chance if kind in HABITS else 0.0
            for kind, chance in self._chances.items()
        }

    def plan(self, kind: str, cause: Callable[[], object]) -> None:
        """Let a fault of a machine occur repeatedly."""
        rate = self._rates[kind]
        if rate:
            self.repeat(kind, rate, cause)

    def repeat(
        self, kind: str, rate: float, cause: Callable[[], object]
    ) -> None:
        """Let something occur so often per second, until the calm."""

        def plan() -> None:
            self._kernel.later(self._kernel.rng.expovariate(rate), happen)

        def happen() -> None:
            if self.calm:
                return
            if not self._is_quiet(kind):
                cause()
            plan()

        with self._kernel.drawing(kind):
            plan()

    def occurs(self, kind: str) -> bool:
        """Return whether this fault occurs at the present request."""
        chance = self._chances[kind]
        if chance == 0.0 or self.calm or self._is_quiet(kind):
            return False
        return self._kernel.rng.random() < chance

    def _is_quiet(self, kind: str) -> bool:
        is_fault = kind in RATES or kind in CHANCES
        return is_fault and self._kernel.now_s < self._quiet_s

    def choose(self, *durations_s: float) -> float:
        """Return one of these durations, up to 20 % longer or shorter."""
        rng = self._kernel.rng
        return rng.choice(durations_s) * rng.uniform(0.8, 1.2)

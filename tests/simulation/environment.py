# SPDX-License-Identifier: Apache-2.0
"""The environment of a world: what its operators and machines do differently.

Each seed has some kinds of environment and not others. They are chosen by a
random generator of their own, so that a new kind changes the lives of those
seeds only that have it.
"""

import dataclasses
import random

from hashring.opts import Timing

# How likely a world has each kind.
CHANCE = 0.25
# The two values of each option in a mixed world.
TERMS_S = ((10.0, 40.0), (15.0, 40.0), (10.0, 25.0))
SETTLES_S = (2.0, 8.0)
# How often the lock service of a mixed world restarts.
RESTARTS_PER_S = 0.02


class Environment:
    """The environment of one seed."""

    def __init__(self, seed: int) -> None:
        self._rng = random.Random(f'environment {seed}')
        # An operator changes options of `[coordination]` while agents run.
        self.is_mixed = self._has()
        self._terms_s = self._rng.choice(TERMS_S)

    def _has(self) -> bool:
        return self._rng.random() < CHANCE

    def timing(self, usual: Timing) -> Timing:
        """Return the options of an agent that starts now."""
        if not self.is_mixed:
            return usual
        return dataclasses.replace(
            usual,
            lease_term_s=self._rng.choice(self._terms_s),
            settle_s=self._rng.choice(SETTLES_S),
        )

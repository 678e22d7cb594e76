# SPDX-License-Identifier: Apache-2.0
"""The environment of a world: what its operators and machines do differently.

Each seed has some kinds of environment and not others. Each kind has a random
stream of its own, so that a new kind changes the lives of those seeds only
that have it.
"""

import dataclasses
import enum
import random

from hashring.opts import Timing

# How likely a world has each kind; half of those with path faults have no
# other fault.
CHANCES = {
    'folder': 0.1,
    'mixed terms': 0.25,
    'wrong clocks': 0.25,
    'wrong folders': 0.25,
    'failing paths': 0.25,
    'only failing paths': 0.5,
    'resets': 0.25,
    'deletions': 0.25,
    'moves': 0.4,
    'pools': 0.5,
    'conductor clocks': 0.25,
    'shared reads': 0.5,
    'tasks': 0.5,
    'quiet start': 0.5,
    'shelving': 0.1,
    'slow thaws': 0.1,
}
# The two values of each option in a mixed world.
TERMS_S = ((10.0, 40.0), (15.0, 40.0), (10.0, 25.0))
SETTLES_S = (2.0, 8.0)
# How far a wrong wall clock is ahead, in seconds; two of them differ by less
# than five minutes.
AHEAD_S = (-140.0, -90.0, -45.0, 0.0, 45.0, 90.0, 140.0)
# How far the clocks of Ironic's conductors may be ahead, in seconds. NTP keeps
# them within a minute of each other.
CONDUCTORS_S = (-25.0, -9.0, -3.0, 0.0, 3.0, 9.0, 25.0)
CONDUCTORS_COUNT = 3
# In the first seconds of some worlds no machine and no request fails, so that
# there are servers when the storm begins.
QUIET_S = 60.0
# Seconds in which all threads of a machine run again after a freeze.
THAW_S = 2.0
# How often a wrong wall clock steps.
STEPS_PER_S = 0.02


class Folder(enum.Enum):
    """The state directory that an agent finds at its start."""

    OWN = 'own'
    LOST = 'lost'
    OLDER = 'older copy'
    OF_ANOTHER_MACHINE = 'of another machine'
    OF_ANOTHER_POOL = 'of another pool'


class Environment:
    """The environment of one seed.

    :param certain: kinds that it has in any case, unless others exclude them
    :ivar is_on_folder: agents share a folder instead of a coordination service
    :ivar is_mixed: an operator changes ``[coordination]`` while agents run
    :ivar has_wrong_clocks: nobody keeps the machines' wall clocks right
    :ivar has_wrong_folders: machines are installed anew or from others
    :ivar has_path_faults: machines lose their paths to services
    :ivar has_only_path_faults: nothing else fails, so that it is certain what
        must follow
    :ivar has_resets: these paths reset most connections, and nothing else
    :ivar has_deletions: an operator deletes Services and dismantles a machine
    :ivar has_shared_reads: one worker reads Ironic's changes for the others
    :ivar has_moves: operators move servers while users have them rebooted and
        deleted
    :ivar has_pools: two pools share Ironic and Nova; nodes change their pool
    :ivar quiet_s: how long the storm has not begun; see `Faults`
    :ivar thaw_s: see `Kernel`
    :ivar has_tasks: users reboot, stop, start, rebuild, shelve and unshelve
    :ivar has_shelving: they only shelve and unshelve, their servers boot from
        volumes
    """

    def __init__(
        self, seed: int, certain: frozenset[str] = frozenset()
    ) -> None:
        self._seed = seed
        self._certain = certain
        self.is_on_folder = self._has('folder')
        self.has_path_faults = self._has('failing paths')
        self.has_only_path_faults = self.has_path_faults and self._has(
            'only failing paths'
        )
        self.has_resets = self._has('resets')
        self.has_shared_reads = self._has('shared reads')
        is_wild = not self.has_only_path_faults
        self.is_mixed = is_wild and self._has('mixed terms')
        self.has_wrong_clocks = is_wild and self._has('wrong clocks')
        self.has_deletions = is_wild and self._has('deletions')
        # Nova may delete the Service of a host while a server comes to it, and
        # no daemon can prevent it. A world has moves or tasks, never both.
        is_movable = not self.has_deletions and 'tasks' not in certain
        self.has_moves = is_wild and is_movable and self._has('moves')
        self.has_pools = self._may_have_pools() and self._has('pools')
        self.has_wrong_folders = (
            is_wild and not self.has_pools and self._has('wrong folders')
        )
        self.has_tasks = is_wild and not self.has_moves and self._has('tasks')
        self.has_shelving = self.has_tasks and self._has('shelving')
        self.quiet_s = QUIET_S if self._has('quiet start') else 0.0
        self.thaw_s = THAW_S if self._has('slow thaws') else 0.0
        self._timings = self._stream('timings')
        self._terms_s = self._timings.choice(TERMS_S)
        self._clocks = self._stream('clocks')
        self._folders = self._stream('folders')
        self._ahead_s: list[float] = [0.0]
        if self._has('conductor clocks'):
            clocks = self._stream('clocks of conductors')
            self._ahead_s = clocks.sample(CONDUCTORS_S, CONDUCTORS_COUNT)

    def _may_have_pools(self) -> bool:
        return self.has_moves and not (
            self.has_path_faults or self.is_on_folder
        )

    def _has(self, kind: str) -> bool:
        chance = self._stream(kind).random()
        return kind in self._certain or chance < CHANCES[kind]

    def _stream(self, name: str) -> random.Random:
        return random.Random(f'{name} {self._seed}')

    def timing(self, usual: Timing) -> Timing:
        """Return the options of an agent that starts now."""
        if not self.is_mixed:
            return usual
        return dataclasses.replace(
            usual,
            lease_term_s=self._timings.choice(self._terms_s),
            settle_s=self._timings.choice(SETTLES_S),
        )

    def ahead_s(self) -> float:
        """Return how far the wall clock of a machine is ahead from now on."""
        if not self.has_wrong_clocks:
            return 0.0
        return self._clocks.choice(AHEAD_S)

    def conductor_ahead_s(self, number: int) -> float:
        """Return how far a conductor's clock is ahead.

        :param number: of a node, whose writes are all of one conductor
        """
        return self._ahead_s[number % len(self._ahead_s)]

    def folder(self) -> Folder:
        """Return the state directory of an agent that starts now."""
        if not self.has_wrong_folders or self._folders.random() < 0.5:
            return Folder.OWN
        return self._folders.choice(list(Folder))

# SPDX-License-Identifier: Apache-2.0
"""The environment of a world: what its operators and machines do differently.

Each seed has some kinds of environment and not others. Each kind has a random
generator of its own, so that a new kind changes the lives of those seeds only
that have it. The first thousand seeds have none: most planted defects have a
seed among them, which stays the same life when a kind is added.
"""

import dataclasses
import enum
import random

from hashring.opts import Timing

# How likely a world has each kind.
CHANCE = 0.25
FOLDER_CHANCE = 0.1
# The seeds below this have no kind.
PLAIN_COUNT = 1000
# Only seeds below this have moves, so that the lives of all other seeds, which
# every change lives, stay the same.
MOVES_COUNT = 10_000
# Of these, the ones from here on may have two pools.
POOLS_FROM = 5_000
POOLS_CHANCE = 0.5
# In half of the worlds from this seed on, one worker reads for the others.
SHARED_READS_FROM = 6_000_000
SHARED_READS_CHANCE = 0.5
# The two values of each option in a mixed world.
TERMS_S = ((10.0, 40.0), (15.0, 40.0), (10.0, 25.0))
SETTLES_S = (2.0, 8.0)
# How often the lock service of a mixed world restarts.
RESTARTS_PER_S = 0.02
# How far a wrong wall clock is ahead, in seconds; two of them differ by less
# than five minutes.
AHEAD_S = (-140.0, -90.0, -45.0, 0.0, 45.0, 90.0, 140.0)
# How far the clocks of Ironic's conductors may be ahead, in seconds. NTP keeps
# them within a minute of each other.
CONDUCTORS_S = (-25.0, -9.0, -3.0, 0.0, 3.0, 9.0, 25.0)
CONDUCTORS_COUNT = 3
# How often a wrong wall clock steps.
STEPS_PER_S = 0.02


class Folder(enum.Enum):
    """The state directory that an agent finds at its start."""

    OWN = 'own'
    LOST = 'lost'
    OLDER = 'older copy'
    OF_ANOTHER_MACHINE = 'of another machine'
    OF_ANOTHER_POOL = 'of another pool'


def _choose(
    kind: str, seed: int, chance: float = CHANCE
) -> random.Random | None:
    """Return the generator of a kind, or None if the world lacks the kind."""
    rng = random.Random(f'{kind} {seed}')
    if seed < PLAIN_COUNT:
        return None
    return rng if rng.random() < chance else None


class Environment:
    """The environment of one seed."""

    def __init__(self, seed: int) -> None:
        # The agents share a folder instead of a coordination service.
        self.is_on_folder = _choose('folder', seed, FOLDER_CHANCE) is not None
        self._mixed = _choose('mixed terms', seed)
        if self._mixed is not None:
            self._terms_s = self._mixed.choice(TERMS_S)
        self._clocks = _choose('wrong clocks', seed)
        self._folders = _choose('wrong folders', seed)
        # Machines lose their paths to services; in some worlds nothing else
        # fails, so that it is certain what must follow.
        self._path_rng = _choose('failing paths', seed)
        self.has_only_path_faults = (
            self._path_rng is not None and self._path_rng.random() < 0.5
        )
        # These paths reset most connections, and fail in no other way.
        self.has_resets = _choose('resets', seed) is not None
        # An operator deletes Services and dismantles a machine.
        self.has_deletions = _choose('deletions', seed) is not None
        # Operators move servers while users have them rebooted and deleted.
        self._moves_rng = (
            _choose('moves', seed) if seed < MOVES_COUNT else None
        )
        # The clocks of Ironic's conductors differ.
        conductors = _choose('conductor clocks', seed)
        self._ahead_s: list[float] = [0.0]
        if conductors is not None:
            self._ahead_s = conductors.sample(CONDUCTORS_S, CONDUCTORS_COUNT)
        # One worker reads Ironic's delta list for the others.
        self.shared_reads = (
            _choose('shared reads', seed, SHARED_READS_CHANCE)
            if seed >= SHARED_READS_FROM
            else None
        )
        # Users reboot, stop, start, rebuild, shelve and unshelve servers.
        self._task_rng = _choose('tasks', seed)
        if self.has_only_path_faults:
            self._mixed = self._clocks = self._folders = None
            self._task_rng = None
            self.has_deletions = False
            self._moves_rng = None
        if self.has_deletions:
            # Nova may delete the Service of a host while a server comes to it,
            # and no daemon can prevent it.
            self._moves_rng = None
        # Two pools share Ironic and Nova, and nodes change their pool.
        may_have_pools = (
            self.has_moves
            and seed >= POOLS_FROM
            and not (self.has_path_faults or self.is_on_folder)
        )
        self.has_pools = (
            may_have_pools and _choose('pools', seed, POOLS_CHANCE) is not None
        )
        if self.has_pools:
            self._folders = None
        if self.has_moves:
            self._task_rng = None

    @property
    def is_mixed(self) -> bool:
        """Whether an operator changes `[coordination]` while agents run."""
        return self._mixed is not None

    @property
    def has_path_faults(self) -> bool:
        """Whether machines lose their paths to services."""
        return self._path_rng is not None

    @property
    def path_rng(self) -> random.Random:
        """The generator of these faults."""
        assert self._path_rng is not None
        return self._path_rng

    @property
    def has_moves(self) -> bool:
        """Whether operators move servers to other hosts."""
        return self._moves_rng is not None

    @property
    def moves_rng(self) -> random.Random:
        """The generator of these moves."""
        assert self._moves_rng is not None
        return self._moves_rng

    @property
    def task_rng(self) -> random.Random | None:
        """The generator of the tasks of servers; None: there are none."""
        return self._task_rng

    def timing(self, usual: Timing) -> Timing:
        """Return the options of an agent that starts now."""
        if self._mixed is None:
            return usual
        return dataclasses.replace(
            usual,
            lease_term_s=self._mixed.choice(self._terms_s),
            settle_s=self._mixed.choice(SETTLES_S),
        )

    @property
    def has_wrong_clocks(self) -> bool:
        """Whether nobody keeps the wall clocks of the machines right."""
        return self._clocks is not None

    def ahead_s(self) -> float:
        """Return how far the wall clock of a machine is ahead from now on."""
        return self._clocks.choice(AHEAD_S) if self._clocks else 0.0

    def conductor_ahead_s(self, number: int) -> float:
        """Return how far a conductor's clock is ahead.

        :param number: of a node, whose writes are all of one conductor
        """
        return self._ahead_s[number % len(self._ahead_s)]

    @property
    def has_wrong_folders(self) -> bool:
        """Whether machines are installed anew or from other machines."""
        return self._folders is not None

    def folder(self) -> Folder:
        """Return the state directory of an agent that starts now."""
        if self._folders is None or self._folders.random() < 0.5:
            return Folder.OWN
        return self._folders.choice(list(Folder))

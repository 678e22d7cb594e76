# SPDX-License-Identifier: Apache-2.0
"""Whether an agent may stay beside the other pools on its backend.

Two pools must not have nodes in common, and no two agents the same host: the
agent that starts later ends. Of pools that start together the largest one
stays. Otherwise one machine with a wrong pool in its nova.conf would end the
agents of all machines after a loss of power. Pure.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence

from hashring.group import Member
from hashring.ring import Host

FindOverlap = Callable[[str], str | None]
"""Takes the name of another group; returns an error message if its pool has
nodes of this agent's pool, else None."""


class Admission:
    """Compares the pool of this agent with the others until none overlaps.

    :param home: the home host of this agent
    :param machine: the name of this machine
    """

    def __init__(
        self, home: Host, machine: str, find_overlap: FindOverlap
    ) -> None:
        self._home = home
        self._machine = machine
        self._find_overlap = find_overlap
        self.is_admitted = False

    def why_refused(
        self,
        mine: Sequence[Member],
        groups: Mapping[str, Sequence[Member]] | None,
        *,
        holds_home: bool,
    ) -> str | None:
        """Return why this agent has to end, or None.

        :param mine: the members of this group that are up
        :param groups: the members of the other groups; None: not read yet
        :param holds_home: whether this agent has the lock of its home host
        """
        if self.is_admitted or groups is None:
            return None
        rivals = () if holds_home else tuple(self._rivals(groups))
        overlaps = dict(self._overlaps(groups))
        self.is_admitted = not (rivals or overlaps)
        lost = [w for w, others in overlaps.items() if not stays(mine, others)]
        return next(iter((*rivals, *lost)), None)

    def _rivals(self, groups: Mapping[str, Sequence[Member]]) -> Iterator[str]:
        for members in groups.values():
            for member in members:
                if member.home == self._home:
                    yield (
                        f'Two agents of different pools have [DEFAULT] host = '
                        f'{self._home}: one on {member.machine}, which serves '
                        f'it, and this one on {self._machine}: give one of '
                        f'them another host in its nova.conf.'
                    )

    def _overlaps(
        self, groups: Mapping[str, Sequence[Member]]
    ) -> Iterator[tuple[str, Sequence[Member]]]:
        for name, members in groups.items():
            others = [m for m in members if m.home != self._home]
            why = self._find_overlap(name) if others else None
            if why is not None:
                yield why, others


def stays(mine: Sequence[Member], others: Sequence[Member]) -> bool:
    """Return whether another group has to end, and not this one.

    :param mine: the members of this group that are up
    :param others: those of the other group
    """
    if any(member.is_admitted for member in others):
        return False
    return _size(mine) > _size(others)


def _size(members: Sequence[Member]) -> tuple[int, str]:
    """Return what is greater for the group that stays."""
    return len(members), max((m.home for m in members), default='')

# SPDX-License-Identifier: Apache-2.0
"""Whether an agent may stay beside the other pools on its backend.

Two pools must not have nodes in common, and no two agents the same host: the
agent that starts later ends. Of pools that start together the largest one
stays. Otherwise one machine with a wrong pool in its nova.conf would end the
agents of all machines after a loss of power. Pure.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence

from hashring.adoption import NOBODY, View
from hashring.duplicate_home import DuplicateHome
from hashring.group import Member
from hashring.ring import Host

FindOverlap = Callable[[str], str | None]
"""Takes the name of another group; returns an error message if its pool has
nodes of this agent's pool, else None."""

Groups = Mapping[str, Sequence[Member]]
"""The members of other groups that are up, by the group's name."""


class Admission:
    """Compares the pool of this agent with the others until none overlaps.

    :param me: the record of this agent
    :param dead_entry_s: seconds after which the entry of a dead process is
        certainly gone from the member list
    """

    def __init__(
        self, me: Member, dead_entry_s: float, find_overlap: FindOverlap
    ) -> None:
        self._home = me.home
        self._machine = me.machine
        self._find_overlap = find_overlap
        # A former process of this agent may have been in another pool.
        self._duplicate_home = DuplicateHome(me.home, me.boot, dead_entry_s)
        self._groups: Groups | None = None
        self._view = NOBODY  # All members of these groups.
        self.is_admitted = False
        self.former_pool: tuple[Host, ...] = ()
        """The home hosts of another group to which this home host is a known
        one: it counts on this host for nodes of its pool, and may adopt it,
        while this agent serves another pool."""

    def why_refused(
        self,
        mine: Sequence[Member],
        groups: Groups | None,
        now_s: float,
        *,
        holds_home: bool,
    ) -> str | None:
        """Return why this agent has to end, or None.

        :param mine: the members of this group that are up
        :param groups: the other groups; None: not read under this lease
        :param now_s: this agent's clock, CLOCK_BOOTTIME
        :param holds_home: whether this agent has the lock of its home host
        """
        if self.is_admitted:
            return None
        if groups is None:
            self._duplicate_home.forget()
            return None
        self._take(groups)
        rival = self._duplicate_home.find_rival(self._view, now_s)
        overlaps = dict(self._overlaps(groups))
        is_alone = holds_home or not self._view.of_home(self._home)
        self.is_admitted = is_alone and not overlaps
        if rival is not None and not holds_home:
            return self._rival_message(rival)
        lost = (w for w, others in overlaps.items() if not stays(mine, others))
        return next(lost, None)

    def adoptable(self, known: frozenset[Host]) -> frozenset[Host]:
        """Return the known hosts that this agent may adopt; none at first.

        Its known hosts may be those of another pool until it is admitted: it
        has them from the state directory of a former process.
        """
        return known if self.is_admitted else frozenset()

    def _take(self, groups: Groups) -> None:
        if groups is not self._groups:
            self._groups = groups
            members = (m for group in groups.values() for m in group)
            self._view = View(tuple(members))
            self.former_pool = self._find_former_pool(groups)

    def _find_former_pool(self, groups: Groups) -> tuple[Host, ...]:
        for group in groups.values():
            others = [m for m in group if m.home != self._home]
            if any(self._home in m.known for m in others):
                return tuple(m.home for m in others)
        return ()

    def _rival_message(self, rival: Member) -> str:
        return (
            f'Two agents of different pools have [DEFAULT] host = '
            f'{self._home}: one on {rival.machine}, which serves it, and this '
            f'one on {self._machine}: give one of them another host in its '
            f'nova.conf.'
        )

    def _overlaps(
        self, groups: Groups
    ) -> Iterator[tuple[str, Sequence[Member]]]:
        for name, members in groups.items():
            others = [m for m in members if m.home != self._home]
            why = self._find_overlap(name) if others else None
            if why is not None:
                yield why, others


def stays(mine: Sequence[Member], others: Sequence[Member]) -> bool:
    """Return whether another group has to end, and not this one.

    An agent that starts again in a pool that was there before stays, however
    many agents of the other pool have just started.

    :param mine: the members of this group that are up
    :param others: those of the other group
    """
    if any(member.is_admitted for member in others):
        return False
    if any(member.is_admitted for member in mine):
        return True
    return _size(mine) > _size(others)


def _size(members: Sequence[Member]) -> tuple[int, str]:
    """Return what is greater for the group that stays."""
    return len(members), max((m.home for m in members), default='')

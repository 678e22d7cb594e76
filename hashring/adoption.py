# SPDX-License-Identifier: Apache-2.0
"""Which hosts need somebody, and whose turn it is.

Pure: views and this agent's own time in, hosts out. Nothing here acquires
anything; a wrong guess costs one refused lock. All durations are counted
from this observer's first sight, so that no other clock is trusted.

Every agent computes the same order from the same view: the k-th in it
waits k + 1 steps. The first wait also covers the instant in which a member
of a file backend is out of the list to change its capabilities.
"""

import dataclasses
import enum
from collections.abc import Iterable, Mapping

from hashring.group import Boot, Member, MemberState
from hashring.ring import Host, affinity


class Presence(enum.Enum):
    """How a host's own agent stands."""

    HOME = 'home'
    """Its agent is up and wants it."""
    EXPECTED = 'expected'
    """Its agent restarts, within the grace it asked for."""
    ABSENT = 'absent'
    """Nobody of its own will serve it now."""


@dataclasses.dataclass(frozen=True, slots=True)
class View:
    """The members of the group as one counted heartbeat saw them."""

    members: tuple[Member, ...] = ()

    def up(self) -> tuple[Member, ...]:
        return tuple(m for m in self.members if m.state is MemberState.UP)

    def of_home(self, home: Host) -> tuple[Member, ...]:
        return tuple(m for m in self.members if m.home == home)

    def served_by_others(self, boot: Boot) -> frozenset[Host]:
        """Hosts that a member other than this boot says it serves."""
        others = (m.serving for m in self.members if m.boot != boot)
        return frozenset(host for serving in others for host in serving)


NOBODY = View()


@dataclasses.dataclass(frozen=True, slots=True)
class AdoptionTurn:
    """This agent should try this host now."""

    host: Host
    orphan_for_s: float


class PresenceWatch:
    """What one observer remembers about the agents around it."""

    def __init__(self, boot: Boot, step_s: float) -> None:
        self._boot = boot
        self._step_s = step_s
        self._view = View()
        self._grace_until_s: dict[Host, float] = {}
        self._restarts_seen: set[Boot] = set()
        self._orphan_since_s: dict[Host, float] = {}

    def see(self, view: View, now_s: float) -> None:
        """Take in a new view."""
        self._view = view
        listed = {m.boot for m in view.members}
        self._restarts_seen &= listed
        for member in view.members:
            if member.state is MemberState.RESTARTING:
                self._note_restart(member, now_s)
            else:
                self._grace_until_s.pop(member.home, None)

    def _note_restart(self, member: Member, now_s: float) -> None:
        # While it serves its home it drains: the new agent cannot begin, and
        # the grace is for that one.
        is_draining = member.home in member.serving
        if is_draining or member.boot not in self._restarts_seen:
            self._restarts_seen.add(member.boot)
            self._grace_until_s[member.home] = now_s + member.grace_s

    def presence(self, home: Host, now_s: float) -> Presence:
        """How the agent of this host stands, as far as we saw."""
        if any(
            m.state is MemberState.UP and m.wants_home
            for m in self._view.of_home(home)
        ):
            return Presence.HOME
        if now_s < self._grace_until_s.get(home, 0.0):
            return Presence.EXPECTED
        return Presence.ABSENT

    def turns(
        self, known: Iterable[Host], mine: frozenset[Host], now_s: float
    ) -> tuple[AdoptionTurn, ...]:
        """The hosts this agent should try to adopt now.

        :param mine: hosts this agent holds or is trying already; they are
            no orphans.
        """
        taken = mine | self._view.served_by_others(self._boot)
        orphans = sorted(
            host
            for host in known
            if host not in taken
            and self.presence(host, now_s) is Presence.ABSENT
        )
        since_s = self._orphan_since_s
        self._orphan_since_s = {h: since_s.get(h, now_s) for h in orphans}
        rank = self._ranks(orphans)
        return tuple(
            AdoptionTurn(host, now_s - self._orphan_since_s[host])
            for host in orphans
            if host in rank and self._due(host, rank[host], now_s)
        )

    def _due(self, host: Host, rank: int, now_s: float) -> bool:
        waited_s = now_s - self._orphan_since_s[host]
        return waited_s >= self._step_s * (rank + 1)

    def _ranks(self, orphans: Iterable[Host]) -> Mapping[Host, int]:
        """My place in the line for each orphan: 0 is first.

        Who serves more stands further back; each orphan counts as served
        by its first candidate, so two of them find two agents.
        """
        load = {m.boot: len(m.serving) for m in self._view.up()}
        if self._boot not in load:
            return {}
        ranks = {}
        for host in orphans:
            line = _line(host, load)
            load[line[0]] += 1
            ranks[host] = line.index(self._boot)
        return ranks


def _line(host: Host, load: Mapping[Boot, int]) -> list[Boot]:
    return sorted(load, key=lambda boot: (load[boot], affinity(host, boot)))

# SPDX-License-Identifier: Apache-2.0
"""Adoption: orphaned hosts, and the order in which agents try to adopt them.

A host is orphaned when no member of the group serves it and its own agent is
neither up nor expected back. `hashring.assignment` gets the hosts that this
agent should try now from here. Pure: nothing here takes a lock, and a wrong
result costs one refused lock request.

Every agent computes the same order of candidates from the same member list;
the k-th candidate (0 is the first) waits k + 1 steps. Even the first one
waits, because an agent of an older release leaves the list of a file backend
for an instant when it changes its capabilities. Durations count from the
moment at which this agent first saw a change, so that no other machine's clock
matters.
"""

import dataclasses
import enum
from collections.abc import Iterable, Mapping

from hashring.group import Boot, Member, MemberState
from hashring.ring import Host, affinity


class Presence(enum.Enum):
    """The state of a home host's own agent: up, expected back, or absent."""

    HOME = 'home'
    """The agent is up and serves its home host, or soon will."""
    EXPECTED = 'expected'
    """The agent is restarting, and its ``restart_grace_s`` has not ended."""
    ABSENT = 'absent'
    """No agent of this home host will serve it now."""


@dataclasses.dataclass(frozen=True, slots=True)
class View:
    """The members of the group, as read with one heartbeat."""

    members: tuple[Member, ...] = ()

    def up(self) -> tuple[Member, ...]:
        """Return the members that are neither restarting nor leaving."""
        return tuple(m for m in self.members if m.state is MemberState.UP)

    def fit(self) -> tuple[Member, ...]:
        """Return the members that may adopt hosts.

        They are up, not half alive, and fail on the fewest paths; in an
        outage for all, these are all. A member without a worker that could
        tell fails on no path that is known; its workers may keep dying, so it
        is not better than others.
        """
        alive = [m for m in self.up() if not m.is_half_alive]
        known = [m for m in alive if m.working_paths or m.failing_paths]
        least = min((len(m.failing_paths) for m in known), default=0)
        return tuple(
            m for m in alive if m not in known or len(m.failing_paths) == least
        )

    def of_home(self, home: Host) -> tuple[Member, ...]:
        """Return the members whose home host is ``home``."""
        return tuple(m for m in self.members if m.home == home)

    def served_by_others(self, boot: Boot) -> frozenset[Host]:
        """Return the hosts that members other than ``boot`` serve."""
        others = (m.serving for m in self.members if m.boot != boot)
        return frozenset(host for serving in others for host in serving)


NOBODY = View()


@dataclasses.dataclass(frozen=True, slots=True)
class DueAdoption:
    """A host that this agent should try to adopt now."""

    host: Host
    orphan_for_s: float
    """Seconds since this agent first found the host orphaned."""


class PresenceWatch:
    """Records when agents began to restart and when hosts became orphans.

    `hashring.assignment` alone uses it, in the agent's main thread.

    :param boot: the boot of this agent
    :param step_s: seconds by which each candidate waits longer than the one
        before it; ``[coordination] adopt_step_s``
    """

    def __init__(self, boot: Boot, step_s: float) -> None:
        self._boot = boot
        self._step_s = step_s
        self._view = NOBODY
        # Of the view: the hosts that other members serve, the home hosts
        # whose agent is up, and whether any member restarts.
        self._served: frozenset[Host] = frozenset()
        self._homes_up: frozenset[Host] = frozenset()
        self._any_restarts = False
        self._grace_until_s: dict[Host, float] = {}
        self._known_restarts: set[Boot] = set()
        self._orphan_since_s: dict[Host, float] = {}

    def update(self, view: View, now_s: float) -> None:
        """Replace the member list by a newer one.

        Called in each turn of the main loop, most of the time with the list
        of the turn before; only a restart makes a difference then.
        """
        if view is not self._view:
            self._replace_view(view)
        elif not self._any_restarts:
            return
        listed = {m.boot for m in view.members}
        self._known_restarts &= listed
        for member in view.members:
            if member.state is MemberState.RESTARTING:
                self._note_restart(member, now_s)
            else:
                self._grace_until_s.pop(member.home, None)

    def _replace_view(self, view: View) -> None:
        self._view = view
        self._served = view.served_by_others(self._boot)
        self._homes_up = frozenset(
            m.home
            for m in view.members
            if m.state is MemberState.UP and m.wants_home
        )
        self._any_restarts = any(
            m.state is MemberState.RESTARTING for m in view.members
        )

    def _note_restart(self, member: Member, now_s: float) -> None:
        # The member's grace is the time that its next process has to start.
        # That process cannot serve while this one still drains its home host,
        # so the grace counts from the end of the drain.
        is_draining = member.home in member.serving
        if is_draining or member.boot not in self._known_restarts:
            self._known_restarts.add(member.boot)
            self._grace_until_s[member.home] = now_s + member.grace_s

    def presence(self, home: Host, now_s: float) -> Presence:
        """Return whether the agent of ``home`` is up, expected or absent."""
        if home in self._homes_up:
            return Presence.HOME
        if now_s < self._grace_until_s.get(home, 0.0):
            return Presence.EXPECTED
        return Presence.ABSENT

    def due_adoptions(
        self, known: Iterable[Host], mine: frozenset[Host], now_s: float
    ) -> tuple[DueAdoption, ...]:
        """Return the orphaned hosts that this agent should try now.

        :param known: the hosts of the pool
        :param mine: the hosts whose lock this agent has; they are not
            orphaned
        """
        orphans = sorted(
            host
            for host in known
            if host not in mine
            and host not in self._served
            and self.presence(host, now_s) is Presence.ABSENT
        )
        since_s = self._orphan_since_s
        self._orphan_since_s = {h: since_s.get(h, now_s) for h in orphans}
        rank = self._ranks(orphans) if orphans else {}
        return tuple(
            DueAdoption(host, now_s - self._orphan_since_s[host])
            for host in orphans
            if host in rank and self._due(host, rank[host], now_s)
        )

    def _due(self, host: Host, rank: int, now_s: float) -> bool:
        waited_s = now_s - self._orphan_since_s[host]
        return waited_s >= self._step_s * (rank + 1)

    def _ranks(self, orphans: Iterable[Host]) -> Mapping[Host, int]:
        """Return this agent's place among the candidates of each orphan.

        0 is the first place. Agents that serve more hosts come later. Each
        orphan counts as served by its first candidate, so that two orphans
        have different first candidates.
        """
        load = {m.boot: len(m.serving) for m in self._view.fit()}
        if self._boot not in load:
            return {}
        ranks = {}
        for host in orphans:
            candidates = _candidates(host, load)
            load[candidates[0]] += 1
            ranks[host] = candidates.index(self._boot)
        return ranks


def _candidates(host: Host, load: Mapping[Boot, int]) -> list[Boot]:
    return sorted(load, key=lambda boot: (load[boot], affinity(host, boot)))

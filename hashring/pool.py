# SPDX-License-Identifier: Apache-2.0
"""The hosts of this pool, and the ring over them.

Known are the homes ever seen in the group, what the members tell each
other, what this agent remembers from earlier lives, and what an operator
adds; never hosts that only Nova knows. A host that Nova has no Service for
is known no longer, unless its own agent is there to create one, so a deleted
host does not come back by gossip. Pure.
"""

import dataclasses
from collections.abc import Iterable, Mapping

from hashring.adoption import NOBODY, View
from hashring.group import Member
from hashring.ring import Host, Ring
from hashring.workers import ServiceFacts


class Pool:
    """What one agent knows of the pool.

    :param settle_s: how long all members must publish our ring before it
        counts as agreed.
    :param vouched: the hosts that operators have said to be mapped, as
        remembered.
    """

    def __init__(
        self,
        home: Host,
        remembered: Iterable[Host],
        settle_s: float,
        confirmed_mappings: Iterable[Host] = (),
    ) -> None:
        self._home = home
        self._settle_s = settle_s
        self._seen = {home, *remembered}
        self._facts: dict[Host, ServiceFacts] = {}
        self._view = NOBODY
        self._agreed_since_s: float | None = None
        self._epoch = 0
        self.ring = Ring()
        self.known: frozenset[Host] = frozenset()
        self.confirmed_mappings = frozenset(confirmed_mappings)
        self._derive()

    def see(
        self, view: View, now_s: float, *, in_force: bool, epoch: int = 0
    ) -> None:
        """Take in who is there and what they publish.

        :param in_force: our lease is, in this epoch of it
        """
        if epoch != self._epoch:
            self._agreed_since_s, self._epoch = None, epoch
        self._view = view
        for member in view.members:
            self._seen |= {member.home, *member.known}
            self.confirmed_mappings |= frozenset(member.confirmed_mappings)
        self._derive()
        if not (in_force and self._all_agree()):
            self._agreed_since_s = None
        elif self._agreed_since_s is None:
            self._agreed_since_s = now_s

    def learn(self, facts: Mapping[Host, ServiceFacts]) -> None:
        """Take in what a worker read from Nova; newest wins.

        But what one has seen mapped is mapped: another one may only have
        had no answer.
        """
        for host, news in facts.items():
            self._facts[host] = _joined(self._facts.get(host), news)
        self._derive()

    def add_host(self, host: Host) -> None:
        """Take in a host that an operator says is of this pool.

        Nova was asked for it just now; what was read before is older.
        """
        self._seen.add(host)
        self._doubt(host)
        self._derive()

    def confirm_mapping(self, host: Host) -> None:
        """Take in that an operator says a host is mapped.

        It holds until the host is deleted in Nova; workers believe it where
        Nova does not tell.
        """
        self.confirmed_mappings |= {host}
        self._derive()

    @property
    def heard_of(self) -> frozenset[Host]:
        """The hosts of which Nova's word is wanted.

        More than the known ones: one that had no Service when we looked,
        while another agent, who looked later, knows it.
        """
        told = {host for m in self._view.members for host in m.known}
        return self.known | told

    def agreed_since_s(self, now_s: float) -> float | None:
        """Since when all members publish this ring, if for long enough."""
        since_s = self._agreed_since_s
        if since_s is None or now_s - since_s < self._settle_s:
            return None
        return since_s

    def dissenters(self) -> tuple[Member, ...]:
        """Return the members who have another ring than we, or none."""
        ours = self.ring.digest
        return tuple(
            m for m in self._view.members if m.ring != ours or not m.ring
        )

    def _all_agree(self) -> bool:
        return bool(self._view.members) and not self.dissenters()

    def _derive(self) -> None:
        present = {m.home for m in self._view.members} | {self._home}
        for host in present:
            self._doubt(host)  # Its agent makes one: we looked too early.
        self._seen = {
            host
            for host in self._seen
            if host in present or self._may_exist(host)
        }
        self.known = frozenset(self._seen)
        self.confirmed_mappings = frozenset(
            filter(self._may_exist, self.confirmed_mappings)
        )
        members = frozenset(filter(self._in_ring, self.known))
        if members != self.ring.hosts:
            self.ring = Ring(members)
            self._agreed_since_s = None

    def _doubt(self, host: Host) -> None:
        """Forget what was read of a host that had no Service."""
        if not self._may_exist(host):
            del self._facts[host]

    def _may_exist(self, host: Host) -> bool:
        facts = self._facts.get(host)
        return facts is None or facts.exists

    def _in_ring(self, host: Host) -> bool:
        facts = self._facts.get(host)
        return facts is not None and (
            facts.exists and facts.mapped and not facts.disabled
        )


def _joined(before: ServiceFacts | None, news: ServiceFacts) -> ServiceFacts:
    if before is None or not (before.exists and news.exists):
        return news
    return dataclasses.replace(news, mapped=before.mapped or news.mapped)

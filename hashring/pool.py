# SPDX-License-Identifier: Apache-2.0
"""The pool: its known hosts, the ring over them, and agreement on the ring.

Known hosts are the home hosts of members, the hosts that members publish as
known, those that this agent has saved, and those that an operator has added;
a host that is only in Nova is not known. A host without a Service in Nova is
dropped unless its own agent is in the group, which will create the Service;
so a deleted host does not come back from another agent's list. A host that an
operator has forgotten is dropped although it has a Service. All agents publish
and save which hosts are forgotten, so neither the list of an agent that was
away nor a file brings one back: only an operator, or the host's own agent.

Each agent reads the records of all others with each heartbeat. Therefore an
agent publishes only those known hosts that fewer than two agents before it, in
the order of their home hosts, publish already: two records name all hosts, and
the bytes that all agents read grow with the square of their number. Without a
lease it publishes all: the backend may have lost the records of the others.

The agent's main thread owns the only object. Pure.
"""

import collections
import dataclasses
from collections.abc import Callable, Iterable, Mapping

from hashring.adoption import NOBODY, View
from hashring.group import Marks, Member
from hashring.ring import Host, Ring
from hashring.workers import ServiceFacts

# As many agents publish a host, so that the end of one does not hide the host
# from an agent that starts just then.
_PUBLISHERS_COUNT = 2


class Pool:
    """The known hosts, confirmed mappings and ring of one agent's pool.

    :param home: the home host of this agent
    :param saved_hosts: the known hosts that were saved
    :param settle_s: seconds for which all members must publish this agent's
        ring before it counts as agreed
    :param confirmed_mappings: the saved hosts that operators have confirmed
        to be mapped to a cell
    :param marks: the saved marks of forgotten hosts
    """

    def __init__(
        self,
        home: Host,
        saved_hosts: Iterable[Host],
        settle_s: float,
        confirmed_mappings: Iterable[Host] = (),
        marks: Marks = (),
    ) -> None:
        self._home = home
        self._settle_s = settle_s
        self._collected = {home, *saved_hosts}
        self._marks = dict(marks)
        self._facts: dict[Host, ServiceFacts] = {}
        self._view = NOBODY
        # Whether all members of the view were merged since the last change.
        self._is_merged = False
        self._agreed_since_s: float | None = None
        self._epoch = 0
        self._in_force = False
        self._is_home_retired = False
        # The hosts that had servers when their worker was last heard of.
        self.with_servers: frozenset[Host] = frozenset()
        self.ring = Ring()
        # The Services as workers have read them; a new mapping at each change.
        self.services: Mapping[Host, ServiceFacts] = {}
        self.known: frozenset[Host] = frozenset()
        # The hosts whose Services the workers should read: the known hosts of
        # all members, because another agent may have read the Service of a
        # host after this agent found none.
        self.hosts_to_read: frozenset[Host] = frozenset()
        # Since when no member has published to serve a host.
        self.unserved_since_s: Mapping[Host, float] = {}
        # The marks of hosts that were ever forgotten, to be published.
        self.marks: Marks = ()
        self.confirmed_mappings = frozenset(confirmed_mappings)
        # The home hosts of all members, as of the newest member list.
        self.member_homes: frozenset[Host] = frozenset()
        self._derive()

    def update_members(
        self, view: View, now_s: float, *, in_force: bool, epoch: int = 0
    ) -> None:
        """Replace the member list.

        :param in_force: whether this agent's lease is held, and the list is
            newer than what this agent has published of its ring
        :param epoch: the epoch of the lease; a new one ends an agreement
        """
        self._in_force = in_force
        if epoch != self._epoch:
            self._agreed_since_s, self._epoch = None, epoch
        if view is not self._view or not self._is_merged:
            self._view = view
            self._merge_members()
        self._note_unserved(now_s)
        if not (in_force and self._all_agree()):
            self._agreed_since_s = None
        elif self._agreed_since_s is None:
            self._agreed_since_s = now_s

    def _note_unserved(self, now_s: float) -> None:
        served = {host for m in self._view.members for host in m.serving}
        since_s = self.unserved_since_s
        self.unserved_since_s = {
            host: since_s.get(host, now_s) for host in self.known - served
        }

    def _merge_members(self) -> None:
        for member in self._view.members:
            self._collected |= {member.home, *member.known}
            self.confirmed_mappings |= frozenset(member.confirmed_mappings)
            if member.home != self._home:
                self.with_servers -= frozenset(member.serving)
                self.with_servers |= frozenset(member.with_servers)
            for host, mark in member.marks or ():
                self._marks[host] = max(mark, self._marks.get(host, 0))
        self._derive()
        self._is_merged = True

    def update_services(self, facts: Mapping[Host, ServiceFacts]) -> None:
        """Replace the Service records by those that a worker read from Nova.

        A host that one worker has read as mapped stays mapped while its
        Service exists and is enabled, even if a later record does not show the
        mapping, because not every worker may be able to read Nova's API
        database. A disabled host may be one whose retirement was ended after
        its mapping had been deleted.
        """
        for host, newer in facts.items():
            self._facts[host] = _merged(self._facts.get(host), newer)
            if newer.has_servers is not None:
                self.with_servers -= {host}
                self.with_servers |= {host} if newer.has_servers else set()
        self._derive()

    def known_to_publish(self) -> tuple[Host, ...]:
        """Return the known hosts that this agent has to publish, sorted."""
        return self._to_publish(self.known, lambda member: member.known)

    def mappings_to_publish(self) -> tuple[Host, ...]:
        """Return the confirmed mappings that this agent has to publish."""
        return self._to_publish(
            self.confirmed_mappings, lambda member: member.confirmed_mappings
        )

    def _to_publish(
        self,
        hosts: Iterable[Host],
        published: Callable[[Member], Iterable[Host]],
    ) -> tuple[Host, ...]:
        counts = collections.Counter(
            host
            for member in self._view.members
            if self._in_force and member.home < self._home
            for host in published(member)
        )
        return tuple(
            host for host in sorted(hosts) if counts[host] < _PUBLISHERS_COUNT
        )

    def add_host(self, host: Host) -> None:
        """Add a host to the known ones, because an operator requests it.

        The worker that took the request has just read the host's Service, so
        an older record of its absence is dropped.
        """
        self._set_forgotten(host, is_forgotten=False)
        self._collected.add(host)
        self._drop_absence(host)
        self._derive()

    def forget_host(self, host: Host) -> None:
        """Drop a host from the known ones, because an operator requests it."""
        self._set_forgotten(host, is_forgotten=True)
        self._derive()

    def retire_home(self) -> None:
        """Drop the home host of this agent, which is about to end."""
        self._is_home_retired = True
        self._derive()

    def is_retirement_known(self) -> bool:
        """Return whether all other members know what became of this home.

        True if the home host is not retired. A member of an older release
        publishes no marks.
        """
        if not self._is_home_retired:
            return True
        mark = self._marks[self._home]
        others = (m for m in self._view.members if m.home != self._home)
        return all(
            dict(m.marks).get(self._home, 0) >= mark
            for m in others
            if m.marks is not None
        )

    def _set_forgotten(self, host: Host, *, is_forgotten: bool) -> None:
        if self._is_forgotten(host) is not is_forgotten:
            self._marks[host] = self._marks.get(host, 0) + 1

    def _is_forgotten(self, host: Host) -> bool:
        return self._marks.get(host, 0) % 2 == 1

    def confirm_mapping(self, host: Host) -> None:
        """Record that an operator has confirmed a host's mapping to a cell.

        Valid until the host is deleted in Nova. Workers use it if they
        cannot read the mapping themselves.
        """
        self.confirmed_mappings |= {host}
        self._derive()

    def agreed_since_s(self, now_s: float) -> float | None:
        """Return since when all members publish this ring.

        None if they do not, or not for ``settle_s`` seconds yet.
        """
        since_s = self._agreed_since_s
        if since_s is None or now_s - since_s < self._settle_s:
            return None
        return since_s

    def disagreeing_members(self) -> tuple[Member, ...]:
        """Return the members with another ring than ours.

        A member without a ring has no worker that could create a record, so
        it is left out. This agent's own record is not: its workers may use
        their ring only after the group has it.
        """
        ours = self.ring.digest
        return tuple(
            m
            for m in self._view.members
            if not ours
            or (m.ring != ours and (m.ring or m.home == self._home))
        )

    def _all_agree(self) -> bool:
        return bool(self._view.members) and not self.disagreeing_members()

    def _derive(self) -> None:
        self._is_merged = False
        # The agent of a forgotten host makes the host known again. Other
        # agents do not, because its entry outlives a dead agent by a term.
        self._set_forgotten(self._home, is_forgotten=self._is_home_retired)
        self.marks = tuple(sorted(self._marks.items()))
        self.member_homes = frozenset(m.home for m in self._view.members)
        present = self.member_homes | {self._home}
        for host in present:
            # The worker of a present agent creates its host's Service, so a
            # record that there is none was read too early.
            self._drop_absence(host)
        self._collected = {
            host
            for host in self._collected
            if not self._is_forgotten(host)
            and (host in present or self._may_exist(host))
        }
        self.known = frozenset(self._collected)
        published = {host for m in self._view.members for host in m.known}
        self.hosts_to_read = self.known | {
            host for host in published if not self._is_forgotten(host)
        }
        self.confirmed_mappings = frozenset(
            host
            for host in self.confirmed_mappings
            if self._may_exist(host) and not self._is_forgotten(host)
        )
        self.services = dict(self._facts)
        members = frozenset(filter(self._in_ring, self.known))
        if members != self.ring.hosts:
            self.ring = Ring(members)
            self._agreed_since_s = None

    def _drop_absence(self, host: Host) -> None:
        """Drop the record that a host had no Service."""
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


def _merged(older: ServiceFacts | None, newer: ServiceFacts) -> ServiceFacts:
    if older is None or not (older.exists and newer.exists):
        return newer
    if older.service_id != newer.service_id:
        return newer  # Nova has deleted the mapping with the former Service.
    was_mapped = older.mapped and not older.disabled
    return dataclasses.replace(newer, mapped=newer.mapped or was_mapped)

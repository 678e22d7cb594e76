# SPDX-License-Identifier: Apache-2.0
"""Duplicate home host: finds another live agent with this agent's host name.

Two agents with the same ``[DEFAULT] host`` both join the group, but only one
gets the lock. The other one must end with an error, though only after some
terms: until then the second entry may belong to a dead process of this
agent. `hashring.assignment` uses it. Pure; durations count from the moment
at which this agent first saw the other entry.
"""

from hashring.adoption import NOBODY, View
from hashring.group import Boot, Member, MemberState
from hashring.ring import Host

# The entry of a dead agent is listed for one term, and for one more whenever
# the backend restarts or elects a leader meanwhile, because etcd and ZooKeeper
# then restart all terms.
DEAD_ENTRY_TERMS = 3


class DuplicateHome:
    """Records since when other members have this agent's home host.

    :param boot: the boot of this agent
    :param wait_s: seconds after which the entry of a dead process is certainly
        gone from the member list
    """

    def __init__(self, home: Host, boot: Boot, wait_s: float) -> None:
        self._home = home
        self._boot = boot
        self._wait_s = wait_s
        self._view = NOBODY
        self._duplicates: list[Member] = []  # Of the view.
        self._since_s: dict[Boot, float] = {}

    def find_rival(self, view: View, now_s: float) -> Member | None:
        """Return another live agent that serves this home host, or None."""
        if view is not self._view:
            self._view, self._duplicates = view, self._find_duplicates(view)
        since_s = self._since_s
        self._since_s = {
            m.boot: since_s.get(m.boot, now_s) for m in self._duplicates
        }
        for member in self._duplicates:
            waited_s = now_s - self._since_s[member.boot]
            # The dead process may have had a longer term than this one.
            wait_s = max(self._wait_s, DEAD_ENTRY_TERMS * member.lease_term_s)
            if waited_s >= wait_s and self._home in member.serving:
                return member
        return None

    def forget(self) -> None:
        """Wait anew for all entries, because no new list is read at present.

        An outage of the backend may take longer than all terms, which begin
        anew at its end.
        """
        self._since_s = {}

    def _find_duplicates(self, view: View) -> list[Member]:
        return [
            member
            for member in view.of_home(self._home)
            if member.boot != self._boot and member.state is MemberState.UP
        ]

    def message(self, rival: Member, view: View) -> str:
        """Return the error message with both machines' names and the cure."""
        mine = (m.machine for m in view.members if m.boot == self._boot)
        return (
            f'Two agents have [DEFAULT] host = {self._home}: one on '
            f'{rival.machine}, which serves it, and this one on '
            f'{next(mine, "this machine")}: give one of them another host '
            'in its nova.conf.'
        )

# SPDX-License-Identifier: Apache-2.0
"""Two agents that were given one home.

Both join; the lock lets one serve. The other must say so and end, but not
before some terms have passed: until then the second entry may be what is
left of our own last life. Pure; durations from this agent's first sight.
"""

from hashring.adoption import View
from hashring.group import Boot, Member, MemberState
from hashring.ring import Host


class DuplicateHome:
    """Other members with our home, and since when we see them.

    :param patience_s: after so long an entry is no dead boot's any more.
    """

    def __init__(self, home: Host, boot: Boot, patience_s: float) -> None:
        self._home = home
        self._boot = boot
        self._patience_s = patience_s
        self._since_s: dict[Boot, float] = {}

    def serving(self, view: View, now_s: float) -> Member | None:
        """A rival that is certainly alive and serves our home, if any."""
        duplicate_home = [
            member
            for member in view.of_home(self._home)
            if member.boot != self._boot and member.state is MemberState.UP
        ]
        since_s = self._since_s
        self._since_s = {
            m.boot: since_s.get(m.boot, now_s) for m in duplicate_home
        }
        for member in duplicate_home:
            waited_s = now_s - self._since_s[member.boot]
            if waited_s >= self._patience_s and self._home in member.serving:
                return member
        return None

    def message(self, rival: Member, view: View) -> str:
        """What the operator reads: both machines, and the cure."""
        mine = (m.machine for m in view.members if m.boot == self._boot)
        return (
            f'Two agents have [DEFAULT] host = {self._home}: one on '
            f'{rival.machine}, which serves it, and this one on '
            f'{next(mine, "this machine")}: give one of them another host '
            'in its nova.conf.'
        )

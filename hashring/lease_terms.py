# SPDX-License-Identifier: Apache-2.0
"""Lease terms of the group: the longest term of which a holder may still act.

All agents of a group should have the same `lease_term_s`, but while an
operator changes the option they have not. After a backend has forgotten a
lock, its former holder acts until the holder's *own* term ends; therefore
`hashring.assignment` waits for the longest term. Pure.
"""

from hashring.adoption import View
from hashring.group import Boot


class LeaseTerms:
    """Records the terms of the members that may still act.

    :param own_s: the term of this agent in seconds; also assumed of agents of
        older releases, which do not publish theirs
    """

    def __init__(self, own_s: float) -> None:
        self._own_s = own_s
        # Boot -> its term, and when the newest member list still had it.
        self._seen: dict[Boot, tuple[float, float]] = {}
        self._longest_s = own_s

    def update(self, view: View, now_s: float) -> None:
        """Replace the member list; drop members whose term has ended since."""
        self._seen |= {m.boot: (m.lease_term_s, now_s) for m in view.members}
        self._seen = {
            boot: (term_s, seen_s)
            for boot, (term_s, seen_s) in self._seen.items()
            if now_s - seen_s <= term_s
        }
        terms_s = [term_s for term_s, _ in self._seen.values()]
        self._longest_s = max(terms_s, default=0.0)

    @property
    def longest_s(self) -> float:
        """The longest term of this agent and of all members, in seconds."""
        return max(self._own_s, self._longest_s)

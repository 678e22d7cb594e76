# SPDX-License-Identifier: Apache-2.0
"""Lease terms of the group: the longest term of which a holder may still act.

All agents of a group should have the same `lease_term_s`, but while an
operator changes the option they have not. After a backend has forgotten a
lock, its former holder acts until the holder's *own* term ends; therefore
`hashring.assignment` waits for the longest term. The backend has forgotten
the holder's record, too, so an agent that has started since must hear of this
term from the agents that had read it, or find it in its state directory if it
was one of them itself. Pure.
"""

from collections.abc import Mapping

from hashring.adoption import NOBODY, View
from hashring.group import Boot

# Boot -> a term, and since when the member lists lack the boot; None while the
# newest one has it.
_Terms = dict[Boot, tuple[float, float | None]]
# Stands for the members that the former agent process of this machine knew.
_FORMER = Boot('')


class LeaseTerms:
    """Records the terms of the members that may still act.

    :param own_s: the term of this agent in seconds; also assumed of agents of
        older releases, which do not publish theirs
    :param saved_s: the longest term that the former agent process of this
        machine has saved, in seconds; it counts as if it was in a member list
        until the first one is read
    """

    def __init__(self, own_s: float, saved_s: float = 0.0) -> None:
        self._own_s = own_s
        self._seen: _Terms = {_FORMER: (saved_s, None)}
        self._heard: _Terms = {}
        self.seen_s = max(own_s, saved_s)
        """The longest term of this agent and of members whose record it has
        read, in seconds. Other agents may hear this one; what they say is not
        repeated, or it would never be forgotten."""

    def update(self, view: View, now_s: float) -> None:
        """Replace the member list; drop members whose term has ended since.

        Until a list lacks a member, the member may have renewed its lease:
        this agent may have been frozen since the list before.
        """
        if view is NOBODY:
            return  # No list was read yet.
        seen = {m.boot: m.lease_term_s for m in view.members}
        heard = {m.boot: m.seen_term_s for m in view.members}
        self._seen = _updated(self._seen, seen, now_s)
        self._heard = _updated(self._heard, heard, now_s)
        self.seen_s = max(self._own_s, _longest_s(self._seen))

    @property
    def longest_s(self) -> float:
        """The longest term that was seen or heard of, in seconds."""
        return max(self.seen_s, _longest_s(self._heard))


def _updated(
    terms: _Terms, newest: Mapping[Boot, float], now_s: float
) -> _Terms:
    lacking = {
        boot: (term_s, now_s if since_s is None else since_s)
        for boot, (term_s, since_s) in terms.items()
        if since_s is None or now_s - since_s <= term_s
    }
    return lacking | {boot: (term_s, None) for boot, term_s in newest.items()}


def _longest_s(terms: _Terms) -> float:
    return max((term_s for term_s, _ in terms.values()), default=0.0)

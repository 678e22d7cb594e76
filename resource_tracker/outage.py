# SPDX-License-Identifier: Apache-2.0
"""Shared pause of all requests while Placement does not answer.

Each worker has one, in its reconciler. Without it, each of thousands of nodes
would be tried, and each try of a new node reads the list of all providers.
During an outage only one node at a time is tried, after a pause that grows
with each failure.
"""

import math

from resource_tracker import errors

# Longest pause in seconds that Placement can ask for with ``Retry-After``.
_RETRY_AFTER_MAX_S = 600.0


class Outage:
    """When the next request may be sent; the caller must hold a lock.

    All times are seconds of the same clock.

    :param first_s: the pause after the first failure; doubled after each
        further one
    :param max_s: the longest pause, unless Placement asks for a longer one
    """

    def __init__(self, first_s: float = 1.0, max_s: float = 30.0) -> None:
        self._first_s = first_s
        self._max_s = max_s
        self._failures_count = 0
        self._failed_at_s = -math.inf
        self._until_s = -math.inf

    def pause_s(self, now_s: float) -> float:
        """Return the seconds until a request may be sent; 0: at once."""
        return max(0.0, self._until_s - now_s)

    def begin_try(self, now_s: float) -> None:
        """Begin a try; during an outage, no other may begin for a while."""
        if self._failures_count:
            self._until_s = now_s + self._delay_s()

    def note_failure(
        self, exc: Exception, began_s: float, now_s: float
    ) -> None:
        """Record a failed request; an error in an answer ends the outage.

        Requests that were under way at the same time fail together, so only
        the first of them makes the pause longer.

        :param began_s: when the request, or the first of several, was sent
        """
        if not isinstance(exc, errors.PlacementUnavailable):
            self.note_answer()
            return
        if began_s >= self._failed_at_s:
            self._failures_count += 1
            self._failed_at_s = now_s
        wanted_s = min(exc.retry_after_s, _RETRY_AFTER_MAX_S)
        until_s = now_s + max(self._delay_s(), wanted_s)
        self._until_s = max(self._until_s, until_s)

    def note_answer(self) -> bool:
        """Record that Placement has answered; return whether that is new."""
        was_away = self._failures_count > 0
        self._failures_count, self._until_s = 0, -math.inf
        return was_away

    def _delay_s(self) -> float:
        doubled_s = self._first_s * 2.0 ** min(self._failures_count - 1, 30)
        return min(self._max_s, doubled_s)

# SPDX-License-Identifier: Apache-2.0
"""When a worker reads the list of all nodes of its pool from Ironic."""

import math
import zlib
from collections.abc import Callable

from hashring.clock import Clock

_RETRY_MAX_S = 300.0
_SPREAD_MAX_S = 300.0
# Intervals without a list of the reader, after which a worker reads all nodes
# itself. In half an interval, a worker that is the reader since the last one
# died has read them and told the others.
_SILENCE_INTERVALS = 1.5
# Part of an interval in which no second list is used. Each start of the reader
# would otherwise have all workers of the pool read all rows and providers.
_EARLY_INTERVALS = 0.25


class AuditSchedule:
    """When the next list is due; used by the thread of the audit.

    Any thread may call ``request`` and ``note_told``.

    :param interval_s: seconds between two lists of the reader
    :param retry_s: seconds until the first retry after a list failed
    :param is_reader: returns whether this worker tells the others its lists;
        otherwise it reads one only if it hears of none
    :param host: with its name, the audits of the workers that hear of a list
        are spread over a sixth of an interval, five minutes at most
    """

    def __init__(
        self,
        clock: Clock,
        interval_s: float,
        retry_s: float,
        is_reader: Callable[[], bool],
        host: str,
    ) -> None:
        self._clock = clock
        self._interval_s = interval_s
        self._retry_s = retry_s
        self._is_reader = is_reader
        spread_s = min(_SPREAD_MAX_S, interval_s / 6.0)
        self._told_wait_s = zlib.crc32(host.encode()) % 1000 / 1000 * spread_s
        # When the list that was told last is to be used.
        self._use_told_s = math.inf
        self._is_requested = False
        self._is_in_doubt = False
        self._done_s: float | None = None
        # The wait after the last failure; 0 if the last list succeeded.
        self._failed_wait_s = 0.0

    def request(self) -> None:
        """Make a list of this worker's own due now."""
        self._is_requested = True

    def note_told(self) -> None:
        """Record that another worker has told its list."""
        self._use_told_s = self._clock.now_s() + self._told_wait_s

    def take_told(self) -> bool:
        """Return whether it is time to use the told list, once."""
        if self._clock.now_s() < self._use_told_s:
            return False
        self._use_told_s = math.inf
        return True

    def note_doubt(self) -> None:
        """Record that a list of the reader was of no use to this worker.

        It then reads all nodes one interval after the last list.
        """
        self._is_in_doubt = True

    def may_use_told(self) -> bool:
        """Return whether a list of the reader may replace an own one now.

        One that is told may be older than a request.
        """
        if self._is_requested or self._is_reader() or self._done_s is None:
            return False
        early_s = _EARLY_INTERVALS * self._interval_s
        return self._clock.now_s() - self._done_s >= early_s

    def is_due(self) -> bool:
        """Return whether this worker has to read all nodes itself."""
        has_failed, now_s = self._failed_wait_s > 0.0, self._clock.now_s()
        return self._is_requested or has_failed or now_s >= self._due_s(now_s)

    def wait_s(self) -> float:
        """Return the seconds until this worker has to look again."""
        now_s = self._clock.now_s()
        return max(0.0, min(self._due_s(now_s), self._use_told_s) - now_s)

    def _due_s(self, now_s: float) -> float:
        if self._done_s is None:
            return now_s
        due_s = self._done_s + self._interval_s
        is_own = self._is_in_doubt or self._is_reader()
        if now_s >= due_s and not is_own:
            due_s = self._done_s + _SILENCE_INTERVALS * self._interval_s
        return due_s

    def begin(self) -> None:
        """Record that this worker begins to read all nodes."""
        self._is_requested = False

    def note_done(self) -> None:
        """Record that the list of all nodes was read, here or elsewhere."""
        self._done_s, self._failed_wait_s = self._clock.now_s(), 0.0
        self._is_in_doubt = False

    def note_failure(self, *, is_total: bool) -> float:
        """Return the seconds until the next try after a list failed.

        If only this list fails, perhaps at the last of many pages, each try
        loads Ironic, so the waits grow.

        :param is_total: whether the delta list fails too; then Ironic is away,
            and a try costs it little
        """
        longest_s = min(_RETRY_MAX_S, self._interval_s)
        if is_total or not self._failed_wait_s:
            self._failed_wait_s = self._retry_s
        else:
            self._failed_wait_s = min(2.0 * self._failed_wait_s, longest_s)
        return self._failed_wait_s

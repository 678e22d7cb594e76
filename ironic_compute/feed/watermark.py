# SPDX-License-Identifier: Apache-2.0
"""Watermark of the delta list: from which ``updated_at`` it is read next.

A record may become visible later than its time stamp, and the clock of a
conductor may be behind, so each read starts a minute before the newest stamp
that was seen. A read that began a minute after the newest stamp came has seen
every record with that stamp, so the next read starts after it: one short page
is then enough, however many nodes had changed at once.
"""

from oslo_log import log as logging

from hashring.clock import Clock
from ironic_compute.ironic_api import timestamps

LOG = logging.getLogger(__name__)

_OVERLAP_S = timestamps.SKEW_S
_RESOLUTION_S = 1.0
# What another worker has read counts up to so many seconds ago by this
# machine's clock. Half of the overlap, as the two clocks may differ.
_COVERED_AGO_S = _OVERLAP_S / 2.0


class Watermark:
    """The newest time stamp of all delta lists; not thread-safe.

    :param clock: measures the time since the newest stamp came, because
        Ironic's own clocks may be wrong
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._newest: str | None = None
        self._newest_at_s = 0.0
        # When the last list was requested, in seconds since 1970.
        self._read_at_s = 0.0
        self._is_newest_complete = False
        self._is_ahead = False
        # All changes before it were read, maybe by another worker.
        self._covered = ''

    def advance_to(self, stamp: str, began_s: float) -> bool:
        """Record a list; set the newest stamp unless an earlier one is newer.

        :param stamp: the newest stamp of the list; empty if it had none
        :param began_s: when the list was requested, in seconds of the clock
        :returns: whether the next list leaves out changes that this one read
        """
        before = self._newest, self._is_newest_complete
        now_s = self._clock.now_s()
        self._read_at_s = self._clock.wall_s() - (now_s - began_s)
        if stamp > (self._newest or ''):
            self._newest, self._newest_at_s = stamp, now_s
            self._log_clock_ahead(stamp)
        self._is_newest_complete = began_s - self._newest_at_s >= _OVERLAP_S
        return before != (self._newest, self._is_newest_complete)

    def cover(self, stamp: str) -> None:
        """Record that another worker has read all changes before ``stamp``.

        And that this worker has delivered them. ``since`` is not None. If the
        clocks of that worker and of a conductor are ahead, maybe because they
        are on one machine, ``stamp`` is in the future, and would hide the
        changes stamped by other clocks.
        """
        latest = timestamps.at(self._clock.wall_s() - _COVERED_AGO_S)
        self._covered = max(self._covered, min(stamp, latest))

    def _log_clock_ahead(self, stamp: str) -> None:
        """Log a stamp in the future, unless the one before was as well."""
        was_ahead = self._is_ahead
        self._is_ahead = timestamps.is_ahead(stamp, self._clock.wall_s())
        if self._is_ahead and not was_ahead:
            LOG.warning(
                'Ironic says that a node changed at %(stamp)s, which is in '
                'the future: the clock of an ironic-conductor or of this '
                'machine is wrong',
                {'stamp': stamp},
            )

    def since(self) -> str | None:
        """Return the stamp from which the next delta list must be read.

        The result is a minute older than the last list, or still older.
        Otherwise a stamp of a clock that is ahead would hide the changes
        stamped by other clocks.

        :returns: None if no list has had a stamp yet
        """
        if self._newest is None:
            return None
        lately = timestamps.at(self._read_at_s - _OVERLAP_S)
        step_s = _RESOLUTION_S if self._is_newest_complete else -_OVERLAP_S
        own = min(timestamps.shifted(self._newest, step_s), lately)
        return max(own, self._covered)

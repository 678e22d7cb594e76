# SPDX-License-Identifier: Apache-2.0
"""Watermark of the delta list: from which ``updated_at`` it is read next.

A record may become visible a little later than its time stamp, so each read
starts some seconds before the newest stamp that was seen. If no newer stamp
has come for that many seconds, every record with the newest stamp was seen,
and the next read starts after it: one short page is then enough, however many
nodes had changed at once.
"""

from oslo_log import log as logging

from hashring.clock import Clock
from ironic_compute.ironic_api import timestamps

LOG = logging.getLogger(__name__)

_OVERLAP_S = 30.0
_RESOLUTION_S = 1.0


class Watermark:
    """The newest time stamp of all delta lists; not thread-safe.

    :param clock: measures the time since the newest stamp came, because
        Ironic's own clocks may be wrong
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._newest: str | None = None
        self._newest_at_s = 0.0
        self._is_ahead = False

    def advance_to(self, stamp: str) -> None:
        """Set the newest stamp, unless an earlier list had a newer one.

        :param stamp: the newest stamp of one list; empty if it had none
        """
        if not stamp or stamp <= (self._newest or ''):
            return
        self._newest, self._newest_at_s = stamp, self._clock.now_s()
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

        The result is never newer than half a minute ago. Otherwise a stamp of
        a clock that is ahead would hide the changes stamped by other clocks.

        :returns: None if no list has had a stamp yet
        """
        if self._newest is None:
            return None
        lately = timestamps.at(self._clock.wall_s() - _OVERLAP_S)
        return min(timestamps.shifted(self._newest, self._step_s()), lately)

    def _step_s(self) -> float:
        """Return the seconds from the newest stamp to the next list's."""
        age_s = self._clock.now_s() - self._newest_at_s
        return _RESOLUTION_S if age_s > _OVERLAP_S else -_OVERLAP_S

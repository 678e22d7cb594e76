# SPDX-License-Identifier: Apache-2.0
"""From where on the list of changed nodes is read.

Ironic stamps a node when its record is written, in whole seconds, by the
clock of whichever of its machines wrote it; the record can be seen a little
later. So the list is read again from a while before the newest stamp seen.
Once nothing newer has come for that while, all that has this stamp has been
seen, and one short page says that nothing is new, however many nodes were
changed at once.
"""

import datetime

from hashring.clock import Clock

_OVERLAP = datetime.timedelta(seconds=30)
_RESOLUTION = datetime.timedelta(seconds=1)


class Watermark:
    """The newest stamp seen; one thread at a time uses it.

    :param clock: what the while is counted on, whatever Ironic's clocks say
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._newest: str | None = None
        self._newest_at_s = 0.0

    def saw(self, stamp: str) -> None:
        """Note the newest stamp of a list; empty if it had none."""
        if stamp and stamp > (self._newest or ''):
            self._newest, self._newest_at_s = stamp, self._clock.now_s()

    def since(self) -> str | None:
        """Return the first stamp of interest; None: nothing was seen yet."""
        if self._newest is None:
            return None
        age_s = self._clock.now_s() - self._newest_at_s
        if age_s > _OVERLAP.total_seconds():
            return _shifted(self._newest, _RESOLUTION)
        return _shifted(self._newest, -_OVERLAP)


def _shifted(stamp: str, by: datetime.timedelta) -> str:
    """Return a stamp so much later; as it is if it is none."""
    try:
        return (datetime.datetime.fromisoformat(stamp) + by).isoformat()
    except ValueError:
        return stamp

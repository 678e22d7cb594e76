# SPDX-License-Identifier: Apache-2.0
"""Ironic's ``updated_at``: its precision, its clocks, and how it is compared.

The machine of Ironic that writes a node sets the stamp from its own clock, in
whole seconds. Stamps are compared as texts, because ISO 8601 texts of one
service sort by time. A stamp in the future shows only that a clock is wrong,
and must not hide the changes that other machines write meanwhile.
"""

import datetime
import functools

# NTP-synchronised clocks differ by less.
SKEW_S = 60.0


def at(wall_s: float) -> str:
    """Return the stamp of a time given in seconds since 1970."""
    return _at_second(int(wall_s))


@functools.lru_cache(maxsize=8)
def _at_second(second: int) -> str:
    # The cache, because an audit compares thousands of stamps with the time.
    return datetime.datetime.fromtimestamp(second, datetime.UTC).isoformat()


def shifted(stamp: str, by_s: float) -> str:
    """Return a stamp ``by_s`` seconds later; a malformed stamp unchanged."""
    try:
        moment = datetime.datetime.fromisoformat(stamp)
    except ValueError:
        return stamp
    return (moment + datetime.timedelta(seconds=by_s)).isoformat()


def is_ahead(stamp: str, wall_s: float) -> bool:
    """Return whether a stamp was made by a clock that is ahead.

    :param wall_s: the time of this machine, in seconds since 1970
    """
    return stamp > at(wall_s + SKEW_S)

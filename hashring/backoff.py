# SPDX-License-Identifier: Apache-2.0
"""Exponential backoff: the wait before a retry, doubled each time.

Used for worker restarts (`host_states`), for calls to a busy Ironic and for
reads of Nova's Services. Pure.
"""


def wait_s(first_s: float, doublings_count: int, longest_s: float) -> float:
    """Return ``first_s * 2 ** doublings_count``, at most ``longest_s``."""
    # Beyond 64 doublings a float could overflow; no wait is that long.
    return min(first_s * 2.0 ** min(doublings_count, 64), longest_s)

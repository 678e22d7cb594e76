# SPDX-License-Identifier: Apache-2.0
"""Waits that double from retry to retry."""

from hashring import backoff


def test_wait_doubles_up_to_the_longest() -> None:
    """Each wait is twice the one before it and never exceeds the longest."""
    waits_s = [backoff.wait_s(2.0, n, 20.0) for n in range(6)]
    assert waits_s == [2.0, 4.0, 8.0, 16.0, 20.0, 20.0]


def test_wait_after_very_many_retries_is_the_longest() -> None:
    """The number of retries has no bound, so the power must not overflow."""
    assert backoff.wait_s(1.0, 100_000, 300.0) == 300.0


def test_first_wait_is_no_longer_than_the_longest() -> None:
    """A first wait above the longest is cut."""
    assert backoff.wait_s(2.0, 0, 1.0) == 1.0

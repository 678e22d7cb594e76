# SPDX-License-Identifier: Apache-2.0
"""Time stamps of Ironic: conversion, shifting, and clocks that are ahead."""

import pytest

from ironic_compute.ironic_api import timestamps

NOON_S = 1767268800.0
NOON = '2026-01-01T12:00:00+00:00'


def test_stamp_has_whole_seconds() -> None:
    """The format is that of Ironic's API, so stamps compare as texts."""
    assert timestamps.at(NOON_S) == NOON
    assert timestamps.at(NOON_S + 0.999) == NOON


@pytest.mark.parametrize(
    ('by_s', 'shifted'),
    [
        (30.0, '2026-01-01T12:00:30+00:00'),
        (-30.0, '2026-01-01T11:59:30+00:00'),
    ],
)
def test_stamp_is_shifted_by_seconds(by_s: float, shifted: str) -> None:
    """A positive number of seconds gives a later stamp."""
    assert timestamps.shifted(NOON, by_s) == shifted


def test_malformed_stamp_is_not_shifted() -> None:
    """A text that is no time is returned unchanged."""
    assert timestamps.shifted('tomorrow', 30.0) == 'tomorrow'


@pytest.mark.parametrize(
    ('lead_s', 'is_ahead'), [(0.0, False), (60.0, False), (61.0, True)]
)
def test_stamp_more_than_a_minute_ahead_is_wrong(
    lead_s: float, is_ahead: bool
) -> None:
    """Clocks may differ by a minute before a stamp counts as wrong."""
    stamp = timestamps.at(NOON_S + lead_s)
    assert timestamps.is_ahead(stamp, NOON_S) is is_ahead

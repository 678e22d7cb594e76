# SPDX-License-Identifier: Apache-2.0
"""Watermark: no change is missed, and few nodes are read twice."""

import datetime

import pytest

from ironic_compute.feed.watermark import Watermark
from tests.fakes.clock import ManualClock

START = datetime.datetime.fromtimestamp(ManualClock().wall_s(), datetime.UTC)
HOUR_S = 3600
OVERLAP_S = 60


def stamp(seconds):
    """Return Ironic's stamp for a time after the start of a test."""
    return (START + datetime.timedelta(seconds=seconds)).isoformat()


@pytest.fixture
def clock():
    """A clock that a test moves."""
    return ManualClock()


def test_no_watermark_before_the_first_stamp(clock):
    """A list without stamps sets no watermark."""
    mark = Watermark(clock)
    mark.advance_to('', clock.now_s())
    assert mark.since() is None


def test_newest_stamp_is_read_again_for_a_while(clock):
    """A row may become visible after its stamp, so the reads overlap."""
    mark = Watermark(clock)
    mark.advance_to(stamp(0), clock.now_s())
    for _ in range(OVERLAP_S - 1):
        clock.advance(1)
        mark.advance_to(stamp(0), clock.now_s())
        assert mark.since() == stamp(-OVERLAP_S)


def test_mass_change_is_not_read_for_ever(clock):
    """After a read a minute after the newest stamp, it is left out."""
    mark = Watermark(clock)
    mark.advance_to(stamp(0), clock.now_s())
    clock.advance(OVERLAP_S + 1)
    for _ in range(2):
        mark.advance_to(stamp(0), clock.now_s())
        assert mark.since() == stamp(1)


@pytest.mark.parametrize('lead_s', [0, 3 * HOUR_S])
def test_gap_in_the_reads_hides_nothing_of_the_last_second(clock, lead_s):
    """After an outage, what was written just before it is read again."""
    mark = Watermark(clock)
    mark.advance_to(stamp(lead_s), clock.now_s())
    clock.advance(HOUR_S)
    assert mark.since() == stamp(-OVERLAP_S)


def test_read_that_began_too_early_ends_no_overlap(clock):
    """A read lasts long; what was written during it may not be in it."""
    mark = Watermark(clock)
    mark.advance_to(stamp(0), clock.now_s())
    clock.advance(OVERLAP_S - 1)
    began_s = clock.now_s()
    clock.advance(HOUR_S)
    mark.advance_to(stamp(0), began_s)
    assert mark.since() == stamp(-OVERLAP_S)


@pytest.mark.parametrize('behind_s', [0, 10, 29, 60])
def test_slow_clock_of_a_conductor_hides_nothing(clock, behind_s):
    """Stamps of a clock that is behind are still after the watermark."""
    mark = Watermark(clock)
    for passed_s in range(1, 240):
        mark.advance_to(stamp(0), clock.now_s())
        clock.advance(1)
        assert stamp(passed_s - behind_s) >= mark.since()


@pytest.mark.parametrize('lead_s', [31, 3 * HOUR_S])
def test_clock_that_is_ahead_hides_nothing(clock, lead_s):
    """A stamp in the future does not hide the stamps of other clocks."""
    mark = Watermark(clock)
    for passed_s in range(1, 240):
        mark.advance_to(stamp(lead_s), clock.now_s())
        clock.advance(1)
        assert stamp(passed_s) >= mark.since()


def test_clock_that_is_ahead_is_logged_once(clock, caplog):
    """It is logged again only if the clock was right in between."""
    mark = Watermark(clock)
    mark.advance_to(stamp(20), clock.now_s())
    assert not caplog.messages
    mark.advance_to(stamp(HOUR_S), clock.now_s())
    mark.advance_to(stamp(HOUR_S + 5), clock.now_s())
    assert ['which is in the future' in m for m in caplog.messages] == [True]
    clock.advance(2 * HOUR_S)
    mark.advance_to(stamp(2 * HOUR_S), clock.now_s())
    mark.advance_to(stamp(4 * HOUR_S), clock.now_s())
    assert len(caplog.messages) == 2


def test_own_clock_that_is_behind_hides_nothing(clock):
    """The watermark then stays behind this machine's clock."""
    mark = Watermark(clock)
    mark.advance_to(stamp(HOUR_S), clock.now_s())
    clock.advance(OVERLAP_S + 1)
    mark.advance_to(stamp(HOUR_S), clock.now_s())
    assert mark.since() == stamp(1)


@pytest.mark.parametrize('lead_s', [31, 3 * HOUR_S])
def test_clocks_of_another_machine_that_are_ahead_hide_nothing(clock, lead_s):
    """It has a conductor, and the worker that reads for the pool."""
    mark = Watermark(clock)
    mark.advance_to(stamp(0), clock.now_s())
    for passed_s in range(1, 240):
        mark.cover(stamp(passed_s + lead_s - OVERLAP_S))
        clock.advance(1)
        assert stamp(passed_s) >= mark.since()


@pytest.mark.parametrize('lead_s', [0, 20])
def test_other_worker_is_believed_if_clocks_differ_a_little(clock, lead_s):
    """Otherwise each of its messages would seem to begin too late."""
    mark = Watermark(clock)
    mark.advance_to(stamp(0), clock.now_s())
    clock.advance(HOUR_S)
    mark.cover(stamp(HOUR_S + lead_s - OVERLAP_S))
    assert mark.since() == stamp(HOUR_S + lead_s - OVERLAP_S)


def test_older_page_moves_nothing_back(clock):
    """A list whose newest stamp is older does not lower the watermark."""
    mark = Watermark(clock)
    clock.advance(10)
    mark.advance_to(stamp(5), clock.now_s())
    mark.advance_to(stamp(0), clock.now_s())
    assert mark.since() == stamp(5 - OVERLAP_S)


def test_malformed_stamp_hides_nothing(clock):
    """A stamp that is not a time does not stop the reading."""
    mark = Watermark(clock)
    mark.advance_to('tomorrow', clock.now_s())
    assert mark.since() == stamp(-OVERLAP_S)

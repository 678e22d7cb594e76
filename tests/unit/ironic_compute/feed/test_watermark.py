# SPDX-License-Identifier: Apache-2.0
"""From where changes are read: nothing is missed, little is read twice."""

import datetime

import pytest

from ironic_compute.feed.watermark import Watermark
from tests.fakes.clock import ManualClock

START = datetime.datetime.fromtimestamp(ManualClock().wall_s(), datetime.UTC)
HOUR_S = 3600


def stamp(seconds):
    """Ironic's stamp so long after a test has begun."""
    return (START + datetime.timedelta(seconds=seconds)).isoformat()


@pytest.fixture
def clock():
    """A clock that a test moves."""
    return ManualClock()


def test_nothing_was_seen_yet(clock):
    """Then the newest page is asked for, whatever its stamps."""
    mark = Watermark(clock)
    mark.advance_to('')
    assert mark.since() is None


def test_newest_stamp_is_read_again_for_a_while(clock):
    """Rows become visible after their stamp, and clocks differ."""
    mark = Watermark(clock)
    mark.advance_to(stamp(0))
    clock.advance(30)
    assert mark.since() == stamp(-30)


def test_mass_change_is_not_read_for_ever(clock):
    """Thousands of nodes of one second: once seen, a short page will do."""
    mark = Watermark(clock)
    mark.advance_to(stamp(0))
    clock.advance(31)
    assert mark.since() == stamp(1)
    mark.advance_to(stamp(0))
    assert mark.since() == stamp(1)


@pytest.mark.parametrize('behind_s', [0, 10, 29])
def test_slow_clock_of_a_conductor_hides_nothing(clock, behind_s):
    """What it writes is stamped earlier than it is, and is found."""
    mark = Watermark(clock)
    mark.advance_to(stamp(0))
    for passed_s in range(1, 120):
        clock.advance(1)
        assert stamp(passed_s - behind_s) >= mark.since()


@pytest.mark.parametrize('lead_s', [31, 3 * HOUR_S])
def test_clock_that_is_ahead_hides_nothing(clock, lead_s):
    """What others write is earlier than its stamp for hours, and is found."""
    mark = Watermark(clock)
    mark.advance_to(stamp(lead_s))
    for passed_s in range(1, 120):
        clock.advance(1)
        assert stamp(passed_s) >= mark.since()


def test_clock_that_is_ahead_is_told_once(clock, caplog):
    """And once more if it happens again; a few seconds are no matter."""
    mark = Watermark(clock)
    mark.advance_to(stamp(20))
    assert not caplog.messages
    mark.advance_to(stamp(HOUR_S))
    mark.advance_to(stamp(HOUR_S + 5))
    assert ['which is in the future' in m for m in caplog.messages] == [True]
    clock.advance(2 * HOUR_S)
    mark.advance_to(stamp(2 * HOUR_S))
    mark.advance_to(stamp(4 * HOUR_S))
    assert len(caplog.messages) == 2


def test_own_clock_that_is_behind_hides_nothing(clock):
    """More is read than need be, until somebody sets it right."""
    mark = Watermark(clock)
    mark.advance_to(stamp(HOUR_S))
    clock.advance(31)
    assert mark.since() == stamp(1)


def test_older_page_moves_nothing_back(clock):
    """A node that was the newest may have been deleted."""
    mark = Watermark(clock)
    clock.advance(10)
    mark.advance_to(stamp(5))
    mark.advance_to(stamp(0))
    assert mark.since() == stamp(-25)


def test_odd_stamp_hides_nothing(clock):
    """Whatever an Ironic sends, reading goes on."""
    mark = Watermark(clock)
    mark.advance_to('tomorrow')
    assert mark.since() == stamp(-30)

# SPDX-License-Identifier: Apache-2.0
"""The pause while Placement does not answer: one for all nodes."""

import pytest

from resource_tracker import errors
from resource_tracker.outage import Outage

DOWN = errors.PlacementUnavailable('no answer')


def test_pause_grows_with_each_try_that_fails():
    """Each further try waits twice as long, up to a limit."""
    outage, now_s, pauses_s = Outage(first_s=1.0, max_s=5.0), 100.0, []
    assert outage.pause_s(now_s) == 0
    for _ in range(5):
        outage.begin_try(now_s)
        outage.note_failure(DOWN, now_s, now_s)
        pauses_s.append(outage.pause_s(now_s))
        now_s += pauses_s[-1]
    assert pauses_s == [1, 2, 4, 5, 5]
    outage.note_answer()
    assert outage.pause_s(now_s) == 0


def test_requests_that_fail_together_count_once():
    """Eight threads meet the same outage; it is one failure."""
    outage = Outage(first_s=1.0)
    for number in range(8):
        outage.note_failure(DOWN, 100.0, 101.0 + number / 10)
    assert outage.pause_s(102.0) == pytest.approx(0.7)


def test_only_one_try_begins_at_a_time():
    """The other threads wait for the try that may last a minute."""
    outage = Outage(first_s=4.0)
    outage.begin_try(100.0)
    assert outage.pause_s(100.0) == 0, 'there is no outage'
    outage.note_failure(DOWN, 100.0, 100.0)
    outage.begin_try(104.0)
    assert outage.pause_s(104.0) == 4.0


@pytest.mark.parametrize(
    ('asked_s', 'pause_s'), [(0.5, 1), (45, 45), (86400, 600)]
)
def test_retry_after_is_respected(asked_s, pause_s):
    """Placement can ask for a longer pause, but not for an endless one."""
    outage = Outage(first_s=1.0)
    exc = errors.PlacementUnavailable('busy', retry_after_s=asked_s)
    outage.note_failure(exc, 100.0, 100.0)
    assert outage.pause_s(100.0) == pause_s


def test_error_in_an_answer_ends_the_outage():
    """Placement has answered, although it refused this request."""
    outage = Outage()
    outage.note_failure(DOWN, 100.0, 100.0)
    outage.note_failure(errors.PlacementRefused('no'), 101.0, 101.0)
    assert outage.pause_s(101.0) == 0

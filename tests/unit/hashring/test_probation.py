# SPDX-License-Identifier: Apache-2.0
"""For how long a backend must answer after a lapse."""

from hashring.probation import Probation


def test_answers_of_six_seconds_end_it() -> None:
    """The backend was away once, and is back."""
    probation = Probation().after_failure()
    assert not probation.has_ended(1000.0)
    probation = probation.after_answer(100.0).after_answer(103.0)
    assert not probation.has_ended(105.9)
    assert probation.has_ended(106.0)


def test_failure_after_an_answer_takes_three_times_as_long() -> None:
    """Single answers between failures are luck."""
    probation = Probation().after_answer(100.0).after_failure()
    assert not probation.has_ended(1000.0)
    probation = probation.after_failure().after_answer(110.0)
    assert not probation.has_ended(127.9)
    assert probation.has_ended(128.0)

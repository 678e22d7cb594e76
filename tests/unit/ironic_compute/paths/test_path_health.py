# SPDX-License-Identifier: Apache-2.0
"""From which failure to which answer a path fails."""

import random
import threading

import pytest

from hashring.paths import PathState
from ironic_compute.paths.path_health import (
    CONDUCTOR,
    IRONIC,
    RABBITMQ,
    PathHealth,
)
from tests.fakes.clock import ManualClock

_BEGAN_S = 1000.0


@pytest.fixture
def clock() -> ManualClock:
    """A clock that the test moves."""
    return ManualClock(_BEGAN_S)


@pytest.fixture
def health(clock: ManualClock) -> PathHealth:
    """One about which nothing was noted."""
    return PathHealth(clock)


def test_unobserved_path_has_no_state(health: PathHealth) -> None:
    """Nothing is claimed about a path before its first request has ended."""
    assert health.states() == {}
    health.note_answer(IRONIC)
    assert health.states() == {IRONIC: PathState(answered_s=_BEGAN_S)}


def test_path_fails_since_its_first_failure(
    health: PathHealth, clock: ManualClock
) -> None:
    """The newest reason is shown, with the time of the first failure."""
    health.note_failure(IRONIC, 'refused')
    clock.advance(5)
    health.note_failure(IRONIC, 'no route')
    failed_s = _BEGAN_S + 5
    assert health.states() == {
        IRONIC: PathState(_BEGAN_S, 'no route', failed_s=failed_s)
    }


def test_one_answer_does_not_end_a_failure(
    health: PathHealth, clock: ManualClock
) -> None:
    """With 90 % loss of packets, each tenth request has an answer."""
    health.note_failure(IRONIC, 'lost')
    for _ in range(5):
        clock.advance(2)
        health.note_answer(IRONIC)
        clock.advance(2)
        health.note_failure(IRONIC, 'lost')
    assert health.states()[IRONIC].failing_since_s == _BEGAN_S


def test_two_answers_in_a_row_end_a_failure(
    health: PathHealth, clock: ManualClock
) -> None:
    """The next failure counts from its own time."""
    health.note_failure(IRONIC, 'refused')
    for _ in range(2):
        clock.advance(5)
        health.note_answer(IRONIC)
    assert health.states()[IRONIC] == PathState(answered_s=clock.now_s())
    clock.advance(2)
    health.note_failure(IRONIC, 'refused')
    assert health.states()[IRONIC].failing_since_s == _BEGAN_S + 12


def test_answers_do_not_end_a_failure_while_others_fail(
    health: PathHealth, clock: ManualClock
) -> None:
    """Most new connections are reset; requests on open ones have answers."""
    for _ in range(9):
        health.note_failure(IRONIC, 'reset')
        for _ in range(9):
            clock.advance(1)
            health.note_answer(IRONIC)
    assert health.states()[IRONIC].failing_since_s == _BEGAN_S
    clock.advance(1)
    health.note_answer(IRONIC)
    assert not health.is_failing(IRONIC)


@pytest.mark.parametrize('seed', range(20))
def test_path_with_one_answer_in_four_fails_all_the_time(
    health: PathHealth, clock: ManualClock, seed: int
) -> None:
    """It is probed each five seconds, and sooner after an answer."""
    rng = random.Random(seed)
    health.note_failure(IRONIC, 'reset')
    while clock.now_s() < _BEGAN_S + 100:
        if rng.random() < 0.25:
            health.note_answer(IRONIC)
            clock.advance(1.5)
        else:
            health.note_failure(IRONIC, 'reset')
            clock.advance(5)
    assert health.states()[IRONIC].failing_since_s == _BEGAN_S


def test_path_in_doubt_needs_the_answers_of_ten_seconds(
    clock: ManualClock,
) -> None:
    """The path has failed for an earlier worker; one answer may be luck."""
    health = PathHealth(clock, starts_in_doubt=True)
    assert health.needs_answers(IRONIC)
    for _ in range(6):
        health.note_answer(IRONIC)
        assert health.states() == {}
        assert health.needs_answers(IRONIC)
        clock.advance(1.7)
    health.note_answer(IRONIC)
    assert health.states() == {IRONIC: PathState(answered_s=clock.now_s())}
    assert not health.needs_answers(IRONIC)


def test_failure_of_a_path_in_doubt_is_known_at_once(
    clock: ManualClock,
) -> None:
    """The path works as soon as after any other failure."""
    health = PathHealth(clock, starts_in_doubt=True)
    health.note_answer(IRONIC)
    clock.advance(2)
    health.note_failure(IRONIC, 'reset', began_s=clock.now_s() - 1)
    assert health.states()[IRONIC].failing_since_s == _BEGAN_S + 1
    for _ in range(2):
        assert health.needs_answers(IRONIC)
        clock.advance(4.5)
        health.note_answer(IRONIC)
    assert health.states() == {IRONIC: PathState(answered_s=clock.now_s())}


@pytest.mark.parametrize('seed', range(20))
def test_some_answers_do_not_end_the_doubt(
    clock: ManualClock, seed: int
) -> None:
    """Of most requests there is no answer, but of the first there is one."""
    health = PathHealth(clock, starts_in_doubt=True)
    rng = random.Random(seed)
    while clock.now_s() < _BEGAN_S + 100:
        if clock.now_s() == _BEGAN_S or rng.random() < 0.25:
            health.note_answer(IRONIC)
            clock.advance(1.5)
        else:
            health.note_failure(IRONIC, 'reset')
            clock.advance(5)
        state = health.states().get(IRONIC, PathState(0.0))
        assert state.failing_since_s is not None


def test_request_that_hangs_counts_as_newer_after_a_while(
    health: PathHealth, clock: ManualClock
) -> None:
    """No probe follows it while it hangs, so that none could fail."""
    for waited_s, failed_s in ((6, _BEGAN_S), (9, _BEGAN_S), (25, 1015)):
        clock.advance(_BEGAN_S + waited_s - clock.now_s())
        health.note_failure(IRONIC, 'no answer', _BEGAN_S)
        assert health.states()[IRONIC].failed_s == failed_s


def test_answers_that_come_together_are_one(
    health: PathHealth, clock: ManualClock
) -> None:
    """A probe's answer is noted twice, and packets arrive in bursts."""
    health.note_failure(IRONIC, 'refused')
    clock.advance(2)
    for _ in range(9):
        health.note_answer(IRONIC)
    assert health.is_failing(IRONIC)


def test_path_works_again_though_a_busy_worker_has_answers_all_the_time(
    health: PathHealth, clock: ManualClock
) -> None:
    """The distance counts from the last answer that was counted."""
    health.note_failure(IRONIC, 'refused')
    clock.advance(10)
    for _ in range(4):
        health.note_answer(IRONIC)
        clock.advance(0.3)
    assert health.is_failing(IRONIC)
    health.note_answer(IRONIC)
    assert not health.is_failing(IRONIC)


def test_failure_older_than_the_last_answer_is_ignored(
    health: PathHealth, clock: ManualClock
) -> None:
    """A request that hung in an outage ends long after the outage."""
    began_s = clock.now_s()
    clock.advance(80)
    health.note_answer(IRONIC)
    clock.advance(10)
    health.note_failure(IRONIC, 'timed out', began_s)
    assert not health.is_failing(IRONIC)
    health.note_failure(IRONIC, 'timed out', clock.now_s() - 5)
    assert health.is_failing(IRONIC)


def test_paths_are_independent(health: PathHealth) -> None:
    """A failure of one path shows on no other."""
    health.note_answer(CONDUCTOR)
    health.note_failure(RABBITMQ, 'refused')
    assert not health.is_failing(CONDUCTOR)
    assert health.is_failing(RABBITMQ)


def test_reason_is_one_short_line_without_secrets(health: PathHealth) -> None:
    """A reason goes to logs and to the coordination backend."""
    why = (
        'Cannot reach\n  rabbit://nova:s3/cr@t@10.0.0.1:5672/ with '
        '{"password": "hidden"}: ' + 'refused ' * 100
    )
    health.note_failure(RABBITMQ, why)
    shown = health.states()[RABBITMQ].why
    assert shown.startswith('Cannot reach rabbit://***@10.0.0.1:5672/ with')
    assert 'hidden' not in shown
    assert len(shown) <= 200


def test_silence_counts_from_the_last_answer(
    health: PathHealth, clock: ManualClock
) -> None:
    """A failure does not end the silence."""
    assert health.silent_s(IRONIC) == float('inf')
    health.note_answer(IRONIC)
    clock.advance(3)
    health.note_failure(IRONIC, 'refused')
    assert health.silent_s(IRONIC) == 3


def test_threads_may_note_at_once(health: PathHealth) -> None:
    """Requests end in many threads."""

    def note() -> None:
        for number in range(500):
            health.note_failure(IRONIC, str(number))
            health.note_answer(IRONIC)
            health.states()

    threads = [threading.Thread(target=note) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60.0)
    assert health.states()[IRONIC].failing_since_s == _BEGAN_S


def test_path_has_failed_since_the_request_was_sent(
    health: PathHealth, clock: ManualClock
) -> None:
    """A frozen process does not count the time in which it was frozen."""
    for waited_s, counted_s in ((3, 3), (5, 5), (60, 5)):
        clock.advance(1)
        began_s = clock.now_s()
        clock.advance(waited_s)
        health.note_failure(IRONIC, 'timed out', began_s)
        failing_since_s = health.states()[IRONIC].failing_since_s
        assert failing_since_s == clock.now_s() - counted_s
        for _ in range(2):
            clock.advance(6)
            health.note_answer(IRONIC)

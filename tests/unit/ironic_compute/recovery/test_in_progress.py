# SPDX-License-Identifier: Apache-2.0
"""Shared and exclusive work on a server exclude each other."""

import threading

import pytest
from nova import exception as nova_exception

from ironic_compute.recovery.in_progress import (
    InProgress,
    run_exclusive,
    start_thread,
    wait_until_idle,
)
from tests.fakes.clock import ManualClock

SERVER = 's1'


def _start(in_progress: InProgress) -> threading.Event:
    """Work on a server in another thread; return the event of its start."""
    has_started = threading.Event()

    def work() -> None:
        with in_progress.shared(SERVER):
            has_started.set()

    threading.Thread(target=work, daemon=True).start()
    return has_started


def test_exclusive_work_is_refused_while_another_thread_works() -> None:
    """An exclusive section yields False during a shared section."""
    in_progress = InProgress()
    with in_progress.shared(SERVER), in_progress.exclusive(SERVER) as free:
        assert not free
    with in_progress.exclusive(SERVER) as free:
        assert free


def test_shared_work_waits_for_exclusive_work_of_another_thread() -> None:
    """A shared section starts after the other thread's exclusive section."""
    in_progress = InProgress()
    with in_progress.exclusive(SERVER):
        has_started = _start(in_progress)
        assert not has_started.wait(0.1)
    assert has_started.wait(60.0)


def test_exclusive_work_is_refused_while_a_message_waits() -> None:
    """Other messages about the server are served meanwhile."""
    in_progress = InProgress()
    with in_progress.with_message(SERVER):
        with in_progress.exclusive(SERVER) as free:
            assert not free
        with in_progress.exclusive('s2') as free:
            assert free
        with in_progress.alone(SERVER):
            pass
        assert _start(in_progress).wait(60.0)
    with in_progress.exclusive(SERVER) as free:
        assert free


def test_work_alone_waits_for_the_work_of_other_threads() -> None:
    """It begins after the shared section, and keeps shared work away."""
    in_progress, is_alone = InProgress(), threading.Event()
    may_end = threading.Event()

    def work() -> None:
        with in_progress.alone(SERVER):
            is_alone.set()
            may_end.wait(60.0)

    with in_progress.shared(SERVER):
        threading.Thread(target=work, daemon=True).start()
        assert not is_alone.wait(0.1)
    assert is_alone.wait(60.0)
    has_started = _start(in_progress)
    assert not has_started.wait(0.1)
    may_end.set()
    assert has_started.wait(60.0)


def test_threads_are_listed_while_they_work() -> None:
    """A server is listed with its thread, and is gone afterwards."""
    in_progress = InProgress()
    with in_progress.shared(SERVER):
        ident = threading.get_ident()
        assert in_progress.threads_by_server() == {SERVER: frozenset({ident})}
    assert in_progress.threads_by_server() == {}


def test_an_error_of_exclusive_work_is_logged_and_not_raised(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """An error is logged, except that the server is gone."""

    def fail() -> None:
        raise errors.pop()

    errors = [ValueError('no'), nova_exception.InstanceNotFound(instance_id=1)]
    for _ in range(2):
        run_exclusive(InProgress(), SERVER, fail, 'Failed for %(server)s')
    levels = [record.levelname for record in caplog.records]
    assert levels.count('ERROR') == 1
    assert 'Failed for s1' in caplog.text


def test_function_runs_in_a_named_thread_of_its_own() -> None:
    """Nova's shutdown does not wait for this thread."""
    threads: list[threading.Thread] = []
    has_run = threading.Event()

    def act() -> None:
        threads.append(threading.current_thread())
        has_run.set()

    start_thread('resume-s1', act)
    assert has_run.wait(60.0)
    assert (threads[0].name, threads[0].daemon) == ('resume-s1', True)


def test_wait_ends_with_its_time_out() -> None:
    """A busy worker is waited for exactly so long."""
    clock = ManualClock(0.0)
    assert not wait_until_idle(lambda: True, clock, 0.0)
    assert clock.now_s() == 0.0


def test_worker_is_idle_after_three_idle_polls() -> None:
    """Between the handler and the thread of a build, no thread works on it."""
    polls = [True, False, True, False, False, False]
    assert wait_until_idle(lambda: polls.pop(0), ManualClock(), 60.0)
    assert polls == []


def test_message_that_has_waited_goes_on_when_recovery_has_ended() -> None:
    """Another message of the server keeps recovery out all the time."""
    in_progress, is_waiting = InProgress(), threading.Event()
    may_end, has_ended = threading.Event(), threading.Event()

    def wait() -> None:
        with in_progress.with_message(SERVER):
            with in_progress.without_message(SERVER):
                is_waiting.set()
                may_end.wait(60.0)
            has_ended.set()

    with in_progress.with_message(SERVER):
        thread = threading.Thread(target=wait)
        thread.start()
        assert is_waiting.wait(60.0)
        with in_progress.exclusive(SERVER) as free:
            assert not free
    with in_progress.exclusive(SERVER) as free:
        assert free
        may_end.set()
        assert not has_ended.wait(0.1)
    thread.join(60.0)
    assert has_ended.is_set()
    with (
        in_progress.without_message(SERVER),
        in_progress.exclusive(SERVER) as free,
    ):
        assert free
    with in_progress.exclusive(SERVER) as free:
        assert free

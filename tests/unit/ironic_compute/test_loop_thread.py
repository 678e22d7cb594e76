# SPDX-License-Identifier: Apache-2.0
"""A thread that calls one function again and again."""

import threading

from ironic_compute.loop_thread import LoopThread

_LONG_S = 3600.0


class _Calls:
    """Counts calls; each one returns the next of the given waits."""

    def __init__(self, *waits_s: float | None) -> None:
        self._waits_s = list(waits_s)
        self.threads: list[threading.Thread] = []
        self.called = threading.Semaphore(0)

    def __call__(self) -> float | None:
        self.threads.append(threading.current_thread())
        self.called.release()
        return self._waits_s.pop(0)

    def await_calls(self, count: int) -> None:
        """Wait until the function has been called so many times more."""
        for _ in range(count):
            assert self.called.acquire(timeout=60.0)

    def await_end(self) -> None:
        """Wait until the thread that called has ended."""
        self.threads[0].join(60.0)
        assert not self.threads[0].is_alive()


def test_the_function_is_called_until_it_returns_none() -> None:
    """All calls come from one thread, which carries the given name."""
    calls = _Calls(0.0, 0.0, None)
    LoopThread('rounds', calls).start()
    calls.await_calls(3)
    calls.await_end()
    assert {thread.name for thread in calls.threads} == {'rounds'}
    assert len(calls.threads) == 3


def test_a_wait_ends_early_when_the_thread_is_woken() -> None:
    """The next call comes at once and not after an hour."""
    calls = _Calls(_LONG_S, _LONG_S)
    loop = LoopThread('rounds', calls, first_wait_s=_LONG_S)
    loop.start()
    for _ in range(2):
        loop.wake()
        calls.await_calls(1)
    loop.stop()
    calls.await_end()


def test_a_stopped_thread_makes_no_further_call() -> None:
    """Stopping ends a long wait without a call."""
    calls = _Calls(_LONG_S)
    loop = LoopThread('rounds', calls)
    loop.start()
    calls.await_calls(1)
    loop.stop()
    calls.await_end()
    assert len(calls.threads) == 1

# SPDX-License-Identifier: Apache-2.0
"""A worker that stops: what it waits for, and what it leaves."""

import contextlib
import math
import threading
import types
from collections.abc import Callable, Iterator
from typing import Any

import nova.conf
import pytest

from hashring.clock import ManualClock
from ironic_compute.driver.node_waiter import WaitingThreads
from ironic_compute.gate import LeaseGate
from ironic_compute.manager.compute_manager import IronicComputeManager
from ironic_compute.recovery.in_progress import InProgress

from ..driver import fake

CONF = nova.conf.CONF


class _Clock(ManualClock):
    """Does something after the third look."""

    def __init__(self) -> None:
        super().__init__()
        self.then: Callable[[], None] = lambda: None
        self._sleeps_count = 0

    def sleep(self, seconds: float) -> None:
        """Let time pass."""
        super().sleep(seconds)
        self._sleeps_count += 1
        if self._sleeps_count == 3:
            self.then()


class _Manager(IronicComputeManager):  # type: ignore[misc]
    """The real stop of a manager that was never started."""

    def __init__(self) -> None:
        self.clock, self.in_progress, self.waiting_threads = (
            _Clock(),
            InProgress(),
            WaitingThreads(),
        )
        self.did: list[str] = []
        self.driver = types.SimpleNamespace(
            list_waiting_threads=self.waiting_threads.idents
        )
        self._in_progress_tasks: dict[int, Any] = {}
        self._components: Any = types.SimpleNamespace(
            clock=self.clock,
            gate=LeaseGate(self.clock, math.inf),
            leave=lambda: self.did.append('left'),
        )

    def cleanup_host(self) -> None:
        """The end of it."""
        self.did.append('cleaned up')

    def stop(self, *timeout: float) -> float:
        """Stop as Nova does; return how long it took."""
        began_s = self.clock.now_s()
        self.graceful_shutdown(*timeout)
        return self.clock.now_s() - began_s


@contextlib.contextmanager
def _elsewhere(work: Any) -> Iterator[Callable[[], None]]:
    """Have another thread inside a context; yields what ends it."""
    begun, end = threading.Event(), threading.Event()

    def act() -> None:
        with work():
            begun.set()
            assert end.wait(60.0)

    thread = threading.Thread(target=act)
    thread.start()
    assert begun.wait(60.0)

    def stop() -> None:
        end.set()
        thread.join()

    yield stop
    stop()


@pytest.mark.parametrize('timeout', [(), (45.0,)])
def test_an_idle_worker_stops_at_once(timeout: tuple[float, ...]) -> None:
    """Under Nova 33, which says no time, and under 34, which does."""
    manager = _Manager()
    assert manager.stop(*timeout) < 1.0
    assert manager.did == ['cleaned up']


@pytest.mark.parametrize('how', ['shared', 'exclusive'])
def test_what_is_at_work_comes_to_its_end(how: str) -> None:
    """A message, or what takes up half-done work: the worker waits for it."""
    manager = _Manager()
    with _elsewhere(lambda: getattr(manager.in_progress, how)('s1')) as end:
        manager.clock.then = end
        assert 0.5 < manager.stop(45.0) < 2.0
    assert manager.did == ['cleaned up']


def test_it_is_not_waited_for_without_end() -> None:
    """Nova goes on stopping in its own way when the time is up."""
    manager = _Manager()
    with _elsewhere(lambda: manager.in_progress.shared('s1')):
        assert 39.0 < manager.stop(45.0) < 41.0
    assert manager.did == ['cleaned up']


def test_what_waits_at_a_shut_gate_does_not_hold_up_the_end() -> None:
    """The lease may never come back; when the time is up, the worker ends."""
    manager = _Manager()
    manager._components.gate.shut()
    with _elsewhere(lambda: manager.in_progress.shared('s1')):
        assert 39.0 < manager.stop(45.0) < 41.0
    assert manager.did == ['left', 'cleaned up']


def test_what_waits_for_ironic_is_left_to_the_next_worker() -> None:
    """A deploy may take an hour; who waits for it does not matter."""
    manager = _Manager()

    @contextlib.contextmanager
    def build() -> Iterator[None]:
        with (
            manager.in_progress.shared('s1'),
            manager.waiting_threads.include_current(),
        ):
            yield

    manager._in_progress_tasks[1] = {'instance_uuid': 's1'}
    with _elsewhere(build):
        assert manager.stop(45.0) < 1.0
    assert manager.did == ['left', 'cleaned up']


def test_other_messages_that_nova_counts_are_waited_for() -> None:
    """Those that may be served twice are in no list but Nova's own."""
    manager = _Manager()
    manager._in_progress_tasks[1] = {'instance_uuid': None}
    manager.clock.then = manager._in_progress_tasks.clear
    assert 0.5 < manager.stop(45.0) < 2.0


def test_a_driver_that_waits_says_so() -> None:
    """While it looks whether Ironic is done, and no longer."""
    bench = fake.bench()
    waiting, seen = bench.driver.list_waiting_threads, []

    def verdict(facts: Any) -> bool:
        seen.append(waiting())
        return True

    bench.driver._waiter.wait_until(fake.NODE, verdict, 10.0)
    assert seen[0] == frozenset({threading.get_ident()})
    assert waiting() == frozenset()

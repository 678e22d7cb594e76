# SPDX-License-Identifier: Apache-2.0
"""The recovery loop runs its checks while the lease is in force."""

import threading
import types
from collections.abc import Callable
from typing import Any

import pytest
from nova.compute import task_states, vm_states

from ironic_compute.recovery import loop
from ironic_compute.recovery.loop import RecoveryLoop
from tests.fakes.clock import ManualClock

from .interrupted import ResumesOne, make_node, make_server


def _make(
    called: list[str],
    gate: Any,
    clock: ManualClock,
    reaches_rabbitmq: Callable[[], bool] = lambda: True,
) -> RecoveryLoop:
    """Return a loop whose checks record their calls."""

    def fail() -> None:
        called.append('tasks')
        raise TimeoutError

    def repair(servers: Any, nodes: Any, recheck: Any) -> None:
        recheck(servers)
        called.append(' '.join(['repair', *sorted(servers), *sorted(nodes)]))

    parts: Any = types.SimpleNamespace
    return RecoveryLoop(
        parts(check=fail, wait_anew=lambda: None),
        parts(
            check=lambda: called.append('strays'),
            forget_checked=lambda: called.append('again'),
        ),
        parts(check=lambda: called.append('lost'), wait_anew=lambda: None),
        parts(
            check=lambda: called.append('neglected'),
            recheck=lambda servers: called.extend(sorted(servers)),
        ),
        parts(
            request_audit=lambda: called.append('audit'),
            run=repair,
        ),
        gate,
        clock,
        reaches_rabbitmq,
        interval_s=10.0,
        queue_s=20.0,
        lost_s=60.0,
        recheck_s=30.0,
    )


def _run(rounds_count: int, *, is_open: bool) -> list[str]:
    """Run some rounds without waiting; return the checks that were called."""
    called: list[str] = []
    clock = ManualClock()
    parts: Any = types.SimpleNamespace
    recovery_loop = _make(called, parts(is_open=lambda: is_open), clock)
    thread: Any = parts(start=lambda: clock.sleep(loop._FIRST_ROUND_S))
    recovery_loop._thread = thread
    recovery_loop.start()
    for _ in range(rounds_count):
        clock.sleep(recovery_loop._run_round())
    return called


def test_each_round_runs_all_due_checks_in_spite_of_an_error() -> None:
    """Lost work waits for the queue; a failed check stops no other."""
    both, rare = ['tasks', 'strays'], ['lost', 'neglected']
    assert _run(2, is_open=True) == both * 2
    assert _run(3, is_open=True) == [*both * 3, *rare]
    assert _run(4, is_open=True) == [*both * 3, *rare, 'again', *both]
    # Each third audit searches for neglected servers.
    assert _run(11, is_open=True).count('neglected') == 1
    assert _run(12, is_open=True).count('neglected') == 2


def test_no_check_runs_without_the_lease() -> None:
    """While the gate is shut, the loop waits and calls no check."""
    assert _run(5, is_open=False) == []


def test_stop_ends_the_thread() -> None:
    """After ``stop`` the thread of the loop ends without a round."""
    before = set(threading.enumerate())
    parts: Any = types.SimpleNamespace()
    recovery_loop = RecoveryLoop(
        parts,
        parts,
        parts,
        parts,
        parts,
        parts,
        ManualClock(),
        lambda: True,
        interval_s=1.0,
        queue_s=1.0,
        lost_s=1.0,
        recheck_s=1.0,
    )
    recovery_loop.start()
    recovery_loop.stop()
    for thread in set(threading.enumerate()) - before:
        thread.join(loop._FIRST_ROUND_S)
        assert not thread.is_alive()


def _check_wait(
    recovery_loop: RecoveryLoop, called: list[str], clock: ManualClock
) -> None:
    """Check that the search for lost work waits for ``queue_s`` first."""
    for _ in range(2):
        recovery_loop._run_round()
        clock.advance(10.0)
    assert not {'lost', 'neglected'} & set(called)
    recovery_loop._run_round()
    assert called[-2:] == ['lost', 'neglected']


def test_lost_work_waits_anew_after_each_gap_of_the_lease() -> None:
    """While the gate was shut no message was taken from the queue."""
    called: list[str] = []
    gate = types.SimpleNamespace(is_open=lambda: False)
    clock = ManualClock()
    recovery_loop = _make(called, gate, clock)
    recovery_loop._served_since_s = clock.now_s()
    clock.advance(100.0)
    recovery_loop._run_round()
    gate.is_open = lambda: True
    _check_wait(recovery_loop, called, clock)


def test_lost_work_waits_anew_after_a_failure_of_rabbitmq() -> None:
    """A build waited in the queue for longer than lost builds need."""
    called: list[str] = []
    gate = types.SimpleNamespace(is_open=lambda: True)
    clock = ManualClock()
    answers = [False, True, True, True]
    recovery_loop = _make(called, gate, clock, lambda: answers.pop(0))
    clock.advance(100.0)
    recovery_loop._run_round()
    # RabbitMQ may have come back just before the next round.
    clock.advance(10.0)
    _check_wait(recovery_loop, called, clock)


@pytest.mark.parametrize('is_open', [True, False])
def test_interrupted_task_waits_anew_for_its_message(
    is_open: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No message comes from the queue while the worker cannot receive.

    The rebuild would be ended as interrupted when RabbitMQ, or the lease, is
    there again, and its message be stale.
    """
    monkeypatch.setattr(
        'nova.compute.utils.add_instance_fault_from_exc', lambda *args: None
    )
    server = make_server(vm_states.ACTIVE, task_states.REBUILDING)
    interrupted, clock = ResumesOne(server, make_node('active')), ManualClock()
    interrupted._clock = clock
    gate, reached = types.SimpleNamespace(is_open=lambda: True), [True]
    recovery_loop = _make([], gate, clock, lambda: reached[0])
    recovery_loop._tasks = interrupted
    recovery_loop._run_round()
    reached[0], gate.is_open = not is_open, lambda: is_open
    for _ in range(3):
        clock.advance(60.0)
        recovery_loop._run_round()
    # Both may have come back just before the round.
    clock.advance(60.0)
    reached[0], gate.is_open = True, lambda: True
    recovery_loop._run_round()
    assert server.done == []
    clock.advance(60.0)
    recovery_loop._run_round()
    assert server.done == ['saved c1 None']


@pytest.mark.parametrize('is_open', [True, False])
def test_lost_builds_wait_anew_for_their_messages(*, is_open: bool) -> None:
    """Nova-conductor could not send the builds while RabbitMQ was away.

    A build that it had yet to send to the next worker was ended as lost a
    minute after RabbitMQ was there again.
    """
    called: list[str] = []
    gate, clock = types.SimpleNamespace(is_open=lambda: True), ManualClock()
    reached = [True]
    recovery_loop = _make(called, gate, clock, lambda: reached[0])
    lost: Any = types.SimpleNamespace(
        check=lambda: None, wait_anew=lambda: called.append('anew')
    )
    recovery_loop._lost = lost
    recovery_loop._run_round()
    assert 'anew' not in called
    reached[0], gate.is_open = not is_open, lambda: is_open
    recovery_loop._run_round()
    assert called.pop(called.index('anew')) == 'anew'
    reached[0], gate.is_open = True, lambda: True
    recovery_loop._run_round()
    assert called.count('anew') == 1


def test_request_makes_all_checks_in_the_next_round() -> None:
    """An operator does not wait for an audit; once is enough."""
    called: list[str] = []
    gate = types.SimpleNamespace(is_open=lambda: True)
    clock = ManualClock()
    recovery_loop = _make(called, gate, clock)
    recovery_loop._served_since_s = recovery_loop._rechecked_at_s = (
        clock.now_s()
    )
    recovery_loop.check_now(['s2', 's1'], ['n1'])
    recovery_loop._run_round()
    assert called == ['audit', 'again', 'tasks', 'strays']
    # A message in the queue may still do what these servers wait for.
    clock.advance(25.0)
    called.clear()
    recovery_loop._run_round()
    rare = ['lost', 'neglected', 's1', 's2', 'repair s1 s2 n1']
    assert called == ['tasks', 'strays', *rare]
    clock.advance(1.0)
    called.clear()
    recovery_loop._run_round()
    assert called == ['tasks', 'strays']


def test_request_waits_for_the_lease() -> None:
    """It is not forgotten meanwhile."""
    called: list[str] = []
    gate = types.SimpleNamespace(is_open=lambda: False)
    recovery_loop = _make(called, gate, ManualClock())
    recovery_loop._rechecked_at_s = 1000.0
    recovery_loop.check_now([])
    assert called == ['audit']
    called.clear()
    recovery_loop._run_round()
    assert called == []
    gate.is_open = lambda: True
    recovery_loop._run_round()
    assert called == ['again', 'tasks', 'strays']


class _SetLate(threading.Event):
    """An event that another thread sets right after it was found unset."""

    def __init__(self, act: Callable[[], None]) -> None:
        super().__init__()
        self._act = act

    def is_set(self) -> bool:
        found = super().is_set()
        if not found:
            self._act()
        return found


def test_request_at_the_begin_of_a_round_is_kept() -> None:
    """The next round makes its checks."""
    called: list[str] = []
    gate = types.SimpleNamespace(is_open=lambda: True)
    recovery_loop = _make(called, gate, ManualClock())
    recovery_loop._rechecked_at_s = recovery_loop._clock.now_s()
    recovery_loop._is_requested = _SetLate(lambda: recovery_loop.check_now([]))
    recovery_loop._run_round()
    recovery_loop._run_round()
    assert called.count('again') == 1

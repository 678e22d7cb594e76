# SPDX-License-Identifier: Apache-2.0
"""What a worker reports of its paths, to its agent and in its log."""

import logging
import threading
from typing import Any

import pytest

from hashring.clock import SystemClock
from hashring.paths import Path, PathState
from ironic_compute.loop_thread import Act
from ironic_compute.paths.path_health import (
    IRONIC,
    PLACEMENT,
    RABBITMQ,
    PathHealth,
)
from ironic_compute.paths.path_observer import PathObserver
from ironic_compute.paths.probes import Probe
from tests.fakes.clock import ManualClock


class _World:
    """An observer without probes, and what it has sent."""

    def __init__(self) -> None:
        self.clock = ManualClock()
        self.health = PathHealth(self.clock)
        self.sent: list[dict[Path, PathState]] = []
        self.doubted: set[Path] = set()
        self.observer = PathObserver(
            self.health,
            (),
            self.clock,
            self.sent.append,
            self.doubted.__contains__,
        )

    def pass_seconds(self, seconds: float) -> None:
        """Let the observer's thread work for so long."""
        ends_s = self.clock.now_s() + seconds
        while self.clock.now_s() < ends_s:
            self.clock.advance(self.observer.report())


@pytest.fixture
def world() -> _World:
    return _World()


def test_begin_and_end_of_a_failure_are_sent_at_once(world: _World) -> None:
    """Within a second, the agent knows since when, and why."""
    world.health.note_answer(IRONIC)
    world.pass_seconds(3)
    world.sent.clear()
    world.health.note_failure(IRONIC, 'refused')
    since_s = world.clock.now_s()
    world.pass_seconds(3)
    assert world.sent == [
        {IRONIC: PathState(since_s, 'refused', since_s - 3, since_s)}
    ]
    for _ in range(2):
        world.clock.advance(5)
        world.health.note_answer(IRONIC)
    world.pass_seconds(1)
    assert world.sent[1:] == [
        {IRONIC: PathState(answered_s=world.clock.now_s() - 1)}
    ]


def test_answer_on_a_path_that_others_doubt_is_sent_at_once(
    world: _World,
) -> None:
    """Another agent waits for the proof; nobody waits for other answers."""
    for path in (IRONIC, RABBITMQ):
        world.health.note_answer(path)
    world.pass_seconds(2)
    world.doubted.add(IRONIC)
    world.pass_seconds(2)
    world.sent.clear()
    world.health.note_answer(RABBITMQ)
    world.pass_seconds(2)
    assert world.sent == []
    world.health.note_answer(IRONIC)
    answered_s = world.clock.now_s()
    world.pass_seconds(2)
    assert [s[IRONIC].answered_s for s in world.sent] == [answered_s]


def test_states_are_repeated(world: _World) -> None:
    """A message is lost if the pipe to the agent is full."""
    world.health.note_answer(IRONIC)
    world.health.note_failure(RABBITMQ, 'refused')
    world.pass_seconds(150)
    assert len(world.sent) == 10
    assert all(states == world.health.states() for states in world.sent)


def test_failure_that_lasts_is_logged_with_its_end(
    world: _World, caplog: pytest.LogCaptureFixture
) -> None:
    """One warning with the reason, and one line when it is over."""
    caplog.set_level(logging.INFO)
    for _ in range(12):
        world.health.note_failure(IRONIC, 'refused')
        world.pass_seconds(5)
    assert caplog.messages == [
        'This worker has not reached Ironic for 10 s: refused'
    ]
    for _ in range(2):
        world.pass_seconds(5)
        world.health.note_answer(IRONIC)
    world.pass_seconds(2)
    assert caplog.messages[1:] == [
        'This worker reaches Ironic again after 70 s'
    ]


def test_restart_of_a_service_is_not_logged(
    world: _World, caplog: pytest.LogCaptureFixture
) -> None:
    """A few seconds are no reason to wake an operator."""
    caplog.set_level(logging.INFO)
    for _ in range(2):
        world.health.note_failure(IRONIC, 'refused')
        world.pass_seconds(5)
    for _ in range(5):
        world.health.note_answer(IRONIC)
        world.pass_seconds(5)
    world.pass_seconds(60)
    assert caplog.messages == []


def test_probe_that_hangs_is_reported_while_it_hangs() -> None:
    """It blocks its own thread only."""
    clock, has_begun = ManualClock(), threading.Event()
    goes_on, was_sent = threading.Event(), threading.Event()
    health = PathHealth(clock)

    def hang() -> None:
        has_begun.set()
        goes_on.wait(60.0)

    def send(states: dict[Path, PathState]) -> None:
        if health.is_failing(RABBITMQ):
            was_sent.set()

    probe = Probe(RABBITMQ, 10.0, hang, health, clock)
    observer = PathObserver(health, [probe], clock, send, lambda path: False)
    thread = threading.Thread(target=probe.try_probe, daemon=True)
    thread.start()
    assert has_begun.wait(60.0)
    clock.advance(6)
    observer.report()
    assert was_sent.is_set()
    goes_on.set()
    thread.join(60.0)


class _Loop:
    """The loop of a probe; counts how often it was woken."""

    def __init__(self, name: str, act: Act, first_wait_s: float) -> None:
        self.act = act
        self.woken_count = 0

    def start(self) -> None:
        """See Loop."""

    def stop(self) -> None:
        """See Loop."""

    def wake(self) -> None:
        """See Loop."""
        self.woken_count += 1


@pytest.mark.parametrize('is_doubted', [False, True])
def test_probe_does_not_wait_for_its_turn_if_a_request_waits(
    *, is_doubted: bool
) -> None:
    """Nor if another agent waits for its proof."""
    world = _World()
    loops: list[_Loop] = []

    def new_loop(*loop: Any) -> _Loop:
        loops.append(_Loop(*loop))
        return loops[-1]

    def time_out() -> None:
        raise OSError('timed out')

    probe = Probe(
        PLACEMENT,
        None,
        time_out,
        world.health,
        world.clock,
        is_doubted=world.doubted.__contains__,
    )
    world.observer = PathObserver(
        world.health,
        [probe],
        world.clock,
        world.sent.append,
        world.doubted.__contains__,
        new_loop,
    )
    world.health.note_answer(PLACEMENT)
    world.pass_seconds(60)
    assert loops[0].woken_count == 0
    if is_doubted:
        world.doubted.add(PLACEMENT)
        world.pass_seconds(1)
    else:
        with world.health.waiting(PLACEMENT):
            world.pass_seconds(5)
            assert loops[0].woken_count == 0
            world.pass_seconds(1)
    assert loops[0].woken_count == 1
    # While it fails, its own pace is enough.
    loops[0].act()
    world.pass_seconds(20)
    assert loops[0].woken_count == 1


def test_threads_start_and_stop() -> None:
    """Each probe has a thread of its own; a stopped one sends nothing."""
    health, clock = PathHealth(SystemClock()), SystemClock()
    was_sent = threading.Event()
    probe = Probe(IRONIC, 10.0, lambda: None, health, clock)
    observer = PathObserver(
        health,
        [probe],
        clock,
        lambda states: was_sent.set(),
        lambda path: False,
    )
    observer.start()
    names = {thread.name for thread in threading.enumerate()}
    assert {'paths', 'path-Ironic'} <= names
    assert was_sent.wait(60.0)
    observer.stop()
    for thread in threading.enumerate():
        if thread.name in ('paths', 'path-Ironic'):
            thread.join(60.0)
            assert not thread.is_alive()

# SPDX-License-Identifier: Apache-2.0
"""The worker that only observes paths: when it is started and killed."""

from collections.abc import Sequence

import pytest

from hashring.path_worker import PathWorker
from hashring.ring import Host
from hashring.workers import NO_HOST, WorkerEvent, WorkerExited, WorkerView
from tests.fakes.clock import ManualClock


class _Workers:
    """Records what was asked."""

    def __init__(self) -> None:
        self.calls: list[tuple[str, Host]] = []

    def start(
        self, host: Host, tenure: int, has_servers: bool = False
    ) -> None:
        self.calls.append((f'start {tenure}', host))

    def kill(self, host: Host) -> None:
        self.calls.append(('kill', host))

    def stop(self, host: Host) -> None:
        raise NotImplementedError

    def deliver_view(self, view: WorkerView) -> None:
        raise NotImplementedError

    def events(self, timeout_s: float) -> Sequence[WorkerEvent]:
        raise NotImplementedError


@pytest.fixture
def workers() -> _Workers:
    return _Workers()


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock(1000.0)


@pytest.fixture
def worker(workers: _Workers, clock: ManualClock) -> PathWorker:
    return PathWorker(workers, clock)


def test_it_is_started_and_killed_once(
    worker: PathWorker, workers: _Workers
) -> None:
    """The agent asks for it at each turn."""
    worker.kill()
    assert worker.tenures() == {}
    for _ in range(3):
        worker.start()
    assert worker.tenures() == {NO_HOST: 1}
    for _ in range(3):
        worker.kill()
    assert worker.tenures() == {}
    worker.start()
    assert workers.calls == [
        ('start 1', NO_HOST),
        ('kill', NO_HOST),
        ('start 2', NO_HOST),
    ]


def test_one_that_ended_is_started_again_later(
    worker: PathWorker, workers: _Workers, clock: ManualClock
) -> None:
    """The end of an older one, which was killed, does not count."""
    worker.start()
    worker.note_exit(WorkerExited(NO_HOST, -9, tenure=0))
    assert worker.tenures() == {NO_HOST: 1}
    worker.note_exit(WorkerExited(NO_HOST, 1, tenure=1))
    clock.advance(29)
    worker.start()
    assert worker.tenures() == {}
    clock.advance(1)
    worker.start()
    assert worker.tenures() == {NO_HOST: 2}

# SPDX-License-Identifier: Apache-2.0
"""The read queue: a burst of requests becomes one read, or one more."""

import threading
from collections.abc import Iterator

import pytest

from ironic_compute.feed.read_queue import ReadQueue

WAIT_S = 60.0
QUIET_S = 0.3


class _Reads:
    """Records the nodes that are read; a test can make a read block."""

    def __init__(self) -> None:
        self.queue = ReadQueue(self._read)
        self.nodes: list[str] = []
        self.may_end = threading.Event()
        self.may_end.set()
        self._recorded = threading.Condition()

    def _read(self, node: str) -> None:
        with self._recorded:
            self.nodes.append(node)
            self._recorded.notify_all()
        self.may_end.wait(WAIT_S)
        if node == 'bad':
            raise RuntimeError(f'no {node} node')

    def wait_count(self, count: int) -> None:
        """Block until so many reads have begun."""
        with self._recorded:
            assert self._recorded.wait_for(
                lambda: len(self.nodes) >= count, WAIT_S
            )


@pytest.fixture
def reads() -> Iterator[_Reads]:
    """Return the reads of a queue that is stopped after the test."""
    made = _Reads()
    yield made
    made.may_end.set()
    made.queue.stop()


def test_requests_before_a_read_are_one_read(reads: _Reads) -> None:
    """A node that is requested while it waits is read once."""
    for _ in range(50):
        reads.queue.add('n1')
    reads.queue.start()
    reads.wait_count(1)
    threading.Event().wait(QUIET_S)
    assert reads.nodes == ['n1']


def test_requests_during_a_read_are_one_more_read(reads: _Reads) -> None:
    """The answer may be older than these requests."""
    reads.queue.start()
    reads.may_end.clear()
    reads.queue.add('n1')
    reads.wait_count(1)
    for _ in range(50):
        reads.queue.add('n1')
    threading.Event().wait(QUIET_S)
    assert reads.nodes == ['n1'], 'no second thread reads the same node'
    reads.may_end.set()
    reads.wait_count(2)
    threading.Event().wait(QUIET_S)
    assert reads.nodes == ['n1', 'n1']


def test_slow_read_delays_no_other_node(reads: _Reads) -> None:
    """Several threads read, so another node is read at the same time."""
    reads.queue.start()
    reads.may_end.clear()
    reads.queue.add('n1')
    reads.queue.add('n2')
    reads.wait_count(2)
    assert sorted(reads.nodes) == ['n1', 'n2']


def test_error_of_a_read_is_logged(
    reads: _Reads, caplog: pytest.LogCaptureFixture
) -> None:
    """After an error the threads go on, also with the same node."""
    reads.queue.start()
    for count in range(1, 9):
        reads.queue.add('bad')
        reads.wait_count(count)
        threading.Event().wait(0.01)
    assert 'no bad node' in caplog.text


def test_waiting_nodes_are_not_read_after_a_stop(reads: _Reads) -> None:
    """The threads end without reading the rest of the queue."""
    reads.queue.add('n1')
    reads.queue.stop()
    reads.queue.start()
    threading.Event().wait(QUIET_S)
    assert reads.nodes == []

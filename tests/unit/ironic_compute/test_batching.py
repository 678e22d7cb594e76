# SPDX-License-Identifier: Apache-2.0
"""Work on many nodes: chunks, pauses and errors of one node."""

import pytest

from ironic_compute import batching
from resource_tracker.node import NodeId
from tests.fakes.clock import ManualClock


@pytest.mark.parametrize(
    ('count', 'chunks_count'), [(0, 0), (1, 1), (500, 1), (501, 2), (2000, 4)]
)
def test_chunks_hold_all_nodes_with_pauses_between(
    count: int, chunks_count: int
) -> None:
    """There is no pause before the first chunk and none after the last."""
    clock = ManualClock(start_s=0.0)
    nodes = [NodeId(f'node-{number:04}') for number in range(count)]
    chunks = list(batching.paced_chunks(nodes, clock, 0.5, 500))
    assert [node for chunk in chunks for node in chunk] == nodes
    assert len(chunks) == chunks_count
    assert clock.now_s() == max(chunks_count - 1, 0) * 0.5


@pytest.mark.parametrize(('took_s', 'pause_s'), [(0.5, 0.5), (60.0, 5.0)])
def test_a_pause_is_as_long_as_the_work(took_s: float, pause_s: float) -> None:
    """A slow Ironic cannot stretch a pause beyond five seconds."""
    clock = ManualClock(start_s=0.0)
    pause = batching.HalfTimePause(clock)
    for number in range(1, 4):
        clock.advance(took_s)
        pause()
        assert clock.now_s() == number * (took_s + pause_s)


def test_an_error_of_one_node_is_logged_with_the_node(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """The caller learns from the result that the call failed."""

    def fail(count: int) -> None:
        raise RuntimeError(f'failed {count}')

    assert not batching.run_isolated(NodeId('n1'), fail, 7)
    assert 'n1' in caplog.text
    assert 'failed 7' in caplog.text


def test_a_call_without_an_error_logs_nothing(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """The arguments reach the function."""
    results: list[int] = []
    assert batching.run_isolated(NodeId('n1'), results.append, 7)
    assert results == [7]
    assert caplog.text == ''

# SPDX-License-Identifier: Apache-2.0
"""Row writers: many nodes in parallel, and errors of some."""

import pytest

from ironic_compute.ownership.pacing import RowWriters
from resource_tracker.node import NodeId

N1, N2, N3 = NodeId('n1'), NodeId('n2'), NodeId('n3')


def test_error_of_one_node_is_logged_and_harms_no_other(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """The other nodes have results, and the failed node is named."""
    writers = RowWriters(2)

    def write(node: NodeId) -> str:
        if node == N2:
            raise TimeoutError('no answer')
        return node.upper()

    assert writers.for_each(write, [N1, N2, N3]) == {N1: 'N1', N3: 'N3'}
    writers.stop()
    (logged,) = caplog.messages
    assert 'node n2' in logged and 'no answer' in logged


def test_stopped_writers_start_no_call() -> None:
    """A worker that stops writes no further row."""
    writers = RowWriters(1)
    writers.stop()
    with pytest.raises(RuntimeError):
        writers.for_each(str, [N1])

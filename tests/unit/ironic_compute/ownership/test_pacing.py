# SPDX-License-Identifier: Apache-2.0
"""How many nodes are gone through."""

import pytest

from hashring.clock import ManualClock
from ironic_compute.batching import Rest, in_parts
from resource_tracker.node import NodeId


@pytest.mark.parametrize(
    ('count', 'parts_count'), [(0, 0), (1, 1), (500, 1), (501, 2), (2000, 4)]
)
def test_all_are_gone_through_with_rests_between(
    count: int, parts_count: int
) -> None:
    """And nobody waits before the first part or after the last."""
    clock = ManualClock(start_s=0.0)
    nodes = [NodeId(f'node-{number:04}') for number in range(count)]
    parts = list(in_parts(nodes, 500, clock, 0.5))
    assert [node for some in parts for node in some] == nodes
    assert len(parts) == parts_count
    assert clock.now_s() == max(parts_count - 1, 0) * 0.5


@pytest.mark.parametrize(('took_s', 'rest_s'), [(0.5, 0.5), (60.0, 5.0)])
def test_a_rest_is_as_long_as_the_work(took_s: float, rest_s: float) -> None:
    """But Ironic being slow does not make an audit take hours."""
    clock = ManualClock(start_s=0.0)
    rest = Rest(clock)
    for number in range(1, 4):
        clock.advance(took_s)
        rest()
        assert clock.now_s() == number * (took_s + rest_s)

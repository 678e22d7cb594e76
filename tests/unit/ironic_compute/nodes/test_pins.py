# SPDX-License-Identifier: Apache-2.0
"""A pin in the row of a node, and the host that should hold the node."""

import types
from typing import Any

import pytest
from nova import objects

from hashring.ring import Host, Ring
from ironic_compute.gate import LeaseGate
from ironic_compute.nodes.compute_nodes import FAILED_BUILDS, ComputeNodes
from ironic_compute.nodes.pins import Pin, read_pin, set_pin, target_of
from ironic_compute.nodes.records import NEW, clear_new_mark
from resource_tracker.node import NodeFacts, NodeId
from tests.fakes.clock import ManualClock

C1, C2 = Host('c1'), Host('c2')
PIN = Pin(C2, 'ann on ctl1')

objects.register_all()


def _row(**stats: str) -> Any:
    return types.SimpleNamespace(hypervisor_hostname='n1', stats=dict(stats))


def test_pin_is_one_of_the_stats() -> None:
    """The others stay as they are, and the former value is not changed."""
    row = _row(rack='7')
    former = row.stats
    set_pin(row, PIN)
    assert read_pin(row) == PIN
    assert former == {'rack': '7'}
    set_pin(row, None)
    assert read_pin(row) is None
    assert row.stats == {'rack': '7'}


@pytest.mark.parametrize('stats', [None, {}, {'ironic_compute_pinned': ''}])
def test_row_without_a_pin(stats: Any) -> None:
    """Also a row of stock nova-compute, which may have no stats."""
    row = _row()
    row.stats = stats
    assert read_pin(row) is None


def test_target_is_the_pin_only_if_its_host_is_in_the_ring() -> None:
    """A host that is disabled, drained or retired takes no nodes."""
    row = _row()
    set_pin(row, PIN)
    assert target_of(row, Ring([C1, C2])) == C2
    assert target_of(row, Ring([C1])) == C1
    assert target_of(row, Ring()) is None
    set_pin(row, None)
    assert target_of(row, Ring([C1])) == C1


def test_every_write_of_the_stats_keeps_the_pin(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Reports, counts of failed builds, and the marks of a new row."""
    monkeypatch.setattr(
        objects.ComputeNode, 'save', lambda row: row.obj_reset_changes()
    )
    clock = ManualClock(start_s=0.0)
    rows = ComputeNodes(LeaseGate(clock, 99.0), clock)
    row, node = objects.ComputeNode(), NodeId('n1')
    rows.update_row(row, NodeFacts(node))
    rows.write_pin(row, PIN)
    row.stats = {**row.stats, NEW: '1'}
    clear_new_mark(row)
    rows.write_failed_builds(row, 7)
    rows.update_row(row, NodeFacts(node, properties={'cpu_arch': 'x86_64'}))
    assert read_pin(row) == PIN
    assert row.stats[FAILED_BUILDS] == '7'
    rows.write_pin(row, None)
    rows.update_row(row, NodeFacts(node, properties={'cpu_arch': 'aarch64'}))
    assert read_pin(row) is None

# SPDX-License-Identifier: Apache-2.0
"""The figures of a host are those of its worker's metrics."""

import pytest

from hashring.paths import Path, PathState
from hashring.ring import Host
from ironic_compute import catalogue
from ironic_compute.agent_port import figures
from ironic_compute.agent_port.figures import HostFigures
from ironic_compute.metrics import Metrics
from resource_tracker.node import NodeFacts, NodeId
from tests.fakes.clock import ManualClock
from tests.unit.ironic_compute.agent_port.pools import HOSTILE

C1, C2, C3 = Host('c1'), Host('c2'), Host('c3')


class _Nodes:
    """A worker with three nodes."""

    target = C2

    def held_facts(self) -> list[NodeFacts]:
        return [
            NodeFacts(NodeId('n1'), instance_uuid='s1', resource_class='x'),
            NodeFacts(NodeId('n2'), provision_state='available'),
            NodeFacts(NodeId('n3'), provision_state='enroll'),
        ]

    def pinned_count(self) -> int:
        return 0

    def waiting(self) -> tuple[int, float]:
        return 2, 61.5

    def misplaced(self) -> dict[NodeId, Host]:
        return {NodeId('n1'): C3, NodeId('n2'): self.target}


def _text(nodes: _Nodes) -> str:
    clock = ManualClock(100.0)
    metrics = Metrics('c1', clock)
    metrics.register_gauges(nodes)
    states = {
        Path('Ironic'): PathState(),
        Path('Neutron'): PathState(failing_since_s=90.0),
    }
    metrics.register_paths(lambda: states)
    metrics.register_findings(
        lambda: {catalogue.DEPLOY_FAILED: 2, catalogue.NODE_WITHOUT_CLASS: 0}
    )
    metrics.count_request('PUT', 'traits', '409', 0.03)
    return metrics.text().decode()


def test_each_figure_is_read() -> None:
    """Gauges of other things are left out."""
    assert figures.parse(_text(_Nodes())) == HostFigures(
        nodes=3,
        servers=1,
        without_class=1,
        moving={C2: 1},
        staying={C3: 1},
        dirty=2,
        oldest_dirty_s=61.5,
        failing_paths={Path('Neutron'): 10.0},
        findings={'failed-without-server': 2},
    )


@pytest.mark.parametrize('name', HOSTILE)
def test_a_strange_name_stays_one_host(name: str) -> None:
    """Quotes and brackets in a label do not end it."""
    nodes = _Nodes()
    nodes.target = Host(name)
    assert figures.parse(_text(nodes)).moving == {name: 1}


def test_a_worker_without_nodes_has_zeros() -> None:
    """So has one of an older release, which lacks a metric."""
    assert figures.parse('') == HostFigures()


def test_the_ring_gives_as_many_nodes_as_there_are() -> None:
    """Each share is what a host would hold if all nodes were in place."""
    shares = figures.ring_shares(
        {
            C1: HostFigures(nodes=10, moving={C2: 3}, staying={C2: 1, C3: 2}),
            C2: HostFigures(nodes=1),
        }
    )
    assert shares == {C1: 4, C2: 5, C3: 2}

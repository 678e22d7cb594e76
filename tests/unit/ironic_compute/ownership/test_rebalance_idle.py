# SPDX-License-Identifier: Apache-2.0
"""A round of the rebalancer when no node is to be pushed: its cost."""

import types
import typing

import pytest

from hashring.ring import Host, Ring
from ironic_compute.nodes.unconfirmed_rows import UnconfirmedRows
from ironic_compute.ownership.new_nodes import NewNodes
from ironic_compute.ownership.pacing import Pace, RowWriters
from ironic_compute.ownership.rebalance import Rebalancer
from ironic_compute.ownership.unheld_nodes import UnheldNodes
from ironic_compute.pool.view import RingStatus
from tests.fakes.clock import ManualClock

NODES = [f'node-{number}' for number in range(50)]
HERE, THERE = Host('c1'), Host('c2')


class CountingRing(Ring):
    """A hash ring that counts lookups of a node's target."""

    __slots__ = ('lookups_count',)

    def __init__(self, hosts):
        super().__init__(hosts)
        self.lookups_count = 0

    def target(self, node):
        """See Ring."""
        self.lookups_count += 1
        return super().target(node)


class Row(typing.NamedTuple):
    """The part of a row that names a node and its pin."""

    hypervisor_hostname: str
    stats: dict[str, str] | None


class OccupiedNodes:
    """Held nodes, none of them free; records which ones a round checks."""

    host = HERE

    unconfirmed_rows = UnconfirmedRows(ManualClock(), new_s=90.0)

    def __init__(self):
        self.held = {node: Row(node, None) for node in NODES}
        self.checked = []
        self.reads_count = 0

    def version(self):
        """See HeldNodes."""
        return len(self.held)

    def rows(self):
        """See HeldNodes."""
        self.reads_count += 1
        return dict(self.held)

    def is_pushable(self, node):
        """See HeldNodes."""
        self.checked.append(node)
        return False


class OpenGate:
    """A gate that is always open."""

    def is_open(self):
        """See Gate."""
        return True


@pytest.fixture
def pool():
    """Return a settled pool of two hosts."""
    ring = CountingRing([HERE, THERE])
    made = types.SimpleNamespace(ring=ring, known=(HERE,))
    made.ring_status = lambda: RingStatus(made.ring, 100.0, 100.0)
    return made


@pytest.fixture
def rebalancer(pool):
    """Return the rebalancer of a host that holds all fifty nodes."""
    pace = Pace(settle_s=0, confirm_s=0, push_budget=100)
    held_nodes, writers = OccupiedNodes(), RowWriters(1)
    services = types.SimpleNamespace(is_read=True, find_record=str)
    foreign = types.SimpleNamespace(is_stock_compute_up=lambda: False)
    new_nodes = NewNodes(
        UnheldNodes(),
        held_nodes,
        None,
        services,
        foreign,
        pool,
        ManualClock(),
        pace,
        writers,
        lambda node: None,
        lambda: None,
    )
    yield Rebalancer(
        held_nodes,
        None,
        services,
        new_nodes,
        foreign,
        pool,
        OpenGate(),
        pace,
        writers,
        lambda host, nodes: None,
    )
    writers.stop()


def test_idle_rounds_look_up_each_target_once(rebalancer, pool):
    """A round of thousands of nodes runs each second, and must be cheap."""
    for _ in range(3):
        rebalancer.run_round()
    assert pool.ring.lookups_count == len(NODES)
    assert rebalancer._held_nodes.reads_count == 1


def test_a_row_that_has_changed_is_seen_within_a_minute(rebalancer):
    """An answer of nova-conductor may have brought a pin."""
    rebalancer.run_round()
    rebalancer._held_nodes.held = {
        node: Row(node, {'ironic_compute_pinned': HERE}) for node in NODES
    }
    for _ in range(60):
        rebalancer.run_round()
    assert not rebalancer.misplaced()


def test_each_round_checks_whether_misplaced_nodes_are_free(rebalancer, pool):
    """A node that was not free a second ago may be free now."""
    rebalancer.run_round()
    rebalancer.run_round()
    elsewhere = [n for n in NODES if pool.ring.target(n) == THERE]
    assert sorted(rebalancer._held_nodes.checked) == sorted(elsewhere * 2)


def test_changed_ring_or_nodes_are_looked_up_again(rebalancer, pool):
    """A new ring or a new node may change the misplaced nodes."""
    rebalancer.run_round()
    rebalancer._held_nodes.held['another'] = Row('another', None)
    rebalancer.run_round()
    assert pool.ring.lookups_count == 2 * len(NODES) + 1
    rebalancer._held_nodes.checked.clear()
    pool.ring = CountingRing([THERE])
    rebalancer.run_round()
    assert set(rebalancer._held_nodes.checked) == {*NODES, 'another'}

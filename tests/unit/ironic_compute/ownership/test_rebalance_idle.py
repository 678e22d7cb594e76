# SPDX-License-Identifier: Apache-2.0
"""A round of the handover when there is nothing to hand over."""

import types

import pytest

from hashring.clock import ManualClock
from hashring.ring import Host, Ring
from ironic_compute.ownership.new_nodes import NewNodes
from ironic_compute.ownership.pacing import Pace, RowWriters
from ironic_compute.ownership.rebalance import Rebalancer
from ironic_compute.ownership.unheld_nodes import UnheldNodes
from ironic_compute.pool.view import RingStatus

NODES = [f'node-{number}' for number in range(50)]
HERE, THERE = Host('c1'), Host('c2')


class CountingRing(Ring):
    """Counts what it is asked."""

    __slots__ = ('asked_count',)

    def __init__(self, hosts):
        super().__init__(hosts)
        self.asked_count = 0

    def target(self, node):
        """See Ring."""
        self.asked_count += 1
        return super().target(node)


class Holdings:
    """Free nodes, as far as a round looks at them."""

    host = HERE

    def __init__(self):
        self.held = dict.fromkeys(NODES)
        self.given = []

    def rows(self):
        """See Holdings."""
        return dict(self.held)

    def unconfirmed(self):
        """See Holdings."""
        return frozenset()

    def is_free(self, node):
        """See Holdings."""
        self.given.append(node)
        return False


class OpenGate:
    """Nothing is in the way."""

    def is_open(self):
        """See Gate."""
        return True


@pytest.fixture
def pool():
    """A pool of two hosts that is settled."""
    made = types.SimpleNamespace(ring=CountingRing([HERE, THERE]))
    made.ring_status = lambda: RingStatus(made.ring, 100.0, 100.0)
    return made


@pytest.fixture
def rebalancer(pool):
    """One that holds fifty nodes, half of which belong elsewhere."""
    pace = Pace(settle_s=0, confirm_s=0, push_budget=100)
    held_nodes, writers = Holdings(), RowWriters(1)
    services = types.SimpleNamespace(is_read=True)
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


def test_round_about_nothing_asks_the_ring_nothing(rebalancer, pool):
    """Thousands of nodes, each second: they are looked up once."""
    for _ in range(3):
        rebalancer.run_round()
    assert pool.ring.asked_count == len(NODES)


def test_each_round_looks_at_what_belongs_elsewhere(rebalancer, pool):
    """A node that was not free a second ago may be now."""
    rebalancer.run_round()
    rebalancer.run_round()
    elsewhere = [n for n in NODES if pool.ring.target(n) == THERE]
    assert sorted(rebalancer._held_nodes.given) == sorted(elsewhere * 2)


def test_change_of_the_ring_or_of_the_nodes_is_seen(rebalancer, pool):
    """Another ring, or a node more: looked up anew."""
    rebalancer.run_round()
    rebalancer._held_nodes.held['another'] = None
    rebalancer.run_round()
    assert pool.ring.asked_count == 2 * len(NODES) + 1
    rebalancer._held_nodes.given.clear()
    pool.ring = CountingRing([THERE])
    rebalancer.run_round()
    assert set(rebalancer._held_nodes.given) == {*NODES, 'another'}

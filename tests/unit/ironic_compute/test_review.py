# SPDX-License-Identifier: Apache-2.0
"""What an audit finds out about the rows of held nodes, and what it asks."""

import gc
import weakref
from typing import Any

import pytest

from hashring.ring import Host
from ironic_compute.review import Review
from resource_tracker.node import NodeId
from tests.simulation.wire import Letter
from tests.unit.ironic_compute.hosts import Cloud, Counted, One

C1, C2 = Host('c1'), Host('c2')
N1 = NodeId('node-001')


@pytest.fixture
def cloud() -> Cloud:
    """Return a pool of two hosts, the first of which holds all nodes."""
    made = Cloud(f'node-{number:03}' for number in range(600))
    one = made.add('c1')
    made.show('c1')
    one.newcomers.listed(made.nodes)
    made.rounds(one, 2)
    made.add('c2')
    return made


def _one(cloud: Cloud) -> One:
    return cloud.hosts[C1]


def test_a_row_that_was_given_away_is_dropped(cloud: Cloud) -> None:
    """By a hand that told nobody."""
    cloud.nova.rows[N1].host = C2
    _one(cloud).review.audited()
    assert _one(cloud).holdings.row(N1) is None
    assert len(_one(cloud).holdings.rows()) == 599


def test_a_row_that_is_gone_is_dropped(cloud: Cloud) -> None:
    """Whoever deleted it."""
    cloud.nova.rows[N1].deleted = True
    _one(cloud).review.audited()
    assert _one(cloud).holdings.row(N1) is None


def test_a_row_of_another_uuid_stays_held(cloud: Cloud) -> None:
    """It is not found by its node's uuid, but by its name."""
    _one(cloud).rows.odd_ones.add(N1)
    _one(cloud).review.audited()
    assert _one(cloud).holdings.row(N1) is not None


def test_a_row_that_came_to_us_meanwhile_stays_held(cloud: Cloud) -> None:
    """What was read before it came says nothing of it."""
    one = _one(cloud)
    cloud.nova.rows[N1].host = C2
    of_nodes = one.rows.of_nodes

    def late(nodes: list[NodeId]) -> dict[NodeId, object]:
        found = of_nodes(nodes)
        if N1 in nodes:
            one.rows.of_nodes = of_nodes  # type: ignore[method-assign]
            one.holdings.drop(N1)
            cloud.nova.rows[N1].host = C1
            one.newcomers.look_at(N1)
        return dict(found)

    one.rows.of_nodes = late  # type: ignore[assignment, method-assign]
    one.review.audited()
    assert one.holdings.row(N1) is not None


def test_rows_are_read_some_at_a_time(cloud: Cloud) -> None:
    """No reply is about all of them: 600 nodes take two."""
    counted = Counted(_one(cloud))
    _one(cloud).review.audited()
    assert counted.counts == {'read': 2}


def test_rows_that_were_read_again_are_freed(cloud: Cloud) -> None:
    """They refer to themselves, as Nova's do; nobody waits for chance."""
    one, read = _one(cloud), []
    of_host = one.rows.of_host

    def circles(host: Host) -> list[Any]:
        found = of_host(host)
        for row in found:
            row.values = [row]
        read.extend(weakref.ref(row) for row in found)
        return found

    one.rows.of_host = circles  # type: ignore[method-assign]
    review = Review(one.holdings, one.rows, cloud.clock, 0.0, gc.collect)
    gc.disable()
    try:
        review.audited()
        kept = [row() for row in read if row() is not None]
    finally:
        gc.enable()
    assert len(read) == 600
    assert not kept


def test_a_row_that_nothing_else_shows_is_found_within_an_hour(
    cloud: Cloud,
) -> None:
    """It was given to us, nobody told, and Ironic knows its node no more."""
    letter = Letter('c2', 'c2', late=False)
    cloud.nova.create_row(letter, NodeId('node-gone'), C1, 7)
    _one(cloud).audit()
    assert _one(cloud).holdings.row(NodeId('node-gone')) is None
    cloud.clock.advance(3600.0)
    _one(cloud).audit()
    assert _one(cloud).holdings.row(NodeId('node-gone')) is not None
    _one(cloud).audit()
    assert 'node-gone' in cloud.removed

# SPDX-License-Identifier: Apache-2.0
"""What an audit finds out about the rows of held nodes, and what it asks."""

import math
from collections.abc import Callable

import pytest

from hashring.ring import Host
from resource_tracker.node import NodeFacts, NodeId
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
    one.new_nodes.reset_from_list(made.nodes)
    made.rounds(one, 2)
    made.add('c2')
    return made


def _one(cloud: Cloud) -> One:
    return cloud.hosts[C1]


def test_a_row_that_was_given_away_is_dropped(cloud: Cloud) -> None:
    """By a hand that told nobody."""
    cloud.nova.rows[N1].host = C2
    _one(cloud).row_audit.check_rows()
    assert _one(cloud).held_nodes.row(N1) is None
    assert len(_one(cloud).held_nodes.rows()) == 599


def test_a_row_that_is_gone_is_dropped(cloud: Cloud) -> None:
    """Whoever deleted it."""
    cloud.nova.rows[N1].deleted = True
    _one(cloud).row_audit.check_rows()
    assert _one(cloud).held_nodes.row(N1) is None


def test_a_row_of_another_uuid_stays_held(cloud: Cloud) -> None:
    """It is not found by its node's uuid, but by its name."""
    _one(cloud).rows.odd_ones.add(N1)
    _one(cloud).row_audit.check_rows()
    assert _one(cloud).held_nodes.row(N1) is not None


def test_a_row_that_came_to_us_meanwhile_stays_held(cloud: Cloud) -> None:
    """What was read before it came says nothing of it."""
    one = _one(cloud)
    cloud.nova.rows[N1].host = C2
    of_nodes = one.rows.of_nodes

    def late(nodes: list[NodeId]) -> dict[NodeId, object]:
        found = of_nodes(nodes)
        if N1 in nodes:
            one.rows.of_nodes = of_nodes  # type: ignore[method-assign]
            one.held_nodes.drop(N1)
            cloud.nova.rows[N1].host = C1
            one.new_nodes.hold_if_ours(N1)
        return dict(found)

    one.rows.of_nodes = late  # type: ignore[assignment, method-assign]
    one.row_audit.check_rows()
    assert one.held_nodes.row(N1) is not None


def test_rows_are_read_some_at_a_time(cloud: Cloud) -> None:
    """No reply is about all of them: 600 nodes take three."""
    counted = Counted(_one(cloud))
    _one(cloud).row_audit.check_rows()
    assert counted.counts == {'read': 3}


def test_a_look_goes_on_where_it_stopped(cloud: Cloud) -> None:
    """It is about 2,000 rows, and all others have their turn."""
    one, count = _one(cloud), 8 * 250
    new = [NodeId(f'more-{number:04}') for number in range(count)]
    cloud.nodes.update({node: NodeFacts(node) for node in new})
    one.new_nodes.reset_from_list(cloud.nodes)
    cloud.rounds(one, 2)
    cloud.nova.rows[N1].host = C2
    counted = Counted(one)
    one.row_audit.check_rows()
    assert counted.counts == {'read': 8}
    assert one.held_nodes.row(N1) is not None
    _audit(cloud, 2)
    assert one.held_nodes.row(N1) is None


def test_a_row_that_nothing_else_shows_is_found(cloud: Cloud) -> None:
    """It was given to us, nobody told, and Ironic knows its node no more."""
    _give_unknown(cloud)
    _audit_until(cloud, lambda: _is_held(cloud))
    _audit_until(cloud, lambda: 'node-gone' in cloud.removed)


def test_a_search_goes_on_where_it_stopped(cloud: Cloud) -> None:
    """No audit reads more rows because there are more."""
    _give_unknown(cloud)
    counted = Counted(_one(cloud))
    _audit_until(cloud, lambda: _is_held(cloud))
    # Four rows a page here, and three replies about those that are held.
    pages_count = math.ceil(601 / 4)
    assert counted.counts == {'read': pages_count + pages_count // 3 * 3 + 3}


def test_a_search_begins_anew_where_the_last_row_is_gone(
    cloud: Cloud,
) -> None:
    """There is no other way to go on."""
    _give_unknown(cloud)
    _audit(cloud, 2)
    for row in sorted(cloud.nova.rows.values(), key=lambda row: row.id)[:13]:
        row.deleted = True
    _audit_until(cloud, lambda: _is_held(cloud))


def test_a_search_that_fails_does_not_stop_the_look(cloud: Cloud) -> None:
    """Nor does it stop the next search: each has every second audit."""
    one = _one(cloud)

    def fail(marker: object) -> None:
        raise TimeoutError

    one.rows.page = fail  # type: ignore[assignment, method-assign]
    cloud.nova.rows[N1].host = C2
    one.row_audit._searches_next = True
    with pytest.raises(TimeoutError):
        one.row_audit.check_rows()
    one.row_audit.check_rows()
    assert one.held_nodes.row(N1) is None


def _give_unknown(cloud: Cloud) -> None:
    letter = Letter('c2', 'c2', late=False)
    cloud.nova.create_row(letter, NodeId('node-gone'), C1, 7)


def _is_held(cloud: Cloud) -> bool:
    return _one(cloud).held_nodes.row(NodeId('node-gone')) is not None


def _audit(cloud: Cloud, count: int) -> None:
    for _ in range(count):
        _one(cloud).audit()


def _audit_until(cloud: Cloud, is_so: Callable[[], bool]) -> None:
    for _ in range(200):
        if is_so():
            return
        _audit(cloud, 1)
    pytest.fail('Not after 200 audits')

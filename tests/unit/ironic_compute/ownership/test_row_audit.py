# SPDX-License-Identifier: Apache-2.0
"""Audit of ComputeNode rows: what it finds, and what it costs."""

import math
from collections.abc import Callable

import pytest

from hashring.ring import Host
from ironic_compute.nodes.pins import Pin, read_pin, set_pin
from resource_tracker.node import NodeFacts, NodeId
from tests.simulation.wire import SentRequest
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


def test_node_whose_row_names_another_host_is_dropped(cloud: Cloud) -> None:
    """Another program changed the holder in the database."""
    cloud.nova.rows[N1].host = C2
    _one(cloud).row_audit.check_rows()
    assert _one(cloud).held_nodes.row(N1) is None
    assert len(_one(cloud).held_nodes.rows()) == 599


def test_node_whose_row_is_deleted_is_dropped(cloud: Cloud) -> None:
    """Another program deleted the row."""
    cloud.nova.rows[N1].deleted = True
    _one(cloud).row_audit.check_rows()
    assert _one(cloud).held_nodes.row(N1) is None


def test_node_whose_row_has_another_uuid_stays_held(cloud: Cloud) -> None:
    """Such a row is found by the name of the node only."""
    _one(cloud).rows.odd_ones.add(N1)
    _one(cloud).row_audit.check_rows()
    assert _one(cloud).held_nodes.row(N1) is not None


def test_node_given_to_the_host_meanwhile_stays_held(cloud: Cloud) -> None:
    """The row was read before the node came to this host."""
    one = _one(cloud)
    cloud.nova.rows[N1].host = C2
    of_nodes = one.rows.list_by_nodes

    def late(nodes: list[NodeId]) -> dict[NodeId, object]:
        found = of_nodes(nodes)
        if N1 in nodes:
            one.rows.list_by_nodes = of_nodes  # type: ignore[method-assign]
            one.held_nodes.drop_node(N1)
            cloud.nova.rows[N1].host = C1
            one.new_nodes.hold_if_ours(N1)
        return dict(found)

    one.rows.list_by_nodes = late  # type: ignore[assignment, method-assign]
    one.row_audit.check_rows()
    assert one.held_nodes.row(N1) is not None


def test_rows_are_read_in_parts(cloud: Cloud) -> None:
    """The rows of 600 nodes are read in three RPCs."""
    counted = Counted(_one(cloud))
    _one(cloud).row_audit.check_rows()
    assert counted.counts == {'read': 3}


def test_next_audit_reads_the_rows_after_the_first_2000(cloud: Cloud) -> None:
    """An audit reads 2,000 rows at most, and all rows have their turn."""
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


def test_row_of_an_unknown_node_is_found_and_removed(cloud: Cloud) -> None:
    """The row names this host, and Ironic has no such node any more."""
    _give_unknown(cloud)
    _audit_until(cloud, lambda: _is_held(cloud))
    _audit_until(cloud, lambda: 'node-gone' in cloud.removed)


def test_search_continues_where_it_stopped(cloud: Cloud) -> None:
    """No audit reads more pages because there are more rows."""
    _give_unknown(cloud)
    counted = Counted(_one(cloud))
    _audit_until(cloud, lambda: _is_held(cloud))
    # A page has four rows here; each other audit reads held rows in 3 RPCs.
    pages_count = math.ceil(601 / 4)
    assert counted.counts == {'read': pages_count + pages_count // 3 * 3 + 3}


def test_search_starts_again_if_its_last_row_was_deleted(
    cloud: Cloud,
) -> None:
    """Nova cannot continue after a marker that does not exist."""
    _give_unknown(cloud)
    _audit(cloud, 2)
    for row in sorted(cloud.nova.rows.values(), key=lambda row: row.id)[:13]:
        row.deleted = True
    _audit_until(cloud, lambda: _is_held(cloud))


def test_failed_search_does_not_stop_the_check_of_held_rows(
    cloud: Cloud,
) -> None:
    """A search and a check take turns, whether they fail or not."""
    one = _one(cloud)

    def fail(marker: object) -> None:
        raise TimeoutError

    one.rows.read_page = fail  # type: ignore[assignment, method-assign]
    cloud.nova.rows[N1].host = C2
    one.row_audit._searches_next = True
    with pytest.raises(TimeoutError):
        one.row_audit.check_rows()
    one.row_audit.check_rows()
    assert one.held_nodes.row(N1) is None


def _give_unknown(cloud: Cloud) -> None:
    request = SentRequest('c2', 'c2', late=False)
    cloud.nova.create_row(request, NodeId('node-gone'), C1, 7)


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


def test_pin_that_a_late_request_has_removed_is_written_again(
    cloud: Cloud,
) -> None:
    """The holder knows what an operator has ordered."""
    one, pin = _one(cloud), Pin(C2, 'ann')
    row = one.held_nodes.row(N1)
    one.rows.write_pin(row, pin)
    set_pin(cloud.nova.rows[N1], None)
    one.row_audit.check_rows()
    assert read_pin(cloud.nova.rows[N1]) == pin


def test_pin_that_a_late_request_has_written_is_removed(cloud: Cloud) -> None:
    """Nobody has confirmed it to an operator."""
    set_pin(cloud.nova.rows[N1], Pin(C2, 'ann'))
    _one(cloud).row_audit.check_rows()
    assert read_pin(cloud.nova.rows[N1]) is None

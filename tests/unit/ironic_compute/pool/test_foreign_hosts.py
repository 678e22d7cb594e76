# SPDX-License-Identifier: Apache-2.0
"""Rows of hosts that are not of the pool: told, and left alone."""

import pytest

from hashring.ring import Host
from resource_tracker.node import NodeFacts, NodeId
from tests.simulation.nova import NodeRecord, ServiceRecord
from tests.unit.ironic_compute.hosts import Cloud, Counted

N, STOCK = NodeId('node-0'), Host('stock')
OTHERS = [f'node-{number}' for number in range(1, 9)]


def _cloud(*stock: Host) -> Cloud:
    """A pool at rest, with one node that a host of nobody's holds."""
    cloud = Cloud([N, *OTHERS])
    nova = cloud.nova
    record = ServiceRecord(nova.new_id(), STOCK, mapped=True)
    nova.services[STOCK] = record
    nova.rows[N] = NodeRecord(nova.new_id(), N, STOCK, record.id)
    cloud.stock |= set(stock)
    for host in ('c1', 'c2'):
        cloud.add(host)
    cloud.show('c1')
    cloud.settle()
    assert {h for n, h in cloud.providers.items() if n != N} == {Host('c1')}
    return cloud


def test_nothing_is_pushed_beside_a_stock_nova_compute(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """It would take each node back within a minute, for ever."""
    cloud = _cloud(STOCK)
    cloud.show('c2')
    cloud.settle()
    assert cloud.moved == []
    assert 'not ours serves host stock and holds node node-0' in caplog.text
    assert len(caplog.records) == 2  # Each of two hosts says it once.


def test_a_stock_nova_compute_that_is_down_hinders_nobody() -> None:
    """As soon as Nova takes it for down, nodes follow the ring again."""
    cloud = _cloud(STOCK)
    cloud.nova.services[STOCK].reported_s = -1000.0
    cloud.show('c2')
    cloud.settle()
    assert {node for node, _, _ in cloud.moved} == set(OTHERS)
    assert cloud.nova.rows[N].host == STOCK


def test_a_host_of_another_pool_of_ours_hinders_nobody(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Its node was moved here in Ironic; that is told, and no more."""
    cloud = _cloud()
    cloud.show('c2')
    cloud.settle()
    assert {node for node, _, _ in cloud.moved} == set(OTHERS)
    assert cloud.nova.rows[N].host == STOCK
    assert 'ironic-computectl node forget node-0' in caplog.text


def test_a_node_that_was_taken_from_us_shows_who_took_it() -> None:
    """The next write to its row brings the thief's name: no push then."""
    cloud = _cloud(STOCK)
    nova, one = cloud.nova, cloud.hosts[Host('c1')]
    nova.services[STOCK].reported_s = -1000.0
    one.rebalancer.run_round()
    taken = NodeId(OTHERS[0])
    nova.services[STOCK].reported_s = 0.0
    nova.rows[taken].host = STOCK
    row = one.held_nodes.row(taken)
    row.host = STOCK  # As the answer to a save has it.
    one.held_nodes.report(taken)
    assert one.held_nodes.row(taken) is None
    cloud.show('c2')
    one.rebalancer.run_round()
    assert cloud.moved == []


def test_a_push_reads_the_row_first() -> None:
    """A late write gave it to another; who lost it must not give it on."""
    cloud = _cloud()
    late = NodeId(OTHERS[0])
    cloud.nova.rows[late].host = Host('c3')
    one = cloud.hosts[Host('c1')]
    one.show('c2')
    one.rebalancer.run_round()
    assert late not in {node for node, _, _ in cloud.moved}
    assert cloud.nova.rows[late].host == 'c3'
    assert one.held_nodes.row(late) is None


def test_an_orphan_s_host_is_asked_for_at_the_last_moment() -> None:
    """Its Service was made after we looked at all of them."""
    cloud = _cloud()
    nova, one = cloud.nova, cloud.hosts[Host('c1')]
    record = nova.services.pop(STOCK)
    one.services.read_records()
    nova.services[STOCK] = record
    one.new_nodes.reset_from_list(cloud.nodes)
    one.rebalancer.run_round()
    assert nova.rows[N].host == STOCK
    del nova.services[STOCK]
    one.new_nodes.reset_from_list(cloud.nodes)
    one.rebalancer.run_round()
    assert nova.rows[N].host == 'c1'


def test_a_node_that_its_former_pool_lets_go_is_taken_up_soon() -> None:
    """Nobody tells of a removed row, and the next full list is far away."""
    cloud = _cloud()
    one = cloud.hosts[Host('c1')]
    del cloud.nova.rows[N]
    cloud.rounds(one, 60)
    assert cloud.providers[N] == Host('c1')


def test_a_foreign_host_that_nova_forgot_leaves_its_nodes_to_the_ring() -> (
    None
):
    """As an orphan's: the row stays and is given to the target."""
    cloud = _cloud()
    one = cloud.hosts[Host('c1')]
    del cloud.nova.services[STOCK]
    one.services.read_records()
    cloud.rounds(one, 60)
    assert cloud.nova.rows[N].host == Host('c1')
    assert cloud.providers[N] == Host('c1')


def test_what_foreign_hosts_hold_costs_one_question_in_thirty_seconds() -> (
    None
):
    """For as long as it is so; each node has its turn."""
    cloud = _cloud()
    one = cloud.hosts[Host('c1')]
    nova = cloud.nova
    for number in range(250):
        node = NodeId(f'late-{number:03}')
        cloud.nodes[node] = NodeFacts(node)
        nova.rows[node] = NodeRecord(nova.new_id(), node, STOCK, 1)
    cloud.settle()
    counted = Counted(one)
    asked: list[int] = []
    for _ in range(100):
        before = counted.counts['read']
        one.rebalancer.run_round()
        asked.append(counted.counts['read'] - before)
        cloud.clock.advance(1.0)
    assert sum(asked) in (3, 4)
    assert max(asked) == 1
    del nova.rows[NodeId('late-249')]
    cloud.rounds(one, 90)
    assert cloud.providers['late-249'] == Host('c1')

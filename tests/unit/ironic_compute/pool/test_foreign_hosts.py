# SPDX-License-Identifier: Apache-2.0
"""Foreign hosts: they are logged, keep their nodes, may stop all pushes."""

import pytest

from hashring.ring import Host
from resource_tracker.node import NodeFacts, NodeId
from tests.simulation.nova import NodeRecord, ServiceRecord
from tests.unit.ironic_compute.hosts import Cloud, Counted

N, STOCK = NodeId('node-0'), Host('stock')
OTHERS = [f'node-{number}' for number in range(1, 9)]


def _cloud(*stock: Host) -> Cloud:
    """A settled pool of two hosts, with one node that a foreign host holds.

    :param stock: the foreign host, if a stock nova-compute serves it
    """
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


def test_stock_nova_compute_stops_all_pushes(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """A stock nova-compute would take each pushed node back in a minute."""
    cloud = _cloud(STOCK)
    cloud.show('c2')
    cloud.settle()
    assert cloud.moved == []
    assert (
        'outside of this pool serves host stock and holds node node-0'
        in caplog.text
    )
    assert len(caplog.records) == 2  # Each of two hosts logs it once.


def test_stock_nova_compute_that_is_down_stops_no_push() -> None:
    """Free nodes follow the ring again once Nova counts it as down."""
    cloud = _cloud(STOCK)
    cloud.nova.services[STOCK].reported_s = -1000.0
    cloud.show('c2')
    cloud.settle()
    assert {node for node, _, _ in cloud.moved} == set(OTHERS)
    assert cloud.nova.rows[N].host == STOCK


def test_host_of_another_pool_stops_no_push(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """A node that was moved here in Ironic is logged with the remedy."""
    cloud = _cloud()
    cloud.show('c2')
    cloud.settle()
    assert {node for node, _, _ in cloud.moved} == set(OTHERS)
    assert cloud.nova.rows[N].host == STOCK
    assert 'ironic-computectl node forget node-0' in caplog.text


def test_stock_nova_compute_that_takes_a_held_node_stops_pushes() -> None:
    """The answer to the next write of the row names the new holder."""
    cloud = _cloud(STOCK)
    nova, one = cloud.nova, cloud.hosts[Host('c1')]
    nova.services[STOCK].reported_s = -1000.0
    one.rebalancer.run_round()
    taken = NodeId(OTHERS[0])
    nova.services[STOCK].reported_s = 0.0
    nova.rows[taken].host = STOCK
    row = one.held_nodes.row(taken)
    row.host = STOCK  # As after the answer to a save.
    one.held_nodes.report_node(taken)
    assert one.held_nodes.row(taken) is None
    cloud.show('c2')
    one.rebalancer.run_round()
    assert cloud.moved == []


def test_push_reads_the_row_first() -> None:
    """A node that a late write gave to another host is dropped."""
    cloud = _cloud()
    late = NodeId(OTHERS[0])
    cloud.nova.rows[late].host = Host('c3')
    one = cloud.hosts[Host('c1')]
    one.show('c2')
    one.rebalancer.run_round()
    assert late not in {node for node, _, _ in cloud.moved}
    assert cloud.nova.rows[late].host == 'c3'
    assert one.held_nodes.row(late) is None


def test_service_record_of_an_orphan_is_read_before_it_is_taken() -> None:
    """The holder's Service record was created after the last full read."""
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


def test_node_that_its_former_pool_forgets_is_taken_within_60_s() -> None:
    """No message comes of a deleted row, so the row is read at intervals."""
    cloud = _cloud()
    one = cloud.hosts[Host('c1')]
    del cloud.nova.rows[N]
    cloud.rounds(one, 60)
    assert cloud.providers[N] == Host('c1')


def test_node_of_a_deleted_foreign_host_is_taken_within_60_s() -> None:
    """The ring target takes the row of an orphan over."""
    cloud = _cloud()
    one = cloud.hosts[Host('c1')]
    del cloud.nova.services[STOCK]
    one.services.read_records()
    cloud.rounds(one, 60)
    assert cloud.nova.rows[N].host == Host('c1')
    assert cloud.providers[N] == Host('c1')


def test_rows_of_foreign_hosts_cost_one_read_in_30_s() -> None:
    """Each of 250 such rows is read within three such intervals."""
    cloud = _cloud()
    one = cloud.hosts[Host('c1')]
    nova = cloud.nova
    for number in range(250):
        node = NodeId(f'late-{number:03}')
        cloud.nodes[node] = NodeFacts(node)
        nova.rows[node] = NodeRecord(nova.new_id(), node, STOCK, 1)
    cloud.settle()
    counted = Counted(one)
    reads: list[int] = []
    for _ in range(100):
        before = counted.counts['read']
        one.rebalancer.run_round()
        reads.append(counted.counts['read'] - before)
        cloud.clock.advance(1.0)
    assert sum(reads) in (3, 4)
    assert max(reads) == 1
    del nova.rows[NodeId('late-249')]
    cloud.rounds(one, 90)
    assert cloud.providers['late-249'] == Host('c1')

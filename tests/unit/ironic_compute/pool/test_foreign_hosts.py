# SPDX-License-Identifier: Apache-2.0
"""Foreign hosts: they are logged, keep their nodes, may stop all pushes."""

import pytest

from hashring.ring import Host
from ironic_compute.pool.foreign_hosts import Answer
from resource_tracker.node import NodeFacts, NodeId
from tests.simulation.nova import NodeRecord, ServiceRecord
from tests.unit.ironic_compute.hosts import Cloud, Counted

C1, N, STOCK = Host('c1'), NodeId('node-0'), Host('stock')
OTHERS = [f'node-{number}' for number in range(1, 9)]


def _cloud(
    *stock: Host, is_up: bool = True, answer: Answer = Answer.RECEIVED
) -> Cloud:
    """A settled pool of two hosts, with one node that a foreign host holds.

    :param stock: the foreign host, if a stock nova-compute serves it
    :param answer: what that host answers to a request for nodes
    """
    cloud = Cloud([N, *OTHERS])
    cloud.answer = answer
    nova = cloud.nova
    record = ServiceRecord(nova.new_id(), STOCK, mapped=True)
    nova.services[STOCK] = record
    record.reported_s = 0.0 if is_up else -1000.0
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
    """It is asked for its node, and nothing is wrong with that."""
    cloud = _cloud()
    cloud.show('c2')
    cloud.settle()
    assert {node for node, _, _ in cloud.moved} == set(OTHERS)
    assert cloud.nova.rows[N].host == STOCK
    assert not caplog.records


def test_host_of_another_pool_that_is_down_is_logged(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Only its own daemon may give the node away."""
    cloud = _cloud(is_up=False)
    assert cloud.requested == []
    assert 'no daemon answers there' in caplog.text
    assert len(caplog.records) == 2  # Each of two hosts logs it once.


def test_ring_target_asks_the_host_of_another_pool_until_it_gives() -> None:
    """The other hosts of the pool do not ask."""
    cloud = _cloud()
    one = cloud.hosts[C1]
    assert set(map(str, cloud.requested)) == {
        str((C1, STOCK, [N])),
    }
    cloud.requested.clear()
    cloud.rounds(one, 61)
    assert len(cloud.requested) in (2, 3)
    cloud.requested.clear()
    cloud.nova.rows[N].host = C1
    one.unheld.mark_given([N])
    cloud.rounds(one, 61)
    assert cloud.requested == []
    assert cloud.holders()[N] == [C1]


def test_nobody_asks_while_the_agents_disagree() -> None:
    """Two hosts could both take themselves for the ring target."""
    cloud = _cloud()
    cloud.requested.clear()
    cloud.show('c1', agreed=False)
    cloud.rounds(cloud.hosts[C1], 61)
    assert cloud.requested == []


def test_node_that_leaves_the_pool_again_is_not_asked_for() -> None:
    """The feed has read that it is in another pool."""
    cloud = _cloud()
    one = cloud.hosts[C1]
    cloud.requested.clear()
    one.node_changes.node_left_pool(cloud.nodes[N])
    cloud.rounds(one, 61)
    assert cloud.requested == []


def test_stock_nova_compute_is_not_asked() -> None:
    """It would log an error of a message that it does not know."""
    assert _cloud(STOCK).requested == []


def test_daemon_of_an_older_release_is_asked_once_per_audit(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """It logs an error of each message that it does not know."""
    cloud = _cloud(answer=Answer.UNKNOWN)
    one = cloud.hosts[C1]
    assert 'of an older release' in caplog.text
    assert not one.foreign.gives_nodes(STOCK)
    cloud.requested.clear()
    cloud.rounds(one, 61)
    assert cloud.requested == []
    cloud.answer = Answer.RECEIVED
    one.audit()
    cloud.rounds(one, 2)
    assert len(cloud.requested) == 1
    assert one.foreign.gives_nodes(STOCK)


def test_host_that_does_not_answer_is_asked_again() -> None:
    """A request may be lost, as any message."""
    cloud = _cloud(answer=Answer.NONE)
    one = cloud.hosts[C1]
    cloud.requested.clear()
    cloud.rounds(one, 61)
    assert len(cloud.requested) in (2, 3)
    assert not one.foreign.gives_nodes(STOCK)


@pytest.mark.parametrize('is_stock', [False, True])
def test_host_that_was_silent_is_asked_again_who_it_is(
    *, is_stock: bool
) -> None:
    """It was just being started, or had too much to do."""
    cloud = _cloud()
    one = cloud.hosts[C1]
    one.foreign._is_ironic_compute = lambda host: None
    one.audit()
    cloud.requested.clear()
    cloud.rounds(one, 61)
    assert cloud.requested == []
    assert not one.foreign.is_stock_compute_up()
    one.foreign._is_ironic_compute = lambda host: not is_stock
    cloud.rounds(one, 121)
    assert bool(cloud.requested) is not is_stock
    assert one.foreign.is_stock_compute_up() is is_stock


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


def test_audit_amid_a_round_hides_no_stock_nova_compute() -> None:
    """Its list comes when the rows of this round have been read."""
    cloud = _cloud(STOCK)
    one = cloud.hosts[C1]
    place = one.new_nodes.place_nodes

    def place_and_audit() -> None:
        place()
        one.audit()

    one.new_nodes.place_nodes = place_and_audit  # type: ignore[method-assign]
    cloud.show('c2')
    cloud.rounds(one, 3)
    assert cloud.moved == []
    one.new_nodes.place_nodes = place  # type: ignore[method-assign]
    cloud.nova.rows[N].host = C1
    cloud.rounds(one, 1)
    assert {node for node, _, _ in cloud.moved} == {N, *OTHERS}


def test_told_list_hides_no_stock_nova_compute() -> None:
    """It has come to hold a node since the worker found that none waits."""
    cloud = _cloud(STOCK)
    one = cloud.hosts[C1]
    one.new_nodes.check_listed(cloud.nodes.keys())
    cloud.show('c2')
    cloud.rounds(one, 3)
    assert cloud.moved == []


def test_told_list_forgets_a_stock_nova_compute_that_holds_nothing() -> None:
    """No row names it any more, and free nodes follow the ring again."""
    cloud = _cloud(STOCK)
    one = cloud.hosts[C1]
    one.node_changes.node_left_pool(cloud.nodes[N])
    cloud.show('c2')
    cloud.rounds(one, 3)
    assert cloud.moved == []
    one.new_nodes.check_listed({*OTHERS})
    cloud.rounds(one, 1)
    assert {node for node, _, _ in cloud.moved} == set(OTHERS)


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

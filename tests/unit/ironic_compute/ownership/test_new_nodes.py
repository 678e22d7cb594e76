# SPDX-License-Identifier: Apache-2.0
"""Placing of new and orphaned nodes: its cost, its order and its races."""

import dataclasses
from collections.abc import Callable
from typing import Any

import pytest

from hashring.ring import Host
from resource_tracker.node import NodeId
from tests.simulation.faults import Unreachable
from tests.simulation.nova import ServiceRecord
from tests.simulation.wire import SentRequest
from tests.unit.ironic_compute.hosts import Cloud, Counted

_NODES_COUNT = 250
C1, C2 = Host('c1'), Host('c2')


@pytest.fixture
def cloud() -> Cloud:
    """Return a pool of one host that has not placed its nodes yet."""
    made = Cloud(f'node-{number:03}' for number in range(_NODES_COUNT))
    made.add('c1')
    made.show('c1')
    return made


def test_new_node_costs_one_write_and_no_read(
    cloud: Cloud,
) -> None:
    """Rows are read in bulk, and one request creates each row."""
    one = cloud.hosts[C1]
    counted = Counted(one)
    one.new_nodes.reset_from_list(cloud.nodes)
    cloud.rounds(one, 20)
    assert set(cloud.providers) == set(cloud.nodes)
    assert counted.counts['write'] == _NODES_COUNT
    assert counted.counts['read'] < _NODES_COUNT / 10


def test_nodes_of_a_deleted_service_are_taken_before_the_next_audit(
    cloud: Cloud,
) -> None:
    """Nova deletes their rows with it, and no message says so."""
    one, two = cloud.hosts[C1], cloud.add('c2')
    cloud.show('c1', 'c2')
    cloud.settle()
    lost = two.held_nodes.rows().keys()
    counted = Counted(one)
    cloud.rounds(one, 3)
    assert lost
    assert counted.counts['read'] == 0
    del cloud.nova.services[C2]
    for node in lost:
        cloud.nova.rows[node].deleted = True
    del cloud.hosts[C2]
    one.services.read_records()
    cloud.show('c1')
    cloud.rounds(one, 2)
    # More than a hundred: one list costs Ironic less than as many reads.
    assert one.audits_requested == 1
    one.audit()
    cloud.rounds(one, 5)
    assert one.held_nodes.rows().keys() == cloud.nodes.keys()


def test_first_rows_are_confirmed_while_others_are_created(
    cloud: Cloud,
) -> None:
    """Thousands of new nodes do not wait for the last row."""
    one = cloud.hosts[C1]
    create = cloud.nova.create_row
    offered_counts = []

    def slow(*arguments: Any) -> Any:
        cloud.clock.advance(0.013)
        offered_counts.append(len(cloud.providers))
        return create(*arguments)

    cloud.nova.create_row = slow  # type: ignore[method-assign]
    one.new_nodes.reset_from_list(cloud.nodes)
    one.rebalancer.run_round()
    assert offered_counts[0] == 0
    assert 0 < offered_counts[-1] < _NODES_COUNT


def test_rows_read_before_the_agreement_create_nothing(cloud: Cloud) -> None:
    """The target of the previous ring may have created the row since."""
    one, two = cloud.hosts[C1], cloud.add('c2')
    one.show('c1')
    cloud.clock.advance(60.0)
    two.show('c2', agreed=False)
    of_nodes = two.rows.list_by_nodes

    def slow(nodes: Any) -> Any:
        found = of_nodes(nodes)
        two.rows.list_by_nodes = of_nodes  # type: ignore[method-assign]
        one.new_nodes.reset_from_list(cloud.nodes)
        one.new_nodes.place_nodes()
        cloud.clock.advance(0.3)
        two.show('c2')
        cloud.clock.advance(0.3)
        return found

    two.rows.list_by_nodes = slow  # type: ignore[method-assign]
    two.new_nodes.reset_from_list(cloud.nodes)
    two.new_nodes.place_nodes()
    assert set(cloud.providers) == set(cloud.nodes)
    assert not cloud.moved


@pytest.mark.parametrize('count', [1, _NODES_COUNT])
def test_row_with_another_uuid_is_found(cloud: Cloud, count: int) -> None:
    """One such row is read by name; for many nodes all rows are read."""
    one = cloud.hosts[C1]
    odd = NodeId('node-000')
    cloud.nova.create_row(SentRequest('c2', 'c2', late=False), odd, C2, 7)
    one.rows.odd_ones.add(odd)
    cloud.nova.services.pop(C2, None)
    one.services.read_records()
    one.new_nodes.reset_from_list(
        {n: cloud.nodes[n] for n in list(cloud.nodes)[:count]}
    )
    one.rebalancer.run_round()
    assert cloud.nova.rows[odd].host == C1
    assert [n for n, _, _ in cloud.moved] == [odd]


def test_orphan_is_taken_if_the_ring_moved_for_a_moment(
    cloud: Cloud,
) -> None:
    """An orphan that was not taken does not wait for the next audit."""
    one, orphan = cloud.hosts[C1], NodeId('node-000')
    cloud.nova.create_row(SentRequest('c2', 'c2', late=False), orphan, C2, 7)
    read_exists = one.services.read_exists

    def meanwhile(host: Host) -> bool:
        one.show('c3')
        return bool(read_exists(host))

    one.services.read_exists = meanwhile
    one.new_nodes.reset_from_list({orphan: cloud.nodes[orphan]})
    one.rebalancer.run_round()
    assert cloud.nova.rows[orphan].host == C2
    one.services.read_exists = read_exists
    one.show('c1')
    assert not one.moved
    cloud.rounds(one, 12)
    assert cloud.nova.rows[orphan].host == C1
    (move,) = one.moved
    assert (move.kind, move.reason) == ('take', 'host-deleted')
    assert (move.source, move.target, move.node) == (C2, C1, orphan)


class _ShutOnce:
    """A gate that is shut at the first request; then it stays open.

    :param meanwhile: called while a request waits
    """

    def __init__(self, meanwhile: Callable[[], Any]) -> None:
        self._meanwhile: Callable[[], Any] | None = meanwhile

    def is_open(self) -> bool:
        """Return whether no request would wait."""
        return self._meanwhile is None

    def wait(self) -> None:
        """Wait, see LeaseGate."""
        meanwhile, self._meanwhile = self._meanwhile, None
        if meanwhile is not None:
            meanwhile()


@pytest.fixture
def orphan(cloud: Cloud) -> NodeId:
    """Return a node whose host c2 has no Service; c1 is to place it."""
    node = NodeId('node-000')
    cloud.nova.create_row(SentRequest('c2', 'c2', late=False), node, C2, 7)
    cloud.hosts[C1].new_nodes.reset_from_list({node: cloud.nodes[node]})
    return node


def test_orphan_whose_host_comes_back_during_a_wait_at_the_gate_is_left(
    cloud: Cloud, orphan: NodeId
) -> None:
    """That host may have built a server on the node meanwhile."""
    one = cloud.hosts[C1]

    def come_back() -> None:
        cloud.clock.advance(10.0)
        cloud.add('c2')

    one.rows._gate = _ShutOnce(come_back)
    cloud.rounds(one, 3)
    assert cloud.nova.rows[orphan].host == C2
    assert cloud.holders()[orphan] == [C2]


def test_orphan_whose_host_comes_back_before_the_answer_comes_is_left(
    cloud: Cloud, orphan: NodeId
) -> None:
    """The worker learns ten seconds late that the host had no Service."""
    one = cloud.hosts[C1]
    read_exists = one.services.read_exists

    def come_back(host: Host) -> bool:
        answer = bool(read_exists(host))
        cloud.clock.advance(10.0)
        cloud.add('c2')
        return answer

    one.services.read_exists = come_back
    one.rebalancer.run_round()
    assert cloud.nova.rows[orphan].host == C2


def test_orphan_is_taken_after_a_long_wait_at_the_gate(
    cloud: Cloud, orphan: NodeId
) -> None:
    """Its Service is read again within ten seconds."""
    one = cloud.hosts[C1]
    one.rows._gate = _ShutOnce(lambda: cloud.clock.advance(10.0))
    one.rebalancer.run_round()
    assert cloud.nova.rows[orphan].host == C2
    cloud.rounds(one, 12)
    assert cloud.nova.rows[orphan].host == C1


def test_orphan_that_another_host_has_taken_during_a_pass_is_left(
    cloud: Cloud,
) -> None:
    """That host may have built a server on the node meanwhile."""
    one, two, gone = cloud.hosts[C1], cloud.add('c2'), Host('c9')
    cloud.show('c1', 'c2')
    ring = one.pool.ring_status().ring
    orphans = [n for n in sorted(cloud.nodes) if ring.target(n) == C1][:2]
    for node in orphans:
        cloud.nova.create_row(
            SentRequest('c9', 'c9', late=False), node, gone, 9
        )
    read_exists = one.services.read_exists

    def wait_for_answer(host: Host) -> bool:
        """Let an operator disable host c1 for a moment meanwhile."""
        one.services.read_exists = read_exists
        answer = bool(read_exists(host))
        cloud.show('c2')
        two.new_nodes.reset_from_list({n: cloud.nodes[n] for n in orphans})
        cloud.rounds(two, 20)
        cloud.show('c1', 'c2')
        return answer

    one.services.read_exists = wait_for_answer
    one.new_nodes.reset_from_list({n: cloud.nodes[n] for n in orphans})
    one.rebalancer.run_round()
    assert [cloud.nova.rows[node].host for node in orphans] == [C2, C2]
    assert [cloud.holders()[node] for node in orphans] == [[C2], [C2]]


def test_rows_created_by_another_host_during_a_pass_are_not_taken(
    cloud: Cloud,
) -> None:
    """The other host has offered these nodes, and may build on them."""
    one, two = cloud.hosts[C1], cloud.add('c2')
    cloud.show('c1', 'c2')
    create = cloud.nova.create_row

    def meanwhile(*arguments: Any) -> Any:
        """Show another ring while the first row is created."""
        cloud.nova.create_row = create  # type: ignore[method-assign]
        cloud.show('c2')
        two.new_nodes.reset_from_list(cloud.nodes)
        cloud.rounds(two, 3)
        assert set(cloud.providers) == set(cloud.nodes)
        cloud.show('c1', 'c2')
        return create(*arguments)

    cloud.nova.create_row = meanwhile  # type: ignore[method-assign]
    one.new_nodes.reset_from_list(cloud.nodes)
    cloud.rounds(one, 20)
    assert len(cloud.moved) == 1  # The row whose creation had begun.


def test_rows_older_than_5_s_are_read_again_before_a_creation(
    cloud: Cloud,
) -> None:
    """Another host may have created and confirmed a row meanwhile."""
    one = cloud.hosts[C1]
    create = cloud.nova.create_row

    def slow(*arguments: Any) -> Any:
        """Take 1 s, of the 5 s for which a read of rows is valid."""
        cloud.clock.advance(1.0)
        return create(*arguments)

    cloud.nova.create_row = slow  # type: ignore[method-assign]
    one.new_nodes.reset_from_list(cloud.nodes)
    one.rebalancer.run_round()
    assert len(cloud.nova.rows) == 3 * 6
    cloud.nova.create_row = create  # type: ignore[method-assign]
    cloud.rounds(one, 3)
    assert set(cloud.providers) == set(cloud.nodes)


def test_facts_of_a_list_do_not_replace_newer_facts_of_a_held_node(
    cloud: Cloud,
) -> None:
    """A list that comes while the node is placed is used at once or never."""
    one, node = cloud.hosts[C1], NodeId('node-000')
    listed = cloud.nodes[node]
    newer = dataclasses.replace(listed, resource_class='lone')
    create = cloud.nova.create_row

    def meanwhile(*arguments: Any) -> Any:
        one.new_nodes.reset_from_list({node: listed})
        return create(*arguments)

    cloud.nova.create_row = meanwhile  # type: ignore[method-assign]
    one.new_nodes.reset_from_list({node: listed})
    one.new_nodes.place_nodes()
    one.held_nodes.accept_facts(newer)
    one.new_nodes.place_nodes()
    assert one.held_nodes.facts(node) == newer


def test_node_that_a_build_has_found_keeps_what_was_notified_since(
    cloud: Cloud,
) -> None:
    """The list that it was found in is older than the notification."""
    one, node = cloud.hosts[C1], NodeId('node-000')
    listed = dataclasses.replace(cloud.nodes[node], read_at_s=1.0)
    one.new_nodes.reset_from_list({node: listed})
    one.new_nodes.place_nodes()
    one.held_nodes.drop_node(node)
    one.new_nodes.reset_from_list({node: listed})
    one.new_nodes.hold_if_ours(node)
    notified = dataclasses.replace(listed, maintenance=True, read_at_s=None)
    one.held_nodes.accept_facts(notified)
    one.new_nodes.place_nodes()
    assert one.held_nodes.facts(node) == notified


def test_node_that_a_build_finds_during_a_pass_is_read_again(
    cloud: Cloud,
) -> None:
    """What the pass has of it is older than what was notified since."""
    one, node = cloud.hosts[C1], NodeId('node-000')
    one.new_nodes.reset_from_list({node: cloud.nodes[node]})
    one.new_nodes.place_nodes()
    one.held_nodes.drop_node(node)
    notified = dataclasses.replace(cloud.nodes[node], maintenance=True)
    rows = one.rows
    read_rows = rows.list_by_nodes

    def meanwhile(*nodes: Any) -> Any:
        rows.list_by_nodes = read_rows  # type: ignore[method-assign]
        one.new_nodes.hold_if_ours(node)
        one.held_nodes.accept_facts(notified)
        return read_rows(*nodes)

    rows.list_by_nodes = meanwhile  # type: ignore[method-assign]
    one.new_nodes.reset_from_list({node: cloud.nodes[node]})
    one.new_nodes.place_nodes()
    assert one.held_nodes.facts(node) == notified
    assert one.reads_requested == [node]


class _LateLock:
    """A lock for which the first thread waits a moment.

    :param meanwhile: called in that moment
    """

    def __init__(self, lock: Any, meanwhile: Callable[[], Any]) -> None:
        self._lock = lock
        self._meanwhile: Callable[[], Any] | None = meanwhile

    def __enter__(self) -> None:
        meanwhile, self._meanwhile = self._meanwhile, None
        if meanwhile is not None:
            meanwhile()
        self._lock.acquire()

    def __exit__(self, *error: object) -> None:
        self._lock.release()


def test_node_that_is_held_while_a_list_comes_does_not_wait(
    cloud: Cloud,
) -> None:
    """A later pass would store again what the list has shown."""
    one, node = cloud.hosts[C1], NodeId('node-000')
    one.new_nodes.reset_from_list({node: cloud.nodes[node]})
    one.new_nodes.place_nodes()
    one.held_nodes.drop_node(node)
    unheld: Any = one.new_nodes._unheld
    unheld.add(cloud.nodes[node])
    unheld._lock = _LateLock(
        unheld._lock, lambda: one.new_nodes.hold_if_ours(node)
    )
    one.new_nodes.reset_from_list({node: cloud.nodes[node]})
    assert one.held_nodes.row(node) is not None
    assert unheld.facts(node) is None


def test_node_in_use_of_another_host_causes_no_warning(
    cloud: Cloud, caplog: pytest.LogCaptureFixture
) -> None:
    """Its host has a Service record, so no daemon has to be started."""
    one, used = cloud.hosts[C1], NodeId('node-000')
    cloud.add('c2')
    cloud.show('c1')
    cloud.nova.create_row(SentRequest('c2', 'c2', late=False), used, C2, 7)
    cloud.nodes[used] = dataclasses.replace(
        cloud.nodes[used], instance_uuid='s1'
    )
    one.new_nodes.reset_from_list({used: cloud.nodes[used]})
    one.rebalancer.run_round()
    assert cloud.nova.rows[used].host == C2
    assert 'no Service record' not in caplog.text


def test_missing_node_is_not_taken(cloud: Cloud) -> None:
    """A node was deleted in Ironic after it was listed."""
    one, gone = cloud.hosts[C1], NodeId('node-000')
    one.new_nodes.reset_from_list(cloud.nodes)
    one.unheld.mark_missing(gone)
    cloud.rounds(one, 3)
    assert set(cloud.providers) == set(cloud.nodes) - {gone}


def test_node_that_is_enrolled_again_is_taken_by_another_host(
    cloud: Cloud,
) -> None:
    """It had a pin, and now it goes to the host that the ring names."""
    other, node = cloud.add('c2'), NodeId('node-000')
    cloud.show('c2')
    cloud.nova.create_row(SentRequest('c1', 'c1', late=False), node, C1, 7)
    other.new_nodes.reset_from_list({node: cloud.nodes[node]})
    cloud.rounds(other, 1)
    # Ironic notifies the delete, and the holder removes what it has.
    other.node_changes.mark_missing(node)
    del cloud.nova.rows[node]
    other.node_changes.node_changed(cloud.nodes[node])
    cloud.rounds(other, 1)
    assert cloud.nova.rows[node].host == C2


def test_node_that_gets_a_404_while_its_row_is_created_is_read_again(
    cloud: Cloud,
) -> None:
    """After a wrong 404, nobody offered it until the next audit."""
    one, node = cloud.hosts[C1], NodeId('node-000')
    create = cloud.nova.create_row

    def meanwhile(*arguments: Any) -> Any:
        if arguments[1] == node:
            one.node_changes.mark_missing(node)
        return create(*arguments)

    cloud.nova.create_row = meanwhile  # type: ignore[method-assign]
    one.new_nodes.reset_from_list(cloud.nodes)
    cloud.rounds(one, 3)
    assert one.reads_requested == [node]
    assert set(cloud.providers) == set(cloud.nodes) - {node}
    one.node_changes.mark_present(node)
    one.node_changes.node_changed(cloud.nodes[node])
    assert set(cloud.providers) == set(cloud.nodes)


def test_node_of_a_build_that_gets_a_404_is_read_again(cloud: Cloud) -> None:
    """The 404 came while the build's host read the row of the node."""
    one, node = cloud.hosts[C1], NodeId('node-000')
    cloud.nova.create_row(SentRequest('c1', 'c1', late=False), node, C1, 7)
    of_nodes = one.rows.list_by_nodes

    def meanwhile(nodes: list[NodeId]) -> Any:
        one.node_changes.mark_missing(node)
        return of_nodes(nodes)

    one.rows.list_by_nodes = meanwhile  # type: ignore[assignment, method-assign]
    one.new_nodes.reset_from_list(cloud.nodes)
    one.new_nodes.hold_if_ours(node)
    assert one.held_nodes.row(node) is not None
    assert one.held_nodes.facts(node) is None
    assert one.reads_requested == [node]


def test_node_given_while_its_row_is_read_is_held(
    cloud: Cloud,
) -> None:
    """The row was read before the node was given to this host."""
    one = cloud.hosts[C1]
    one.new_nodes.reset_from_list(cloud.nodes)
    cloud.rounds(one, 2)
    two = cloud.add('c2')
    cloud.show('c1')
    of_nodes = two.rows.list_by_nodes

    def early(nodes: list[NodeId]) -> Any:
        found = of_nodes(nodes)
        cloud.show('c2')
        one.rebalancer.run_round()
        return found

    two.rows.list_by_nodes = early  # type: ignore[assignment, method-assign]
    two.new_nodes.reset_from_list(cloud.nodes)
    two.rebalancer.run_round()
    two.rows.list_by_nodes = of_nodes  # type: ignore[method-assign]
    two.rebalancer.run_round()
    given = {n for n, row in cloud.nova.rows.items() if row.host == C2}
    assert given == set(two.held_nodes.rows()) != set()


def test_node_that_a_build_has_found_is_not_lost_by_an_unanswered_push(
    cloud: Cloud,
) -> None:
    """The host still counted it as a node of the host that had given it.

    That host was killed before it could tell.
    """
    one, two, node = cloud.hosts[C1], cloud.add('c2'), NodeId('node-000')
    for each in (one, two):
        each.show('c1')
    one.new_nodes.reset_from_list(cloud.nodes)
    cloud.rounds(one, 20)
    two.new_nodes.reset_from_list(cloud.nodes)
    cloud.rounds(two, 2)
    one.rows.write_holder(one.rows.read_by_name(node), C2, 2)
    one.held_nodes.drop_node(node)
    two.new_nodes.hold_if_ours(node)
    two.held_nodes.accept_facts(cloud.nodes[node])
    write: Any = two.rows.write_holder

    def lose(row: Any, host: Host, service_id: int) -> bool:
        two.rows.write_holder = write  # type: ignore[method-assign]
        row.host = host
        raise Unreachable('no answer')

    two.rows.write_holder = lose  # type: ignore[method-assign]
    cloud.rounds(two, 30)
    assert two.rows.write_holder == write
    assert cloud.nova.rows[node].host == C1


@pytest.mark.parametrize('in_pool', [True, False])
def test_newer_facts_of_a_node_that_a_build_has_found_are_kept(
    cloud: Cloud, in_pool: bool
) -> None:
    """The facts of a notification, which waited here, have no time of a read.

    The message of the host that had given the node was lost.
    """
    one, two, node = cloud.hosts[C1], cloud.add('c2'), NodeId('node-000')
    two.show('c1')
    two.node_changes.node_changed(cloud.nodes[node])
    if not in_pool:
        _give_row_to_foreign_host(cloud, node)
    two.rebalancer.run_round()
    assert two.unheld.facts(node) is not None
    two.node_changes.node_changed(cloud.nodes[node])
    if in_pool:
        one.new_nodes.reset_from_list({node: cloud.nodes[node]})
        cloud.rounds(one, 5)
    cloud.nova.rows[node].host = C2
    two.show('c2')
    two.new_nodes.hold_if_ours(node)
    newer = dataclasses.replace(
        cloud.nodes[node], maintenance=True, read_at_s=cloud.clock.now_s()
    )
    two.node_changes.node_changed(newer)
    cloud.rounds(two, 40)
    assert two.unheld.facts(node) is None
    assert two.held_nodes.facts(node) == newer


def _give_row_to_foreign_host(cloud: Cloud, node: NodeId) -> None:
    foreign = Host('c9')
    request = SentRequest(foreign, foreign, late=False)
    cloud.nova.services[foreign] = ServiceRecord(9, foreign, mapped=True)
    cloud.nova.create_row(request, node, foreign, 9)
    for one in cloud.hosts.values():
        one.services.read_records()

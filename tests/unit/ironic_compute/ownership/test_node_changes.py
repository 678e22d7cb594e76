# SPDX-License-Identifier: Apache-2.0
"""Changes of nodes that the feed delivers, and full lists."""

import dataclasses
from collections.abc import Callable
from typing import Any

import pytest

from hashring.ring import Host
from ironic_compute.nodes.listed_nodes import listed_fingerprint
from resource_tracker.node import NodeFacts, NodeId
from tests.simulation.faults import Unreachable
from tests.simulation.wire import SentRequest
from tests.unit.ironic_compute.hosts import Cloud, One

N1, N2, N3 = NodeId('n1'), NodeId('n2'), NodeId('n3')
C1 = Host('c1')


@pytest.fixture
def cloud() -> Cloud:
    """Return a pool of one host that has been settled for 10 s."""
    made = Cloud([N1, N2, N3])
    made.add('c1')
    made.show('c1')
    made.clock.advance(10.0)
    return made


def _one(cloud: Cloud) -> One:
    return cloud.hosts[C1]


def test_error_about_one_node_harms_no_other(cloud: Cloud) -> None:
    """The node is read again; a failed row audit does not stop the list."""
    one = _one(cloud)
    accepted: list[str] = []

    def accept(facts: NodeFacts) -> None:
        if facts.uuid == N2:
            raise AttributeError(facts.uuid)
        accepted.append(facts.uuid)

    def fail(*, rests: bool) -> None:
        raise TimeoutError(rests)

    one.unheld.add = accept  # type: ignore[method-assign]
    one.row_audit.check_rows = fail  # type: ignore[method-assign]
    one.audit()
    assert (accepted, one.reads_requested) == ([N1, N3], [N2])
    assert one.node_changes.has_audited


def test_missing_node_that_a_list_contains_is_read_again(
    cloud: Cloud,
) -> None:
    """The list may be older than the 404, so it does not suffice."""
    one = _one(cloud)
    one.audit()
    cloud.rounds(one, 3)
    one.node_changes.mark_missing(N1)
    one.audit()
    assert one.reads_requested == [N1]
    one.node_changes.mark_present(N1)
    assert not one.node_changes.is_missing(N1)


def test_given_node_is_awaited_until_a_read_finds_it(cloud: Cloud) -> None:
    """After a wrong 404, nobody offered it until the next audit."""
    one = _one(cloud)
    changes = one.node_changes
    one.unheld.mark_given([N1])
    changes.mark_missing(N1)
    cloud.rounds(one, 3)
    assert [changes.is_missing(node) for node in (N1, N2)] == [True, False]
    changes.mark_present(N1)
    assert not changes.is_missing(N1)
    one.unheld.mark_given([N1])
    one.audit()
    assert not changes.is_missing(N1), 'it is held by its row'


def test_given_node_that_one_list_lacks_is_awaited(cloud: Cloud) -> None:
    """The list was read before Ironic had the node in this pool."""
    one, late = _one(cloud), NodeId('late')
    one.unheld.mark_given([late])
    one.audit()
    assert one.node_changes.is_missing(late)
    one.audit()
    assert not one.node_changes.is_missing(late)


def test_given_node_that_was_found_is_awaited_until_it_is_placed(
    cloud: Cloud,
) -> None:
    """A wrong 404 after the first read removed it from all lists."""
    one = _one(cloud)
    changes = one.node_changes
    one.unheld.mark_given([N1])
    changes.mark_present(N1)
    changes.mark_missing(N1)
    assert changes.is_missing(N1)
    changes.mark_present(N1)
    one.unheld.add(cloud.nodes[N1])
    cloud.rounds(one, 3)
    assert changes.is_held(N1)
    one.unheld.mark_missing(N1)
    assert not changes.is_missing(N1)


def _gone(one: One, facts: NodeFacts) -> None:
    one.node_changes.mark_missing(facts.uuid)


def _moved(one: One, facts: NodeFacts) -> None:
    one.node_changes.node_left_pool(
        dataclasses.replace(facts, conductor_group='other')
    )


@pytest.mark.parametrize('leave', [_gone, _moved])
def test_node_that_leaves_the_pool_before_it_is_held_is_not_taken(
    leave: Callable[[One, NodeFacts], None], cloud: Cloud
) -> None:
    """The node waited because the agents disagreed about the ring."""
    one = _one(cloud)
    cloud.show('c1', agreed=False)
    one.audit()
    cloud.rounds(one, 3)
    leave(one, cloud.nodes[N1])
    cloud.show('c1')
    cloud.rounds(one, 30)
    assert set(one.held_nodes.rows()) == set(cloud.providers) == {N2, N3}


@pytest.mark.parametrize('leave', [_gone, _moved])
@pytest.mark.parametrize(('during', 'held'), [(N1, False), (N3, True)])
def test_node_that_leaves_while_rows_are_created_is_not_offered(
    leave: Callable[[One, NodeFacts], None],
    during: NodeId,
    cloud: Cloud,
    *,
    held: bool,
) -> None:
    """Its row is not created; or it was just created, and is not reported."""
    one = _one(cloud)
    create = cloud.nova.create_row

    def slow(request: SentRequest, node: str, *arguments: Any) -> Any:
        row = create(request, node, *arguments)
        if node == during:
            leave(one, cloud.nodes[N3])
        return row

    cloud.nova.create_row = slow  # type: ignore[method-assign]
    one.audit()
    cloud.rounds(one, 3)
    assert set(cloud.providers) == {N1, N2}
    assert (N3 in one.held_nodes.rows()) == held


@pytest.mark.parametrize('leave', [_gone, _moved])
def test_orphan_that_leaves_while_its_row_is_read_is_not_taken(
    leave: Callable[[One, NodeFacts], None], cloud: Cloud
) -> None:
    """A host of its new pool takes the orphan."""
    one = _one(cloud)
    cloud.nova.create_row(
        SentRequest(C1, C1, late=False), N3, Host('no more'), 1
    )
    read_exists = one.services.read_exists

    def slow(host: Host) -> bool:
        leave(one, cloud.nodes[N3])
        return bool(read_exists(host))

    one.services.read_exists = slow
    one.audit()
    cloud.rounds(one, 3)
    assert set(one.held_nodes.rows()) == {N1, N2}
    assert cloud.nova.rows[N3].host == 'no more'


@pytest.mark.parametrize('leave', [_gone, _moved])
def test_node_that_leaves_while_it_is_given_here_is_held(
    leave: Callable[[One, NodeFacts], None], cloud: Cloud
) -> None:
    """Its row names this host, and no list of the pool contains it."""
    one, two = _one(cloud), cloud.add('c2')
    one.audit()
    cloud.rounds(one, 3)
    cloud.show('c2')
    cloud.rounds(one, 3)
    assert cloud.nova.rows[N1].host == 'c2'
    leave(two, cloud.nodes[N1])
    two.audit([N2, N3])
    cloud.rounds(two, 3)
    assert set(two.held_nodes.rows()) == {N1, N2, N3}


def test_given_node_that_has_left_the_pool_can_be_forgotten(
    cloud: Cloud,
) -> None:
    """The command was refused: the host of the row did not hold the node."""
    one, two = _one(cloud), cloud.add('c2')
    one.audit()
    cloud.rounds(one, 3)
    left = dataclasses.replace(cloud.nodes[N1], conductor_group='other')
    cloud.nodes[N1] = left
    one.node_changes.node_left_pool(left)
    cloud.show('c2')
    cloud.rounds(one, 3)
    two.node_changes.mark_present(N1)
    two.node_changes.node_left_pool(left)
    assert two.held_nodes.facts(N1) == left
    assert not two.node_changes.is_missing(N1)
    two.audit([N2, N3])
    cloud.rounds(two, 2)
    assert two.unheld.is_settled()
    assert two.removal.forget_node(N1) is None
    assert cloud.removed == ['provider of n1', N1]


@pytest.fixture
def pair() -> Cloud:
    """Return a settled pool of two hosts and eight nodes."""
    made = Cloud([NodeId(f'n{number}') for number in range(8)])
    made.add('c1')
    made.add('c2')
    made.show('c1', 'c2')
    made.clock.advance(10.0)
    made.settle()
    for one in made.hosts.values():
        made.rounds(one, 3)
        one.reads_requested.clear()
    return made


def _told(cloud: Cloud) -> dict[NodeId, str]:
    return {n: listed_fingerprint(facts) for n, facts in cloud.nodes.items()}


def _held(one: One) -> list[NodeId]:
    return sorted(one.held_nodes.rows())


def test_told_list_of_known_facts_asks_ironic_nothing(pair: Cloud) -> None:
    """The rows are read, because the holder of a node may have changed."""
    one = _one(pair)
    assert 0 < len(_held(one)) < 8
    assert one.node_changes.count_differing(_told(pair)) == 0
    one.node_changes.audit_told(_told(pair))
    pair.rounds(one, 3)
    assert one.reads_requested == []
    assert one.unheld.is_settled()


def test_held_node_that_a_told_list_shows_otherwise_is_read(
    pair: Cloud,
) -> None:
    """Traits have no time stamp, so the delta list does not show them."""
    one, told = _one(pair), _told(pair)
    node = _held(one)[0]
    told[node] = 'of other facts'
    assert one.node_changes.count_differing(told) == 1
    one.node_changes.audit_told(told)
    assert one.reads_requested == [node]


def test_held_node_that_a_told_list_lacks_is_asked_for(pair: Cloud) -> None:
    """Only Ironic's own answer counts: here it has the node."""
    one, told = _one(pair), _told(pair)
    node = _held(one)[0]
    del told[node]
    assert one.node_changes.count_differing(told) == 1
    one.node_changes.audit_told(told)
    assert node in one.held_nodes.rows()
    assert not one.node_changes.is_missing(node)
    del pair.nodes[node]
    one.node_changes.audit_told(told)
    assert one.node_changes.is_missing(node)
    pair.clock.advance(120.0)
    one.node_changes.audit_told(told)
    assert node not in one.held_nodes.rows()


def test_told_node_whose_row_names_this_host_is_read_and_held(
    pair: Cloud,
) -> None:
    """Another host has given it, and the message was lost."""
    one = _one(pair)
    given = min(pair.nodes.keys() - one.held_nodes.rows().keys())
    row: Any = pair.nova.rows[given]
    row.host = C1
    one.node_changes.audit_told(_told(pair))
    pair.rounds(one, 1)
    assert one.reads_requested == [given]
    one.node_changes.node_changed(pair.nodes[given])
    pair.rounds(one, 1)
    assert given in one.held_nodes.rows()


def test_told_list_is_of_no_use_while_a_node_waits(pair: Cloud) -> None:
    """A new node has no row yet."""
    one = _one(pair)
    one.node_changes.node_changed(NodeFacts(NodeId('new')))
    assert one.node_changes.count_differing(_told(pair)) is None


def _run(cloud: Cloud, one: One, *, gives: bool = False) -> None:
    """Run a round of a host, and deliver what it has asked Ironic for."""
    cloud.rounds(one, 1)
    wanted = {*one.reads_requested}
    if gives:
        wanted |= one.unheld._awaited
    one.reads_requested.clear()
    for node in sorted(wanted):
        one.node_changes.mark_present(node)
        one.node_changes.node_changed(cloud.nodes[node])


def test_told_nodes_that_this_host_has_given_away_are_not_read() -> None:
    """A host has joined; a read costs Ironic as much as 32 listed nodes."""
    cloud = Cloud([NodeId(f'n{number}') for number in range(8)])
    one, other = cloud.add('c1'), cloud.add('c2')
    cloud.show('c1')
    cloud.clock.advance(10.0)
    cloud.settle()
    cloud.show('c1', 'c2')
    cloud.clock.advance(20.0)
    for _ in range(12):
        _run(cloud, one)
        _run(cloud, other, gives=True)
    assert _held(one) and _held(other)
    one.node_changes.audit_told(_told(cloud))
    cloud.rounds(one, 3)
    assert one.reads_requested == []


def test_told_nodes_that_a_short_list_lacked_are_not_read(pair: Cloud) -> None:
    """Their rows name another host of the pool."""
    one, short = _one(pair), _told(pair)
    for node in pair.nodes.keys() - one.held_nodes.rows().keys():
        del short[node]
    for told in (short, _told(pair)):
        one.node_changes.audit_told(told)
        pair.rounds(one, 3)
    assert one.reads_requested == []


def test_told_nodes_with_a_row_of_another_uuid_are_not_read(
    pair: Cloud,
) -> None:
    """Such a row was created before Nova 18; it is found by its name."""
    one = _one(pair)
    others = pair.nodes.keys() - one.held_nodes.rows().keys()
    for each in pair.hosts.values():
        each.rows.odd_ones.update(others)
    for _ in range(2):  # The first list shows that no host takes them.
        one.audit()
        pair.rounds(one, 15)
    assert one.node_changes.count_differing(_told(pair)) == 0
    one.node_changes.audit_told(_told(pair))
    pair.rounds(one, 3)
    assert one.reads_requested == []


def test_told_nodes_are_read_although_nova_fails_in_between(
    pair: Cloud,
) -> None:
    """Another host has given one of them, and the message was lost."""
    one = _one(pair)
    odd, given = sorted(pair.nodes.keys() - one.held_nodes.rows().keys())[:2]
    for each in pair.hosts.values():
        each.rows.odd_ones.add(odd)
    for _ in range(2):
        one.audit()
        pair.rounds(one, 15)
    row: Any = pair.nova.rows[given]
    row.host = C1
    read_by_name = one.rows.read_by_name

    def fail(node: NodeId) -> Any:
        one.rows.read_by_name = read_by_name  # type: ignore[method-assign]
        raise TimeoutError('nova-conductor did not answer')

    one.rows.read_by_name = fail  # type: ignore[method-assign]
    one.node_changes.audit_told(_told(pair))
    for _ in range(2):
        one.rebalancer.try_round()
    assert one.reads_requested == [given]


@pytest.mark.parametrize(
    ('count', 'others_count', 'reads_all'),
    [(100, 0, False), (101, 0, True), (101, 3200, False)],
)
def test_many_told_nodes_without_a_holder_are_read_with_one_list(
    count: int, others_count: int, reads_all: bool
) -> None:
    """An operator has deleted the Service of a host that held them."""
    cloud = Cloud([NodeId(f'n{number}') for number in range(count)])
    one = cloud.add('c1')
    cloud.add('c2')
    cloud.show('c1', 'c2')
    told, request = _told(cloud), SentRequest('c2', 'c2', late=False)
    for other in (NodeId(f'other-{each}') for each in range(others_count)):
        cloud.nova.create_row(request, other, Host('c2'), 7)
        told[other] = 'of any facts'
    one.node_changes.audit_told(told)
    one.rebalancer.run_round()
    assert len(one.reads_requested) == (0 if reads_all else count)
    assert one.audits_requested == (1 if reads_all else 0)


def test_given_node_that_a_build_holds_does_not_wait(pair: Cloud) -> None:
    """The build was faster than the message; then no list was ever used."""
    one = _one(pair)
    node = _held(one)[0]
    one.unheld.mark_given([node])
    one.node_changes.mark_present(node)
    one.node_changes.node_changed(pair.nodes[node])
    one.audit()
    pair.rounds(one, 15)
    assert one.node_changes.count_differing(_told(pair)) == 0


def test_given_node_that_was_held_and_is_gone_does_not_wait(
    pair: Cloud,
) -> None:
    """The message came late; then each list was an own one for ever."""
    one = _one(pair)
    node = _held(one)[0]
    one.unheld.mark_given([node])
    one.node_changes.mark_present(node)
    one.node_changes.node_changed(pair.nodes[node])
    del pair.nodes[node]
    pair.nova.rows.pop(node)
    one.held_nodes.drop_node(node)
    for _ in range(3):
        one.audit()
        pair.rounds(one, 15)
    assert one.node_changes.count_differing(_told(pair)) == 0


def test_missing_node_that_is_held_needs_no_row(cloud: Cloud) -> None:
    """The message that it was given here came late, and Nova is away.

    Without the mark the next list would offer the node.
    """
    one = _one(cloud)
    one.audit()
    cloud.rounds(one, 3)
    one.unheld.mark_given([N1])

    def fail(node: NodeId) -> None:
        raise Unreachable('no answer')

    one.new_nodes.hold_if_ours = fail  # type: ignore[method-assign]
    one.node_changes.mark_missing(N1)
    assert one.held_nodes.is_missing(N1)
    assert not one.unheld.is_arriving(N1)

# SPDX-License-Identifier: Apache-2.0
"""Changes of nodes that the feed delivers, and full lists."""

import dataclasses
from collections.abc import Callable
from typing import Any

import pytest

from hashring.ring import Host
from resource_tracker.node import NodeFacts, NodeId
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

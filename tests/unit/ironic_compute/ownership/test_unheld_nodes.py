# SPDX-License-Identifier: Apache-2.0
"""Waiting lists of the pool's nodes that this host does not hold."""

import collections

import pytest

from hashring.ring import Host, Ring
from ironic_compute.ownership.unheld_nodes import UnheldNodes
from ironic_compute.pool.view import RingStatus
from resource_tracker.node import NodeFacts, NodeId

N1, N2 = NodeId('n1'), NodeId('n2')
FACTS = NodeFacts(N1)
ALONE = RingStatus(Ring([Host('c1')]), 60.0, agreed_for_s=60.0)
WIDER = RingStatus(Ring([Host('c1'), Host('c2')]), 0.0, agreed_for_s=60.0)
DISAGREED = RingStatus(Ring([Host('c1')]), 60.0)


def _placing(*nodes: NodeId) -> UnheldNodes:
    """Lists of which a pass has just taken ``nodes``, at second 0."""
    unheld = UnheldNodes()
    unheld.take_due(ALONE, 0.0)
    for node in nodes:
        unheld.add(NodeFacts(node))
    assert set(unheld.take_due(ALONE, 0.0)) == set(nodes)
    return unheld


def test_node_is_due_once() -> None:
    """A node is due when it was added, and not in the pass after that."""
    unheld = _placing(N1)
    assert unheld.take_due(ALONE, 1.0) == {}


def test_unplaced_node_is_due_when_the_ring_changes() -> None:
    """A changed ring or a changed agreement may make this host the taker."""
    for status in (WIDER, DISAGREED):
        unheld = _placing(N1)
        unheld.set_unplaced(FACTS)
        assert unheld.take_due(ALONE, 1.0) == {}
        assert unheld.take_due(status, 2.0) == {N1: FACTS}


def test_unplaced_node_is_due_after_ten_seconds() -> None:
    """The row of a node without a holder is read at intervals."""
    unheld = _placing(N1)
    unheld.set_unplaced(FACTS)
    assert unheld.take_due(ALONE, 9.0) == {}
    assert unheld.take_due(ALONE, 10.0) == {N1: FACTS}


def test_node_of_the_pool_waits_for_a_message_or_a_list() -> None:
    """Its holder sends a message when it gives the node away."""
    unheld = _placing(N1)
    unheld.set_held_elsewhere(FACTS, in_pool=True)
    unheld.add(FACTS)
    assert unheld.take_due(WIDER, 99.0) == {}
    unheld.mark_given([N1])
    unheld.add(FACTS)
    assert unheld.take_due(WIDER, 99.0) == {N1: FACTS}
    unheld.set_held_elsewhere(FACTS, in_pool=True)
    unheld.reset_from_list({N1: FACTS}, held=())
    assert unheld.take_due(WIDER, 99.0) == {N1: FACTS}


def test_node_of_a_foreign_host_is_due_after_thirty_seconds() -> None:
    """No message comes when a foreign host lets the node go."""
    unheld = _placing(N1)
    unheld.set_held_elsewhere(FACTS, in_pool=False)
    assert unheld.take_due(WIDER, 29.0) == {}
    assert unheld.take_due(WIDER, 30.0) == {N1: FACTS}


def test_node_given_during_a_pass_is_due_again() -> None:
    """The pass may have read the row before the node was given."""
    unheld = _placing(N1)
    unheld.mark_given([N1])
    unheld.set_held_elsewhere(FACTS, in_pool=True)
    assert unheld.take_due(ALONE, 1.0) == {N1: FACTS}


def test_missing_node_is_in_no_list() -> None:
    """Neither the present pass nor a later one takes a missing node."""
    unheld = _placing(N1)
    unheld.mark_missing(N1)
    assert not unheld.is_placing(N1)
    unheld.set_unplaced(FACTS)
    unheld.set_held_elsewhere(FACTS, in_pool=False)
    unheld.put_back({N1: FACTS})
    assert unheld.facts(N1) is None
    assert unheld.take_due(WIDER, 99.0) == {}


def test_node_put_back_keeps_its_newer_facts() -> None:
    """A node that changed during a failed pass is due with its new facts."""
    unheld = _placing(N1, N2)
    newer = NodeFacts(N1, conductor_group='other')
    unheld.add(newer)
    unheld.put_back({N1: FACTS, N2: NodeFacts(N2)})
    assert unheld.take_due(ALONE, 1.0) == {N1: newer, N2: NodeFacts(N2)}


@pytest.mark.parametrize('is_foreign', [False, True])
def test_node_that_changed_during_a_pass_gets_its_next_facts(
    is_foreign: bool,
) -> None:
    """It is due again then, and waits for a holder, too."""
    unheld = _placing(N1)
    unheld.add(NodeFacts(N1, resource_class='second'))
    if is_foreign:
        unheld.set_held_elsewhere(FACTS, in_pool=False)
    else:
        unheld.set_unplaced(FACTS)
    newest = NodeFacts(N1, resource_class='third')
    unheld.add(newest)
    assert unheld.facts(N1) == newest
    assert unheld.take_due(WIDER, 99.0) == {N1: newest}


def test_list_replaces_all_but_held_nodes() -> None:
    """A full list drops nodes that it lacks, and skips held nodes."""
    unheld = _placing(N1)
    unheld.set_unplaced(FACTS)
    unheld.reset_from_list({N2: NodeFacts(N2)}, held=(N2,))
    assert unheld.take_due(WIDER, 99.0) == {}


def test_given_node_is_awaited_until_two_lists_lack_it() -> None:
    """It may have been given while the first one was read."""
    unheld = UnheldNodes()
    unheld.mark_given([N1])
    unheld.reset_from_list({}, held=())
    assert unheld.is_awaited(N1)
    unheld.reset_from_list({}, held=())
    assert not unheld.is_awaited(N1)
    unheld.mark_missing(N1)
    assert not unheld.is_awaited(N1)


def test_given_node_that_was_found_stays_due() -> None:
    """An older list lacks it; else the next audit would read its row."""
    unheld = UnheldNodes()
    unheld.mark_given([N1])
    unheld.mark_found(N1)
    unheld.add(FACTS)
    unheld.reset_from_list({}, held=())
    assert unheld.take_due(ALONE, 0.0) == {N1: FACTS}


def test_given_node_that_is_being_placed_goes_on_to_wait() -> None:
    """An older list lacks it, and then the pass puts it back."""
    unheld = _placing(N1)
    unheld.mark_given([N1])
    unheld.mark_found(N1)
    for _ in range(2):
        unheld.reset_from_list({}, held=())
        unheld.put_back({N1: FACTS})
    assert unheld.take_due(ALONE, 0.0) == {N1: FACTS}


def test_node_that_vanishes_from_a_list_harms_no_other() -> None:
    """It was enrolled and deleted while the list was read and stored."""
    unheld, read = UnheldNodes(), {N2: NodeFacts(N2)}

    class Held(list[NodeId]):
        """Another thread meanwhile reads that Ironic has no such node."""

        def __contains__(self, node: object) -> bool:
            read.pop(N2, None)
            return False

    unheld.add(FACTS)
    unheld.take_due(ALONE, 0.0)
    unheld.set_unplaced(FACTS)
    live = collections.ChainMap(read, {N1: FACTS})
    unheld.reset_from_list(live, Held())
    assert unheld.take_due(ALONE, 0.0) == {N1: FACTS}


def test_given_node_that_a_list_has_is_awaited_if_it_is_denied_then() -> None:
    """Ironic answers 404 for it after the list and before the next pass."""
    unheld = UnheldNodes()
    unheld.mark_given([N1])
    unheld.reset_from_list({N1: FACTS}, held=())
    assert not unheld.is_awaited(N1)
    unheld.mark_missing(N1)
    assert unheld.is_awaited(N1)


def test_node_that_is_given_again_is_awaited_anew() -> None:
    """The list that lacked it was before."""
    unheld = UnheldNodes()
    unheld.mark_given([N1])
    unheld.reset_from_list({}, held=())
    unheld.mark_given([N1])
    unheld.reset_from_list({}, held=())
    assert unheld.is_awaited(N1)


def test_node_that_nobody_took_between_two_lists_is_found_by_name() -> None:
    """A host with a row under another uuid would have taken it otherwise."""
    unheld = UnheldNodes()
    unheld.reset_from_list({N1: FACTS}, held=())
    assert not unheld.must_find_by_name(N1)
    unheld.take_due(ALONE, 0.0)
    unheld.set_unplaced(FACTS)
    unheld.reset_from_list({N1: FACTS}, held=())
    assert unheld.must_find_by_name(N1)
    unheld.set_found_no_row(N1)
    assert not unheld.must_find_by_name(N1)

# SPDX-License-Identifier: Apache-2.0
"""A list of all nodes goes from one worker to the others in parts."""

import dataclasses

from hashring.ring import Host
from ironic_compute.nodes.changes_read import fingerprint
from ironic_compute.nodes.listed_nodes import (
    ListPart,
    ToldLists,
    listed_fingerprint,
    split,
)
from resource_tracker.node import NodeFacts, NodeId

C1 = Host('c1')
NODES = [NodeFacts(NodeId(f'n{number:04}')) for number in range(2001)]
FINGERPRINTS = {facts.uuid: listed_fingerprint(facts) for facts in NODES}


def _parts(began_s: float = 1.0) -> list[ListPart]:
    return list(split(C1, began_s, NODES))


def test_parts_contain_each_node_once() -> None:
    """A thousand nodes are one message of some fifty kilobytes."""
    sizes = [len(part.fingerprints) for part in _parts()]
    assert sizes == [1000, 1000, 1]


def test_parts_may_come_in_any_order() -> None:
    """Also twice: RabbitMQ promises neither."""
    told, (first, second, third) = ToldLists(), _parts()
    assert [told.add(part) for part in (third, first, first)] == [False] * 3
    assert told.take() is None
    assert told.add(second)
    assert told.take() == FINGERPRINTS
    assert told.take() is None


def test_list_whose_part_was_lost_is_never_whole() -> None:
    """The part of the next list is not taken for that of the lost one."""
    told, (first, second, _) = ToldLists(), _parts()
    later = _parts(began_s=2.0)
    assert not any(map(told.add, (first, second, later[2])))
    assert told.take() is None
    assert [told.add(part) for part in later[:2]] == [False, True]


def test_empty_list_is_not_told() -> None:
    """It is more often an error than it is true."""
    assert list(split(C1, 1.0, [])) == []


def test_list_shows_no_time_of_change() -> None:
    """Ironic refuses to list it, and other reads have it."""
    listed, read = NODES[0], dataclasses.replace(NODES[0], updated_at='now')
    assert listed_fingerprint(listed) == listed_fingerprint(read)
    assert fingerprint(listed) != fingerprint(read)
    other = dataclasses.replace(read, traits=frozenset({'CUSTOM_GOLD'}))
    assert listed_fingerprint(other) != listed_fingerprint(read)

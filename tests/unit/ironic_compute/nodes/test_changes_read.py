# SPDX-License-Identifier: Apache-2.0
"""A fingerprint differs if and only if the facts of a node do."""

import dataclasses

import pytest

from ironic_compute.nodes.changes_read import ChangesRead, fingerprint
from resource_tracker.node import NodeFacts, NodeId

FACTS = NodeFacts(
    NodeId('n1'),
    traits=frozenset({'CUSTOM_A', 'CUSTOM_B'}),
    properties={'a': '1', 'b': '2'},
    updated_at='2026-01-01T00:00:00+00:00',
)
OTHER = {
    'uuid': 'n2',
    'maintenance': True,
    'retired': True,
    'traits': frozenset({'CUSTOM_A'}),
    'properties': {'a': '1'},
}
NOT_PRINTED = {'reservation', 'parent_node', 'read_at_s'}


@pytest.mark.parametrize(
    'name', [field.name for field in dataclasses.fields(NodeFacts)]
)
def test_fingerprint_shows_each_difference(name: str) -> None:
    """A lock and the time of a read are no differences.

    Nor is a parent node, because no list has such a node.
    """
    value = OTHER.get(name, 3.0 if name == 'read_at_s' else 'other')
    changed = dataclasses.replace(FACTS, **{name: value})  # type: ignore[arg-type]
    is_same = fingerprint(changed) == fingerprint(FACTS)
    assert is_same == (name in NOT_PRINTED)


def test_fingerprint_does_not_depend_on_an_order() -> None:
    """Two processes iterate over a set in different orders."""
    same = dataclasses.replace(
        FACTS,
        traits=frozenset({'CUSTOM_B', 'CUSTOM_A'}),
        properties={'b': '2', 'a': '1'},
    )
    assert fingerprint(same) == fingerprint(FACTS)


def test_read_has_a_fingerprint_of_each_node() -> None:
    """The receiver compares them with what it has delivered."""
    read = ChangesRead.of('1', '2', [FACTS])
    assert read == ChangesRead('1', '2', {NodeId('n1'): fingerprint(FACTS)})


@pytest.mark.parametrize(('count', 'is_told'), [(500, True), (501, False)])
def test_many_nodes_are_not_told(count: int, is_told: bool) -> None:
    """Each worker reads the list of a mass change itself."""
    changed = [NodeFacts(NodeId(f'n{number}')) for number in range(count)]
    read = ChangesRead.of('1', '2', changed)
    assert (read.fingerprints is not None) == is_told

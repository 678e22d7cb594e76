# SPDX-License-Identifier: Apache-2.0
"""What a worker knows of its nodes, by the names of fsck's checks."""

import types
from typing import Any

import pytest

from ironic_compute import catalogue
from ironic_compute.catalogue import Check
from ironic_compute.nodes import node_findings
from resource_tracker.node import NodeFacts, NodeId

N1 = NodeId('n1')


def count(
    facts: NodeFacts | None, uuid: str = N1, *, is_missing: bool = False
) -> dict[Check, int]:
    """Return what is found on a host that holds one node."""
    held: Any = types.SimpleNamespace(
        rows=lambda: {N1: types.SimpleNamespace(uuid=uuid)},
        facts=lambda node: facts,
        is_missing=lambda node: is_missing,
    )
    found = node_findings.count_findings(held)
    assert set(found) == set(node_findings.KNOWN)
    return {check: number for check, number in found.items() if number}


def facts_of(**fields: Any) -> NodeFacts:
    """Return a node that is available unless told."""
    values = {'provision_state': 'available', 'resource_class': 'gold'}
    return NodeFacts(uuid=N1, **{**values, **fields})


@pytest.mark.parametrize(
    ('fields', 'check'),
    [
        ({'resource_class': None}, catalogue.NODE_WITHOUT_CLASS),
        ({'provision_state': 'deploy failed'}, catalogue.DEPLOY_FAILED),
        ({'provision_state': 'error'}, catalogue.DEPLOY_FAILED),
        (
            {'provision_state': 'deploying', 'instance_uuid': 's1'},
            catalogue.DEPLOY_WITHOUT_CONDUCTOR,
        ),
    ],
)
def test_state_in_ironic_is_counted(
    fields: dict[str, Any], check: Check
) -> None:
    """One node, one finding."""
    assert count(facts_of(**fields)) == {check: 1}


@pytest.mark.parametrize(
    'fields',
    [
        {},
        {'provision_state': 'enroll', 'resource_class': None},
        {'provision_state': 'deploy failed', 'instance_uuid': 's1'},
        {'provision_state': 'deploying', 'reservation': 'conductor'},
    ],
)
def test_nothing_is_wrong(fields: dict[str, Any]) -> None:
    """Nodes that are not enrolled yet, or that somebody works on."""
    assert count(facts_of(**fields)) == {}


def test_records_are_counted() -> None:
    """Also before Ironic's first answer about a node."""
    assert count(None) == {}
    assert count(None, is_missing=True) == {catalogue.ROW_WITHOUT_NODE: 1}
    assert count(None, 'old') == {catalogue.ROW_WITH_OTHER_UUID: 1}

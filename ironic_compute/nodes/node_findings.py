# SPDX-License-Identifier: Apache-2.0
"""Findings that a worker knows of its nodes without a request; pure functions.

They have the names of fsck's checks. fsck itself finds more, because it also
reads Placement and Nova; the checks of a node by Ironic's record are the same.
"""

from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any, Protocol

from ironic_compute import catalogue
from ironic_compute.catalogue import Check
from ironic_compute.ironic_api.states import Meaning, ProvisionState, meaning
from resource_tracker.node import NodeFacts, NodeId

_FAILED = (ProvisionState.DEPLOYFAIL, ProvisionState.ERROR)

KNOWN = (
    catalogue.ROW_WITHOUT_NODE,
    catalogue.ROW_WITH_OTHER_UUID,
    catalogue.NODE_WITHOUT_CLASS,
    catalogue.DEPLOY_FAILED,
    catalogue.DEPLOY_WITHOUT_CONDUCTOR,
)
"""The checks that :func:`count_findings` makes."""


class Held(Protocol):
    """The part of ``HeldNodes`` that is read here."""

    def rows(self) -> Mapping[NodeId, Any]:
        """Return the rows of all held nodes."""

    def facts(self, node: NodeId) -> NodeFacts | None:
        """Return the newest facts of a held node."""

    def is_missing(self, node: NodeId) -> bool:
        """Return whether Ironic has answered 404 for a held node."""


def find_in_facts(facts: NodeFacts) -> Iterator[tuple[Check, str]]:
    """Yield what is wrong with a node by its record in Ironic alone."""
    node = facts.uuid
    state = ProvisionState.parse(facts.provision_state)
    is_usable = meaning(facts.provision_state) is not Meaning.OUT_OF_REACH
    if is_usable and not facts.resource_class:
        yield (
            catalogue.NODE_WITHOUT_CLASS,
            f'Node {node} has no resource_class in Ironic',
        )
    if state in _FAILED and facts.instance_uuid is None:
        yield (
            catalogue.DEPLOY_FAILED,
            f'Node {node} is in {facts.provision_state} and has no server',
        )
    if state is ProvisionState.DEPLOYING and facts.reservation is None:
        yield (
            catalogue.DEPLOY_WITHOUT_CONDUCTOR,
            f'Node {node} is in deploying, and no conductor has reserved it',
        )


def count_findings(held: Held) -> Mapping[Check, int]:
    """Return how many held nodes each of the checks finds, also none."""
    found = Counter(dict.fromkeys(KNOWN, 0))
    for node, row in held.rows().items():
        found.update(_of_node(node, row, held))
    return found


def _of_node(node: NodeId, row: Any, held: Held) -> Iterator[Check]:
    facts = held.facts(node)
    if held.is_missing(node):
        yield catalogue.ROW_WITHOUT_NODE
    if row.uuid != node:
        yield catalogue.ROW_WITH_OTHER_UUID
    if facts is not None:
        yield from (check for check, _text in find_in_facts(facts))

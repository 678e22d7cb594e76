# SPDX-License-Identifier: Apache-2.0
"""Checks of providers: one for each node, offered if the node is usable.

Placement lists which providers have a free unit of a class or a trait, so that
thousands of providers take a few requests. What such a list leaves open is
read provider by provider, for the nodes with findings only.
"""

import dataclasses
from collections.abc import Iterator

import os_resource_classes

from ironic_compute import catalogue
from ironic_compute.fsck.findings import Finding, Subject
from ironic_compute.fsck.snapshot import ProviderDetails, Row, Snapshot
from resource_tracker.node import NodeFacts, NodeId
from resource_tracker.provider import (
    COMPUTE_NODE,
    COMPUTE_STATUS_DISABLED,
    Situation,
    WantedProvider,
    wanted_provider,
    why_not_schedulable,
)


@dataclasses.dataclass(frozen=True, slots=True)
class _Node:
    """A node of the pool with one record and one provider."""

    facts: NodeFacts
    row: Row
    provider: str
    wanted: WantedProvider
    details: ProviderDetails | None

    @property
    def subject(self) -> Subject:
        return Subject(node=self.facts.uuid, host=self.row.host)


def check_numbers(snapshot: Snapshot) -> Iterator[Finding]:
    """Check that each node has one provider, with the uuid of its record."""
    providers = snapshot.providers_by_node()
    for node, rows in snapshot.rows_by_node().items():
        if node not in snapshot.nodes or any(row.is_new for row in rows):
            continue
        yield from _of_number(node, rows[0], providers.get(node, []))


def _of_number(node: NodeId, row: Row, found: list[str]) -> Iterator[Finding]:
    subject = Subject(node=node, host=row.host)
    others = sorted(uuid for uuid in found if uuid != row.uuid)
    if not found:
        yield Finding(
            catalogue.NODE_WITHOUT_PROVIDER,
            subject,
            f'Placement has no provider of node {node}',
        )
    elif others:
        is_alone = len(found) == 1
        yield Finding(
            catalogue.PROVIDER_WITH_OTHER_UUID
            if is_alone
            else catalogue.TWO_PROVIDERS,
            dataclasses.replace(subject, other=others[0]),
            f'Placement has a provider of node {node} with the uuid '
            f'{others[0]}, and the record in Nova has {row.uuid}',
        )


def orphan_providers(snapshot: Snapshot) -> Iterator[NodeId]:
    """Yield the providers that look like a node's and have no record.

    They may belong to nodes of other cells.
    """
    known = {row.node for row in snapshot.rows} | snapshot.nodes.keys()
    for uuid in snapshot.placement.with_trait.get(COMPUTE_NODE, ()):
        is_named_so = snapshot.placement.names.get(uuid) == uuid
        if is_named_so and uuid not in known:
            yield NodeId(uuid)


def check_orphans(snapshot: Snapshot) -> Iterator[Finding]:
    """Check that each provider of a node has its node."""
    if snapshot.all_nodes is None:
        return
    for node in sorted(orphan_providers(snapshot)):
        if node not in snapshot.all_nodes.nodes:
            yield Finding(
                catalogue.PROVIDER_WITHOUT_NODE,
                Subject(node=node),
                f'Placement has provider {node}, and neither Nova nor Ironic '
                f'has such a node',
            )


def check_offers(snapshot: Snapshot) -> Iterator[Finding]:
    """Check that usable nodes are offered, and no others."""
    for each in _nodes(snapshot):
        wrong = _wrong_classes(each, snapshot)
        if wrong:
            yield _of_class(each, wrong)
            continue
        is_offered = _is_offered(each, snapshot)
        reason = why_not_schedulable(each.facts, Situation())
        if reason is not None:
            yield from _of_unusable(each, reason, is_offered)
        elif is_offered is False and _may_offer(each.row, snapshot):
            yield from _of_usable(each)


def _nodes(snapshot: Snapshot) -> Iterator[_Node]:
    """Yield the nodes that have one record and one provider.

    The others have findings of their own.
    """
    providers = snapshot.providers_by_node()
    for node, rows in snapshot.rows_by_node().items():
        found = providers.get(node, [])
        if len(found) == 1 and len(rows) == 1:
            facts, row = snapshot.nodes[node], rows[0]
            yield _Node(
                facts,
                row,
                found[0],
                wanted_provider(facts, _situation(row, snapshot)),
                snapshot.placement.details.get(found[0]),
            )


def _situation(row: Row, snapshot: Snapshot) -> Situation:
    service = snapshot.services.get(row.host)
    return Situation(
        disabled=service is not None and service.is_disabled,
        traits_of_capabilities=snapshot.capability_traits,
    )


def _may_offer(row: Row, snapshot: Snapshot) -> bool:
    """Return whether a node can be offered.

    A new record is confirmed first, and a host that cannot offer nodes has
    its own finding.
    """
    host = row.host
    is_mapped = snapshot.mapped is None or host in snapshot.mapped
    return host in snapshot.services and is_mapped and not row.is_new


def _is_offered(each: _Node, snapshot: Snapshot) -> bool | None:
    """Return whether a node is offered with its class; None: not listed."""
    inventory = each.wanted.inventory
    if inventory is None:
        return None
    offered = snapshot.placement.offered.get(inventory.resource_class)
    return None if offered is None else each.provider in offered


def _wrong_classes(each: _Node, snapshot: Snapshot) -> list[str]:
    """Return classes that the node has not; one in use stays until it ends."""
    wanted = each.wanted.inventory and each.wanted.inventory.resource_class
    found = {
        name
        for name, uuids in snapshot.placement.offered.items()
        if each.provider in uuids
    }
    if each.details is not None and not each.details.consumers:
        found |= each.details.classes
    return sorted(found - {wanted})


def _of_class(each: _Node, wrong: list[str]) -> Finding:
    return Finding(
        catalogue.WRONG_CLASS,
        each.subject,
        f'The provider of node {each.facts.uuid} has {", ".join(wrong)}, and '
        f'Ironic has {each.facts.resource_class or "no class"}',
    )


def _of_unusable(
    each: _Node, reason: str, is_offered: bool | None
) -> Iterator[Finding]:
    if is_offered:
        yield Finding(
            catalogue.OFFERED_BUT_UNUSABLE,
            each.subject,
            f'Placement offers node {each.facts.uuid}, but {reason}',
        )
    elif each.details is not None and each.details.is_reserved is False:
        yield Finding(
            catalogue.NOT_RESERVED,
            each.subject,
            f'Node {each.facts.uuid} is not reserved in Placement, but '
            f'{reason}',
        )


def _of_usable(each: _Node) -> Iterator[Finding]:
    """Find why a usable node is not offered.

    An allocation is looked at with its server.
    """
    if each.wanted.inventory is None:
        return
    why = 'it is reserved or allocated'
    if each.details is not None:
        if each.details.consumers:
            return
        name = each.wanted.inventory.resource_class
        has_it = name in each.details.classes
        why = 'it is reserved' if has_it else f'it has no {name}'
    yield Finding(
        catalogue.NOT_OFFERED,
        each.subject,
        f'Node {each.facts.uuid} can take a build, and Placement does not '
        f'offer it: {why}',
    )


def check_traits(snapshot: Snapshot) -> Iterator[Finding]:
    """Check the traits of which Placement has listed the providers."""
    for each in _nodes(snapshot):
        if each.row.is_new:
            continue
        for trait, uuids in snapshot.placement.with_trait.items():
            has, wants = each.provider in uuids, trait in each.wanted.traits
            if has != wants:
                yield from _of_trait(each, trait, has)


def _of_trait(each: _Node, trait: str, has: bool) -> Iterator[Finding]:
    check = _trait_check(trait, has)
    if check is None:
        return
    verb, other = ('has', 'should not') if has else ('lacks', 'should')
    yield Finding(
        check,
        dataclasses.replace(each.subject, other=trait),
        f'The provider of node {each.facts.uuid} {verb} trait {trait}, and '
        f'{other} have it',
    )


def _trait_check(trait: str, has: bool) -> catalogue.Check | None:
    if trait == COMPUTE_NODE:
        return catalogue.WITHOUT_COMPUTE_TRAIT
    if trait == COMPUTE_STATUS_DISABLED:
        return catalogue.STATUS_TRAIT_DIFFERS
    if not os_resource_classes.is_custom(trait):
        # Other services of Nova set standard traits as well.
        return None if has else catalogue.TRAIT_MISSING
    return catalogue.TRAIT_LEFT_BEHIND if has else catalogue.TRAIT_MISSING

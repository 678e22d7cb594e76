# SPDX-License-Identifier: Apache-2.0
"""Checks of bare metal flavors: some node has their class and traits."""

from collections import defaultdict
from collections.abc import Iterator

from ironic_compute import catalogue
from ironic_compute.fsck.findings import Finding, Subject
from ironic_compute.fsck.snapshot import Flavor, Snapshot
from resource_tracker.provider import (
    Situation,
    resource_class_of,
    wanted_provider,
)


def check_flavors(snapshot: Snapshot) -> Iterator[Finding]:
    """Check that each flavor can get a node, of any pool."""
    if snapshot.all_nodes is None:
        return
    traits = traits_by_class(snapshot)
    for flavor in snapshot.flavors or ():
        yield from _of_flavor(flavor, traits.get(flavor.resource_class))


def _of_flavor(
    flavor: Flavor, traits: frozenset[str] | None
) -> Iterator[Finding]:
    """Check a flavor.

    :param traits: those of all nodes of its class; None: there is no node
    """
    subject = Subject(other=flavor.name)
    if traits is None:
        yield Finding(
            catalogue.FLAVOR_WITHOUT_NODE,
            subject,
            f'Flavor {flavor.name} requests {flavor.resource_class}, which '
            f'no node has',
        )
        return
    missing = sorted(flavor.traits - traits)
    if missing:
        yield Finding(
            catalogue.FLAVOR_TRAIT_WITHOUT_NODE,
            subject,
            f'Flavor {flavor.name} requires {", ".join(missing)}, which no '
            f'node with {flavor.resource_class} has',
        )


def traits_by_class(snapshot: Snapshot) -> dict[str, frozenset[str]]:
    """Return the traits of all nodes of each resource class."""
    situation = Situation(traits_of_capabilities=snapshot.capability_traits)
    found: dict[str, set[str]] = defaultdict(set)
    for facts in snapshot.nodes.values():
        name = resource_class_of(facts)
        if name is not None:
            found[name] |= wanted_provider(facts, situation).traits
    if snapshot.all_nodes is not None:
        for name, traits in snapshot.all_nodes.traits.items():
            found[name] |= traits
    return {name: frozenset(traits) for name, traits in found.items()}


def lacks_node(snapshot: Snapshot) -> bool:
    """Return whether some flavor fits no node of this pool.

    A node of another pool may fit; all nodes must be read to find out.
    """
    traits = traits_by_class(snapshot)
    return any(
        flavor.resource_class not in traits
        or not flavor.traits <= traits[flavor.resource_class]
        for flavor in snapshot.flavors or ()
    )

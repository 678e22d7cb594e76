# SPDX-License-Identifier: Apache-2.0
"""The fewest writes that turn what Placement has into what it should have.

Pure: known and wanted in, an ordered plan out. Each write carries the
generation Placement answered to the one before, so a foreign write in
between ends the plan with a conflict instead of being overwritten.
"""

import dataclasses
from collections.abc import Mapping
from typing import Any

from resource_tracker.provider import (
    COMPUTE_STATUS_DISABLED,
    Inventory,
    WantedProvider,
)

Inventories = Mapping[str, Mapping[str, Any]]


@dataclasses.dataclass(frozen=True, slots=True)
class KnownProvider:
    """A provider as Placement last acknowledged it.

    :param ours: the traits we have set; others' are left alone
    :param in_use: classes with an allocation, where somebody looked
    """

    uuid: str
    name: str
    generation: int
    inventories: Inventories = dataclasses.field(default_factory=dict)
    traits: frozenset[str] = frozenset()
    aggregates: frozenset[str] = frozenset()
    ours: frozenset[str] = frozenset()
    in_use: frozenset[str] = frozenset()


@dataclasses.dataclass(frozen=True, slots=True)
class Create:
    """Make the provider; uuid and name are the node's uuid."""

    uuid: str


@dataclasses.dataclass(frozen=True, slots=True)
class PutInventories:
    """Replace all inventories of a provider."""

    uuid: str
    inventories: Inventories


@dataclasses.dataclass(frozen=True, slots=True)
class PutTraits:
    """Replace all traits of a provider; ``ours`` is what we answer for."""

    uuid: str
    traits: frozenset[str]
    ours: frozenset[str]


@dataclasses.dataclass(frozen=True, slots=True)
class PutAggregates:
    """Replace all aggregates of a provider."""

    uuid: str
    aggregates: frozenset[str]


Write = Create | PutInventories | PutTraits | PutAggregates


def plan(
    known: KnownProvider | None, wanted: WantedProvider
) -> tuple[Write, ...]:
    """Return the writes in their order; empty when nothing differs.

    Traits come before the inventory: a node must not be offered before it
    says what it is.
    """
    if known is None:
        start: tuple[Write, ...] = (Create(wanted.uuid),)
        known = KnownProvider(wanted.uuid, wanted.uuid, generation=0)
    else:
        start = ()
    return start + _traits(known, wanted) + _rest(known, wanted)


def _traits(known: KnownProvider, wanted: WantedProvider) -> tuple[Write, ...]:
    """A trait that somebody else set stays; one of ours may go."""
    # Without a memory of our own (``ours`` empty) no trait can be told from
    # a foreign one, but for this: nobody else sets it.
    ours = known.ours | {COMPUTE_STATUS_DISABLED}
    traits = wanted.traits | (known.traits - ours)
    if traits == known.traits:
        return ()
    return (PutTraits(wanted.uuid, traits, ours=wanted.traits),)


def _rest(known: KnownProvider, wanted: WantedProvider) -> tuple[Write, ...]:
    writes: list[Write] = []
    inventories = _inventories(known, wanted.inventory)
    if not _same(inventories, known.inventories):
        writes.append(PutInventories(wanted.uuid, inventories))
    aggregates = wanted.aggregates
    if aggregates is not None and aggregates != known.aggregates:
        writes.append(PutAggregates(wanted.uuid, aggregates))
    return tuple(writes)


def _inventories(
    known: KnownProvider, wanted: Inventory | None
) -> dict[str, Mapping[str, Any]]:
    """Return the wanted inventories; one in use is never dropped."""
    inventories: dict[str, Mapping[str, Any]] = {}
    if wanted is not None:
        inventories[wanted.resource_class] = wanted.body()
    for resource_class in known.in_use & set(known.inventories):
        if resource_class not in inventories:
            # The class changed under an allocation: the old one goes, and
            # the new one comes, when the allocation has gone.
            kept = {**known.inventories[resource_class], 'reserved': 1}
            return {resource_class: kept}
    return inventories


def _same(one: Inventories, other: Inventories) -> bool:
    """Compare what we set; Placement adds nothing we would not repeat."""
    if set(one) != set(other):
        return False
    return all(
        other[name].get(key) == value
        for name, record in one.items()
        for key, value in record.items()
    )

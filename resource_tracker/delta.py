# SPDX-License-Identifier: Apache-2.0
"""The fewest writes that turn what Placement has into what it should have.

Pure: known and wanted in, an ordered plan out. Each write carries the
generation Placement answered to the one before, so a foreign write in
between ends the plan with a conflict instead of being overwritten.
"""

import dataclasses
from collections.abc import Mapping
from typing import Any

from resource_tracker import interning
from resource_tracker.provider import COMPUTE_STATUS_DISABLED, WantedProvider

Inventories = Mapping[str, Mapping[str, Any]]


@dataclasses.dataclass(frozen=True, slots=True)
class KnownProvider:
    """A provider as Placement last acknowledged it.

    :param uuid: the node's, but for a provider made before Nova said so
    :param aggregates: None: nobody looked; they have to be read before they
        can be planned
    :param in_use: classes with an allocation; None: nobody looked
    """

    uuid: str
    generation: int
    inventories: Inventories = dataclasses.field(default_factory=dict)
    traits: frozenset[str] = frozenset()
    aggregates: frozenset[str] | None = None
    in_use: frozenset[str] | None = None


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
    """Replace all traits of a provider."""

    uuid: str
    traits: frozenset[str]


@dataclasses.dataclass(frozen=True, slots=True)
class PutAggregates:
    """Replace all aggregates of a provider."""

    uuid: str
    aggregates: frozenset[str]


Write = Create | PutInventories | PutTraits | PutAggregates


def plan_writes(
    known: KnownProvider | None,
    wanted: WantedProvider,
    our_traits: frozenset[str] = frozenset(),
) -> tuple[Write, ...]:
    """Return the writes in their order; empty when nothing differs.

    A node is described before it is offered, and withdrawn before its
    description changes: nobody finds it by what it is not.

    :param known: None: there is no provider yet
    :param ours: the traits we may have set; others' are left alone. On first
        sight it is empty: what the node had in Ironic some time ago cannot
        be told from what somebody else set, so both stay
    """
    if wanted.is_gone:
        return _inventory_writes(known, wanted) if known else ()
    if known is None:
        start: tuple[Write, ...] = (Create(wanted.uuid),)
        known = new_provider(wanted.uuid)
    else:
        start = ()
    offer, description = (
        _inventory_writes(known, wanted),
        _description_writes(known, wanted, our_traits),
    )
    if wanted.inventory is None or wanted.inventory.reserved:
        return (*start, *offer, *description)
    return (*start, *description, *offer)


def new_provider(uuid: str) -> KnownProvider:
    """Return a provider as it is when it has just been made."""
    return KnownProvider(uuid, generation=0, aggregates=frozenset())


def dropped_classes(
    known: KnownProvider, wanted: WantedProvider
) -> frozenset[str]:
    """Return the classes that the wanted state would take away.

    Before that happens somebody has to look whether they are in use.
    """
    if wanted.is_gone:
        return frozenset()
    wanted_class = wanted.inventory and wanted.inventory.resource_class
    return frozenset(known.inventories) - {wanted_class}


def kept_classes(
    known: KnownProvider, wanted: WantedProvider
) -> frozenset[str]:
    """Return the unwanted classes that stay because they are in use."""
    return interning.names(
        dropped_classes(known, wanted) & (known.in_use or frozenset())
    )


def after_write(
    known: KnownProvider, change: Write, generation: int
) -> KnownProvider:
    """Return what Placement holds after it acknowledged a write."""
    known = dataclasses.replace(known, generation=generation)
    match change:
        case Create():
            return known
        case PutInventories(inventories=inventories):
            interned = interning.record(inventories)
            return dataclasses.replace(known, inventories=interned)
        case PutTraits(traits=traits):
            return dataclasses.replace(known, traits=interning.names(traits))
        case PutAggregates(aggregates=aggregates):
            return dataclasses.replace(known, aggregates=aggregates)


def _inventory_writes(
    known: KnownProvider, wanted: WantedProvider
) -> tuple[Write, ...]:
    inventories = _inventories(known, wanted)
    if _are_equal(inventories, known.inventories):
        return ()
    return (PutInventories(known.uuid, inventories),)


def _description_writes(
    known: KnownProvider, wanted: WantedProvider, our_traits: frozenset[str]
) -> tuple[Write, ...]:
    writes: list[Write] = []
    # Never anybody else's, so it may go without a memory of having set it.
    our_traits = our_traits | {COMPUTE_STATUS_DISABLED}
    traits = wanted.traits | (known.traits - our_traits)
    if traits != known.traits:
        writes.append(PutTraits(known.uuid, traits))
    if wanted.aggregates is not None:
        present = known.aggregates
        assert present is not None  # noqa: S101 - whoever plans has read it
        aggregates = wanted.aggregates.merged_with(present)
        if aggregates != present:
            writes.append(PutAggregates(known.uuid, aggregates))
    return tuple(writes)


def _inventories(
    known: KnownProvider, wanted: WantedProvider
) -> dict[str, Mapping[str, Any]]:
    """Return the wanted inventories; one in use is never dropped.

    While another class is in use the wanted one does not appear: the same
    machine would be offered twice. Where both are in use both stay.
    """
    stays = (
        known.inventories if wanted.is_gone else kept_classes(known, wanted)
    )
    inventories = {
        name: _fully_reserved(known.inventories[name])
        for name in sorted(stays)
    }
    if wanted.inventory is not None:
        name = wanted.inventory.resource_class
        record = _record(known.inventories.get(name), wanted)
        if record and (not stays or name in (known.in_use or ())):
            inventories[name] = record
    return inventories


def _record(
    present: Mapping[str, Any] | None, wanted: WantedProvider
) -> Mapping[str, Any] | None:
    """Return the record of the wanted class; None: it is not to be there."""
    assert wanted.inventory is not None  # noqa: S101 - see _inventories
    if wanted.is_unconfirmed and not (present and wanted.inventory.reserved):
        return present
    return wanted.inventory.body()


def _fully_reserved(record: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return an inventory of which nothing more can be had."""
    return {**record, 'reserved': record['total']}


def _are_equal(one: Inventories, other: Inventories) -> bool:
    """Compare what we set; Placement adds nothing we would not repeat."""
    if set(one) != set(other):
        return False
    return all(
        other[name].get(key) == value
        for name, record in one.items()
        for key, value in record.items()
    )

# SPDX-License-Identifier: Apache-2.0
"""Plans the writes that turn a known provider into the wanted provider.

Pure functions: known and wanted provider in, an ordered list of writes out. A
write carries the generation that Placement returned for the write before it.
If another client writes the provider in between, Placement therefore answers
with a conflict, and the other client's write is not overwritten.
"""

import dataclasses
from collections.abc import Mapping
from typing import Any

from resource_tracker import interning
from resource_tracker.provider import COMPUTE_STATUS_DISABLED, WantedProvider

Inventories = Mapping[str, Mapping[str, Any]]


@dataclasses.dataclass(frozen=True, slots=True)
class KnownProvider:
    """A provider as Placement last returned or acknowledged it.

    :param uuid: the node's uuid, except for a provider from before Nova gave a
        node and its provider the same uuid
    :param inventories: inventory records by resource class
    :param aggregates: None: not read yet; they must be read before a plan that
        changes them
    :param in_use: resource classes of which something is allocated; None: not
        read
    """

    uuid: str
    generation: int
    inventories: Inventories = dataclasses.field(default_factory=dict)
    traits: frozenset[str] = frozenset()
    aggregates: frozenset[str] | None = None
    in_use: frozenset[str] | None = None


@dataclasses.dataclass(frozen=True, slots=True)
class Create:
    """Create the provider; the node's uuid is its uuid and its name."""

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
    """Return the writes in the order in which to send them.

    The result is empty if nothing differs. A new provider gets its traits and
    aggregates before its inventory, and a provider is reserved before its
    traits and aggregates change. The scheduler therefore never offers a node
    with wrong traits.

    :param known: None: the provider does not exist yet
    :param our_traits: traits that this project has set, or may have set. Only
        these are removed, because other clients set traits as well. Empty for
        a provider that is read for the first time, so a trait that the node
        lost in Ironic before then stays
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
    """Return a provider as it is directly after its creation."""
    return KnownProvider(uuid, generation=0, aggregates=frozenset())


def dropped_classes(
    known: KnownProvider, wanted: WantedProvider
) -> frozenset[str]:
    """Return the resource classes that the wanted provider does not have.

    The caller reads whether they are in use before it plans the writes.
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
    """Return the known provider after Placement acknowledged a write.

    :param generation: the generation in Placement's answer
    """
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
    kept = {t for t in known.traits - our_traits if not _is_set_by_computes(t)}
    traits = wanted.traits | kept
    if traits != known.traits:
        writes.append(PutTraits(known.uuid, traits))
    if wanted.aggregates is not None:
        present = known.aggregates
        assert present is not None  # noqa: S101 - read before the plan
        aggregates = wanted.aggregates.merged_with(present)
        if aggregates != present:
            writes.append(PutAggregates(known.uuid, aggregates))
    return tuple(writes)


def _is_set_by_computes(trait: str) -> bool:
    """Return whether only compute services set a trait.

    Such a trait is removed even if ``our_traits`` does not have it: Nova's own
    driver may have set the trait of an image type, or a host before the type
    was in its ``[compute] image_type_exclude_list``.
    """
    is_image_type = trait.startswith('COMPUTE_IMAGE_TYPE_')
    return is_image_type or trait == COMPUTE_STATUS_DISABLED


def _inventories(
    known: KnownProvider, wanted: WantedProvider
) -> dict[str, Mapping[str, Any]]:
    """Return the inventories that the provider should have now.

    A class of which something is allocated stays, reserved. Meanwhile the
    wanted class is not added, because the same machine would be offered twice.
    If both classes are in use, both stay.
    """
    stays = (
        known.inventories if wanted.is_gone else kept_classes(known, wanted)
    )
    inventories: dict[str, Mapping[str, Any]] = {}
    for name in sorted(stays):
        record = known.inventories[name]
        inventories[name] = {**record, 'reserved': record['total']}
    if wanted.inventory is not None:
        name = wanted.inventory.resource_class
        present = known.inventories.get(name)
        # The inventory of an unconfirmed node is only changed to reserve it.
        # It is never created or freed, so no build gets the node.
        if not wanted.is_unconfirmed or (
            present and wanted.inventory.reserved
        ):
            present = wanted.inventory.body()
        if present and (not stays or name in (known.in_use or ())):
            inventories[name] = present
    return inventories


def _are_equal(one: Inventories, other: Inventories) -> bool:
    """Return whether ``other`` has each class and value of ``one``.

    Placement may return more fields of an inventory than this project sets;
    these are not compared.
    """
    if set(one) != set(other):
        return False
    return all(
        other[name].get(key) == value
        for name, record in one.items()
        for key, value in record.items()
    )

# SPDX-License-Identifier: Apache-2.0
"""A Placement in memory that keeps the real one's rules.

It has the methods of ``resource_tracker.placement.Placement`` and passes the
same contract tests. ``others`` write through methods of their own, and
``fail_next`` loses or refuses the next requests.
"""

import dataclasses
from collections.abc import Mapping
from typing import Any

from resource_tracker import errors
from resource_tracker.delta import (
    Create,
    KnownProvider,
    PutAggregates,
    PutInventories,
    PutTraits,
    Write,
)


@dataclasses.dataclass
class _Provider:
    generation: int = 0
    inventories: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    traits: frozenset[str] = frozenset()
    aggregates: frozenset[str] = frozenset()
    allocations: dict[str, str] = dataclasses.field(default_factory=dict)


class FakePlacement:
    """The client and the service in one."""

    def __init__(self) -> None:
        self.held: dict[str, _Provider] = {}
        self.requests: list[str] = []
        self.fail_next: list[tuple[str, errors.PlacementError]] = []

    # The client's methods

    def providers(self) -> dict[str, int]:
        self._count('list')
        return {uuid: p.generation for uuid, p in self.held.items()}

    def provider(self, uuid: str) -> KnownProvider | None:
        self._count('read')
        if uuid not in self.held:
            return None
        present = self.held[uuid]
        return KnownProvider(
            uuid,
            uuid,
            present.generation,
            present.inventories,
            present.traits,
            present.aggregates,
        )

    def consumers(self, uuid: str) -> frozenset[str]:
        self._count('consumers')
        return frozenset(self.held[uuid].allocations)

    def write(self, change: Write, generation: int) -> int:
        self._count(type(change).__name__, before=True)
        if isinstance(change, Create):
            self._create(change.uuid)
        else:
            self._put(change, generation)
        self._count(type(change).__name__, before=False)
        return self.held[change.uuid].generation

    def delete(self, uuid: str) -> None:
        self._count('delete')
        if uuid in self.held and self.held[uuid].allocations:
            raise errors.ProviderInUse(uuid)
        self.held.pop(uuid, None)

    def _create(self, uuid: str) -> None:
        if uuid in self.held:
            raise errors.GenerationConflict(f'{uuid} exists')
        self.held[uuid] = _Provider()

    def _put(
        self,
        change: PutInventories | PutTraits | PutAggregates,
        generation: int,
    ) -> None:
        if change.uuid not in self.held:
            raise errors.ProviderNotFound(change.uuid)
        provider = self.held[change.uuid]
        if provider.generation != generation:
            raise errors.GenerationConflict(change.uuid)
        match change:
            case PutInventories(inventories=inventories):
                lost = set(provider.allocations.values()) - set(inventories)
                if lost:
                    raise errors.ProviderInUse(str(lost))
                provider.inventories = dict(inventories)
            case PutTraits(traits=traits):
                provider.traits = traits
            case PutAggregates(aggregates=aggregates):
                provider.aggregates = aggregates
        provider.generation += 1

    def _count(self, kind: str, before: bool = True) -> None:
        """Count a request; fail it before or after it took effect."""
        when = 'before' if before else 'after'
        if before:
            self.requests.append(kind)
        if self.fail_next and self.fail_next[0][0] == when:
            raise self.fail_next.pop(0)[1]

    # What others do

    def allocate(self, uuid: str, consumer: str) -> None:
        """Another client allocates the provider's one unit."""
        provider = self.held[uuid]
        (resource_class,) = provider.inventories
        provider.allocations[consumer] = resource_class
        provider.generation += 1

    def deallocate(self, uuid: str) -> None:
        """All allocations of the provider end."""
        self.held[uuid].allocations.clear()
        self.held[uuid].generation += 1

    def tag(self, uuid: str, trait: str) -> None:
        """Another client sets a trait."""
        self.held[uuid].traits |= {trait}
        self.held[uuid].generation += 1

# SPDX-License-Identifier: Apache-2.0
"""A Placement in memory that follows the rules of the real one.

It has the methods of ``resource_tracker.placement.Placement`` and passes the
same contract tests. Further methods are writes of other clients.
``fail_next`` fails the next requests before or after they take effect. A
test can set ``on_request``, which is called before each request, to let
something happen or to wait there.
"""

import dataclasses
import itertools
import threading
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import os_traits

from resource_tracker import errors
from resource_tracker.delta import (
    Create,
    KnownProvider,
    PutAggregates,
    PutInventories,
    PutTraits,
    Write,
)
from resource_tracker.placement import ListedProvider

_STANDARD = frozenset(os_traits.get_traits())


@dataclasses.dataclass
class _Provider:
    name: str
    generation: int = 0
    inventories: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    traits: frozenset[str] = frozenset()
    aggregates: frozenset[str] = frozenset()
    allocations: dict[str, str] = dataclasses.field(default_factory=dict)


class FakePlacement:
    """The client and the service in one; any thread may call."""

    def __init__(self) -> None:
        self.providers: dict[str, _Provider] = {}
        self.requests: list[str] = []
        self.fail_next: list[tuple[str, errors.PlacementError]] = []
        self.on_request: Callable[[str, str], None] = lambda kind, uuid: None
        self.standard_traits = _STANDARD
        self._lock = threading.RLock()
        self._left_out: set[str] = set()

    # The client's methods

    def check_access(self, timeout_s: float) -> None:
        """Answer."""
        self._arrive('access', '')

    def list_providers(self) -> dict[str, ListedProvider]:
        """Return all providers by uuid."""
        self._arrive('list', '')
        with self._lock:
            return {
                uuid: ListedProvider(uuid, present.name, present.generation)
                for uuid, present in self.providers.items()
            }

    def list_offering(self, resource_class: str) -> frozenset[str]:
        """Return the providers with a free unit of a class."""
        self._arrive('offering', '')
        with self._lock:
            return frozenset(
                uuid
                for uuid, present in self.providers.items()
                if _is_free(present, resource_class)
            )

    def list_with_trait(self, trait: str) -> frozenset[str]:
        """Return the providers with a trait."""
        self._arrive('with trait', '')
        with self._lock:
            return frozenset(
                uuid
                for uuid, present in self.providers.items()
                if trait in present.traits
            )

    def read_provider_uuid(self, node: str) -> str | None:
        """Return the uuid of the provider with this uuid or name, or None."""
        self._arrive('find', node)
        with self._lock:
            if node in self.providers:
                return node
            return next(
                (u for u, held in self.providers.items() if held.name == node),
                None,
            )

    def read_provider(self, uuid: str) -> KnownProvider | None:
        """Return a provider with its inventories and traits, or None."""
        self._arrive('read', uuid)
        with self._lock:
            present = self.providers.get(uuid)
            if present is None:
                return None
            return KnownProvider(
                uuid, present.generation, present.inventories, present.traits
            )

    def read_classes_in_use(self, uuid: str) -> frozenset[str]:
        """Return the resource classes of a provider that are allocated."""
        self._arrive('in_use', uuid)
        return frozenset(self._present(uuid).allocations.values())

    def read_usages(self, uuid: str) -> tuple[dict[str, int], int]:
        """Return what is allocated of each class, and the generation."""
        self._arrive('usages', uuid)
        with self._lock:
            present = self._present(uuid)
            used = list(present.allocations.values())
            found = {name: used.count(name) for name in present.inventories}
            return found, present.generation

    def read_consumers(self, uuid: str) -> frozenset[str]:
        """Return the consumers that have allocations on a provider."""
        self._arrive('consumers', uuid)
        return frozenset(self._present(uuid).allocations)

    def read_provider_allocations(
        self, uuid: str
    ) -> tuple[frozenset[str], int]:
        """Return the consumers of a provider, and its generation."""
        self._arrive('allocations', uuid)
        with self._lock:
            present = self._present(uuid)
            return frozenset(present.allocations), present.generation

    def read_aggregates(self, uuid: str) -> tuple[frozenset[str], int]:
        """Return the aggregates of a provider, and its generation."""
        self._arrive('aggregates', uuid)
        with self._lock:
            present = self._present(uuid)
            return present.aggregates, present.generation

    def supported_traits(self, traits: Iterable[str]) -> frozenset[str]:
        """Return the traits that Placement has or, if custom, can create.

        A standard trait that was unknown once stays left out until
        ``read_new_traits`` finds it.
        """
        wanted = frozenset(traits)
        custom = frozenset(filter(os_traits.is_custom, wanted))
        with self._lock:
            known = self.standard_traits - self._left_out
            self._left_out |= wanted - custom - known
        return custom | (wanted & known)

    def _unknown_traits(self, traits: Iterable[str]) -> frozenset[str]:
        standard = itertools.filterfalse(os_traits.is_custom, traits)
        return frozenset(standard) - self.standard_traits

    def read_new_traits(self) -> frozenset[str]:
        """Return the traits that were left out and are known now.

        Sends no request if no trait was left out.
        """
        if not self._left_out:
            return frozenset()
        self._arrive('learn', '')
        with self._lock:
            learned = frozenset(self._left_out & self.standard_traits)
            self._left_out -= learned
        return learned

    def write(
        self,
        change: Write,
        generation: int,
        require: Callable[[], None] = lambda: None,
    ) -> int:
        """Carry out one write; return the provider's next generation."""
        if isinstance(change, PutInventories | PutTraits):
            # The real client creates new names here.
            self.on_request('names', change.uuid)
        require()
        self._arrive(type(change).__name__, change.uuid)
        with self._lock:
            if isinstance(change, Create):
                self._create(change.uuid)
            else:
                self._put(change, generation)
            answer = self.providers[change.uuid].generation
        self._fail('after')
        return answer

    def delete_provider(self, uuid: str) -> None:
        """Delete a provider unless something is allocated on it."""
        self._arrive('delete', uuid)
        with self._lock:
            if uuid in self.providers and self.providers[uuid].allocations:
                raise errors.ProviderInUse(uuid)
            self.providers.pop(uuid, None)

    # The service's rules

    def _create(self, uuid: str) -> None:
        if self.is_taken(uuid):
            raise errors.ProviderExists(uuid)
        self.providers[uuid] = _Provider(uuid)

    def is_taken(self, name: str) -> bool:
        """Return whether a provider has this uuid or name."""
        return name in self.providers or any(
            held.name == name for held in self.providers.values()
        )

    def _present(self, uuid: str) -> _Provider:
        if uuid not in self.providers:
            raise errors.ProviderNotFound(uuid)
        return self.providers[uuid]

    def _put(
        self,
        change: PutInventories | PutTraits | PutAggregates,
        generation: int,
    ) -> None:
        provider = self._present(change.uuid)
        if provider.generation != generation:
            raise errors.GenerationConflict(change.uuid)
        match change:
            case PutInventories(inventories=inventories):
                lost = set(provider.allocations.values()) - set(inventories)
                if lost:
                    raise errors.ProviderInUse(str(lost))
                provider.inventories = dict(inventories)
            case PutTraits(traits=traits):
                if max(map(len, traits), default=0) > 255:
                    raise errors.PlacementRefused('A name is too long')
                if unknown := self._unknown_traits(traits):
                    raise errors.PlacementRefused(f'No such trait {unknown}')
                if provider.traits == traits:
                    return  # Nothing changes, so the generation stays.
                provider.traits = traits
            case PutAggregates(aggregates=aggregates):
                provider.aggregates = aggregates
        provider.generation += 1

    def _arrive(self, kind: str, uuid: str) -> None:
        self.on_request(kind, uuid)
        with self._lock:
            self.requests.append(kind)
        self._fail('before')

    def _fail(self, when: str) -> None:
        """Fail a request before or after it took effect."""
        with self._lock:
            if self.fail_next and self.fail_next[0][0] == when:
                raise self.fail_next.pop(0)[1]

    # Writes of other clients

    def make_provider(self, uuid: str, name: str) -> None:
        """Create a provider whose name is not its uuid."""
        self.providers[uuid] = _Provider(name)

    def allocate(self, uuid: str, consumer: str, resource_class: str) -> None:
        """Allocate one unit to a consumer, as a scheduler does."""
        with self._lock:
            provider = self.providers[uuid]
            provider.allocations[consumer] = resource_class
            provider.generation += 1

    def deallocate(self, uuid: str, consumer: str) -> None:
        """Delete the allocation of a consumer; the generation stays."""
        with self._lock:
            self.providers[uuid].allocations.pop(consumer, None)

    def add_aggregate(self, uuid: str, aggregate: str) -> None:
        """Put a provider into an aggregate."""
        with self._lock:
            self.providers[uuid].aggregates |= {aggregate}
            self.providers[uuid].generation += 1

    def add_standard_trait(self, trait: str) -> None:
        """Add a standard trait, as a newer library of traits does."""
        self.standard_traits |= {trait}

    def add_trait(self, uuid: str, trait: str) -> None:
        """Set a trait on a provider."""
        with self._lock:
            self.providers[uuid].traits |= {trait}
            self.providers[uuid].generation += 1


def _is_free(provider: _Provider, resource_class: str) -> bool:
    """Return whether a unit is neither reserved nor allocated."""
    inventory = provider.inventories.get(resource_class)
    if inventory is None:
        return False
    used = list(provider.allocations.values()).count(resource_class)
    return int(inventory['total']) > int(inventory['reserved']) + used

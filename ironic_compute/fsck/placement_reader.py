# SPDX-License-Identifier: Apache-2.0
"""Reads the part of a snapshot that Placement has.

A list costs one request for each resource class and each trait. The second
look repeats the lists that its suspects are in.

Placement has no list of allocations or reservations. Why a provider is not
offered, and who has it, shows by one request for each provider: its usages if
it should be free, its allocations if it should be used; by two if it is not as
it should be. A deep look sends three for each provider.
"""

import contextlib
import dataclasses
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from concurrent import futures

import attrs

from ironic_compute.fsck.snapshot import Placement as Providers
from ironic_compute.fsck.snapshot import ProviderDetails
from ironic_compute.fsck.suspects import InPlacement
from resource_tracker.errors import GenerationConflict, ProviderNotFound
from resource_tracker.node import NodeFacts
from resource_tracker.placement import Placement
from resource_tracker.provider import (
    COMPUTE_NODE,
    COMPUTE_STATUS_DISABLED,
    resource_class_of,
)

# The most frequent ones are listed; 18 requests in all.
_CLASSES_MAX = 8
_TRAITS_MAX = 7
_THREADS_COUNT = 8


@attrs.define(eq=False, repr=False, slots=False)
class PlacementReader:
    """Reads Placement; each method blocks.

    :param note: called with a sentence about what is not read
    :param is_deep: list all classes and traits of the pool
    :param threads_count: providers that are read at the same time
    """

    _placement: Placement
    _note: Callable[[str], None]
    _is_deep: bool = False
    _threads_count: int = _THREADS_COUNT

    def read_lists(self, nodes: Iterable[NodeFacts]) -> Providers:
        """List the providers, and those with each class and trait.

        :param nodes: the nodes whose classes and traits are listed
        """
        facts = tuple(nodes)
        classes = Counter(filter(None, map(resource_class_of, facts)))
        traits = Counter(trait for each in facts for trait in each.traits)
        found = self._placement.list_providers()
        return Providers(
            names={uuid: each.name for uuid, each in found.items()},
            generations={u: each.generation for u, each in found.items()},
            offered=self._offered(
                self._most(classes, _CLASSES_MAX, 'resource classes')
            ),
            with_trait=self._with_trait(
                (
                    COMPUTE_NODE,
                    COMPUTE_STATUS_DISABLED,
                    *self._most(traits, _TRAITS_MAX, 'traits'),
                )
            ),
        )

    def _offered(self, classes: Iterable[str]) -> dict[str, frozenset[str]]:
        return {name: self._placement.list_offering(name) for name in classes}

    def _with_trait(self, traits: Iterable[str]) -> dict[str, frozenset[str]]:
        return {name: self._placement.list_with_trait(name) for name in traits}

    def _most(self, counts: Counter[str], limit: int, what: str) -> list[str]:
        """Return the most frequent names; note if some are left out."""
        count = None if self._is_deep else limit
        found = [name for name, _ in counts.most_common(count)]
        if len(found) < len(counts):
            self._note(
                f'Not checked without --deep: the {len(counts) - len(found)} '
                f'{what} that the fewest nodes have'
            )
        return found

    def read_again(self, known: Providers, wanted: InPlacement) -> Providers:
        """Read again what the suspects need; the rest stays as it was.

        The generations are listed last, so that they show whether a provider
        was written after its details were read.
        """
        details = self._read_each(
            lambda uuid: self._read_use(uuid, wanted.providers[uuid]),
            wanted.providers,
        )
        offered = {**known.offered, **self._offered(sorted(wanted.classes))}
        traits = self._with_trait(sorted(wanted.traits))
        found = self._placement.list_providers()
        return Providers(
            names={uuid: each.name for uuid, each in found.items()},
            generations={u: each.generation for u, each in found.items()},
            offered=offered,
            with_trait={**known.with_trait, **traits},
            details=details,
        )

    def _read_use(self, uuid: str, is_used: bool) -> ProviderDetails:
        """Read who has a provider, and its classes if nobody has it.

        :param is_used: somebody should have it
        """
        if is_used:
            consumers, generation = self._placement.read_provider_allocations(
                uuid
            )
            if consumers:
                return ProviderDetails(uuid, generation, consumers)
        usages, generation = self._placement.read_usages(uuid)
        consumers = frozenset()
        if any(usages.values()):
            consumers, generation = self._placement.read_provider_allocations(
                uuid
            )
        return ProviderDetails(uuid, generation, consumers, frozenset(usages))

    def with_details(
        self, known: Providers, uuids: Iterable[str]
    ) -> Providers:
        """Read some providers as a whole, with their consumers."""
        details = self._read_each(self._read, uuids)
        return dataclasses.replace(known, details=details)

    def _read_each(
        self,
        read: Callable[[str], ProviderDetails | None],
        uuids: Iterable[str],
    ) -> Mapping[str, ProviderDetails]:
        """Read some providers; leave out one that is gone or changes."""

        def read_one(uuid: str) -> ProviderDetails | None:
            with contextlib.suppress(ProviderNotFound, GenerationConflict):
                return read(uuid)
            return None

        with futures.ThreadPoolExecutor(self._threads_count) as threads:
            found = threads.map(read_one, uuids)
            return {each.uuid: each for each in found if each is not None}

    def _read(self, uuid: str) -> ProviderDetails | None:
        provider = self._placement.read_provider(uuid)
        if provider is None:
            return None
        consumers = self._placement.read_consumers(uuid)
        return ProviderDetails.of(provider, consumers)

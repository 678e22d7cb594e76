# SPDX-License-Identifier: Apache-2.0
"""Reads the part of a snapshot that Placement has.

A list costs one request for each resource class and each trait; a provider by
itself costs three.
"""

import contextlib
import dataclasses
from collections import Counter
from collections.abc import Callable, Iterable
from concurrent import futures

import attrs

from ironic_compute.fsck.snapshot import Placement as Providers
from ironic_compute.fsck.snapshot import ProviderDetails
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
            offered={
                name: self._placement.list_offering(name)
                for name in self._most(
                    classes, _CLASSES_MAX, 'resource classes'
                )
            },
            with_trait={
                name: self._placement.list_with_trait(name)
                for name in (
                    COMPUTE_NODE,
                    COMPUTE_STATUS_DISABLED,
                    *self._most(traits, _TRAITS_MAX, 'traits'),
                )
            },
        )

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

    def with_details(
        self, known: Providers, uuids: Iterable[str]
    ) -> Providers:
        """Read some providers by themselves, with their consumers."""
        with futures.ThreadPoolExecutor(self._threads_count) as threads:
            details = {
                each.provider.uuid: each
                for each in threads.map(self._read, uuids)
                if each is not None
            }
        return dataclasses.replace(known, details=details)

    def _read(self, uuid: str) -> ProviderDetails | None:
        """Read a provider; None if it is gone, or is written all the time."""
        with contextlib.suppress(ProviderNotFound, GenerationConflict):
            provider = self._placement.read_provider(uuid)
            if provider is not None:
                consumers = self._placement.read_consumers(uuid)
                return ProviderDetails(provider, consumers)
        return None

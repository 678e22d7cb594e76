# SPDX-License-Identifier: Apache-2.0
"""Which providers there are, and their generations: one request for all.

The list proves what did not change: a provider whose generation is the one
that Placement answered to our last write was written by nobody since. It does
not prove that nothing was freed: in Placement the end of an allocation leaves
the generation as it is, its beginning raises it.
"""

import threading
from collections.abc import Mapping
from concurrent import futures

from resource_tracker.placement import Clock, ListedProvider, Placement

# A list this old still says what there is, but neither what there is not,
# nor that a generation is still the same.
_FRESH_S = 30.0


class ProviderIndex:
    """The newest list of all providers.

    Any thread may call. The first asks, the others wait for its answer; an
    error reaches all of them, and the next call asks anew.
    """

    def __init__(self, placement: Placement, clock: Clock) -> None:
        self._placement = placement
        self._clock = clock
        self._lock = threading.Lock()
        self._listing: futures.Future[dict[str, ListedProvider]] | None = None
        self._loaded_at_s = 0.0

    def find_provider(self, node: str) -> ListedProvider | None:
        """Return a node's provider; None if there was none a moment ago.

        A provider of another uuid with the node's name is one that Nova made
        before it gave both the same uuid.
        """
        found = self._providers(reload=False).get(node)
        if found is None and not self._is_fresh():
            return self._providers(reload=True).get(node)
        return found

    def find_fresh_provider(self, node: str) -> ListedProvider | None:
        """Return the same, with a generation that may be believed."""
        return self._providers(reload=not self._is_fresh()).get(node)

    def reload(self) -> Mapping[str, ListedProvider]:
        """Ask anew and return all, by uuid and by name."""
        return self._providers(reload=True)

    def add_provider(self, node: str) -> None:
        """Note a provider that is new since the list."""
        self._providers(reload=False)[node] = ListedProvider(node, node, 0)

    def _is_fresh(self) -> bool:
        return self._clock.now_s() - self._loaded_at_s < _FRESH_S

    def _providers(self, *, reload: bool) -> dict[str, ListedProvider]:
        with self._lock:
            listing = self._listing
            is_first = listing is None or _must_load(listing, reload=reload)
            if listing is None or is_first:
                self._listing = listing = futures.Future()
        if is_first:
            self._load(listing)
        return listing.result()

    def _load(
        self, listing: 'futures.Future[dict[str, ListedProvider]]'
    ) -> None:
        self._loaded_at_s = self._clock.now_s()
        try:
            listed = self._placement.list_providers().values()
            names = {found.name: found for found in listed}
            listing.set_result(names | {found.uuid: found for found in listed})
        except BaseException as exc:
            listing.set_exception(exc)


def _must_load(
    listing: 'futures.Future[dict[str, ListedProvider]]', *, reload: bool
) -> bool:
    """Say whether to ask again; who is just being answered is not asked."""
    return listing.done() and (reload or listing.exception() is not None)

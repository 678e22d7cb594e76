# SPDX-License-Identifier: Apache-2.0
"""Cache of Placement's list of all providers, with their generations.

One request replaces a read of each provider. If the list shows the generation
that Placement returned for our last write, no other client has written the
provider since. An equal generation does not prove that nothing was freed: a
new allocation raises the generation, its end does not.
"""

import threading
from collections.abc import Mapping
from concurrent import futures

from resource_tracker.placement import Clock, ListedProvider, Placement

# The age in seconds from which a list is old: its providers still exist, but
# others may have been created, and generations may be outdated.
_FRESH_S = 30.0


class ProviderIndex:
    """The newest list of all providers.

    Any thread may call. The first call sends the request, and concurrent calls
    block until its answer. An error reaches all of them, and the next call
    sends a new request. Each method raises ``errors.PlacementError``.
    """

    def __init__(self, placement: Placement, clock: Clock) -> None:
        self._placement = placement
        self._clock = clock
        self._lock = threading.Lock()
        self._listing: futures.Future[dict[str, ListedProvider]] | None = None
        self._loaded_at_s = 0.0

    def find_provider(self, node: str) -> ListedProvider | None:
        """Return a node's provider, or None if it does not exist.

        Before it returns None, an old list is read again. The provider may
        have another uuid and the node's name, if Nova created it before nodes
        and providers had the same uuid.

        :param node: uuid of the node
        """
        found = self._providers(reload=False).get(node)
        if found is None and not self._is_fresh():
            return self._providers(reload=True).get(node)
        return found

    def find_fresh_provider(self, node: str) -> ListedProvider | None:
        """Return a node's provider from a list that is not old, or None.

        The generation of the returned provider is up to date.
        """
        return self._providers(reload=not self._is_fresh()).get(node)

    def reload(self) -> Mapping[str, ListedProvider]:
        """Read the list again; return the providers by uuid and by name."""
        return self._providers(reload=True)

    def add_provider(self, node: str) -> None:
        """Add a provider that was created after the list was read."""
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
        try:
            listed = self._placement.list_providers().values()
            # Not when the request was sent: if Placement needed longer than a
            # list stays fresh, each node would have it listed again.
            self._loaded_at_s = self._clock.now_s()
            names = {found.name: found for found in listed}
            listing.set_result(names | {found.uuid: found for found in listed})
        except BaseException as exc:
            listing.set_exception(exc)


def _must_load(
    listing: 'futures.Future[dict[str, ListedProvider]]', *, reload: bool
) -> bool:
    """Return whether to send a new request; never while one is under way."""
    return listing.done() and (reload or listing.exception() is not None)

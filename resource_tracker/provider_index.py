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

from resource_tracker.placement import Clock, Listed, Placement

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
        self._answer: futures.Future[dict[str, Listed]] | None = None
        self._asked_at_s = 0.0

    def find(self, node: str) -> Listed | None:
        """Return a node's provider; None if there was none a moment ago.

        A provider of another uuid with the node's name is one that Nova made
        before it gave both the same uuid.
        """
        found = self._listed(renew=False).get(node)
        if found is None and not self._is_fresh():
            return self._listed(renew=True).get(node)
        return found

    def find_as_it_is(self, node: str) -> Listed | None:
        """Return the same, with a generation that may be believed."""
        return self._listed(renew=not self._is_fresh()).get(node)

    def renew(self) -> Mapping[str, Listed]:
        """Ask anew and return all, by uuid and by name."""
        return self._listed(renew=True)

    def made(self, node: str) -> None:
        """Note a provider that is new since the list."""
        self._listed(renew=False)[node] = Listed(node, node, 0)

    def _is_fresh(self) -> bool:
        return self._clock.now_s() - self._asked_at_s < _FRESH_S

    def _listed(self, *, renew: bool) -> dict[str, Listed]:
        with self._lock:
            answer = self._answer
            asks = answer is None or _is_over(answer, renew=renew)
            if answer is None or asks:
                self._answer = answer = futures.Future()
        if asks:
            self._ask(answer)
        return answer.result()

    def _ask(self, answer: 'futures.Future[dict[str, Listed]]') -> None:
        self._asked_at_s = self._clock.now_s()
        try:
            listed = self._placement.list_providers().values()
            names = {found.name: found for found in listed}
            answer.set_result(names | {found.uuid: found for found in listed})
        except BaseException as exc:
            answer.set_exception(exc)


def _is_over(
    answer: 'futures.Future[dict[str, Listed]]', *, renew: bool
) -> bool:
    """Say whether to ask again; who is just being answered is not asked."""
    return answer.done() and (renew or answer.exception() is not None)

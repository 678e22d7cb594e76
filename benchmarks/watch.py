# SPDX-License-Identifier: Apache-2.0
"""Measures the time from a change in Ironic to the change in Placement.

One SQL statement reads both, again and again. The error of a figure is at
most the time between two reads, which is measured as well.
"""

import dataclasses
import threading
import time
from collections.abc import Callable, Mapping

from benchmarks.seen import Seen

Test = Callable[[Seen], bool]

LOOK_INTERVAL_S = 0.05


@dataclasses.dataclass(frozen=True, slots=True)
class Kind:
    """A kind of change of a node.

    :param has_begun: returns whether Ironic has the change
    :param has_ended: returns whether Placement has the change
    """

    name: str
    has_begun: Test
    has_ended: Test


KINDS: Mapping[str, Kind] = {
    kind.name: kind
    for kind in (
        Kind(
            'maintenance_set',
            lambda seen: seen.has_maintenance,
            lambda seen: not seen.is_offered,
        ),
        Kind(
            'maintenance_unset',
            lambda seen: not seen.has_maintenance,
            lambda seen: seen.is_offered,
        ),
        Kind(
            'trait_added',
            lambda seen: seen.has_trait,
            lambda seen: seen.shows_trait,
        ),
        Kind(
            'trait_removed',
            lambda seen: not seen.has_trait,
            lambda seen: not seen.shows_trait,
        ),
        Kind(
            'class_set',
            lambda seen: seen.has_class,
            lambda seen: seen.is_offered,
        ),
        Kind(
            'class_removed',
            lambda seen: not seen.has_class,
            lambda seen: not seen.has_inventory,
        ),
        Kind(
            'withdrawn',
            lambda seen: seen.state == 'manageable',
            lambda seen: not seen.is_offered,
        ),
        Kind(
            'available',
            lambda seen: seen.state == 'available',
            lambda seen: seen.is_offered,
        ),
    )
}


@dataclasses.dataclass(slots=True)
class _Case:
    node: str
    kind: Kind
    begun_s: float | None = None
    ended_s: float | None = None


class Cases:
    """The watched changes of many nodes.

    One thread calls ``record``; another one may call ``add``.
    """

    def __init__(self) -> None:
        self._cases: list[_Case] = []
        self._last_s: float | None = None
        self.gap_max_s = 0.0

    def add(self, node: str, kind: Kind) -> None:
        """Watch for a change of a node; the change is requested later."""
        self._cases.append(_Case(node, kind))

    def open_nodes(self) -> set[str]:
        """Return the nodes with a change that Placement does not have yet."""
        return {case.node for case in self._cases if case.ended_s is None}

    def record(self, seen: Mapping[str, Seen], now_s: float) -> None:
        """Record the times of changes that a read shows.

        :param now_s: the time of the read
        """
        if self._last_s is not None:
            self.gap_max_s = max(self.gap_max_s, now_s - self._last_s)
        self._last_s = now_s
        for case in list(self._cases):
            if case.ended_s is None and case.node in seen:
                _advance(case, seen[case.node], now_s)

    def took_s(self, kind: str) -> list[float]:
        """Return the duration of each change of a kind; inf: not seen."""
        return [
            float('inf')
            if case.ended_s is None or case.begun_s is None
            else case.ended_s - case.begun_s
            for case in self._cases
            if case.kind.name == kind
        ]


def _advance(case: _Case, seen: Seen, now_s: float) -> None:
    if case.begun_s is None and case.kind.has_begun(seen):
        case.begun_s = now_s
    if case.begun_s is not None and case.kind.has_ended(seen):
        case.ended_s = now_s


class Watcher:
    """Reads the nodes in a thread of its own while the context is open.

    :param read: reads these nodes from the databases
    :param on_read: is called with the result of each read
    """

    def __init__(
        self,
        read: Callable[[set[str]], Mapping[str, Seen]],
        on_read: Callable[[Mapping[str, Seen]], None] = lambda seen: None,
    ) -> None:
        self.cases = Cases()
        self._read = read
        self._on_read = on_read
        self._over = threading.Event()
        self._error: Exception | None = None
        self._thread = threading.Thread(target=self._watch, daemon=True)

    def __enter__(self) -> 'Watcher':
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()
        if self._error is not None:
            raise self._error

    def _watch(self) -> None:
        try:
            while not self._over.wait(LOOK_INTERVAL_S):
                seen = self._read(self.cases.open_nodes())
                self.cases.record(seen, time.monotonic())
                self._on_read(seen)
        except Exception as exc:
            self._error = exc

    def wait(self, max_s: float) -> bool:
        """Wait until all changes are complete; return whether they are."""
        deadline_s = time.monotonic() + max_s
        while self.cases.open_nodes() and self._thread.is_alive():
            if time.monotonic() > deadline_s:
                return False
            time.sleep(LOOK_INTERVAL_S)
        return not self.cases.open_nodes()

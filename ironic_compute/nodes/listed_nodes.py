# SPDX-License-Identifier: Apache-2.0
"""The list of all nodes of a pool, as one worker tells the others.

Like ``changes_read``, it has a fingerprint in place of each node's facts. It
is sent in parts, because one message with thousands of nodes would block the
threads of the worker that gets it.
"""

import dataclasses
import threading
from collections.abc import Iterator, Mapping, Sequence

from hashring.ring import Host
from ironic_compute.nodes.changes_read import TIMELESS_FIELDS, fingerprint
from resource_tracker.node import NodeFacts, NodeId

# A message of fifty kilobytes.
_NODES_PER_PART = 1000


def listed_fingerprint(facts: NodeFacts) -> str:
    """Return a fingerprint of those facts that a list of all nodes has."""
    return fingerprint(facts, TIMELESS_FIELDS)


@dataclasses.dataclass(frozen=True, slots=True)
class ListPart:
    """A part of a list of all nodes of the pool.

    :param reader: the host whose worker has read the list
    :param began_s: when it began, on that worker's clock; the two together
        name the list
    :param number: which part this is, from 0 on
    :param count: the number of parts
    :param fingerprints: one of the facts of each node in this part
    """

    reader: Host
    began_s: float
    number: int
    count: int
    fingerprints: Mapping[NodeId, str]


def split(
    reader: Host, began_s: float, nodes: Sequence[NodeFacts]
) -> Iterator[ListPart]:
    """Yield the parts of a list; none if it is empty.

    An empty list is more often an error than it is true.
    """
    starts = range(0, len(nodes), _NODES_PER_PART)
    for number, start in enumerate(starts):
        some = nodes[start : start + _NODES_PER_PART]
        fingerprints = {f.uuid: listed_fingerprint(f) for f in some}
        yield ListPart(reader, began_s, number, len(starts), fingerprints)


class ToldLists:
    """Puts the newest told list together. Any thread may call."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._list: tuple[Host, float] | None = None
        self._parts: dict[int, Mapping[NodeId, str]] = {}
        self._whole: dict[NodeId, str] | None = None

    def add(self, part: ListPart) -> bool:
        """Add a part; return whether the list is whole with it."""
        with self._lock:
            if self._list != (part.reader, part.began_s):
                self._list, self._parts = (part.reader, part.began_s), {}
            self._parts[part.number] = part.fingerprints
            if len(self._parts) < part.count:
                return False
            parts, self._parts = self._parts, {}
            self._whole = {n: f for p in parts.values() for n, f in p.items()}
            return True

    def take(self) -> dict[NodeId, str] | None:
        """Return the newest whole list, and forget it; None without one."""
        with self._lock:
            whole, self._whole = self._whole, None
            return whole

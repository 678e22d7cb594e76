# SPDX-License-Identifier: Apache-2.0
"""Single-node reads made while a list of nodes is read and processed.

A list takes seconds to read, and longer to process. Its entry for a node that
was read in the meantime may be stale, so the later read of the one node wins.
The node feed of each worker uses it.
"""

import collections
import contextlib
import dataclasses
import threading
from collections.abc import Iterator, Mapping, Sequence

from resource_tracker.node import NodeFacts, NodeId


@dataclasses.dataclass(frozen=True, slots=True, eq=False)
class RecordedReads:
    """The results of single-node reads made inside one ``record()`` block.

    :param facts: the nodes that Ironic had when they were read last
    :param missing: the nodes that Ironic did not have then
    :param left: the nodes that Ironic had in another pool then
    """

    facts: dict[NodeId, NodeFacts] = dataclasses.field(default_factory=dict)
    missing: set[NodeId] = dataclasses.field(default_factory=set)
    left: set[NodeId] = dataclasses.field(default_factory=set)


class NewestFacts(Mapping[NodeId, NodeFacts]):
    """A live view of a list of nodes, in which the recorded reads count.

    It lacks the nodes that left the pool meanwhile. One that is missing stays
    as it was listed.

    :param listed: the nodes of the pool, as they were listed
    """

    def __init__(
        self, reads: RecordedReads, listed: Sequence[NodeFacts]
    ) -> None:
        self._reads = reads
        self._listed = {facts.uuid: facts for facts in listed}
        self._facts = collections.ChainMap(reads.facts, self._listed)

    def __getitem__(self, node: NodeId) -> NodeFacts:
        if node in self._reads.left:
            raise KeyError(node)
        return self._facts[node]

    def __iter__(self) -> Iterator[NodeId]:
        return (node for node in self._facts if node not in self._reads.left)

    def __len__(self) -> int:
        return sum(1 for _ in self)

    def left(self) -> frozenset[NodeId]:
        """Return the listed nodes that have left the pool meanwhile."""
        return frozenset(self._reads.left) & self._listed.keys()


class ConcurrentReads:
    """Records single-node reads for each list in progress; thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._recordings: list[RecordedReads] = []

    @contextlib.contextmanager
    def record(self) -> Iterator[RecordedReads]:
        """Yield a live record of the single-node reads in the block."""
        reads = RecordedReads()
        with self._lock:
            self._recordings.append(reads)
        try:
            yield reads
        finally:
            with self._lock:
                self._recordings.remove(reads)

    def add(self, facts: NodeFacts) -> None:
        """Record the facts of a node of the pool that was read."""
        with self._lock:
            for reads in self._recordings:
                reads.facts[facts.uuid] = facts
                reads.missing.discard(facts.uuid)
                reads.left.discard(facts.uuid)

    def mark_missing(self, node: NodeId) -> None:
        """Record that Ironic answered the read of a node with 404."""
        with self._lock:
            for reads in self._recordings:
                reads.facts.pop(node, None)
                reads.missing.add(node)
                reads.left.discard(node)

    def mark_left(self, node: NodeId) -> None:
        """Record that a node was read and is in another pool."""
        with self._lock:
            for reads in self._recordings:
                reads.left.add(node)
                reads.missing.discard(node)
                reads.facts.pop(node, None)

# SPDX-License-Identifier: Apache-2.0
"""Single-node reads made while a list of nodes is read and processed.

A list takes seconds to read, and longer to process. Its entry for a node that
was read in the meantime may be stale, so the later read of the one node wins.
The node feed of each worker uses it.
"""

import contextlib
import dataclasses
import threading
from collections.abc import Iterator

from resource_tracker.node import NodeFacts, NodeId


@dataclasses.dataclass(frozen=True, slots=True, eq=False)
class RecordedReads:
    """The results of single-node reads made inside one ``record()`` block.

    :param facts: the nodes that Ironic had when they were read last
    :param missing: the nodes that Ironic did not have then
    """

    facts: dict[NodeId, NodeFacts] = dataclasses.field(default_factory=dict)
    missing: set[NodeId] = dataclasses.field(default_factory=set)


class ConcurrentReads:
    """Records single-node reads for each list in progress; thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._recordings: list[RecordedReads] = []

    @contextlib.contextmanager
    def record(self) -> Iterator[RecordedReads]:
        """Yield a live record of the nodes read, or missing, in the block."""
        reads = RecordedReads()
        with self._lock:
            self._recordings.append(reads)
        try:
            yield reads
        finally:
            with self._lock:
                self._recordings.remove(reads)

    def add(self, facts: NodeFacts) -> None:
        """Record the facts of a node that was read."""
        with self._lock:
            for reads in self._recordings:
                reads.missing.discard(facts.uuid)
                reads.facts[facts.uuid] = facts

    def mark_missing(self, node: NodeId) -> None:
        """Record that Ironic answered the read of a node with 404."""
        with self._lock:
            for reads in self._recordings:
                reads.facts.pop(node, None)
                reads.missing.add(node)

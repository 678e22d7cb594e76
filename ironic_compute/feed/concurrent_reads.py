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


@dataclasses.dataclass(frozen=True, slots=True)
class ReadsSince:
    """The nodes that were read since a list was asked for; grows meanwhile.

    :param facts: those that Ironic had when they were read last
    :param denied: those that it did not have
    """

    facts: dict[NodeId, NodeFacts] = dataclasses.field(default_factory=dict)
    denied: set[NodeId] = dataclasses.field(default_factory=set)


class ConcurrentReads:
    """Note what is read for each list under way; any thread may call."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._lists: list[ReadsSince] = []

    @contextlib.contextmanager
    def since(self) -> Iterator[ReadsSince]:
        """Yield what grows with each node that is read in the body."""
        since = ReadsSince()
        with self._lock:
            self._lists.append(since)
        try:
            yield since
        finally:
            with self._lock:
                self._lists = [one for one in self._lists if one is not since]

    def add(self, facts: NodeFacts) -> None:
        """Note a node that was read."""
        with self._lock:
            for since in self._lists:
                since.denied.discard(facts.uuid)
                since.facts[facts.uuid] = facts

    def deny(self, node: NodeId) -> None:
        """Note a node that Ironic did not have when it was read."""
        with self._lock:
            for since in self._lists:
                since.facts.pop(node, None)
                since.denied.add(node)

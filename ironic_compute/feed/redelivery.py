# SPDX-License-Identifier: Apache-2.0
"""Redelivery: nodes whose facts the sink could not process, to be read again.

No later list may contain these nodes. The cause is usually the same for all of
them: nova-conductor is away. Therefore only one node is tried at a time, each
in its turn; after the first success all others follow.
"""

import threading

from resource_tracker.node import NodeId


class Redelivery:
    """Remember them; any thread may call."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._nodes: dict[NodeId, None] = {}

    def failed(self, node: NodeId) -> None:
        """Note a node; all others are tried before it."""
        with self._lock:
            self._put_last(node)

    def told(self, node: NodeId) -> tuple[NodeId, ...]:
        """Strike a node out; return those that are to be tried now."""
        with self._lock:
            if node not in self._nodes:
                return ()
            del self._nodes[node]
            others = tuple(self._nodes)
            self._nodes.clear()
            return others

    def next(self) -> NodeId | None:
        """Return the node that is to be tried; the next time it is another."""
        with self._lock:
            node = next(iter(self._nodes), None)
            if node is not None:
                self._put_last(node)
            return node

    def _put_last(self, node: NodeId) -> None:
        self._nodes.pop(node, None)
        self._nodes[node] = None

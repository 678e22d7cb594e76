# SPDX-License-Identifier: Apache-2.0
"""Redelivery: nodes that could not be read or delivered, to be read again.

No later list may contain these nodes. The cause is usually the same for all of
them: Ironic did not answer the reads, or nova-conductor is away and the sink
could not process the facts. Therefore only one node is tried at a time, each
in its turn; after the first success all others follow. The feed has a second
queue, of held nodes that Ironic did not find, because a 404 may be wrong.
"""

import threading

from resource_tracker.node import NodeId


class Redelivery:
    """Queue of the nodes that were not delivered; any thread may call."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._nodes: dict[NodeId, None] = {}

    def add_failed(self, node: NodeId) -> None:
        """Put a node that was not delivered at the end of the queue."""
        with self._lock:
            self._put_last(node)

    def discard(self, node: NodeId) -> None:
        """Remove a node that need not be read again."""
        with self._lock:
            self._nodes.pop(node, None)

    def mark_delivered(self, node: NodeId) -> tuple[NodeId, ...]:
        """Remove a node that was delivered; return the nodes to read now.

        If the node was in the queue, the failure is over: all other nodes are
        returned and removed. Otherwise the result is empty.
        """
        with self._lock:
            if node not in self._nodes:
                return ()
            del self._nodes[node]
            others = tuple(self._nodes)
            self._nodes.clear()
            return others

    def next_node(self) -> NodeId | None:
        """Return the node to try next and move it to the end of the queue."""
        with self._lock:
            node = next(iter(self._nodes), None)
            if node is not None:
                self._put_last(node)
            return node

    def _put_last(self, node: NodeId) -> None:
        self._nodes.pop(node, None)
        self._nodes[node] = None

# SPDX-License-Identifier: Apache-2.0
"""Who is using which node right now, before Ironic can say so.

One entry a node, in memory, no I/O. A claim covers the time between the
choice of a node and the moment its ``instance_uuid`` says the same; it is
gone with the worker, as the work it stands for is.
"""

import threading

from resource_tracker.errors import NodeClaimed
from resource_tracker.node import NodeId


class ClaimBook:
    """One consumer a node at most; any thread may call, nothing waits."""

    def __init__(self) -> None:
        self._consumers: dict[NodeId, str] = {}
        self._lock = threading.Lock()

    def claim(self, node: NodeId, consumer: str) -> None:
        """Enter a consumer; entering the same one again changes nothing.

        :raises NodeClaimed: another consumer has the node
        """
        with self._lock:
            present = self._consumers.setdefault(node, consumer)
        if present != consumer:
            raise NodeClaimed(node, present)

    def release(self, node: NodeId, consumer: str) -> None:
        """Strike a consumer out; another's entry stays."""
        with self._lock:
            if self._consumers.get(node) == consumer:
                del self._consumers[node]

    def consumer(self, node: NodeId) -> str | None:
        """Return who has the node."""
        return self._consumers.get(node)

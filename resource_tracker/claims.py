# SPDX-License-Identifier: Apache-2.0
"""Claims of builds on nodes, in memory: at most one consumer for each node.

A claim covers the time between Nova's choice of a node for a build and the
moment at which Ironic's ``instance_uuid`` shows the server. A claim is not
saved: it ends with the worker process, like the build that it stands for. The
worker's tracker makes claims; the reports to Placement use them. This module
sends no request.
"""

import dataclasses
import threading

from resource_tracker.errors import NodeClaimed
from resource_tracker.node import NodeId


@dataclasses.dataclass(frozen=True, slots=True)
class Claim:
    """The claim of one consumer on a node.

    :param consumer: uuid of the server
    :param generation: generation of the node's provider in Placement, as Nova
        read it together with the build's allocation; None: not known
    """

    consumer: str
    generation: int | None = None


class ClaimBook:
    """The claims on all nodes of a worker.

    Any thread may call, and no call blocks.
    """

    def __init__(self) -> None:
        self._claims: dict[NodeId, Claim] = {}
        self._lock = threading.Lock()

    def claim(
        self, node: NodeId, consumer: str, generation: int | None = None
    ) -> None:
        """Claim a node; a new claim of the same consumer replaces the old one.

        :param consumer: uuid of the server
        :param generation: see ``Claim``
        :raises NodeClaimed: another consumer has claimed the node
        """
        with self._lock:
            present = self.consumer(node)
            if present not in (None, consumer):
                raise NodeClaimed(node, present)
            self._claims[node] = Claim(consumer, generation)

    def release(self, node: NodeId, consumer: str) -> None:
        """Remove a consumer's claim on a node; do nothing if it has none."""
        with self._lock:
            if self.consumer(node) == consumer:
                del self._claims[node]

    def claim_of(self, node: NodeId) -> Claim | None:
        """Return the claim on a node, or None."""
        return self._claims.get(node)

    def consumers(self) -> dict[NodeId, str]:
        """Return the consumer of each claimed node."""
        with self._lock:
            return {n: claim.consumer for n, claim in self._claims.items()}

    def consumer(self, node: NodeId) -> str | None:
        """Return the consumer that has claimed a node, or None."""
        claim = self._claims.get(node)
        return None if claim is None else claim.consumer

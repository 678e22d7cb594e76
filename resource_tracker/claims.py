# SPDX-License-Identifier: Apache-2.0
"""Who is using which node right now, before Ironic can say so.

One entry a node, in memory, no I/O. A claim covers the time between the
choice of a node and the moment its ``instance_uuid`` says the same; it is
gone with the worker, as the work it stands for is.
"""

import dataclasses
import threading

from resource_tracker.errors import NodeClaimed
from resource_tracker.node import NodeId


@dataclasses.dataclass(frozen=True, slots=True)
class Claim:
    """Who has a node.

    :param generation: of the node's provider, with what was allocated to
        the consumer; None: not known
    """

    consumer: str
    generation: int | None = None


class ClaimBook:
    """One consumer a node at most; any thread may call, nothing waits."""

    def __init__(self) -> None:
        self._claims: dict[NodeId, Claim] = {}
        self._lock = threading.Lock()

    def claim(
        self, node: NodeId, consumer: str, generation: int | None = None
    ) -> None:
        """Enter a claim; of one consumer the newest counts.

        :param generation: see ``Claim``
        :raises NodeClaimed: another consumer has the node
        """
        with self._lock:
            present = self.consumer(node)
            if present not in (None, consumer):
                raise NodeClaimed(node, present)
            self._claims[node] = Claim(consumer, generation)

    def release(self, node: NodeId, consumer: str) -> None:
        """Strike a consumer out; another's entry stays."""
        with self._lock:
            if self.consumer(node) == consumer:
                del self._claims[node]

    def claim_of(self, node: NodeId) -> Claim | None:
        """Return the claim on a node."""
        return self._claims.get(node)

    def consumers(self) -> dict[NodeId, str]:
        """Return who has each node that is claimed."""
        with self._lock:
            return {n: claim.consumer for n, claim in self._claims.items()}

    def consumer(self, node: NodeId) -> str | None:
        """Return who has the node."""
        claim = self._claims.get(node)
        return None if claim is None else claim.consumer

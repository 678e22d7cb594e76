# SPDX-License-Identifier: Apache-2.0
"""What the node feed delivers its changes to."""

from collections.abc import Mapping
from typing import Protocol

from resource_tracker.node import NodeFacts, NodeId


class Sink(Protocol):
    """Receiver of the feed's changes; several threads of the feed call it."""

    def node_changed(self, facts: NodeFacts) -> None:
        """Accept the present facts of a node of this pool."""

    def node_left_pool(self, facts: NodeFacts) -> None:
        """Accept the present facts of a node of another pool.

        This host may still hold the node.
        """

    def mark_missing(self, node: NodeId) -> None:
        """Accept that Ironic answered 404 for a node."""

    def note_deleted(self, node: NodeId) -> None:
        """Accept that Ironic notified the delete of a node; does not block.

        A read of the node follows.
        """

    def is_held(self, node: NodeId) -> bool:
        """Return whether this host holds a node, whatever its pool."""

    def is_missing(self, node: NodeId) -> bool:
        """Return whether a node of this host waits for a read to find it."""

    def is_stored(self, facts: NodeFacts) -> bool:
        """Return whether a node is held with these facts, or is not held."""

    def mark_present(self, node: NodeId) -> None:
        """Accept that a read of this one node found it in Ironic."""

    def audit_nodes(self, nodes: Mapping[NodeId, NodeFacts]) -> None:
        """Accept the full list of the pool's nodes, read without an error.

        :param nodes: a live view: a read of one node may change or remove it
            during the call
        """

    def count_differing(self, told: Mapping[NodeId, str]) -> int | None:
        """Return how many held nodes a told list lacks or shows otherwise.

        None if a told list is of no use, because a node of the pool waits here
        for a holder.

        :param told: the ``listed_fingerprint`` of each node of the pool
        """

    def audit_told(self, told: Mapping[NodeId, str]) -> None:
        """Accept the list of the pool's nodes that another worker has read.

        Each node that differs is read from Ironic.
        """

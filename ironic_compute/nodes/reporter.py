# SPDX-License-Identifier: Apache-2.0
"""What ``HeldNodes`` needs of whoever reports nodes to Placement."""

from typing import Protocol

from resource_tracker.node import NodeFacts, NodeId
from resource_tracker.provider import Situation


class Reporter(Protocol):
    """What makes Placement say what we want (``Reconciler``)."""

    def submit(self, facts: NodeFacts, situation: Situation) -> None:
        """Report a node; the newest call for a node wins."""

    def withdraw_node(self, node: NodeId) -> None:
        """Let no build be sent to a node, and change nothing else."""

    def forget_node(self, node: NodeId) -> None:
        """Write nothing more for a node."""

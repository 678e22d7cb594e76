# SPDX-License-Identifier: Apache-2.0
"""Suspects: held nodes that seem deleted, and when Ironic answered 404.

A node becomes a suspect when Ironic notifies its delete, or when a list of all
nodes lacks it. ``removal`` reads each suspect twice, a minute apart, and
removes its records if Ironic answers 404 both times. A read that finds the
node, or a list that began later and contains it, ends the suspicion.
"""

import dataclasses
import threading
from collections.abc import Mapping

from resource_tracker.node import NodeFacts, NodeId

# Seconds between the two 404s. A fault that makes Ironic, or a proxy in front
# of it, answer a wrong 404 often ends within it.
CONFIRM_S = 60.0


@dataclasses.dataclass(slots=True)
class _Suspect:
    """When the suspicion began, and when the first 404 since was received."""

    since_s: float
    missing_s: float | None = None


class Suspects:
    """The suspects of one worker; any thread may call, nothing blocks.

    :param confirm_s: seconds between the two 404s
    """

    def __init__(self, confirm_s: float = CONFIRM_S) -> None:
        self._confirm_s = confirm_s
        self._lock = threading.Lock()
        self._suspects: dict[NodeId, _Suspect] = {}

    def add(self, node: NodeId, now_s: float) -> None:
        """Suspect a node; nothing changes if it is a suspect already."""
        with self._lock:
            self._suspects.setdefault(node, _Suspect(now_s))

    def discard(self, node: NodeId) -> None:
        """End the suspicion of a node."""
        with self._lock:
            self._suspects.pop(node, None)

    def discard_listed(self, nodes: Mapping[NodeId, NodeFacts]) -> None:
        """End the suspicion of the nodes that a list of all nodes contains.

        A list that was requested before the suspicion began does not count.
        """
        with self._lock:
            for node, suspect in list(self._suspects.items()):
                if _is_listed_since(suspect.since_s, nodes.get(node)):
                    del self._suspects[node]

    def note_missing(self, node: NodeId, now_s: float) -> None:
        """Record the first 404 of a suspect."""
        with self._lock:
            if node in self._suspects:
                self._suspects[node].missing_s = now_s

    def forget_missing(self, node: NodeId) -> None:
        """Forget the first 404 of a suspect; the next one is the first."""
        with self._lock:
            if node in self._suspects:
                self._suspects[node].missing_s = None

    def due(self, now_s: float) -> frozenset[NodeId]:
        """Return the nodes to read now, for the first or the second time."""
        with self._lock:
            return frozenset(
                node
                for node, suspect in self._suspects.items()
                if suspect.missing_s is None
                or now_s - suspect.missing_s >= self._confirm_s
            )

    def is_confirmed(self, node: NodeId, read_at_s: float) -> bool:
        """Return whether a 404 now would be the second, late enough.

        :param read_at_s: when the read of the node began
        """
        with self._lock:
            suspect = self._suspects.get(node)
            if suspect is None or suspect.missing_s is None:
                return False
            return read_at_s - suspect.missing_s >= self._confirm_s


def _is_listed_since(since_s: float, facts: NodeFacts | None) -> bool:
    """Return whether a list that may be later than ``since_s`` has a node."""
    if facts is None:
        return False
    return facts.read_at_s is None or facts.read_at_s >= since_s

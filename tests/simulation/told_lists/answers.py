# SPDX-License-Identifier: Apache-2.0
"""What Ironic has answered one worker for single nodes, and what follows.

The checks of the storm: a worker removes a node only after two 404s that it
has read itself, a minute apart and without an answer that found the node in
between. And it offers no node while the last of these answers was a 404,
whatever a list shows.
"""

from collections.abc import Callable

from hashring.ring import Host
from resource_tracker.node import NodeId
from tests.simulation.told_lists.world import World

APART_S = 60.0


class Answers:
    """The 404s of one worker since Ironic last found each node.

    :param is_held: returns whether the worker holds a node
    """

    def __init__(
        self, world: World, host: Host, is_held: Callable[[NodeId], bool]
    ) -> None:
        self._world = world
        self._host = host
        self._is_held = is_held
        self._404s: dict[NodeId, list[float]] = {}
        self._marked: set[NodeId] = set()

    def note_404(self, node: NodeId, asked_s: float) -> None:
        """Record a 404; the worker marks a held node as missing at once."""
        self._404s.setdefault(node, []).append(asked_s)
        if self._is_held(node):
            self._marked.add(node)

    def note_found(self, node: NodeId) -> None:
        """Record that Ironic has found a node."""
        self._404s.pop(node, None)
        self._marked.discard(node)

    def note_dropped(self, node: NodeId) -> None:
        """Record that the worker holds a node no longer."""
        self._marked.discard(node)

    def check_removal(self, node: NodeId) -> None:
        """Check that the worker may remove a node now."""
        seen_s = self._404s.get(node, [0.0])
        if max(seen_s) - min(seen_s) < APART_S:
            self._world.broken.append(
                f'{self._host} removes {node} after 404s at {seen_s}'
            )

    def check_offer(self, node: NodeId) -> None:
        """Check that the worker may offer a node now."""
        if node in self._marked:
            self._world.broken.append(
                f'{self._host} offers {node}, which Ironic did not find'
            )

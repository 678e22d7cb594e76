# SPDX-License-Identifier: Apache-2.0
"""Foreign servers: those that Ironic has on held nodes and Nova never had.

Somebody else has deployed such a node. No build gets it, and no request of
Nova is about it, so it may go to any host. This is what Nova has answered at
some time; whoever gives a node away asks Nova again.
"""

from resource_tracker.node import NodeFacts, NodeId


class ForeignServers:
    """The foreign servers on the nodes of one host; any thread may call."""

    def __init__(self) -> None:
        self._servers: dict[NodeId, str] = {}

    def note(self, node: NodeId, server: str) -> None:
        """Note that Nova has answered that it never had a node's server."""
        self._servers[node] = server

    def forget(self, node: NodeId) -> None:
        """Forget a node that is not held any more, or whose server Nova has.

        It need not be noted.
        """
        self._servers.pop(node, None)

    def find(self, facts: NodeFacts | None) -> str | None:
        """Return the server that a node has now, if it is foreign."""
        if facts is None:
            return None
        server = self._servers.get(facts.uuid)
        return server if server == facts.instance_uuid else None

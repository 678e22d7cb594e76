# SPDX-License-Identifier: Apache-2.0
"""The plan of moves: which held nodes other hosts should hold, and what waits.

A drain and a rebalance of the pool show this plan, and carry it out. They
differ in the ring: that of a drain lacks the host.
"""

import dataclasses
from collections.abc import Callable, Mapping

import attrs

from hashring.ring import Host, Ring
from ironic_compute.nodes.compute_nodes import ComputeNodes
from ironic_compute.nodes.held_nodes import HeldNodes
from ironic_compute.nodes.pins import target_of
from ironic_compute.nodes.records import ServerRow
from ironic_compute.ownership.eviction import Evictor, Refused, Terms
from ironic_compute.ownership.movability import why_server_stays
from resource_tracker.node import NodeId


@dataclasses.dataclass(frozen=True, slots=True)
class PlannedMove:
    """One node that another host should hold.

    :param node: the node; empty for a server that is on no node of the host,
        and for what the retirement of an empty host waits for
    :param server: the server on it; None if the node is free, somebody else
        has deployed it, or it has not been read from Ironic yet
    :param target: the host that gets the node; None without any other host
    :param why_not: why it is not moved now; None: it is moved in this round
    """

    node: str
    server: str | None
    target: str | None
    why_not: str | None = None


@attrs.define(eq=False, repr=False, slots=False)
class MovePlanner:
    """Plans the moves of one host's nodes; any thread may call.

    :param why_not_pushed: returns why a free node is not moved at present
    """

    _held_nodes: HeldNodes
    _compute_nodes: ComputeNodes
    _evictor: Evictor
    _why_not_pushed: Callable[[NodeId], str | None] = lambda node: None

    def plan_moves(self, ring: Ring, terms: Terms) -> list[PlannedMove]:
        """Return a move of each held node that another host should hold.

        Blocks for some requests to Nova, and writes nothing.
        """
        targets = self._find_targets(ring)
        facts = {node: self._held_nodes.facts(node) for node in targets}
        servers = {node: self._server_of_nova(node) for node in targets}
        rows = self._compute_nodes.read_servers(filter(None, servers.values()))
        refused = self._check_targets(targets, servers, terms)
        stays = {
            node: self._evictor.why_node_stays(each, terms)
            for node, each in facts.items()
            if each is not None and servers[node] is not None
        }
        return [
            self._plan_one(
                node, server, targets[node], rows, refused, stays.get(node)
            )
            for node, server in sorted(servers.items())
        ]

    def _server_of_nova(self, node: NodeId) -> str | None:
        """Return the server on a node, unless Nova never had it."""
        facts = self._held_nodes.facts(node)
        server = None if facts is None else facts.instance_uuid
        foreign = self._held_nodes.foreign_server(node)
        return None if server == foreign else server

    def _find_targets(self, ring: Ring) -> dict[NodeId, Host | None]:
        held = self._held_nodes.rows()
        targets = {node: target_of(row, ring) for node, row in held.items()}
        here = self._held_nodes.host
        return {node: host for node, host in targets.items() if host != here}

    def _check_targets(
        self,
        targets: Mapping[NodeId, Host | None],
        servers: Mapping[NodeId, str | None],
        terms: Terms,
    ) -> dict[Host | None, str | None]:
        """Return why each target can take no server now, or None."""
        needed = (host for node, host in targets.items() if servers[node])
        # A set would have another order in each process.
        hosts = dict.fromkeys(needed)
        return {host: self._why_not(host, terms) for host in hosts}

    def _why_not(self, target: Host | None, terms: Terms) -> str | None:
        if target is None:
            return 'No other host of this pool takes nodes'
        try:
            self._evictor.check_target(target, terms)
        except Refused as exc:
            return str(exc)
        return None

    def _plan_one(
        self,
        node: NodeId,
        server: str | None,
        target: Host | None,
        rows: Mapping[str, ServerRow],
        refused: Mapping[Host | None, str | None],
        why_node_stays: str | None,
    ) -> PlannedMove:
        why_not: str | None
        if self._held_nodes.is_unread(node):
            why_not = f'Node {node} has not been read from Ironic yet'
        elif server is None:
            why_not = self._why_free_stays(node)
        else:
            why_not = (
                refused[target]
                or why_server_stays(
                    server, rows.get(server), self._held_nodes.host
                )
                or self._why_gone(node)
                or why_node_stays
            )
        return PlannedMove(node, server, target, why_not)

    def _why_free_stays(self, node: NodeId) -> str | None:
        if self._held_nodes.is_pushable(node):
            return self._why_not_pushed(node)
        return self._why_gone(node) or f'Node {node} is being built on'

    def _why_gone(self, node: NodeId) -> str | None:
        if not self._held_nodes.is_missing(node):
            return None
        return (
            f'Ironic does not have node {node} any more; its records are '
            f'removed when Nova has no server on it'
        )

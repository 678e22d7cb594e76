# SPDX-License-Identifier: Apache-2.0
"""Moves of single nodes that an operator requests.

``ironic-computectl node move`` sends the request to the holder of the node,
whose worker alone may write. Only a node with a server can be moved to any
host: the ring decides the host of a free node, and would push it back.
"""

import dataclasses
from collections.abc import Callable

import attrs

from hashring.ring import Host
from ironic_compute.nodes.held_nodes import HeldNodes
from ironic_compute.ownership.eviction import Evictor, Refused
from ironic_compute.pool.view import PoolView
from resource_tracker.node import NodeId


@dataclasses.dataclass(frozen=True, slots=True)
class MoveResult:
    """What has become of the request to move a node, as RPC sends it.

    :param holder: the host that held the node before
    :param server: the server on the node; None if the move was refused
    :param why_not: a sentence with the reason of a refusal and what to do
    """

    holder: str
    server: str | None = None
    why_not: str | None = None


@attrs.define(eq=False, repr=False, slots=False)
class NodeMoves:
    """Carries out the requests for the nodes of one host.

    Any thread may call; a call blocks for some requests to Nova and Ironic.
    """

    _held_nodes: HeldNodes
    _pool: PoolView
    _evictor: Evictor

    def move(self, node: NodeId, target: Host) -> MoveResult:
        """Give a node and its server to another host."""
        return self._answer(self._evictor.evict, node, target)

    def check(self, node: NodeId, target: Host) -> MoveResult:
        """Return what :meth:`move` would return now, and write nothing."""
        return self._answer(self._evictor.check, node, target)

    def _answer(
        self, act: Callable[[NodeId, Host], str], node: NodeId, target: Host
    ) -> MoveResult:
        holder = self._held_nodes.host
        try:
            self._check_has_server(node, target)
            return MoveResult(holder, server=act(node, target))
        except Refused as exc:
            return MoveResult(holder, why_not=str(exc))

    def _check_has_server(self, node: NodeId, target: Host) -> None:
        facts = self._held_nodes.facts(node)
        if facts is None or facts.instance_uuid is not None:
            return
        ring_target = self._pool.ring_status().ring.target(node)
        if ring_target == target:
            raise Refused(
                f'Node {node} has no server and moves to host {target} by '
                f'itself, as soon as it is free'
            )
        raise Refused(
            f'Node {node} has no server, so the hash ring decides its host, '
            f'which is {ring_target}; only a node with a server can be moved '
            f'to another one'
        )

# SPDX-License-Identifier: Apache-2.0
"""What a worker answers to other workers and to ironic-computectl, over RPC.

``peer_rpc`` sends these messages. RPC threads call the endpoints; a call lasts
as long as its request.
"""

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import attrs
import oslo_messaging

from hashring.ring import Host
from ironic_compute.ironic_api.node_pool import NodePool
from ironic_compute.journal.moves import LIMIT_MAX, Move, Query
from ironic_compute.nodes.changes_read import ChangesRead
from ironic_compute.nodes.listed_nodes import ListPart
from ironic_compute.nodes.pins import Pin
from ironic_compute.ownership.departures import Asker, Departures
from ironic_compute.ownership.draining import Draining
from ironic_compute.ownership.node_moves import NodeMoves
from ironic_compute.ownership.operator_requests import OperatorRequests
from ironic_compute.ownership.peer_rpc import NAMESPACE, VERSION
from ironic_compute.ownership.rebalance_order import RebalanceOrder
from resource_tracker.node import NodeId


@attrs.define(eq=False, repr=False, slots=False)
class PeerEndpoint:
    """Receives the RPCs of this module; called from any RPC thread.

    :param given: called with the nodes that another host gave to this host
    :param forget: removes the records of a node that left the pool; returns
        None, or a sentence that says why it did not
    """

    target = oslo_messaging.Target(namespace=NAMESPACE, version=VERSION)

    _given: Callable[[list[NodeId]], None]
    _forget: Callable[[NodeId], str | None]
    _requests: OperatorRequests

    def nodes_given(self, context: Any, nodes: Sequence[str]) -> None:
        """Receive the message that another host has given us ``nodes``."""
        self._given([NodeId(node) for node in nodes])

    def hello(self, context: Any) -> bool:
        """Answer that ironic-compute serves this host."""
        return True

    def forget_node(self, context: Any, node: str) -> str | None:
        """Remove the records of a node that left this pool."""
        return self._forget(NodeId(node))

    def adopt_host(self, context: Any, host: str) -> str | None:
        """Add a host to this pool; since version 1.1."""
        return self._requests.adopt_host(Host(host))

    def vouch_for_host(self, context: Any, host: str) -> str | None:
        """Confirm that a host is mapped to a cell; since version 1.1."""
        return self._requests.confirm_mapping(Host(host))

    def forget_host(self, context: Any, host: str) -> str | None:
        """Remove a host from this pool; since version 1.2."""
        return self._requests.forget_host(Host(host))


@attrs.define(eq=False, repr=False, slots=False)
class MovesEndpoint:
    """Receives an operator's requests to move nodes; since version 1.3."""

    target = oslo_messaging.Target(namespace=NAMESPACE, version=VERSION)

    _moves: NodeMoves
    _draining: Draining

    def move_node(
        self,
        context: Any,
        node: str,
        host: str,
        is_dry_run: bool,
        by: str = 'an operator',
        replaces: bool = False,
        changes_zone: bool = False,
    ) -> dict[str, Any]:
        """Pin a held node to a host and move it there, or only check that.

        :param by: since version 1.5, as ``replaces``
        :param changes_zone: since version 1.6
        :returns: the fields of ``node_moves.MoveResult``
        """
        result = self._moves.move(
            NodeId(node),
            Pin(Host(host), by),
            replaces=replaces,
            is_dry_run=is_dry_run,
            changes_zone=changes_zone,
        )
        return dataclasses.asdict(result)

    def unpin_node(self, context: Any, node: str) -> dict[str, Any]:
        """Return the fields of ``node_moves.UnpinResult``; since 1.5."""
        return dataclasses.asdict(self._moves.unpin(NodeId(node)))

    def rebalance_plan(
        self, context: Any, changes_zone: bool = False
    ) -> dict[str, Any]:
        """Return the fields of ``node_moves.HostPlan``; since version 1.5.

        :param changes_zone: since version 1.6
        """
        return dataclasses.asdict(self._moves.plan(changes_zone=changes_zone))

    def rebalance_node(
        self,
        context: Any,
        node: str,
        order: str = '',
        changes_zone: bool = False,
    ) -> dict[str, Any]:
        """Give a node and its server to its target; since version 1.5.

        :param order: the key of the order; since version 1.6, as
            ``changes_zone``
        :returns: the fields of ``node_moves.MoveResult``
        """
        result = self._moves.rebalance(
            NodeId(node), order, changes_zone=changes_zone
        )
        return dataclasses.asdict(result)

    def begin_rebalance(
        self, context: Any, key: str, by: str, is_dry_run: bool
    ) -> str | None:
        """Begin or repeat the order to rebalance; since version 1.6."""
        order = RebalanceOrder(key, by)
        return self._moves.orders.begin(order, is_dry_run=is_dry_run)

    def end_rebalance(self, context: Any, key: str) -> None:
        """End the order to rebalance; since version 1.6."""
        self._moves.orders.end(key)

    def drain_host(
        self, context: Any, limit: int | None, changes_zone: bool = False
    ) -> str | None:
        """Store the order to drain the host of this worker.

        :param changes_zone: since version 1.6
        """
        return self._draining.begin(
            limit, retires=False, changes_zone=changes_zone
        )

    def retire_host(
        self, context: Any, limit: int | None, changes_zone: bool = False
    ) -> str | None:
        """Store the order to retire the host; since version 1.4.

        :param changes_zone: since version 1.6
        """
        return self._draining.begin(
            limit, retires=True, changes_zone=changes_zone
        )

    def undrain_host(self, context: Any) -> str | None:
        """End the drain of the host of this worker."""
        return self._draining.end()

    def why_not_drained(self, context: Any, retires: bool) -> str | None:
        """Return why the host would not be drained; since version 1.5."""
        return self._draining.check(retires=retires)

    def drain_plan(
        self, context: Any, changes_zone: bool = False
    ) -> list[dict[str, Any]]:
        """Return the fields of each ``draining.PlannedMove`` of this host.

        :param changes_zone: since version 1.6
        """
        plan = self._draining.plan(changes_zone=changes_zone)
        return [dataclasses.asdict(move) for move in plan]


@attrs.define(eq=False, repr=False, slots=False)
class ChecksEndpoint:
    """Receives an operator's request to check all records now.

    :param check: begins all checks of the worker; takes servers and nodes
        that may need a repair, and does not block
    """

    target = oslo_messaging.Target(namespace=NAMESPACE, version=VERSION)

    _check: Callable[[Sequence[str], Sequence[str]], None]

    def check_now(
        self, context: Any, servers: Sequence[str], nodes: Sequence[str] = ()
    ) -> None:
        """Compare what this host holds with all services; since 1.5.

        :param nodes: since version 1.6
        """
        self._check(servers, nodes)


@attrs.define(eq=False, repr=False, slots=False)
class PoolsEndpoint:
    """Receives the requests of other pools."""

    target = oslo_messaging.Target(namespace=NAMESPACE, version=VERSION)

    _departures: Departures

    def request_nodes(
        self,
        context: Any,
        nodes: Sequence[str],
        host: str,
        conductor_group: str | None,
        shard: str | None,
    ) -> bool:
        """Have nodes given to a host of their new pool; since version 1.6.

        :param conductor_group: that pool's, as its shard; None: of any
        :returns: True; the nodes are given away later, those that can go
        """
        asker = Asker(Host(host), NodePool(conductor_group, shard))
        self._departures.request_nodes(map(NodeId, nodes), asker)
        return True


@attrs.define(eq=False, repr=False, slots=False)
class HistoryEndpoint:
    """Receives requests for the journals of this machine; since 1.6.

    :param read: reads the wanted moves, the newest first
    """

    target = oslo_messaging.Target(namespace=NAMESPACE, version=VERSION)

    _read: Callable[[Query], list[Move]]

    def list_moves(
        self, context: Any, host: str, node: str, since_s: float, limit: int
    ) -> list[dict[str, Any]]:
        """Return the wanted moves of all processes of this machine."""
        query = Query(host, node, since_s, min(limit, LIMIT_MAX))
        return [move.as_json() for move in self._read(query)]


@attrs.define(eq=False, repr=False, slots=False)
class DirtyNodesEndpoint:
    """Receives requests for the nodes of this host that are dirty; since 1.6.

    :param read: returns the nodes with a change that is not in Placement, and
        its age in seconds
    """

    target = oslo_messaging.Target(namespace=NAMESPACE, version=VERSION)

    _read: Callable[[], Mapping[NodeId, float]]

    def list_dirty_nodes(self, context: Any) -> dict[str, float]:
        """Return the nodes with a change that is not in Placement."""
        return {str(node): age_s for node, age_s in self._read().items()}


@attrs.define(eq=False, repr=False, slots=False)
class FeedEndpoint:
    """Receives what another worker has read of Ironic; since version 1.7.

    :param accept: notes it for the next delta list; does not block
    :param accept_part: notes a part of a list of all nodes, since version 1.8;
        does not block
    """

    target = oslo_messaging.Target(namespace=NAMESPACE, version=VERSION)

    _accept: Callable[[ChangesRead], None]
    _accept_part: Callable[[ListPart], None]

    def changes_read(
        self,
        context: Any,
        since: str,
        next_since: str,
        fingerprints: Mapping[NodeId, str] | None,
    ) -> None:
        """Receive the fields of ``nodes.changes_read.ChangesRead``."""
        self._accept(ChangesRead(since, next_since, fingerprints))

    def nodes_listed(
        self,
        context: Any,
        reader: str,
        began_s: float,
        number: int,
        count: int,
        fingerprints: Mapping[NodeId, str],
    ) -> None:
        """Receive the fields of ``nodes.listed_nodes.ListPart``."""
        self._accept_part(
            ListPart(Host(reader), began_s, number, count, fingerprints)
        )

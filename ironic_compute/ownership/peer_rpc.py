# SPDX-License-Identifier: Apache-2.0
"""RPC between workers, and from ironic-computectl to a worker.

The messages have an RPC namespace of their own on the topic of nova-compute,
where a stock nova-compute ignores them. ``nodes_given`` is a cast: the
receiver reads the rows of these nodes at once. If the cast is lost, it reads
them after the next audit. Requests of an operator are calls. They return None,
or a sentence that tells the operator why nothing was done.
"""

import contextlib
import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import attrs
import oslo_messaging
from nova import context as nova_context
from nova import rpc as nova_rpc
from nova.compute import rpcapi

from hashring.ring import Host
from ironic_compute.ironic_api.node_pool import NodePool
from ironic_compute.journal.moves import LIMIT_MAX, Move, Query, parse_move
from ironic_compute.nodes.pins import Pin
from ironic_compute.ownership.departures import Asker, Departures
from ironic_compute.ownership.draining import Draining
from ironic_compute.ownership.move_plan import PlannedMove
from ironic_compute.ownership.node_moves import (
    HostPlan,
    MoveResult,
    NodeMoves,
    UnpinResult,
)
from ironic_compute.ownership.operator_requests import OperatorRequests
from ironic_compute.ownership.rebalance_order import RebalanceOrder
from ironic_compute.pool.foreign_hosts import Answer
from resource_tracker.node import NodeId

_NAMESPACE = 'ironic_compute'
_VERSION = '1.6'
# The version that workers of every release accept.
_FIRST_VERSION = '1.0'
_HELLO_TIMEOUT_S = 5
# Long, because the worker sends requests to Nova and Ironic before it answers.
_REQUEST_TIMEOUT_S = 30


@attrs.define(eq=False, repr=False, slots=False)
class PeerEndpoint:
    """Receives the RPCs of this module; called from any RPC thread.

    :param given: called with the nodes that another host gave to this host
    :param forget: removes the records of a node that left the pool; returns
        None, or a sentence that says why it did not
    """

    target = oslo_messaging.Target(namespace=_NAMESPACE, version=_VERSION)

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

    target = oslo_messaging.Target(namespace=_NAMESPACE, version=_VERSION)

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

    def rebalance_plan(self, context: Any) -> dict[str, Any]:
        """Return the fields of ``node_moves.HostPlan``; since version 1.5."""
        return dataclasses.asdict(self._moves.plan())

    def rebalance_node(
        self, context: Any, node: str, order: str = ''
    ) -> dict[str, Any]:
        """Give a node and its server to its target; since version 1.5.

        :param order: the key of the order; since version 1.6
        :returns: the fields of ``node_moves.MoveResult``
        """
        return dataclasses.asdict(self._moves.rebalance(NodeId(node), order))

    def begin_rebalance(
        self, context: Any, key: str, by: str, is_dry_run: bool
    ) -> str | None:
        """Begin or repeat the order to rebalance; since version 1.6."""
        order = RebalanceOrder(key, by)
        return self._moves.orders.begin(order, is_dry_run=is_dry_run)

    def end_rebalance(self, context: Any, key: str) -> None:
        """End the order to rebalance; since version 1.6."""
        self._moves.orders.end(key)

    def drain_host(self, context: Any, limit: int | None) -> str | None:
        """Store the order to drain the host of this worker."""
        return self._draining.begin(limit, retires=False)

    def retire_host(self, context: Any, limit: int | None) -> str | None:
        """Store the order to retire the host; since version 1.4."""
        return self._draining.begin(limit, retires=True)

    def undrain_host(self, context: Any) -> str | None:
        """End the drain of the host of this worker."""
        return self._draining.end()

    def why_not_drained(self, context: Any, retires: bool) -> str | None:
        """Return why the host would not be drained; since version 1.5."""
        return self._draining.check(retires=retires)

    def drain_plan(self, context: Any) -> list[dict[str, Any]]:
        """Return the fields of each ``draining.PlannedMove`` of this host."""
        return [dataclasses.asdict(move) for move in self._draining.plan()]


@attrs.define(eq=False, repr=False, slots=False)
class ChecksEndpoint:
    """Receives an operator's request to check all records now.

    :param check: begins all checks of the worker; takes servers and nodes
        that may need a repair, and does not block
    """

    target = oslo_messaging.Target(namespace=_NAMESPACE, version=_VERSION)

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

    target = oslo_messaging.Target(namespace=_NAMESPACE, version=_VERSION)

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

    target = oslo_messaging.Target(namespace=_NAMESPACE, version=_VERSION)

    _read: Callable[[Query], list[Move]]

    def list_moves(
        self, context: Any, host: str, node: str, since_s: float, limit: int
    ) -> list[dict[str, Any]]:
        """Return the wanted moves of all processes of this machine."""
        query = Query(host, node, since_s, min(limit, LIMIT_MAX))
        return [move.as_json() for move in self._read(query)]


def notify_given(host: Host, nodes: Sequence[NodeId]) -> None:
    """Send ``host`` a cast that it now holds ``nodes``; does not block."""
    _client(host).cast(
        nova_context.get_admin_context(), 'nodes_given', nodes=list(nodes)
    )


def request_forget_node(host: Host, node: NodeId) -> str | None:
    """Make the worker of ``host`` remove the records of ``node``; blocks.

    :returns: None, or a sentence with the reason of a refusal
    :raises oslo_messaging.MessagingTimeout: no worker serves the host
    """
    answer: str | None = _client(host).call(
        nova_context.get_admin_context(), 'forget_node', node=node
    )
    return answer


def request_adopt_host(to: Host, host: Host) -> str | None:
    """Make the worker of host ``to`` add ``host`` to its pool; blocks.

    :returns: None, or a sentence with the reason of a refusal
    :raises oslo_messaging.MessagingTimeout: no worker serves ``to``
    """
    answer: str | None = _request(to, 'adopt_host', '1.1', host=host)
    return answer


def request_confirm_mapping(to: Host, host: Host) -> str | None:
    """Make the worker of host ``to`` count ``host`` as mapped; blocks.

    :returns: None, or a sentence with the reason of a refusal
    :raises oslo_messaging.MessagingTimeout: no worker serves ``to``
    """
    answer: str | None = _request(to, 'vouch_for_host', '1.1', host=host)
    return answer


def request_forget_host(to: Host, host: Host) -> str | None:
    """Make the worker of host ``to`` remove ``host`` from its pool; blocks.

    :returns: None, or a sentence with the reason of a refusal
    :raises oslo_messaging.MessagingTimeout: no worker serves ``to``
    """
    answer: str | None = _request(to, 'forget_host', '1.2', host=host)
    return answer


def request_move_node(
    holder: Host,
    node: NodeId,
    pin: Pin,
    *,
    replaces: bool,
    is_dry_run: bool,
    changes_zone: bool = False,
) -> MoveResult:
    """Make the worker of ``holder`` pin and move a node; blocks.

    :param changes_zone: also to a host in another availability zone; needs a
        worker of a later release than the rest

    :raises oslo_messaging.MessagingTimeout: no worker serves ``holder``, or it
        has not answered in time and may still move the node
    :raises oslo_messaging.RemoteError: the worker is of an older release
    """
    answer = _request(
        holder,
        'move_node',
        '1.6' if changes_zone else '1.5',
        node=node,
        host=pin.host,
        by=pin.by,
        replaces=replaces,
        is_dry_run=is_dry_run,
        **({'changes_zone': True} if changes_zone else {}),
    )
    return MoveResult(**answer)


def request_unpin_node(holder: Host, node: NodeId) -> UnpinResult:
    """Make the worker of ``holder`` remove the pin of a node; blocks.

    It raises what :func:`request_move_node` does.
    """
    return UnpinResult(**_request(holder, 'unpin_node', '1.5', node=node))


def request_rebalance_plan(host: Host) -> HostPlan:
    """Return which nodes of a host other hosts should hold; blocks.

    It raises what :func:`request_drain` does.
    """
    answer = _request(host, 'rebalance_plan', '1.5')
    moves = tuple(PlannedMove(**fields) for fields in answer.pop('moves'))
    return HostPlan(**answer, moves=moves)


def request_rebalance_node(
    holder: Host, node: NodeId, order: str
) -> MoveResult:
    """Make the worker of ``holder`` give a node to its target; blocks.

    It raises what :func:`request_move_node` does.

    :param order: the key of the order to rebalance that is under way
    """
    answer = _request(holder, 'rebalance_node', '1.6', node=node, order=order)
    return MoveResult(**answer)


def request_begin_rebalance(
    host: Host, order: RebalanceOrder, *, is_dry_run: bool
) -> str | None:
    """Begin or repeat the order to rebalance at one host; blocks.

    It returns and raises what :func:`request_drain` does.
    """
    answer: str | None = _request(
        host,
        'begin_rebalance',
        '1.6',
        key=order.key,
        by=order.by,
        is_dry_run=is_dry_run,
    )
    return answer


def request_end_rebalance(host: Host, order: RebalanceOrder) -> None:
    """End the order to rebalance at one host; blocks.

    It raises what :func:`request_drain` does.
    """
    _request(host, 'end_rebalance', '1.6', key=order.key)


def request_drain(host: Host, limit: int | None) -> str | None:
    """Make the worker of a host store the order to drain it; blocks.

    :param limit: servers that are moved in a minute at most
    :returns: None, or a sentence with the reason of a refusal
    :raises oslo_messaging.MessagingTimeout: no worker serves the host
    :raises oslo_messaging.RemoteError: the worker is of an older release
    """
    answer: str | None = _request(host, 'drain_host', '1.3', limit=limit)
    return answer


def request_retire(host: Host, limit: int | None) -> str | None:
    """Make the worker of a host store the order to retire it; blocks.

    It takes, returns and raises what :func:`request_drain` does.
    """
    answer: str | None = _request(host, 'retire_host', '1.4', limit=limit)
    return answer


def request_undrain(host: Host) -> str | None:
    """Make the worker of a host end its drain; blocks.

    It returns and raises what :func:`request_drain` does.
    """
    answer: str | None = _request(host, 'undrain_host', '1.3')
    return answer


def request_drain_check(host: Host, *, retires: bool) -> str | None:
    """Return why a host would not be drained or retired, or None; blocks.

    It raises what :func:`request_drain` does.
    """
    answer: str | None = _request(
        host, 'why_not_drained', '1.5', retires=retires
    )
    return answer


def request_drain_plan(host: Host) -> list[PlannedMove]:
    """Return what a drain of a host would move, or has left; blocks.

    It raises what :func:`request_drain` does.
    """
    answer = _request(host, 'drain_plan', '1.3')
    return [PlannedMove(**fields) for fields in answer]


def request_check(
    host: Host, servers: Sequence[str], nodes: Sequence[NodeId] = ()
) -> None:
    """Make the worker of a host check all that it holds now; blocks.

    :param servers: servers of the host whose delete may not be done, or whose
        allocation may be wrong
    :param nodes: nodes of the host that may have something of a former server
    :raises oslo_messaging.MessagingTimeout: no worker serves the host
    :raises oslo_messaging.RemoteError: the worker is of an older release
    """
    _request(
        host, 'check_now', '1.6', servers=list(servers), nodes=list(nodes)
    )


def request_moves(host: Host, query: Query) -> list[Move]:
    """Return the wanted moves of the daemon that serves a host; blocks.

    :raises oslo_messaging.MessagingTimeout: no worker serves the host
    :raises oslo_messaging.RemoteError: the worker is of an older release
    """
    answer = _request(
        host,
        'list_moves',
        '1.6',
        host=query.host,
        node=query.node,
        since_s=query.since_s,
        limit=query.limit,
    )
    return [parse_move(raw) for raw in answer]


def _request(to: Host, name: str, version: str, /, **arguments: Any) -> Any:
    """Call a method of a worker that has it since this version; blocks."""
    client = _client(to, version).prepare(timeout=_REQUEST_TIMEOUT_S)
    return client.call(nova_context.get_admin_context(), name, **arguments)


def request_nodes(
    holder: Host, nodes: Sequence[NodeId], asker: Asker
) -> Answer:
    """Ask a host of another pool for nodes; blocks for 5 s at most."""
    client = _client(holder, '1.6').prepare(timeout=_HELLO_TIMEOUT_S)
    try:
        client.call(
            nova_context.get_admin_context(),
            'request_nodes',
            nodes=list(nodes),
            host=asker.host,
            conductor_group=asker.pool.conductor_group,
            shard=asker.pool.shard,
        )
    except oslo_messaging.MessagingTimeout:
        return Answer.NONE
    except oslo_messaging.RemoteError:
        return Answer.UNKNOWN
    return Answer.RECEIVED


def is_ironic_compute(host: Host) -> bool | None:
    """Read from a host whether ironic-compute serves it; blocks for 5 s.

    :returns: False if a stock nova-compute serves the host; None if the host
        does not answer within 5 s
    """
    client = _client(host).prepare(timeout=_HELLO_TIMEOUT_S)
    try:
        return bool(client.call(nova_context.get_admin_context(), 'hello'))
    except oslo_messaging.MessagingTimeout:
        return None
    except oslo_messaging.RemoteError:
        return False  # A stock nova-compute lacks the namespace.


def check_queue(host: Host, timeout_s: float, retries_count: int) -> None:
    """Send a message through the queue of ``host`` and wait for the answer.

    Called by the worker of the host itself: an answer proves that RabbitMQ
    takes messages from this process and delivers messages to it.

    :param retries_count: tries to connect again; oslo.messaging would try for
        ever, and longer than ``timeout_s``
    :raises oslo_messaging.MessagingException: there is no answer
    """
    client = _client(host).prepare(timeout=timeout_s, retry=retries_count)
    with contextlib.suppress(oslo_messaging.RemoteError):
        client.call(nova_context.get_admin_context(), 'hello')


def queue_of(
    host: Host, version: str = _FIRST_VERSION
) -> oslo_messaging.Target:
    """Return the queue of a host's worker, for the RPCs of this module."""
    return oslo_messaging.Target(
        topic=rpcapi.RPC_TOPIC,
        server=host,
        namespace=_NAMESPACE,
        version=version,
    )


def _client(host: Host, version: str = _FIRST_VERSION) -> Any:
    return nova_rpc.get_client(queue_of(host, version))

# SPDX-License-Identifier: Apache-2.0
"""RPC between workers, and from ironic-computectl to a worker.

The messages have an RPC namespace of their own on the topic of nova-compute,
where a stock nova-compute ignores them; ``peer_endpoints`` receives them.
``nodes_given`` is a cast: the receiver reads the rows of these nodes at once.
If the cast is lost, it reads them after the next audit. ``changes_read`` and
``nodes_listed`` are casts, too: if one is lost, the receiver asks Ironic
itself. Requests of an operator are calls. They return None, or a sentence that
tells the operator why nothing was done.
"""

import contextlib
from collections.abc import Sequence
from typing import Any

import oslo_messaging
from nova import context as nova_context
from nova import rpc as nova_rpc
from nova.compute import rpcapi

from hashring.ring import Host
from ironic_compute.journal.moves import Move, Query, parse_move
from ironic_compute.nodes.changes_read import ChangesRead
from ironic_compute.nodes.listed_nodes import ListPart
from ironic_compute.nodes.pins import Pin
from ironic_compute.ownership.departures import Asker
from ironic_compute.ownership.move_plan import PlannedMove
from ironic_compute.ownership.node_moves import (
    HostPlan,
    MoveResult,
    UnpinResult,
)
from ironic_compute.ownership.rebalance_order import RebalanceOrder
from ironic_compute.pool.foreign_hosts import Answer
from resource_tracker.node import NodeId

NAMESPACE = 'ironic_compute'
VERSION = '1.8'
# The version that workers of every release accept.
_FIRST_VERSION = '1.0'
# Since it, servers may be moved into another availability zone.
_ZONE_VERSION = '1.6'
_HELLO_TIMEOUT_S = 5
# Long, because the worker sends requests to Nova and Ironic before it answers.
_REQUEST_TIMEOUT_S = 30


def notify_given(host: Host, nodes: Sequence[NodeId]) -> None:
    """Send ``host`` a cast that it now holds ``nodes``; does not block."""
    _client(host).cast(
        nova_context.get_admin_context(), 'nodes_given', nodes=list(nodes)
    )


def notify_changes(host: Host, read: ChangesRead) -> None:
    """Send ``host`` a cast with what a delta list has shown.

    Blocks while RabbitMQ is away.
    """
    _client(host, '1.7').cast(
        nova_context.get_admin_context(),
        'changes_read',
        since=read.since,
        next_since=read.next_since,
        fingerprints=read.fingerprints,
    )


def notify_listed(host: Host, part: ListPart) -> None:
    """Send ``host`` a cast with a part of the list of all nodes.

    Blocks while RabbitMQ is away.
    """
    _client(host, '1.8').cast(
        nova_context.get_admin_context(),
        'nodes_listed',
        reader=part.reader,
        began_s=part.began_s,
        number=part.number,
        count=part.count,
        fingerprints=part.fingerprints,
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
    answer = _request_move(
        holder,
        'move_node',
        '1.5',
        changes_zone,
        node=node,
        host=pin.host,
        by=pin.by,
        replaces=replaces,
        is_dry_run=is_dry_run,
    )
    return MoveResult(**answer)


def request_unpin_node(holder: Host, node: NodeId) -> UnpinResult:
    """Make the worker of ``holder`` remove the pin of a node; blocks.

    It raises what :func:`request_move_node` does.
    """
    return UnpinResult(**_request(holder, 'unpin_node', '1.5', node=node))


def request_rebalance_plan(
    host: Host, *, changes_zone: bool = False
) -> HostPlan:
    """Return which nodes of a host other hosts should hold; blocks.

    It raises what :func:`request_drain` does.
    """
    answer = _request_move(host, 'rebalance_plan', '1.5', changes_zone)
    moves = tuple(PlannedMove(**fields) for fields in answer.pop('moves'))
    return HostPlan(**answer, moves=moves)


def request_rebalance_node(
    holder: Host, node: NodeId, order: str, *, changes_zone: bool = False
) -> MoveResult:
    """Make the worker of ``holder`` give a node to its target; blocks.

    It raises what :func:`request_move_node` does.

    :param order: the key of the order to rebalance that is under way
    """
    answer = _request_move(
        holder, 'rebalance_node', '1.6', changes_zone, node=node, order=order
    )
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


def request_drain(
    host: Host, limit: int | None, *, changes_zone: bool = False
) -> str | None:
    """Make the worker of a host store the order to drain it; blocks.

    :param limit: servers that are moved in a minute at most
    :param changes_zone: servers may go to hosts in other availability zones;
        needs a worker of a later release than the rest
    :returns: None, or a sentence with the reason of a refusal
    :raises oslo_messaging.MessagingTimeout: no worker serves the host
    :raises oslo_messaging.RemoteError: the worker is of an older release
    """
    answer: str | None = _request_move(
        host, 'drain_host', '1.3', changes_zone, limit=limit
    )
    return answer


def request_retire(
    host: Host, limit: int | None, *, changes_zone: bool = False
) -> str | None:
    """Make the worker of a host store the order to retire it; blocks.

    It takes, returns and raises what :func:`request_drain` does.
    """
    answer: str | None = _request_move(
        host, 'retire_host', '1.4', changes_zone, limit=limit
    )
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


def request_drain_plan(
    host: Host, *, changes_zone: bool = False
) -> list[PlannedMove]:
    """Return what a drain of a host would move, or has left; blocks.

    It raises what :func:`request_drain` does.
    """
    answer = _request_move(host, 'drain_plan', '1.3', changes_zone)
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


def request_dirty_nodes(host: Host) -> dict[NodeId, float]:
    """Return the nodes of a host with a change that is not in Placement.

    Blocks. It raises what :func:`request_moves` does.

    :returns: the age of the change in seconds, by node
    """
    answer = _request(host, 'list_dirty_nodes', '1.6')
    return {NodeId(node): float(age_s) for node, age_s in answer.items()}


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


def _request_move(
    to: Host,
    name: str,
    version: str,
    /,
    changes_zone: bool,
    **arguments: Any,
) -> Any:
    """Call a method that takes an operator's consent to another zone; blocks.

    A worker of an older release has the method without that.

    :param version: since which the method is there without it
    """
    if changes_zone:
        return _request(
            to, name, _ZONE_VERSION, changes_zone=True, **arguments
        )
    return _request(to, name, version, **arguments)


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
        namespace=NAMESPACE,
        version=version,
    )


def _client(host: Host, version: str = _FIRST_VERSION) -> Any:
    return nova_rpc.get_client(queue_of(host, version))

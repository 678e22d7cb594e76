# SPDX-License-Identifier: Apache-2.0
"""Messages to a worker besides Nova's, in a namespace of our own.

A hint (these nodes are yours now) only says where to look; the receiver
believes the rows. It is a cast, a stock nova-compute ignores it, and a lost
one costs no more than the time to the next look at the rows. An operator's
orders are calls, and answered: with None, or a sentence that says why not.
"""

from collections.abc import Callable, Sequence
from typing import Any

import oslo_messaging
from nova import context as nova_context
from nova import rpc as nova_rpc
from nova.compute import rpcapi

from hashring.ring import Host
from ironic_compute.ownership.operator_requests import OperatorRequests
from resource_tracker.node import NodeId

_NAMESPACE = 'ironic_compute'
_VERSION = '1.1'
# What a worker of any version understands.
_FIRST_VERSION = '1.0'
_HELLO_TIMEOUT_S = 5
# A worker asks others before it answers.
_ORDER_TIMEOUT_S = 30


class PeerEndpoint:
    """The receiving side; oslo.messaging calls it from any RPC thread."""

    target = oslo_messaging.Target(namespace=_NAMESPACE, version=_VERSION)

    def __init__(
        self,
        given: Callable[[list[NodeId]], None],
        forget: Callable[[NodeId], str | None],
        orders: OperatorRequests,
    ) -> None:
        self._given = given
        self._forget = forget
        self._orders = orders

    def nodes_given(self, context: Any, nodes: Sequence[str]) -> None:
        """Take note that ``nodes`` were just given to this host."""
        self._given([NodeId(node) for node in nodes])

    def hello(self, context: Any) -> bool:
        """Say that this host is served by a daemon of ours."""
        return True

    def forget_node(self, context: Any, node: str) -> str | None:
        """Remove the records of a node that left this pool."""
        return self._forget(NodeId(node))

    def adopt_host(self, context: Any, host: str) -> str | None:
        """Make a host known in this pool; since 1.1."""
        return self._orders.adopt_host(Host(host))

    def vouch_for_host(self, context: Any, host: str) -> str | None:
        """Take a host for mapped; since 1.1."""
        return self._orders.confirm_mapping(Host(host))


def notify_given(host: Host, nodes: Sequence[NodeId]) -> None:
    """Tell ``host`` that it was just given ``nodes``."""
    _client(host).cast(
        nova_context.get_admin_context(), 'nodes_given', nodes=list(nodes)
    )


def request_forget_node(host: Host, node: NodeId) -> str | None:
    """Have ``host`` remove the records of ``node``; see HintEndpoint.

    :raises oslo_messaging.MessagingTimeout: nobody serves the host
    """
    answer: str | None = _client(host).call(
        nova_context.get_admin_context(), 'forget_node', node=node
    )
    return answer


def request_adopt_host(to: Host, host: Host) -> str | None:
    """Have the worker of host ``to`` make ``host`` known in its pool.

    :raises oslo_messaging.MessagingTimeout: nobody serves ``to``
    """
    return _order(to, 'adopt_host', host)


def request_confirm_mapping(to: Host, host: Host) -> str | None:
    """Have the worker of host ``to`` take ``host`` for mapped.

    :raises oslo_messaging.MessagingTimeout: nobody serves ``to``
    """
    return _order(to, 'vouch_for_host', host)


def _order(to: Host, name: str, host: Host) -> str | None:
    client = _client(to, _VERSION).prepare(timeout=_ORDER_TIMEOUT_S)
    context = nova_context.get_admin_context()
    answer: str | None = client.call(context, name, host=host)
    return answer


def is_ironic_compute(host: Host) -> bool | None:
    """Ask a host whether one of our daemons serves it.

    :returns: None if it does not answer within seconds
    """
    client = _client(host).prepare(timeout=_HELLO_TIMEOUT_S)
    try:
        return bool(client.call(nova_context.get_admin_context(), 'hello'))
    except oslo_messaging.MessagingTimeout:
        return None
    except oslo_messaging.RemoteError:
        return False  # It knows no such namespace.


def _client(host: Host, version: str = _FIRST_VERSION) -> Any:
    target = oslo_messaging.Target(
        topic=rpcapi.RPC_TOPIC, namespace=_NAMESPACE, version=version
    )
    return nova_rpc.get_client(target).prepare(server=host)

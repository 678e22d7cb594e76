# SPDX-License-Identifier: Apache-2.0
"""Word from one host to another: these nodes are yours now.

A hint only says where to look; the receiver believes the rows. It is a cast
on the compute topic of the receiver in a namespace of our own, so a stock
nova-compute there ignores it, and a lost one costs no more than the time to
the next look at the rows.
"""

from collections.abc import Callable, Sequence
from typing import Any

import oslo_messaging
from nova import context as nova_context
from nova import rpc as nova_rpc
from nova.compute import rpcapi

from hashring.ring import Host
from resource_tracker.node import NodeId

_NAMESPACE = 'ironic_compute'
_VERSION = '1.0'


class HintEndpoint:
    """The receiving side; oslo.messaging calls it from any RPC thread."""

    target = oslo_messaging.Target(namespace=_NAMESPACE, version=_VERSION)

    def __init__(self, given: Callable[[list[NodeId]], None]) -> None:
        self._given = given

    def nodes_given(self, context: Any, nodes: Sequence[str]) -> None:
        """Take note that ``nodes`` were just given to this host."""
        self._given([NodeId(node) for node in nodes])


def tell_given(host: Host, nodes: Sequence[NodeId]) -> None:
    """Tell ``host`` that it was just given ``nodes``."""
    target = oslo_messaging.Target(
        topic=rpcapi.RPC_TOPIC, namespace=_NAMESPACE, version=_VERSION
    )
    client = nova_rpc.get_client(target).prepare(server=host)
    client.cast(
        nova_context.get_admin_context(), 'nodes_given', nodes=list(nodes)
    )

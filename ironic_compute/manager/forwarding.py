# SPDX-License-Identifier: Apache-2.0
"""Decides where a message goes on to: the next hop, the holder of a node.

A node may be pushed to another host, and a server may be moved with its node,
before a message about it arrives. The handlers of builds
(``build_forwarding``) and the forwarder of all other messages
(``misdirected_messages``) read Nova's records again and use this module. A
message is forwarded at most three times.
"""

from collections.abc import Mapping
from typing import Any

from nova import exception as nova_exception
from nova import objects
from oslo_log import log as logging

LOG = logging.getLogger(__name__)

HOPS_MAX = 3
HOPS = 'ironic_compute_hops'


def next_hop(holder: str | None, here: str, hops_count: int) -> str | None:
    """Return the host to forward a message to; None to handle it here.

    The number of hops is limited, because two hosts that disagree about the
    holder would forward the message to each other for ever.

    :param holder: the host in the node's row
    :param here: the host that the message has reached
    :param hops_count: how often the message was forwarded already
    """
    if not holder or holder == here or hops_count >= HOPS_MAX:
        return None
    return holder


def is_forwarded(filter_properties: Mapping[str, Any] | None) -> bool:
    """Return whether another host has forwarded a build."""
    return bool((filter_properties or {}).get(HOPS))


def next_host(
    context: Any, node: str, here: str, filter_properties: dict[str, Any]
) -> str | None:
    """Return the host to forward a build to; None to build here.

    Blocks for one RPC.

    :param node: uuid of the node that the scheduler chose
    :param here: the host that the build has reached
    :param filter_properties: forwarded with the build; this function counts
        the hops in it
    """
    hops_count = filter_properties.get(HOPS, 0)
    holder = next_hop(read_holder(context, node), here, hops_count)
    if holder is None:
        return None
    count_hop(filter_properties)
    LOG.info(
        'Forwarded a build for node %(node)s to its holder %(holder)s',
        {'node': node, 'holder': holder},
    )
    return holder


def count_hop(filter_properties: dict[str, Any]) -> bool:
    """Count that a build is forwarded; False if it may not be any more."""
    hops_count = filter_properties.get(HOPS, 0)
    if hops_count >= HOPS_MAX:
        return False
    filter_properties[HOPS] = hops_count + 1
    return True


def restart_hops(filter_properties: dict[str, Any]) -> None:
    """Let a build that has got another node be forwarded as a new one."""
    filter_properties.pop(HOPS, None)


def read_row(context: Any, node: str) -> Any | None:
    """Return the row of a node; None if it has none. Blocks for one RPC.

    It is read by the node's name, because the uuid of a row that was created
    before Nova 18 is not the node's.
    """
    try:
        return objects.ComputeNode.get_by_nodename(context, node)
    except nova_exception.ComputeHostNotFound:
        return None


def holder_in(row: Any | None) -> str | None:
    """Return the host in a node's row; None without a row."""
    return str(row.host) if row is not None and row.host else None


def read_holder(context: Any, node: str) -> str | None:
    """Return the host in a node's row; None without a row.

    Blocks for one RPC.
    """
    return holder_in(read_row(context, node))


def read_provider(context: Any, node: str) -> str:
    """Return the uuid of a node's provider, which is that of its row.

    In a row that is older than Nova 18 it is not the node's uuid. Blocks for
    one RPC.
    """
    row = read_row(context, node)
    return node if row is None else str(row.uuid)

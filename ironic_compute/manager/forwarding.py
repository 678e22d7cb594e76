# SPDX-License-Identifier: Apache-2.0
"""Forwards a build that reached the wrong host to the holder of its node.

The scheduler chooses a node and reads its holder once; the node may be pushed
to another host before the build arrives. Nova would then end the build, delete
its allocation and try another node, or fail. The compute manager reads the
node's row again instead, and forwards the message at most three times.
"""

from typing import Any

from nova import exception as nova_exception
from nova import objects
from oslo_log import log as logging

LOG = logging.getLogger(__name__)

HOPS_MAX = 3
_HOPS = 'ironic_compute_hops'


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
    hops = filter_properties.get(_HOPS, 0)
    try:
        # The row is read by the node's name, because the uuid of a row that
        # was created before Nova 18 is not the node's.
        row = objects.ComputeNode.get_by_nodename(context, node)
    except nova_exception.ComputeHostNotFound:
        return None
    holder = next_hop(row.host, here, hops)
    if holder is None:
        return None
    filter_properties[_HOPS] = hops + 1
    LOG.info(
        'Forwarded a build for node %(node)s to its holder %(holder)s',
        {'node': node, 'holder': holder},
    )
    return str(holder)

# SPDX-License-Identifier: Apache-2.0
"""A build that reached the wrong host goes on to the right one.

The scheduler chooses a node and reads its holder once; between that and the
build the node may have been pushed to another host. Nova itself would give
the build up, drop its allocation and try another node, or fail. Here the row
is read again and the message goes on, at most three times.
"""

from typing import Any

from nova import exception as nova_exception
from nova import objects
from oslo_log import log as logging

LOG = logging.getLogger(__name__)

HOPS_MAX = 3
_HOPS = 'ironic_compute_hops'


def next_hop(holder: str | None, here: str, hops_count: int) -> str | None:
    """Return the host a message must go on to; None: it has to end here.

    Two hosts with different ideas of who holds a node must not play ball
    with a message for ever.

    :param holder: where the truth says that the message belongs
    :param hops_count: how often the message has gone on already
    """
    if not holder or holder == here or hops_count >= HOPS_MAX:
        return None
    return holder


def next_host(
    context: Any, node: str, here: str, filter_properties: dict[str, Any]
) -> str | None:
    """Return the host a build must go on to; None: it has to end here.

    :param node: uuid of the node the scheduler chose
    :param here: the host the build has reached
    :param filter_properties: travels with the build and counts its hops
    """
    hops = filter_properties.get(_HOPS, 0)
    try:
        # Not by uuid: an old row may have one of its own.
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

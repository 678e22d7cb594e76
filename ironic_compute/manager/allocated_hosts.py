# SPDX-License-Identifier: Apache-2.0
"""The hosts of nodes that are allocated to a server, whoever has done it.

An allocation may have been made though its answer was lost: that of a worker
on an alternate node, or that of the scheduler on any node.
"""

import itertools
import json
from collections.abc import Mapping
from typing import Any

from nova import objects
from nova.scheduler.client import report

from ironic_compute.manager import forwarding


def hosts_at(
    context: Any,
    instance: Any,
    allocations: dict[str, Any],
    alternates: list[Any],
) -> list[Any]:
    """Return the host of an allocated node, and alternates that may follow.

    Returns no host if no node with a row is allocated. Blocks for one RPC if
    the node is no alternate, and raises any error of it.

    :param allocations: the nodes of the server, with what is allocated there
    """
    matches = (
        alternates[index:]
        for index, host in enumerate(alternates)
        if host.nodename in allocations
    )
    selections = (
        [selection, *alternates]
        for node, allocation in allocations.items()
        if (selection := _select(context, instance, node, allocation))
    )
    return next(itertools.chain(matches, selections), [])


def _select(
    context: Any, instance: Any, node: str, allocation: Mapping[str, Any]
) -> Any | None:
    """Return what the scheduler would have answered for an allocated node.

    The availability zone stays as it is: nova-api shows that of the host.
    """
    holder = forwarding.read_holder(context, node)
    if holder is None:
        return None
    resources = {'resources': allocation['resources']}
    return objects.Selection(
        service_host=holder,
        nodename=node,
        limits=None,
        availability_zone=instance.availability_zone,
        allocation_request=json.dumps({'allocations': {node: resources}}),
        allocation_request_version=report.SAME_SUBTREE_VERSION,
    )

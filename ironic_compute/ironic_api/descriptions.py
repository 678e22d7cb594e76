# SPDX-License-Identifier: Apache-2.0
"""Finds out from ``instance_info`` whether Nova has requested a node's deploy.

Our driver and Nova's own one describe a server on its node before they request
the deploy, and Ironic removes the description together with the server's uuid.
A node that another user of Ironic deploys has no such description.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from resource_tracker.node import NodeId

HOST_KEY = 'nova_host_id'
"""The key of the server's host, which every description has."""


class Reader(Protocol):
    """The method of Ironic's client that this module calls."""

    def read_fields(
        self, node: NodeId, fields: Sequence[str]
    ) -> Mapping[str, Any]:
        """Return fields of a node."""


def is_described(reader: Reader, node: NodeId) -> bool:
    """Return whether Nova has described a server on a node; a request."""
    read = reader.read_fields(node, ['instance_info'])
    return bool((read.get('instance_info') or {}).get(HOST_KEY))

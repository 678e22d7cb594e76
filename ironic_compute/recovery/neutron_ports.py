# SPDX-License-Identifier: Apache-2.0
"""What Neutron still has of a server."""

from typing import Any

from nova import context as nova_context


def are_gone(network_api: Any, instance: Any) -> bool:
    """Say whether Neutron has none of the ports that a server's row names.

    Whoever gives a build up deletes or unbinds them first and writes the row
    last (``ComputeManager._cleanup_allocated_networks``), and may have come
    no further. A user who takes one of several away means no such thing.
    """
    known = {vif['id'] for vif in instance.get_network_info()}
    if not known:
        return False
    found = network_api.list_ports(
        nova_context.get_admin_context(), device_id=instance.uuid
    )
    return known.isdisjoint(port['id'] for port in found['ports'])

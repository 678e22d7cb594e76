# SPDX-License-Identifier: Apache-2.0
"""A server that an operator moves into another availability zone.

Nova has the zone of a server in two records, which an evacuation and an
unshelving change as well: in the Instance, and in the request spec if the
user has requested a zone. With the former zone there, the scheduler would find
no host for a rebuild with another image.
"""

from typing import Any

from nova import context as nova_context
from nova import exception as nova_exception
from nova import objects

from hashring.ring import Host
from ironic_compute.pool.host_aggregates import read_zone


def change_zone(instance: Any, target: Host) -> None:
    """Set the zone of a server to that of a host; blocks for three RPCs.

    The request spec is saved, and the Instance is not. If the move ends before
    its first write, the next one sets the zones anew.

    :raises Exception: Nova does not answer, or its conductor has no API
        database
    """
    zone = read_zone(target)
    try:
        spec = objects.RequestSpec.get_by_instance_uuid(
            nova_context.get_admin_context(), instance.uuid
        )
    except nova_exception.RequestSpecNotFound:
        spec = None
    if spec is not None and spec.availability_zone not in (None, zone):
        spec.availability_zone = zone
        spec.save()
    instance.availability_zone = zone

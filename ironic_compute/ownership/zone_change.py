# SPDX-License-Identifier: Apache-2.0
"""A server that an operator moves into another availability zone.

Nova has the zone of a server in two records, which an evacuation and an
unshelving change as well: in the Instance, and in the request spec if the
user has requested a zone. With the former zone there, the scheduler would find
no host for a rebuild with another image.
"""

from collections.abc import Callable
from typing import Any

from nova import context as nova_context
from nova import exception as nova_exception
from nova import objects
from oslo_log import log as logging

from hashring.ring import Host
from ironic_compute.pool.host_aggregates import read_zone

LOG = logging.getLogger(__name__)


class SpecUnclear(Exception):
    """Nova did not say whether a request spec has its new zone."""


def change_zone(instance: Any, target: Host) -> None:
    """Set the zone of a server to that of a host; blocks for three RPCs.

    The request spec is saved, and the Instance is not. If the move ends before
    its first write, the next one sets the zones anew.

    :raises SpecUnclear: the request spec was sent, and there is no answer
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
        try:
            spec.save()
        except Exception as exc:
            raise SpecUnclear(str(exc)) from exc
    instance.availability_zone = zone


def change_or_restore(
    change: Callable[[Any, Host], None], instance: Any, target: Host
) -> None:
    """Set the zone of a server that is moved now to that of its new host.

    If it is not known whether that was done, the server has its former zone
    again. The Instance has its former host still.

    :param change: :func:`change_zone`
    :raises Exception: what ``change`` or its save has raised
    """
    try:
        change(instance, target)
    except SpecUnclear as exc:
        restore_zone(change, instance, instance.host)
        raise (exc.__cause__ or exc) from None


def restore_zone(
    change: Callable[[Any, Host], None], instance: Any, host: Host
) -> None:
    """Set the zone of a server that was not moved to that of its host again.

    :param change: :func:`change_zone`
    """
    try:
        change(instance, host)
    except Exception as exc:
        LOG.warning(
            'Server %(server)s stays on host %(host)s, and its request spec '
            'may have another availability zone, until the server is moved: '
            '%(error)s',
            {'server': instance.uuid, 'host': host, 'error': exc},
        )

# SPDX-License-Identifier: Apache-2.0
"""Saves of an Instance that nova-conductor carries out twice.

If RabbitMQ restarts while oslo.messaging publishes a request, the request may
be published again although the first one arrived. nova-conductor then saves an
Instance twice: the first save succeeds and its answer is lost, the second one
finds another task than it expects, and Nova records a reboot that succeeded as
failed. ``gated_writes`` calls this module when a save was refused so.
"""

from typing import Any

from nova import objects
from oslo_log import log as logging

LOG = logging.getLogger(__name__)


def is_saved(context: Any, instance: Any) -> bool:
    """Return whether Nova's database has all changes of an Instance already.

    The task has to be the same even if it is none of the changes, because a
    delete may have been requested meanwhile. Blocks for one RPC.
    """
    changes = instance.obj_get_changes()
    current = objects.Instance.get_by_uuid(
        context, instance.uuid, expected_attrs=[]
    )
    changes['task_state'] = instance.task_state
    if not all(_has(current, name, changes[name]) for name in changes):
        return False
    LOG.info(
        'A save of server %(server)s was carried out twice by nova-conductor',
        {'server': instance.uuid},
    )
    return True


def _has(current: Any, name: str, value: Any) -> bool:
    is_set: bool = current.obj_attr_is_set(name)
    return is_set and bool(getattr(current, name) == value)

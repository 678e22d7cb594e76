# SPDX-License-Identifier: Apache-2.0
"""Saves of an Instance that nova-conductor carries out twice.

If RabbitMQ restarts while oslo.messaging publishes a request, the request may
be published again although the first one arrived. nova-conductor then saves an
Instance twice: the first save succeeds and its answer is lost, the second one
finds another task than it expects, and Nova records a reboot that succeeded as
failed. ``gated_writes`` calls this module when a save was refused so.
"""

from collections.abc import Mapping
from typing import Any

from nova import objects
from nova.compute import task_states
from oslo_log import log as logging

LOG = logging.getLogger(__name__)

_STARTED = 'launched_at'
# Fields that change at the end of a build, a rebuild, a stop and so on.
_OF_AN_END = frozenset({'vm_state', _STARTED})
# Fields that are read only if they are asked for.
_NOT_READ = frozenset({'metadata', 'system_metadata'})
_DELETES = frozenset({task_states.DELETING, task_states.SOFT_DELETING})


def is_saved(context: Any, instance: Any) -> bool:
    """Return whether Nova's database has all changes of an Instance already.

    The task has to be the same even if it is none of the changes, because a
    delete may have been requested meanwhile. The time of a start may differ,
    because another worker may have ended the same build or rebuild. Blocks for
    one RPC.
    """
    changes = instance.obj_get_changes()
    changes.pop('task_state', None)
    current = objects.Instance.get_by_uuid(
        context, instance.uuid, expected_attrs=sorted(_NOT_READ & set(changes))
    )
    compared = changes.keys() - {_STARTED}
    if not all(_has(current, name, changes[name]) for name in compared):
        return False
    is_same = _has(current, 'task_state', instance.task_state)
    if not is_same and not is_end_saved(
        changes, instance.task_state, current.task_state
    ):
        return False
    LOG.info(
        'A save of server %(server)s was carried out twice by nova-conductor',
        {'server': instance.uuid},
    )
    return True


def is_end_saved(
    changes: Mapping[str, Any], task_state: str | None, current: str | None
) -> bool:
    """Return whether the end of a task was saved before the next task came.

    A user may request the next task as soon as Nova shows the end of the
    first one, and nova-api accepts it only then. A delete is accepted at any
    time, so it proves nothing.

    :param changes: the other changes, which the database has
    :param task_state: the task state that was to be saved
    :param current: the task state in the database
    """
    shows_end = task_state is None and not _OF_AN_END.isdisjoint(changes)
    return shows_end and current not in _DELETES


def _has(current: Any, name: str, value: Any) -> bool:
    is_set: bool = current.obj_attr_is_set(name)
    return is_set and bool(getattr(current, name) == value)

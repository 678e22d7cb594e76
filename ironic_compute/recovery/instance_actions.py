# SPDX-License-Identifier: Apache-2.0
"""What was last asked for a server, as Nova has written it down."""

import datetime
from collections.abc import Sequence
from typing import Any

from nova import context as nova_context
from nova import objects
from nova.compute import instance_actions
from oslo_utils import timeutils


def actions_of(instance: Any) -> list[Any]:
    """Return the actions of a server, newest first; one RPC."""
    return list(
        objects.InstanceActionList.get_by_instance_uuid(
            nova_context.get_admin_context(), instance.uuid
        )
    )


def context_of(actions: Sequence[Any]) -> Any:
    """Return a context in which Nova finds the action that is to end.

    Without its request the newest action would be taken, which may be a
    power event of Ironic's (InstanceActionEventNotFound).
    """
    context = nova_context.get_admin_context()
    asked = next((a for a in actions if a.action != 'power-update'), None)
    if asked is not None and asked.request_id:
        context.request_id = asked.request_id
    return context


def rebuild_at(actions: Sequence[Any]) -> datetime.datetime | None:
    """Return when the last rebuild was asked for, if one was."""
    rebuilds = (a for a in actions if a.action == instance_actions.REBUILD)
    return next((rebuild.start_time for rebuild in rebuilds), None)


def is_later(stamp: str | None, than: datetime.datetime | None) -> bool:
    """Compare a time of Ironic's with one of Nova's; unknown is never later.

    Their clocks may differ, by less than a deploy takes.
    """
    if stamp is None or than is None:
        return False
    naive = timeutils.normalize_time
    return bool(naive(timeutils.parse_isotime(stamp)) > naive(than))

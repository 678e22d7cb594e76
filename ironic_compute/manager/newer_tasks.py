# SPDX-License-Identifier: Apache-2.0
"""Keeps a newer task of a server when the handler of an older one ends.

nova-api accepts some requests while a task runs: a delete, a hard reboot
during a soft one, and any request after an administrator has reset the state.
Nova's last save of a reboot, and the one with which it clears the task of a
request that failed, overwrite the newer task, because they expect no task. The
message of the newer request then counts as stale, so the request is never
done. Here these saves expect the handler's own tasks.

Nova clears a task twice if a request fails after its end, such as a rebuild
that is refused: the Instance then counts its task as changed, though it is the
one that was saved before. Such a save leaves the task as it is.
"""

import contextlib
from collections.abc import Iterator
from typing import Any

from nova import exception as nova_exception
from oslo_log import log as logging

LOG = logging.getLogger(__name__)


@contextlib.contextmanager
def keeping_newer_tasks(
    instance: Any, own: frozenset[str | None]
) -> Iterator[None]:
    """Let no save of an Instance in the body overwrite a newer task.

    A save that changes the task, and names no task that it expects, expects
    one of the handler's. If the server has another one it changes nothing,
    and raises no error, because the handler has done its own part.

    :param own: the task states that the handler may find or set
    """
    save, is_nested = instance.save, 'save' in vars(instance)
    saved = instance.task_state

    def save_own(*args: Any, **kwargs: Any) -> None:
        nonlocal saved
        if args or 'expected_task_state' in kwargs:
            save(*args, **kwargs)
        elif instance.task_state == saved:
            instance.obj_reset_changes(['task_state'])
            save(*args, **kwargs)
        else:
            # Once the handler has ended its task, any task is a newer one,
            # even of the same kind: nova-api has accepted it since.
            expected = own if saved is not None else frozenset({None})
            _save_unless_newer(instance, save, expected)
        saved = instance.task_state

    instance.save = save_own
    try:
        yield
    finally:
        if is_nested:
            instance.save = save
        else:
            del instance.save


def _save_unless_newer(
    instance: Any, save: Any, own: frozenset[str | None]
) -> None:
    try:
        save(expected_task_state=list(own))
    except nova_exception.UnexpectedTaskStateError:
        instance.obj_reset_changes()
        LOG.info(
            'Server %(server)s keeps a task that was requested while another '
            'one ended',
            {'server': instance.uuid},
        )

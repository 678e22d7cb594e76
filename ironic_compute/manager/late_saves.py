# SPDX-License-Identifier: Apache-2.0
"""Keeps late saves of a request away from a server whose request is over.

nova-conductor may carry out a request a minute after its sender has repeated
it. Some saves of Nova expect nothing of the server, or only that it has no
task, as any server that is at rest. Carried out late, they changed a server
that was in use again. Here they expect the state that the request has put the
server in:

* The first saves of a build, and the save before it is scheduled again, expect
  that the server is building. They made an ACTIVE or a shelved server BUILDING
  again, or took its host from it. A shelved server has no host whose recovery
  would mend that, and ended in ERROR as a lost build. The second save also
  expects the task of the first one. It took the task of the third one away,
  and then the save that makes the server ACTIVE was refused.
* The save that takes the host from a shelved server expects that the server is
  still off its node. It took the host from a server that was unshelved, so
  that nobody served it any more.
* The first save of an unshelve, and the one that ends a failed one, expect the
  tasks of an unshelve.

The first save of an unshelve also takes the host that the record may have from
before: a worker that is killed while it shelves a server leaves it there. Its
successor would take the unshelve for its own, and undo it.
"""

import contextlib
import functools
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from typing import Any

from nova import exception as nova_exception
from nova.compute import task_states, vm_states
from oslo_log import log as logging

LOG = logging.getLogger(__name__)

# Saves an Instance; gets the former ``save`` and what that is called with.
_Save = Callable[..., None]

# The task states with which Nova begins a build, and with which it has a build
# scheduled again.
BEGIN = frozenset({task_states.NETWORKING, task_states.BLOCK_DEVICE_MAPPING})
RESCHEDULED = frozenset({task_states.SCHEDULING})
# A server in this VM state is on no node while it has one of these tasks.
_OFFLOADED = [vm_states.SHELVED_OFFLOADED]
_OFF_NODE = [None, task_states.UNSHELVING]
_UNSHELVING = [task_states.UNSHELVING, task_states.SPAWNING]


def expecting_unbuilt(
    instance: Any, tasks: frozenset[str]
) -> AbstractContextManager[None]:
    """Let some saves of a build in the body expect a building server.

    If the server is not building any more, because its build was ended or its
    state was reset meanwhile, such a save changes nothing, and Nova aborts the
    build.

    :param tasks: the saves are those that set one of these task states
    """
    saved = instance.task_state

    def save_unbuilt(save: _Save, *args: Any, **kwargs: Any) -> None:
        nonlocal saved
        if instance.task_state in tasks:
            kwargs['expected_vm_state'] = [vm_states.BUILDING]
            if instance.task_state == task_states.BLOCK_DEVICE_MAPPING:
                # Nova expects a task in the other saves.
                kwargs.setdefault('expected_task_state', [saved])
        save(*args, **kwargs)
        saved = instance.task_state

    return saved_by(instance, save_unbuilt)


def expecting_offloaded(instance: Any) -> AbstractContextManager[None]:
    """Let a save in the body that clears the host expect a shelved server.

    If the server is unshelved already, or has any other task, the save changes
    nothing, and raises no error: an unshelve saves its own host, and a delete
    needs the present one.
    """

    def save_offloaded(save: _Save, *args: Any, **kwargs: Any) -> None:
        if instance.host is None:
            _save_if_expected(instance, save, _OFF_NODE)
        else:
            save(*args, **kwargs)

    return saved_by(instance, save_offloaded)


def expecting_unshelve(instance: Any) -> AbstractContextManager[None]:
    """Let the saves of an unshelve in the body expect its own tasks.

    The first save raises an error if the server has another task: Nova must
    not go on then. The one that ends a failed unshelve raises none.
    """
    saved = instance.task_state

    def save_unshelve(save: _Save, *args: Any, **kwargs: Any) -> None:
        nonlocal saved
        is_task_kept = instance.task_state == saved
        if args or 'expected_task_state' in kwargs or is_task_kept:
            save(*args, **kwargs)
        elif instance.task_state is None:
            _save_if_expected(instance, save, _UNSHELVING)
        else:
            _clear_former_host(instance)
            save(expected_task_state=[saved])
        saved = instance.task_state

    return saved_by(instance, save_unshelve)


def _clear_former_host(instance: Any) -> None:
    """Clear the host of a server that is on no node; saves nothing."""
    if instance.host is not None:
        instance.host = instance.node = instance.compute_id = None


def _save_if_expected(
    instance: Any, save: _Save, task: list[str | None]
) -> None:
    """Save a shelved server if it has one of these tasks, or do nothing."""
    try:
        save(expected_vm_state=_OFFLOADED, expected_task_state=task)
    except nova_exception.InstanceUpdateConflict as exc:
        instance.obj_reset_changes()
        LOG.debug(
            'Did not save server %(server)s, which is in use: %(error)s',
            {'server': instance.uuid, 'error': exc},
        )


@contextlib.contextmanager
def saved_by(instance: Any, save: _Save) -> Iterator[None]:
    """Have a function save an Instance in the body."""
    former, is_nested = instance.save, 'save' in vars(instance)
    instance.save = functools.partial(save, former)
    try:
        yield
    finally:
        if is_nested:
            instance.save = former
        else:
            del instance.save

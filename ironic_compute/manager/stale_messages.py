# SPDX-License-Identifier: Apache-2.0
"""Nova's handlers, each run once for what was asked.

A message and the worker that takes up half-done work
(``interrupted_tasks``) may name the same task: the message waited in the
queue while its host had no worker,
and the row said what was to do as well. nova-api writes the task into the row
before it sends the message, so a row that does not say so any more means that
the task was done or given up: the message is dropped. Run a second time it
would end in an unexpected task state, a fault, and a successful reboot
recorded as failed; a build run again would destroy the server.

Importing this module imports Nova's manager; see ``compute_manager``.
"""

import functools
from collections.abc import Callable
from typing import Any

from nova import exception as nova_exception
from nova.compute import build_results, task_states, vm_states
from nova.compute import manager as nova_manager
from oslo_log import log as logging

from ironic_compute.recovery.in_progress import InProgress

LOG = logging.getLogger(__name__)

# What the row says while the message of this name is still wanted.
_WANTED: dict[str, frozenset[str]] = {
    'reboot_instance': frozenset(
        {*task_states.soft_reboot_states, *task_states.hard_reboot_states}
    ),
    'stop_instance': frozenset({task_states.POWERING_OFF}),
    'start_instance': frozenset({task_states.POWERING_ON}),
    'rescue_instance': frozenset({task_states.RESCUING}),
    'unrescue_instance': frozenset({task_states.UNRESCUING}),
    'rebuild_instance': frozenset({task_states.REBUILDING}),
    'soft_delete_instance': frozenset({task_states.SOFT_DELETING}),
    'restore_instance': frozenset({task_states.RESTORING}),
    # Nova's API sends both tasks here if the root disk is a volume.
    'shelve_offload_instance': frozenset(
        {task_states.SHELVING, task_states.SHELVING_OFFLOADING}
    ),
    'unshelve_instance': frozenset({task_states.UNSHELVING}),
}

# What the conductor writes into its message and leaves to us to save.
_UNSAVED = ('availability_zone',)


def is_wanted_build(vm_state: str, host: str | None) -> bool:
    """Say whether a build has not begun anywhere yet.

    Nova itself would build an ACTIVE server again and destroy it.
    """
    return vm_state == vm_states.BUILDING and host is None


def _once(name: str) -> Callable[..., Any]:
    """Return Nova's handler of this name, for a row that still wants it."""
    inherited = getattr(nova_manager.ComputeManager, name)

    @functools.wraps(inherited)
    def handler(
        self: Any, context: Any, instance: Any, *args: Any, **kwargs: Any
    ) -> Any:
        with self.in_progress.shared(instance.uuid):
            if _is_wanted(instance, _WANTED[name]):
                return inherited(self, context, instance, *args, **kwargs)
        return _drop(name, instance)

    return handler


def _is_there(instance: Any) -> bool:
    """Read a server's row anew; False if it is gone.

    What only the message says is kept.
    """
    changes = instance.obj_get_changes()
    try:
        instance.refresh()
    except nova_exception.InstanceNotFound:
        return False
    for name in changes.keys() & _UNSAVED:
        setattr(instance, name, changes[name])
    return True


def _is_wanted(instance: Any, states: frozenset[str]) -> bool:
    return _is_there(instance) and instance.task_state in states


def _is_built(instance: Any) -> bool:
    """Say whether a build was begun meanwhile; one that is gone was not."""
    return _is_there(instance) and not is_wanted_build(
        instance.vm_state, instance.host
    )


def _drop(name: str, instance: Any) -> None:
    LOG.info(
        'Dropped a message %(name)s for server %(server)s: it is done already',
        {'name': name, 'server': instance.uuid},
    )


class DropsStaleMessages(nova_manager.ComputeManager):
    """A manager whose messages are served once.

    ``in_progress`` is told of each server that is worked on.
    """

    in_progress: InProgress

    reboot_instance = _once('reboot_instance')
    stop_instance = _once('stop_instance')
    start_instance = _once('start_instance')
    rescue_instance = _once('rescue_instance')
    unrescue_instance = _once('unrescue_instance')
    rebuild_instance = _once('rebuild_instance')
    soft_delete_instance = _once('soft_delete_instance')
    restore_instance = _once('restore_instance')
    shelve_offload_instance = _once('shelve_offload_instance')
    unshelve_instance = _once('unshelve_instance')

    def terminate_instance(
        self, context: Any, instance: Any, *args: Any, **kwargs: Any
    ) -> None:
        """Delete a server; one that is gone is no failure."""
        with self.in_progress.shared(instance.uuid):
            if not _is_there(instance):
                _drop('terminate_instance', instance)
                return
            super().terminate_instance(context, instance, *args, **kwargs)

    def build_and_run_instance(
        self, context: Any, instance: Any, *args: Any, **kwargs: Any
    ) -> Any:
        """Build a server whose build has not begun anywhere yet."""
        if not _is_there(instance) or not is_wanted_build(
            instance.vm_state, instance.host
        ):
            return _drop('build_and_run_instance', instance)
        return super().build_and_run_instance(
            context, instance, *args, **kwargs
        )

    def _do_build_and_run_instance(
        self, context: Any, instance: Any, *args: Any, **kwargs: Any
    ) -> Any:
        """Build in a thread of Nova's pool, after the message was served.

        Under the server's lock: a repeated message that came while the
        first one was not yet claimed has waited here until it is built.
        """
        with self.in_progress.shared(instance.uuid):
            if _is_built(instance):
                _drop('build_and_run_instance', instance)
                # Of all results the one that changes nothing more; FAILED
                # would take the allocation of the server that was built.
                return build_results.RESCHEDULED_BY_POLICY
            return super()._do_build_and_run_instance(
                context, instance, *args, **kwargs
            )

# SPDX-License-Identifier: Apache-2.0
"""Drops stale RPC messages: messages whose task was done already.

A message and the recovery of an interrupted task may name the same task: the
message waited in the queue while its host had no worker, and the server's
Instance record had the task state as well. nova-api saves the task state
before it sends the message. If the Instance record no longer has it, the task
was done or ended, and the message is dropped. Running a task a second time
would end in an unexpected task state, a fault, and a successful reboot
recorded as failed; running a build a second time would destroy the server.

Importing this module imports Nova's manager; see ``compute_manager``.
"""

import functools
from collections.abc import Callable
from typing import Any

import oslo_messaging
from nova import exception as nova_exception
from nova.compute import manager as nova_manager
from nova.compute import task_states
from oslo_log import log as logging

from ironic_compute.recovery.in_progress import InProgress

LOG = logging.getLogger(__name__)

# The task states of an Instance with which an RPC message is not stale, by the
# name of the message.
_REBOOT_STATES: dict[str, frozenset[str]] = {
    'SOFT': frozenset(task_states.soft_reboot_states),
    'HARD': frozenset(task_states.hard_reboot_states),
}
SHELVING = frozenset({task_states.SHELVING, task_states.SHELVING_OFFLOADING})
_DUE_STATES: dict[str, frozenset[str]] = {
    'reboot_instance': frozenset().union(*_REBOOT_STATES.values()),
    'stop_instance': frozenset({task_states.POWERING_OFF}),
    'start_instance': frozenset({task_states.POWERING_ON}),
    'rescue_instance': frozenset({task_states.RESCUING}),
    'unrescue_instance': frozenset({task_states.UNRESCUING}),
    'rebuild_instance': frozenset({task_states.REBUILDING}),
    'soft_delete_instance': frozenset({task_states.SOFT_DELETING}),
    'restore_instance': frozenset({task_states.RESTORING}),
    # nova-api sends this message for both task states if the root disk is a
    # volume.
    'shelve_offload_instance': SHELVING,
    'unshelve_instance': frozenset({task_states.UNSHELVING}),
}

# The Instance fields that the conductor sets in a message and does not save.
_UNSAVED = ('availability_zone',)


def _drops_stale(name: str) -> Callable[..., Any]:
    """Return a handler that drops stale messages and else calls Nova's."""
    inherited = getattr(nova_manager.ComputeManager, name)

    @functools.wraps(inherited)
    def handler(
        self: Any, context: Any, instance: Any, *args: Any, **kwargs: Any
    ) -> Any:
        with self.in_progress.shared(instance.uuid):
            if is_due(instance, _DUE_STATES[name]):
                return inherited(self, context, instance, *args, **kwargs)
        return drop(name, instance)

    return handler


def refresh(instance: Any) -> bool:
    """Read an Instance again; return False if it is gone.

    The fields that only the message has are kept. Blocks while nova-conductor
    does not answer, because the message would be lost after an error.
    """
    changes = instance.obj_get_changes()
    while True:
        try:
            instance.refresh()
            break
        except nova_exception.InstanceNotFound:
            return False
        except oslo_messaging.MessagingTimeout as exc:
            LOG.warning(
                'A message for server %(server)s waits until Nova answers: '
                '%(error)s',
                {'server': instance.uuid, 'error': exc},
            )
    for name in changes.keys() & _UNSAVED:
        setattr(instance, name, changes[name])
    return True


def is_due(instance: Any, states: frozenset[str]) -> bool:
    """Read an Instance again; return whether it has one of these tasks."""
    return refresh(instance) and instance.task_state in states


def drop(name: str, instance: Any) -> None:
    LOG.info(
        'Dropped a message %(name)s for server %(server)s: its task is done '
        'already',
        {'name': name, 'server': instance.uuid},
    )


class DropsStaleMessages(nova_manager.ComputeManager):
    """Nova's ComputeManager, with handlers that drop stale messages.

    Each handler records its server in ``in_progress`` while it runs.
    """

    in_progress: InProgress

    reboot_instance = _drops_stale('reboot_instance')
    stop_instance = _drops_stale('stop_instance')
    start_instance = _drops_stale('start_instance')
    rescue_instance = _drops_stale('rescue_instance')
    unrescue_instance = _drops_stale('unrescue_instance')
    rebuild_instance = _drops_stale('rebuild_instance')
    soft_delete_instance = _drops_stale('soft_delete_instance')
    restore_instance = _drops_stale('restore_instance')
    shelve_offload_instance = _drops_stale('shelve_offload_instance')
    unshelve_instance = _drops_stale('unshelve_instance')

    def _reboot_instance(
        self, context: Any, instance: Any, devices: Any, reboot_type: str
    ) -> None:
        """Reboot a server, unless another message has done it meanwhile.

        Nova calls this with the lock of the server. While the message waited
        for it, an earlier one that RabbitMQ had delivered again may have found
        the task state that belongs to this one. An earlier one of the other
        type is not for the present task.
        """
        if is_due(instance, _REBOOT_STATES[reboot_type]):
            super()._reboot_instance(context, instance, devices, reboot_type)
        else:
            drop('reboot_instance', instance)

    def terminate_instance(
        self, context: Any, instance: Any, *args: Any, **kwargs: Any
    ) -> None:
        """Delete a server; a server that is gone is no error."""
        with self.in_progress.shared(instance.uuid):
            if not refresh(instance):
                drop('terminate_instance', instance)
                return
            with self.driver.cancel_build(instance.uuid):
                super().terminate_instance(context, instance, *args, **kwargs)

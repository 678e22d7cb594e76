# SPDX-License-Identifier: Apache-2.0
"""Drops stale RPC messages: messages whose task was done already.

A message and the recovery of an interrupted task may name the same task: the
message waited in the queue while its host had no worker, and the server's
Instance record had the task state as well. nova-api saves the task state
before it sends the message. If the Instance record no longer has it, the task
was done or ended, and the message is dropped. Running a task a second time
would end in an unexpected task state, a fault, and a successful reboot
recorded as failed; running a build a second time would destroy the server.

A message may arrive twice, for instance if a worker is killed while it
forwards one. Two messages of a server are therefore handled one after the
other, and the second one reads the record when the first one has ended. Nova
itself would power off a server that was started since its first stop.

Importing this module imports Nova's manager; see ``compute_manager``.
"""

import functools
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any, TypeVar

from nova import exception as nova_exception
from nova import utils as nova_utils
from nova.compute import manager as nova_manager
from nova.compute import power_state, task_states
from nova.objects import external_event
from oslo_log import log as logging

from hashring.clock import Clock
from ironic_compute import errors
from ironic_compute.manager.late_saves import expecting_unshelve
from ironic_compute.manager.newer_tasks import keeping_newer_tasks
from ironic_compute.manager.retries import NO_ANSWER_OF_NOVA, after, retried
from ironic_compute.recovery.in_progress import InProgress
from ironic_compute.retry import retry

LOG = logging.getLogger(__name__)

_Read = TypeVar('_Read')

# The task states of an Instance with which an RPC message is not stale, by the
# name of the message.
_REBOOT_STATES: dict[str, frozenset[str]] = {
    'SOFT': frozenset(task_states.soft_reboot_states),
    'HARD': frozenset(task_states.hard_reboot_states),
}
# The first of them is nova-api's, and belongs to the next reboot.
_BEGUN_REBOOTS: dict[str, frozenset[str | None]] = {
    'SOFT': frozenset(task_states.soft_reboot_states[1:]),
    'HARD': frozenset(task_states.hard_reboot_states[1:]),
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

# Nova's rebuild calls the handler of a stop. A reboot reads the record again
# with Nova's lock, see ``_reboot_instance``.
_NOT_ALONE = frozenset({'rebuild_instance', 'reboot_instance'})
# The task states of one task; another task has a single one.
_TASKS: tuple[frozenset[str], ...] = (
    *_REBOOT_STATES.values(),
    frozenset(task_states.rebuild_states),
)
# It has saves of its own kind, see ``late_saves``: it must not go on if the
# server has another task when it begins.
_UNSHELVE = 'unshelve_instance'

# The second one: the server was deleted after `Instance.refresh` had read its
# record, and before it read the cache of its networks.
_DELETED = (
    nova_exception.InstanceNotFound,
    nova_exception.InstanceInfoCacheNotFound,
)
# The Instance fields that the conductor sets in a message and does not save.
_UNSAVED = ('availability_zone',)


def _drops_stale(name: str) -> Callable[..., Any]:
    """Return a handler that drops stale messages and else calls Nova's."""
    inherited = getattr(nova_manager.ComputeManager, name)

    @functools.wraps(inherited)
    def handler(
        self: Any, context: Any, instance: Any, *args: Any, **kwargs: Any
    ) -> Any:
        def handle() -> Any:
            if not is_due(instance, _DUE_STATES[name], self.clock):
                return drop(name, instance)
            with _keeping_newer_tasks(name, instance):
                return inherited(self, context, instance, *args, **kwargs)

        with self.in_progress.shared(instance.uuid):
            if name in _NOT_ALONE:
                return handle()
            return nova_utils.synchronized(f'task-{instance.uuid}')(handle)()

    return handler


def _keeping_newer_tasks(
    name: str, instance: Any
) -> AbstractContextManager[None]:
    """Keep the tasks that are none of a handler's; see ``newer_tasks``."""
    if name == _UNSHELVE:
        return expecting_unshelve(instance)
    task = instance.task_state
    states = next((some for some in _TASKS if task in some), {task})
    return keeping_newer_tasks(instance, frozenset({*states, None}))


def refresh(instance: Any, clock: Clock) -> bool:
    """Read an Instance again; return False if it is gone.

    The fields that only the message has are kept. Blocks while nova-conductor
    or its database is away, because the message would be lost after an error.
    """
    changes = instance.obj_get_changes()
    try:
        read_until_answered(instance.refresh, instance.uuid, clock)
    except _DELETED:
        return False
    for name in changes.keys() & _UNSAVED:
        setattr(instance, name, changes[name])
    return True


def read_until_answered(
    read: Callable[[], _Read], server: str, clock: Clock
) -> _Read:
    """Read a record of a server that a message is about; blocks until then.

    :raises nova.exception.NovaException: the answer of nova-conductor
    """
    return retry(
        read,
        clock,
        after(*NO_ANSWER_OF_NOVA),
        lambda exc: LOG.warning(
            'A message for server %(server)s waits until Nova answers: '
            '%(error)s',
            {'server': server, 'error': exc},
        ),
    )


def is_due(instance: Any, states: frozenset[str], clock: Clock) -> bool:
    """Read an Instance again; return whether it has one of these tasks."""
    return refresh(instance, clock) and instance.task_state in states


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

    clock: Clock
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
        if not is_due(instance, _REBOOT_STATES[reboot_type], self.clock):
            drop('reboot_instance', instance)
            return
        with keeping_newer_tasks(instance, _BEGUN_REBOOTS[reboot_type]):
            super()._reboot_instance(context, instance, devices, reboot_type)

    def power_update(
        self, context: Any, instance: Any, target_power_state: str
    ) -> None:
        """Save the power state that Ironic has reported, if it still holds.

        The message may have waited while nobody served the host. A machine
        that was switched off and on meanwhile would be STOPPED in Nova, whose
        power sync would then switch it off. It would be so, too, if Nova did
        not look at the second event because the first is not saved yet.
        """
        one_by_one = nova_utils.synchronized(f'power-update-{instance.uuid}')
        one_by_one(self._update_power)(context, instance, target_power_state)

    def _update_power(
        self, context: Any, instance: Any, target_power_state: str
    ) -> None:
        if not self._must_save_power(context, instance, target_power_state):
            drop('power_update', instance)
            return
        super().power_update(context, instance, target_power_state)

    @retried(
        'A power event of server %(server)s waits until Ironic answers: '
        '%(error)s',
        errors.is_ironic_away,
    )
    def _must_save_power(
        self, context: Any, instance: Any, target: str
    ) -> bool:
        """Return whether Nova must handle a power event; blocks until known.

        Without the event, a machine that was switched on would be STOPPED in
        Nova, as above. The record is read again after each wait.
        """
        if not refresh(instance, self.clock):
            return False
        is_change = super()._is_state_valid_for_power_update_event(
            instance, target
        )
        return not is_change or self._has_power_state(instance, target)

    def _is_state_valid_for_power_update_event(
        self, instance: Any, target: str
    ) -> bool:
        """Return whether an event still holds, now that Nova has the lock.

        While the event waited for it, a reboot may have switched a machine on
        again that was off. If Ironic does not say so, it holds: it did before.
        After an error Nova would clear the task of the server, which may be
        that of a request that has just come.
        """
        is_there = refresh(instance, self.clock)
        if not is_there or not super()._is_state_valid_for_power_update_event(
            instance, target
        ):
            return False
        try:
            return self._has_power_state(instance, target)
        except Exception as exc:
            LOG.debug(
                'Ironic does not say whether server %(server)s is still as a '
                'power event says: %(error)s',
                {'server': instance.uuid, 'error': exc},
            )
            return True

    def _has_power_state(self, instance: Any, target: str) -> bool:
        """Read from Ironic whether a server is on or off, as an event says."""
        is_on = target == external_event.POWER_ON
        wanted = power_state.RUNNING if is_on else power_state.SHUTDOWN
        info = self.driver.get_info(instance, use_cache=False)
        return bool(info.state == wanted)

    def terminate_instance(
        self, context: Any, instance: Any, *args: Any, **kwargs: Any
    ) -> None:
        """Delete a server; a server that is gone is no error."""
        with self.in_progress.shared(instance.uuid):
            if not refresh(instance, self.clock):
                drop('terminate_instance', instance)
                return
            with self.driver.cancel_build(instance.uuid):
                super().terminate_instance(context, instance, *args, **kwargs)

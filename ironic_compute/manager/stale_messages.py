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

import contextlib
import functools
import inspect
from collections.abc import Callable
from typing import Any

from nova import exception as nova_exception
from nova.compute import build_results, task_states, vm_states
from nova.compute import manager as nova_manager
from oslo_log import log as logging

from ironic_compute import delivery
from ironic_compute.recovery.in_progress import InProgress

LOG = logging.getLogger(__name__)

# The task states of an Instance with which an RPC message is not stale, by the
# name of the message.
_DUE_STATES: dict[str, frozenset[str]] = {
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
    # nova-api sends this message for both task states if the root disk is a
    # volume.
    'shelve_offload_instance': frozenset(
        {task_states.SHELVING, task_states.SHELVING_OFFLOADING}
    ),
    'unshelve_instance': frozenset({task_states.UNSHELVING}),
}

_BUILD = inspect.signature(
    nova_manager.ComputeManager._do_build_and_run_instance
)

# The Instance fields that the conductor sets in a message and does not save.
_UNSAVED = ('availability_zone',)


def is_unbuilt(vm_state: str, host: str | None) -> bool:
    """Return whether no host has started the build of a server yet.

    Nova itself would build an ACTIVE server again and destroy it.
    """
    return vm_state == vm_states.BUILDING and host is None


def _drops_stale(name: str) -> Callable[..., Any]:
    """Return a handler that drops stale messages and else calls Nova's."""
    inherited = getattr(nova_manager.ComputeManager, name)

    @functools.wraps(inherited)
    def handler(
        self: Any, context: Any, instance: Any, *args: Any, **kwargs: Any
    ) -> Any:
        with self.in_progress.shared(instance.uuid):
            if _is_due(instance, _DUE_STATES[name]):
                return inherited(self, context, instance, *args, **kwargs)
        return _drop(name, instance)

    return handler


def _refresh(instance: Any) -> bool:
    """Read an Instance again; return False if it is gone.

    The fields that only the message has are kept.
    """
    changes = instance.obj_get_changes()
    try:
        instance.refresh()
    except nova_exception.InstanceNotFound:
        return False
    for name in changes.keys() & _UNSAVED:
        setattr(instance, name, changes[name])
    return True


def _is_due(instance: Any, states: frozenset[str]) -> bool:
    return _refresh(instance) and instance.task_state in states


def _is_built(instance: Any) -> bool:
    """Return whether a build has started; False if the server is gone."""
    return _refresh(instance) and not is_unbuilt(
        instance.vm_state, instance.host
    )


def _drop(name: str, instance: Any) -> None:
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

    def terminate_instance(
        self, context: Any, instance: Any, *args: Any, **kwargs: Any
    ) -> None:
        """Delete a server; a server that is gone is no error."""
        with self.in_progress.shared(instance.uuid):
            if not _refresh(instance):
                _drop('terminate_instance', instance)
                return
            super().terminate_instance(context, instance, *args, **kwargs)

    def undo_interrupted_build(
        self, context: Any, instance: Any, requested_networks: Any
    ) -> bool:
        """Undo what is left of a build; False if Ironic has taken it over."""
        raise NotImplementedError

    def build_and_run_instance(
        self, context: Any, instance: Any, *args: Any, **kwargs: Any
    ) -> Any:
        """Build a server, unless a host has started its build already.

        A build that an earlier worker of this host has started is built anew
        if RabbitMQ has delivered its message again.
        """
        message = delivery.current()
        is_due = _refresh(instance) and (
            is_unbuilt(instance.vm_state, instance.host)
            or (message is not None and self._is_interrupted(instance))
        )
        if not is_due:
            return _drop('build_and_run_instance', instance)
        if message is not None:
            # The build runs in another thread after this method returned.
            message.keep()
            context.delivery = message
        return super().build_and_run_instance(
            context, instance, *args, **kwargs
        )

    def _is_interrupted(self, instance: Any) -> bool:
        """Return whether a worker of this host has started a build."""
        building = instance.vm_state == vm_states.BUILDING
        return building and instance.host == self.host

    def _do_build_and_run_instance(
        self, context: Any, instance: Any, *args: Any, **kwargs: Any
    ) -> Any:
        """Build in a thread of Nova's pool, after the RPC handler returned.

        Nova calls this method with the server's lock held. A repeated message
        may have waited for the lock while the server was built. Therefore the
        Instance is read again here.
        """
        message: delivery.Delivery | None = getattr(context, 'delivery', None)
        with (
            message.continued() if message else contextlib.nullcontext(),
            self.in_progress.shared(instance.uuid),
        ):
            if self._is_started(context, instance, args, kwargs):
                _drop('build_and_run_instance', instance)
                # With this result Nova changes nothing more. With FAILED it
                # would delete the allocation of the server that was built.
                return build_results.RESCHEDULED_BY_POLICY
            return super()._do_build_and_run_instance(
                context, instance, *args, **kwargs
            )

    def _is_started(
        self, context: Any, instance: Any, args: Any, kwargs: Any
    ) -> bool:
        """Return whether a build has started, and is not to be built anew.

        False if the server is gone, because Nova itself handles that.
        """
        if not _is_built(instance):
            return False
        if delivery.current() is None or not self._is_interrupted(instance):
            return True
        request = _BUILD.bind(self, context, instance, *args, **kwargs)
        networks = request.arguments['requested_networks']
        return not self.undo_interrupted_build(context, instance, networks)

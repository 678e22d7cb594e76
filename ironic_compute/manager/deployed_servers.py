# SPDX-License-Identifier: Apache-2.0
"""Servers that are deployed become ACTIVE, also while a service is away.

When the deploy of a build, rebuild or unshelve has ended, Nova reads the power
state from Ironic (``_update_instance_after_spawn``) and saves the server, and
fails the request if one of the two fails. The server would be in ERROR, or
shelved, while its node is deployed with it. A build would lose its ports and
volumes, and no later unshelve could succeed before recovery has freed the
node. After a start, a reboot, a rescue, a soft delete or a restore, Nova reads
the power state as well. If that failed, a server that was stopped would stay
STOPPED, and Nova's power sync would switch its machine off again; a server
that was deleted would be in use, and one that was restored would be deleted.

Importing this module imports Nova's manager; see ``compute_manager``.
"""

import functools
import sys
from contextlib import AbstractContextManager
from typing import Any

from nova import exception as nova_exception
from nova.compute import build_results, power_state, task_states, vm_states
from nova.compute import manager as nova_manager
from oslo_log import log as logging

from hashring.clock import Clock
from ironic_compute.manager.late_saves import saved_by
from ironic_compute.manager.retries import NO_ANSWER_OF_NOVA, after
from ironic_compute.retry import retry

LOG = logging.getLogger(__name__)

_DEPLOYED = frozenset({task_states.SPAWNING, task_states.REBUILD_SPAWNING})
_SWITCHED = frozenset(
    {
        task_states.SOFT_DELETING,
        task_states.POWERING_ON,
        task_states.RESTORING,
        task_states.REBOOT_STARTED,
        task_states.REBOOT_STARTED_HARD,
    }
)
_ENDED = (vm_states.ACTIVE, None)
# The errors of a stop for which Ironic did not answer, or did not do it.
_NOT_STOPPED = (
    nova_exception.InstancePowerOffFailure,
    nova_exception.VirtDriverNotReady,
)
# Longer than an outage. An error that stays is one of this save alone, and a
# delete of the server waits meanwhile.
_LONGEST_S = 3600.0


class KeepsDeployedServers(nova_manager.ComputeManager):
    """Nova's ComputeManager, whose deploys do not fail after their end."""

    clock: Clock

    def _do_build_and_run_instance(
        self, context: Any, instance: Any, *args: Any, **kwargs: Any
    ) -> Any:
        """Build a server; one that is ACTIVE keeps its allocation.

        Nova deletes the allocation after any error, also if only the end of
        the build's event could not be saved.
        """
        try:
            return super()._do_build_and_run_instance(
                context, instance, *args, **kwargs
            )
        except Exception as exc:
            if not _is_end_saved(instance):
                raise
            LOG.info(
                'Server %(server)s is built, and the event of its build has '
                'no end: %(error)s',
                {'server': instance.uuid, 'error': exc},
            )
            return build_results.ACTIVE

    def _build_and_run_instance(
        self, context: Any, instance: Any, *args: Any, **kwargs: Any
    ) -> None:
        """Build a server; its last save waits until Nova answers."""
        with self._repeating_end(instance):
            super()._build_and_run_instance(context, instance, *args, **kwargs)

    def _do_rebuild_instance(
        self, context: Any, instance: Any, *args: Any, **kwargs: Any
    ) -> None:
        """Rebuild a server; like a build.

        Nova stops a server again that was stopped before its rebuild. If
        Ironic does not answer then, recovery stops it later.
        """
        try:
            with _keeping_stopped(instance), self._repeating_end(instance):
                super()._do_rebuild_instance(
                    context, instance, *args, **kwargs
                )
        except _NOT_STOPPED as exc:
            # Nova has cleared the task of the stop.
            if (instance.vm_state, instance.task_state) != _ENDED:
                raise
            _leave_stop(instance, exc)

    def _unshelve_instance(
        self, context: Any, instance: Any, *args: Any, **kwargs: Any
    ) -> None:
        """Unshelve a server; like a build."""
        with self._repeating_end(instance):
            super()._unshelve_instance(context, instance, *args, **kwargs)

    def _repeating_end(self, instance: Any) -> AbstractContextManager[None]:
        """Repeat the saves in the body that make a server ACTIVE.

        A save may be carried out although it had no answer, which
        ``repeated_saves`` finds out when it is sent again.
        """

        def save(former: Any, *args: Any, **kwargs: Any) -> None:
            is_end = (instance.vm_state, instance.task_state) == _ENDED
            retry(
                functools.partial(former, *args, **kwargs),
                self.clock,
                after(*NO_ANSWER_OF_NOVA) if is_end else after(),
                functools.partial(_log_unsaved, instance.uuid),
                limit_s=_LONGEST_S,
            )

        return saved_by(instance, save)

    def _get_power_state(self, instance: Any) -> Any:
        """Read the power state of a server; it may wait after some tasks.

        With these task states Nova reads it only when the driver has ended its
        part, or, for a reboot, while it handles the error of the driver. Its
        periodic task writes the right state when Ironic answers.

        :returns: ``NOSTATE`` if Ironic does not answer after such a task
        :raises nova.exception.VirtDriverNotReady: Ironic does not answer
        """
        has_failed = sys.exc_info()[0] is not None
        try:
            return super()._get_power_state(instance)
        except nova_exception.VirtDriverNotReady as exc:
            is_done = instance.task_state in _DEPLOYED | _SWITCHED
            if has_failed or not (is_done or _is_end_unsaved(instance)):
                raise
            LOG.warning(
                'Server %(server)s is deployed or switched, and its power '
                'state is not known yet: %(error)s',
                {'server': instance.uuid, 'error': exc},
            )
            return power_state.NOSTATE


def _keeping_stopped(instance: Any) -> AbstractContextManager[None]:
    """Save the end of a stopped server's rebuild and the task of its stop.

    Nova saves the task next. If the worker ended in between, the server would
    stay on.
    """
    was_stopped = instance.vm_state == vm_states.STOPPED

    def save(former: Any, *args: Any, **kwargs: Any) -> None:
        is_end = (instance.vm_state, instance.task_state) == _ENDED
        # It is another one that clears the task of a stop that has failed.
        expected = kwargs.get('expected_task_state') or ()
        if was_stopped and is_end and task_states.REBUILD_SPAWNING in expected:
            instance.task_state = task_states.POWERING_OFF
        former(*args, **kwargs)

    return saved_by(instance, save)


def _is_end_unsaved(instance: Any) -> bool:
    """Return whether Nova has ended a task, and reads the state before a save.

    It does so at the end of a rescue or an unrescue.
    """
    return {'vm_state', 'task_state'} <= instance.obj_what_changed()


def _is_end_saved(instance: Any) -> bool:
    """Return whether a build has saved that its server is ACTIVE."""
    is_ended = (instance.vm_state, instance.task_state) == _ENDED
    return is_ended and 'vm_state' not in instance.obj_what_changed()


def _log_unsaved(server: str, error: Exception) -> None:
    LOG.warning(
        'Server %(server)s is deployed, and becomes ACTIVE when Nova answers: '
        '%(error)s',
        {'server': server, 'error': error},
    )


def _leave_stop(instance: Any, error: Exception) -> None:
    """Leave the stop of a rebuilt server to recovery."""
    LOG.warning(
        'Server %(server)s is rebuilt, and is stopped again later: %(error)s',
        {'server': instance.uuid, 'error': error},
    )
    instance.task_state = task_states.POWERING_OFF
    try:
        instance.save(expected_task_state=[None])
    except nova_exception.InstanceUpdateConflict:
        # It has a newer task.
        instance.obj_reset_changes()

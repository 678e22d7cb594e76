# SPDX-License-Identifier: Apache-2.0
"""Deletes of servers: a delete goes on until the services answer.

Nova puts a server to ERROR if nova-conductor, Ironic or Neutron does not
answer during its delete, and the user has to delete it again. Each step of a
delete may be carried out twice, so the delete is done again instead. For
Placement, see ``allocation_deletes``, for Cinder ``volume_deletes``.

A soft delete (``reclaim_instance_interval``) would be forgotten if Ironic did
not answer: the server would be ACTIVE again, without a task. Likewise a
restored server would be deleted again. Both wait for Ironic.

Nova puts a server to ERROR if its build has failed and its node cannot be
freed then. A failed build therefore waits for Ironic, too, and is scheduled
anew. If it was only prepared, Nova would also schedule one anew that fails on
each node, as the error of Ironic replaces the one that says so.

A delete may be accepted while its server is built. Whatever the end of the
build saves then, it keeps the task of the delete: recovery finds an
interrupted delete by it.

Importing this module imports Nova's manager; see ``compute_manager``.
"""

from typing import Any

from nova import context as nova_context
from nova import exception as nova_exception
from nova import objects
from nova.compute import manager as nova_manager
from nova.compute import task_states
from oslo_log import log as logging

from hashring.clock import Clock
from ironic_compute import errors
from ironic_compute.manager.retries import has_no_answer, retried
from ironic_compute.manager.volume_deletes import deleting_server

LOG = logging.getLogger(__name__)


def _has_no_answer(exc: Exception) -> bool:
    """Repeat if a service did not answer."""
    return errors.is_ironic_away(exc) or has_no_answer(exc)


_retried_until_answered = retried(
    'The delete of server %(server)s waits until all services answer: '
    '%(error)s',
    _has_no_answer,
)
_restored_when_answered = retried(
    'The restore of server %(server)s waits until all services answer: '
    '%(error)s',
    _has_no_answer,
)
_undone_when_answered = retried(
    'The build of server %(server)s has failed, and its node is freed '
    'when Ironic answers: %(error)s',
    errors.is_ironic_away,
)


class RepeatedDeletes(nova_manager.ComputeManager):
    """Nova's ComputeManager, with deletes that outlast an outage."""

    clock: Clock

    @_retried_until_answered
    def _delete_instance(self, context: Any, instance: Any, bdms: Any) -> None:
        """Delete a server; blocks until each service has answered."""
        with deleting_server():
            super()._delete_instance(context, instance, bdms)

    def _power_off_instance(
        self, context: Any, instance: Any, clean_shutdown: bool = True
    ) -> None:
        """Switch a server off; for a soft delete, when Ironic answers."""
        is_delete = instance.task_state == task_states.SOFT_DELETING
        switch = self._power_off if is_delete else super()._power_off_instance
        switch(context, instance, clean_shutdown)

    @_retried_until_answered
    def _power_off(
        self, context: Any, instance: Any, clean_shutdown: bool
    ) -> None:
        super()._power_off_instance(context, instance, clean_shutdown)

    def _power_on(self, context: Any, instance: Any) -> None:
        """Switch a server on; one to be restored, when Ironic answers."""
        is_restore = instance.task_state == task_states.RESTORING
        switch = self._power_on_restored if is_restore else super()._power_on
        switch(context, instance)

    @_restored_when_answered
    def _power_on_restored(self, context: Any, instance: Any) -> None:
        super()._power_on(context, instance)

    def _build_and_run_instance(
        self, context: Any, instance: Any, *args: Any, **kwargs: Any
    ) -> None:
        """Build a server; drop what Nova's database refused for its delete.

        The refused changes, such as ACTIVE without a task, would stay in the
        Instance. Nova's cleanup of the build saves the Instance again, with
        no regard to its task, and would overwrite the task of the delete.
        """
        try:
            super()._build_and_run_instance(context, instance, *args, **kwargs)
        except nova_exception.UnexpectedDeletingTaskStateError:
            instance.obj_reset_changes()
            raise

    def _build_resources_cleanup(
        self, instance: Any, network_info: Any
    ) -> None:
        """Free the node of a build that was only prepared."""
        self._undo_preparation(None, instance, network_info)

    @_undone_when_answered
    def _undo_preparation(
        self, context: Any, instance: Any, network_info: Any
    ) -> None:
        super()._build_resources_cleanup(instance, network_info)

    @_undone_when_answered
    def _undo_build(
        self, context: Any, instance: Any, *args: Any, **kwargs: Any
    ) -> None:
        super()._shutdown_instance(context, instance, *args, **kwargs)

    def _shutdown_instance(
        self, context: Any, instance: Any, *args: Any, **kwargs: Any
    ) -> None:
        """Free the node of a server; that of a build, when Ironic answers.

        A delete, which waits as well, is done again from its begin.
        """
        is_build = instance.task_state == task_states.SPAWNING
        free = self._undo_build if is_build else super()._shutdown_instance
        free(context, instance, *args, **kwargs)

    def _set_instance_obj_error_state(
        self, instance: Any, clean_task_state: bool = False
    ) -> None:
        """Set a server to ERROR, unless its build failed because of a delete.

        Nova-api may delete a server's block device mappings while it is
        built. The build then fails before the delete's message is handled,
        and users would see ERROR meanwhile.

        :param clean_task_state: clear the task, which Nova does only for a
            build
        """
        if clean_task_state and _is_delete_requested(instance):
            LOG.info(
                'The build of server %(server)s ended for its delete',
                {'server': instance.uuid},
            )
            return
        super()._set_instance_obj_error_state(instance, clean_task_state)


def _is_delete_requested(instance: Any) -> bool:
    """Read whether a server is to be deleted; keeps changes of the object."""
    try:
        # The build may have used the context of a user, who sees only the
        # servers of a project.
        context = nova_context.get_admin_context()
        current = objects.Instance.get_by_uuid(context, instance.uuid)
    except nova_exception.InstanceNotFound:
        return True
    return bool(current.task_state == task_states.DELETING)

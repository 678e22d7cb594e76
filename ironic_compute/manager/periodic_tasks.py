# SPDX-License-Identifier: Apache-2.0
"""Nova's periodic tasks: the disabled ones, the power sync, the reclaim.

Nova runs all periodic tasks of a worker in one thread, one after another.
"""

from typing import Any

from nova import exception as nova_exception
from nova.compute import manager, power_state, task_states, vm_states
from oslo_log import log as logging

from ironic_compute.driver.driver import IronicComputeDriver
from ironic_compute.paths.repeated_requests import waiting_at_most
from ironic_compute.recovery.in_progress import InProgress

LOG = logging.getLogger(__name__)

DISABLED_TASKS = frozenset(
    {
        # Nova's periodic update of all nodes is not needed, because
        # ``held_nodes`` writes each node that changed to Placement.
        'update_available_resource',
        # ``stray_instances`` frees each node in a thread of its own, because
        # a node that Ironic cannot free would delay all other tasks.
        '_cleanup_running_deleted_instances',
        # It repeats reboots that hang. The driver waits until a reboot has
        # ended, so it has no method for this task.
        '_poll_rebooting_instances',
        # Only hypervisors have the objects of these tasks.
        '_cleanup_incomplete_migrations',
        '_poll_unconfirmed_resizes',
        '_poll_volume_usage',
        '_reconcile_stale_share_access',
        '_run_image_cache_manager_pass',
        '_run_pending_deletes',
    }
)


_STOPPING_IDLE_S = 60.0
# The power states with which Nova leaves a server as it is, by VM state; else
# it stops the server.
_EXPECTED = {
    vm_states.ACTIVE: power_state.RUNNING,
    vm_states.STOPPED: power_state.SHUTDOWN,
}


class PeriodicTasks(manager.ComputeManager):
    """Overrides the power sync and the reclaim of Nova's ComputeManager."""

    driver: IronicComputeDriver
    in_progress: InProgress

    def periodic_tasks(
        self, context: Any, raise_on_error: bool = False
    ) -> float:
        """Run the due tasks; return the seconds until the next task.

        Nova 34 returns None while it stops, which its own looping call would
        log as a crash.
        """
        # A task that does not reach Neutron must not delay all others.
        with waiting_at_most(0.0):
            idle_s = super().periodic_tasks(context, raise_on_error)
        return _STOPPING_IDLE_S if idle_s is None else idle_s

    def _sync_power_states(self, context: Any) -> None:
        """Sync the power states of the servers that no thread works on.

        Nova would sync a server with a running deploy in one of a few
        threads, which waits for the server's lock: ten deploys would delay
        the power sync of all other servers.
        """
        with self.syncs_in_progress() as syncs:
            busy = self.in_progress.threads_by_server().keys() - syncs
            syncs.update(busy)
        try:
            super()._sync_power_states(context)
        finally:
            with self.syncs_in_progress() as syncs:
                syncs.difference_update(busy)

    def _sync_instance_power_state(
        self, context: Any, db_instance: Any, vm_power_state: Any, **more: Any
    ) -> None:
        """Sync a server's power state with a fresh read of Ironic.

        The state in a node list may be stale, and syncing with a stale state
        stopped healthy servers (bug 1815791). Nova would also switch off a
        machine that an operator services, rescues or deploys in Ironic.
        """
        is_own = True
        if not _is_as_expected(db_instance, vm_power_state):
            vm_power_state, is_own = self._read_power(db_instance)
        if is_own or db_instance.vm_state not in _EXPECTED:
            super()._sync_instance_power_state(
                context, db_instance, vm_power_state, **more
            )

    def _read_power(self, instance: Any) -> tuple[Any, bool]:
        """Read a server's power state, and whether it is the server's own."""
        try:
            return self.driver.read_power(instance)
        except nova_exception.InstanceNotFound:
            return power_state.NOSTATE, True

    def _deleted_old_enough(self, instance: Any, timeout: Any) -> bool:
        """Return whether to reclaim a server; not if it was to be restored.

        nova-api clears the time of the delete when it accepts a restore. Nova
        would destroy the server within a minute if that has failed, for
        instance because the machine could not be switched on.
        """
        is_old: bool = super()._deleted_old_enough(instance, timeout)
        return is_old and instance.deleted_at is not None

    def _delete_instance(self, context: Any, instance: Any, bdms: Any) -> None:
        """Delete a server; leave one that Nova reclaims to recovery.

        Nova lists the servers that it reclaims (``reclaim_instance_interval``)
        and deletes one after the other. That takes minutes for each machine,
        and a user may restore a server meanwhile.
        """
        is_restorable = instance.vm_state == vm_states.SOFT_DELETED
        if is_restorable and instance.task_state is None:
            _begin_delete(instance)
        else:
            super()._delete_instance(context, instance, bdms)


def _is_as_expected(server: Any, found: Any) -> bool:
    """Return whether Nova would change nothing for a power state."""
    wanted = _EXPECTED.get(server.vm_state, found)
    return bool(found == server.power_state == wanted)


def _begin_delete(instance: Any) -> None:
    """Have recovery delete a server, unless it was restored."""
    instance.task_state = task_states.DELETING
    try:
        instance.save(
            expected_vm_state=[vm_states.SOFT_DELETED],
            expected_task_state=[None],
        )
    except nova_exception.InstanceUpdateConflict as exc:
        LOG.info(
            'Server %(server)s is not reclaimed, because it was restored: '
            '%(error)s',
            {'server': instance.uuid, 'error': exc},
        )

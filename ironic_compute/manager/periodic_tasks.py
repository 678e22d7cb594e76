# SPDX-License-Identifier: Apache-2.0
"""Nova's periodic tasks: the disabled ones, and the power sync.

Nova runs all periodic tasks of a worker in one thread, one after another.
"""

from typing import Any

from nova.compute import manager

from ironic_compute.recovery.in_progress import InProgress

DISABLED_TASKS = frozenset(
    {
        # ``held_nodes`` reports only the nodes that changed.
        'update_available_resource',
        # ``stray_instances`` frees each node in a thread of its own, because
        # a node that Ironic cannot free would delay all other tasks.
        '_cleanup_running_deleted_instances',
        # Only hypervisors have the objects of these tasks.
        '_cleanup_incomplete_migrations',
        '_poll_unconfirmed_resizes',
        '_poll_volume_usage',
        '_reconcile_stale_share_access',
        '_run_image_cache_manager_pass',
        '_run_pending_deletes',
    }
)


class PeriodicTasks(manager.ComputeManager):
    """Overrides the power sync of Nova's ComputeManager."""

    in_progress: InProgress

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

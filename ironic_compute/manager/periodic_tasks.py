# SPDX-License-Identifier: Apache-2.0
"""Nova's periodic tasks on bare metal: which do not run, and one that differs.

Nova runs all of them in one thread, one after the other.
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
        # Work of hypervisors: nothing of it exists on bare metal.
        '_cleanup_incomplete_migrations',
        '_poll_unconfirmed_resizes',
        '_poll_volume_usage',
        '_reconcile_stale_share_access',
        '_run_image_cache_manager_pass',
        '_run_pending_deletes',
    }
)


class PeriodicTasks(manager.ComputeManager):
    """Goes before Nova's manager among the bases of ours."""

    in_progress: InProgress

    def _sync_power_states(self, context: Any) -> None:
        """Look at the power of the servers that nobody is at work on.

        Nova would wait for whoever is, in one of a few threads for each: ten
        deploys would keep all other servers from being looked at.
        """
        with self.syncs_in_progress() as syncs:
            busy = self.in_progress.threads_by_server().keys() - syncs
            syncs.update(busy)
        try:
            super()._sync_power_states(context)
        finally:
            with self.syncs_in_progress() as syncs:
                syncs.difference_update(busy)

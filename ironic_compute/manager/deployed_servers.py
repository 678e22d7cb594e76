# SPDX-License-Identifier: Apache-2.0
"""Servers that are deployed become ACTIVE, also while Ironic is away.

When the deploy of a build, rebuild or unshelve has ended, Nova reads the power
state, and fails the request if that fails (``_update_instance_after_spawn``).
The server would be in ERROR, or shelved, while its node is deployed with it,
and no later unshelve could succeed before recovery has freed that node.

Importing this module imports Nova's manager; see ``compute_manager``.
"""

from typing import Any

from nova import exception as nova_exception
from nova.compute import manager as nova_manager
from nova.compute import power_state, task_states
from oslo_log import log as logging

LOG = logging.getLogger(__name__)

_DEPLOYED = frozenset({task_states.SPAWNING, task_states.REBUILD_SPAWNING})


class KeepsDeployedServers(nova_manager.ComputeManager):
    """Nova's ComputeManager, whose deploys do not fail after their end."""

    def _get_power_state(self, instance: Any) -> Any:
        """Read the power state of a server; that of a deployed one may wait.

        With these task states Nova reads it after a deploy only. Its periodic
        task writes the right state when Ironic answers.

        :returns: ``NOSTATE`` if Ironic does not answer after a deploy
        :raises nova.exception.VirtDriverNotReady: Ironic does not answer
        """
        try:
            return super()._get_power_state(instance)
        except nova_exception.VirtDriverNotReady as exc:
            if instance.task_state not in _DEPLOYED:
                raise
            LOG.warning(
                'Server %(server)s is deployed, and its power state is not '
                'known yet: %(error)s',
                {'server': instance.uuid, 'error': exc},
            )
            return power_state.NOSTATE

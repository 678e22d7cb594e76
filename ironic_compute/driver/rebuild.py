# SPDX-License-Identifier: Apache-2.0
"""Rebuild of a server: deploy its node again, with any image.

Servers with a root volume cannot be rebuilt. Nova's argument
``reimage_boot_volume`` is ignored, because since API version 2.93 Nova sets it
for servers without a root volume too (bug 2127017).
"""

from typing import Any

from nova.compute import task_states
from nova.compute import utils as compute_utils

from ironic_compute import errors
from ironic_compute.driver.build_request import BuildRequest
from ironic_compute.driver.deploy import Deploy
from ironic_compute.driver.node_waiter import NodeWaiter


class Rebuild:
    """Rebuilds servers; any thread may call."""

    def __init__(self, waiter: NodeWaiter, deploy: Deploy) -> None:
        self._waiter = waiter
        self._deploy = deploy

    def rebuild(
        self, request: BuildRequest, bdms: Any, preserve_ephemeral: bool
    ) -> None:
        """Rebuild a server; block until its node is active again.

        :param bdms: the server's block device mappings
        :param preserve_ephemeral: keep the ephemeral partition
        :raises errors.IronicRefused: the root disk is a volume
        :raises errors.DeployFailed: Ironic could not deploy the node
        """
        instance = request.instance
        if compute_utils.is_volume_backed_instance(
            request.context, instance, bdms
        ):
            raise errors.IronicRefused(
                f'The root disk of server {instance.uuid} is a volume, which '
                f'cannot be written anew on bare metal; create a new server '
                f'instead'
            )
        node = self._waiter.read_node_of(instance).uuid
        self._deploy.write_instance_info(request, preserve_ephemeral)
        fresh = self._deploy.request_deploy(
            request, 'rebuild', lambda: _save_rebuild_spawning(instance)
        )
        self._deploy.wait_until_active(instance, node, fresh)


def _save_rebuild_spawning(instance: Any) -> None:
    """Save the task state REBUILD_SPAWNING: Ironic may deploy from now on.

    The recovery of an interrupted rebuild reads it after a crash.
    """
    instance.task_state = task_states.REBUILD_SPAWNING
    instance.save(expected_task_state=[task_states.REBUILDING])

# SPDX-License-Identifier: Apache-2.0
"""Rebuild of a server: deploy its node again, with any image.

Servers with a root volume cannot be rebuilt. Nova's argument
``reimage_boot_volume`` is ignored, because since API version 2.93 Nova sets it
for servers without a root volume too (bug 2127017). If Ironic refuses a
rebuild before it touches the disk, ``instance_info`` is restored, and
``manager.refused_rebuilds`` restores Nova's record of the server.
"""

from collections.abc import Mapping
from typing import Any

from nova.compute import task_states
from nova.compute import utils as compute_utils
from oslo_log import log as logging

from ironic_compute import errors
from ironic_compute.driver import instance_info
from ironic_compute.driver.build_request import BuildRequest
from ironic_compute.driver.deploy import Deploy
from ironic_compute.driver.deploy_request import CHANGED_AT, REBUILD
from ironic_compute.driver.node_waiter import NodeWaiter
from ironic_compute.nodes import records
from resource_tracker.node import NodeFacts, NodeId

LOG = logging.getLogger(__name__)

# Fields that change when Ironic begins or ends a deploy.
_DEPLOY_FIELDS = ('instance_uuid', 'provision_state', CHANGED_AT)
# After any other error of the request Ironic may still begin the deploy.
_REFUSALS = (errors.IronicRefused, errors.DeployInvalid, errors.Untouched)


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
        :raises errors.RebuildRefused: the disk is as it was
        :raises errors.DeployFailed: Ironic could not deploy the node
        """
        instance = request.instance
        if compute_utils.is_volume_backed_instance(
            request.context, instance, bdms
        ):
            raise errors.RebuildRefused(
                f'The root disk of server {instance.uuid} is a volume, which '
                f'cannot be written anew on bare metal; create a new server '
                f'instead'
            )
        node = self._waiter.read_node_of(instance).uuid
        fresh = self._request(request, node, preserve_ephemeral)
        self._deploy.wait_until_active(instance, node, fresh)
        # Nova saves it together with the end of the task.
        records.clear_before_rebuild(instance)

    def _request(
        self, request: BuildRequest, node: NodeId, preserve_ephemeral: bool
    ) -> NodeFacts | None:
        """Prepare the node and request its deploy.

        :raises errors.RebuildRefused: Ironic has not begun the deploy and
            will not
        """
        before = self._waiter.retry(lambda: self._read(node))
        is_requested = False

        def save() -> None:
            nonlocal is_requested
            _save_rebuild_spawning(request.instance, before[CHANGED_AT])
            is_requested = True

        try:
            self._deploy.write_instance_info(request, preserve_ephemeral)
            self._deploy.validate_node(node)
            return self._deploy.request_deploy(
                request, REBUILD, save, before[CHANGED_AT]
            )
        except errors.IronicComputeError as exc:
            if is_requested and not isinstance(exc, _REFUSALS):
                raise
            if not self._restore_node(node, before):
                raise
            raise errors.RebuildRefused(str(exc)) from exc

    def _read(self, node: NodeId) -> Mapping[str, Any]:
        fields = [*_DEPLOY_FIELDS, 'instance_info']
        return self._waiter.client.read_fields(node, fields)

    def _restore_node(self, node: NodeId, before: Mapping[str, Any]) -> bool:
        """Restore ``instance_info`` of a node that Ironic does not deploy.

        :param before: the node before the rebuild
        :returns: False if Ironic has begun a deploy, or did not answer
        """
        try:
            now = self._waiter.retry(lambda: self._read(node))
            if any(now[name] != before[name] for name in _DEPLOY_FIELDS):
                return False
            patches = instance_info.restoring_patches(
                before['instance_info'], now['instance_info']
            )
            if patches:
                self._waiter.retry(
                    lambda: self._waiter.client.patch_node(node, patches)
                )
        except errors.IronicComputeError as exc:
            LOG.debug('Could not restore node: %(exc)s', {'exc': exc})
            return False
        return True


def _save_rebuild_spawning(instance: Any, changed_at: str | None) -> None:
    """Save the task state REBUILD_SPAWNING: Ironic may deploy from now on.

    The recovery of an interrupted rebuild reads both after a crash.

    :param changed_at: the node's ``provision_updated_at`` before the rebuild
    """
    records.note_before_rebuild(instance, changed_at)
    instance.task_state = task_states.REBUILD_SPAWNING
    instance.save(expected_task_state=[task_states.REBUILDING])

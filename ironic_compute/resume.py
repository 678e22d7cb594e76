# SPDX-License-Identifier: Apache-2.0
"""What was half done when the last worker of this host ended goes on.

At the start of a worker each instance of its host is looked at once, behind
the RPC server, under the same lock as Nova's own handlers. Nova's own start
puts every server in BUILD or REBUILD to ERROR, although Ironic goes on with
the deploy; here a deploy that Ironic has taken over is waited for, and only
one that never reached Ironic fails, with its node and allocation free again.
One instance that cannot be brought in order never stops the others.
"""

import threading
from collections.abc import Callable
from typing import Any, Protocol

from nova import context as nova_context
from nova import exception as nova_exception
from nova import objects
from nova import utils as nova_utils
from nova.compute import power_state, task_states, vm_states
from nova.compute import utils as compute_utils
from oslo_log import log as logging
from oslo_utils import timeutils

from ironic_compute import errors
from ironic_compute.ironic import IronicClient
from ironic_compute.states import ProvisionState
from resource_tracker.node import NodeFacts

LOG = logging.getLogger(__name__)

_ATTRIBUTES = ['info_cache', 'metadata', 'system_metadata', 'flavor']

_REBUILDING = (
    task_states.REBUILDING,
    task_states.REBUILD_BLOCK_DEVICE_MAPPING,
    task_states.REBUILD_SPAWNING,
)


class Deploys(Protocol):
    """What of the driver is needed to go on with a deploy."""

    def wait_for_deploy(self, instance: Any, node: str) -> None:
        """Block until the node is active; raise if the deploy failed."""


class Resume:
    """Look at each instance of a host once.

    :param finish: Nova's own handling of one instance at start, for all but
        builds and rebuilds
    :param give_up: frees networks and allocation of a failed build
    """

    def __init__(
        self,
        host: str,
        client: IronicClient,
        deploys: Deploys,
        finish: Callable[[Any, Any], None],
        give_up: Callable[[Any, Any], None],
    ) -> None:
        self._host = host
        self._client = client
        self._deploys = deploys
        self._finish = finish
        self._give_up = give_up

    def start(self) -> None:
        """Do it behind the RPC server."""
        threading.Thread(target=self.run, name='resume', daemon=True).start()

    def run(self) -> None:
        """Look at all instances, the waiting ones each in its own thread."""
        context = nova_context.get_admin_context()
        instances = objects.InstanceList.get_by_host(
            context, self._host, expected_attrs=_ATTRIBUTES
        )
        for instance in instances:
            if instance.task_state is None and _is_settled(instance):
                continue
            threading.Thread(
                target=self._one,
                args=(context, instance),
                name=f'resume-{instance.uuid}',
                daemon=True,
            ).start()

    def _one(self, context: Any, instance: Any) -> None:
        @nova_utils.synchronized(instance.uuid)  # type: ignore[untyped-decorator]
        def locked() -> None:
            instance.refresh()
            if instance.host != self._host:
                return
            if _is_building(instance):
                self._build(context, instance)
            else:
                self._finish(context, instance)

        try:
            locked()
        except nova_exception.InstanceNotFound:
            LOG.debug('Server %(server)s is gone', {'server': instance.uuid})
        except Exception:
            LOG.exception(
                'Could not take up server %(server)s where it was left',
                {'server': instance.uuid},
            )

    def _build(self, context: Any, instance: Any) -> None:
        """End an interrupted build or rebuild as Ironic says."""
        facts = self._client.node_of_instance(instance.uuid)
        if facts is None or not _reached_ironic(facts):
            self._fail(
                context,
                instance,
                f'The build of server {instance.uuid} was interrupted before '
                f'Ironic had taken it over; delete the server and create it '
                f'again',
            )
            return
        try:
            self._deploys.wait_for_deploy(instance, facts.uuid)
        except errors.IronicComputeError as exc:
            self._fail(context, instance, str(exc))
            return
        self._succeed(instance)

    def _succeed(self, instance: Any) -> None:
        instance.vm_state = vm_states.ACTIVE
        instance.task_state = None
        instance.power_state = power_state.RUNNING
        if not instance.launched_at:
            instance.launched_at = timeutils.utcnow()
        instance.save()
        LOG.info(
            'Finished the interrupted build of server %(server)s on node '
            '%(node)s',
            {'server': instance.uuid, 'node': instance.node},
        )

    def _fail(self, context: Any, instance: Any, sentence: str) -> None:
        fault = nova_exception.InstanceDeployFailure(sentence)
        compute_utils.add_instance_fault_from_exc(context, instance, fault)
        rebuilding = instance.task_state in _REBUILDING
        instance.vm_state = vm_states.ERROR
        instance.task_state = None
        instance.save()
        if not rebuilding:
            self._give_up(context, instance)
        LOG.warning('%(sentence)s', {'sentence': sentence})


def _is_settled(instance: Any) -> bool:
    return instance.vm_state not in (vm_states.BUILDING, vm_states.DELETED)


def _is_building(instance: Any) -> bool:
    return (
        instance.vm_state == vm_states.BUILDING
        or instance.task_state in _REBUILDING
    ) and instance.task_state != task_states.DELETING


def _reached_ironic(facts: NodeFacts) -> bool:
    """Say whether Ironic itself will bring this node to an end."""
    return ProvisionState.parse(facts.provision_state) in _TAKEN_OVER


_TAKEN_OVER = frozenset(
    {
        ProvisionState.DEPLOYING,
        ProvisionState.DEPLOYWAIT,
        ProvisionState.DEPLOYDONE,
        ProvisionState.ACTIVE,
        ProvisionState.REBUILD,
    }
)

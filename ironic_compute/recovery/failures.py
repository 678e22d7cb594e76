# SPDX-License-Identifier: Apache-2.0
"""Ends failed and interrupted tasks: instance fault, ERROR, freed resources.

The other modules of ``recovery`` call it when a task cannot be continued. The
server's fault has the reason, for the user. A failed build frees its node,
ports and allocation. A server whose unshelve failed is shelved as before,
because its root disk is a volume: no data is lost and the user can unshelve it
again.
"""

from typing import Any, Protocol

import attrs
from nova import exception as nova_exception
from nova.compute import utils as compute_utils
from nova.compute import vm_states
from oslo_log import log as logging

from ironic_compute import errors

LOG = logging.getLogger(__name__)


def clear_task(instance: Any) -> None:
    """Save an Instance without its task state.

    :raises nova.exception.UnexpectedTaskStateError: the server has got another
        task meanwhile, such as a delete; that task is kept
    """
    task_state = instance.task_state
    instance.task_state = None
    instance.save(expected_task_state=[task_state])


class FreeResources(Protocol):
    """Frees the node and the allocation of a server."""

    def __call__(self, context: Any, instance: Any) -> None:
        """Free a server's node and allocation; set ``instance.host`` to None.

        The Instance is not saved.
        """


@attrs.define(eq=False, repr=False, slots=False)
class TaskFailures:
    """Ends tasks of servers that cannot be continued.

    Each method that saves the Instance raises
    ``nova.exception.UnexpectedTaskStateError`` if the server has got another
    task meanwhile, and changes nothing then.

    :param free_build: frees the node, ports and allocation of a build
    :param free_node: frees the node and allocation of a server, which keeps
        its ports and volumes
    """

    _free_build: FreeResources
    _free_node: FreeResources

    @staticmethod
    def log_new_task(instance: Any) -> None:
        """Log that a server is left alone because it has got another task."""
        LOG.info(
            'Did not continue the interrupted task of server %(server)s: the '
            'server has another task now',
            {'server': instance.uuid},
        )

    def fail_task(self, context: Any, instance: Any, sentence: str) -> None:
        """Put a server to ERROR, with a fault; it keeps its node.

        :param sentence: the reason, for the user
        """
        fault = nova_exception.InstanceDeployFailure(sentence)
        compute_utils.add_instance_fault_from_exc(context, instance, fault)
        instance.vm_state = vm_states.ERROR
        clear_task(instance)
        LOG.warning('%(sentence)s', {'sentence': sentence})

    def fail_build(self, context: Any, instance: Any, sentence: str) -> None:
        """Free a build's resources, then put its server to ERROR.

        The Instance is saved last: if the worker ends before that, the next
        worker finds the build unfinished and ends it again. A server that
        Ironic cannot remove from its node keeps the node until it is deleted.
        """
        try:
            self._free_build(context, instance)
        except Exception as exc:
            if not errors.is_node_kept(exc):
                raise
            sentence = f'{sentence}; and it is still on its node: {exc}'
        self.fail_task(context, instance, sentence)

    def leave_shelved(self, context: Any, instance: Any, why: str) -> None:
        """Free a server's node, then save the server as SHELVED_OFFLOADED.

        :param why: the reason, for the log
        """
        self._free_node(context, instance)
        instance.vm_state = vm_states.SHELVED_OFFLOADED
        clear_task(instance)
        LOG.warning(
            'Server %(server)s is off its node and shelved: %(why)s',
            {'server': instance.uuid, 'why': why},
        )

    def shelve_again(self, context: Any, instance: Any, why: str) -> None:
        """Save a server as shelved; as ERROR if Ironic cannot free its node.

        In ERROR it keeps its node and its volumes, because the machine may
        still write to them.

        :param why: the reason, for the log or the user
        """
        try:
            self.leave_shelved(context, instance, why)
        except Exception as exc:
            if not errors.is_node_kept(exc):
                raise
            self.fail_task(
                context,
                instance,
                f'Server {instance.uuid} cannot be shelved, because it is '
                f'still on its node: {exc}; {why}',
            )

    def end_lost_unshelve(self, context: Any, instance: Any) -> None:
        """End an unshelve whose request was lost; the server has no host."""
        self.leave_shelved(
            context,
            instance,
            'the request to unshelve it was lost with the daemon that had '
            'received it',
        )

    @staticmethod
    def end_unallocated_unshelve(instance: Any) -> None:
        """End an unshelve without an allocation; the server has no host.

        ``stray_instances`` frees the node if Ironic still has the server on
        one.
        """
        clear_task(instance)
        LOG.warning(
            'Server %(server)s is shelved as before: its unshelving ended '
            'without a node',
            {'server': instance.uuid},
        )

    def end_lost_build(self, context: Any, instance: Any) -> None:
        """End a build whose request was lost; the server has no host.

        The allocation is deleted last, because ``lost_builds`` finds the
        server by its allocation.
        """
        if instance.vm_state == vm_states.BUILDING:
            self.fail_task(
                context,
                instance,
                f'The request to build server {instance.uuid} was lost with '
                f'the daemon that had received it; delete the server and '
                f'create it again',
            )
        self._free_build(context, instance)
        if instance.vm_state == vm_states.DELETED:
            instance.destroy()

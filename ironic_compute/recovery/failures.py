# SPDX-License-Identifier: Apache-2.0
"""How work that cannot go on is ended, for the user to see.

One sentence in the server's fault; a build gives back its node, its ports and
its allocation. A server whose unshelving failed is shelved as before: its disk
is a volume, so nothing of it is lost and it can be unshelved again.
"""

from typing import Any, Protocol

from nova import exception as nova_exception
from nova.compute import utils as compute_utils
from nova.compute import vm_states
from oslo_log import log as logging

LOG = logging.getLogger(__name__)


def clear_task(instance: Any) -> None:
    """Save a row without its task.

    :raises nova.exception.UnexpectedTaskStateError: it has another one than
        was seen. A delete that was asked for meanwhile stays asked for.
    """
    seen = instance.task_state
    instance.task_state = None
    instance.save(expected_task_state=[seen])


class FreeResources(Protocol):
    """What frees all that an interrupted build had taken."""

    def __call__(self, context: Any, instance: Any) -> None:
        """Free ports, node and allocation; the row is not saved.

        The row's host is None afterwards.
        """


class TaskFailures:
    """Put servers to ERROR, with the reason.

    Each method raises ``nova.exception.UnexpectedTaskStateError`` if the
    server has got another task meanwhile, and leaves the row as it is.

    :param give_up: frees what a build had taken
    :param take_off: gets a server off its node that keeps its ports and
        volumes
    """

    def __init__(
        self, give_up: FreeResources, take_off: FreeResources
    ) -> None:
        self._give_up = give_up
        self._take_off = take_off

    def fail_task(self, context: Any, instance: Any, sentence: str) -> None:
        """End a task of a server that keeps its node."""
        fault = nova_exception.InstanceDeployFailure(sentence)
        compute_utils.add_instance_fault_from_exc(context, instance, fault)
        instance.vm_state = vm_states.ERROR
        clear_task(instance)
        LOG.warning('%(sentence)s', {'sentence': sentence})

    def fail_build(self, context: Any, instance: Any, sentence: str) -> None:
        """End a build.

        The row is the last to change, at once: until then the next round
        finds the build as unfinished as this one did.
        """
        self._give_up(context, instance)
        self.fail_task(context, instance, sentence)

    def leave_shelved(self, context: Any, instance: Any, why: str) -> None:
        """Leave a server shelved, off its node; its row is last to change."""
        self._take_off(context, instance)
        instance.vm_state = vm_states.SHELVED_OFFLOADED
        clear_task(instance)
        LOG.warning(
            'Server %(server)s is off its node and shelved: %(why)s',
            {'server': instance.uuid, 'why': why},
        )

    def end_lost_unshelve(self, context: Any, instance: Any) -> None:
        """End the unshelving of a server that no host has."""
        self.leave_shelved(
            context,
            instance,
            'the request to unshelve it was lost with the daemon that had '
            'received it',
        )

    def end_lost_build(self, context: Any, instance: Any) -> None:
        """End a build that no host has.

        Its allocation leads to it, so that is the last to go.
        """
        if instance.vm_state == vm_states.BUILDING:
            self.fail_task(
                context,
                instance,
                f'The request to build server {instance.uuid} was lost with '
                f'the daemon that had received it; delete the server and '
                f'create it again',
            )
        self._give_up(context, instance)
        if instance.vm_state == vm_states.DELETED:
            instance.destroy()

# SPDX-License-Identifier: Apache-2.0
"""Rebuilds and unshelves whose message RabbitMQ delivers again.

RabbitMQ delivers the message again if its worker ended before Ironic had taken
the deploy over. Nova has saved another task state by then, with which the
message would count as stale, and recovery could only end the request, because
the server's record lacks what the message has. Therefore the record is put
back to the state in which Nova accepts the message.

An older rebuild may be delivered again while a newer one waits. Its image
would be deployed although the record has the newer one, so it is dropped. An
older unshelve names a node that is not allocated to the server any more, so it
is dropped, too.

Importing this module imports Nova's manager; see ``compute_manager``.
"""

from collections.abc import Callable
from typing import Any

from nova.compute import task_states
from oslo_log import log as logging

from hashring.clock import Clock
from hashring.ring import Host
from ironic_compute import delivery, errors
from ironic_compute.manager import stale_messages
from ironic_compute.manager.build_messages import BuildMessages
from ironic_compute.manager.failed_unshelves import is_shelved
from ironic_compute.manager.forwarding import is_forwarded
from ironic_compute.manager.retries import after, retried, while_kept
from ironic_compute.manager.unsupported import rebuild_request
from ironic_compute.nodes import records
from ironic_compute.recovery.decisions import is_rebuild_started
from ironic_compute.recovery.interrupted_deploys import (
    find_started_deploy,
    has_node_changed,
    restore_key,
)
from ironic_compute.worker.components import Components
from resource_tracker.node import NodeId

LOG = logging.getLogger(__name__)


class RepeatedDeploys(BuildMessages):
    """Nova's ComputeManager, whose interrupted rebuilds begin anew."""

    clock: Clock
    host: Host
    driver: Any
    _components: Components

    def must_undo_unshelve(self, instance: Any) -> bool:
        """Return whether an earlier worker has begun an unshelve here.

        One without a host may be at work where its message was sent on to, so
        this one is sent there, too. Blocks for one RPC, but not for a message
        that comes first.
        """
        return (
            _is_redelivered()
            and stale_messages.refresh(instance, self.clock)
            and instance.host == self.host
            and self._is_begun_unshelve(instance)
        )

    def _is_begun_unshelve(self, instance: Any) -> bool:
        is_begun = instance.task_state == task_states.SPAWNING
        return is_begun and is_shelved(instance, self.host)

    def undo_interrupted_unshelve(self, context: Any, instance: Any) -> bool:
        """Undo an unshelve that an earlier worker of this host has begun.

        The server keeps its allocation; its volumes keep their attachments.

        :returns: False if Ironic has taken the deploy over
        """
        if find_started_deploy(self._components.client, instance) is not None:
            return False
        self.driver.free_node_of(instance)
        restore_key(instance)
        self._nil_out_instance_obj_host_and_node(instance)
        instance.task_state = task_states.UNSHELVING
        instance.save(expected_task_state=[task_states.SPAWNING])
        return True

    def is_rebuild_begun(self, instance: Any) -> bool:
        """Return whether Ironic has begun, or ended, a rebuild."""
        client = self._components.client
        facts = client.read_node_of_instance(instance.uuid)
        return is_rebuild_started(
            facts,
            instance.task_state,
            has_changed=has_node_changed(client, facts, instance),
        )

    def rebuild_instance(
        self, context: Any, instance: Any, *args: Any, **kwargs: Any
    ) -> Any:
        """Rebuild a server, unless a newer rebuild was requested.

        Recovery leaves the server alone from here on: what comes before
        Nova's handler waits for Nova, and recovery would end the rebuild
        between two steps.
        """
        image = rebuild_request(args, kwargs)['image_ref']
        with self.in_progress.with_message(instance.uuid):
            self._prepare(context, instance, self._restart_rebuild, image)
            if image and instance.image_ref != image:
                return stale_messages.drop('rebuild_instance', instance)
            self._wait_for_ironic(context, instance)
            return super().rebuild_instance(context, instance, *args, **kwargs)

    @retried(
        'The rebuild of server %(server)s begins when Ironic answers: '
        '%(error)s',
        after(errors.IronicUnavailable),
    )
    def _wait_for_ironic(self, context: Any, instance: Any) -> None:
        """Read the node of a server; block until Ironic answers.

        Nova would put a server to ERROR whose disk is as it was.
        """
        try:
            self._components.client.read_node_of_instance(instance.uuid)
        except errors.IronicComputeError as exc:
            # Any other error is an answer, and left to the driver.
            if isinstance(exc, errors.IronicUnavailable):
                raise

    def unshelve_instance(
        self,
        context: Any,
        instance: Any,
        image: Any,
        filter_properties: Any,
        node: Any,
        *args: Any,
    ) -> Any:
        """Unshelve a server, or free what was allocated to it too late.

        Its delete, or the end of its unshelve as a lost one, has come before
        nova-scheduler's allocation.
        """
        self._prepare(
            context,
            instance,
            self._restart_unshelve,
            node,
            is_sent_on=is_forwarded(filter_properties),
        )
        has_lost_node = self._has_lost_node(context, instance, node)
        # Read after Placement has answered: the user may have unshelved the
        # server again meanwhile, and the allocation may be the new one.
        is_there = stale_messages.refresh(instance, self.clock)
        is_late = not is_there or _is_ended(instance, self.host)
        if is_late and not has_lost_node:
            self.reportclient.delete_allocation_for_instance(
                context, instance.uuid, force=True
            )
        if is_late or has_lost_node:
            return stale_messages.drop('unshelve_instance', instance)
        return super().unshelve_instance(
            context, instance, image, filter_properties, node, *args
        )

    @retried(
        'The message to unshelve server %(server)s waits until its '
        'allocation is known: %(error)s',
        while_kept,
    )
    def _has_lost_node(
        self, context: Any, instance: Any, node: str | None
    ) -> bool:
        """Return whether the node of a message is not allocated any more.

        A newer unshelve has allocated another one, or waits for its own, or
        another server has the node. Blocks until Placement answers.
        """
        if node is None:
            return False
        allocated = self.list_allocated_nodes(context, instance.uuid)
        return NodeId(node) not in allocated

    def _prepare(
        self,
        context: Any,
        instance: Any,
        restart: Callable[[Any, Any, Any], None],
        wanted: Any,
        *,
        is_sent_on: bool = False,
    ) -> None:
        """Put a server back whose request an earlier worker has begun.

        Recovery leaves the server alone meanwhile: while a service is away,
        the record stays as it is, and it would end the request.

        :param wanted: the image or the node that the message names
        :param is_sent_on: whether another host has forwarded the message,
            which may have been delivered to that one before
        """
        may_repeat = is_sent_on or _is_redelivered()
        with self.in_progress.with_message(instance.uuid):
            self._put_back(context, instance, restart, wanted, may_repeat)

    @retried(
        'The request for server %(server)s cannot be begun anew yet: '
        '%(error)s',
        while_kept,
    )
    def _put_back(
        self,
        context: Any,
        instance: Any,
        restart: Callable[[Any, Any, Any], None],
        wanted: Any,
        may_repeat: bool,
    ) -> None:
        """Put the server back if the message may have been delivered before.

        Blocks until that is found out, and while another thread works on the
        server: most often it serves another message that RabbitMQ delivered
        again at the same time, an acknowledged one whose acknowledgement was
        lost. Without the wait this message would count as stale.
        """
        if stale_messages.refresh(instance, self.clock) and may_repeat:
            with self.in_progress.alone(instance.uuid):
                if stale_messages.refresh(instance, self.clock):
                    restart(context, instance, wanted)

    def _restart_rebuild(
        self, context: Any, instance: Any, image: str
    ) -> None:
        is_interrupted = (
            instance.task_state == task_states.REBUILD_SPAWNING
            and instance.host == self.host
            and instance.image_ref == image
            # Without the note, stock nova-compute has begun it.
            and records.before_rebuild(instance) is not None
        )
        if is_interrupted and not self.is_rebuild_begun(instance):
            _log_restart('rebuild', instance)
            records.clear_before_rebuild(instance)
            instance.task_state = task_states.REBUILDING
            instance.save(expected_task_state=[task_states.REBUILD_SPAWNING])

    def _restart_unshelve(
        self, context: Any, instance: Any, node: str | None
    ) -> None:
        is_interrupted = (
            self._is_begun_unshelve(instance)
            # Without it, another node may be allocated to the server.
            and NodeId(node or '')
            in self.list_allocated_nodes(context, instance.uuid)
        )
        if is_interrupted and self.undo_interrupted_unshelve(
            context, instance
        ):
            _log_restart('unshelve', instance)


def _is_ended(instance: Any, host: Host) -> bool:
    """Return whether a server is shelved, and nobody unshelves it."""
    return instance.task_state is None and is_shelved(instance, host)


def _is_redelivered() -> bool:
    """Return whether RabbitMQ had sent this thread's message before."""
    message = delivery.current()
    return message is not None and message.is_redelivered


def _log_restart(name: str, instance: Any) -> None:
    LOG.info(
        'Beginning the %(name)s of server %(server)s anew, because its worker '
        'has ended before Ironic had taken it over',
        {'name': name, 'server': instance.uuid},
    )

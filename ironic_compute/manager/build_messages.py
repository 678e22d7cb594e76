# SPDX-License-Identifier: Apache-2.0
"""Messages of builds: each build is done once, though its message may repeat.

RabbitMQ delivers the message of a build again if its worker ended before the
build was durable (``ironic_compute.delivery``). What is left of the first
build is then undone, and the server is built on the same node. If the server
has lost its allocation meanwhile, the scheduler chooses another node. If
another node is allocated to it by now, the build is sent to that node's host.
All this is undone before the build is sent anywhere else: another host would
take it for a build that this host is at. A build that has released its node
has no host, so whoever holds its allocated node undoes it.

Importing this module imports Nova's manager; see ``compute_manager``.
"""

import contextlib
import inspect
from collections.abc import Mapping
from typing import Any

from cinderclient.exceptions import ClientException as CinderError
from nova import exception as nova_exception
from nova.compute import build_results, task_states, vm_states
from nova.compute import manager as nova_manager
from oslo_log import log as logging

from hashring.clock import Clock
from ironic_compute import delivery
from ironic_compute.manager import (
    late_saves,
    request_context,
    stale_messages,
)
from ironic_compute.manager.forwarding import is_forwarded
from ironic_compute.manager.retries import (
    has_no_answer,
    retried,
    retried_in_cinder,
    while_kept,
)
from resource_tracker.node import NodeId

LOG = logging.getLogger(__name__)

BUILD = inspect.signature(
    nova_manager.ComputeManager._do_build_and_run_instance
)
_retried_while_kept = retried(
    'The build of server %(server)s cannot begin yet: %(error)s', while_kept
)
# The task states of a build that has claimed a node.
_BEGUN = frozenset(
    {
        task_states.NETWORKING,
        task_states.BLOCK_DEVICE_MAPPING,
        task_states.SPAWNING,
    }
)


def is_unbuilt(vm_state: str, host: str | None) -> bool:
    """Return whether no host has started the build of a server yet.

    Nova itself would build an ACTIVE server again and destroy it.
    """
    return vm_state == vm_states.BUILDING and host is None


def _is_given_up(instance: Any) -> bool:
    """Return whether a build has ended in ERROR before it had a host."""
    is_failed = instance.vm_state == vm_states.ERROR
    return is_failed and instance.host is None and instance.task_state is None


class BuildMessages(stale_messages.DropsStaleMessages):
    """Nova's ComputeManager, with handlers that do each build once."""

    clock: Clock
    compute_task_api: Any

    def undo_interrupted_build(
        self, context: Any, instance: Any, requested_networks: Any
    ) -> bool:
        """Undo what is left of a build; False if Ironic has taken it over."""
        raise NotImplementedError

    def must_undo_unshelve(self, instance: Any) -> bool:
        """Return whether an earlier worker has begun an unshelve here."""
        raise NotImplementedError

    def forward_late(
        self, context: Any, instance: Any, request: Mapping[str, Any]
    ) -> bool:
        """Forward a build whose node was pushed after its message came.

        Otherwise the node is kept here until the build claims it.
        """
        raise NotImplementedError

    def forward_to_node(
        self,
        context: Any,
        instance: Any,
        request: Mapping[str, Any],
        node: NodeId,
    ) -> None:
        """Send a build to the host that holds another node."""
        raise NotImplementedError

    def list_allocated_nodes(self, context: Any, server: str) -> list[NodeId]:
        """Return the nodes on which a server has an allocation."""
        raise NotImplementedError

    def build_and_run_instance(
        self, context: Any, instance: Any, *args: Any, **kwargs: Any
    ) -> Any:
        """Build a server, unless a host has started its build already.

        Waits while recovery works on the server. The build would else have
        Nova's lock of the server while it waits, and recovery, which deletes
        a server that has no host, would wait for that lock.
        """
        with self.in_progress.shared(instance.uuid):
            return self._begin_build(context, instance, *args, **kwargs)

    def _begin_build(
        self, context: Any, instance: Any, *args: Any, **kwargs: Any
    ) -> Any:
        """Begin a build in another thread, if it is due.

        A build that an earlier worker of this host has started is built anew
        if RabbitMQ has delivered its message again.
        """
        message = delivery.current()
        is_there = stale_messages.refresh(instance, self.clock)
        if not is_there or _is_given_up(instance):
            # A server that was deleted while it was scheduled, or whose build
            # counted as lost, has got its allocation after that.
            self.reportclient.delete_allocation_for_instance(
                context, instance.uuid, force=True
            )
            return stale_messages.drop('build_and_run_instance', instance)
        is_due = is_unbuilt(instance.vm_state, instance.host) or (
            message is not None and self._is_interrupted(instance)
        )
        if not is_due:
            return stale_messages.drop('build_and_run_instance', instance)
        if message is not None:
            # The build runs in another thread after this method returned.
            message.keep()
            context.delivery = message
        # Its thread may wait for its turn for longer than that after which a
        # build counts as lost.
        context.waits = waits = contextlib.ExitStack()
        waits.enter_context(self.in_progress.with_message(instance.uuid))
        try:
            return super().build_and_run_instance(
                context, instance, *args, **kwargs
            )
        except BaseException:
            waits.close()
            raise

    def must_undo_build(
        self, instance: Any, filter_properties: Mapping[str, Any] | None
    ) -> bool:
        """Return whether an earlier worker has begun a build here.

        A build that has released its node may be one of the node's present
        holder, which is still at it, so its message is sent there. Blocks for
        one RPC, but not for a build that comes for the first time.
        """
        is_kept = delivery.current() is not None
        if not is_kept or not _may_repeat(filter_properties):
            return False
        is_there = stale_messages.refresh(instance, self.clock)
        is_here = instance.host == self.host
        return is_there and is_here and self._is_interrupted(instance)

    def _is_interrupted(self, instance: Any) -> bool:
        """Return whether a worker has started a build here and has ended.

        A delete that was requested since is served by its own message.
        """
        building = instance.vm_state == vm_states.BUILDING
        is_deleting = instance.task_state == task_states.DELETING
        is_here = instance.host == self.host or _is_released(instance)
        return building and is_here and not is_deleting

    def _do_build_and_run_instance(
        self, context: Any, instance: Any, *args: Any, **kwargs: Any
    ) -> Any:
        """Build in a thread of Nova's pool, after the RPC handler returned.

        Nova calls this method with the server's lock held. A repeated message
        may have waited for the lock while the server was built, so the
        Instance is read again here.
        """
        message: delivery.Delivery | None = getattr(context, 'delivery', None)
        request = BUILD.bind(self, context, instance, *args, **kwargs)
        with (
            request_context.ending_trace(),
            message.continued() if message else contextlib.nullcontext(),
            self.in_progress.shared(instance.uuid),
            late_saves.expecting_unbuilt(instance, late_saves.RESCHEDULED),
        ):
            waits = getattr(context, 'waits', None)
            if waits is not None:
                waits.close()
            if not self._must_build(context, instance, request.arguments):
                stale_messages.drop('build_and_run_instance', instance)
                # This result changes nothing more; FAILED would delete the
                # allocation of the server that was built.
                return build_results.RESCHEDULED_BY_POLICY
            if self.forward_late(context, instance, request.arguments):
                return build_results.RESCHEDULED_BY_POLICY
            result = super()._do_build_and_run_instance(
                *request.args[1:], **request.kwargs
            )
            if result == build_results.FAILED:
                # Nova deletes it, too, but after the message is acknowledged:
                # if this process ended in between, it would stay for ever.
                self.reportclient.delete_allocation_for_instance(
                    context, instance.uuid, force=True
                )
            return result

    def _build_and_run_instance(
        self, context: Any, instance: Any, *args: Any, **kwargs: Any
    ) -> None:
        """Build; a save that is carried out late changes no built server."""
        with late_saves.expecting_unbuilt(instance, late_saves.BEGIN):
            super()._build_and_run_instance(context, instance, *args, **kwargs)

    @_retried_while_kept
    def _must_build(
        self, context: Any, instance: Any, request: dict[str, Any]
    ) -> bool:
        """Return whether to build a server; first undo an earlier build.

        The volumes that an earlier build has created are put into the request.
        True if the server is gone, because Nova itself handles that. Blocks
        until this can be found out; an error would end the build.
        """
        message = delivery.current()
        if not stale_messages.refresh(instance, self.clock):
            return True
        is_begun = not is_unbuilt(instance.vm_state, instance.host)
        is_begun |= message is not None and _is_released(instance)
        if is_begun:
            if message is None or not self._is_interrupted(instance):
                return False
            if self._forward_to_other(context, instance, request):
                return False
            networks = request['requested_networks']
            if not self.undo_interrupted_build(context, instance, networks):
                return False
        is_repeated = is_begun or _may_repeat(request['filter_properties'])
        if message is not None and is_repeated:
            self._renew_volumes(context, instance, request)
        return message is None or self._has_allocation(instance, request)

    @_retried_while_kept
    def _renew_volumes(
        self, context: Any, instance: Any, request: dict[str, Any]
    ) -> None:
        """Put the volumes of an earlier build into the request.

        Repeated by itself, because the record does not show any more that
        there was an earlier build, once that is undone.

        If Cinder refuses that, because its user has deleted a volume or used
        it elsewhere meanwhile, the request stays as it is: the build fails at
        the volume, and the server has a fault with the reason.
        """
        try:
            volumes = self._list_renewed_volumes(context, instance)
            request['block_device_mapping'] = volumes
        except (nova_exception.NovaException, CinderError) as exc:
            if has_no_answer(exc):
                raise
            LOG.warning(
                'The volumes of server %(server)s, which is built again, '
                'cannot be reserved again: %(error)s',
                {'server': instance.uuid, 'error': exc},
            )

    @retried_in_cinder
    def _list_renewed_volumes(self, context: Any, instance: Any) -> Any:
        return self.compute_task_api.renew_volumes(context, instance.uuid)

    def _forward_to_other(
        self, context: Any, instance: Any, request: Mapping[str, Any]
    ) -> bool:
        """Forward a build without a host that has another node by now.

        An earlier worker of this host has sent it there, and has ended just
        then. The other host may be at the end of it, and is about to send it
        on: undone here, it would lose the ports and node of the next host.
        """
        if instance.host is not None:
            return False
        nodes = self.list_allocated_nodes(context, instance.uuid)
        if not nodes or request['node'] in nodes:
            return False
        self.forward_to_node(context, instance, request, nodes[0])
        return True

    def _has_allocation(
        self, instance: Any, request: Mapping[str, Any]
    ) -> bool:
        """Return whether a server still has the node of its message.

        An earlier worker may have deleted the allocation when the build
        failed. If another node was allocated since, whoever chose it may have
        ended before the build was sent there, so it is sent again: a host
        that gets a build twice builds once. Otherwise the scheduler chooses a
        node.

        This is asked of each message. RabbitMQ does not say that it is
        delivered again if its sender lost the connection and sent it twice:
        to a worker that has started meanwhile, the second one is the first.
        """
        context = request['context']
        nodes = self.list_allocated_nodes(context, instance.uuid)
        if request['node'] in nodes:
            return True
        if nodes:
            self.forward_to_node(context, instance, request, nodes[0])
        else:
            self._schedule_anew(context, instance, request)
        return False

    def _schedule_anew(
        self, context: Any, instance: Any, request: Mapping[str, Any]
    ) -> None:
        LOG.info(
            'Server %(server)s has no node any more; it is scheduled anew',
            {'server': instance.uuid},
        )
        self.compute_task_api.build_instances(
            context,
            [instance],
            request['image'],
            request['filter_properties'],
            request['admin_password'],
            request['injected_files'],
            request['requested_networks'],
            request['security_groups'],
            request['block_device_mapping'],
            request_spec=request['request_spec'],
            host_lists=None,
        )


def _is_released(instance: Any) -> bool:
    """Return whether a build has failed, and its worker ended just then.

    It had released the node, but Nova's next step was not saved. Nova itself
    refuses to build a server with such a task state.
    """
    return instance.host is None and instance.task_state in _BEGUN


def _may_repeat(filter_properties: Mapping[str, Any] | None) -> bool:
    """Return whether this thread's build may have come before.

    RabbitMQ does not say of a forwarded or rescheduled build that the host
    which sent it on had got its message twice.
    """
    message = delivery.current()
    if message is not None and message.is_redelivered:
        return True
    filter_properties = filter_properties or {}
    retry = filter_properties.get('retry') or {}
    is_rescheduled = retry.get('num_attempts', 1) > 1
    return is_rescheduled or is_forwarded(filter_properties)

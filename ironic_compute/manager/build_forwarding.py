# SPDX-License-Identifier: Apache-2.0
"""Forwards builds and unshelves that reached the former holder of their node.

The scheduler reads a node's holder once, and the node may be pushed to another
host before the server is built on it. The node's row is read again when the
message arrives, and once more when the build begins, because the message may
have waited for its turn in between. Then the node is kept on this host until
the build claims it.

A build or unshelve that an earlier worker of this host has begun is undone
here first, because no other host frees its node.

Recovery leaves the server alone while the message waits for Nova.

A build that cannot begin here is rescheduled. An unshelve would fail, and its
user would have to ask again, so it waits until Nova answers.

Importing this module imports Nova's manager; see ``compute_manager``.
"""

import functools
from collections.abc import Callable, Mapping
from typing import Any

import oslo_messaging
from nova.compute import build_results
from oslo_log import log as logging

from ironic_compute import delivery
from ironic_compute.batching import run_isolated
from ironic_compute.driver.driver import IronicComputeDriver
from ironic_compute.manager import forwarding
from ironic_compute.manager.build_messages import BUILD, BuildMessages
from ironic_compute.manager.retries import after, while_kept
from ironic_compute.manager.tracker import BareMetalTracker
from ironic_compute.retry import retry
from ironic_compute.worker.components import Components
from resource_tracker.node import NodeId

LOG = logging.getLogger(__name__)

_NEVER = after()


class ForwardsBuilds(BuildMessages):
    """Nova's ComputeManager, with handlers that follow a pushed node."""

    _components: Components
    driver: IronicComputeDriver
    rt: BareMetalTracker

    def build_and_run_instance(
        self, context: Any, instance: Any, *args: Any, **kwargs: Any
    ) -> Any:
        """Build a server here, or forward the build to its node's holder."""
        with self.in_progress.with_message(instance.uuid):
            is_begun = self.must_undo_build(
                instance, kwargs.get('filter_properties')
            )
            if not is_begun and self._forward_build(context, instance, kwargs):
                return None
            return super().build_and_run_instance(
                context, instance, *args, **kwargs
            )

    def _forward_build(
        self, context: Any, instance: Any, request: Mapping[str, Any]
    ) -> bool:
        """Forward a build to its node's holder, unless it is this host."""
        properties = request.get('filter_properties') or {}
        host = self._forward_to(context, request.get('node'), properties)
        if host is None:
            return False
        request = {**request, 'filter_properties': properties}
        return self._send_build(context, instance, host, request)

    def forward_late(
        self, context: Any, instance: Any, request: Mapping[str, Any]
    ) -> bool:
        """Forward a build whose node was pushed after its message came.

        Otherwise the node is kept here until the build claims it, or fails.
        """
        node = request['node']
        if node is None or self.rt.keep_node(NodeId(node), instance.uuid):
            return False
        if self._forward_build(context, instance, request):
            return True
        self.rt.keep_node(NodeId(node), instance.uuid)
        return False

    def _do_build_and_run_instance(
        self, context: Any, instance: Any, *args: Any, **kwargs: Any
    ) -> Any:
        """Build a server; release its node if the build fails.

        A build that fails before its claim, because its server was deleted,
        would keep the node from all others until the next round of recovery,
        while Placement offers the node.
        """
        result = build_results.FAILED
        try:
            result = super()._do_build_and_run_instance(
                context, instance, *args, **kwargs
            )
        finally:
            if result == build_results.FAILED:
                request = BUILD.bind(self, context, instance, *args, **kwargs)
                self.release_node(request.arguments['node'], instance.uuid)
        return result

    def release_node(self, node: str | None, server: str) -> None:
        """Release a node that was kept for a build or unshelve."""
        if node is not None:
            kept = NodeId(node)
            run_isolated(kept, self.rt.release_node, kept, server)

    def forward_to_node(
        self,
        context: Any,
        instance: Any,
        request: Mapping[str, Any],
        node: NodeId,
    ) -> None:
        """Send a build to the host that holds another node.

        A row that is older than Nova 18 has another uuid than its node. If the
        message's node has such a row and was pushed to another host, ``node``
        is the uuid of its row, and no node.
        """
        properties = request['filter_properties'] or {}
        holder = forwarding.read_holder(context, node)
        own = request['node']
        if not holder:
            row = forwarding.read_row(context, own)
            if row is not None and str(row.uuid) == node:
                holder, node = forwarding.holder_in(row), own
        if holder is None or not forwarding.count_hop(properties):
            LOG.warning(
                'Server %(server)s has node %(node)s by now, but its build '
                'cannot be sent there',
                {'server': instance.uuid, 'node': node},
            )
            return
        request = {**request, 'filter_properties': properties, 'node': node}
        if self._send_build(context, instance, holder, request):
            LOG.info(
                'Sent the build of server %(server)s to host %(host)s, which '
                'holds its new node %(node)s',
                {'server': instance.uuid, 'host': holder, 'node': node},
            )

    def _send_build(
        self, context: Any, instance: Any, host: str, request: dict[str, Any]
    ) -> bool:
        """Send a build to a host; return whether its queue has it."""
        rest = {
            name: value
            for name, value in request.items()
            if name not in ('self', 'context', 'instance')
        }
        try:
            self.compute_rpcapi.build_and_run_instance(
                context, instance, host, **rest
            )
        except oslo_messaging.MessageUndeliverable:
            _log_undeliverable('build', instance.uuid, host)
            return False
        return True

    def unshelve_instance(
        self,
        context: Any,
        instance: Any,
        image: Any,
        filter_properties: Any,
        node: Any,
        request_spec: Any,
        accel_uuids: Any,
    ) -> Any:
        """Unshelve a server here, or forward it to its node's holder."""
        rest = image, filter_properties or {}, node, request_spec, accel_uuids
        with self.in_progress.with_message(instance.uuid):
            is_begun = self.must_undo_unshelve(instance)
            if not is_begun and self._forward_unshelving(
                context, instance, *rest
            ):
                return None
            return super().unshelve_instance(context, instance, *rest)

    def _forward_unshelving(
        self,
        context: Any,
        instance: Any,
        image: Any,
        properties: Any,
        node: Any,
        request_spec: Any,
        accel_uuids: Any,
    ) -> bool:
        """Forward an unshelve to its node's holder, unless it is this host."""
        host = self._forward_to(context, node, properties, while_kept)
        if host is None:
            return False
        try:
            self.compute_rpcapi.unshelve_instance(
                context,
                instance,
                host,
                request_spec,
                image=image,
                filter_properties=properties,
                node=node,
                accel_uuids=accel_uuids,
            )
        except oslo_messaging.MessageUndeliverable:
            # It fails here, which frees the node for others.
            _log_undeliverable('unshelve', instance.uuid, host)
            return False
        return True

    def _forward_to(
        self,
        context: Any,
        name: str | None,
        properties: dict[str, Any],
        is_repeated: Callable[[Exception], bool] = _NEVER,
    ) -> str | None:
        """Return the host to forward a build to; None to build here.

        :param name: the name of the node that the scheduler chose; None if it
            chose none
        :param properties: the build's filter properties, which are forwarded
            with the build
        :param is_repeated: see ``retry``
        """
        if name is None:
            return None
        find = functools.partial(
            self._find_host, context, NodeId(name), properties
        )
        log = functools.partial(_log_unread, name)
        try:
            return retry(find, self.clock, is_repeated, log)
        except Exception as exc:
            # The error is only logged, because a cast returns no error to its
            # sender. The build goes on here: its claim fails, and the
            # conductor tries an alternate node.
            log(exc)
            return None

    def _find_host(
        self, context: Any, node: NodeId, properties: dict[str, Any]
    ) -> str | None:
        # Waits while the node is pushed to another host.
        with self._components.held_nodes.locked_row(node) as row:
            if row is not None:
                return None
        host = forwarding.next_host(context, node, self.host, properties)
        if host is None:
            self._components.new_nodes.hold_if_ours(node)
        return host

    def _unshelve_instance(
        self,
        context: Any,
        instance: Any,
        image: Any,
        filter_properties: Any,
        node: Any,
        *args: Any,
    ) -> Any:
        """Unshelve a server; the driver uses ``node`` as its node meanwhile.

        Nova attaches volumes before it claims the node, and reads the node's
        volume connector from the driver. The node may have been pushed while
        the message waited for the server's lock.
        """
        rest = image, filter_properties, node, *args
        is_kept = node and self.rt.keep_node(NodeId(node), instance.uuid)
        if not is_kept and self._forward_unshelving(context, instance, *rest):
            return None
        if node and delivery.current() is not None:
            self.rt.wait_confirmed(NodeId(node))
        with self.driver.assume_node(instance, node):
            return super()._unshelve_instance(context, instance, *rest)


def _log_undeliverable(name: str, server: str, host: str) -> None:
    LOG.warning(
        'Could not forward the %(name)s of server %(server)s, because host '
        '%(host)s has no queue in RabbitMQ',
        {'name': name, 'server': server, 'host': host},
    )


def _log_unread(node: str, error: Exception) -> None:
    LOG.warning(
        'Could not read which host holds node %(node)s: %(error)s',
        {'node': node, 'error': error},
    )

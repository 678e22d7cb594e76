# SPDX-License-Identifier: Apache-2.0
"""Simulated scheduler, nova-conductor's builds, and a worker's clients.

Real is the client of the conductor (``rescheduling``), which schedules the
loser of a node anew.
"""

import contextlib
import copy
from collections.abc import Sequence
from typing import Any

from nova import exception as nova_exception
from nova import objects
from nova.compute import vm_states
from nova.conductor import api
from nova.scheduler import utils as scheduler_utils

from hashring.clock import Clock
from hashring.ring import Host
from ironic_compute.gate import Gate
from ironic_compute.manager.forwarding import HOPS, HOPS_MAX
from ironic_compute.manager.rescheduling import FreshCandidates
from resource_tracker.node import NodeId
from tests.simulation.broker import Message
from tests.simulation.faults import Unreachable
from tests.simulation.nova import (
    LATE_RELEASE,
    LATE_WRITE,
    ServerRecord,
)
from tests.simulation.wire import SentRequest, Wire

_ALTERNATES_COUNT = 2
objects.register_all()
_SPEC = objects.RequestSpec(requested_resources=[])


def request_of(message: Message) -> dict[str, Any]:
    """Return the arguments of a build's message, after the Instance."""
    return {
        'image': {},
        'request_spec': _SPEC,
        'filter_properties': copy.deepcopy(message.properties),
        'accel_uuids': [],
        'admin_password': None,
        'injected_files': [],
        'requested_networks': None,
        'security_groups': [],
        'block_device_mapping': [],
        'node': message.node,
        'limits': None,
        'host_list': list(message.alternates),
    }


class Scheduler:
    """nova-scheduler, and the builds of nova-conductor."""

    def __init__(self, world: Any) -> None:
        self._world = world

    def fits(self, node: NodeId, host: Host | None = None) -> bool:
        """Return whether the scheduler would choose this node.

        :param host: the host of the node as the scheduler has read it, if
            that is not the present one
        """
        world = self._world
        row = world.nova.live_row(node)
        if row is None:
            return False
        host = host or row.host
        # Nova reads the Service for each request. A host without one, or one
        # that is disabled, is not chosen for the rows that it still has.
        return (
            world.nova.is_up(host)
            and world.placement.offered.get(node, False)
            and not world.placement.consumers(node)
            and not world.nova.services[host].disabled
        )

    def find_nodes(self) -> list[NodeId]:
        """Return the nodes that fit, the chosen one and alternates first."""
        nodes = [node for node in self._world.ironic.nodes if self.fits(node)]
        self._world.rng.shuffle(nodes)
        return nodes[: 1 + _ALTERNATES_COUNT]

    def select(self, server: str, *, is_late: bool) -> list[Any]:
        """``select_destinations``: allocate the first of the hosts."""
        if is_late:
            self._world.excuse(server, LATE_WRITE)
        nodes = self.find_nodes()
        if not nodes:
            self._world.excuse(server, 'no node is free')
            raise nova_exception.NoValidHost(reason='no node is free')
        if is_late and server in self._world.placement.allocations:
            # Nobody waits for this answer any more, and an alternate has been
            # allocated meanwhile. Nova would allocate both nodes;
            # ``nova-manage placement audit`` finds the second one.
            return [self._selection(node) for node in nodes]
        self._allocate(server, nodes[0])
        self._world.log(f'{server} is scheduled anew to {nodes[0]}')
        return [self._selection(node) for node in nodes]

    def claim(self, server: str, node: NodeId, *, is_late: bool) -> bool:
        """Allocate a node for a worker, if Placement has it free."""
        placement = self._world.placement
        if is_late:
            self._world.excuse(server, LATE_WRITE)
        if not placement.offered.get(node) or placement.consumers(node):
            return False
        if server in placement.allocations:
            # Another generation of the consumer than the worker has read.
            return False
        self._allocate(server, node)
        return True

    def _selection(self, node: NodeId) -> Any:
        row = self._world.nova.live_row(node)
        return objects.Selection(
            service_host=row.host,
            nodename=node,
            availability_zone='nova',
            limits=None,
        )

    def _allocate(self, server: str, node: NodeId) -> None:
        """Allocate a node, of which Ironic may say more than Placement."""
        self._world.placement.allocations[server] = node
        ironic = self._world.ironic
        if ironic.is_doubtful(node):
            self._world.excuse(server, f'{node} was withdrawn just now')

    def boot(self, server: ServerRecord, node: NodeId, host: Host) -> None:
        """Send a new build to the host that was chosen."""
        self._allocate(server.uuid, node)
        alternates = [n for n in self.find_nodes() if n != node]
        retry = {'num_attempts': 1, 'hosts': [[host, node]]}
        message = Message(
            'build',
            server.uuid,
            node,
            properties={'retry': retry},
            alternates=tuple(map(self._selection, alternates)),
        )
        self._world.nova.broker.cast(host, message)

    def reschedule(
        self, server: str, properties: dict[str, Any], hosts: list[Any]
    ) -> None:
        """``build_instances`` of nova-conductor, with a list of hosts."""
        record = self._world.nova.servers[server]
        if record.deleted:
            return
        properties = copy.deepcopy(properties)
        try:
            scheduler_utils.populate_retry(properties, server)
            host = self._claim_first(server, hosts)
        except nova_exception.MaxRetriesExceeded as exc:
            self._world.log(f'{server}: {exc}')
            record.vm_state, record.task_state = vm_states.ERROR, None
            record.updated_at = self._world.kernel.now_s
            self._world.check_server(record)
            return
        scheduler_utils.populate_filter_properties(properties, host)
        message = Message(
            'build',
            server,
            host.nodename,
            properties=properties,
            alternates=tuple(hosts),
        )
        self._world.nova.broker.cast(Host(host.service_host), message)

    def _claim_first(self, server: str, hosts: list[Any]) -> Any:
        placement = self._world.placement
        while hosts:
            host = hosts.pop(0)
            node = NodeId(host.nodename)
            if placement.offered.get(node) and not placement.consumers(node):
                self._allocate(server, node)
                return host
        raise nova_exception.MaxRetriesExceeded(reason='no alternate is left')


class ReportClient:
    """Nova's client of Placement, of one worker."""

    def __init__(self, world: Any, wire: Wire) -> None:
        self._world = world
        self._allocations: dict[str, NodeId] = world.placement.allocations
        self._wire = wire

    def delete_allocation_for_instance(
        self, context: Any, server: str, force: bool
    ) -> bool | None:
        """Return None if there is no answer, as Nova's client does."""

        def act(request: SentRequest) -> None:
            if request.late:
                self._world.excuse(server, LATE_RELEASE)
                self._world.tasks.excuse(server, LATE_WRITE)
            self._allocations.pop(server, None)

        try:
            self._wire.wait_and_write(act)
        except Unreachable:
            return None
        return True

    def get_allocations_for_consumer(self, context: Any, server: str) -> Any:
        """Return nothing, as Nova does after an error: nobody needs them."""
        with contextlib.suppress(Unreachable):
            self._wire.read(lambda: None)
        return {}

    def get_allocs_for_consumer(self, context: Any, server: str) -> Any:
        try:
            node = self._wire.read(lambda: self._allocations.get(server))
        except Unreachable as exc:
            raise nova_exception.ConsumerAllocationRetrievalFailed(
                consumer_uuid=server, error=str(exc)
            ) from exc
        one = {'resources': {'CUSTOM_BAREMETAL': 1}}
        return {'allocations': {node: one} if node else {}}


class ComputeRpcApi:
    """Nova's client of compute hosts, of one worker."""

    def __init__(self, world: Any, wire: Wire) -> None:
        self._world = world
        self._wire = wire

    def build_and_run_instance(
        self,
        context: Any,
        instance: Any,
        host: str,
        image: Any,
        request_spec: Any,
        filter_properties: dict[str, Any],
        admin_password: Any = None,
        injected_files: Any = None,
        requested_networks: Any = None,
        security_groups: Any = None,
        block_device_mapping: Any = None,
        node: Any = None,
        limits: Any = None,
        host_list: Sequence[Any] = (),
        accel_uuids: Any = None,
    ) -> None:
        """Send a build to another host."""
        message = Message(
            'build',
            instance.uuid,
            node,
            properties=copy.deepcopy(filter_properties),
            alternates=tuple(host_list or ()),
        )
        self._send_on(
            message, host, f'{instance.uuid} goes on to {host} for {node}'
        )

    def unshelve_instance(
        self,
        context: Any,
        instance: Any,
        host: str,
        request_spec: Any,
        image: Any = None,
        filter_properties: Any = None,
        node: Any = None,
        accel_uuids: Any = None,
    ) -> None:
        """Send an unshelve to another host."""
        message = Message(
            'unshelve',
            instance.uuid,
            node,
            properties=copy.deepcopy(filter_properties),
            request=context.request_id,
        )
        self._send_on(
            message, host, f'unshelve of {instance.uuid} goes on to {host}'
        )

    def _send_on(self, message: Message, host: str, what: str) -> None:
        world = self._world
        if message.properties.get(HOPS, 0) > HOPS_MAX:
            world.fail(f'{message.server} was sent on too often')
        world.log(what)
        self._wire.cast(lambda: world.nova.broker.cast(Host(host), message))


class SimulatedConductor(api.ComputeTaskAPI):  # type: ignore[misc]
    """Nova's client of nova-conductor, as Nova has it."""

    _world: Any
    _wire: Wire

    def build_instances(
        self,
        context: Any,
        instances: Any,
        image: Any,
        filter_properties: dict[str, Any],
        *args: Any,
        host_lists: Any = None,
        **kwargs: Any,
    ) -> None:
        (server,) = instances
        properties = copy.deepcopy(filter_properties)
        hosts = list(host_lists[0])
        scheduler, kernel = self._world.scheduler, self._world.kernel
        self._wire.cast(
            lambda: kernel.later(
                0.1,
                lambda: scheduler.reschedule(server.uuid, properties, hosts),
            )
        )


class Rescheduler(FreshCandidates, SimulatedConductor):
    """The real `FreshCandidates`, with simulated services."""

    def __init__(
        self,
        world: Any,
        wire: Wire,
        reportclient: ReportClient,
        compute_rpcapi: ComputeRpcApi,
        gate: Gate,
        clock: Clock,
    ) -> None:
        self._world = world
        self._wire = wire
        self._gate = gate
        self.clock = clock
        self._compute_rpcapi = compute_rpcapi
        self._reportclient = reportclient
        self._scheduler = self
        # No block device of a simulated server has an attachment.
        self._volume_api = None

    def _claim(self, context: Any, server: str, spec: Any, host: Any) -> bool:
        """Claim an alternate in Placement."""
        return bool(
            self._wire.wait_and_write(
                lambda request: self._world.scheduler.claim(
                    server, NodeId(host.nodename), is_late=request.late
                )
            )
        )

    def select_destinations(
        self, context: Any, spec: Any, servers: list[str], **_: Any
    ) -> list[list[Any]]:
        """Ask the scheduler."""
        (server,) = servers
        try:
            found = self._wire.write(
                lambda request: self._world.scheduler.select(
                    server, is_late=request.late
                ),
                gated=False,
            )
        except Unreachable as exc:
            if server not in self._world.placement.allocations:
                self._world.excuse(server, repr(exc))
            raise
        return [found]

    def _leave_build(self, request: dict[str, Any], hosts: list[Any]) -> None:
        """Note that a request had no answer, so that the build may fail."""
        (instance,) = request['instances']
        self._world.excuse(instance.uuid, 'left to nova-conductor')
        super()._leave_build(request, hosts)

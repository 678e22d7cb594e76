# SPDX-License-Identifier: Apache-2.0
"""The simulated driver: the order of requests is that of the real driver."""

import contextlib
from collections.abc import Callable
from typing import Any

from nova import exception as nova_exception
from nova.compute import task_states

from ironic_compute import delivery, errors
from ironic_compute.driver import nova_errors
from ironic_compute.driver.build_request import BuildRequest
from ironic_compute.driver.cancellations import Cancellations
from ironic_compute.driver.power import Power
from ironic_compute.driver.queries import Queries
from ironic_compute.driver.rebuild import Rebuild
from resource_tracker.node import NodeFacts, NodeId
from tests.simulation.faults import Unreachable
from tests.simulation.kernel import Kernel
from tests.simulation.rows import Server
from tests.simulation.waiter import Deploy, Waiter

WAIT_S = 3.0
RETRIES_COUNT = 5


class Driver:
    """A driver; real are its power actions, rebuilds and queries."""

    def __init__(
        self,
        world: Any,
        client: Any,
        observe: Any,
        excuse_task: Callable[[str], object],
        call_neutron: Callable[[], None],
    ) -> None:
        self._world = world
        self._kernel: Kernel = world.kernel
        self._client = client
        self._observe = observe
        self._excuse_task = excuse_task
        self._call_neutron = call_neutron
        self._cancellations = Cancellations()
        self.cancel_build = self._cancellations.cancel
        self.is_build_cancelled = self._cancellations.is_cancelled
        waiter: Any = Waiter(world.kernel, client, observe, excuse_task)
        deploy: Any = Deploy(world, waiter, self.wait_for_deploy)
        self._power = Power(waiter)
        self._queries = Queries(waiter)
        self._rebuild = Rebuild(waiter, deploy)

    # Builds

    def prepare_for_spawn(self, server: Server) -> None:
        """Reserve the node."""
        with nova_errors.as_nova_errors(
            server, nova_exception.ComputeResourcesUnavailable
        ):
            self._reserve(server)

    def _reserve(self, server: Server) -> NodeId:
        """``Deploy.reserve_node``, with the retries of ``NodeWaiter``."""
        node = NodeId(server.node or '')
        self._observe(self._retry(lambda: self._client.read_node(node)))
        try:
            self._retry(lambda: self._client.reserve_node(node, server.uuid))
        except errors.NodeAssociated:
            if not self._undo_other_reservation(node, server.uuid):
                raise
            self._retry(lambda: self._client.reserve_node(node, server.uuid))
        return node

    def _undo_other_reservation(self, node: NodeId, server: str) -> bool:
        """Free another node of a server, if it was not deployed."""
        other: NodeFacts | None = self._retry(
            lambda: self._client.read_node_of_instance(server)
        )
        if other is None or other.uuid == node:
            return False
        if other.provision_state in ('available', 'deploy failed'):
            self._retry(lambda: self.free(other.uuid, server))
        return True

    def repeat_read(self, read: Callable[[], Any]) -> Any:
        """Read the node of a build; in worlds with tasks, more than once."""
        return self._retry(read) if self._world.tasks.is_on else read()

    def _retry(self, request: Callable[[], Any]) -> Any:
        for _ in range(RETRIES_COUNT):
            with contextlib.suppress(errors.IronicUnavailable):
                return request()
            self._kernel.sleep(WAIT_S)
        try:
            return request()
        except errors.IronicUnavailable as exc:
            self._excuse_task(repr(exc))
            raise

    def failed_spawn_cleanup(self, server: Server) -> None:
        self.free_node_of(server)

    def spawn(self, context: Any, server: Server, *_: Any, **__: Any) -> None:
        with nova_errors.as_nova_build_errors(server):
            node = self._reserve(server)
            try:
                self._make_ports()
                # The build slot and the config drive.
                self._kernel.sleep(self._world.rng.choice((0.1, 1.0, 5.0)))
                self._cancellations.raise_if_cancelled(server.uuid)
                self._request_deploy(node, server.uuid)
                delivery.acknowledge_current()
                self.wait_for_deploy(server, node)
            except Exception:
                with contextlib.suppress(errors.IronicComputeError):
                    self._retry(lambda: self.free(node, server.uuid))
                raise

    def _make_ports(self) -> None:
        try:
            self._call_neutron()
        except Unreachable as exc:
            self._excuse_task(repr(exc))
            raise

    def _request_deploy(self, node: NodeId, server: str) -> None:
        """``DeployRequest``: only the answer may have been lost."""
        try:
            self._retry(lambda: self._client.deploy(node, server))
        except errors.IronicComputeError:
            facts = self._retry(lambda: self._client.read_node(node))
            if facts.instance_uuid != server or (
                facts.provision_state not in ('deploying', 'active')
            ):
                raise

    def wait_for_deploy(self, server: Server, node: str) -> None:
        """Block until the node is active; raise if the deploy failed."""
        while True:
            self._cancellations.raise_if_cancelled(server.uuid)
            with contextlib.suppress(errors.IronicUnavailable, Unreachable):
                facts = self._client.read_node(NodeId(node))
                self._observe(facts)
                if facts.instance_uuid != server.uuid:
                    raise errors.DeployFailed("the node is another server's")
                if facts.provision_state == 'active':
                    return
                if facts.provision_state != 'deploying':
                    raise errors.DeployFailed(facts.provision_state)
                _check_deletion(server)
            self._kernel.sleep(WAIT_S)

    # Teardown

    def free(self, node: NodeId, server: str) -> None:
        """Remove a server from a node in any state."""
        facts = self._client.read_node(node)
        if facts.instance_uuid != server:
            return
        if facts.provision_state in ('active', 'deploying', 'deploy failed'):
            self._client.undeploy(node, server)
        else:
            self._client.release_node(node, server)
            if self._world.tasks.is_on:
                with contextlib.suppress(errors.IronicComputeError):
                    self._observe(self._client.read_node(node))

    def free_node_of(self, server: Server) -> None:
        with nova_errors.as_nova_errors(server):
            facts: NodeFacts | None = self._retry(
                lambda: self._client.read_node_of_instance(server.uuid)
            )
            if facts is not None:
                self._retry(lambda: self.free(facts.uuid, server.uuid))

    def destroy(self, context: Any, server: Server, *args: Any) -> None:
        self.free_node_of(server)

    def assume_node(
        self, server: Server, node: str
    ) -> contextlib.AbstractContextManager[None]:
        """Return a context of no effect: no server has volumes to attach."""
        return contextlib.nullcontext()

    # Tasks of servers, as in the real driver

    def rebuild(
        self,
        context: Any,
        instance: Server,
        image_meta: Any,
        bdms: Any,
        preserve_ephemeral: bool,
    ) -> None:
        with nova_errors.as_nova_build_errors(instance):
            request = BuildRequest(
                context, instance, image_meta, [], None, None
            )
            self._rebuild.rebuild(request, bdms, preserve_ephemeral)

    def reboot(
        self,
        context: Any,
        instance: Server,
        network_info: Any,
        reboot_type: str,
        **_: Any,
    ) -> None:
        with nova_errors.as_nova_errors(
            instance, nova_exception.InstanceRebootFailure
        ):
            self._power.reboot(instance, reboot_type)

    def power_off(
        self, instance: Server, timeout: int = 0, retry_interval: int = 0
    ) -> None:
        with nova_errors.as_nova_errors(
            instance, nova_exception.InstancePowerOffFailure
        ):
            self._power.power_off(instance, timeout)

    def power_on(self, context: Any, instance: Server, *args: Any) -> None:
        with nova_errors.as_nova_errors(
            instance, nova_exception.InstancePowerOnFailure
        ):
            self._power.power_on(instance)

    def get_info(self, instance: Server, use_cache: bool = True) -> Any:
        with nova_errors.as_nova_errors(
            instance, nova_exception.VirtDriverNotReady
        ):
            return self._queries.read_info(instance, use_cache)

    def reboot_node(self, server: Server) -> None:
        """Reboot a server as worlds with moves do: Ironic counts it only."""
        with nova_errors.as_nova_errors(server):
            node = NodeId(server.node or '')
            self._retry(lambda: self._client.reboot(node, server.uuid))


def _check_deletion(server: Server) -> None:
    """Raise if the server of a build was deleted."""
    server.refresh()
    if server.task_state == task_states.DELETING:
        raise nova_errors.Cancelled('deleted')

# SPDX-License-Identifier: Apache-2.0
"""The simulated driver: the order of requests is that of the real driver."""

import contextlib
from collections.abc import Callable
from typing import Any

from nova import exception as nova_exception
from nova.compute import task_states

from ironic_compute import delivery, errors
from ironic_compute.driver import nova_errors
from ironic_compute.driver.cancellations import Cancellations
from resource_tracker.node import NodeFacts, NodeId
from tests.simulation.faults import Unreachable
from tests.simulation.kernel import Kernel
from tests.simulation.rows import Server

WAIT_S = 3.0
RETRIES_COUNT = 5


class Driver:
    """A driver that deploys and undeploys servers."""

    def __init__(self, world: Any, client: Any, observe: Any) -> None:
        self._world = world
        self._kernel: Kernel = world.kernel
        self._client = client
        self._observe = observe
        self._cancellations = Cancellations()
        self.cancel_build = self._cancellations.cancel
        self.is_build_cancelled = self._cancellations.is_cancelled

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
        self._retry(lambda: self._client.reserve_node(node, server.uuid))
        return node

    def _retry(self, request: Callable[[], Any]) -> Any:
        for _ in range(RETRIES_COUNT):
            with contextlib.suppress(errors.IronicUnavailable):
                return request()
            self._kernel.sleep(WAIT_S)
        return request()

    def failed_spawn_cleanup(self, server: Server) -> None:
        self.free_node_of(server)

    def spawn(self, server: Server) -> None:
        with nova_errors.as_nova_build_errors(server):
            node = self._reserve(server)
            try:
                # Neutron, the build slot and the config drive.
                self._kernel.sleep(self._world.rng.choice((0.1, 1.0, 5.0)))
                self._cancellations.raise_if_cancelled(server.uuid)
                self._request_deploy(node, server.uuid)
                delivery.acknowledge_current()
                self.wait_for_deploy(server, node)
            except Exception:
                with contextlib.suppress(errors.IronicComputeError):
                    self._retry(lambda: self.free(node, server.uuid))
                raise

    def _request_deploy(self, node: NodeId, server: str) -> None:
        """``Deploy._send_deploy``: only the answer may have been lost."""
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

    def free_node_of(self, server: Server) -> None:
        with nova_errors.as_nova_errors(server):
            facts: NodeFacts | None = self._retry(
                lambda: self._client.read_node_of_instance(server.uuid)
            )
            if facts is not None:
                self._retry(lambda: self.free(facts.uuid, server.uuid))

    def reboot(self, server: Server) -> None:
        with nova_errors.as_nova_errors(server):
            node = NodeId(server.node or '')
            self._retry(lambda: self._client.reboot(node, server.uuid))

    def get_info(self, server: Server, use_cache: bool = True) -> Any:
        raise NotImplementedError


def _check_deletion(server: Server) -> None:
    """Raise if the server of a build was deleted."""
    server.refresh()
    if server.task_state == task_states.DELETING:
        raise nova_errors.Cancelled('deleted')

# SPDX-License-Identifier: Apache-2.0
"""Simulated build and delete handlers of Nova's manager, and the driver.

The order of requests is that of Nova's manager (``build_and_run_instance``,
``terminate_instance``) and of the real driver. Real are the decisions:
`forwarding.next_hop`, `build_messages.is_unbuilt`, the tracker's claim.
"""

import contextlib
import dataclasses
from collections.abc import Iterator
from typing import Any

from nova import exception as nova_exception
from nova.compute import task_states, vm_states

from ironic_compute import errors
from resource_tracker.node import NodeFacts, NodeId
from tests.simulation.faults import Unreachable
from tests.simulation.kernel import Kernel, Lock
from tests.simulation.nova import Message
from tests.simulation.rows import Server

WAIT_S = 3.0
FAILURES = (
    Unreachable,
    errors.IronicComputeError,
    nova_exception.NovaException,
)


class Cancelled(Exception):
    """The server was deleted while it was built."""


class LiveTasks:
    """``InProgress`` of the recovery room, for tasks instead of threads."""

    def __init__(self, kernel: Kernel) -> None:
        self._kernel = kernel
        self._working: dict[str, int] = {}
        self._alone: dict[str, Any] = {}

    def busy(self, server: str) -> bool:
        """Return whether any task works on a server."""
        return bool(self._working.get(server)) or server in self._alone

    @contextlib.contextmanager
    def shared(self, server: str) -> Iterator[None]:
        while self._alone.get(server) not in (None, self._kernel.task):
            self._kernel.sleep(0.5)
        self._working[server] = self._working.get(server, 0) + 1
        try:
            yield
        finally:
            self._working[server] -= 1

    @contextlib.contextmanager
    def exclusive(self, server: str) -> Iterator[bool]:
        free = not self._working.get(server) and server not in self._alone
        if free:
            self._alone[server] = self._kernel.task
        try:
            yield free
        finally:
            if free:
                del self._alone[server]


class Driver:
    """A driver that deploys and undeploys servers."""

    def __init__(self, kernel: Kernel, client: Any, observe: Any) -> None:
        self._kernel = kernel
        self._client = client
        self._observe = observe

    def spawn(self, server: Server, node: NodeId) -> None:
        self._client.reserve_node(node, server.uuid)
        self._client.deploy(node, server.uuid)
        self.wait_for_deploy(server, node)

    def wait_for_deploy(self, server: Server, node: str) -> None:
        """Block until the node is active; raise if the deploy failed."""
        while True:
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

    def free(self, node: NodeId, server: str) -> None:
        """Remove a server from a node in any state."""
        facts = self._client.read_node(node)
        if facts.instance_uuid != server:
            return
        if facts.provision_state in ('active', 'deploying', 'deploy failed'):
            self._client.undeploy(node, server)
        else:
            self._client.release_node(node, server)

    def destroy(self, server: str) -> None:
        facts: NodeFacts | None = self._client.read_node_of_instance(server)
        if facts is not None:
            self.free(facts.uuid, server)

    def get_info(self, server: Server, use_cache: bool = True) -> Any:
        raise NotImplementedError


def _check_deletion(server: Server) -> None:
    """Raise `Cancelled` if the server of a build was deleted."""
    try:
        server.refresh()
    except nova_exception.InstanceNotFound as exc:
        raise Cancelled from exc
    if server.task_state == task_states.DELETING:
        raise Cancelled


class Manager:
    """The message handlers of one worker."""

    def __init__(self, worker: Any) -> None:
        self._worker = worker
        self._world = worker.world
        self._kernel: Kernel = worker.kernel
        self._placement = worker.world.placement
        self._locks: dict[str, Lock] = {}

    def serve(self, message: Message) -> None:
        """Serve one message, in a thread of its own."""
        try:
            match message.name:
                case 'build':
                    self.build_and_run_instance(message)
                case 'delete':
                    self._terminate(message.server)
                case 'given':
                    self._worker.given(message.nodes)
        except FAILURES as exc:
            self._world.log(f'{self._worker.name}: {message.name} {exc}')

    def _lock(self, server: str) -> Lock:
        return self._locks.setdefault(server, Lock(self._kernel))

    # Builds

    def build_and_run_instance(self, message: Message) -> None:
        worker, node = self._worker, NodeId(message.node or '')
        if worker.held_nodes.row(node) is None:
            if self._forwards(message, node):
                return
            worker.new_nodes.hold_if_ours(node)
        server = worker.server(message.server)
        if self._world.makeup.is_wanted(server.vm_state, server.host):
            with (
                self._lock(server.uuid),
                worker.live_tasks.shared(server.uuid),
            ):
                self._build(server, node)

    def _forwards(self, message: Message, node: NodeId) -> bool:
        host = self._worker.host
        holder = self._worker.wire.read(
            lambda: self._world.read_holder(host, node)
        )
        target = self._world.makeup.next_hop(holder, host, message.hops)
        if target is None:
            return False
        self._world.forward(
            target, dataclasses.replace(message, hops=message.hops + 1)
        )
        return True

    def _build(self, server: Server, node: NodeId) -> None:
        """``_do_build_and_run_instance``."""
        server.refresh()
        if not self._world.makeup.is_wanted(server.vm_state, server.host):
            return
        server.vm_state, server.task_state = vm_states.BUILDING, None
        server.save((task_states.SCHEDULING, None))
        try:
            self._build_on(server, node)
        except (Cancelled, nova_exception.InstanceNotFound):
            self._worker.driver.destroy(server.uuid)
        except nova_exception.UnexpectedTaskStateError:
            self._worker.driver.destroy(server.uuid)
        except FAILURES as exc:
            self._world.log(f'build of {server.uuid} failed: {exc}')
            self._fail(server)

    def _build_on(self, server: Server, node: NodeId) -> None:
        worker = self._worker
        claim = worker.tracker.instance_claim(None, server, node, None)
        try:
            server.task_state = task_states.NETWORKING
            server.save((None,))
            server.task_state = task_states.SPAWNING
            server.save((task_states.NETWORKING,))
            worker.driver.spawn(server, node)
        except Exception:
            with contextlib.suppress(*FAILURES):
                worker.driver.destroy(server.uuid)
            claim.abort()
            raise
        self._be_active(server)
        worker.tracker.build_succeeded(node)

    def _be_active(self, server: Server) -> None:
        server.vm_state, server.task_state = vm_states.ACTIVE, None
        try:
            server.save((task_states.SPAWNING,))
        except Unreachable:
            # Nova then fails the build although the row may be ACTIVE.
            self._world.nova.servers[server.uuid].was_active = False
            raise

    def _fail(self, server: Server) -> None:
        """Set a server to ERROR and delete its allocation; no reschedule."""
        server.refresh()
        if server.task_state == task_states.DELETING:
            return
        server.host = server.node = None
        server.vm_state, server.task_state = vm_states.ERROR, None
        server.save()
        self.delete_allocation(server.uuid)

    def give_up_build(self, context: Any, instance: Server) -> None:
        """``IronicComputeManager._free_build``."""
        self._worker.driver.destroy(instance.uuid)
        self.delete_allocation(instance.uuid)
        node, instance.host, instance.node = instance.node, None, None
        if node is not None:
            self._worker.tracker.update_usage(context, instance, node)

    def delete_allocation(self, server: str) -> None:
        self._worker.wire.wait_and_write(
            lambda request: self._placement.allocations.pop(server, None)
        )

    # Deletes

    def _terminate(self, uuid: str) -> None:
        server = self._worker.server(uuid)
        self.terminate_instance(None, server, None)

    def finish_delete(self, context: Any, instance: Any) -> None:
        self.terminate_instance(context, instance, None)

    def terminate_instance(
        self, context: Any, server: Server, bdms: Any
    ) -> None:
        with (
            self._worker.live_tasks.shared(server.uuid),
            contextlib.suppress(nova_exception.InstanceNotFound),
        ):
            server.refresh()
            with self._lock(server.uuid):
                self._delete(server)

    def _delete(self, server: Server) -> None:
        """``_delete_instance``; a failure sets the server to ERROR."""
        try:
            self._worker.driver.destroy(server.uuid)
            server.vm_state, server.task_state = vm_states.DELETED, None
            server.save()
            self._complete_deletion(server)
        except (Unreachable, errors.IronicComputeError) as exc:
            self._world.log(f'delete of {server.uuid} failed: {exc}')
            server.vm_state, server.task_state = vm_states.ERROR, None
            server.save()

    def _complete_deletion(self, server: Server) -> None:
        if server.node is not None:
            self._worker.tracker.update_usage(None, server, server.node)
        self.delete_allocation(server.uuid)
        server.destroy()

    # Methods that InterruptedTasks refers to but never calls here

    def _never(self, *args: Any) -> None:
        raise NotImplementedError

    soft_delete_instance = restore_instance = start_instance = _never

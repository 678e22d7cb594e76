# SPDX-License-Identifier: Apache-2.0
"""The compute manager of a simulated worker, and its tasks in progress.

Real is ``IronicComputeManager``: which message is served, dropped, forwarded
or built anew, how a build is undone and a delete repeated. Nova's own part is
`SimulatedNova`.
"""

import contextlib
import copy
import dataclasses
import types
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import oslo_messaging
from nova import context as nova_context
from nova.compute import task_states

from ironic_compute.manager.allocation_deletes import repeat_deletes
from ironic_compute.manager.compute_manager import IronicComputeManager
from ironic_compute.manager.misdirected_messages import MessageForwarder
from ironic_compute.manager.stale_messages import refresh
from tests.simulation.broker import Message
from tests.simulation.kernel import Kernel
from tests.simulation.nova_manager import FAILURES, SimulatedNova
from tests.simulation.rows import Disks
from tests.simulation.scheduling import (
    ComputeRpcApi,
    request_of,
)


class LiveTasks:
    """``InProgress`` of the recovery room, for tasks instead of threads."""

    def __init__(self, kernel: Kernel) -> None:
        self._kernel = kernel
        self._working: dict[str, int] = {}
        self._alone: dict[str, Any] = {}
        self._messages: dict[str, int] = {}
        # The servers that each thread works on, the innermost last.
        self._at_work: dict[Any, list[str]] = {}

    def server_at_work(self) -> str:
        """Return the server that the running thread works on, or nothing."""
        servers = self._at_work.get(self._kernel.task)
        return servers[-1] if servers else ''

    @contextlib.contextmanager
    def _noted(self, server: str) -> Iterator[None]:
        task = self._kernel.task
        self._at_work.setdefault(task, []).append(server)
        try:
            yield
        finally:
            self._at_work[task].pop()
            if not self._at_work[task]:
                del self._at_work[task]

    def busy(self, server: str) -> bool:
        """Return whether any task works on a server."""
        return bool(self._working.get(server)) or server in self._alone

    @contextlib.contextmanager
    def shared(self, server: str) -> Iterator[None]:
        while self._alone.get(server) not in (None, self._kernel.task):
            self._kernel.sleep(0.5)
        self._working[server] = self._working.get(server, 0) + 1
        try:
            with self._noted(server):
                yield
        finally:
            self._working[server] -= 1

    @contextlib.contextmanager
    def exclusive(
        self, server: str, *, despite_messages: bool = False
    ) -> Iterator[bool]:
        has_message = self._messages.get(server) and not despite_messages
        free = not self.busy(server) and not has_message
        if free:
            self._alone[server] = self._kernel.task
        try:
            with self._noted(server):
                yield free
        finally:
            if free:
                del self._alone[server]

    @contextlib.contextmanager
    def alone(self, server: str) -> Iterator[None]:
        while self.busy(server):
            self._kernel.sleep(0.5)
        self._alone[server] = self._kernel.task
        try:
            with self._noted(server):
                yield
        finally:
            del self._alone[server]

    @contextlib.contextmanager
    def with_message(self, server: str) -> Iterator[None]:
        self._messages[server] = self._messages.get(server, 0) + 1
        try:
            yield
        finally:
            self._messages[server] -= 1


class Manager(IronicComputeManager, SimulatedNova):
    """The real manager of one worker, over the simulated Nova."""

    def __init__(self, worker: Any) -> None:
        SimulatedNova.__init__(self, worker)
        self._components = worker
        self.host = worker.host
        self.clock = worker.clock
        self.driver = worker.driver
        self.rt = worker.tracker
        self.in_progress = worker.live_tasks
        self.reportclient = worker.reportclient
        repeat_deletes(self.reportclient, worker.clock)
        self.compute_rpcapi: Any = ComputeRpcApi(worker.world, worker.wire)
        self.compute_task_api = worker.world.makeup.rescheduler(
            worker.world,
            worker.wire,
            self.reportclient,
            self.compute_rpcapi,
            worker.gate,
            worker.clock,
        )
        self.network_api = _NoPorts()
        self.messages = LiveTasks(worker.kernel)

    def follow(self, strays: Any) -> None:
        """Forward messages about servers that other hosts serve."""
        moves = self._worker.world.moves

        def follow(node: Any, server: str, host: Any) -> None:
            strays.follow_server(node, server, host)
            moves.note_follow(server)

        self.forwarder = MessageForwarder(
            self.host,
            self._find_other_holder,
            follow,
            self.messages.shared,
            self.in_progress.with_message,
            self.clock,
        )

    def serve(self, message: Message) -> None:
        """Serve one message, in a thread of its own."""
        world = self._worker.world
        try:
            match message.name:
                case 'build':
                    self._serve_build(message)
                case 'delete' | 'reboot' | 'attach':
                    self._serve_request(message)
                case 'given':
                    self._worker.given(message.nodes)
                case 'changes':
                    self._worker.feed.accept_changes(message.changes)
                case 'listed':
                    self._worker.feed.accept_listed(message.part)
                case _:
                    self._serve_task(message)
        except (*FAILURES, oslo_messaging.ExpectedException) as exc:
            if message.name == 'build':
                self._excuse(message.server, exc)
            world.log(f'{self._worker.name}: {message.name} {exc!r}')

    def _serve_build(self, message: Message) -> None:
        server = self._worker.server_sent(message.server)
        context = types.SimpleNamespace()
        self.build_and_run_instance(context, server, **request_of(message))

    def _serve_request(self, message: Message) -> None:
        """``MessageForwarder._dispatch``."""
        with (
            self.forwarder.working_on(message.server),
            self.forwarder.with_message(message.server),
        ):
            host = self.forwarder._find_host(message.server, message.hops)
            if host == self.host:
                self._worker.world.moves.check_handler(self._worker, message)
                server = self._worker.server_sent(message.server)
                match message.name:
                    case 'delete':
                        self.terminate_instance(None, server, [])
                    case 'reboot':
                        self.reboot_instance(None, server, None, 'HARD')
                    case 'attach':
                        self._attach(server)
                return
            self._forward_request(message, host)

    def _forward_request(self, message: Message, host: str) -> None:
        onward = dataclasses.replace(message, hops=message.hops + 1)
        self._worker.world.log(
            f'{message.name} of {message.server} goes to {host}'
        )
        self._worker.wire.cast(
            lambda: self._worker.world.nova.broker.cast(host, onward)
        )

    def terminate_instance(
        self, context: Any, instance: Any, *args: Any, **kwargs: Any
    ) -> None:
        with self._worker.world.moves.working(self._worker, instance.uuid):
            super().terminate_instance(context, instance, *args, **kwargs)

    def reboot_instance(self, context: Any, instance: Any, *rest: Any) -> None:
        """Reboot as Nova does, but without the errors that its users see.

        Worlds with tasks have Nova's own way.
        """
        if self._worker.world.tasks.is_on:
            super().reboot_instance(context, instance, *rest)
            return
        with (
            self._worker.world.moves.working(self._worker, instance.uuid),
            self.in_progress.shared(instance.uuid),
            self._lock(instance.uuid),
        ):
            due = (task_states.REBOOTING_HARD,)
            if refresh(instance, self.clock) and instance.task_state in due:
                self._worker.driver.reboot_node(instance)
                instance.task_state = None
                instance.save(due)

    def _attach(self, server: Any) -> None:
        """``attach_volume``, which Nova does without a task."""
        with (
            self._worker.world.moves.working(self._worker, server.uuid),
            self._lock(server.uuid),
        ):
            if refresh(server, self.clock) and server.node is not None:
                self._worker.client.attach(server.node, server.uuid)

    def _serve_task(self, message: Message) -> None:
        with self.forwarder.with_message(message.server):
            self._serve_or_forward_task(message)

    def _serve_or_forward_task(self, message: Message) -> None:
        host = self.host
        if message.name != 'unshelve':
            host = self.forwarder._find_host(message.server, message.hops)
        if host == self.host:
            context = nova_context.RequestContext(
                'user', 'project', is_admin=True, request_id=message.request
            )
            server = self._worker.server_sent(message.server)
            _TASKS[message.name](self, context, server, message)
            return
        self._forward_request(message, host)


def rebuild(
    manager: Any,
    context: Any,
    server: Any,
    image: str,
    former: str,
    metadata: Mapping[str, str],
) -> None:
    """Have a manager serve a rebuild, as its message asks for."""
    manager.rebuild_instance(
        context,
        server,
        orig_image_ref=former,
        image_ref=image,
        injected_files=[],
        new_pass=None,
        orig_sys_metadata=dict(metadata),
        bdms=Disks.of(False),
        recreate=False,
        on_shared_storage=False,
        preserve_ephemeral=False,
        migration=None,
        scheduled_node=None,
        limits=None,
        request_spec=None,
        accel_uuids=[],
    )


# Name of a message -> what it has the manager do.
_TASKS: Mapping[str, Callable[[Any, Any, Any, Message], None]] = {
    'reboot SOFT': lambda manager, context, server, message: (
        manager.reboot_instance(context, server, None, 'SOFT')
    ),
    'reboot HARD': lambda manager, context, server, message: (
        manager.reboot_instance(context, server, None, 'HARD')
    ),
    'stop': lambda manager, context, server, message: manager.stop_instance(
        context, server, True
    ),
    'start': lambda manager, context, server, message: manager.start_instance(
        context, server
    ),
    'rebuild': lambda manager, context, server, message: rebuild(
        manager, context, server, **message.properties
    ),
    'shelve': lambda manager, context, server, message: (
        manager.shelve_offload_instance(context, server, True, [])
    ),
    'unshelve': lambda manager, context, server, message: (
        manager.unshelve_instance(
            context,
            server,
            None,
            copy.deepcopy(message.properties),
            message.node,
            None,
            [],
        )
    ),
}


class _NoPorts:
    """Nova's client of Neutron; no server has a port."""

    def get_instance_nw_info(self, *args: Any) -> list[Any]:
        return []

    def unbind_ports(self, *args: Any, **kwargs: Any) -> None:
        """Do nothing."""

    setup_instance_network_on_host = unbind_ports

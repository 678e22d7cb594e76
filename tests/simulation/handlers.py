# SPDX-License-Identifier: Apache-2.0
"""The compute manager of a simulated worker, and its tasks in progress.

Real is ``IronicComputeManager``: which message is served, dropped, forwarded
or built anew, how a build is undone and a delete repeated. Nova's own part is
`SimulatedNova`.
"""

import contextlib
import dataclasses
import types
from collections.abc import Iterator
from typing import Any

from ironic_compute.manager.allocation_deletes import repeat_deletes
from ironic_compute.manager.compute_manager import IronicComputeManager
from ironic_compute.manager.misdirected_messages import MessageForwarder
from tests.simulation.broker import Message
from tests.simulation.kernel import Kernel
from tests.simulation.nova_manager import FAILURES, SimulatedNova
from tests.simulation.scheduling import (
    ComputeRpcApi,
    ReportClient,
    request_of,
)


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
        self.reportclient = ReportClient(worker.world, worker.placement_wire)
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

    def follow(self, strays: Any) -> None:
        """Forward messages about servers that other hosts serve."""
        self.forwarder = MessageForwarder(
            self.host, self._find_other_holder, strays.follow_server
        )

    def serve(self, message: Message) -> None:
        """Serve one message, in a thread of its own."""
        world = self._worker.world
        try:
            match message.name:
                case 'build':
                    self._serve_build(message)
                case 'delete':
                    self._serve_delete(message)
                case 'given':
                    self._worker.given(message.nodes)
        except FAILURES as exc:
            if message.name == 'build':
                self._excuse(message.server, exc)
            world.log(f'{self._worker.name}: {message.name} {exc!r}')

    def _serve_build(self, message: Message) -> None:
        server = self._worker.server_sent(message.server)
        context = types.SimpleNamespace()
        self.build_and_run_instance(context, server, **request_of(message))

    def _serve_delete(self, message: Message) -> None:
        host = self.forwarder._find_host(message.server, message.hops)
        if host == self.host:
            server = self._worker.server_sent(message.server)
            self.terminate_instance(None, server, [])
            return
        onward = dataclasses.replace(message, hops=message.hops + 1)
        self._worker.world.log(f'delete of {message.server} goes to {host}')
        self._worker.wire.cast(
            lambda: self._worker.world.nova.broker.cast(host, onward)
        )


class _NoPorts:
    """Nova's client of Neutron; no server has a port."""

    def get_instance_nw_info(self, *args: Any) -> list[Any]:
        return []

    def unbind_ports(self, *args: Any, **kwargs: Any) -> None:
        """Do nothing."""

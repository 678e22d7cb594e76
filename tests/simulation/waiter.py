# SPDX-License-Identifier: Apache-2.0
"""Simulated `NodeWaiter` and `Deploy`, with which the real driver works.

Real are ``Power``, ``Rebuild``, ``DeployRequest`` and ``Queries`` of the
driver. Their requests are repeated as the real `NodeWaiter` repeats them, but
for a shorter time.
"""

import contextlib
import types
from collections.abc import Callable
from typing import Any, TypeVar

from ironic_compute import delivery, errors
from ironic_compute.driver import nova_errors
from ironic_compute.driver.deploy_request import DeployRequest
from resource_tracker.node import NodeFacts, NodeId
from tests.simulation.ironic import Client
from tests.simulation.kernel import Clock, Kernel

Result = TypeVar('Result')

PAUSE_S = 3.0
# Ironic can carry out two power actions in a row meanwhile, each of which
# locks the node; the real one goes on for two minutes.
RETRIES_COUNT = 12


class Waiter:
    """``NodeWaiter`` of one worker.

    :param observe: takes each node that was read
    :param excuse_task: notes why the task of the running thread may fail
    """

    def __init__(
        self,
        kernel: Kernel,
        client: Client,
        observe: Callable[[NodeFacts], object],
        excuse_task: Callable[[str], object],
    ) -> None:
        self.client = client
        self.clock = Clock(kernel, 0.0, 1.0)
        self.node_cache = types.SimpleNamespace(
            find_by_instance=lambda server: None
        )
        self._kernel = kernel
        self._observe = observe
        self._excuse_task = excuse_task

    def read_node_once(self, node: NodeId) -> NodeFacts:
        facts = self.client.read_node(node)
        self._observe(facts)
        return facts

    def read_node(self, node: NodeId) -> NodeFacts:
        return self.retry(lambda: self.read_node_once(node))

    def try_read_node(self, node: NodeId) -> NodeFacts | None:
        with contextlib.suppress(errors.IronicUnavailable):
            return self.read_node_once(node)
        return None

    def read_node_of(self, instance: Any, *, once: bool = False) -> NodeFacts:
        def read() -> NodeFacts | None:
            return self.client.read_node_of_instance(instance.uuid)

        facts = read() if once else self.retry(read)
        if facts is None:
            raise nova_errors.NoNode(f'no node has {instance.uuid}')
        return facts

    def retry(
        self,
        act: Callable[[], Result],
        on: type | tuple[type, ...] = errors.Retriable,
    ) -> Result:
        for count in range(RETRIES_COUNT + 1):
            try:
                return act()
            except errors.IronicComputeError as exc:
                if count == RETRIES_COUNT or not isinstance(exc, on):
                    if isinstance(exc, errors.IronicUnavailable):
                        self._excuse_task(repr(exc))
                    raise
            self._kernel.sleep(PAUSE_S)
        raise AssertionError('unreachable')

    def wait_until(
        self,
        node: NodeId,
        evaluate: Callable[[NodeFacts], Result | None],
        timeout_s: float,
        refresh_s: float | None = None,
    ) -> Result:
        ends_s = self._kernel.now_s + timeout_s
        while self._kernel.now_s < ends_s:
            facts = self.try_read_node(node)
            result = None if facts is None else evaluate(facts)
            if result is not None:
                return result
            self._kernel.sleep(PAUSE_S)
        raise errors.WaitTimeout(f'{node} took too long')


class Deploy:
    """``Deploy`` of one worker, for rebuilds.

    :param wait: waits until the node of a server is active
    """

    def __init__(
        self, world: Any, waiter: Waiter, wait: Callable[[Any, str], None]
    ) -> None:
        self._world = world
        self._waiter = waiter
        self._wait = wait

    def write_instance_info(
        self, request: Any, preserve_ephemeral: bool | None = None
    ) -> None:
        patch = {
            'op': 'add',
            'path': '/instance_info/image_source',
            'value': request.image_id,
        }
        self._waiter.retry(
            lambda: self._waiter.client.patch_node(request.node, [patch])
        )

    def validate_node(self, node: NodeId) -> None:
        """Refuse some images."""
        tasks, kernel = self._world.tasks, self._world.kernel
        kernel.sleep(self._world.faults.choose(0.1, 0.5))
        if tasks.occurs('rebuild refused'):
            server = self._world.ironic.nodes[node].instance_uuid
            tasks.excuse(server, tasks.REFUSED)
            raise errors.DeployInvalid('Ironic refuses the image')

    def request_deploy(
        self,
        request: Any,
        target: str,
        before_request: Callable[[], None],
        changed_at: str | None,
    ) -> NodeFacts | None:
        """``Deploy.request_deploy``."""
        node, server = request.node, request.instance.uuid
        # The config drive is built.
        self._world.kernel.sleep(self._world.faults.choose(0.1, 1.0, 5.0))
        before_request()
        waiter: Any = self._waiter
        DeployRequest(waiter, node, server, target, None, changed_at).send()
        delivery.acknowledge_current()
        return self._waiter.try_read_node(node)

    def wait_until_active(
        self, instance: Any, node: NodeId, fresh: NodeFacts | None = None
    ) -> None:
        self._wait(instance, node)

# SPDX-License-Identifier: Apache-2.0
"""Simulated notifications of Ironic: late, lost and out of order.

Each host has a queue of its own, which keeps the notifications while no worker
of the host listens. Some worlds lose none, some lose all. Real is the endpoint
(``NodeEvents``). A random generator of their own decides, so that the same
seed is the same life with and without a listener.
"""

import types
from typing import Any

from hashring.ring import Host
from ironic_compute.feed.notifications import NodeEvents
from ironic_compute.ironic_api import timestamps
from ironic_compute.paths.path_health import RABBITMQ
from resource_tracker.node import NodeFacts
from tests.simulation.kernel import WALL_START_S

# How likely a notification is lost, or late, in the worlds; in the calm, too.
LOSSES = (0.0, 0.0, 0.1, 0.5, 1.0)
LATENESSES = (0.0, 0.1, 0.4)
LATE_S = (0.7, 3.0, 10.0)
# A cut path holds a notification up.
RESEND_S = 1.0
# A queue without a listener keeps so many.
KEPT_COUNT = 20


class Notifications:
    """All queues of Ironic's notifications."""

    def __init__(self, world: Any) -> None:
        self._world = world
        self._loss = world.rng.choice(LOSSES)
        self._lateness = world.rng.choice(LATENESSES)
        # Two workers of a host may listen: one was frozen, and is replaced.
        self._listeners: dict[Host, list[Listener]] = {}
        self._kept: dict[Host, list[dict[str, Any]]] = {}

    def publish(self, event: str, facts: NodeFacts) -> bool:
        """Send a notification; return whether it reaches all hosts in time."""
        rng = self._world.rng
        if rng.random() < self._loss:
            return False
        message = _message(event, facts, self._world.kernel.now_s)
        is_prompt = True
        for host in self._world.homes:
            delay_s = rng.uniform(0.01, 0.1)
            if rng.random() < self._lateness:
                delay_s, is_prompt = rng.choice(LATE_S), False
            is_prompt &= self._send(host, message, delay_s)
        return is_prompt

    def _send(
        self, host: Host, message: dict[str, Any], delay_s: float
    ) -> bool:
        """Send a message to one listener; return False if others lack it."""
        listeners = [x for x in self._listeners.get(host, ()) if x.is_open]
        if listeners:
            listeners[-1].receive(message, delay_s)
        else:
            kept = self._kept.setdefault(host, [])
            kept.append(message)
            del kept[:-KEPT_COUNT]
        return len(listeners) < 2

    def listen(self, host: Host, listener: 'Listener') -> None:
        """Send the queue of a host to this listener while it is open."""
        others = [x for x in self._listeners.get(host, ()) if x.is_open]
        self._listeners[host] = [*others, listener]
        for message in self._kept.pop(host, ()):
            listener.receive(message, 0.0)


class Listener:
    """The notification listener of one worker."""

    def __init__(self, world: Any, worker: Any, events: NodeEvents) -> None:
        self._notifications: Notifications = world.ironic.notifications
        self._kernel = world.kernel
        self._worker = worker
        self._events = events
        self._is_stopped = False

    @property
    def is_open(self) -> bool:
        return self._worker.alive and not self._is_stopped

    def start(self, override_pool_size: int) -> None:
        """Connect; blocks while the broker is not reached."""
        while self._worker.machine.paths.loses_requests(RABBITMQ):
            self._kernel.sleep(RESEND_S)
        self._notifications.listen(self._worker.host, self)

    def stop(self) -> None:
        self._is_stopped = True

    def receive(self, message: dict[str, Any], delay_s: float) -> None:
        """Have a thread of the worker process a message."""
        self._worker.spawn(lambda: self._process(message), delay_s)

    def _process(self, message: dict[str, Any]) -> None:
        while self._worker.machine.paths.loses_answers(RABBITMQ):
            self._kernel.sleep(RESEND_S)
        self._events.info(**message)


def _message(event: str, facts: NodeFacts, now_s: float) -> dict[str, Any]:
    """Return the arguments with which oslo.messaging calls an endpoint."""
    record: dict[str, Any] = {
        'uuid': facts.uuid,
        'resource_class': facts.resource_class,
        'provision_state': facts.provision_state,
        'power_state': facts.power_state,
        'maintenance': facts.maintenance,
        'instance_uuid': facts.instance_uuid,
        'traits': [],
        'properties': {},
        'conductor_group': facts.conductor_group,
        'updated_at': (facts.updated_at or '').replace('+00:00', 'Z'),
    }
    return {
        'context': types.SimpleNamespace(),
        'publisher_id': 'ironic-conductor',
        'event_type': f'baremetal.node.{event}',
        'payload': {'ironic_object.data': record},
        'metadata': {'timestamp': timestamps.at(WALL_START_S + now_s)},
    }

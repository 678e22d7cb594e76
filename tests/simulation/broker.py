# SPDX-License-Identifier: Apache-2.0
"""Simulated RabbitMQ: queues, connections, messages until acknowledged.

A message that was delivered stays with its connection until it is
acknowledged. If the connection is lost, because its worker died, was frozen
for long or lost the network, the message returns to its queue and is
delivered again, while the first worker may still work on it.

A machine whose path to RabbitMQ is cut notices nothing at once, nor does
RabbitMQ: messages, acknowledgements and goodbyes arrive when the path heals,
unless the connection was given up before.
"""

import dataclasses
import itertools
import math
from collections.abc import Callable, Iterator
from typing import Any

from hashring.ring import Host
from ironic_compute.nodes.changes_read import ChangesRead
from ironic_compute.nodes.listed_nodes import ListPart
from ironic_compute.paths.path_health import RABBITMQ
from tests.simulation.paths import MachinePaths

# RabbitMQ notices after this time that a process is frozen (``rpc_gating``
# sets the heartbeats of a worker).
SILENCE_S = 13.5
# What a cut path holds up is sent again so often.
RESEND_S = 1.0


@dataclasses.dataclass(frozen=True)
class Message:
    """An RPC cast.

    :param id: the id that oslo.messaging gives it; a copy has the same
    :param properties: the filter properties of a build
    :param alternates: the hosts that the scheduler chose besides the first
    :param request: the id of the user's request, if it is for a task
    :param changes: what another worker has read of Ironic
    :param part: a part of the list of all nodes that another worker has read
    """

    name: str
    server: str
    node: str | None = None
    hops: int = 0
    nodes: tuple[str, ...] = ()
    id: str = ''
    properties: dict[str, Any] = dataclasses.field(default_factory=dict)
    alternates: tuple[Any, ...] = ()
    request: str = ''
    changes: ChangesRead | None = None
    part: ListPart | None = None


@dataclasses.dataclass(frozen=True)
class Delivered:
    """A message as a connection gets it."""

    message: Message
    tag: int
    is_redelivered: bool


class Connection:
    """A connection that consumes the queue of one host.

    :param wake: called when a message has come
    """

    def __init__(
        self, queue: 'Queue', worker: Any, wake: Callable[[], None]
    ) -> None:
        self.worker = worker
        self.wake = wake
        self.is_open = True
        self._paths: MachinePaths = worker.machine.paths
        self._queue = queue
        self._received: list[Delivered] = []
        self._unacknowledged: dict[int, Message] = {}

    def put(self, delivered: Delivered) -> None:
        """Take a message from the queue."""
        self._unacknowledged[delivered.tag] = delivered.message
        self._received.append(delivered)
        self.wake()

    def receive(self) -> Delivered | None:
        """Return the next message, if one has come."""
        if not self._received or self._paths.loses_answers(RABBITMQ):
            return None
        return self._received.pop(0)

    def acknowledge(self, tag: int) -> None:
        """Forget a message, unless the connection was lost before."""
        self._send(lambda: self._unacknowledged.pop(tag, None))

    def messages_of(self, queue: 'Queue') -> Iterator[Message]:
        """Yield the messages of a queue that are not acknowledged yet."""
        is_from = queue is self._queue
        return iter(self._unacknowledged.values() if is_from else ())

    def _send(self, act: Callable[[], Any]) -> None:
        """Have RabbitMQ do something as soon as the request arrives."""
        if not (self.is_open and self.worker.alive):
            return
        if self._paths.loses_requests(RABBITMQ):
            later = self._queue.world.kernel.later
            later(RESEND_S, lambda: self._send(act))
        else:
            act()

    def stop(self) -> None:
        """Consume no further message; return those not received yet."""
        self._send(self._cancel)

    def _cancel(self) -> None:
        self._queue.remove(self)
        waiting, self._received = self._received, []
        for delivered in waiting:
            self._unacknowledged.pop(delivered.tag)
            self._queue.put(delivered.message, is_redelivered=True)

    def say_goodbye(self) -> None:
        """Close the connection; RabbitMQ may not hear of it for a while."""
        self._send(self.close)

    def close(self) -> None:
        """Lose the connection: all messages return to the queue."""
        self.is_open = False
        self._received.clear()
        messages, self._unacknowledged = self._unacknowledged, {}
        self._queue.remove(self)
        for message in messages.values():
            self._queue.put(message, is_redelivered=True)


class Queue:
    """The messages for one host."""

    def __init__(self, world: Any) -> None:
        self.world = world
        self._ready: list[tuple[Message, bool]] = []
        self._consumers: list[Connection] = []
        self._tags = itertools.count(1)

    def put(self, message: Message, *, is_redelivered: bool = False) -> None:
        """Deliver a message now, or when the queue has a consumer.

        RabbitMQ puts a message that returns where it was.
        """
        at = 0 if is_redelivered else len(self._ready)
        self._ready.insert(at, (message, is_redelivered))
        self._deliver()

    def add(self, connection: Connection) -> None:
        self._consumers.append(connection)
        self._deliver()

    def remove(self, connection: Connection) -> None:
        if connection in self._consumers:
            self._consumers.remove(connection)

    def messages(self) -> Iterator[Message]:
        """Yield the messages that wait for a consumer."""
        return (message for message, _ in self._ready)

    def has_message_for(self, server: str) -> bool:
        """Return whether a message for a server waits for a consumer."""
        return any(message.server == server for message in self.messages())

    def _deliver(self) -> None:
        while self._ready and self._consumers:
            message, is_redelivered = self._ready.pop(0)
            consumer = self.world.rng.choice(self._consumers)
            consumer.put(Delivered(message, next(self._tags), is_redelivered))


def is_cut(machine: Any) -> bool:
    """Return whether a machine and RabbitMQ do not reach each other."""
    paths: MachinePaths = machine.paths
    return math.isfinite(paths.lost_since_s(RABBITMQ))


class Broker:
    """The queues of one cell, and the connections to them."""

    def __init__(self, world: Any) -> None:
        self._world = world
        self._ids = itertools.count(1)
        self._queues: dict[Host, Queue] = {}
        self._connections: list[Connection] = []

    def _queue(self, host: Host) -> Queue:
        return self._queues.setdefault(host, Queue(self._world))

    def connect(
        self, host: Host, worker: Any, wake: Callable[[], None]
    ) -> Connection:
        """Consume the queue of a host.

        Without a path to RabbitMQ the connection is closed from the start.
        """
        queue = self._queue(host)
        connection = Connection(queue, worker, wake)
        if is_cut(worker.machine):
            connection.is_open = False
            return connection
        self._connections = [c for c in self._connections if c.is_open]
        self._connections.append(connection)
        queue.add(connection)
        return connection

    def cast(self, host: Host, message: Message) -> None:
        """Send a message; a fault may lose or repeat it."""
        world, faults = self._world, self._world.faults
        message = dataclasses.replace(message, id=f'm{next(self._ids)}')
        copies = 1
        if faults.occurs('message lost'):
            world.note_lost(message)
            copies = 0
        elif faults.occurs('message twice'):
            copies = 2
        for copy in range(copies):
            delay_s = 0.01
            if faults.occurs('slow'):
                delay_s = faults.choose(0.2, 2.0, 10.0)
            if copy:
                # The sender sent it again after it had lost its connection.
                delay_s += faults.choose(2.0, 10.0, 30.0)
            world.kernel.later(delay_s, lambda: self._queue(host).put(message))

    def is_left(self, server: str) -> bool:
        """Return whether a message for a server waits, and nobody takes it."""
        return any(q.has_message_for(server) for q in self._queues.values())

    def messages_for(self, host: Host) -> Iterator[Message]:
        """Yield the messages that are for a host until it acknowledges them.

        If its worker ends before that, they are in its queue again.
        """
        queue = self._queue(host)
        yield from queue.messages()
        for connection in self._connections:
            yield from connection.messages_of(queue)

    # Lost connections

    def cut(self) -> None:
        """Lose the connection of one worker."""
        found = [c for c in self._connections if c.is_open]
        if found:
            connection = self._world.rng.choice(found)
            self._world.log(f'{connection.worker.name} loses RabbitMQ')
            connection.close()

    def lose(self, process: Any) -> None:
        """Lose the connections of a process that was killed.

        RabbitMQ notices at once, or after a while if the machine is off.
        """
        delay_s = 0.1
        if self._world.faults.occurs('slow'):
            delay_s = SILENCE_S
        for connection in self._connections_of(process):
            is_unheard = is_cut(connection.worker.machine)
            wait_s = SILENCE_S if is_unheard else delay_s
            self._world.kernel.later(wait_s, connection.close)

    def notice_frozen(self, process: Any) -> None:
        """Lose the connections of a process if it is frozen for long."""

        def close() -> None:
            for connection in self._connections_of(process):
                if connection.worker.thaws_s > self._world.kernel.now_s:
                    connection.close()

        self._world.kernel.later(SILENCE_S, close)

    def notice_cut(self, machine: Any) -> None:
        """Lose the connections of a machine if it is cut off for long."""

        def close() -> None:
            lost_s = machine.paths.lost_since_s(RABBITMQ)
            if self._world.kernel.now_s - lost_s >= SILENCE_S - 0.1:
                for connection in self._connections_of(machine):
                    connection.close()

        self._world.kernel.later(SILENCE_S, close)

    def _connections_of(self, process: Any) -> list[Connection]:
        return [
            c
            for c in self._connections
            if c.is_open and process in (c.worker, c.worker.machine)
        ]

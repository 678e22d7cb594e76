# SPDX-License-Identifier: Apache-2.0
"""The simulated RPC server of a worker, which the real `RpcGating` drives.

It stands for ``DeferredRpcServer``, oslo.messaging's server and ``late_acks``.
Real are `RpcGating` and the `Deliveries`.
"""

from collections.abc import Callable
from typing import Any

from ironic_compute.delivery import Deliveries
from tests.simulation.broker import Connection, Delivered, Message

POLL_S = 2.0


class Listener:
    """A listener of oslo.messaging: connects again if it loses RabbitMQ."""

    def __init__(self, connect: Callable[[], Connection]) -> None:
        self._connect = connect
        self._connection = connect()
        self._is_stopped = False

    def receive(self) -> tuple[Delivered, Connection] | None:
        """Return the next message and the connection that it came on."""
        connection = self._connection
        delivered = connection.receive()
        return None if delivered is None else (delivered, connection)

    def check(self) -> None:
        """Connect again if the connection was lost."""
        if not (self._connection.is_open or self._is_stopped):
            self._connection = self._connect()

    def stop(self) -> None:
        self._is_stopped = True
        self._connection.stop()

    def cleanup(self) -> None:
        """Close the connection; its messages return to the queue."""
        self._connection.say_goodbye()


class RpcServer:
    """Receives the messages of a host while it is started.

    :param serve: handles one message
    """

    def __init__(
        self,
        worker: Any,
        deliveries: Deliveries,
        serve: Callable[[Message], None],
    ) -> None:
        self.listener: Listener | None = None
        self.deliveries = deliveries
        self._worker = worker
        self._kernel = worker.kernel
        self._serve = serve
        self._task = worker.spawn(self._consume)

    # For RpcGating

    def begin(self) -> None:
        """Start to receive."""
        worker = self._worker
        self.listener = Listener(
            lambda: worker.world.nova.broker.connect(
                worker.host, worker, self._wake
            )
        )

    def stop(self) -> None:
        """Stop receiving; messages at work stay with the connection."""
        if self.listener is not None:
            self.listener.stop()

    # Messages

    def _wake(self) -> None:
        self._kernel.wake(self._task)

    def _consume(self) -> None:
        while True:
            while received := self.listener and self.listener.receive():
                self.accept(*received)
                self._kernel.sleep(0.02)
            self._kernel.idle(POLL_S)
            if self.listener is not None:
                self.listener.check()

    def accept(self, delivered: Delivered, connection: Connection) -> None:
        """``late_acks``: handle a message, unless it is at work or done."""
        message = delivered.message
        self._worker.world.check_receipt(self._worker)
        if self.deliveries.receive(
            message.id,
            lambda: connection.acknowledge(delivered.tag),
            delivered.is_redelivered,
        ):
            self._worker.spawn(lambda: self._process(message))

    def _process(self, message: Message) -> None:
        delivery = self.deliveries.find(message.id)
        assert delivery is not None
        with delivery.handled():
            self._serve(message)

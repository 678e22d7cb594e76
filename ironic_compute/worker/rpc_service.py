# SPDX-License-Identifier: Apache-2.0
"""Nova's service of one worker, with a start and an end of our own.

Nova starts its RPC servers itself, at a time when the lease may not be in
force yet: on redis and memcached, for a whole term. What came in then would
be acknowledged, and lost if this worker died before it may do anything. So
Nova is given servers that begin to receive when ``rpc_gating`` says so; the
Service is reported up meanwhile. Their end is the same in both of Nova's
series: nothing starts to receive again once a worker stops.
"""

from collections.abc import Callable
from typing import Any

from nova import service as nova_service

from ironic_compute.worker import executors

_SERVERS = ('rpcserver', 'rpcserver_alt')


class DeferredRpcServer:
    """An RPC server as Nova knows it; ``rpc_gating`` begins in Nova's stead.

    oslo.messaging waits for ever for the start of a server that is stopped,
    and this one may never have been started.

    :param server: oslo.messaging's
    """

    def __init__(self, server: Any) -> None:
        if server.executor_type == 'threading':
            # It has no option for that.
            server._executor_cls = executors.make_message_executor
        self._server = server
        self._has_begun = False

    @property
    def listener(self) -> Any:
        """What receives now, or did; None if nothing does."""
        return self._server.listener

    @listener.setter
    def listener(self, value: Any) -> None:
        self._server.listener = value

    def start(self) -> None:
        """Do nothing: it is Nova that calls this."""

    def begin(self) -> None:
        """Receive from now on."""
        self._has_begun = True
        self._server.start()

    def stop(self) -> None:
        """Receive nothing more; returns within milliseconds."""
        if self._has_begun:
            self._server.stop()
            _give_back_what_comes(self._server.listener)

    def wait(self) -> None:
        """Wait until all that was received has been served."""
        if self._has_begun:
            self._server.wait()


def _give_back_what_comes(listener: Any) -> None:
    """Let a stopped listener return to its queue what it is sent yet.

    oslo.messaging stops to look at its connection and does not tell
    RabbitMQ, which sends one message more. Closing the connection reads and
    acknowledges that one, and nobody serves it. There is no option against
    it; other drivers have nothing of the kind.
    """
    polled = getattr(listener, '_poll_style_listener', None)
    connection = getattr(polled, 'conn', None)
    for consumer in getattr(connection, '_consumers', ()):
        consumer.callback = _give_back


def _give_back(message: Any) -> None:
    message.requeue()


class Service(nova_service.Service):
    """Nova's service for one host; it is started and stopped once."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        self.on_stopping: Callable[[], None] = lambda: None
        super().__init__(*args, **kwargs)

    def __setattr__(self, name: str, value: Any) -> None:
        if name in _SERVERS and value is not None:
            value = DeferredRpcServer(value)
        super().__setattr__(name, value)

    def rpc_servers(self) -> list[DeferredRpcServer]:
        """Return those that there are: two under Nova 34."""
        found = (self.__dict__.get(name) for name in _SERVERS)
        return [server for server in found if server is not None]

    def stop_receiving(self) -> None:
        """Stop all RPC servers; what comes waits in the queues."""
        for server in self.rpc_servers():
            server.stop()

    def stop(self) -> None:
        """Let nothing begin to receive again, then end as Nova does."""
        self.on_stopping()
        super().stop()

# SPDX-License-Identifier: Apache-2.0
"""Nova's Service of a worker; its RPC servers start later and lose nothing.

Nova starts its RPC servers when the Service starts, but the lease may not be
in force then: on redis and memcached, for a whole term. A message received at
that time would be acknowledged, and lost if the worker died before it was
allowed to act. Nova therefore gets RPC servers whose ``start`` does nothing;
``rpc_gating`` starts them with the lease. Meanwhile the Service is reported
up. Under Nova 33 and 34 alike, no server starts to receive once the Service
is stopping.

A server that stops gets a message of its own, because it looks whether it was
stopped only after a message, or after up to five seconds without one.
"""

import contextlib
import functools
import threading
from collections.abc import Callable
from typing import Any

import oslo_messaging
from nova import baserpc
from nova import context as nova_context
from nova import service as nova_service
from oslo_log import log as logging

from ironic_compute.delivery import Deliveries
from ironic_compute.worker import executors, late_acks

LOG = logging.getLogger(__name__)

_SERVERS = ('rpcserver', 'rpcserver_alt')
# oslo.messaging would try to connect for ever.
_RETRIES_COUNT = 1


class DeferredRpcServer:
    """An RPC server that Nova cannot start; ``rpc_gating`` starts it.

    ``stop`` and ``wait`` return at once if the server was never started,
    where oslo.messaging would wait for its start without end.

    :param server: an RPC server of oslo.messaging
    :param deliveries: the messages that this process works on
    :param wake: sends the server a message without effect; may block
    """

    def __init__(
        self,
        server: Any,
        deliveries: Deliveries,
        wake: Callable[[], None] = lambda: None,
    ) -> None:
        if server.executor_type == 'threading':
            # The private attribute is set, because oslo.messaging has no
            # option for the class of the executor.
            server._executor_cls = executors.make_message_executor
        late_acks.acknowledge_late(server, deliveries)
        self._server = server
        self._wake = wake
        self._has_begun = False

    @property
    def listener(self) -> Any:
        """The present or last listener of oslo.messaging, or None."""
        return self._server.listener

    @listener.setter
    def listener(self, value: Any) -> None:
        self._server.listener = value

    def start(self) -> None:
        """Do nothing: when Nova calls it, the lease may not be in force."""

    def begin(self) -> None:
        """Start to receive."""
        self._has_begun = True
        self._server.start()

    def stop(self) -> None:
        """Stop receiving; blocks for up to five seconds without RabbitMQ."""
        if self._has_begun:
            # Without a free thread, the stop takes some seconds longer.
            with contextlib.suppress(RuntimeError):
                threading.Thread(target=self._wake, daemon=True).start()
            self._server.stop()
            _requeue_late_messages(self._server.listener)

    def wait(self) -> None:
        """Block until the handlers of all received messages have ended."""
        if self._has_begun:
            self._server.wait()


def send_ping(topic: str | None, host: str) -> None:
    """Send a queue of this worker a message without effect; may block.

    It stays in the queue if nobody receives any more; then the next worker of
    the host gets it.
    """
    client = baserpc.BaseAPI(topic=topic).client
    try:
        client.prepare(server=host, retry=_RETRIES_COUNT).cast(
            nova_context.get_admin_context(), 'ping', arg='stop'
        )
    except oslo_messaging.MessagingException as exc:
        LOG.debug(
            'Could not wake the RPC server of %(topic)s: %(error)s',
            {'topic': topic, 'error': exc},
        )


def _requeue_late_messages(listener: Any) -> None:
    """Make a stopped listener return a late message to its queue.

    A stopped listener of oslo.messaging reads its connection no longer but
    stays subscribed, so RabbitMQ sends it one more message. Closing the
    connection later reads and acknowledges that message, which is lost then.
    oslo.messaging has no option against this; other drivers than RabbitMQ's do
    not behave so.
    """
    polled = getattr(listener, '_poll_style_listener', None)
    connection = getattr(polled, 'conn', None)
    for consumer in getattr(connection, '_consumers', ()):
        consumer.callback = _requeue


def _requeue(message: Any) -> None:
    message.requeue()


class Service(nova_service.Service):
    """Nova's Service for one host; it is started and stopped once.

    Its manager has an ``rpc_gating``, which gets the RPC servers: one under
    Nova 33, two under Nova 34. The manager's ``forwarder`` sees each message
    before a handler does.
    """

    def __setattr__(self, name: str, value: Any) -> None:
        if name in _SERVERS and value is not None:
            gating = self.manager.rpc_gating
            self.manager.forwarder.attach_to(value)
            topic = self.topic if name == _SERVERS[0] else self.topic_alt
            wake = functools.partial(send_ping, topic, self.host)
            value = DeferredRpcServer(value, gating.deliveries, wake)
            gating.servers.append(value)
        super().__setattr__(name, value)

    def stop(self) -> None:
        """Stop following the gate, then stop as Nova does.

        Nova stops receiving, calls the manager's ``graceful_shutdown`` and
        ends its threads. Nova's launcher calls this method after SIGTERM.
        """
        self.manager.rpc_gating.stop()
        super().stop()

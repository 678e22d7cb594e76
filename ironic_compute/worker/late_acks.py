# SPDX-License-Identifier: Apache-2.0
"""Late acknowledgement: RabbitMQ keeps a message until its work is durable.

oslo.messaging acknowledges an RPC message when it receives it, so a worker
that is killed loses every message that it was working on. Here the RPC server
of a worker acknowledges a cast when its handler has ended, or later if the
handler keeps it (``ironic_compute.delivery``). A call is acknowledged at
once, because its caller waits and calls again.

oslo.messaging has no option for this. The callback of each consumer of its
RabbitMQ driver is replaced, so that no message is acknowledged when it is
received; the driver's own queue of operations sends the acknowledgement
later, in the thread that owns the connection. With another driver, and if an
oslo.messaging of another release lacks the attributes that are used here,
messages are acknowledged as oslo.messaging does it.
"""

import functools
from collections.abc import Callable
from typing import Any

from oslo_log import log as logging
from oslo_messaging._drivers import amqpdriver

from ironic_compute.delivery import Deliveries

LOG = logging.getLogger(__name__)

# The keys of a message, as oslo.messaging's AMQP drivers send it.
_UNIQUE_ID, _CALL_ID = '_unique_id', '_msg_id'


def acknowledge_late(server: Any, deliveries: Deliveries) -> None:
    """Have an RPC server of oslo.messaging acknowledge casts late.

    :param server: not started yet
    :param deliveries: the messages at work, shared by all servers
    """
    server._create_listener = functools.partial(
        _create_listener, server._create_listener, deliveries
    )
    server._process_incoming = functools.partial(
        _process_incoming, server._process_incoming, deliveries
    )


def _create_listener(create: Callable[[], Any], deliveries: Deliveries) -> Any:
    adapter = create()
    listener = getattr(adapter, '_poll_style_listener', None)
    if isinstance(listener, amqpdriver.RpcAMQPListener):
        try:
            _replace_callbacks(listener, deliveries)
        except AttributeError as exc:
            LOG.warning(
                'This oslo.messaging acknowledges messages before their work '
                'is done, so requests are lost if this worker is killed: '
                '%(error)s',
                {'error': exc},
            )
    return adapter


def _replace_callbacks(listener: Any, deliveries: Deliveries) -> None:
    do_later = listener._message_operations_handler.do
    consumers = list(listener.conn._consumers)

    def receive(message: Any) -> None:
        message_id = message.get(_UNIQUE_ID)
        if message_id is None or _CALL_ID in message:
            listener(message)
            return
        send_ack = functools.partial(
            do_later, functools.partial(_ack, message)
        )
        if deliveries.receive(
            message_id,
            send_ack,
            _is_redelivered(message),
            channel=_channel_of(message),
        ):
            # Without the method of RpcAMQPListener, which acknowledges.
            amqpdriver.AMQPListener.__call__(listener, message)

    for consumer in consumers:
        consumer.callback = receive


def _is_redelivered(message: Any) -> bool:
    """Return whether RabbitMQ has delivered a message before; True if unknown.

    An error here would make oslo.messaging reject the message.
    """
    raw = getattr(message, '_raw_message', None)
    facts = getattr(raw, 'delivery_info', None) or {}
    return bool(facts.get('redelivered', True))


def _channel_of(message: Any) -> object:
    raw = getattr(message, '_raw_message', None)
    return getattr(raw, 'channel', None)


def _ack(message: Any) -> None:
    try:
        message.acknowledge()
    except Exception as exc:
        # The connection was lost; RabbitMQ delivers the message again.
        LOG.info('Could not acknowledge a message: %(error)s', {'error': exc})


def _process_incoming(
    process: Callable[[Any], None], deliveries: Deliveries, incoming: Any
) -> None:
    """Process a message; acknowledge it afterwards unless it is kept."""
    delivery = deliveries.find(getattr(incoming[0], 'unique_id', None))
    if delivery is None:
        process(incoming)
        return
    with delivery.handled():
        process(incoming)

# SPDX-License-Identifier: Apache-2.0
"""Whether Ironic's notifications can be received, as sentences for operators.

RabbitMQ tells whether Ironic's exchange is there, whether a queue can be bound
to it, and whether the daemons read theirs. The queue that is made for that
ends with its connection; nothing else is changed. Whether Ironic sends
notifications shows only when a node changes, so it is not checked.
"""

import contextlib
import uuid
from collections.abc import Iterable, Iterator
from typing import Any, Protocol

import oslo_messaging
from oslo_messaging._drivers import amqpdriver

from hashring.ring import Host
from ironic_compute.feed.notifications import queue_name
from ironic_compute.paths import probes

_NOT_FOUND = 404


class Broker(Protocol):
    """What RabbitMQ knows of exchanges and queues; every method blocks."""

    def has_exchange(self, exchange: str) -> bool:
        """Return whether there is such an exchange."""

    def why_not_bound(self, exchange: str, topic: str) -> str | None:
        """Return why no queue can be bound to an exchange; None: one can."""

    def readers_count(self, queue: str) -> int:
        """Return how many read a queue; 0 also if there is no such queue."""


def read_problems(conf: Any, served: Iterable[Host]) -> list[str]:
    """Return a sentence for each reason why notifications do not arrive.

    Blocks for some seconds.

    :param conf: Nova's options, with the group ``ironic_compute``
    :param served: the hosts that a daemon serves
    :raises Exception: RabbitMQ is not reached; errors of kombu come through
    """
    options = conf.ironic_compute
    transport = oslo_messaging.get_notification_transport(
        conf, url=options.notification_transport_url or None
    )
    try:
        driver = transport._driver
        if not isinstance(driver, amqpdriver.AMQPDriverBase):
            return []  # Another bus cannot be asked.
        # The pooled connection has a thread that sends its heartbeats, and
        # shortens its time-outs meanwhile.
        with (
            driver._get_connection(retry=probes.RETRIES_COUNT) as pooled,
            pooled.connection.connection.clone() as connection,
        ):
            return [*of_broker(RabbitBroker(connection), options, served)]
    finally:
        transport.cleanup()


def of_broker(
    broker: Broker, options: Any, served: Iterable[Host]
) -> Iterator[str]:
    """Yield a sentence for each reason why notifications do not arrive.

    :param options: of group ``[ironic_compute]``
    :param served: the hosts that a daemon serves
    """
    exchange = options.notification_exchange
    if not broker.has_exchange(exchange):
        yield (
            f'RabbitMQ has no exchange {exchange}, so no Ironic has sent a '
            f'notification: set [DEFAULT] notification_level = info and '
            f'[oslo_messaging_notifications] driver = messagingv2 in '
            f'ironic.conf, or correct [ironic_compute] notification_exchange '
            f'or notification_transport_url'
        )
        return
    for topic in options.notification_topics:
        why = broker.why_not_bound(exchange, topic)
        if why is not None:
            yield (
                f'RabbitMQ binds no queue of this user to topic {topic} of '
                f'exchange {exchange} ({why}): give the user its rights with '
                f'rabbitmqctl set_permissions'
            )
    for host in sorted(served):
        queue = queue_name(host)
        if not broker.readers_count(queue):
            yield (
                f'A daemon serves host {host}, and nobody reads queue {queue} '
                f'in RabbitMQ: the log of the daemon says why, if it does not '
                f'use another RabbitMQ'
            )


class RabbitBroker:
    """A RabbitMQ; implements `Broker`.

    An error ends a channel of AMQP, so each request has a channel of its own.

    :param connection: of kombu, for this object alone
    """

    def __init__(self, connection: Any) -> None:
        self._connection = connection

    @contextlib.contextmanager
    def _channel(self) -> Iterator[Any]:
        channel = self._connection.channel()
        try:
            yield channel
        finally:
            channel.close()

    def has_exchange(self, exchange: str) -> bool:
        try:
            with self._channel() as channel:
                channel.exchange_declare(exchange, 'topic', passive=True)
        except self._connection.channel_errors as exc:
            if _is_not_found(exc):
                return False
            raise
        return True

    def why_not_bound(self, exchange: str, topic: str) -> str | None:
        # The user may be allowed only names that begin like those of the
        # daemons' queues.
        queue = queue_name(f'check-{uuid.uuid4().hex}')
        try:
            with self._channel() as channel:
                channel.queue_declare(queue, exclusive=True, auto_delete=True)
                channel.queue_bind(queue, exchange, f'{topic}.info')
                channel.queue_delete(queue)
        except self._connection.channel_errors as exc:
            return str(exc)
        return None

    def readers_count(self, queue: str) -> int:
        try:
            with self._channel() as channel:
                found = channel.queue_declare(queue, passive=True)
        except self._connection.channel_errors as exc:
            if _is_not_found(exc):
                return 0
            raise
        return int(found.consumer_count)


def _is_not_found(exc: Exception) -> bool:
    return getattr(exc, 'reply_code', None) == _NOT_FOUND

# SPDX-License-Identifier: Apache-2.0
"""Ironic's notifications: which ones carry a node, and which need a read.

Each host has a queue of its own, which exists longer than its worker. It may
contain the notifications of days in which no worker served the host. The first
audit reads the result of those changes, so they are skipped after the start.
Later no notification is skipped for its time, because the clock of this
machine may have been ahead at the start.
"""

import enum
import math
import re
import threading
from collections.abc import Callable, Mapping
from typing import Any

import oslo_messaging
from oslo_utils import timeutils


class Quality(enum.Enum):
    """How far the node's record in a notification can be used."""

    UNUSABLE = enum.auto()
    """The node must be read, because the record was not saved."""
    DELETED = enum.auto()
    """The node as it was before its delete, which a read must confirm."""
    NO_SHARD = enum.auto()
    """The node as saved. Its shard may have changed, and no record has it."""
    COMPLETE = enum.auto()
    """The node as saved, by an action that never changes the shard."""


Receive = Callable[[Mapping[str, Any], Quality], None]

# Few threads suffice, because a notification is processed in a moment. By
# default oslo.messaging starts a thread for each message, up to
# executor_thread_pool_size (a thousand here), and each of these threads then
# wakes up once a second for as long as the process lives.
LISTENER_THREADS = 4

# A start event carries the requested state, not the actual one, so only the
# events that end an action count.
_END = re.compile(r'^baremetal\.node\.(\w+)\.(end|success|error)$')
# Actions of ironic-conductor itself. All others are requests to the API.
_CONDUCTOR_ACTIONS = frozenset(
    {'power_set', 'power_state_corrected', 'provision_set'}
)


class NodeEvents:
    """Endpoint of the notification listener: filters events about nodes.

    oslo.messaging calls ``info``, ``warn`` or ``error`` for each notification,
    in one of :data:`LISTENER_THREADS` threads.

    :param receive: called with the record of each node that may have changed
    :param since_s: notifications sent before this time, in seconds since
        1970, are skipped while ``may_skip`` returns True
    """

    def __init__(
        self,
        receive: Receive,
        since_s: float,
        may_skip: Callable[[], bool] = lambda: True,
    ) -> None:
        self._receive = receive
        self._since_s = since_s
        self._may_skip = may_skip

    def info(
        self,
        context: Any,
        publisher_id: str,
        event_type: str,
        payload: Mapping[str, Any],
        metadata: Any,
    ) -> None:
        """Pass on the record of a node if the event ends an action on it."""
        ended = _END.match(event_type)
        if ended is None or self._is_skipped(metadata):
            return
        record = payload.get('ironic_object.data') or {}
        if record.get('uuid'):
            self._receive(record, _quality(*ended.groups()))

    error = info
    warn = info

    def _is_skipped(self, metadata: Any) -> bool:
        return _sent_at_s(metadata) < self._since_s and self._may_skip()


def queue_name(host: str) -> str:
    """Return the name of the queue with the notifications of a host."""
    return f'ironic-compute-{host}'


def new_listener(conf: Any, host: str, events: NodeEvents) -> Any:
    """Create a notification listener of oslo.messaging, not started yet.

    :param conf: Nova's options, with the group ``ironic_compute``
    :param host: the queue is named after it
    :param events: the endpoint that gets the notifications
    """
    options = conf.ironic_compute
    transport = oslo_messaging.get_notification_transport(
        conf, url=options.notification_transport_url or None
    )
    # Without an exchange, oslo.messaging would use Nova's, and Ironic does
    # not publish there.
    exchange = options.notification_exchange
    targets = [
        oslo_messaging.Target(topic=topic, exchange=exchange)
        for topic in options.notification_topics
    ]
    return StoppedLater(
        oslo_messaging.get_notification_listener(
            transport,
            targets,
            [events],
            executor=_executor(),
            pool=queue_name(host),
        )
    )


class StoppedLater:
    """A notification listener whose stop does not block.

    oslo.messaging looks whether a listener was stopped after a message, or
    after up to five seconds without one. A worker that ends must not wait for
    that: the next worker of its host reads all nodes anyway.
    """

    def __init__(self, listener: Any) -> None:
        self._listener = listener

    def start(self, override_pool_size: int) -> None:
        """Receive; blocks while RabbitMQ is away.

        :param override_pool_size: the number of threads
        """
        self._listener.start(override_pool_size=override_pool_size)

    def stop(self) -> None:
        """Receive no more, and leave the queue, after some seconds."""
        threading.Thread(target=self._end, daemon=True).start()

    def _end(self) -> None:
        self._listener.stop()
        self._listener.wait()


def _quality(action: str, end: str) -> Quality:
    """Return how far the record of an event can be used.

    Ironic's API publishes a deleted node as it was before, and the end of a
    failed request with the values that were requested but not saved.
    """
    if action in _CONDUCTOR_ACTIONS:
        return Quality.COMPLETE
    if end == 'error':
        return Quality.UNUSABLE
    if action == 'delete':
        return Quality.DELETED
    return Quality.NO_SHARD


def _sent_at_s(metadata: Any) -> float:
    """Return when a message was sent, in seconds since 1970.

    A message without a readable time stamp counts as new.
    """
    try:
        return timeutils.parse_isotime(metadata['timestamp']).timestamp()
    except (KeyError, TypeError, ValueError):
        return math.inf


def _executor() -> str:
    """Return the executor of a listener that fits Nova's concurrency mode."""
    from nova import utils as nova_utils

    threads = nova_utils.concurrency_mode_threading()
    return 'threading' if threads else 'eventlet'

# SPDX-License-Identifier: Apache-2.0
"""Ironic's notifications: which ones carry a node, and which need a read.

Each host has a queue of its own, which exists longer than its worker. It may
contain the notifications of days in which no worker served the host. The first
audit reads the result of those changes, so they are skipped.
"""

import enum
import math
import re
from collections.abc import Callable, Mapping
from typing import Any

import oslo_messaging
from oslo_utils import timeutils


class Worth(enum.Enum):
    """What the record of a notification is good for."""

    HINT = enum.auto()
    """The node is to be read: it is gone, or was never saved like that."""
    SAVED = enum.auto()
    """The node as it was saved, but for its shard, which no record has."""
    ALL = enum.auto()
    """That of something that changes no shard."""


Hear = Callable[[Mapping[str, Any], Worth], None]

# Each takes a moment. By default oslo.messaging starts a thread for each
# message until it has as many as requests are served at once, a thousand
# here, and each of them wakes up once a second for ever.
HEARERS_COUNT = 4

# The first event says what is wanted, not what is: only ends count.
_END = re.compile(r'^baremetal\.node\.(\w+)\.(end|success|error)$')
# What Ironic does to a node. The others tell of what somebody asked for.
_OWN_WORK = frozenset({'power_set', 'power_state_corrected', 'provision_set'})


class NodeEvents:
    """What oslo.messaging calls for each notification.

    :param hear: is told what Ironic says of the node that may have changed
    :param since_s: what was sent before is left out; in seconds since 1970
    """

    def __init__(self, hear: Hear, since_s: float) -> None:
        self._hear = hear
        self._since_s = since_s

    def info(
        self,
        context: Any,
        publisher_id: str,
        event_type: str,
        payload: Mapping[str, Any],
        metadata: Any,
    ) -> None:
        """Take in what a notification says of its node, if that is an end."""
        ended = _END.match(event_type)
        if ended is None:
            return
        if _sent_at_s(metadata) < self._since_s:
            return
        record = payload.get('ironic_object.data') or {}
        if record.get('uuid'):
            self._hear(record, _worth(*ended.groups()))

    error = info
    warn = info


def new_listener(conf: Any, host: str, hear: Hear, since_s: float) -> Any:
    """Return a listener of oslo.messaging that is not started yet.

    :param conf: Nova's, with our group ``ironic_compute``
    :param host: names the queue
    """
    options = conf.ironic_compute
    transport = oslo_messaging.get_notification_transport(
        conf, url=options.notification_transport_url or None
    )
    # Without an exchange it would be Nova's, where Ironic says nothing.
    exchange = options.notification_exchange
    targets = [
        oslo_messaging.Target(topic=topic, exchange=exchange)
        for topic in options.notification_topics
    ]
    return oslo_messaging.get_notification_listener(
        transport,
        targets,
        [NodeEvents(hear, since_s)],
        executor=_executor(),
        pool=f'ironic-compute-{host}',
    )


def _worth(what: str, end: str) -> Worth:
    """Return what the record of an event is good for.

    Ironic's API tells of a node that was deleted as it was before, and of a
    request that failed as if it had not.
    """
    if what in _OWN_WORK:
        return Worth.ALL
    return Worth.HINT if what == 'delete' or end == 'error' else Worth.SAVED


def _sent_at_s(metadata: Any) -> float:
    """Return when a message was sent, in seconds since 1970.

    What does not say so is as good as new.
    """
    try:
        return timeutils.parse_isotime(metadata['timestamp']).timestamp()
    except (KeyError, TypeError, ValueError):
        return math.inf


def _executor() -> str:
    """Return how listeners run under Nova's choice of concurrency."""
    from nova import utils as nova_utils

    threads = nova_utils.concurrency_mode_threading()
    return 'threading' if threads else 'eventlet'

# SPDX-License-Identifier: Apache-2.0
"""Starts the listener of Ironic's notifications, once RabbitMQ lets it.

Changes are seen through the delta list until then, so the node feed does not
wait for it.
"""

from collections.abc import Callable
from typing import Any

import attrs
from oslo_log import log as logging

from hashring.clock import Clock
from ironic_compute.feed.notifications import (
    LISTENER_THREADS,
    NodeEvents,
    Receive,
)
from ironic_compute.ironic_api import timestamps
from ironic_compute.loop_thread import NewLoop

LOG = logging.getLogger(__name__)

_RETRY_S = 30.0
# Seconds in which a listener skips the old notifications in its queue. They
# come at thousands a second; the nodes of later ones are read.
_SKIP_OLD_S = 120.0

# Makes a listener from Nova's options, the host that its queue is named after,
# and its endpoint, like ``notifications.new_listener``.
NewListener = Callable[[Any, str, NodeEvents], Any]


@attrs.define(eq=False, repr=False, slots=False)
class Listening:
    """Listens to Ironic's notifications from ``start`` to ``stop``.

    :param conf: Nova's options, with the group ``ironic_compute``
    :param host: the queue of the notifications is named after it
    :param receive: called with the record of each node that may have changed
    """

    _conf: Any
    _clock: Clock
    _host: str
    _receive: Receive
    _new_loop: NewLoop
    _new_listener: NewListener

    def __attrs_post_init__(self) -> None:
        self._loop = self._new_loop('notifications', self._try_listen, 0.0)
        self._is_stopped = False
        self._listener: Any = None
        self._since_s = 0.0
        self._has_warned = False

    def start(self) -> None:
        """Start to listen in a thread of its own."""
        self._since_s = self._clock.wall_s() - timestamps.SKEW_S
        self._loop.start()

    def stop(self) -> None:
        """Stop to listen; does not block."""
        self._is_stopped = True
        self._loop.stop()
        if self._listener is not None:
            self._listener.stop()

    def _try_listen(self) -> float | None:
        """Start the listener; return the seconds until a next try, if any."""
        try:
            self._listen()
        except Exception as exc:
            LOG.log(
                logging.DEBUG if self._has_warned else logging.WARNING,
                "Could not listen to Ironic's notifications and will try "
                'again; changes are seen through the delta list: %(error)s',
                {'error': exc},
            )
            self._has_warned = True
            return _RETRY_S
        return None

    def _listen(self) -> None:
        """Start the listener; blocks while the broker is away."""
        skip_until_s = self._clock.now_s() + _SKIP_OLD_S
        events = NodeEvents(
            self._receive,
            self._since_s,
            lambda: self._clock.now_s() < skip_until_s,
        )
        listener = self._new_listener(self._conf, self._host, events)
        listener.start(override_pool_size=LISTENER_THREADS)
        # Assigned only now, because stop() of a listener whose start() has
        # not returned would block as well.
        self._listener = listener
        if self._is_stopped:
            listener.stop()

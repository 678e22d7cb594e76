# SPDX-License-Identifier: Apache-2.0
"""RPC messages that stay in RabbitMQ until their work is durable.

RabbitMQ gives a message that was not acknowledged to the next worker of the
host if this process ends. A *delivery* is such a message while this process
works on it. ``worker.late_acks`` receives and acknowledges the messages; the
handlers of builds keep a delivery beyond the end of the RPC handler, and
``driver.deploy`` acknowledges it when Ironic has taken the deploy over.
"""

import collections
import contextlib
import contextvars
import threading
from collections.abc import Callable, Iterator

_DONE_MAX = 10_000
_current: contextvars.ContextVar['Delivery | None'] = contextvars.ContextVar(
    'delivery', default=None
)


class Delivery:
    """One message that this process works on; any thread may call.

    :param finish: sends the acknowledgement to RabbitMQ
    :param is_redelivered: RabbitMQ may have delivered the message to another
        process before, which may have worked on it
    """

    def __init__(
        self, finish: Callable[[], None], is_redelivered: bool = False
    ) -> None:
        self._finish = finish
        self.is_redelivered = is_redelivered
        self._is_kept = False

    def acknowledge(self) -> None:
        """Acknowledge the message; a second call does nothing."""
        self._finish()

    @contextlib.contextmanager
    def handled(self) -> Iterator[None]:
        """Handle the message in this thread; acknowledge it unless kept."""
        with self._as_current():
            yield
        if not self._is_kept:
            self.acknowledge()

    @contextlib.contextmanager
    def continued(self) -> Iterator[None]:
        """Continue a kept message in this thread; acknowledge it at the end.

        The message is acknowledged after an error, too, because the handler
        has then recorded the error.
        """
        try:
            with self._as_current():
                yield
        finally:
            self.acknowledge()

    @contextlib.contextmanager
    def _as_current(self) -> Iterator[None]:
        token = _current.set(self)
        try:
            yield
        finally:
            _current.reset(token)

    def keep(self) -> None:
        """Do not acknowledge the message when its RPC handler returns."""
        self._is_kept = True


def current() -> Delivery | None:
    """Return the message that this thread works on.

    None if the thread works for no message, or the message was acknowledged
    when it was received.
    """
    return _current.get()


def acknowledge_current() -> None:
    """Acknowledge this thread's message, because its work is durable now."""
    delivery = current()
    if delivery is not None:
        delivery.acknowledge()


class Deliveries:
    """The messages that this process works on; any thread may call.

    RabbitMQ delivers a message a second time to this process if the
    connection was lost before the acknowledgement arrived. It has the message
    twice if its sender lost the connection and sent it again.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        # The deliveries of each message at work that RabbitMQ may still have:
        # how to acknowledge them, and the channel that they came on.
        self._at_work: dict[str, tuple[list[Callable[[], None]], object]] = {}
        self._redelivered: set[str] = set()
        self._done: collections.OrderedDict[str, None] = (
            collections.OrderedDict()
        )

    def receive(
        self,
        message_id: str,
        send_ack: Callable[[], None],
        is_redelivered: bool = False,
        channel: object = None,
    ) -> bool:
        """Enter a delivery; return whether the message must be handled.

        :param message_id: the id that the sender gave to the message
        :param send_ack: acknowledges this delivery; must not block
        :param is_redelivered: what RabbitMQ says of this delivery
        :param channel: the channel that it came on; None if that is unknown.
            A second one on the same channel is a copy that the sender has
            sent, or RabbitMQ has given up the first one: a quorum queue does
            while the servers of RabbitMQ do not reach each other. So both are
            acknowledged, and not before the work is durable
        """
        with self._lock:
            acks, former = self._at_work.get(message_id, ([], None))
            is_done = message_id in self._done
            is_new = not is_done and message_id not in self._at_work
            if not is_done:
                is_same = channel is not None and channel is former
                kept = acks if is_same else []
                self._at_work[message_id] = [*kept, send_ack], channel
            if is_new and is_redelivered:
                self._redelivered.add(message_id)
        if is_done:
            send_ack()
        return is_new

    def count(self) -> int:
        """Return how many messages are at work."""
        return len(self._at_work)

    def find(self, message_id: str | None) -> Delivery | None:
        """Return the delivery of a message at work; None if there is none."""
        if message_id is None or message_id not in self._at_work:
            return None
        return Delivery(
            lambda: self._finish(message_id), message_id in self._redelivered
        )

    def _finish(self, message_id: str) -> None:
        with self._lock:
            acks, _ = self._at_work.pop(message_id, ([], None))
            self._redelivered.discard(message_id)
            self._done[message_id] = None
            if len(self._done) > _DONE_MAX:
                self._done.popitem(last=False)
        for send_ack in acks:
            send_ack()

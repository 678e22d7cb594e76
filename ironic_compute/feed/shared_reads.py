# SPDX-License-Identifier: Apache-2.0
"""One worker reads Ironic's lists for all workers of a pool.

With many hosts, each worker would ask Ironic for the same changes every few
seconds. So the worker of one host, the *reader*, tells the others after each
list what it has read: from when on, and a fingerprint of the facts of each
changed node. A worker that has delivered the same facts of these nodes, mostly
because of notifications, has nothing to read. Otherwise, and if it hears
nothing, it reads the list itself.

It also tells them each list of all nodes, in parts; see ``listed_nodes``. A
worker reads those nodes itself that the list shows otherwise than it has them,
or that the list lacks.

So a message never changes what is known of a node; it only saves a request
whose answer is known. A message that is lost, late, or of a worker that is
mistaken costs requests, and at most the time until the next audit.
"""

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Protocol, TypeVar

import attrs
from oslo_log import log as logging

from hashring.ring import Host
from ironic_compute.loop_thread import Loop, NewLoop
from ironic_compute.nodes.changes_read import ChangesRead
from ironic_compute.nodes.listed_nodes import ListPart, split
from resource_tracker.node import NodeFacts

LOG = logging.getLogger(__name__)

# Intervals of the delta list without a message, after which a worker reads the
# list itself.
_SILENCE_INTERVALS = 2.5
# A worker that was frozen finds older messages; only the last ones matter.
_HEARD_MAX = 10
_IDLE_S = 3600.0

_Told = TypeVar('_Told', ChangesRead, ListPart)


class SharedReads(Protocol):
    """What the feed asks about the other workers of the pool."""

    silence_s: float

    def is_reader(self) -> bool:
        """Return whether this worker reads for the others."""

    def tell(self, read: ChangesRead) -> None:
        """Tell the others; does not block, and the message may be lost."""

    def tell_all(self, began_s: float, nodes: Sequence[NodeFacts]) -> None:
        """Tell the others the list of all nodes, as ``tell`` does.

        :param began_s: when the read of the list began
        """


class ReadsAlone:
    """A worker without others: it reads each delta list itself."""

    silence_s = 0.0

    def is_reader(self) -> bool:
        return True

    def tell(self, read: ChangesRead) -> None:
        pass

    def tell_all(self, began_s: float, nodes: Sequence[NodeFacts]) -> None:
        pass


@attrs.define(eq=False, repr=False, slots=False)
class PoolReads:
    """Has the worker of the first host in the ring read for all others.

    While two workers take themselves for the reader, both read. While none
    does, all read, after ``silence_s``.

    :param ring_hosts: returns the hosts in the ring
    :param known_hosts: returns the hosts of the pool, whose workers are told
    :param send: sends what changed to the worker of a host; may block
    :param send_part: sends a part of a list of all nodes; may block
    :param interval_s: seconds between two delta lists
    :param new_loop: makes the loop that sends
    """

    _host: Host
    _ring_hosts: Callable[[], Iterable[Host]]
    _known_hosts: Callable[[], Sequence[Host]]
    _send: Callable[[Host, ChangesRead], None]
    _send_part: Callable[[Host, ListPart], None]
    _interval_s: float
    _new_loop: NewLoop

    def __attrs_post_init__(self) -> None:
        self.silence_s = _SILENCE_INTERVALS * self._interval_s
        # Only the newest one: without the one before, the others read
        # themselves.
        self._untold: deque[ChangesRead] = deque(maxlen=1)
        self._parts: Iterator[ListPart] = iter(())
        self._sender: Loop = self._new_loop('tell', self._send_untold, 0.0)

    def start(self) -> None:
        """Start the thread that sends."""
        self._sender.start()

    def stop(self) -> None:
        """Send nothing more."""
        self._sender.stop()

    def is_reader(self) -> bool:
        """Return whether this worker reads for the others."""
        return min(self._ring_hosts(), default=None) == self._host

    def tell(self, read: ChangesRead) -> None:
        """Tell the others; does not block, and the message may be lost."""
        if self.is_reader():
            self._untold.append(read)
            self._sender.wake()

    def tell_all(self, began_s: float, nodes: Sequence[NodeFacts]) -> None:
        """Tell the others the list of all nodes, as ``tell`` does.

        A list that is not sent yet is replaced.
        """
        if self.is_reader():
            self._parts = split(self._host, began_s, nodes)
            self._sender.wake()

    def _send_untold(self) -> float:
        """Send what waits; return the seconds until the next call.

        What has changed is not kept waiting by a long list.
        """
        while True:
            while self._untold:
                self._send_to_all(self._send, self._untold.popleft())
            part = next(self._parts, None)
            if part is None:
                return _IDLE_S
            self._send_to_all(self._send_part, part)

    def _send_to_all(
        self, send: Callable[[Host, _Told], None], told: _Told
    ) -> None:
        for host in self._known_hosts():
            if host != self._host:
                self._try_send(host, lambda to: send(to, told))

    def _try_send(self, host: Host, send: Callable[[Host], None]) -> None:
        try:
            send(host)
        except Exception as exc:
            LOG.debug(
                'Could not tell %(host)s what Ironic has: %(error)s',
                {'host': host, 'error': exc},
            )


class Heard:
    """The messages of the reader that the feed has not looked at yet.

    Any thread may add one; one thread takes them.
    """

    def __init__(self) -> None:
        self._messages: deque[ChangesRead] = deque(maxlen=_HEARD_MAX)

    def add(self, read: ChangesRead) -> None:
        """Add a message."""
        self._messages.append(read)

    def take(self) -> list[ChangesRead]:
        """Return the messages, the oldest first, and forget them."""
        taken = []
        while self._messages:
            taken.append(self._messages.popleft())
        return taken

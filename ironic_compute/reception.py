# SPDX-License-Identifier: Apache-2.0
"""RPC is received only while the lease is in force.

oslo.messaging acknowledges a message when it is received, not when it is
done; one that waits in a process that is killed is lost (measured: 100 of 164
casts). So nothing is received that cannot be begun: at the deadline the
servers stop within milliseconds and what comes stays in the queue, for this
worker when its lease is in force again, or for whoever serves the host then.
There is a thread for each message, so none waits for another to end.
"""

import threading
from collections.abc import Callable, Iterable
from typing import Any

import oslo_messaging.opts
from oslo_log import log as logging

from ironic_compute import compat
from ironic_compute.gate import LeaseGate

LOG = logging.getLogger(__name__)

_RABBIT = 'oslo_messaging_rabbit'
_LOOK_S = 1.0

# An operator's value wins over these.
_DEFAULTS = (
    # A thread for each message; they are made when they are needed.
    (None, 'executor_thread_pool_size', 1000),
    # A stopped process catches one message of a queue, not hundreds …
    (_RABBIT, 'rabbit_qos_prefetch_count', 1),
    # … and RabbitMQ drops it after 15 s, not after 177 s.
    (_RABBIT, 'heartbeat_timeout_threshold', 6),
)


def set_defaults(conf: Any) -> None:
    """Set what suits a worker better than the defaults of oslo.messaging."""
    for group, name, value in _DEFAULTS:
        conf.register_opt(_option(group, name), group=group)
        compat.set_default(conf, name, value, group)


def _option(group: str | None, name: str) -> Any:
    """Return an option as oslo.messaging will register it itself."""
    (option,) = (
        option
        for each, options in oslo_messaging.opts.list_opts()
        for option in options
        if each == group and option.name == name
    )
    return option


class Reception:
    """Stop RPC servers when the gate shuts, start them when it opens.

    :param servers: returns oslo.messaging's servers, which are running
    """

    def __init__(
        self, servers: Callable[[], Iterable[Any]], gate: LeaseGate
    ) -> None:
        self._servers = servers
        self._gate = gate
        self._is_closed = False
        self._stopping = threading.Event()

    def start(self) -> None:
        """Watch the gate from now on."""
        threading.Thread(
            target=self._watch, name='reception', daemon=True
        ).start()

    def stop(self) -> None:
        """Leave the servers as they are."""
        self._stopping.set()

    def _watch(self) -> None:
        while not self._stopping.is_set():
            wait_s = min(self._gate.open_for_s(), _LOOK_S)
            if wait_s > 0 and not self._is_closed:
                self._stopping.wait(wait_s)
            elif wait_s > 0:
                self._open()
            else:
                self._close()
                self._stopping.wait(_LOOK_S / 10)

    def _close(self) -> None:
        if self._is_closed:
            return
        self._is_closed = True
        for server in self._servers():
            server.stop()
        LOG.warning(
            'The lease has lapsed: requests wait in their queues until it is '
            'in force again'
        )

    def _open(self) -> None:
        for server in self._servers():
            former = server.listener
            server.start()
            # Not wait(): it would wait for handlers that wait at the gate.
            former.cleanup()
        self._is_closed = False
        LOG.info('The lease is in force again: requests are served')

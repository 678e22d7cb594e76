# SPDX-License-Identifier: Apache-2.0
"""RPC is received only while the lease is in force.

oslo.messaging acknowledges a message when it is received, not when it is
done; one that waits in a process that is killed is lost (measured: 100 of 164
casts). So nothing is received that cannot be begun: the servers start when
the lease is in force for the first time, at the deadline they stop within
milliseconds, and what comes stays in the queue, for this worker when its
lease is in force again, or for whoever serves the host then. There is a
thread for each message, so none waits for another to end.

A worker that cannot stop or start receiving tries again, and then ends: one
that is deaf and reports its host up would be missed by nobody.
"""

import os
import threading
from collections.abc import Callable, Iterable
from typing import Any

import oslo_messaging.opts
from oslo_log import log as logging

from ironic_compute import compat
from ironic_compute.agent import exit_codes
from ironic_compute.gate import LeaseGate
from ironic_compute.worker import executors
from ironic_compute.worker.rpc_service import DeferredRpcServer

LOG = logging.getLogger(__name__)

_RABBIT = 'oslo_messaging_rabbit'
_LOOK_S = 1.0
_FAILURES_COUNT = 10

# An operator's value wins over these.
_DEFAULTS = (
    # A thread for each message; they are made when they are needed.
    (None, 'executor_thread_pool_size', executors.AMPLE_COUNT),
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


def _end_deaf() -> None:
    LOG.error('RPC cannot be served; this worker ends')
    os._exit(exit_codes.EX_RPC_FAILED)


class RpcGating:
    """Stop RPC servers when the gate shuts, start them when it opens.

    :param servers: returns those of the worker, none of which has begun
    :param end: ends this process after too many failures in a row
    """

    def __init__(
        self,
        servers: Callable[[], Iterable[DeferredRpcServer]],
        gate: LeaseGate,
        end: Callable[[], None] = _end_deaf,
    ) -> None:
        self._servers = servers
        self._gate = gate
        self._end = end
        self._is_closed = True
        self._has_opened = False
        self._failures_count = 0
        self._formers: list[Any] = []
        self._stopping = threading.Event()

    def start(self) -> None:
        """Watch the gate from now on; if it is open, receive at once."""
        self.look()
        if self._is_closed:
            LOG.info(
                'The host is reported up; requests wait in their queues until '
                'the lease is in force'
            )
        threading.Thread(
            target=self._watch, name='reception', daemon=True
        ).start()

    def stop(self) -> None:
        """Leave the servers as they are."""
        self._stopping.set()

    def _watch(self) -> None:
        while not self._stopping.is_set():
            self._stopping.wait(self.look())

    def look(self) -> float:
        """Follow the gate; return when to look again, in seconds."""
        try:
            wait_s = self._follow()
        except Exception:
            self._failures_count += 1
            LOG.exception('Could not follow the lease with RPC; trying again')
            if self._failures_count >= _FAILURES_COUNT:
                self._end()
            return _LOOK_S
        self._failures_count = 0
        return wait_s

    def _follow(self) -> float:
        wait_s = min(self._gate.open_for_s(), _LOOK_S)
        if wait_s > 0 and self._is_closed:
            self._open()
        elif wait_s == 0 and not self._is_closed:
            self._close()
        return wait_s or _LOOK_S / 10

    def _close(self) -> None:
        _stop_all(self._servers())
        self._is_closed = True
        LOG.warning(
            'The lease has lapsed: requests wait in their queues until it is '
            'in force again'
        )

    def _open(self) -> None:
        servers = list(self._servers())
        try:
            for server in servers:
                self._start(server)
        except Exception:
            # All or none: it is tried again for all.
            for server in servers:
                self._set_aside(server)
            raise
        self._is_closed = False
        self._clean_up()
        again = ' again' if self._has_opened else ''
        self._has_opened = True
        LOG.info(
            'The lease is in force%(again)s: requests are served',
            {'again': again},
        )

    def _start(self, server: DeferredRpcServer) -> None:
        """Start a server that is stopped, or never began.

        oslo.messaging stops a listener that is there, and one of RabbitMQ
        cannot be stopped twice: it must not be there if this fails.
        """
        self._formers.append(server.listener)
        server.listener = None
        server.begin()
        if server.listener is None:
            raise RuntimeError('an RPC server did nothing when started')

    def _set_aside(self, server: DeferredRpcServer) -> None:
        """Stop a server so that it can be started, come what may."""
        try:
            server.stop()
        except Exception as exc:
            LOG.info('Could not stop RPC: %(error)s', {'error': exc})

    def _clean_up(self) -> None:
        """Close the connections of listeners that listen no more."""
        formers, self._formers = self._formers, []
        for former in filter(None, formers):
            try:
                # Not wait(): it would wait for handlers that wait at the gate.
                former.cleanup()
            except Exception as exc:
                LOG.info(
                    'Could not close a former connection: %(error)s',
                    {'error': exc},
                )


def _stop_all(servers: Iterable[DeferredRpcServer]) -> None:
    """Stop each server, also after one that could not be stopped."""
    failures = []
    for server in servers:
        try:
            server.stop()
        except Exception as exc:
            failures.append(exc)
    if failures:
        raise failures[0]

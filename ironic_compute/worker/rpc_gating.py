# SPDX-License-Identifier: Apache-2.0
"""Starts and stops a worker's RPC servers with its lease.

A worker receives only while its lease is in force: its RPC servers start when
the lease gate opens and stop within milliseconds of the deadline. Messages
then stay in the queue for the next worker of the host, which may be this one,
and messages whose work is not durable go back to it. Each message gets a
thread, so no message waits for another to end.

If starting or stopping fails ten times in a row the worker exits, because a
worker that reports its host up and receives nothing would stay unnoticed.
"""

import threading
from collections.abc import Callable, Iterable
from typing import Any

import oslo_messaging.opts
from oslo_log import log as logging

from ironic_compute import compat
from ironic_compute.agent import exit_codes
from ironic_compute.delivery import Deliveries
from ironic_compute.gate import LeaseGate
from ironic_compute.loop_thread import LoopThread
from ironic_compute.worker import executors
from ironic_compute.worker.rpc_service import DeferredRpcServer

LOG = logging.getLogger(__name__)

_RABBIT = 'oslo_messaging_rabbit'
_RECHECK_S = 1.0
_FAILURES_COUNT = 10

# Defaults in place of oslo.messaging's; a value in nova.conf overrides them.
_DEFAULTS = (
    # The limit of threads for messages; threads are started when needed.
    (None, 'executor_thread_pool_size', executors.AMPLE_COUNT),
    # Messages that wait for Ironic stay unacknowledged, and must not keep
    # others from being delivered.
    (_RABBIT, 'rabbit_qos_prefetch_count', executors.AMPLE_COUNT),
    # RabbitMQ closes the connection of a frozen process after 15 s, not after
    # 177 s, and delivers its messages to the next worker.
    (_RABBIT, 'heartbeat_timeout_threshold', 6),
)


def set_defaults(conf: Any) -> None:
    """Set a worker's defaults of options of oslo.messaging."""
    for group, name, value in _DEFAULTS:
        conf.register_opt(_option(group, name), group=group)
        compat.set_default(conf, name, value, group)


def _option(group: str | None, name: str) -> Any:
    """Return oslo.messaging's own definition of an option.

    A different definition would make oslo.messaging fail when it registers the
    option later.
    """
    (option,) = (
        option
        for each, options in oslo_messaging.opts.list_opts()
        for option in options
        if each == group and option.name == name
    )
    return option


def _begin_thread(act: Callable[[], None]) -> None:
    threading.Thread(target=act, daemon=True).start()


class RpcGating:
    """Stop RPC servers when the gate shuts, start them when it opens.

    ``servers`` are the worker's RPC servers; Nova's Service appends each one
    when it creates it, before :meth:`start`.

    :param exit_process: ends this process with an exit status
    :param begin: runs a function in a thread of its own
    :param limit_count: while so many messages are at work, no further one
        begins
    """

    def __init__(
        self,
        gate: LeaseGate,
        exit_process: Callable[[int], None],
        begin: Callable[[Callable[[], None]], None] = _begin_thread,
        limit_count: int = executors.AMPLE_COUNT,
    ) -> None:
        self.servers: list[DeferredRpcServer] = []
        self.deliveries = Deliveries()
        self._gate = gate
        self._exit_process = exit_process
        self._begin = begin
        self._limit_count = limit_count
        self._is_closed = True
        self._is_started = False
        self._is_stopped = False
        self._has_opened = False
        self._failures_count = 0
        self._old_listeners: list[Any] = []
        self._thread = LoopThread('rpc-gating', self.follow_gate)

    def start(self) -> None:
        """Receive RPC now if the gate is open, and follow the gate."""
        self._is_started = True
        self.follow_gate()
        if self._is_closed:
            LOG.info(
                'The host is reported up; requests wait in their queues until '
                'the lease is in force'
            )
        self._thread.start()

    def stop(self) -> None:
        """Stop following the gate; servers that run stay as they are.

        No server starts after this, because its stop may be over already.
        """
        self._is_stopped = True
        self._thread.stop()

    def should_receive(self) -> bool:
        """Return whether a message should be answered at present.

        If all threads wait for Ironic, none is, and RabbitMQ is well.
        """
        is_following = self._is_started and not self._is_stopped
        has_room = self.deliveries.count() < self._limit_count
        return is_following and has_room and self._gate.is_open()

    def stop_receiving(self) -> None:
        """Stop all servers; further messages stay in their queues."""
        for server in self.servers:
            server.stop()

    def follow_gate(self) -> float:
        """Start or stop the servers if the gate has opened or shut.

        :returns: seconds until the next call
        """
        try:
            wait_s = self._follow()
        except Exception:
            self._failures_count += 1
            LOG.exception('Could not follow the lease with RPC; trying again')
            if self._failures_count >= _FAILURES_COUNT:
                LOG.error('RPC cannot be served; this worker ends')
                self._exit_process(exit_codes.EX_RPC_FAILED)
            return _RECHECK_S
        self._failures_count = 0
        return wait_s

    def _follow(self) -> float:
        wait_s = min(self._gate.open_for_s(), _RECHECK_S)
        if wait_s > 0 and self._is_closed:
            self._open()
        elif wait_s == 0 and not self._is_closed:
            self._close()
        return wait_s or _RECHECK_S / 10

    def _close(self) -> None:
        _stop_all(self.servers)
        self._is_closed = True
        self._return_messages()
        LOG.warning(
            'The lease has lapsed: requests wait in their queues until it is '
            'in force again'
        )

    def _return_messages(self) -> None:
        """Close the connections, so that RabbitMQ has all messages again.

        In a thread of its own, because RabbitMQ may be out of reach.
        """
        for server in self.servers:
            self._old_listeners.append(server.listener)
            server.listener = None
        self._begin(self._close_old_listeners)

    def _open(self) -> None:
        try:
            for server in self.servers:
                if not self._is_stopped:
                    self._start_server(server)
        except Exception:
            # Either all servers run or none, so that the next attempt starts
            # them all.
            self._try_stop_all()
            raise
        if self._is_stopped:
            # Nova may have stopped a server before it was started here.
            self._try_stop_all()
            return
        self._is_closed = False
        self._close_old_listeners()
        again = ' again' if self._has_opened else ''
        self._has_opened = True
        LOG.info(
            'The lease is in force%(again)s: requests are served',
            {'again': again},
        )

    def _start_server(self, server: DeferredRpcServer) -> None:
        """Start a server that was stopped or never started.

        Its old listener is removed first: stopping a server whose start
        failed would otherwise stop that listener again, and a listener of
        the RabbitMQ driver cannot be stopped twice.
        """
        self._old_listeners.append(server.listener)
        server.listener = None
        server.begin()
        if server.listener is None:
            raise RuntimeError('an RPC server did nothing when started')

    def _try_stop_all(self) -> None:
        """Stop the servers so that they can be started again; log errors."""
        for server in self.servers:
            try:
                server.stop()
            except Exception as exc:
                LOG.info('Could not stop RPC: %(error)s', {'error': exc})

    def _close_old_listeners(self) -> None:
        """Close the connections of listeners that were replaced."""
        listeners, self._old_listeners = self._old_listeners, []
        for listener in filter(None, listeners):
            try:
                # wait() would block on handlers that wait at the gate.
                listener.cleanup()
            except Exception as exc:
                LOG.info(
                    'Could not close a former connection: %(error)s',
                    {'error': exc},
                )


def _stop_all(servers: Iterable[DeferredRpcServer]) -> None:
    """Stop each server, also after an error of another; then raise it."""
    failures = []
    for server in servers:
        try:
            server.stop()
        except Exception as exc:
            failures.append(exc)
    if failures:
        raise failures[0]

# SPDX-License-Identifier: Apache-2.0
"""The HTTP server of the agent's port: few threads, each for a limited time.

The server is that of the standard library. A connection that lasts too long
is shut, and earlier if a new one waits for its place; therefore clients that
send nothing cannot keep a probe from its answer. A port that is in use ends no
daemon: the thread tries again.
"""

import socket
import socketserver
import threading
from collections.abc import Callable
from typing import Any
from wsgiref import simple_server

from oslo_log import log as logging

from hashring.clock import Clock

LOG = logging.getLogger(__name__)

CONNECTIONS_MAX_COUNT = 8
# Seconds for a whole request, and for each single read or write of it.
REQUEST_MAX_S = 10.0
_SOCKET_TIMEOUT_S = 5.0
# Seconds until the port is tried again.
RETRY_S = 60.0
_POLL_S = 1.0
# While a new connection waits because as many are open as may be, those are
# shut that have sent no whole request for so long, and those that have lasted
# for so long. An ordinary client sends and gets everything in milliseconds.
_CROWDED_SILENT_MAX_S = 0.1
_CROWDED_MAX_S = 1.0
_ROOM_POLL_S = 0.05
_ROOM_WAIT_S = 3.0


class _Handler(simple_server.WSGIRequestHandler):
    timeout = _SOCKET_TIMEOUT_S
    server: 'BoundedServer'

    def parse_request(self) -> bool:
        is_whole = super().parse_request()
        if is_whole:
            self.server.note_sent(self.connection)
        return is_whole

    def log_message(self, format: str, *args: Any) -> None:
        # As a literal, because a client may send control characters.
        LOG.debug('agent_port: %(what)r', {'what': format % args})


class BoundedServer(simple_server.WSGIServer):
    """Serves a WSGI application in a few threads.

    :raises OSError: the port is in use, or the address is not of this machine
    """

    allow_reuse_port = False
    request_queue_size = 32

    def __init__(
        self,
        address: str,
        port: int,
        application: Any,
        clock: Clock,
        request_max_s: float = REQUEST_MAX_S,
    ) -> None:
        self._clock = clock
        self._request_max_s = request_max_s
        # Connection -> when it was accepted.
        self._open: dict[socket.socket, float] = {}
        # Those whose whole request has been read.
        self._has_sent: set[socket.socket] = set()
        self._has_changed = threading.Condition()
        found = socket.getaddrinfo(
            address, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )
        self.address_family, _, _, _, bound = found[0]
        super().__init__(bound[:2], _Handler)  # type: ignore[arg-type]
        self.set_app(application)

    def server_bind(self) -> None:
        # Without the search for the machine's full name, which may wait for
        # DNS.
        socketserver.TCPServer.server_bind(self)
        self.server_name, self.server_port = self.server_address[:2]  # type: ignore[assignment]
        self.setup_environ()

    # ---- the thread that accepts

    def get_request(self) -> Any:
        try:
            return super().get_request()
        except OSError:
            # Without free file descriptors the next try would come at once.
            self._clock.sleep(_POLL_S)
            raise

    def process_request(self, request: Any, client_address: Any) -> None:
        with self._has_changed:
            if not self._wait_for_room():
                self.shutdown_request(request)
                return
            self._open[request] = self._clock.now_s()
        thread = threading.Thread(
            target=self._serve,
            args=(request, client_address),
            name='agent-port',
            daemon=True,
        )
        try:
            thread.start()
        except RuntimeError:  # The process has too many threads.
            self._close(request)

    def service_actions(self) -> None:
        """Shut what lasts too long; called each second at least."""
        with self._has_changed:
            self._shut_if(lambda each, age_s: age_s >= self._request_max_s)

    def _wait_for_room(self) -> bool:
        """Wait until one more connection may be open; return whether it may.

        The caller has the lock.
        """
        ends_s = self._clock.now_s() + _ROOM_WAIT_S
        while len(self._open) >= CONNECTIONS_MAX_COUNT:
            self._shut_if(self._is_in_the_way)
            self._has_changed.wait(_ROOM_POLL_S)
            if self._clock.now_s() >= ends_s:
                break
        return len(self._open) < CONNECTIONS_MAX_COUNT

    def _is_in_the_way(self, connection: socket.socket, age_s: float) -> bool:
        is_silent = connection not in self._has_sent
        limit_s = _CROWDED_SILENT_MAX_S if is_silent else _CROWDED_MAX_S
        return age_s >= limit_s

    def _shut_if(self, should: Callable[[socket.socket, float], bool]) -> None:
        now_s = self._clock.now_s()
        for connection, since_s in self._open.items():
            if should(connection, now_s - since_s):
                _shut(connection)

    # ---- the thread of one connection

    def note_sent(self, request: socket.socket) -> None:
        """Note that the client has sent its whole request."""
        with self._has_changed:
            self._has_sent.add(request)

    def _serve(self, request: socket.socket, client_address: Any) -> None:
        try:
            self.finish_request(request, client_address)
        # A client that has gone, or sent what is no request.
        except Exception as exc:
            LOG.debug('A request ended early: %(why)r', {'why': exc})
        finally:
            self._close(request)

    def _close(self, request: socket.socket) -> None:
        with self._has_changed:
            # Before it is closed, so that nobody shuts another connection
            # that gets its number.
            self._open.pop(request, None)
            self._has_sent.discard(request)
            self._has_changed.notify()
        self.shutdown_request(request)


def _shut(connection: socket.socket) -> None:
    """End the connection's reads and writes; its thread then closes it."""
    try:
        connection.shutdown(socket.SHUT_RDWR)
    except OSError as exc:
        LOG.debug('The client has gone: %(why)s', {'why': exc})


class PortThread:
    """Opens the port and serves it for the life of the process.

    :param make_server: makes the server
    :param address: for the log
    :param port: for the log
    """

    def __init__(
        self,
        make_server: Callable[[], BoundedServer],
        address: str,
        port: int,
        clock: Clock,
        retry_s: float = RETRY_S,
    ) -> None:
        self._make_server = make_server
        self._retry_s = retry_s
        self._where = {'address': address, 'port': port}
        self._clock = clock
        self._has_failed = False

    def start(self) -> None:
        """Start the thread; returns at once."""
        threading.Thread(
            target=self._run, name='agent-port', daemon=True
        ).start()

    def _run(self) -> None:
        while True:
            try:
                self.serve()
            # Even a bug must not leave the daemon without its port.
            except Exception:
                LOG.exception('The agent port failed')
            self._clock.sleep(self._retry_s)

    def serve(self) -> None:
        """Open the port and serve it; return if it cannot be opened."""
        try:
            server = self._make_server()
        # UnicodeError: no name of a machine can be as the address is.
        except (OSError, UnicodeError) as exc:
            if not self._has_failed:
                LOG.error(
                    'Could not open [ironic_compute] agent_port %(port)d on '
                    '%(address)s, trying again each minute: %(why)s',
                    {**self._where, 'why': exc},
                )
            self._has_failed = True
            return
        self._has_failed = False
        LOG.info(
            'Serves health, metrics and state of this daemon on '
            '%(address)s:%(port)d',
            self._where,
        )
        with server:
            server.serve_forever(_POLL_S)

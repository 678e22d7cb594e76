# SPDX-License-Identifier: Apache-2.0
"""The HTTP server of the agent's port, on a loopback port."""

import contextlib
import http.client
import logging
import socket
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import pytest

from hashring.clock import Clock, SystemClock
from ironic_compute.agent_port.agent_metrics import BackendMetrics
from ironic_compute.agent_port.application import Application, Snapshot
from ironic_compute.agent_port.server import (
    CONNECTIONS_MAX_COUNT,
    BoundedServer,
    PortThread,
)
from ironic_compute.journal.moves import Move, Query
from tests.fakes.clock import ManualClock
from tests.unit.ironic_compute.agent_port.statuses import WELL

ADDRESS = '127.0.0.1'
CLOCK = SystemClock()


def greet(
    environ: dict[str, Any], start_response: Callable[..., Any]
) -> Iterable[bytes]:
    """Answer each request with a word."""
    start_response('200 OK', [('Content-Length', '5')])
    return [b'hello']


class SlowClock(SystemClock):
    """A clock at a fifth of the speed, so that a busy machine is fast enough.

    The clients of these tests share the processors with other tests. They may
    need longer than the 0.1 s after which a silent client is shut.
    """

    def now_s(self) -> float:
        return super().now_s() / 5


@contextlib.contextmanager
def serving(
    application: Any = greet,
    request_max_s: float = 10.0,
    clock: Clock = CLOCK,
) -> Iterator[BoundedServer]:
    """Serve an application on a free port."""
    with BoundedServer(
        ADDRESS, 0, application, clock, request_max_s
    ) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.1,))
        thread.start()
        try:
            yield server
        finally:
            server.shutdown()
            thread.join()


@pytest.fixture
def server() -> Iterator[BoundedServer]:
    """A server that greets."""
    with serving() as made:
        yield made


def get(
    server: BoundedServer, timeout_s: float = 10.0, path: str = '/'
) -> bytes:
    """Return the answer to one request."""
    connection = http.client.HTTPConnection(
        ADDRESS, server.server_port, timeout=timeout_s
    )
    with contextlib.closing(connection):
        connection.request('GET', path)
        return connection.getresponse().read()


def connect(server: BoundedServer) -> socket.socket:
    """Return a connection of a client that sends a part of a request."""
    client = socket.create_connection((ADDRESS, server.server_port))
    client.sendall(b'GET / HTTP/1.1\r\nX-Slow: ')
    return client


def test_many_requests_are_answered() -> None:
    """More clients at once than threads: the others wait for their turn.

    The clock stands still, so that no client is shut because it is slow.
    """
    answers: list[bytes] = []
    with serving(clock=ManualClock()) as server:
        threads = [
            threading.Thread(target=lambda: answers.append(get(server)))
            for _ in range(5 * CONNECTIONS_MAX_COUNT)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert answers == [b'hello'] * len(threads)


def test_silent_clients_keep_no_probe_from_its_answer() -> None:
    """Three times as many slow clients as threads: a probe comes through."""
    with serving(clock=SlowClock()) as server:
        slow = [connect(server) for _ in range(3 * CONNECTIONS_MAX_COUNT)]
        before = threading.active_count()
        for _ in range(3):
            assert get(server) == b'hello'
        assert threading.active_count() <= before + CONNECTIONS_MAX_COUNT
        for client in slow:
            client.close()


def test_more_clients_than_threads_are_refused_if_none_ends() -> None:
    """A page that hangs costs its threads, and not one more each time."""
    may_end = threading.Event()

    def hang(environ: Any, start_response: Callable[..., Any]) -> list[bytes]:
        may_end.wait(60.0)
        start_response('200 OK', [])
        return [b'']

    with serving(hang) as server:
        clients = [
            socket.create_connection((ADDRESS, server.server_port))
            for _ in range(CONNECTIONS_MAX_COUNT)
        ]
        for client in clients:
            client.sendall(b'GET / HTTP/1.0\r\n\r\n')
        with pytest.raises((http.client.HTTPException, OSError)):
            get(server)
        may_end.set()
        assert get(server) == b''
        for client in clients:
            client.close()


def test_a_disk_that_hangs_keeps_no_probe_from_its_answer() -> None:
    """The page reads journals from a disk, and the other pages do not."""
    may_end = threading.Event()

    def hang(query: Query) -> list[Move]:
        may_end.wait(60.0)
        return []

    application = Application(CLOCK, BackendMetrics(CLOCK), hang)
    application.publish(Snapshot(WELL, {}))
    with serving(application) as server:
        clients = [
            request(server, path)
            for path in ('/api/v1/moves', '/metrics') * CONNECTIONS_MAX_COUNT
        ]
        try:
            assert b'main loop turned' in get(server, path='/healthz')
            assert b'ironic_compute' in get(server, path='/metrics')
        finally:
            may_end.set()
        for client in clients:
            client.close()


def request(server: BoundedServer, path: str) -> socket.socket:
    """Return a connection of a client that waits for its answer."""
    client = socket.create_connection((ADDRESS, server.server_port))
    client.sendall(f'GET {path} HTTP/1.0\r\n\r\n'.encode())
    return client


def test_a_request_that_takes_too_long_is_ended() -> None:
    """A byte now and then does not keep a connection open."""
    with serving(request_max_s=0.3) as server, connect(server) as client:
        client.settimeout(10.0)
        with pytest.raises(ConnectionError):
            while True:
                client.sendall(b'x')
                time.sleep(0.05)


@pytest.mark.parametrize(
    'request_line',
    [b'\x16\x03\x01\x02\r\n', b'GET\r\n', b'\r\n', b'A' * 70000],
)
def test_what_is_no_request_ends_its_connection_only(
    server: BoundedServer,
    request_line: bytes,
    capfd: pytest.CaptureFixture[str],
) -> None:
    """TLS, noise and endless lines are refused, and print nothing."""
    with socket.create_connection((ADDRESS, server.server_port)) as client:
        client.sendall(request_line)
        client.shutdown(socket.SHUT_WR)
        client.settimeout(10.0)
        with contextlib.suppress(ConnectionResetError):
            while client.recv(1000):
                pass
    assert get(server) == b'hello'
    assert capfd.readouterr().err == ''


def test_a_client_that_goes_prints_nothing(
    server: BoundedServer, capfd: pytest.CaptureFixture[str]
) -> None:
    """Half a request, and a whole one whose answer nobody reads."""
    connect(server).close()
    with socket.create_connection((ADDRESS, server.server_port)) as client:
        client.sendall(b'GET / HTTP/1.0\r\n\r\n')
    assert get(server) == b'hello'
    assert capfd.readouterr().err == ''


def test_an_ipv6_address_is_served() -> None:
    """The family of the socket follows from the address."""
    with contextlib.suppress(OSError):
        BoundedServer('::1', 0, greet, CLOCK).server_close()
        return
    pytest.skip('no IPv6 here')


def port_thread(port: int, address: str = ADDRESS) -> PortThread:
    """Return the thread of a port, not started."""
    return PortThread(
        lambda: BoundedServer(address, port, greet, CLOCK),
        address,
        port,
        ManualClock(),
    )


def test_a_port_in_use_is_one_error_that_names_option_and_port(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Each further try is silent."""
    with socket.create_server((ADDRESS, 0)) as taken:
        number = taken.getsockname()[1]
        thread = port_thread(number)
        for _ in range(3):
            thread.serve()
    (record,) = caplog.records
    assert record.levelno == logging.ERROR
    message = record.getMessage()
    assert f'[ironic_compute] agent_port {number} on 127.0.0.1' in message
    assert 'in use' in message


@pytest.mark.parametrize('address', ['192.0.2.1', 'no.such.invalid', 'a..b'])
def test_a_wrong_address_is_one_error(
    address: str, caplog: pytest.LogCaptureFixture
) -> None:
    """An address of another machine, and names that nobody has."""
    thread = port_thread(0, address)
    thread.serve()
    thread.serve()
    (message,) = caplog.messages
    assert address in message


def test_a_port_that_is_free_again_is_opened(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """The thread tries again, and says when it serves."""
    caplog.set_level(logging.INFO)
    with socket.create_server((ADDRESS, 0)) as taken:
        number = taken.getsockname()[1]
        PortThread(
            lambda: BoundedServer(ADDRESS, number, greet, CLOCK),
            ADDRESS,
            number,
            CLOCK,
            retry_s=0.05,
        ).start()
        time.sleep(0.3)
    ends_s = time.monotonic() + 20.0
    while 'Serves health' not in caplog.text:
        assert time.monotonic() < ends_s
        time.sleep(0.05)
    assert caplog.text.count('Could not open') == 1
    connection = http.client.HTTPConnection(ADDRESS, number, timeout=10)
    connection.request('GET', '/')
    assert connection.getresponse().read() == b'hello'
    connection.close()

# SPDX-License-Identifier: Apache-2.0
"""The TCP proxy, as a process of its own, between real sockets."""

import contextlib
import socket
import subprocess
import sys
import threading
import time

import pytest
from onemachine.chaos import tcp_proxy
from onemachine.chaos.tcp_proxy import Way
from onemachine.progress import wait_until

SILENCE_S = 0.3
SECRET = b'Marker-of-a-payload'


class Service:
    """A server that keeps its connections, and what arrived on each."""

    def __init__(self):
        self.connections = []
        self.received = []
        self.ends = []
        self._server = socket.create_server(('127.0.0.1', 0))
        self.port = self._server.getsockname()[1]
        threading.Thread(target=self._accept_on, daemon=True).start()

    def _accept_on(self):
        with contextlib.suppress(OSError):
            while True:
                connection, _ = self._server.accept()
                number = len(self.connections)
                self.received.append(b'')
                self.ends.append(None)
                self.connections.append(connection)
                threading.Thread(
                    target=self._read_on, args=(number,), daemon=True
                ).start()

    def _read_on(self, number):
        try:
            while data := self.connections[number].recv(4096):
                self.received[number] += data
                self.connections[number].sendall(b'answer to ' + data)
            self.ends[number] = 'closed'
        except OSError:
            self.ends[number] = 'reset'

    def await_received(self, number, data):
        """Wait until all these bytes have arrived on a connection."""
        wait_until(
            f'{data!r} on connection {number}',
            lambda: self.received[number] == data,
            5,
            0.02,
        )

    def await_end(self, number):
        """Wait until a connection has ended; return how."""
        return wait_until(
            f'end of connection {number}', lambda: self.ends[number], 5, 0.02
        )

    def close(self):
        """Close all sockets."""
        # A thread that waits in accept() would keep the socket listening.
        with contextlib.suppress(OSError):
            self._server.shutdown(socket.SHUT_RDWR)
        for one in (self._server, *self.connections):
            one.close()


class Proxy:
    """A running proxy with one listener, and connections through it."""

    def __init__(self, folder, upstream, expired=None):
        with socket.create_server(('127.0.2.1', 0)) as probe:
            self.place = probe.getsockname()
        self.control = folder / 'control'
        behind = tcp_proxy.Upstream(
            ('127.0.0.1', upstream), expired and ('127.0.0.1', expired)
        )
        places = {'c1/rabbit': (self.place, behind)}
        argument = tcp_proxy.argument(self.control, places, 7)
        self.output = folder / 'output'
        with self.output.open('wb') as output:
            self.process = subprocess.Popen(
                [sys.executable, tcp_proxy.__file__, argument],
                stdout=output,
                stderr=subprocess.STDOUT,
            )
        self._sockets = []
        wait_until('the proxy', lambda: self.turn() or True, 10, 0.05)

    def turn(self, way=None):
        """Have the proxy treat connections another way; return counts."""
        ways = {} if way is None else {'c1/rabbit': way}
        return tcp_proxy.order(self.control, ways)['c1/rabbit']

    def connect(self, timeout_s=5.0):
        """Return a new connection of the host."""
        connection = socket.create_connection(self.place, timeout_s)
        self._sockets.append(connection)
        return connection

    def close(self):
        """End the process."""
        for one in self._sockets:
            one.close()
        self.process.terminate()
        self.process.wait(10)


@pytest.fixture
def service():
    """Return a service that answers."""
    service = Service()
    yield service
    service.close()


@pytest.fixture
def proxy(tmp_path, service):
    """Return a proxy in front of the service."""
    proxy = Proxy(tmp_path, service.port)
    yield proxy
    proxy.close()


def ask(connection, words=SECRET):
    """Send a request, and return its answer."""
    connection.sendall(words)
    return connection.recv(4096)


def is_silent(connection):
    """Return whether a connection is open, with no byte for a while."""
    connection.settimeout(SILENCE_S)
    try:
        return connection.recv(4096) is None
    except TimeoutError:
        return True


def test_all_bytes_pass_at_first(proxy, service):
    """Requests, answers and the end of a connection arrive."""
    host = proxy.connect()
    assert ask(host) == b'answer to ' + SECRET
    host.close()
    assert service.await_end(0) == 'closed'
    assert proxy.turn() == tcp_proxy.Counts(accepted=1)


def test_answer_arrives_after_the_host_has_sent_all(proxy, service):
    """A host that ends its half of a connection still gets the answer."""
    host = proxy.connect()
    host.sendall(SECRET)
    host.shutdown(socket.SHUT_WR)
    assert host.recv(4096) == b'answer to ' + SECRET


def test_much_data_passes_unchanged(proxy, service):
    """A large request and its answer pass in order."""
    host = proxy.connect()
    words = bytes(range(256)) * 4096
    threading.Thread(target=host.sendall, args=(words,), daemon=True).start()
    size, limit = 0, len(words)
    while size < limit:
        size += len(host.recv(65536))
    service.await_received(0, words)


def test_refused_resets_connections_and_listens_no_more(proxy, service):
    """Present connections are reset at both ends, and new ones refused."""
    host = proxy.connect()
    ask(host)
    proxy.turn(Way.REFUSED)
    with pytest.raises(ConnectionResetError):
        host.recv(4096)
    assert service.await_end(0) == 'reset'
    with pytest.raises(ConnectionRefusedError):
        proxy.connect()
    assert proxy.turn(Way.PASS).resets == 1
    assert ask(proxy.connect()) == b'answer to ' + SECRET


def test_black_hole_swallows_both_directions(proxy, service):
    """A connection stays open, and no byte of it arrives."""
    host = proxy.connect()
    ask(host, b'one')
    proxy.turn(Way.BLACK_HOLE)
    host.sendall(b'two')
    service.connections[0].sendall(b'three')
    assert is_silent(host)
    assert service.received[0] == b'one'
    assert service.ends[0] is None
    assert proxy.turn().lost_bytes == len(b'two' + b'three')


def test_black_hole_keeps_new_connections_from_the_service(proxy, service):
    """A new connection is open, without an answer and without a service."""
    proxy.turn(Way.BLACK_HOLE)
    host = proxy.connect()
    host.sendall(SECRET)
    assert is_silent(host)
    assert service.connections == []
    proxy.turn(Way.PASS)
    with pytest.raises(ConnectionResetError):
        host.recv(4096)


def test_connection_with_a_gap_is_reset_at_the_end(proxy, service):
    """Once bytes are lost, the rest of the stream must not arrive."""
    torn, idle = proxy.connect(), proxy.connect()
    ask(torn)
    ask(idle)
    proxy.turn(Way.BLACK_HOLE)
    torn.sendall(b'lost')
    assert is_silent(torn)
    proxy.turn(Way.PASS)
    with pytest.raises(ConnectionResetError):
        torn.recv(4096)
    idle.settimeout(5)
    assert ask(idle) == b'answer to ' + SECRET


@pytest.mark.parametrize('way', [Way.BLACK_HOLE, Way.ONE_WAY_IN])
@pytest.mark.parametrize('how', ['closed', 'reset'])
def test_service_does_not_see_the_end_of_a_host(proxy, service, way, how):
    """The connection of a host that is gone stays, until the path works."""
    host = proxy.connect()
    ask(host)
    proxy.turn(way)
    if how == 'reset':
        host.setsockopt(
            socket.SOL_SOCKET, socket.SO_LINGER, tcp_proxy._RESET_ON_CLOSE
        )
    host.close()
    time.sleep(SILENCE_S)
    assert service.ends[0] is None
    proxy.turn(Way.PASS)
    assert service.await_end(0) == 'reset'


@pytest.mark.parametrize('way', [Way.BLACK_HOLE, Way.ONE_WAY_OUT])
def test_host_does_not_see_the_end_of_a_service(proxy, service, way):
    """A host keeps a connection that the service has closed."""
    host = proxy.connect()
    ask(host)
    proxy.turn(way)
    service.connections[0].shutdown(socket.SHUT_RDWR)
    assert is_silent(host)
    host.sendall(SECRET)
    host.sendall(SECRET)
    assert is_silent(host)


def test_one_way_out_loses_answers_only(proxy, service):
    """Requests arrive, on present and new connections; no answer does."""
    former = proxy.connect()
    ask(former, b'one')
    proxy.turn(Way.ONE_WAY_OUT)
    new = proxy.connect()
    former.sendall(b'two')
    new.sendall(b'three')
    service.await_received(0, b'onetwo')
    service.await_received(1, b'three')
    assert is_silent(former)
    assert is_silent(new)


def test_one_way_in_loses_requests_only(proxy, service):
    """What the service sends arrives; no byte of the host does."""
    host = proxy.connect()
    ask(host, b'one')
    proxy.turn(Way.ONE_WAY_IN)
    host.sendall(b'two')
    service.connections[0].sendall(b'three')
    assert host.recv(4096) == b'three'
    assert is_silent(host)
    assert service.received[0] == b'one'


def test_nine_of_ten_connections_are_reset(proxy, service):
    """Most connections are reset after some bytes, the others work."""
    proxy.turn(Way.RESETS)
    whole = 0
    for _ in range(100):
        host = proxy.connect()
        with contextlib.suppress(ConnectionResetError, BrokenPipeError):
            whole += len(ask(host, b'x' * 1001)) > 0
    assert 1 <= whole <= 25
    assert proxy.turn().resets == 100 - whole


def test_present_connections_are_reset_after_some_bytes(proxy, service):
    """With resets, most connections that were open before are reset, too."""
    hosts = [proxy.connect() for _ in range(20)]
    for host in hosts:
        ask(host)
    assert proxy.turn(Way.RESETS).resets == 0
    whole = 0
    for host in hosts:
        with contextlib.suppress(ConnectionResetError, BrokenPipeError):
            whole += len(ask(host, b'x' * 1001)) > 0
    assert whole <= 10
    proxy.turn(Way.PASS)
    assert ask(proxy.connect(), b'x' * 1001)


def test_no_connection_is_lucky_for_long(proxy, service):
    """With resets, a connection that is kept open is reset some time."""
    hosts = [proxy.connect() for _ in range(100)]
    for host in hosts:
        ask(host)
    proxy.turn(Way.RESETS)
    answers = [0] * len(hosts)
    for number, host in enumerate(hosts):
        with contextlib.suppress(ConnectionResetError, BrokenPipeError):
            for _ in range(200):
                answers[number] += len(ask(host, b'x' * 1001)) > 0
    assert max(answers) >= 9
    assert max(answers) < 200


def test_host_sees_a_reset_if_the_service_is_gone(proxy, service):
    """A service that does not listen resets the connection of the host."""
    service.close()
    with pytest.raises(ConnectionResetError):
        ask(proxy.connect())


def test_unknown_orders_are_refused_as_a_whole(proxy, service):
    """An order with an unknown name or way changes nothing."""
    for ways in (
        {'c1/rabbit': 'refused', 'c9/rabbit': 'refused'},
        {'c1/rabbit': 'sideways'},
    ):
        with pytest.raises(ValueError, match=r'c9/rabbit|sideways'):
            tcp_proxy.order(proxy.control, ways)
    assert ask(proxy.connect()) == b'answer to ' + SECRET


def test_no_payload_reaches_the_output(proxy, service):
    """The process writes nothing of what passes, whatever happens to it."""
    for way in Way:
        host = proxy.connect()
        with contextlib.suppress(OSError):
            ask(host)
        with contextlib.suppress(ValueError):
            proxy.turn(way)
        with contextlib.suppress(OSError):
            host.settimeout(SILENCE_S)
            ask(host)
        proxy.turn(Way.PASS)
    assert proxy.process.poll() is None
    assert proxy.output.read_bytes() == b''


def test_expired_resets_and_leads_elsewhere(tmp_path, service):
    """Present connections are reset; new ones meet the old certificate."""
    expired = Service()
    proxy = Proxy(tmp_path, service.port, expired.port)
    try:
        host = proxy.connect()
        ask(host)
        proxy.turn(Way.EXPIRED)
        with pytest.raises(ConnectionResetError):
            host.recv(4096)
        assert ask(proxy.connect()) == b'answer to ' + SECRET
        assert (len(service.connections), len(expired.connections)) == (1, 1)
        proxy.turn(Way.PASS)
        ask(proxy.connect())
        assert len(service.connections) == 2
    finally:
        proxy.close()
        expired.close()


def test_nothing_expires_without_tls(proxy):
    """The order is refused, and connections go on."""
    host = proxy.connect()
    ask(host)
    with pytest.raises(ValueError, match='without TLS'):
        proxy.turn(Way.EXPIRED)
    assert ask(host) == b'answer to ' + SECRET

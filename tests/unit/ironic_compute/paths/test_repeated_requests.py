# SPDX-License-Identifier: Apache-2.0
"""A request to Neutron without an answer is repeated, if that is safe."""

import contextlib
import datetime
import socket
import ssl
import tempfile
import threading
import types
from collections.abc import Callable
from typing import Any

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID
from keystoneauth1 import exceptions as ksa_exceptions
from keystoneauth1 import session
from nova import utils

from ironic_compute.paths.repeated_requests import (
    RepeatedRequests,
    waiting_at_most,
)
from tests.fakes.clock import ManualClock

_WAIT_S = 75.0


class _Neutron:
    """Answers the requests of a test, each with what comes next."""

    def __init__(self, *answers: Exception | int, last: Any = 200) -> None:
        self.clock = ManualClock()
        self.count = 0
        self._answers = list(answers)
        self._last = last

    def _send(self) -> Any:
        self.count += 1
        answer = self._answers.pop(0) if self._answers else self._last
        if isinstance(answer, Exception):
            raise answer
        return types.SimpleNamespace(status_code=answer)

    def call(self, method: str = 'GET') -> int:
        """Send a request; return the status of its response."""
        repeats = RepeatedRequests(self.clock, _WAIT_S)
        response = repeats.call(method, self._send)
        status: int = response.status_code
        return status


def _error_of(
    port: int, *, scheme: str = 'http', timeout_s: float = 10.0
) -> ksa_exceptions.ConnectionError:
    """Return keystoneauth1's own error of a request to a port."""
    url = f'{scheme}://127.0.0.1:{port}'
    with pytest.raises(ksa_exceptions.ConnectionError) as raised:
        session.Session(timeout=timeout_s).get(url)
    return raised.value


def _silent() -> ksa_exceptions.ConnectionError:
    """Return the error of a service that takes a request and is silent."""
    with socket.create_server(('127.0.0.1', 0)) as server:
        return _error_of(server.getsockname()[1], timeout_s=0.5)


def _refused() -> ksa_exceptions.ConnectionError:
    """Return the error of a connection to a port without a listener."""
    with socket.create_server(('127.0.0.1', 0)) as server:
        port = server.getsockname()[1]
    return _error_of(port)


def _broken() -> ksa_exceptions.ConnectionError:
    """Return the error of a connection that breaks before the answer."""
    with socket.create_server(('127.0.0.1', 0)) as server:

        def serve() -> None:
            connection, _ = server.accept()
            connection.recv(1000)
            connection.close()

        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        error = _error_of(server.getsockname()[1])
        thread.join(60.0)
    return error


def _unconnected() -> ksa_exceptions.ConnectionError:
    """Return the error of packets that nobody answers: the queue is full."""
    with socket.create_server(('127.0.0.1', 0), backlog=0) as server:
        address = server.getsockname()
        with contextlib.ExitStack() as queue:
            for _ in range(3):
                waiting = queue.enter_context(socket.socket())
                waiting.setblocking(False)
                waiting.connect_ex(address)
            return _error_of(address[1], timeout_s=0.5)


def _untrusted() -> ksa_exceptions.ConnectionError:
    """Return the error of a server whose certificate nobody has signed."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    with tempfile.NamedTemporaryFile() as file:
        file.write(_certificate())
        file.flush()
        context.load_cert_chain(file.name)
    with socket.create_server(('127.0.0.1', 0)) as server:

        def serve() -> None:
            connection, _ = server.accept()
            with contextlib.suppress(OSError):
                context.wrap_socket(connection, server_side=True)
            connection.close()

        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        error = _error_of(server.getsockname()[1], scheme='https')
        thread.join(60.0)
    return error


def _certificate() -> bytes:
    """Return a key and its own certificate, as PEM."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, 'neutron')])
    now = datetime.datetime.now(datetime.UTC)
    certificate = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(days=1))
        .not_valid_after(now + datetime.timedelta(days=1))
        .sign(key, hashes.SHA256())
    )
    return key.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.NoEncryption(),
    ) + certificate.public_bytes(serialization.Encoding.PEM)


def _unavailable() -> int:
    return 503


# pytest imports urllib3 before eventlet can replace its module of TLS. A
# worker has eventlet do that first.
_needs_tls = pytest.mark.skipif(
    not utils.concurrency_mode_threading(), reason='TLS breaks below pytest'
)


@pytest.mark.parametrize('method', ['GET', 'PUT', 'DELETE', 'POST'])
@pytest.mark.parametrize(
    'fail',
    [
        _refused,
        _unconnected,
        pytest.param(_untrusted, marks=_needs_tls),
        _unavailable,
    ],
)
def test_what_was_certainly_not_done_is_sent_again(
    method: str, fail: Callable[[], Any]
) -> None:
    """Neutron gets it once, when it answers again."""
    failure = fail()
    neutron = _Neutron(failure, failure)
    assert neutron.call(method) == 200
    assert neutron.count == 3


@pytest.mark.parametrize('method', ['GET', 'PUT', 'DELETE'])
@pytest.mark.parametrize(
    'failure',
    [
        _broken(),
        ksa_exceptions.ConnectTimeout(),
        ksa_exceptions.SSLError(),
        ksa_exceptions.UnknownConnectionError('cut', OSError()),
        502,
        504,
    ],
)
def test_what_may_be_done_twice_is_sent_again(
    method: str, failure: Any
) -> None:
    """Nobody knows whether Neutron has done it."""
    neutron = _Neutron(failure)
    assert neutron.call(method) == 200
    assert neutron.count == 2


@pytest.mark.parametrize(
    'failure',
    [
        _broken(),
        _silent(),
        ksa_exceptions.ConnectTimeout(),
        # A connection may lose its encryption after the request was sent.
        ksa_exceptions.SSLError(),
    ],
)
def test_port_is_not_created_twice(failure: Exception) -> None:
    """The answer to the first request may be lost."""
    neutron = _Neutron(failure)
    with pytest.raises(ksa_exceptions.ConnectionError):
        neutron.call('POST')
    assert neutron.count == 1


def test_refusal_that_is_handled_meanwhile_is_another_request() -> None:
    """Python links each error with the one whose handler it occurs in."""
    try:
        raise _refused()
    except ksa_exceptions.ConnectionError:
        neutron = _Neutron(_broken())
        with pytest.raises(ksa_exceptions.ConnectionError):
            neutron.call('POST')
    assert neutron.count == 1


@pytest.mark.parametrize('status', [200, 201, 204, 400, 401, 404, 409, 500])
def test_an_answer_is_final(status: int) -> None:
    """Errors are answers, too."""
    neutron = _Neutron(status)
    assert neutron.call() == status
    assert neutron.count == 1


@pytest.mark.parametrize(('method', 'status'), [('POST', 502), ('GET', 503)])
def test_answer_of_a_proxy_is_returned_in_the_end(
    method: str, status: int
) -> None:
    """Nova makes an error of it, as if it were the only answer."""
    assert _Neutron(last=status).call(method) == status


def test_request_fails_when_its_time_is_up() -> None:
    """The time begins with the first failure, which may have been late."""
    neutron = _Neutron(last=_refused())
    begun_s = neutron.clock.now_s()
    with pytest.raises(ksa_exceptions.ConnectFailure):
        neutron.call()
    assert neutron.clock.now_s() - begun_s == _WAIT_S
    assert neutron.count == 26


def test_caller_can_wait_for_less() -> None:
    """A probe sends one request; the limit ends with its block."""
    neutron = _Neutron(last=_refused())
    with waiting_at_most(0.0), pytest.raises(ksa_exceptions.ConnectFailure):
        neutron.call()
    assert neutron.count == 1
    with pytest.raises(ksa_exceptions.ConnectFailure):
        neutron.call()
    assert neutron.count == 1 + 26

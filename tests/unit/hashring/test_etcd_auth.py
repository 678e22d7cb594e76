# SPDX-License-Identifier: Apache-2.0
"""Tokens of etcd, on a gateway that gives and ends them."""

import http.server
import json
import threading
from collections.abc import Iterator

import etcd3gw
import pytest

from hashring import errors
from hashring.backend import Credentials
from hashring.etcd_auth import EtcdAuth


class Gateway(http.server.ThreadingHTTPServer):
    """The requests of etcd's gateway that the tests make."""

    def __init__(self) -> None:
        super().__init__(('127.0.0.1', 0), _Handler)
        self.given_count = 0
        self.valid = 'token0'
        self.refusal = (401, 'etcdserver: invalid auth token')
        self.seen: list[tuple[str, str | None]] = []

    def end_token(self) -> None:
        self.valid = 'none'

    def answer(
        self, path: str, token: str | None, body: dict[str, str]
    ) -> tuple[int, dict[str, str]]:
        self.seen.append((path, token))
        if path == '/v3/auth/authenticate':
            if body != {'name': 'me', 'password': 'sesame'}:
                return 400, {'error': 'authentication failed'}
            self.given_count += 1
            self.valid = f'token{self.given_count}'
            return 200, {'token': self.valid}
        if token != self.valid:
            status, text = self.refusal
            return status, {'error': text}
        return 200, {'ID': '7'}


class _Handler(http.server.BaseHTTPRequestHandler):
    server: Gateway

    def do_POST(self) -> None:
        size = int(self.headers['Content-Length'])
        body = json.loads(self.rfile.read(size))
        token = self.headers.get('Authorization')
        self._send(*self.server.answer(self.path, token, body))

    def do_GET(self) -> None:
        assert 'Authorization' not in self.headers
        self._send(200, {'etcdserver': '3.5.0'})

    def _send(self, status: int, content: dict[str, str]) -> None:
        self.send_response(status)
        self.end_headers()
        self.wfile.write(json.dumps(content).encode())

    def log_message(self, *args: object) -> None:
        pass


@pytest.fixture
def gateway() -> Iterator[Gateway]:
    with Gateway() as server:
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        yield server
        server.shutdown()
        thread.join()


def make(gateway: Gateway, password: str = 'sesame') -> etcd3gw.Etcd3Client:
    client = etcd3gw.client(
        host='127.0.0.1', port=gateway.server_port, timeout=5
    )
    client.session.trust_env = False
    client.session.auth = EtcdAuth(client, Credentials('me', password))
    return client


def test_one_token_serves_many_requests(gateway: Gateway) -> None:
    """The version is asked without one, and the token without another."""
    client = make(gateway)
    client.lease(5)
    client.lease(5)
    assert gateway.given_count == 1
    assert gateway.seen[0] == ('/v3/auth/authenticate', None)
    assert {token for _, token in gateway.seen[1:]} == {'token1'}


@pytest.mark.parametrize(
    'refusal',
    [
        (401, 'etcdserver: invalid auth token'),
        (400, 'etcdserver: revision of auth store is old'),
    ],
)
def test_ended_token_is_renewed(
    gateway: Gateway, refusal: tuple[int, str]
) -> None:
    """The refused request is repeated with the new one."""
    client = make(gateway)
    client.lease(5)
    gateway.refusal = refusal
    gateway.end_token()
    assert client.lease(5).id == 7
    assert gateway.given_count == 2


def test_other_refusals_are_kept(gateway: Gateway) -> None:
    """Neither a bad request nor a missing right needs another token."""
    client = make(gateway)
    client.lease(5)
    gateway.end_token()
    for status in (400, 403):
        gateway.refusal = (status, 'etcdserver: permission denied')
        with pytest.raises(etcd3gw.exceptions.Etcd3Exception):
            client.lease(5)
    assert gateway.given_count == 1


def test_wrong_password_names_the_user(gateway: Gateway) -> None:
    """And the option, but not the password."""
    with pytest.raises(errors.BackendUnavailable) as caught:
        make(gateway, 'wrong').lease(5)
    assert 'the user me of [coordination] backend_url' in str(caught.value)
    assert 'authentication failed' in str(caught.value)
    assert 'wrong' not in str(caught.value)

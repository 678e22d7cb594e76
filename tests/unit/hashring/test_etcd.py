# SPDX-License-Identifier: Apache-2.0
"""Etcd locks: owner and break, on a fake etcd client."""

import base64
import http.server
import threading
from typing import Any

from tooz import coordination

from hashring import backend, etcd
from hashring.group import LockToken


class Client:
    """The two calls of etcd3gw's client, with one key in memory."""

    def __init__(self) -> None:
        self.values: dict[str, bytes] = {}

    def get(self, key: str) -> list[bytes]:
        return [self.values[key]] if key in self.values else []

    def transaction(self, request: dict[str, Any]) -> None:
        (compare,) = request['compare']
        assert (compare['target'], compare['result']) == ('VALUE', 'EQUAL')
        key = base64.b64decode(compare['key']).decode()
        if self.get(key) == [base64.b64decode(compare['value'])]:
            (action,) = request['success']
            deleted = action['request_delete_range']['key']
            del self.values[base64.b64decode(deleted).decode()]


def make() -> Any:
    """Return tooz's driver, not connected, with the fake client."""
    driver = coordination.get_coordinator('etcd3+http://127.0.0.1:1', b'm')
    driver.client = Client()  # type: ignore[attr-defined]
    return driver


def acquire(driver: Any, lock: Any) -> LockToken:
    """Write the token of a lock into etcd."""
    token = etcd.token(lock)
    key = (lock.LOCK_PREFIX + lock.name).decode()
    driver.client.values[key] = base64.b64decode(token)
    return token


def test_owner_is_the_object_whose_token_is_in_etcd() -> None:
    """A lock object owns the lock only while etcd has its token."""
    driver = make()
    one, two = driver.get_lock(b'c1'), driver.get_lock(b'c1')
    assert not etcd.is_owner(driver, one)
    acquire(driver, one)
    assert etcd.is_owner(driver, one) and not etcd.is_owner(driver, two)
    acquire(driver, two)
    assert not etcd.is_owner(driver, one)


def test_lock_is_broken_only_with_its_own_token() -> None:
    """A token of an older acquisition leaves the lock as it is."""
    driver = make()
    one, two = driver.get_lock(b'c1'), driver.get_lock(b'c1')
    former = acquire(driver, one)
    token = acquire(driver, two)
    etcd.break_lock(driver, driver.get_lock(b'c1'), former)
    assert etcd.is_owner(driver, two)
    etcd.break_lock(driver, driver.get_lock(b'c1'), token)
    assert not etcd.is_owner(driver, two)


class _Server(http.server.ThreadingHTTPServer):
    """A server that counts its connections, which stay open."""

    daemon_threads = True
    accepted_count = 0

    def verify_request(self, request: Any, client_address: Any) -> bool:
        self.accepted_count += 1
        return True


class _Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = 'HTTP/1.1'

    def do_GET(self) -> None:
        """Answer with nothing."""
        self.send_response(200)
        self.send_header('Content-Length', '0')
        self.end_headers()

    def log_message(self, *_: Any) -> None:
        """Log nothing."""


def test_request_after_a_reconnect_has_a_new_connection() -> None:
    """The client of etcd keeps connections open otherwise."""
    server = _Server(('127.0.0.1', 0), _Handler)
    thread = threading.Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    url = f'etcd3+http://127.0.0.1:{server.server_port}'
    driver: Any = coordination.get_coordinator(url, b'm')
    adapter = etcd.EtcdAdapter(driver, backend.parse(url, term_s=15.0))
    counts = []
    for _ in range(3):
        for _ in range(2):
            driver.client.session.get(driver.client.base_url, timeout=10)
        counts.append(server.accepted_count)
        adapter.reconnect()
    server.shutdown()
    thread.join()
    server.server_close()
    assert counts == [1, 2, 3]

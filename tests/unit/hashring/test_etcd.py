# SPDX-License-Identifier: Apache-2.0
"""Etcd locks: owner, history and break, on a fake etcd client."""

import base64
import contextlib
import json
from collections.abc import Iterator
from typing import Any

import pytest
from tooz import coordination

from hashring import etcd
from hashring.group import LockToken


class Client:
    """A few calls of etcd3gw's client, with one key in memory."""

    timeout = 3.0

    def __init__(self) -> None:
        self.values: dict[str, bytes] = {}
        self.revision = 7
        self.history: list[dict[str, Any]] = []
        self.session = self

    def get_url(self, path: str) -> str:
        return f'http://etcd/v3{path}'

    def post(self, url: str, json: Any, stream: bool = False, **_: Any) -> Any:
        if url.endswith('/watch'):
            assert stream
            return Stream(self.history, json['create_request'])
        assert url.endswith('/kv/range')
        values = self.get(base64.b64decode(json['key']).decode())
        found = [{'value': base64.b64encode(v).decode()} for v in values]
        header = {'revision': str(self.revision)}
        return (
            {'header': header, 'kvs': found} if found else {'header': header}
        )

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


class Stream(contextlib.AbstractContextManager['Stream']):
    """The answer to a watch: the lines that etcd sends."""

    def __init__(
        self, lines: list[dict[str, Any]], request: dict[str, Any]
    ) -> None:
        self._lines = lines
        self.request = request

    def __exit__(self, *_: object) -> None:
        """Close nothing."""

    def iter_lines(self) -> Iterator[bytes]:
        for line in self._lines:
            yield json.dumps(line).encode()
            yield b''


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
    assert not etcd.owned_at(driver, one)
    acquire(driver, one)
    assert etcd.owned_at(driver, one) and not etcd.owned_at(driver, two)
    acquire(driver, two)
    assert not etcd.owned_at(driver, one)


def test_lock_is_broken_only_with_its_own_token() -> None:
    """A token of an older acquisition leaves the lock as it is."""
    driver = make()
    one, two = driver.get_lock(b'c1'), driver.get_lock(b'c1')
    former = acquire(driver, one)
    token = acquire(driver, two)
    etcd.break_lock(driver, driver.get_lock(b'c1'), former)
    assert etcd.owned_at(driver, two)
    etcd.break_lock(driver, driver.get_lock(b'c1'), token)
    assert not etcd.owned_at(driver, two)


CREATED = {'result': {'header': {}, 'created': True}}
DELETED = {'type': 'DELETE', 'kv': {'key': 'a2V5'}}


def events(*found: Any) -> dict[str, Any]:
    """Return a line of a watch with these events."""
    return {'result': {'header': {}, 'events': list(found)}}


def put(lock: Any) -> dict[str, Any]:
    """Return the event of the acquisition of a lock."""
    return {'kv': {'value': etcd.token(lock)}}


def test_next_holder_is_the_next_acquisition_in_the_history() -> None:
    """Only if nobody else wrote the key since the revision, the lock is ours.

    etcd leaves out the type of a put.
    """
    driver = make()
    client = driver.client
    one, two = driver.get_lock(b'c1'), driver.get_lock(b'c1')
    client.history = [CREATED, events(DELETED), events(put(one))]
    assert etcd.is_next_holder(driver, one, 7)
    assert not etcd.is_next_holder(driver, two, 7)
    client.history = [CREATED, events(DELETED, put(two), DELETED, put(one))]
    assert not etcd.is_next_holder(driver, one, 7)
    client.history = [
        CREATED,
        events({**put(two), 'type': 'PUT'}),
        events(put(one)),
    ]
    assert not etcd.is_next_holder(driver, one, 7)


@pytest.mark.parametrize(
    'lines',
    [
        [CREATED],
        [CREATED, {'result': {'canceled': True, 'compact_revision': '9'}}],
        [{'error': {'code': 8, 'message': 'no'}}],
    ],
)
def test_history_that_etcd_has_not_kept_proves_nothing(lines: Any) -> None:
    """A compacted history, an error or no event is no proof."""
    driver = make()
    driver.client.history = lines
    assert not etcd.is_next_holder(driver, driver.get_lock(b'c1'), 7)

# SPDX-License-Identifier: Apache-2.0
"""Etcd locks: owner and break, on a fake etcd client."""

import base64
from typing import Any

from tooz import coordination

from hashring import etcd
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

# SPDX-License-Identifier: Apache-2.0
"""Memcached's adapter, on a fake client."""

from collections.abc import Callable
from typing import Any

from tooz import coordination

from hashring import backend
from hashring.memcached import MemcachedAdapter

URL = 'memcached://127.0.0.1:1'


class Client:
    """The calls of pymemcache's client, with all keys in memory."""

    def __init__(self) -> None:
        self.values: dict[bytes, Any] = {}
        self.renewed: list[bytes] = []
        self.before_renewal: Callable[[], Any] = list

    def add(self, key: bytes, value: Any, **options: Any) -> bool:
        return self.values.setdefault(key, value) is value

    def set(self, key: bytes, value: Any, **options: Any) -> None:
        self.values[key] = value

    def get(self, key: bytes) -> Any:
        return self.values.get(key)

    def delete(self, key: bytes, **options: Any) -> bool:
        return self.values.pop(key, None) is not None

    def touch(self, key: bytes, **options: Any) -> bool:
        self.before_renewal()
        self.renewed.append(key)
        return key in self.values


def test_lock_is_renewed_while_another_one_is_released() -> None:
    """The lock thread removes it from the list that the heartbeat reads."""
    driver: Any = coordination.get_coordinator(URL, b'member')
    driver.client = client = Client()
    adapter = MemcachedAdapter(driver, backend.parse(URL, term_s=15.0))
    driver._executor.start()
    first, second = adapter.new_lock(b'c1'), adapter.new_lock(b'c2')
    for lock in (first, second):
        assert lock.acquire(blocking=False)
    client.before_renewal = first.release
    client.values[driver.GROUP_LIST_KEY] = [b'pool']
    adapter.heartbeat(b'pool', {})
    assert second.name in client.renewed
    assert first.name not in client.values

# SPDX-License-Identifier: Apache-2.0
"""Redis's adapter: confirmed heartbeats with Sentinel, on fake clients."""

import types
from typing import Any

import pytest
import redis.exceptions

from hashring import backend, errors
from hashring.redis import RedisAdapter

SENTINEL = 'redis://127.0.0.1:26379?sentinel=pool'


class Sentinel:
    """A Sentinel that knows some replicas, or does not answer."""

    def __init__(self, replicas_count: int | None) -> None:
        self._replicas_count = replicas_count
        self.connection_pool = types.SimpleNamespace(
            connection_kwargs={'retry': 'ten times'}
        )

    def sentinel_master(self, name: str) -> dict[str, int]:
        assert name == 'pool'
        if self._replicas_count is None:
            raise redis.exceptions.ConnectionError
        return {'num-slaves': self._replicas_count}


class Pipe:
    """A pipeline whose writes some replicas confirm."""

    def __init__(self, confirmed_count: int) -> None:
        self._confirmed_count = confirmed_count
        self.calls: list[str] = []

    def __enter__(self) -> 'Pipe':
        return self

    def __exit__(self, *exc: object) -> None:
        pass

    def psetex(self, key: bytes, time_ms: int, value: bytes) -> None:
        self.calls.append('write')

    def wait(self, replicas_count: int, timeout_ms: int) -> None:
        self.calls.append(f'wait for {replicas_count}')

    def execute(self) -> list[Any]:
        return [True, self._confirmed_count]


class Driver:
    """tooz's driver with a client of Sentinels."""

    namespace = b'_tooz'

    def __init__(self, confirmed_count: int, *sentinels: Sentinel) -> None:
        self.beats_count = 0
        self.is_connected = True
        self.pipe = Pipe(confirmed_count)
        manager = types.SimpleNamespace(sentinels=sentinels)
        self._client = types.SimpleNamespace(
            pipeline=lambda transaction: self.pipe,
            connection_pool=types.SimpleNamespace(
                sentinel_manager=manager,
                service_name='pool',
                connection_kwargs={},
                disconnect=self._disconnect,
            ),
        )
        self._make_client = lambda *args: self._client

    def _disconnect(self) -> None:
        self.is_connected = False

    def heartbeat(self) -> None:
        self.beats_count += 1


def beat(driver: Driver, url: str = SENTINEL) -> None:
    parsed = backend.parse(url, term_s=15.0)
    RedisAdapter(driver, parsed).heartbeat(b'pool', {})
    assert driver.beats_count == 1


def test_heartbeat_waits_for_one_replica() -> None:
    """The wait follows a write, because Redis waits for writes only."""
    driver = Driver(1, Sentinel(2))
    beat(driver)
    assert driver.pipe.calls == ['write', 'wait for 1']


def test_heartbeat_that_no_replica_has_does_not_count() -> None:
    """The master may have been replaced; the next request asks for it."""
    driver = Driver(0, Sentinel(2))
    with pytest.raises(errors.BackendUnavailable, match='no replica'):
        beat(driver)
    assert not driver.is_connected


@pytest.mark.parametrize('others', [(None,), (0, None, 1)])
def test_replicas_are_assumed_unless_all_know_none(others: Any) -> None:
    """A Sentinel that does not answer proves nothing."""
    with pytest.raises(errors.BackendUnavailable, match='no replica'):
        beat(Driver(0, *map(Sentinel, others)))


def test_master_without_replicas_needs_no_confirmation() -> None:
    """Nothing can take its place."""
    beat(Driver(0, Sentinel(0), Sentinel(None)))


def test_single_server_needs_no_confirmation() -> None:
    """Without Sentinel no other server becomes the master."""
    driver = Driver(0)
    beat(driver, 'redis://127.0.0.1:6379')
    assert driver.pipe.calls == []


def test_each_request_is_made_once() -> None:
    """The next Sentinel is asked instead, or the daemon repeats it."""
    driver = Driver(1, Sentinel(2), Sentinel(None))
    beat(driver)
    make: Any = driver._make_client
    made = make('url', {}, 3)
    found = made.connection_pool.sentinel_manager.sentinels
    for sentinel in (made, *found):
        assert sentinel.connection_pool.connection_kwargs == {'retry': None}

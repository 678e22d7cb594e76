# SPDX-License-Identifier: Apache-2.0
"""Private attributes of tooz and kazoo that adapters of hashring read.

tooz has no public call for a few things that hashring needs. Each private
attribute is read in one file. A release of a library may drop or rename such
an attribute; these tests, which need no server, then name the library, the
attribute and the file to mend.
"""

import ast
import base64
import collections
import dataclasses
import importlib.metadata
import pathlib
import types
import urllib.parse
from collections.abc import Callable
from typing import Any

import pytest
from redis import Redis
from tooz import coordination

from hashring import backend, errors, etcd, redis

ROOT = pathlib.Path(__file__).parents[3]
LOCK = b'ironic-compute/host/c1'


def _driver(url: str) -> Any:
    """Return tooz's driver for the URL; it is not connected."""
    return coordination.get_coordinator(url, b'member')


def _etcd() -> Any:
    return _driver('etcd3+http://127.0.0.1:1')


def _zookeeper() -> Any:
    return _driver('zookeeper://127.0.0.1:1')


@dataclasses.dataclass(frozen=True)
class Private:
    """One private attribute, and how its owner is made without a server."""

    library: str
    name: str
    file: str
    owner: Callable[[], Any]
    is_usable: Callable[[Any], bool] = callable

    def __str__(self) -> str:
        return f'{self.library}:{self.name}'


def _redis() -> Any:
    return _driver('redis://127.0.0.1:1')


def _redis_lock() -> Any:
    driver = _redis()
    driver._client = Redis()  # It is not connected.
    return driver.get_lock(LOCK)


def _zookeeper_lock() -> Any:
    return _zookeeper().get_lock(LOCK)


def _kazoo_lock() -> Any:
    return _zookeeper_lock()._lock


PRIVATE = [
    Private(
        'tooz',
        '_key',
        'hashring/etcd.py',
        lambda: _etcd().get_lock(LOCK),
        lambda key: isinstance(key, bytes) and key.endswith(LOCK),
    ),
    Private(
        'tooz',
        '_uuid',
        'hashring/etcd.py',
        lambda: _etcd().get_lock(LOCK),
        lambda token: len(base64.b64decode(token, validate=True)) == 16,
    ),
    Private(
        'tooz',
        '_acquired_locks',
        'hashring/etcd.py',
        _etcd,
        lambda locks: isinstance(locks, set),
    ),
    Private(
        'tooz',
        '_coord',
        'hashring/zookeeper.py',
        _zookeeper,
        lambda client: callable(client.handler.create_connection),
    ),
    Private('tooz', '_base_path', 'hashring/zookeeper.py', _zookeeper),
    Private(
        'tooz',
        '_lock',
        'hashring/zookeeper.py',
        _zookeeper_lock,
        lambda lock: isinstance(lock.path, str) and bool(lock.client),
    ),
    Private(
        'kazoo',
        '_connection',
        'hashring/zookeeper.py',
        lambda: _zookeeper()._coord,
        lambda connection: hasattr(connection, '_socket'),
    ),
    Private(
        'kazoo',
        '_socket',
        'hashring/zookeeper.py',
        # None until there is a connection.
        lambda: types.SimpleNamespace(
            _socket=vars(_zookeeper()._coord._connection)
        ),
        lambda attributes: '_socket' in attributes,
    ),
    Private(
        'kazoo',
        '_connect',
        'hashring/zookeeper.py',
        lambda: _zookeeper()._coord._connection,
    ),
    Private(
        'tooz',
        '_add_group_to_group_list',
        'hashring/memcached.py',
        lambda: _driver('memcached://127.0.0.1:1'),
    ),
    Private(
        'tooz',
        '_acquired_locks',
        'hashring/memcached.py',
        lambda: _driver('memcached://127.0.0.1:1'),
        lambda locks: isinstance(locks, list),
    ),
    *(
        Private(
            'tooz',
            name,
            'hashring/folder.py',
            lambda: _driver('file:///nowhere'),
            lambda value: callable(value) or isinstance(value, str),
        )
        for name in ('_group_dir', '_make_filesystem_safe', '_safe_member_id')
    ),
    Private('tooz', '_make_client', 'hashring/redis.py', _redis),
    Private(
        'tooz',
        '_lock',
        'hashring/redis.py',
        _redis_lock,
        lambda lock: callable(lock.do_release) and hasattr(lock, 'local'),
    ),
    Private(
        'tooz',
        '_client',
        'hashring/redis.py',
        # None until it is started.
        lambda: types.SimpleNamespace(_client=vars(_redis())),
        lambda attributes: '_client' in attributes,
    ),
    Private('kazoo', '_find_node', 'hashring/zookeeper.py', _kazoo_lock),
    Private('kazoo', '_delete_node', 'hashring/zookeeper.py', _kazoo_lock),
]
# A method of Python's namedtuple, documented in spite of its underscore.
PUBLIC = {'_replace'}
OWN = {'self', 'cls'}


@pytest.mark.parametrize('private', PRIVATE, ids=str)
def test_library_still_has_the_private_attribute(private: Private) -> None:
    """The installed library has the attribute, with the expected content."""
    version = importlib.metadata.version(private.library)
    problem = (
        f'{private.library} {version} has changed its private attribute '
        f'{private.name}: mend {private.file}, which reads it'
    )
    found = getattr(private.owner(), private.name, None)
    assert found is not None, problem
    assert private.is_usable(found), problem


def test_each_private_attribute_is_read_in_its_file_alone() -> None:
    """All other modules of hashring keep to public attributes."""
    expected: dict[str, set[str]] = collections.defaultdict(set)
    for private in PRIVATE:
        expected[private.file].add(private.name)
    found = {
        str(path.relative_to(ROOT)): _private_names(path)
        for path in sorted(ROOT.glob('hashring/*.py'))
    }
    assert {file: names for file, names in found.items() if names} == expected


def _private_names(path: pathlib.Path) -> set[str]:
    """Return the private attributes of foreign objects that a file reads."""
    return {
        node.attr
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Attribute)
        and node.attr.startswith('_')
        and not node.attr.startswith('__')
        and node.attr not in PUBLIC
        and not (isinstance(node.value, ast.Name) and node.value.id in OWN)
    }


def test_each_acquisition_has_a_token_of_its_own() -> None:
    """Two lock objects of tooz have different tokens for the same lock."""
    driver = _etcd()
    tokens = {etcd.token(driver.get_lock(LOCK)) for _ in range(2)}
    assert len(tokens) == 2


def test_released_lock_is_not_renewed_by_heartbeats() -> None:
    """`stop_renewing` takes a lock from the set that tooz renews."""
    driver = _etcd()
    lock = driver.get_lock(LOCK)
    driver._acquired_locks.add(lock)
    etcd.stop_renewing(driver, lock)
    assert not lock.acquired
    etcd.stop_renewing(driver, lock)


def test_client_of_sentinels_shows_them() -> None:
    """Each of them is asked once, as `hashring.redis` wants it."""
    options = {'sentinel': 'pool', 'sentinel_fallback': ['127.0.0.1:2']}
    url = urllib.parse.urlsplit('redis://127.0.0.1:1')
    driver = _redis()
    redis.RedisAdapter(driver, backend.parse(url.geturl(), term_s=15.0))
    client = driver._make_client(url, options, 3)
    assert client.connection_pool.service_name == 'pool'
    sentinels = client.connection_pool.sentinel_manager.sentinels
    assert len(sentinels) == 2
    assert all(callable(each.sentinel_master) for each in sentinels)
    assert all(callable(each.sentinel_masters) for each in sentinels)
    with pytest.raises(errors.BackendUnavailable, match='Connection refused'):
        client.connection_pool.get_master_address()
    single = driver._make_client(url, {}, 3)
    for each in (client, single, *sentinels):
        connection = each.connection_pool.make_connection()
        assert connection.retry.get_retries() == 0


@pytest.mark.parametrize('flags', [(), ('ssl',), ('sentinel_ssl',)])
def test_tls_may_be_for_redis_or_for_its_sentinels_only(
    flags: tuple[str, ...],
) -> None:
    """The same files are for both, and only one of them may have TLS."""
    options = {'sentinel': 'pool', 'ssl_ca_certs': '/ca.pem'}
    options |= dict.fromkeys(flags or ('ssl', 'sentinel_ssl'), 'true')
    url = f'redis://127.0.0.1:1?{urllib.parse.urlencode(options)}'
    driver = _redis()
    redis.RedisAdapter(driver, backend.parse(url, term_s=15.0))
    client = driver._make_client(urllib.parse.urlsplit(url), options, 3)
    (sentinel,) = client.connection_pool.sentinel_manager.sentinels
    for flag, each in (('ssl', client), ('sentinel_ssl', sentinel)):
        connection = each.connection_pool.make_connection()
        authority = '/ca.pem' if flag in options else None
        assert getattr(connection, 'ca_certs', None) == authority

# SPDX-License-Identifier: Apache-2.0
"""Adapter: what `hashring.membership` needs and tooz has no call for.

This one needs nothing beside tooz. `etcd`, `folder`, `memcached`, `redis` and
`zookeeper` have adapters of their own. An adapter belongs to one
`Membership`, which translates its errors; its methods may raise any.
"""

import contextlib
import urllib.parse
from collections.abc import Mapping, Sequence
from typing import Any

from hashring import errors
from hashring.backend import OPTION, Backend, Server
from hashring.group import LockToken

# The files of TLS that tooz would ignore without TLS. Those of Redis would end
# in an error; `hashring.backend` refuses them.
_OF_ZOOKEEPER = ('ca', 'certfile', 'keyfile')
_TLS_FILES: Mapping[str, Sequence[str]] = {
    'etcd3+http': ('ca_cert', 'cert_cert', 'cert_key'),
    'memcached': ('ca_cert', 'ssl_cert', 'ssl_key'),
    'zookeeper': _OF_ZOOKEEPER,
    'kazoo': _OF_ZOOKEEPER,
}


class Adapter:
    """The adapter of a backend that needs nothing beside tooz.

    Each method belongs to the thread of its counterpart in
    `hashring.group.Group`; all may block for one request, except `request`,
    `reconnect`, `new_lock`, `note_refused`, `token` and `note_released`.

    :param driver: tooz's driver, not yet started
    :raises BackendRefused: the URL has a part that tooz would ignore
    """

    def __init__(self, driver: Any, backend: Backend) -> None:
        self._driver = driver
        self._backend = backend
        _check_path(backend)
        _check_tls(backend)

    @property
    def other_servers(self) -> Sequence[Server]:
        """The servers to which a request goes next, once one has failed."""
        return ()

    def request(self) -> contextlib.AbstractContextManager[None]:
        """Watch the request that is made in the block.

        The block raises errors of hashring only.
        """
        return contextlib.nullcontext()

    def reconnect(self) -> None:
        """Have the next request open a new connection.

        This does nothing if all requests share one.
        """

    def prepare_join(self) -> None:
        """Provide what an entry in a group needs.

        On etcd it needs a lease of etcd, and after a missed term only a
        heartbeat creates a new one.
        """
        self._driver.heartbeat()

    def heartbeat(
        self, group: bytes, record: Mapping[str, Any] | None
    ) -> None:
        """Renew the membership and every lock.

        :param record: what this agent has published in the group last; None
            before it has joined
        """
        self._driver.heartbeat()

    def publish(self, group: bytes, record: Mapping[str, Any]) -> None:
        """Replace the published record of this agent."""
        self._driver.update_capabilities(group, record).get()

    def new_lock(self, name: bytes) -> Any:
        """Return a lock object for one request; never blocks."""
        return self._driver.get_lock(name)

    def note_refused(self, lock: Any) -> None:
        """Take note of a lock request that was not granted."""

    def owns(self, lock: Any) -> bool:
        """Return whether this acquisition of the lock still has it."""
        return bool(lock.is_still_owner())

    def token(self, lock: Any) -> LockToken | None:
        """Return the token of an acquired lock, if there are tokens."""
        return None

    def break_lock(self, lock: Any, token: LockToken) -> None:
        """Free the lock if it has this token, if there are tokens."""

    def note_released(self, lock: Any) -> None:
        """Take note of a lock that was released."""


def _check_path(backend: Backend) -> None:
    """Refuse a path behind the server, which may be meant to separate clouds.

    Other programs take it for the database of Redis, or the root of their
    entries in ZooKeeper; tooz ignores it. The daemons of two clouds would be
    in one group. With the option that has the meant effect they are in another
    group than before, so no daemon may run with the former URL.
    """
    parts = urllib.parse.urlsplit(backend.url)
    path = parts.path.strip('/')
    is_redis = backend.scheme == 'redis'
    has_meaning = is_redis or backend.scheme in ('zookeeper', 'kazoo')
    is_default = is_redis and path == '0'
    if not (parts.hostname and path and has_meaning) or is_default:
        return
    is_database = is_redis and path.isdecimal()
    option = f'{"db" if is_database else "namespace"}={path}'
    raise errors.BackendRefused(
        f'{OPTION} has /{path} behind the server, which is ignored: remove '
        f'it; or, while all daemons of the pool are stopped, write ?{option} '
        f'in its place on all machines.'
    )


def _check_tls(backend: Backend) -> None:
    """Refuse certificates in a URL that sends all in the clear.

    Its operator would take the connection for an encrypted one.
    """
    files = _TLS_FILES.get(backend.scheme, ())
    unused = [name for name in files if backend.has(name)]
    if not unused or backend.is_on('use_ssl'):
        return
    is_etcd = backend.scheme == 'etcd3+http'
    cure = 'write etcd3+https://' if is_etcd else 'add use_ssl=true'
    raise errors.BackendRefused(
        f'{OPTION} sets {unused[0]}, but nothing would be encrypted: {cure}, '
        f'or remove {unused[0]}.'
    )

# SPDX-License-Identifier: Apache-2.0
"""Etcd: the servers, and owner, token and break of a lock, beside tooz.

The value of a lock's key in etcd is the token of one lock object of tooz, so
the token names one acquisition. tooz compares it only at a release:
``acquired`` stays True after another process has taken the lock, and
``break_`` frees the lock even if another process holds it.

`hashring.membership` alone uses this module. It reads private attributes of
tooz, and no other module reads those:
``tests/contract/coordination/test_private_attributes.py`` fails when a
release of tooz drops or renames one. All functions but `token` and
`stop_renewing` block for one request.
"""

import base64
import contextlib
from collections.abc import Iterator, Sequence
from typing import Any

from hashring import errors
from hashring.adapter import Adapter
from hashring.backend import Backend, Server
from hashring.etcd_auth import EtcdAuth
from hashring.etcd_servers import EtcdServers
from hashring.group import LockToken


class EtcdAdapter(Adapter):
    """The adapter of tooz's ``Etcd3Driver``."""

    def __init__(self, driver: Any, backend: Backend) -> None:
        super().__init__(driver, backend)
        self._servers = EtcdServers(driver, backend.servers)
        # requests prefers REQUESTS_CA_BUNDLE to a file that the URL names.
        session = driver.client.session
        session.trust_env = session.verify is True
        if backend.credentials is not None:
            session.auth = EtcdAuth(driver.client, backend.credentials)

    @property
    def other_servers(self) -> Sequence[Server]:
        return self._backend.servers[1:]

    @contextlib.contextmanager
    def request(self) -> Iterator[None]:
        """Leave the server if the request fails.

        Whether a failed request was carried out is not known. Its caller
        repeats it or reads what is so, as with a single server.
        """
        server = self._servers.current()
        try:
            yield
        except errors.NotInGroup:
            raise  # It is an answer of the server.
        except errors.BackendUnavailable as exc:
            # An etcd without space is one on all its servers.
            if errors.NO_SPACE not in str(exc):
                self._servers.leave(server, str(exc))
            raise

    def reconnect(self) -> None:
        # Closes idle connections only; the session can be used afterwards.
        self._driver.client.session.close()

    def owns(self, lock: Any) -> bool:
        return is_owner(self._driver, lock)

    def token(self, lock: Any) -> LockToken | None:
        return token(lock)

    def break_lock(self, lock: Any, token: LockToken) -> None:
        break_lock(self._driver, lock, token)

    def note_released(self, lock: Any) -> None:
        stop_renewing(self._driver, lock)


def is_owner(driver: Any, lock: Any) -> bool:
    """Return whether the lock's key in etcd has the token of ``lock``.

    :param driver: tooz's ``Etcd3Driver``
    :param lock: tooz's ``Etcd3Lock``
    """
    values: list[bytes] = driver.client.get(lock._key.decode())
    return base64.b64decode(lock._uuid) in values


def token(lock: Any) -> LockToken:
    """Return the token that ``lock`` writes when it is acquired, in base64."""
    return LockToken(lock._uuid)


def break_lock(driver: Any, lock: Any, token: LockToken) -> None:
    """Delete the key of ``lock`` if its value is ``token``."""
    named = {'key': base64.b64encode(lock._key).decode('ascii')}
    same = {'result': 'EQUAL', 'target': 'VALUE', 'value': token}
    driver.client.transaction(
        {
            'compare': [{**named, **same}],
            'success': [{'request_delete_range': named}],
        }
    )


def stop_renewing(driver: Any, lock: Any) -> None:
    """Remove a released lock from the locks that each heartbeat renews.

    ``Etcd3Lock.release`` does not remove it if another process had taken the
    lock before the release.
    """
    driver._acquired_locks.discard(lock)

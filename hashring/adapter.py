# SPDX-License-Identifier: Apache-2.0
"""Adapter: what `hashring.membership` needs and tooz has no call for.

This one needs nothing beside tooz. `etcd`, `folder`, `memcached`, `redis` and
`zookeeper` have adapters of their own. An adapter belongs to one
`Membership`, which translates its errors; its methods may raise any.
"""

import contextlib
from collections.abc import Mapping, Sequence
from typing import Any

from hashring.backend import Backend, Server
from hashring.group import LockToken


class Adapter:
    """The adapter of a backend that needs nothing beside tooz.

    Each method belongs to the thread of its counterpart in
    `hashring.group.Group`; all may block for one request, except `request`,
    `reconnect`, `new_lock`, `note_refused`, `token` and `note_released`.

    :param driver: tooz's driver, not yet started
    """

    def __init__(self, driver: Any, backend: Backend) -> None:
        self._driver = driver
        self._backend = backend

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

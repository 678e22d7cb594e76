# SPDX-License-Identifier: Apache-2.0
"""Redis: one attempt for each request; with Sentinel, confirmed heartbeats.

A master that is cut off from its replicas answers its clients, while Sentinel
makes another server the master. Its clients would renew locks that agents at
the new master get. Therefore, with Sentinel, a heartbeat counts only if a
replica has confirmed it; a master that was replaced has no replica any more.

The client library repeats each request ten times. One Sentinel that is frozen
would take half a minute, although the next one answers; a wrong password, too.

`hashring.membership` alone uses this module. It reads private attributes of
tooz, and no other module reads those:
``tests/contract/coordination/test_private_attributes.py`` fails when a
release of tooz drops or renames one.
"""

import contextlib
from collections.abc import Mapping
from typing import Any

from hashring import errors
from hashring.adapter import Adapter
from hashring.backend import Backend

# Milliseconds for the confirmation, less than the time-out of a request.
_CONFIRM_MS = 1500


class RedisAdapter(Adapter):
    """The adapter of tooz's ``RedisDriver``."""

    def __init__(self, driver: Any, backend: Backend) -> None:
        super().__init__(driver, backend)
        try_once(driver)

    def heartbeat(
        self, group: bytes, record: Mapping[str, Any] | None
    ) -> None:
        self._driver.heartbeat()
        if self._backend.has_sentinel:
            confirm(self._driver)


def try_once(driver: Any) -> None:
    """Have the library make each request once.

    It is repeated here, and the next Sentinel is asked.

    :param driver: tooz's ``RedisDriver``, not yet started
    """
    make = driver._make_client

    def make_impatient(*args: Any) -> Any:
        client = make(*args)
        for each in (client, *_sentinels(client)):
            # Without one, a connection repeats nothing.
            each.connection_pool.connection_kwargs['retry'] = None
        return client

    driver._make_client = make_impatient


def confirm(driver: Any) -> None:
    """Wait until a replica has all that was written so far.

    The key is written on the connection that waits, because Redis waits for
    the writes of this connection. It follows all earlier ones.

    :raises BackendUnavailable: no replica has confirmed it in time
    """
    key = driver.namespace + b'_confirmed'
    with driver._client.pipeline(transaction=False) as pipe:
        pipe.psetex(key, _CONFIRM_MS, b'')
        pipe.wait(1, _CONFIRM_MS)
        _, confirmed_count = pipe.execute()
    if not confirmed_count and _has_replicas(driver._client):
        # The next request asks the Sentinels which one is the master now.
        driver._client.connection_pool.disconnect()
        raise errors.BackendUnavailable(
            'no replica of Redis has confirmed the write, so its master may '
            'have been replaced'
        )


def _sentinels(client: Any) -> Any:
    """Return the clients of the Sentinels, if there are any."""
    manager = getattr(client.connection_pool, 'sentinel_manager', None)
    return () if manager is None else manager.sentinels


def _has_replicas(client: Any) -> bool:
    """Return whether a Sentinel knows a replica, or none answers.

    Without a replica nothing can take the place of the master.
    """
    counts = []
    for sentinel in _sentinels(client):
        # Of a Sentinel that does not answer.
        with contextlib.suppress(Exception):
            name = client.connection_pool.service_name
            counts.append(sentinel.sentinel_master(name)['num-slaves'])
    return not counts or max(counts) > 0

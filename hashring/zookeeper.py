# SPDX-License-Identifier: Apache-2.0
"""ZooKeeper: a heartbeat that a majority confirms, and leaving a server.

tooz's own heartbeat is a read, which any server answers. A server that is
cut off from its leader, and a leader that is cut off from its followers, go on
answering reads for ``syncLimit`` ticks, while the others end the sessions of
its clients. Therefore the heartbeat is a write, because a majority of the
servers must confirm each write.

kazoo waits for two thirds of a session before it leaves a server that is
frozen, and a request waits as long; then no time is left to renew the lease.
So this adapter closes the connection when a request takes too long; kazoo
goes on with the next server and keeps the session.

A client that requests a lock adds a znode to the lock's queue. kazoo ignores a
failure to delete that znode after a refused request; then no client behind it
gets the lock until the session ends.

The servers decide how long a session lasts: 20 of their ticks at most, or
``maxSessionTimeout``. If that is less than the lease term, another agent gets
the locks of an agent that is cut off and whose lease is still in force. So no
request is made in such a session.

A server whose data is older than what a client has read before closes the
connection, so that the client goes on to a newer one. Servers that have lost
their data would do so for ever; but no session is left by then.

`hashring.membership` alone uses this module. It reads private attributes of
tooz and kazoo, and no other module reads those:
``tests/contract/coordination/test_private_attributes.py`` fails when a
release of either library drops or renames one.
"""

import contextlib
import logging as python_logging
import math
import socket
import threading
from collections.abc import Iterator, Mapping
from typing import Any

from oslo_log import log as logging

from hashring import errors
from hashring.adapter import Adapter
from hashring.backend import (
    OPTION,
    REQUEST_TIMEOUT_S,
    Backend,
    Credentials,
)
from hashring.clock import Clock, SystemClock

LOG = logging.getLogger(__name__)

# kazoo doubles its wait between two attempts to connect, up to an hour. After
# an outage its client would be away for as long again.
DRIVER_OPTIONS = {'connection_retry': {'max_tries': -1, 'max_delay': 2.0}}


class ZooKeeperAdapter(Adapter):
    """The adapter of tooz's ``KazooDriver``.

    :param timeout_s: seconds until a server that does not answer is left
    """

    def __init__(
        self,
        driver: Any,
        backend: Backend,
        timeout_s: float = REQUEST_TIMEOUT_S,
        clock: Clock | None = None,
    ) -> None:
        super().__init__(driver, backend)
        self._timeout_s = timeout_s
        self._clock = clock or SystemClock()
        # Refused locks whose queue this agent must leave.
        self._refused: list[Any] = []
        # How long the present session lasts without a word of this agent.
        self._session_s = math.inf
        # Since when no server has opened a session or gone on with one.
        self._without_since_s: float | None = None
        shorten_connecting(driver)
        self._note_sessions(driver)
        if backend.credentials is not None:
            hide_in_log(driver, backend.credentials)

    def _note_sessions(self, driver: Any) -> None:
        """Note how long each session lasts that kazoo opens from now on."""
        client, connection = driver._coord, driver._coord._connection
        connect = connection._connect

        def connect_and_note(*args: Any) -> Any:
            self._accept_lost_data(client)
            read_timeout_ms, connect_timeout_ms = connect(*args)
            self._without_since_s = None
            # kazoo waits for an answer for two thirds of a session.
            self._session_s = read_timeout_ms * 1.5 / 1000
            return read_timeout_ms, connect_timeout_ms

        connection._connect = connect_and_note

    def _accept_lost_data(self, client: Any) -> None:
        """Connect to servers with any data once the lease has ended.

        Until then one that lags behind the others must not be used.
        """
        now_s = self._clock.now_s()
        if self._without_since_s is None:
            self._without_since_s = now_s
        if now_s - self._without_since_s >= self._session_s:
            client.last_zxid = 0

    def _check_session(self) -> None:
        """Check that the session outlives a lease.

        :raises BackendUnavailable: it does not
        """
        term_s = self._backend.term_s
        if round(self._session_s, 3) < term_s:
            raise errors.BackendUnavailable(
                f'ZooKeeper ends a session after {self._session_s:g} s, '
                f'sooner than [coordination] lease_term_s ({term_s:g}): raise '
                f'maxSessionTimeout or tickTime in zoo.cfg, or lower '
                f'lease_term_s'
            )

    @contextlib.contextmanager
    def request(self) -> Iterator[None]:
        """Leave the server if the request takes too long.

        A single server is not left: it would only be slower to connect anew.

        :raises BackendUnavailable: the session is too short
        """
        self._check_session()
        with self._impatience(), explained_refusals():
            yield
        self._check_session()

    @contextlib.contextmanager
    def _impatience(self) -> Iterator[None]:
        if len(self._backend.servers) == 1:
            yield
            return
        timer = threading.Timer(
            self._timeout_s, leave_server, (self._driver, self._timeout_s)
        )
        timer.daemon = True
        timer.start()
        try:
            yield
        finally:
            timer.cancel()

    def prepare_join(self) -> None:
        """Make the folder of all groups, in case the servers have lost it."""
        self._driver._coord.ensure_path(self._driver._base_path())

    def heartbeat(
        self, group: bytes, record: Mapping[str, Any] | None
    ) -> None:
        if record is None:
            self._driver.heartbeat()
        else:
            self._driver.update_capabilities(group, record).get(
                timeout=self._timeout_s
            )
        self._leave_queues()

    def note_refused(self, lock: Any) -> None:
        """Have the next heartbeat remove the request from its queue."""
        self._refused.append(lock)

    def _leave_queues(self) -> None:
        """Remove refused requests, which could keep others from a lock."""
        while self._refused:
            leave_queue(self._refused[0])
            # The first entry is still the same: the lock thread only appends.
            self._refused.pop(0)


@contextlib.contextmanager
def explained_refusals() -> Iterator[None]:
    """Add the cure to the error about entries that may not be used.

    ZooKeeper does not know users: each entry has the password of its maker.

    :raises UserRefused: the entry was made with another password
    """
    try:
        yield
    except errors.BackendUnavailable as exc:
        if 'NoAuthError' not in str(exc):
            raise
        raise errors.UserRefused(
            f'{exc}: the entries in ZooKeeper were made with another user or '
            f'password than {OPTION} has: correct it, or stop all daemons, '
            f'add another namespace to it and start them again'
        ) from exc


def shorten_connecting(driver: Any) -> None:
    """Let kazoo wait less for a TCP connection to one server.

    kazoo waits for the time of a session, and the first connection may take
    no longer altogether: one server whose machine is off would be in the way
    of all that are named after it.
    """
    handler = driver._coord.handler
    connect = handler.create_connection

    def connect_soon(*args: Any, timeout: float, **options: Any) -> Any:
        timeout = min(timeout, REQUEST_TIMEOUT_S)
        return connect(*args, timeout=timeout, **options)

    handler.create_connection = connect_soon


class _HidesSecrets(python_logging.Filter):
    """Removes secrets from the records of one logger."""

    def __init__(self, *secrets: str) -> None:
        super().__init__()
        self._secrets = secrets

    def filter(self, record: python_logging.LogRecord) -> bool:
        text = record.getMessage()
        for secret in self._secrets:
            text = text.replace(secret, '***')
        record.msg, record.args = text, ()
        return True


def hide_in_log(driver: Any, credentials: Credentials) -> None:
    """Keep the password and its digest out of kazoo's log.

    At the level DEBUG kazoo logs each request, with the login among them.
    """
    client = driver._coord
    digests = [acl.id.id for acl in client.default_acl or ()]
    client.logger.addFilter(_HidesSecrets(credentials.password, *digests))


def leave_server(driver: Any, waited_s: float) -> None:
    """Close the connection to the current server; never raises or blocks.

    Requests on their way fail. kazoo connects to the next server and goes on
    with the same session.

    :param waited_s: for how long the server has not answered
    """
    connection = driver._coord._connection._socket
    if connection is None:
        return
    with contextlib.suppress(OSError):
        host, port = connection.getpeername()[:2]
        LOG.warning(
            'Left the ZooKeeper server at %(host)s:%(port)s, which has not '
            'answered for %(waited_s)g s',
            {'host': host, 'port': port, 'waited_s': waited_s},
        )
        connection.shutdown(socket.SHUT_RDWR)


def leave_queue(lock: Any) -> None:
    """Delete the znode of a refused request from the queue of its lock.

    :param lock: tooz's ``ZooKeeperLock``, which was not acquired
    :raises Exception: kazoo's, if the znode may still be in the queue
    """
    queued = lock._lock
    if queued.client.exists(queued.path) is None:
        return  # The request failed before the lock's queue existed.
    if node := queued._find_node():
        queued._delete_node(node)

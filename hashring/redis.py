# SPDX-License-Identifier: Apache-2.0
"""Redis: one attempt for each request; with Sentinel, confirmed heartbeats.

A master that is cut off from its replicas answers its clients, while Sentinel
makes another server the master. Its clients would renew locks that agents at
the new master get. Therefore, with Sentinel, a heartbeat counts only if a
replica has confirmed it; a master that was replaced has no replica any more.
A Sentinel that is cut off with it still names it, so after a heartbeat that
was not confirmed another Sentinel is asked first.

The client library repeats each request ten times. One Sentinel that is frozen
would take half a minute, although the next one answers; a wrong password, too.

It also drops the token of a lock before it requests the release. If that
fails, it could not be requested again, and the lock would stay for its term.

tooz only logs that a lock could not be renewed, and its heartbeat succeeds.
The lock would end before the lease does, and another agent would get it.

With TLS an error of a handshake is one of OpenSSL. The option of the URL that
mends it is added to its text.

`hashring.membership` alone uses this module. It reads private attributes of
tooz, and no other module reads those:
``tests/contract/coordination/test_private_attributes.py`` fails when a
release of tooz drops or renames one.
"""

import contextlib
from collections.abc import Iterator, Mapping
from typing import Any

import tooz

from hashring import errors
from hashring.adapter import Adapter
from hashring.backend import OPTION, TLS_FILES, Backend

# Milliseconds for the confirmation, less than the time-out of a request.
_CONFIRM_MS = 1500

# Errors of the client library: the server refuses the user or the password,
# or the user may not do this.
_LOGIN_ERRORS = frozenset({'AuthenticationError', 'NoPermissionError'})

# Errors about the content of the client's own files.
_FILE_ERRORS = ('[X509', '[PEM', 'PEM lib', 'KEY_VALUES_MISMATCH')

# What a client reads of a server that ends the handshake, or that expects one.
_ENDINGS = (
    *('[SSL: ', 'EOF occurred', 'reset by peer', 'closed by server'),
    'Broken pipe',
)


class RedisAdapter(Adapter):
    """The adapter of tooz's ``RedisDriver``."""

    def __init__(self, driver: Any, backend: Backend) -> None:
        super().__init__(driver, backend)
        self._search: MasterSearch | None = None
        make = driver._make_client

        def make_impatient(*args: Any) -> Any:
            client = make(*args)
            try_once(client)
            drop_unused_files(client, backend)
            self._search = MasterSearch.of(client)
            return client

        driver._make_client = make_impatient

    @contextlib.contextmanager
    def request(self) -> Iterator[None]:
        """Add the options that mend a failed handshake to its error."""
        try:
            yield
        except errors.NotInGroup:
            raise  # It is an answer of the server.
        except errors.BackendUnavailable as exc:
            cure = find_tls_cure(
                str(exc), self._backend, self._driver.is_started
            )
            if not cure:
                raise
            raise errors.BackendUnavailable(f'{exc}: {cure}') from exc

    def heartbeat(
        self, group: bytes, record: Mapping[str, Any] | None
    ) -> None:
        self._driver.heartbeat()
        if self._backend.has_sentinel and not confirm(self._driver):
            if self._search is not None:
                self._search.ask_next_first()
            # The next request asks a Sentinel which one is the master now.
            self._driver._client.connection_pool.disconnect()
            raise errors.BackendUnavailable(
                'no replica of Redis has confirmed the write, so its master '
                'may have been replaced'
            )

    def new_lock(self, name: bytes) -> Any:
        lock = super().new_lock(name)
        keep_token(lock)
        report_unrenewed(lock)
        return lock


class MasterSearch:
    """Asks one Sentinel after the other which server is the master.

    The search of the client library stays with the Sentinel that has answered
    last. One that is cut off from the others names a master that they have
    replaced, and all agents would stay with it that had once asked it.

    Any thread may call.

    :param manager: the library's ``Sentinel``, which knows all Sentinels
    """

    def __init__(self, manager: Any) -> None:
        self._manager = manager
        self._sentinels = tuple(manager.sentinels)
        # The number of the Sentinel that is asked first.
        self._first = 0

    @classmethod
    def of(cls, client: Any) -> 'MasterSearch | None':
        """Take the place of a client's search; None without Sentinels."""
        manager = _manager(client)
        if manager is None:
            return None
        search = cls(manager)
        manager.discover_master = search.find
        return search

    def ask_next_first(self) -> None:
        """Ask another Sentinel first from now on; never blocks."""
        self._first = (self._first + 1) % len(self._sentinels)

    def find(self, name: str) -> tuple[str, int]:
        """Return the address of the master with this name.

        It blocks for one request to each Sentinel at most.

        :raises BackendUnavailable: no Sentinel names a master that is up
        """
        refusals: list[Exception] = []
        count, first = len(self._sentinels), self._first
        for number in (*range(first, count), *range(first)):
            try:
                state = self._sentinels[number].sentinel_masters().get(name)
            # The next Sentinel may answer, whatever is wrong with this one.
            except Exception as exc:
                refusals.append(exc)
                continue
            if state and self._manager.check_master_state(state, name):
                self._first = number
                return state['ip'], state['port']
        raise errors.BackendUnavailable(_why_not_found(name, refusals))


def _why_not_found(name: str, refusals: list[Exception]) -> str:
    """Return a sentence about a master that no Sentinel has named."""
    for exc in refusals:
        if type(exc).__name__ in _LOGIN_ERRORS:
            return (
                f'a Sentinel refuses its user ({exc}): correct '
                f'sentinel_username and sentinel_password in {OPTION}, which '
                f'are not those of Redis itself, or add them'
            )
    reasons = ', '.join(sorted({str(exc) for exc in refusals}))
    return (
        f'no Sentinel names a master "{name}" that is up'
        f'{f" ({reasons})" if reasons else ""}'
    )


def keep_token(lock: Any) -> None:
    """Let a release that has failed be requested again.

    :param lock: tooz's ``RedisLock``
    """
    inner = lock._lock
    release = inner.do_release

    def release_or_keep(token: bytes) -> None:
        try:
            release(token)
        except Exception:
            inner.local.token = token
            raise

    inner.do_release = release_or_keep


def report_unrenewed(lock: Any) -> None:
    """Let a heartbeat fail that could not renew this lock.

    One that belongs to another agent is no failure: all locks are read after
    the heartbeat.

    :param lock: tooz's ``RedisLock``
    """
    renew = lock.heartbeat

    def renew_or_fail() -> Any:
        try:
            return renew()
        except tooz.ToozError as exc:
            if type(exc.__cause__).__name__ == 'LockNotOwnedError':
                raise
            # tooz's heartbeat catches its own errors only.
            raise errors.BackendUnavailable(
                f'a lock was not renewed: {exc}'
            ) from exc

    lock.heartbeat = renew_or_fail


def try_once(client: Any) -> None:
    """Have the library make each request once.

    It is repeated here, and the next Sentinel is asked.

    :param client: a client of Redis, not yet connected
    """
    for each in (client, *_sentinels(client)):
        # Without one, a connection repeats nothing.
        each.connection_pool.connection_kwargs['retry'] = None


def drop_unused_files(client: Any, backend: Backend) -> None:
    """Keep certificates from connections that have no TLS.

    tooz gives those of the Sentinels to the connections to Redis, too, which
    accept none without ``ssl``.
    """
    if not backend.is_on('ssl'):
        for name in TLS_FILES:
            client.connection_pool.connection_kwargs.pop(name, None)


def find_tls_cure(reason: str, backend: Backend, is_started: bool) -> str:
    """Return how to mend a failed handshake; '' if it is no such error.

    :param reason: the text of the error
    :param is_started: whether a connection was possible before, and so the
        options are right
    """
    if 'CERTIFICATE_VERIFY_FAILED' in reason:
        if 'mismatch' in reason:
            return (
                f'a certificate must have the host name or address by which '
                f'{OPTION}, or Sentinel, names its server'
            )
        mend = 'correct' if backend.has('ssl_ca_certs') else 'add'
        return (
            f'{mend} ssl_ca_certs in {OPTION}, or renew the certificate of '
            f'the server'
        )
    files = [name for name in TLS_FILES if backend.has(name)]
    if files and any(sign in reason for sign in _FILE_ERRORS):
        return f'correct {", ".join(files)} in {OPTION}'
    if is_started or not any(sign in reason for sign in _ENDINGS):
        return ''
    return _cure_of_ended_handshake(backend)


def _cure_of_ended_handshake(backend: Backend) -> str:
    flags = ('ssl', 'sentinel_ssl') if backend.has_sentinel else ('ssl',)
    missing = [f'{flag}=true' for flag in flags if not backend.is_on(flag)]
    if missing:
        return (
            f'add {" and ".join(missing)} to {OPTION} if the servers need TLS'
        )
    if backend.has('ssl_certfile'):
        return (
            f'correct ssl_certfile and ssl_keyfile in {OPTION} if the server '
            f'refuses this certificate'
        )
    return (
        f'add ssl_certfile and ssl_keyfile to {OPTION} if the server demands '
        f'a certificate'
    )


def confirm(driver: Any) -> bool:
    """Wait until a replica has all that was written so far.

    The key is written on the connection that waits, because Redis waits for
    the writes of this connection. It follows all earlier ones.

    :returns: whether a replica has confirmed it in time, or there is none
    """
    key = driver.namespace + b'_confirmed'
    with driver._client.pipeline(transaction=False) as pipe:
        pipe.psetex(key, _CONFIRM_MS, b'')
        pipe.wait(1, _CONFIRM_MS)
        _, confirmed_count = pipe.execute()
    return bool(confirmed_count) or not _has_replicas(driver._client)


def _manager(client: Any) -> Any:
    """Return the library's ``Sentinel``; None if the client has none."""
    return getattr(client.connection_pool, 'sentinel_manager', None)


def _sentinels(client: Any) -> Any:
    """Return the clients of the Sentinels, if there are any."""
    manager = _manager(client)
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

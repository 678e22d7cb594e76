# SPDX-License-Identifier: Apache-2.0
"""Redis's adapter: confirmed heartbeats with Sentinel, on fake clients."""

import contextlib
import types
from typing import Any

import pytest
import redis
import redis.exceptions
from tooz import coordination

from hashring import backend, errors
from hashring.redis import RedisAdapter, find_tls_cure

SENTINEL = 'redis://127.0.0.1:26379?sentinel=pool'


class Sentinel:
    """A Sentinel that knows some replicas, or does not answer.

    :param port: of the master that it names, or why it names none
    """

    def __init__(
        self, replicas_count: int | None, port: int | Exception = 6379
    ) -> None:
        self._replicas_count = replicas_count
        self.port = port
        self.asked_count = 0
        self.connection_pool = types.SimpleNamespace(
            connection_kwargs={'retry': 'ten times'}
        )

    def sentinel_masters(self) -> dict[str, dict[str, Any]]:
        self.asked_count += 1
        if isinstance(self.port, Exception):
            raise self.port
        return {'pool': {'ip': '127.0.0.1', 'port': self.port}}

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
        self.is_started = False
        self.is_connected = True
        self.pipe = Pipe(confirmed_count)
        # In the tests, a master with the port 0 is down.
        self.manager: Any = types.SimpleNamespace(
            sentinels=list(sentinels),
            check_master_state=lambda state, name: state['port'] > 0,
        )
        self._client = types.SimpleNamespace(
            pipeline=lambda transaction: self.pipe,
            connection_pool=types.SimpleNamespace(
                sentinel_manager=self.manager,
                service_name='pool',
                connection_kwargs={},
                disconnect=self._disconnect,
            ),
        )
        self._make_client: Any = lambda *args: self._client

    def _disconnect(self) -> None:
        self.is_connected = False

    def heartbeat(self) -> None:
        self.beats_count += 1


def beat(driver: Driver, url: str = SENTINEL) -> None:
    adapter = RedisAdapter(driver, backend.parse(url, term_s=15.0))
    driver._make_client()
    adapter.heartbeat(b'pool', {})
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


class Client(redis.Redis):
    """A client that has no connection, and keeps one key."""

    def __init__(self) -> None:
        super().__init__()
        self.value: bytes | None = None
        self.failures_count = 0

    def set(self, *args: Any, **options: Any) -> Any:
        self.value = args[1]
        return True

    def evalsha(self, sha: str, numkeys: int, *args: Any) -> Any:
        if self.failures_count:
            self.failures_count -= 1
            raise redis.exceptions.ConnectionError
        is_owner = self.value == args[1]
        if len(args) == 2:  # It is the script that releases a lock.
            self.value = None
        return int(is_owner)

    def psetex(self, *args: Any, **options: Any) -> Any:
        return True


def locked() -> tuple[Any, Any, Any]:
    """Return a client, its adapter and a lock that it has acquired."""
    client: Any = Client()
    url = 'redis://127.0.0.1:1'
    driver: Any = coordination.get_coordinator(url, b'member')
    driver._client = client
    made = RedisAdapter(driver, backend.parse(url, term_s=15.0))
    lock = made.new_lock(b'c1')
    assert lock.acquire(blocking=False)
    return client, made, lock


@pytest.mark.parametrize('failures_count', [0, 1, 14, 15])
def test_release_without_an_answer_is_repeated(failures_count: int) -> None:
    """The library forgets the token first, and would have nothing to send."""
    client, _, lock = locked()
    client.failures_count = failures_count
    for _ in range(2):
        with contextlib.suppress(coordination.ToozConnectionError):
            lock.release()
    assert client.value is None


def test_heartbeat_that_has_not_renewed_a_lock_does_not_count() -> None:
    """The lock would end before the lease, and another agent would get it."""
    client, adapter, _ = locked()
    client.failures_count = 15
    with pytest.raises(errors.BackendUnavailable, match='not renewed'):
        adapter.heartbeat(b'pool', {})
    adapter.heartbeat(b'pool', {})


def test_heartbeat_counts_although_a_lock_is_lost() -> None:
    """The locks are read after it, and the worker of this host ends."""
    client, adapter, lock = locked()
    client.value = b'of another agent'
    adapter.heartbeat(b'pool', {})
    assert lock.acquired


def find(driver: Driver) -> int:
    """Return the port of the master that the search has found."""
    place: tuple[str, int] = driver.manager.discover_master('pool')
    assert place[0] == '127.0.0.1'
    return place[1]


def searching(*ports: int | Exception) -> tuple[Driver, list[Sentinel]]:
    """Return a client of Sentinels that name these masters."""
    sentinels = [Sentinel(2, port) for port in ports]
    driver = Driver(0, *sentinels)
    return driver, sentinels


def connect(driver: Driver) -> RedisAdapter:
    adapter = RedisAdapter(driver, backend.parse(SENTINEL, term_s=15.0))
    driver._make_client()
    return adapter


def test_sentinel_that_has_answered_is_asked_first() -> None:
    """One that is frozen costs one time-out, not one for each request."""
    driver, sentinels = searching(redis.exceptions.TimeoutError(), 1, 2)
    connect(driver)
    assert [find(driver) for _ in range(3)] == [1, 1, 1]
    assert [each.asked_count for each in sentinels] == [1, 3, 0]


def test_sentinel_whose_master_is_down_is_passed_over() -> None:
    """The next one may have replaced it already."""
    driver, _ = searching(0, 0, 2)
    connect(driver)
    assert find(driver) == 2


def test_another_sentinel_is_asked_after_a_heartbeat_without_replica() -> None:
    """The first one may be cut off with the master that was replaced."""
    driver, _ = searching(1, 2, 2)
    adapter = connect(driver)
    found = []
    for _ in range(3):
        found.append(find(driver))
        with pytest.raises(errors.BackendUnavailable):
            adapter.heartbeat(b'pool', {})
    assert found == [1, 2, 2]
    assert find(driver) == 1


def test_former_master_is_left_when_another_one_leads() -> None:
    """Before, only the Sentinel that is cut off with it names a master."""
    driver, (_, *others) = searching(1, 0, 0)
    adapter = connect(driver)
    for _ in range(4):
        assert find(driver) == 1
        with pytest.raises(errors.BackendUnavailable):
            adapter.heartbeat(b'pool', {})
    for each in others:
        each.port = 2
    assert find(driver) == 2


def test_no_master_is_one_sentence() -> None:
    """It has what the Sentinels said."""
    refused = redis.exceptions.ConnectionError('connection refused')
    driver, _ = searching(refused, refused, 0)
    connect(driver)
    with pytest.raises(errors.BackendUnavailable) as caught:
        find(driver)
    assert str(caught.value) == (
        'no Sentinel names a master "pool" that is up (connection refused)'
    )


def test_master_of_another_name_is_one_sentence() -> None:
    """The name in the URL may be wrong."""
    driver, _ = searching(1)
    connect(driver)
    with pytest.raises(errors.BackendUnavailable, match='a master "other"'):
        driver.manager.discover_master('other')


@pytest.mark.parametrize(
    'refusal',
    [
        redis.exceptions.AuthenticationError('wrong'),
        redis.exceptions.NoPermissionError('wrong'),
    ],
)
def test_wrong_login_of_the_sentinels_is_named(refusal: Exception) -> None:
    """The password of Redis is another one."""
    away = redis.exceptions.TimeoutError('away')
    driver, _ = searching(away, refusal)
    connect(driver)
    with pytest.raises(errors.BackendUnavailable) as caught:
        find(driver)
    assert str(caught.value) == (
        'a Sentinel refuses its user (wrong): correct sentinel_username and '
        'sentinel_password in [coordination] backend_url, which are not those '
        'of Redis itself, or add them'
    )


VERIFY = '[SSL: CERTIFICATE_VERIFY_FAILED] certificate verify failed: '
RESET = "Error while reading from h:1 : (104, 'Connection reset by peer')"
WITH_TLS = f'{SENTINEL}&ssl=true&sentinel_ssl=true'
WITH_CERTIFICATE = f'{WITH_TLS}&ssl_certfile=/both'


@pytest.mark.parametrize(
    ('reason', 'url', 'cure'),
    [
        (f'{VERIFY}x', WITH_TLS, 'add ssl_ca_certs in '),
        (
            f'{VERIFY}certificate has expired',
            f'{WITH_TLS}&ssl_ca_certs=/ca',
            'correct ssl_ca_certs in [coordination] backend_url, or renew ',
        ),
        (f'{VERIFY}Hostname mismatch', WITH_TLS, 'a certificate must have '),
        ('[SSL] PEM lib (_ssl.c)', WITH_CERTIFICATE, 'correct ssl_certfile i'),
        ('[X509: KEY_VALUES_MISMATCH]', WITH_CERTIFICATE, 'correct ssl_cert'),
        (RESET, WITH_TLS, 'add ssl_certfile and ssl_keyfile to '),
        ('EOF occurred in violation', WITH_TLS, 'add ssl_certfile and '),
        (
            '[SSL: TLSV1_ALERT_UNKNOWN_CA] tlsv1 alert unknown ca',
            WITH_CERTIFICATE,
            'correct ssl_certfile and ssl_keyfile in ',
        ),
        (RESET, SENTINEL, 'add ssl=true and sentinel_ssl=true to '),
        (RESET, f'{SENTINEL}&ssl=true', 'add sentinel_ssl=true to '),
        ('Connection closed by server.', 'redis://h', 'add ssl=true to '),
        ('Connection refused', WITH_TLS, ''),
        ('Timeout connecting to server', WITH_TLS, ''),
    ],
)
def test_option_that_mends_a_handshake_is_named(
    reason: str, url: str, cure: str
) -> None:
    """Errors of OpenSSL name no option."""
    found = find_tls_cure(reason, backend.parse(url, term_s=15.0), False)
    assert found.startswith(cure)
    assert bool(found) is bool(cure)


def test_lost_connection_is_no_wrong_option() -> None:
    """The options were right when the daemon connected before."""
    parsed = backend.parse(WITH_TLS, term_s=15.0)
    assert find_tls_cure(RESET, parsed, True) == ''
    assert find_tls_cure(f'{VERIFY}certificate has expired', parsed, True)


def test_answer_of_the_server_is_no_failed_handshake() -> None:
    """Its class is kept, because the daemon joins again then."""
    adapter = RedisAdapter(Driver(0), backend.parse(SENTINEL, term_s=15.0))
    with (
        pytest.raises(errors.NotInGroup, match=r'reset by peer$'),
        adapter.request(),
    ):
        raise errors.NotInGroup('reset by peer')
    with (
        pytest.raises(errors.BackendUnavailable, match=r'peer: add ssl=true'),
        adapter.request(),
    ):
        raise errors.BackendUnavailable('reset by peer')

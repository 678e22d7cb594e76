# SPDX-License-Identifier: Apache-2.0
"""ZooKeeper's adapter: heartbeat, servers, lock queues; on fake clients."""

import contextlib
import logging
import socket
import types
from typing import Any

import kazoo.client
import kazoo.exceptions
import pytest
from kazoo.protocol.serialization import Auth
from tooz import coordination
from tooz.drivers.zookeeper import ZooKeeperLock

from hashring import backend, errors, zookeeper
from tests.fakes.clock import ManualClock


class Client(kazoo.client.KazooClient):  # type: ignore[misc]
    """A client that is not connected and has one queue in memory."""

    def __init__(self, *queue: str) -> None:
        super().__init__()
        self.queue = list(queue)
        self.is_lost = False

    def exists(self, path: str) -> Any:
        return self.queue or None

    def get_children(self, path: str) -> list[str]:
        return self.queue

    def delete(self, path: str) -> None:
        if self.is_lost:
            raise kazoo.exceptions.ConnectionLoss
        self.queue.remove(path.rpartition('/')[2])


def make(client: Client) -> ZooKeeperLock:
    """Return a lock of tooz over the fake client."""
    return ZooKeeperLock(b'c1', client.Lock('/c1', 'me'))


def test_node_of_a_refused_try_is_deleted() -> None:
    """Only the node of this lock object leaves the queue."""
    client = Client('other__lock__0000000001')
    lock = make(client)
    client.queue.append(f'{client.Lock("/c1").prefix}0000000002')
    own = f'{lock._lock.prefix}0000000003'
    client.queue.append(own)
    zookeeper.leave_queue(lock)
    assert len(client.queue) == 2 and own not in client.queue
    zookeeper.leave_queue(lock)


def test_queue_that_was_never_made_is_left() -> None:
    """A try that failed before it made the queue needs no cleanup."""
    zookeeper.leave_queue(make(Client()))


def test_failed_delete_raises() -> None:
    """The caller must try again if the node may still be in the queue."""
    client = Client()
    lock = make(client)
    client.queue.append(f'{lock._lock.prefix}0000000001')
    client.is_lost = True
    with pytest.raises(kazoo.exceptions.ConnectionLoss):
        zookeeper.leave_queue(lock)


class Driver:
    """tooz's driver with a connection to no server, and one record."""

    def __init__(self, connection: socket.socket | None = None) -> None:
        held = types.SimpleNamespace(
            _socket=connection, _connect=self._open_session
        )
        self.session_s = 40.0
        self.waits_s: list[float] = []
        handler = types.SimpleNamespace(create_connection=self._connect)
        self._coord = types.SimpleNamespace(
            _connection=held, handler=handler, last_zxid=7
        )
        self.is_refused = False
        self.written: list[Any] = []
        self.reads_count = 0

    def _connect(self, *args: Any, timeout: float, **options: Any) -> None:
        self.waits_s.append(timeout)

    def _open_session(self, host: str, ip: str, port: int) -> Any:
        """Return the time-outs of reads and connects, as kazoo does."""
        if self.is_refused:
            raise ConnectionError
        return self.session_s * 1000 * 2.0 / 3.0, self.session_s * 1000

    def heartbeat(self) -> None:
        self.reads_count += 1

    def update_capabilities(self, group: bytes, record: Any) -> Any:
        self.written.append((group, record))
        return types.SimpleNamespace(get=lambda timeout: timeout)


def adapter(
    driver: Driver, timeout_s: float = 3.0, servers: str = 'a?hosts=b'
) -> zookeeper.ZooKeeperAdapter:
    parsed = backend.parse(f'zookeeper://{servers}', term_s=15.0)
    return zookeeper.ZooKeeperAdapter(driver, parsed, timeout_s)


def test_heartbeat_writes_the_record() -> None:
    """A majority of the servers has to confirm it, unlike a read."""
    driver = Driver()
    made = adapter(driver)
    made.heartbeat(b'pool', None)
    assert (driver.reads_count, driver.written) == (1, [])
    made.heartbeat(b'pool', {'home': 'c1'})
    assert driver.written == [(b'pool', {'home': 'c1'})]
    assert driver.reads_count == 1


def test_refused_request_leaves_its_queue_once() -> None:
    """The next heartbeat removes it, and the one after has nothing to do."""
    made = adapter(Driver())
    answers = [None, None]
    client = types.SimpleNamespace(exists=lambda path: answers.pop())
    queued = types.SimpleNamespace(client=client, path='/c1')
    for _ in range(2):
        made.note_refused(types.SimpleNamespace(_lock=queued))
    made.heartbeat(b'pool', None)
    made.heartbeat(b'pool', None)
    assert answers == []


def test_connecting_takes_as_long_as_a_request() -> None:
    """A machine that is off does not use up the time of all servers."""
    driver = Driver()
    adapter(driver)
    for timeout_s in (15.0, 1.0):
        driver._coord.handler.create_connection(('h', 1), timeout=timeout_s)
    assert driver.waits_s == [backend.REQUEST_TIMEOUT_S, 1.0]


def test_session_that_is_shorter_than_a_lease_is_not_used() -> None:
    """Another agent would get the locks while the lease is in force."""
    driver = Driver()
    made = adapter(driver)
    for session_s, is_refused in ((14.0, True), (15.0, False), (9.0, True)):
        driver.session_s = session_s
        connect = driver._coord._connection._connect
        assert connect('zk1', '192.0.2.1', 2181)[1] == session_s * 1000
        expected: Any = contextlib.nullcontext()
        if is_refused:
            expected = pytest.raises(
                errors.BackendUnavailable,
                match=f'after {session_s:g} s, .* lease_term_s .15.: raise',
            )
        with expected, made.request():
            assert not is_refused, 'nothing is sent in it'


def test_request_that_opens_a_short_session_fails() -> None:
    """The first request connects: this agent must not join the group."""
    driver = Driver()
    driver.session_s = 10.0
    with (
        pytest.raises(errors.BackendUnavailable, match='maxSessionTimeout'),
        adapter(driver).request(),
    ):
        driver._coord._connection._connect('zk1', '192.0.2.1', 2181)


def test_servers_that_have_lost_their_data_are_used_after_a_session() -> None:
    """Before, such a server may only lag behind the others."""
    driver, clock = Driver(), ManualClock()
    parsed = backend.parse('zookeeper://a', term_s=15.0)
    zookeeper.ZooKeeperAdapter(driver, parsed, clock=clock)
    client = driver._coord

    def connect() -> int:
        with contextlib.suppress(ConnectionError):
            client._connection._connect('zk1', '192.0.2.1', 2181)
        return int(client.last_zxid)

    assert connect() == 7
    clock.advance(100.0)  # Connected.
    driver.is_refused = True
    assert connect() == 7
    clock.advance(39.0)
    assert connect() == 7
    clock.advance(1.0)
    assert connect() == 0
    driver.is_refused, client.last_zxid = False, 0
    connect()
    client.last_zxid, driver.is_refused = 8, True
    assert connect() == 8


def test_entries_of_another_password_are_named_as_such() -> None:
    """ZooKeeper says only that this client may not use them."""
    for why, expected in (
        ('join: ToozError: NoAuthError', 'another namespace'),
        ('join: ConnectionLoss', 'ConnectionLoss$'),
    ):
        with (
            pytest.raises(errors.BackendUnavailable, match=expected),
            adapter(Driver()).request(),
        ):
            raise errors.BackendUnavailable(why)


def test_operators_tool_with_another_password_is_not_told_of_an_outage() -> (
    None
):
    """ZooKeeper answers, so that nobody need look for it."""
    with (
        pytest.raises(errors.BackendUnavailable) as caught,
        adapter(Driver()).request(),
    ):
        raise errors.BackendUnavailable('groups: ToozError: NoAuthError')
    assert caught.value.symptom == 'refuses the user of the URL'
    assert 'password' in caught.value.cure


def test_password_and_its_digest_are_hidden_in_the_log(caplog: Any) -> None:
    """kazoo logs the login, and the rights of each entry that it makes."""
    caplog.set_level(logging.DEBUG)
    url = 'zookeeper://me:sesame@127.0.0.1:1'
    driver: Any = coordination.get_coordinator(url, b'member')
    parsed = backend.parse(url, term_s=15.0)
    zookeeper.ZooKeeperAdapter(driver, parsed)
    client = driver._coord
    client.logger.debug('Sending request: %s', Auth(0, 'digest', 'me:sesame'))
    client.logger.debug('Sending request: %r', client.default_acl)
    assert 'me:***' in caplog.text
    assert 'sesame' not in caplog.text
    assert client.default_acl[0].id.id not in caplog.text


@pytest.fixture
def pair() -> Any:
    """A listening server, and a connection to it."""
    with contextlib.ExitStack() as stack:
        server = stack.enter_context(socket.create_server(('127.0.0.1', 0)))
        client = stack.enter_context(
            socket.create_connection(server.getsockname())
        )
        yield server, client


def test_server_that_does_not_answer_is_left(pair: Any, caplog: Any) -> None:
    """Its connection ends, which kazoo notices, and the log names it."""
    server, client = pair
    with adapter(Driver(client), timeout_s=0.1).request():
        client.settimeout(5.0)
        assert client.recv(1) == b''
    assert f'127.0.0.1:{server.getsockname()[1]}' in caplog.text


def test_single_server_is_not_left(pair: Any) -> None:
    """There is no other one, and this one may only be slow."""
    client = pair[1]
    client.settimeout(0.5)
    made = adapter(Driver(client), timeout_s=0.1, servers='a')
    with made.request(), pytest.raises(TimeoutError):
        client.recv(1)


def test_server_that_answers_is_kept(pair: Any, caplog: Any) -> None:
    """A request that has ended closes no connection later."""
    caplog.set_level(logging.WARNING)
    with adapter(Driver(pair[1])).request():
        pass
    assert caplog.text == ''
    zookeeper.leave_server(Driver(), 3.0)  # It is between two connections.
    assert caplog.text == ''

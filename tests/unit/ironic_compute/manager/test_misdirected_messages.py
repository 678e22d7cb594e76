# SPDX-License-Identifier: Apache-2.0
"""Messages about servers of another host, over a broker in memory.

The broker is kombu's, under oslo.messaging's RabbitMQ driver; the messages are
those of Nova's own RPC client.
"""

import functools
import inspect
import threading
import types
from collections.abc import Callable, Iterator
from concurrent import futures
from typing import Any

import amqp.exceptions
import nova.conf
import oslo_messaging
import pytest
from nova import context as nova_context
from nova import exception as nova_exception
from nova import objects
from nova import rpc as nova_rpc
from nova.compute import rpcapi
from oslo_context import context as oslo_context

from hashring.clock import SystemClock
from hashring.ring import Host
from ironic_compute.delivery import Deliveries
from ironic_compute.manager import misdirected_messages
from ironic_compute.manager.forwarding import HOPS, HOPS_MAX
from ironic_compute.manager.misdirected_messages import MessageForwarder
from ironic_compute.recovery.in_progress import InProgress
from ironic_compute.worker import late_acks
from resource_tracker.node import NodeId
from tests.fakes.clock import ManualClock

CONF = nova.conf.CONF
objects.register_all()

_TIMEOUT_S = 20.0
_ONE = '11111111-1111-1111-1111-111111111111'
_TWO = '22222222-2222-2222-2222-222222222222'
_HERE, _THERE = Host('c1'), Host('c2')

# Nova 34 has a second topic, for what it finishes when it stops.
_TOPICS = [
    getattr(rpcapi, name)
    for name in ('RPC_TOPIC', 'RPC_TOPIC_ALT')
    if hasattr(rpcapi, name)
]
_NAMES = {'instance', 'instances'}
# Every method of Nova's RPC client that names a server.
_METHODS = sorted(
    name
    for name, method in inspect.getmembers(
        rpcapi.ComputeAPI, inspect.isfunction
    )
    if _NAMES & set(inspect.signature(method).parameters)
)


def _server(uuid: str = _ONE, host: str | None = _HERE) -> Any:
    """Return a server as the sender of a message knows it."""
    server = objects.Instance(uuid=uuid, host=host, node='n1')
    server.obj_reset_changes()
    return server


def _event(uuid: str) -> Any:
    return objects.InstanceExternalEvent(
        instance_uuid=uuid, name='network-changed', status='completed', tag='t'
    )


class _Received:
    """Handles the messages of one host: records each as it was sent."""

    def __init__(self) -> None:
        self.messages: list[tuple[dict[str, Any], dict[str, Any]]] = []
        self.answer: Any = 'the answer'
        self.error: Exception | None = None

    def dispatch(self, incoming: Any) -> Any:
        self.messages.append((dict(incoming.ctxt), dict(incoming.message)))
        if self.error is not None:
            raise self.error
        return self.answer


class _Records:
    """Nova's records of servers and nodes, and the changes of holders."""

    def __init__(self) -> None:
        self.servers: dict[str, Any] = {}
        self.holder: Host | None = None
        self.given: list[tuple[str, str, str]] = []

    def read(self, server: str) -> Any:
        return self.servers.get(server)

    def put(self, host: str | None, server: str = _ONE) -> None:
        self.servers[server] = types.SimpleNamespace(host=host, node='n1')

    def find_holder(self, node: NodeId) -> Host | None:
        return self.holder

    def follow(self, node: NodeId, server: str, host: Host) -> None:
        self.given.append((node, server, host))


class _Hosts:
    """Two hosts that receive; the first one forwards."""

    def __init__(self, transport: Any) -> None:
        self.reset()
        self.deliveries = Deliveries()
        self.rpc = rpcapi.ComputeAPI()
        self.servers_here = [
            self._serve(transport, topic, _HERE, lambda: self.here)
            for topic in _TOPICS
        ]
        self.servers = self.servers_here + [
            self._serve(transport, topic, _THERE, lambda: self.there)
            for topic in _TOPICS
        ]
        self.forward()
        for server in self.servers:
            server.start()

    def reset(self) -> None:
        """Forget all messages and records."""
        self.work, self.in_progress = InProgress(), InProgress()
        self.records = _Records()
        self.here, self.there = _Received(), _Received()
        self.sent = _Received()

    def _serve(
        self,
        transport: Any,
        topic: str,
        host: Host,
        received: Callable[[], _Received],
    ) -> Any:
        server = oslo_messaging.get_rpc_server(
            transport,
            oslo_messaging.Target(topic=topic, server=host),
            [],
            executor='threading',
        )
        server.dispatcher.dispatch = lambda incoming: received().dispatch(
            incoming
        )
        late_acks.acknowledge_late(server, self.deliveries)
        return server

    def forward(self) -> None:
        """Attach the forwarder, and record what the forwarder sees."""
        forwarder = MessageForwarder(
            _HERE,
            lambda node: self.records.find_holder(node),
            lambda *given: self.records.follow(*given),
            lambda server: self.work.shared(server),
            lambda server: self.in_progress.with_message(server),
            ManualClock(),
            lambda server, clock: self.records.read(server),
        )
        for server in self.servers_here:
            forwarder.attach_to(server)
            server.dispatcher.dispatch = functools.partial(
                self._record, server.dispatcher.dispatch
            )

    def _record(self, dispatch: Callable[[Any], Any], incoming: Any) -> Any:
        message = dict(incoming.ctxt), dict(incoming.message)
        self.sent.messages.append(message)
        return dispatch(incoming)


@pytest.fixture(scope='module')
def two_hosts() -> Iterator[_Hosts]:
    """Two hosts on a broker of their own."""
    transport = oslo_messaging.get_rpc_transport(
        CONF,
        'kombu+memory:////',
        allowed_remote_exmods=nova_rpc.get_allowed_exmods(),
    )
    # What the oldest host of the cell understands is known without a request.
    version = max(
        rpcapi.ComputeAPI.VERSION_ALIASES.values(),
        key=lambda text: tuple(map(int, text.split('.'))),
    )
    CONF.set_override('compute', version, 'upgrade_levels')
    with pytest.MonkeyPatch.context() as monkeypatch:
        monkeypatch.setattr(nova_rpc, 'TRANSPORT', transport)
        monkeypatch.setattr(rpcapi, '_ROUTER', None)
        made = _Hosts(transport)
        yield made
    for server in made.servers:
        server.stop()
    for server in made.servers:
        server.wait()
    CONF.clear_override('compute', 'upgrade_levels')
    transport.cleanup()


@pytest.fixture
def hosts(two_hosts: _Hosts) -> _Hosts:
    """Two hosts that have received nothing yet."""
    two_hosts.reset()
    return two_hosts


def _context() -> Any:
    return nova_context.RequestContext('user', 'project', is_admin=False)


def _wait(is_so: Callable[[], bool]) -> None:
    clock = SystemClock()
    ends_s = clock.now_s() + _TIMEOUT_S
    while not is_so():
        assert clock.now_s() < ends_s
        clock.sleep(0.02)


def _arguments(method: Any) -> dict[str, Any]:
    """Return arguments that have a method sent to the server's old host."""
    known = {
        'instance': _server(),
        'instances': [_server()],
        'events': [_event(_ONE)],
        'migration': objects.Migration(source_compute='c1', dest_compute='c1'),
        'host': 'c1',
        'destination': 'c1',
    }
    parameters = list(inspect.signature(method).parameters)[1:]
    return {name: known.get(name) for name in parameters}


def _send(hosts: _Hosts, name: str) -> Any:
    method = getattr(rpcapi.ComputeAPI, name)
    arguments = {**_arguments(method), 'ctxt': _context()}
    return getattr(hosts.rpc, name)(**arguments)


def test_each_message_about_a_server_is_forwarded_unchanged(
    hosts: _Hosts,
) -> None:
    """Every method of Nova's client that names a server, call or cast."""
    hosts.records.put('c2')
    with futures.ThreadPoolExecutor(8) as pool:
        answers = list(pool.map(lambda name: _send(hosts, name), _METHODS))
    _wait(lambda: len(hosts.sent.messages) == len(_METHODS))
    sent = {m['method']: (c, m) for c, m in hosts.sent.messages}
    # Nova's client drops the server from check_instance_shared_storage.
    naming = {name for name, (_, m) in sent.items() if _NAMES & set(m['args'])}
    assert len(naming) >= len(_METHODS) - 1 > 50
    _wait(lambda: len(hosts.there.messages) == len(naming))
    arrived = {m['method']: (c, m) for c, m in hosts.there.messages}
    assert arrived.keys() == naming
    for name, (context, message) in arrived.items():
        first_context, first_message = sent[name]
        assert message == first_message
        assert context == {**first_context, HOPS: 1, **_of_call(context)}
    assert {m['method'] for _, m in hosts.here.messages} == (
        sent.keys() - naming
    )
    assert set(answers) == {None, 'the answer'}


def _of_call(context: dict[str, Any]) -> dict[str, Any]:
    """Return the keys of oslo.messaging's own, which each call has."""
    own = ('client_timeout',)
    return {key: context[key] for key in own if key in context}


def test_message_about_a_server_of_this_host_is_handled_here(
    hosts: _Hosts,
) -> None:
    """Nothing is forwarded if the records agree."""
    hosts.records.put('c1')
    assert _send(hosts, 'get_console_output') == 'the answer'
    assert len(hosts.here.messages) == 1
    assert not hosts.there.messages


@pytest.mark.parametrize('host', [None, 'gone'])
def test_message_about_a_server_without_host_is_handled_here(
    host: str | None, hosts: _Hosts
) -> None:
    """Nova's handler knows what to do with a server that is gone."""
    if host is None:
        hosts.records.put(None)
    assert _send(hosts, 'get_console_output') == 'the answer'
    assert len(hosts.here.messages) == 1


def test_message_for_another_host_than_the_servers_is_handled_here(
    hosts: _Hosts,
) -> None:
    """Migrations address a host that does not serve the server."""
    hosts.records.put('c2')
    server = _server(host='c3')
    hosts.rpc.pre_live_migration(_context(), server, None, None, 'c1', None)
    assert len(hosts.here.messages) == 1
    assert not hosts.there.messages


def test_error_of_a_forwarded_call_is_handed_back(hosts: _Hosts) -> None:
    """The caller gets the very exception that the other host has raised."""
    hosts.records.put('c2')
    hosts.there.error = nova_exception.InstanceNotReady(instance_id=_ONE)
    with pytest.raises(nova_exception.InstanceNotReady):
        _send(hosts, 'get_console_output')


@pytest.mark.parametrize(
    'name', ['attach_interface', 'reserve_block_device_name']
)
def test_forwarded_call_waits_no_longer_than_its_caller(
    name: str, hosts: _Hosts, monkeypatch: pytest.MonkeyPatch
) -> None:
    """RabbitMQ drops a call when its time is up.

    It kept a forwarded one for half an hour. The other host attached a port
    long after nova-api had told the user that it had failed.
    """
    hosts.records.put('c2')
    limits: dict[str, tuple[Any, Any]] = {}
    transport: Any = nova_rpc.TRANSPORT
    send = transport._send

    def note_limits(target: Any, *args: Any, **options: Any) -> Any:
        limits[target.server] = (
            options.get('timeout'),
            options.get('call_monitor_timeout'),
        )
        return send(target, *args, **options)

    monkeypatch.setattr(transport, '_send', note_limits)
    assert _send(hosts, name) == 'the answer'
    assert limits['c2'] == limits['c1']


def test_message_is_forwarded_three_times_at_most(hosts: _Hosts) -> None:
    """Two hosts that disagree do not forward a message for ever."""
    hosts.records.put('c2')
    client = oslo_messaging.get_rpc_client(
        nova_rpc.TRANSPORT, oslo_messaging.Target(topic=rpcapi.RPC_TOPIC)
    ).prepare(server='c1', version='6.0')
    server = {
        'nova_object.name': 'Instance',
        'nova_object.data': {'uuid': _ONE, 'host': 'elsewhere'},
    }
    for hops_count in (1, HOPS_MAX):
        client.call({HOPS: hops_count}, 'get_diagnostics', instance=server)
    assert [c[HOPS] for c, _ in hosts.there.messages] == [2]
    assert [c[HOPS] for c, _ in hosts.here.messages] == [HOPS_MAX]


def test_events_are_forwarded_to_the_hosts_of_their_servers(
    hosts: _Hosts,
) -> None:
    """One message names the servers of two hosts; each gets its own."""
    hosts.records.put('c1', _ONE)
    hosts.records.put('c2', _TWO)
    hosts.rpc.external_instance_event(
        _context(),
        [_server(_ONE), _server(_TWO)],
        [_event(_ONE), _event(_TWO)],
    )
    _wait(lambda: bool(hosts.here.messages and hosts.there.messages))
    for received, uuid in ((hosts.here, _ONE), (hosts.there, _TWO)):
        ((_, message),) = received.messages
        (server,), (event,) = (
            message['args'][name] for name in ('instances', 'events')
        )
        assert server['nova_object.data']['uuid'] == uuid
        assert event['nova_object.data']['instance_uuid'] == uuid


def test_host_without_a_queue_gets_no_message(
    hosts: _Hosts,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """A message that RabbitMQ cannot deliver is handled here, not lost."""
    hosts.records.put('c3')
    _refuse_to_send(monkeypatch, 'c3')
    hosts.rpc.stop_instance(_context(), _server())
    _wait(lambda: len(hosts.here.messages) == 1)
    assert _send(hosts, 'get_console_output') == 'the answer'
    assert caplog.text.count('because host c3, which serves them') == 2


def _refuse_to_send(monkeypatch: pytest.MonkeyPatch, host: str) -> None:
    """Have the broker return messages to a host, as RabbitMQ does."""
    transport: Any = nova_rpc.TRANSPORT
    send = transport._send

    def send_or_return(target: Any, *args: Any, **options: Any) -> Any:
        if target.server == host and options['transport_options'] is not None:
            assert options['transport_options'].at_least_once
            raise oslo_messaging.MessageUndeliverable(None, None, None, None)
        return send(target, *args, **options)

    monkeypatch.setattr(transport, '_send', send_or_return)


def test_cast_is_acknowledged_when_the_broker_has_the_forwarded_one(
    hosts: _Hosts, monkeypatch: pytest.MonkeyPatch
) -> None:
    """While the broker takes no message, it keeps the first one."""
    hosts.records.put('c2')
    begun, may_send = threading.Event(), threading.Event()
    transport: Any = nova_rpc.TRANSPORT
    send = transport._send

    def send_later(target: Any, *args: Any, **options: Any) -> Any:
        if target.server == 'c2':
            begun.set()
            assert may_send.wait(_TIMEOUT_S)
        return send(target, *args, **options)

    monkeypatch.setattr(transport, '_send', send_later)
    hosts.rpc.stop_instance(_context(), _server())
    assert begun.wait(_TIMEOUT_S)
    assert len(hosts.deliveries._at_work) == 1
    may_send.set()
    _wait(lambda: len(hosts.there.messages) == 1)
    _wait(lambda: not hosts.deliveries._at_work)


def test_cast_is_forwarded_again_if_the_broker_has_refused_it(
    hosts: _Hosts,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """A broker that has just been started may have no virtual host yet.

    oslo.messaging repeats nothing then, and the message was lost.
    """
    hosts.records.put('c2')
    refusals: list[Exception] = [
        oslo_messaging.MessageDeliveryFailure('(541) vhost is down'),
        amqp.exceptions.NotAllowed('vhost not found'),
    ]
    transport: Any = nova_rpc.TRANSPORT
    send = transport._send

    def refuse_or_send(target: Any, *args: Any, **options: Any) -> Any:
        if target.server == 'c2' and refusals:
            raise refusals.pop()
        return send(target, *args, **options)

    monkeypatch.setattr(transport, '_send', refuse_or_send)
    hosts.rpc.stop_instance(_context(), _server())
    _wait(lambda: len(hosts.there.messages) == 1)
    _wait(lambda: not hosts.deliveries._at_work)
    assert not hosts.here.messages
    assert caplog.text.count('is sent when RabbitMQ takes it') == 2


# The records of a node with a server


def test_message_waits_while_its_server_is_moved(hosts: _Hosts) -> None:
    """It goes to the host that the server has after the move."""
    hosts.records.put('c1')
    with futures.ThreadPoolExecutor(1) as pool:
        with hosts.work.exclusive(_ONE) as is_free:
            assert is_free
            answer = pool.submit(_send, hosts, 'get_console_output')
            _wait(lambda: len(hosts.sent.messages) == 1)
            with pytest.raises(futures.TimeoutError):
                answer.result(timeout=0.2)
            assert not hosts.here.messages
            hosts.records.put('c2')
        assert answer.result(timeout=_TIMEOUT_S) == 'the answer'
    assert len(hosts.there.messages) == 1
    assert not hosts.here.messages


def test_server_is_not_moved_while_a_message_about_it_is_handled(
    hosts: _Hosts,
) -> None:
    """The handler works on a server that is still here."""
    hosts.records.put('c1')
    free: list[bool] = []

    def handle(incoming: Any) -> Any:
        with hosts.work.exclusive(_ONE) as is_free:
            free.append(is_free)
        return 'done'

    hosts.here.dispatch = handle  # type: ignore[method-assign]
    assert _send(hosts, 'get_console_output') == 'done'
    assert free == [False]
    with hosts.work.exclusive(_ONE) as is_free:
        assert is_free


def test_recovery_leaves_a_server_alone_whose_message_waits(
    hosts: _Hosts,
) -> None:
    """Recovery would end a rebuild whose message waits for nova-conductor."""
    hosts.records.put('c1')
    free: list[bool] = []

    def look() -> None:
        with hosts.in_progress.exclusive(_ONE) as is_free:
            free.append(is_free)

    def read(server: str) -> Any:
        look()
        return hosts.records.servers[server]

    hosts.records.read = read  # type: ignore[method-assign]
    hosts.here.dispatch = lambda incoming: look()  # type: ignore[method-assign,assignment]
    _send(hosts, 'get_console_output')
    assert free == [False, False]
    with hosts.in_progress.exclusive(_ONE) as is_free:
        assert is_free


def test_node_follows_its_server_before_a_message_is_forwarded(
    hosts: _Hosts,
) -> None:
    """The server's record is right; the node's holder gives the node away."""
    hosts.records.put('c2')
    _send(hosts, 'get_console_output')
    assert hosts.records.given == [('n1', _ONE, 'c2')]


def test_message_goes_to_the_holder_of_the_servers_node(
    hosts: _Hosts,
) -> None:
    """That host gives the node away, and sends the message back."""
    hosts.records.put('c1')
    hosts.records.holder = _THERE
    _send(hosts, 'get_console_output')
    assert len(hosts.there.messages) == 1
    assert not hosts.records.given


def test_unknown_holder_leaves_the_message_here(
    hosts: _Hosts, caplog: pytest.LogCaptureFixture
) -> None:
    """An error of the read changes nothing."""

    def find_holder(node: NodeId) -> Host | None:
        raise nova_exception.NovaException('no database')

    hosts.records.find_holder = find_holder  # type: ignore[method-assign]
    hosts.records.put('c1')
    _send(hosts, 'get_console_output')
    assert len(hosts.here.messages) == 1
    assert 'no database' in caplog.text


# The read of a server's record


def test_message_waits_until_nova_answers(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A conductor without an answer, or without a database, is asked again.

    A delete was handled here although its server was on another host.
    """
    answers: list[Any] = [
        oslo_messaging.MessagingTimeout('no answer'),
        oslo_messaging.RemoteError('DBConnectionError'),
        _server(host='c2'),
    ]

    def read(context: Any, uuid: str, expected_attrs: Any) -> Any:
        answer = answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer

    monkeypatch.setattr(objects.Instance, 'get_by_uuid', read)
    found = misdirected_messages.read_location(_ONE, ManualClock())
    assert found is not None
    assert found.host == 'c2'
    assert not answers


@pytest.mark.parametrize(
    'error',
    [
        nova_exception.InstanceNotFound(instance_id=_ONE),
        nova_exception.NovaException('no database'),
    ],
)
def test_server_that_cannot_be_read_has_no_other_host(
    error: Exception, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its message is handled here, as the sender meant it."""

    def read(context: Any, uuid: str, expected_attrs: Any) -> Any:
        raise error

    monkeypatch.setattr(objects.Instance, 'get_by_uuid', read)
    assert misdirected_messages.read_location(_ONE, ManualClock()) is None


def test_thread_has_the_id_of_the_message_before_its_handler_runs(
    hosts: _Hosts,
) -> None:
    """What is logged about a message has not the id of the one before it."""
    hosts.records.put('c1')
    read, found, sent = hosts.records.read, [], []

    def read_and_record(server: str) -> Any:
        current = oslo_context.get_current()
        found.append(None if current is None else current.request_id)
        return read(server)

    hosts.records.read = read_and_record  # type: ignore[method-assign]
    for _ in range(5):
        context = _context()
        sent.append(context.request_id)
        hosts.rpc.get_console_output(context, _server(), 1)
    assert found == sent

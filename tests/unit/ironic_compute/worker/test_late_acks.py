# SPDX-License-Identifier: Apache-2.0
"""oslo.messaging's RabbitMQ driver, over a broker in memory."""

import threading
import types
from collections.abc import Callable, Iterator
from typing import Any

import oslo_messaging
import pytest
from oslo_config import cfg
from oslo_messaging._drivers import impl_rabbit

from hashring.clock import SystemClock
from ironic_compute import delivery
from ironic_compute.delivery import Deliveries
from ironic_compute.worker import late_acks

_TIMEOUT_S = 20.0


class _Endpoint:
    """Handlers that a test lets end."""

    def __init__(self) -> None:
        self.begun: list[str] = []
        self.may_end = threading.Event()
        self.kept: list[delivery.Delivery] = []

    def work(self, context: Any, name: str) -> str:
        """Work until the test lets the handler end."""
        self.begun.append(name)
        assert self.may_end.wait(_TIMEOUT_S)
        return name

    def build(self, context: Any, name: str) -> None:
        """Return at once; the message is kept."""
        message = delivery.current()
        assert message is not None
        message.keep()
        self.kept.append(message)


class _Broker:
    """A server on a broker in memory, and a client of it."""

    def __init__(self) -> None:
        self.endpoint = _Endpoint()
        self._transport = oslo_messaging.get_rpc_transport(
            cfg.CONF, 'kombu+memory:////'
        )
        target = oslo_messaging.Target(topic='late', server='c1')
        self.server = oslo_messaging.get_rpc_server(
            self._transport, target, [self.endpoint], executor='threading'
        )
        late_acks.acknowledge_late(self.server, Deliveries())
        self.server.start()
        self.client = oslo_messaging.get_rpc_client(self._transport, target)

    def close(self) -> None:
        """Let all handlers end, and stop."""
        self.endpoint.may_end.set()
        self.server.stop()
        self.server.wait()
        self._transport.cleanup()

    def count_unacknowledged(self) -> int:
        """Return how many messages the broker keeps for the server."""
        polled = self.server.listener._poll_style_listener
        qos = polled.conn.connection.channel.qos
        return len(qos._delivered) - len(qos._dirty)


def _wait(is_so: Callable[[], bool]) -> None:
    clock = SystemClock()
    ends_s = clock.now_s() + _TIMEOUT_S
    while not is_so():
        assert clock.now_s() < ends_s
        clock.sleep(0.02)


@pytest.fixture
def broker() -> Iterator[_Broker]:
    made = _Broker()
    yield made
    made.close()


def test_cast_is_acknowledged_when_its_handler_has_ended(
    broker: _Broker,
) -> None:
    """Meanwhile RabbitMQ would give the message to another worker."""
    broker.client.cast({}, 'work', name='one')
    _wait(lambda: broker.endpoint.begun == ['one'])
    assert broker.count_unacknowledged() == 1
    broker.endpoint.may_end.set()
    _wait(lambda: broker.count_unacknowledged() == 0)


def test_kept_cast_is_acknowledged_by_the_work_that_keeps_it(
    broker: _Broker,
) -> None:
    """The end of its handler does not count."""
    broker.client.cast({}, 'build', name='one')
    _wait(lambda: bool(broker.endpoint.kept))
    SystemClock().sleep(0.3)
    assert broker.count_unacknowledged() == 1
    broker.endpoint.kept[0].acknowledge()
    _wait(lambda: broker.count_unacknowledged() == 0)


def test_cast_that_was_sent_twice_does_not_stay_unacknowledged(
    broker: _Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The next worker would handle the first one again, minutes later.

    oslo.messaging sends a message again if it has lost the connection before
    the broker confirmed it.
    """
    publish = impl_rabbit.Connection._publish

    def publish_twice(self: Any, *args: Any) -> None:
        publish(self, *args)
        publish(self, *args)

    monkeypatch.setattr(impl_rabbit.Connection, '_publish', publish_twice)
    broker.client.cast({}, 'work', name='one')
    _wait(lambda: broker.endpoint.begun == ['one'])
    _wait(lambda: broker.count_unacknowledged() == 2)
    broker.endpoint.may_end.set()
    _wait(lambda: broker.count_unacknowledged() == 0)
    assert broker.endpoint.begun == ['one']


def test_call_is_acknowledged_when_it_is_received(broker: _Broker) -> None:
    """Its caller waits for the answer, and calls again without one."""
    answers: list[Any] = []
    call = threading.Thread(
        target=lambda: answers.append(
            broker.client.call({}, 'work', name='one')
        )
    )
    call.start()
    _wait(lambda: broker.endpoint.begun == ['one'])
    assert broker.count_unacknowledged() == 0
    broker.endpoint.may_end.set()
    call.join(_TIMEOUT_S)
    assert answers == ['one']


def test_other_oslo_messaging_acknowledges_as_before(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """A release without the private attributes is named once in the log."""
    from oslo_messaging._drivers import amqpdriver

    listener = object.__new__(amqpdriver.RpcAMQPListener)
    adapter = types.SimpleNamespace(_poll_style_listener=listener)
    server = types.SimpleNamespace(
        _create_listener=lambda: adapter, _process_incoming=None
    )
    late_acks.acknowledge_late(server, Deliveries())
    assert server._create_listener() is adapter
    assert len(caplog.messages) == 1

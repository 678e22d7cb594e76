# SPDX-License-Identifier: Apache-2.0
"""RPC servers that start with the lease and lose no message at the end."""

import threading
import types
from collections.abc import Iterator
from typing import Any

import oslo_messaging
import pytest
from oslo_config import cfg

from ironic_compute.delivery import Deliveries
from ironic_compute.worker.rpc_service import DeferredRpcServer, Service


class _Message:
    """A message that RabbitMQ sent to a listener that has stopped."""

    def __init__(self) -> None:
        self.fate = 'lost'

    def acknowledge(self) -> None:
        self.fate = 'taken'

    def requeue(self) -> None:
        self.fate = 'in its queue'


@pytest.fixture
def server() -> Iterator[Any]:
    """Yield a server of oslo.messaging, with its driver for RabbitMQ."""
    conf = cfg.CONF
    transport = oslo_messaging.get_rpc_transport(conf, 'kombu+memory:////')
    target = oslo_messaging.Target(topic='compute', server='c1')
    made = oslo_messaging.get_rpc_server(
        transport, target, [], executor='threading'
    )
    yield made
    transport.cleanup()


def test_what_comes_to_a_stopped_server_goes_back(server: Any) -> None:
    """A late message returns to its queue; otherwise nobody serves it."""
    late = DeferredRpcServer(server, Deliveries())
    late.begin()
    consumers = list(server.listener._poll_style_listener.conn._consumers)
    assert consumers
    late.stop()
    for consumer in consumers:
        message = _Message()
        consumer.callback(message)
        assert message.fate == 'in its queue'
    late.wait()


def test_a_server_that_never_began_is_stopped(server: Any) -> None:
    """The stop returns at once, although there is no connection yet."""
    late = DeferredRpcServer(server, Deliveries())
    late.stop()
    late.wait()


class _Polling:
    """A server that looks whether it was stopped after a message only."""

    executor_type, listener = 'other', None
    _create_listener = _process_incoming = None

    def __init__(self) -> None:
        self.message = threading.Event()

    def start(self) -> None:
        """Begin to poll."""

    def stop(self) -> None:
        """Wait for a message as oslo.messaging does."""
        assert self.message.wait(60.0)


def test_a_server_that_stops_is_woken() -> None:
    """Otherwise it would wait for its next message, or for seconds."""
    server = _Polling()
    late = DeferredRpcServer(server, Deliveries(), server.message.set)
    late.begin()
    late.stop()
    assert server.message.is_set()


def test_a_server_stops_if_the_machine_gives_no_thread(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It would go on to receive while its worker ends, or has no lease."""
    server = _Polling()
    late = DeferredRpcServer(server, Deliveries())
    late.begin()
    stopped: list[str] = []
    server.stop = lambda: stopped.append('now')  # type: ignore[method-assign]

    def start(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, 'start', start)
        late.stop()
    assert stopped == ['now']


class _Stopping(Service):  # type: ignore[misc]
    """Nova's stop of a service that was never started."""

    def __init__(self) -> None:
        self.events: list[str] = []
        self.binary, self.topic, self.topic_alt = 'nova-compute', 'a', None
        self.host = 'c1'
        self.gating = types.SimpleNamespace(
            stop=lambda: self.events.append('follows the lease no longer'),
            servers=[],
            deliveries=Deliveries(),
        )
        self.manager = types.SimpleNamespace(
            rpc_gating=self.gating,
            forwarder=types.SimpleNamespace(attach_to=lambda server: None),
            set_shutdown_in_progress=lambda: None,
            graceful_shutdown=lambda *timeout: self.events.append('drains'),
        )
        self.tg = types.SimpleNamespace(stop=lambda graceful: None)
        self.rpcserver = types.SimpleNamespace(
            executor_type='other',
            _create_listener=None,
            _process_incoming=None,
            listener=None,
            stop=lambda: self.events.append('receives nothing'),
            wait=lambda: None,
        )
        self.rpcserver_alt = None


def test_no_server_starts_to_receive_once_the_service_stops() -> None:
    """The lease is followed no longer before Nova's own steps begin."""
    service = _Stopping()
    (server,) = service.gating.servers
    server.begin = None
    server._wake = lambda: None
    server._has_begun = True
    service.stop()
    assert service.events == [
        'follows the lease no longer',
        'receives nothing',
        'drains',
    ]

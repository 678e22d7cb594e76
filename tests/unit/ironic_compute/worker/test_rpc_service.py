# SPDX-License-Identifier: Apache-2.0
"""What comes while a worker stops is not lost."""

from collections.abc import Iterator
from typing import Any

import oslo_messaging
import pytest
from oslo_config import cfg

from ironic_compute.worker.rpc_service import DeferredRpcServer


class _Message:
    """What RabbitMQ sent to a listener that does not look any more."""

    def __init__(self) -> None:
        self.fate = 'lost'

    def acknowledge(self) -> None:
        self.fate = 'taken'

    def requeue(self) -> None:
        self.fate = 'in its queue'


@pytest.fixture
def server() -> Iterator[Any]:
    """Return oslo.messaging's own server, on its driver for RabbitMQ."""
    conf = cfg.CONF
    transport = oslo_messaging.get_rpc_transport(conf, 'kombu+memory:////')
    target = oslo_messaging.Target(topic='compute', server='c1')
    made = oslo_messaging.get_rpc_server(
        transport, target, [], executor='threading'
    )
    yield made
    transport.cleanup()


def test_what_comes_to_a_stopped_server_goes_back(server: Any) -> None:
    """Closing the connection reads one message more, which nobody serves."""
    late = DeferredRpcServer(server)
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
    """It has no connection yet."""
    late = DeferredRpcServer(server)
    late.stop()
    late.wait()

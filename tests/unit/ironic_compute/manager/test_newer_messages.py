# SPDX-License-Identifier: Apache-2.0
"""Messages of a newer Nova, over a broker in memory.

The broker is kombu's, under oslo.messaging's RabbitMQ driver. RPC server,
serializers and the client of nova-conductor are Nova's own.
"""

import queue
import threading
from collections.abc import Callable, Iterator
from typing import Any

import nova.conf
import oslo_messaging
import pytest
from nova import context as nova_context
from nova import objects
from nova import rpc as nova_rpc
from nova.objects import base as objects_base

from ironic_compute.delivery import Deliveries
from ironic_compute.manager.newer_messages import wait_for_translations
from ironic_compute.worker import late_acks
from tests.fakes.clock import ManualClock

CONF = nova.conf.CONF
objects.register_all()

_TIMEOUT_S = 30.0
_SERVER = '11111111-1111-1111-1111-111111111111'


class _Clock(ManualClock):
    """Tells that a step was tried in vain."""

    def __init__(self) -> None:
        super().__init__()
        self.on_sleep: Callable[[], None] = lambda: None

    def sleep(self, seconds: float) -> None:
        super().sleep(seconds)
        self.on_sleep()


class _Conductor:
    """nova-conductor of the newer release, as far as it translates."""

    target = oslo_messaging.Target(version='3.0')

    def __init__(self) -> None:
        self.error: Exception | None = None

    def object_backport_versions(
        self, context: Any, objinst: Any, object_versions: Any
    ) -> Any:
        if self.error is not None:
            raise self.error
        return objects.InstanceExternalEvent(
            instance_uuid=_SERVER, name='network-changed', status='completed'
        )


class _Raw(oslo_messaging.NoOpSerializer):
    """Translates nothing, as nova-conductor's server does for backports."""

    def serialize_entity(self, context: Any, entity: Any) -> Any:
        return objects_base.NovaObjectSerializer().serialize_entity(
            context, entity
        )


class _Compute:
    """The handler of a compute that is of the older release."""

    target = oslo_messaging.Target(version='6.0')

    def __init__(self) -> None:
        self.handled: queue.Queue[Any] = queue.Queue()

    def tell(self, context: Any, event: Any) -> None:
        self.handled.put(event)


class _Cloud:
    """A compute that is served, and a nova-conductor that is not yet."""

    def __init__(self) -> None:
        self.compute, self.conductor = _Compute(), _Conductor()
        self.clock, self.deliveries = _Clock(), Deliveries()
        self.servers: list[Any] = []
        server = self._server(
            'compute', self.compute, objects_base.NovaObjectSerializer()
        )
        wait_for_translations(server, self.clock)
        late_acks.acknowledge_late(server, self.deliveries)
        server.start()

    def _server(self, topic: str, endpoint: Any, serializer: Any) -> Any:
        server = oslo_messaging.get_rpc_server(
            nova_rpc.TRANSPORT,
            oslo_messaging.Target(topic=topic, server='c1'),
            [endpoint],
            executor='threading',
            serializer=nova_rpc.RequestContextSerializer(serializer),
        )
        self.servers.append(server)
        return server

    def start_conductor(self) -> None:
        self._server('conductor', self.conductor, _Raw()).start()

    def send(self) -> None:
        """Send an event whose version this Nova does not know."""
        event = objects.InstanceExternalEvent(
            instance_uuid=_SERVER, name='network-changed', status='completed'
        ).obj_to_primitive()
        event['nova_object.version'] = '1.999'
        nova_rpc.get_client(
            oslo_messaging.Target(topic='compute', version='6.0')
        ).prepare(server='c1').cast(
            nova_context.get_admin_context(), 'tell', event=event
        )


@pytest.fixture
def cloud(monkeypatch: pytest.MonkeyPatch) -> Iterator[_Cloud]:
    """A compute on a broker of its own."""
    transport = oslo_messaging.get_rpc_transport(CONF, 'kombu+memory:////')
    monkeypatch.setattr(nova_rpc, 'TRANSPORT', transport)
    made = _Cloud()
    # This registers the option.
    nova_rpc.get_client(oslo_messaging.Target(topic='compute'))
    CONF.set_override('rpc_response_timeout', 1)
    yield made
    for server in made.servers:
        server.stop()
    for server in made.servers:
        server.wait()
    CONF.clear_override('rpc_response_timeout')
    transport.cleanup()


def test_message_waits_until_the_conductor_is_back(
    cloud: _Cloud, caplog: pytest.LogCaptureFixture
) -> None:
    """A restart of nova-conductor during an upgrade loses no message."""

    def restart() -> None:
        cloud.clock.on_sleep = lambda: None
        assert cloud.deliveries.count() == 1  # RabbitMQ has it still.
        cloud.start_conductor()

    cloud.clock.on_sleep = restart
    cloud.send()
    event = cloud.compute.handled.get(timeout=_TIMEOUT_S)
    assert event.instance_uuid == _SERVER
    assert 'waits until nova-conductor has translated it' in caplog.text


def test_message_that_cannot_be_translated_ends(cloud: _Cloud) -> None:
    """It would occupy a thread for ever."""
    ended = threading.Event()
    finish = cloud.deliveries._finish

    def note(message_id: str) -> None:
        finish(message_id)
        ended.set()

    cloud.deliveries._finish = note  # type: ignore[method-assign]
    cloud.conductor.error = ValueError('no such version')
    cloud.start_conductor()
    cloud.send()
    assert ended.wait(_TIMEOUT_S)
    assert cloud.compute.handled.empty()

# SPDX-License-Identifier: Apache-2.0
"""What ``upgrade check`` finds out about the way of Ironic's notifications."""

import pathlib
import time
from collections.abc import Iterator

import kombu
import nova.conf
import pytest

from hashring.ring import Host
from ironic_compute.cmd import notification_check
from ironic_compute.config import register_opts
from ironic_compute.feed import notifications
from ironic_compute.feed.notifications import NodeEvents
from tests.contract.rabbitmq import broker as brokers

CONF = nova.conf.CONF
_HOST = Host('c1')
_OPTIONS = {'notification_exchange': 'ironic', 'notification_topics': ['t']}


@pytest.fixture
def url(tmp_path: pathlib.Path) -> Iterator[str]:
    """The URL of a RabbitMQ that nova.conf names, as kombu writes it."""
    if not brokers.is_installed():
        pytest.skip('RabbitMQ is not installed')
    started = brokers.Broker(tmp_path)
    started.start()
    register_opts(CONF)
    options = {**_OPTIONS, 'notification_transport_url': started.url}
    for name, value in options.items():
        CONF.set_override(name, value, group='ironic_compute')
    yield started.url.replace('rabbit:', 'amqp:')
    for name in options:
        CONF.clear_override(name, group='ironic_compute')
    started.stop()


def test_problems_are_found_and_nothing_is_left(url: str) -> None:
    """No exchange; then no reader; then a daemon that listens."""

    def read() -> list[str]:
        return notification_check.read_problems(CONF, [_HOST])

    (found,) = read()
    assert 'has no exchange ironic' in found
    (found,) = read()  # The check has made none.
    assert 'has no exchange ironic' in found
    with kombu.Connection(url) as connection:
        exchange = kombu.Exchange('ironic', 'topic', durable=False)
        exchange(connection.default_channel).declare()
    (found,) = read()
    assert 'nobody reads queue ironic-compute-c1' in found
    events = NodeEvents(lambda record, quality: None, 0.0)
    listener = notifications.new_listener(CONF, _HOST, events)
    listener.start(override_pool_size=1)
    assert read() == []
    listener.stop()
    ends_s = time.monotonic() + 60.0
    while not read() and time.monotonic() < ends_s:
        time.sleep(0.5)
    (found,) = read()
    assert 'nobody reads queue ironic-compute-c1' in found


def test_refusal_is_the_reason(url: str) -> None:
    """RabbitMQ lets nobody bind a queue to its default exchange."""
    with kombu.Connection(url) as connection:
        broker = notification_check.RabbitBroker(connection)
        assert 'ACCESS_REFUSED' in str(broker.why_not_bound('', 't'))
        assert broker.why_not_bound('amq.topic', 't') is None

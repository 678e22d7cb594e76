# SPDX-License-Identifier: Apache-2.0
"""What RabbitMQ does with the messages of a worker that ends or freezes."""

import itertools
import pathlib
import queue
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from typing import Any

import oslo_messaging
import pytest
from oslo_config import cfg

from tests.contract import children
from tests.contract.rabbitmq import broker as brokers
from tests.contract.rabbitmq import puppet

_TIMEOUT_S = 60.0
_hosts = (f'c{n}' for n in itertools.count(1))


class _Worker:
    """A process that serves a host, and the messages it has begun."""

    def __init__(self, url: str, host: str) -> None:
        self._process = children.start(
            [sys.executable, '-m', puppet.__name__, url, host],
            stdout=-1,
            text=True,
        )
        self._lines: queue.Queue[str] = queue.Queue()
        threading.Thread(target=self._read, daemon=True).start()
        assert self.next().startswith('serves')

    def _read(self) -> None:
        for line in self._process.stdout:
            self._lines.put(line.strip())

    def next(self) -> str:
        """Return the next message that is begun."""
        return self._lines.get(timeout=_TIMEOUT_S)

    def begun(self, count: int) -> list[str]:
        """Return the next messages, sorted."""
        return sorted(self.next() for _ in range(count))

    def is_silent(self) -> bool:
        """Return whether no message is begun within a second."""
        try:
            self._lines.get(timeout=1.0)
        except queue.Empty:
            return True
        return False

    def kill(self) -> None:
        """kill -9."""
        self._process.kill()
        self._process.wait()

    def freeze(self) -> None:
        """Stop all threads of the process."""
        self._process.send_signal(signal.SIGSTOP)


@pytest.fixture(scope='module')
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A RabbitMQ that answers."""
    if not brokers.is_installed():
        pytest.skip('RabbitMQ is not installed')
    folder: pathlib.Path = tmp_path_factory.mktemp('rabbitmq')
    broker = brokers.Broker(folder)
    broker.start()
    yield broker.url
    broker.stop()


@pytest.fixture
def host() -> str:
    return next(_hosts)


@pytest.fixture
def cast(url: str, host: str) -> Iterator[Callable[[str], None]]:
    """Casts a message to the host."""
    transport = oslo_messaging.get_rpc_transport(cfg.CONF, url)
    target = oslo_messaging.Target(topic=puppet.TOPIC, server=host)
    client: Any = oslo_messaging.get_rpc_client(transport, target)
    yield lambda name: client.cast({}, 'work', name=name)
    transport.cleanup()


def test_successor_gets_each_message_of_a_killed_worker(
    url: str, host: str, cast: Callable[[str], None]
) -> None:
    """Those at work and those kept, but none that was done."""
    worker = _Worker(url, host)
    names = sorted(
        f'{kind} {n}' for kind in ('slow', 'kept') for n in range(20)
    )
    for name in [*names, 'done']:
        cast(name)
    assert worker.begun(41) == sorted([*names, 'done'])
    assert worker.is_silent()
    worker.kill()
    successor = _Worker(url, host)
    assert successor.begun(40) == names
    assert successor.is_silent()
    successor.kill()


@pytest.mark.slow
def test_successor_gets_the_messages_of_a_frozen_worker(
    url: str, host: str, cast: Callable[[str], None]
) -> None:
    """RabbitMQ closes the connection that sends no heartbeat."""
    worker = _Worker(url, host)
    cast('slow 1')
    assert worker.next() == 'slow 1'
    worker.freeze()
    successor = _Worker(url, host)
    assert successor.next() == 'slow 1'
    successor.kill()
    worker.kill()

# SPDX-License-Identifier: Apache-2.0
"""What a worker's probe of RabbitMQ, a message to its own queue, finds."""

import contextlib
import pathlib
import threading
from collections.abc import Callable, Iterator
from typing import Any

import kombu.exceptions
import oslo_messaging
import pytest
from nova import rpc as nova_rpc
from nova.compute import rpcapi
from oslo_config import cfg

from hashring.clock import SystemClock
from hashring.ring import Host
from ironic_compute.ownership import peer_endpoints, peer_rpc
from ironic_compute.paths import probes
from ironic_compute.paths.path_health import RABBITMQ, PathHealth
from ironic_compute.paths.probes import Probe
from ironic_compute.worker import path_worker
from tests.contract.rabbitmq import broker as brokers

_HOST = Host('c1')
_TIMEOUT_S = 60.0
_CLOCK = SystemClock()


@pytest.fixture
def broker(tmp_path: pathlib.Path) -> Iterator[brokers.Broker]:
    """A RabbitMQ that answers, for one test."""
    if not brokers.is_installed():
        pytest.skip('RabbitMQ is not installed')
    started = brokers.Broker(tmp_path)
    started.start()
    yield started
    started.stop()


@pytest.fixture
def worker(
    broker: brokers.Broker, monkeypatch: pytest.MonkeyPatch
) -> Iterator[None]:
    """Serve the worker's own queue in this process."""
    transport = oslo_messaging.get_rpc_transport(cfg.CONF, broker.url)
    monkeypatch.setattr(nova_rpc, 'TRANSPORT', transport)
    unused: Any = None
    server = oslo_messaging.get_rpc_server(
        transport,
        oslo_messaging.Target(topic=rpcapi.RPC_TOPIC, server=_HOST),
        [peer_endpoints.PeerEndpoint(unused, unused, unused)],
        executor='threading',
    )
    server.start()
    yield
    server.stop()
    server.wait()
    transport.cleanup()


class _Probing:
    """A thread that probes again and again, as a worker's does."""

    def __init__(self) -> None:
        self.health = PathHealth(_CLOCK)
        self._probe = Probe(RABBITMQ, 1.0, self._send, self.health, _CLOCK)
        self._ended = threading.Event()
        threading.Thread(target=self._run, daemon=True).start()

    def _send(self) -> None:
        peer_rpc.check_queue(_HOST, probes.TIMEOUT_S, probes.RETRIES_COUNT)

    def _run(self) -> None:
        while not self._ended.is_set():
            self._ended.wait(min(self._probe.try_probe(), 1.0))

    def stop(self) -> None:
        """Probe no more."""
        self._ended.set()

    def await_failing(self, is_failing: bool) -> float:
        """Wait until the path fails, or works; return how long it took."""
        began_s = _CLOCK.now_s()
        while (
            RABBITMQ not in self.health.states()
            or self.health.is_failing(RABBITMQ) is not is_failing
        ):
            assert _CLOCK.now_s() - began_s < _TIMEOUT_S
            self._probe.note_overdue()
            _CLOCK.sleep(0.1)
        return _CLOCK.now_s() - began_s

    def await_reason(self, why: str) -> None:
        """Wait until the path fails for a reason that contains ``why``."""
        ends_s = _CLOCK.now_s() + _TIMEOUT_S
        while not any(why in s.why for s in self.health.states().values()):
            assert _CLOCK.now_s() < ends_s, self.health.states()
            _CLOCK.sleep(0.1)


@pytest.fixture
def probing(worker: None) -> Iterator[_Probing]:
    """A probe of the worker's own queue."""
    begun = _Probing()
    yield begun
    begun.stop()


def test_frozen_broker_fails_until_it_goes_on(
    broker: brokers.Broker, probing: _Probing
) -> None:
    """All connections are up, and nothing comes back."""
    probing.await_failing(False)
    broker.freeze()
    assert probing.await_failing(True) < 20.0
    broker.thaw()
    probing.await_failing(False)


@pytest.mark.usefixtures('worker')
def test_new_connection_that_is_refused_fails_soon(
    broker: brokers.Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """oslo.messaging would try for ever."""
    url = oslo_messaging.TransportURL.parse(cfg.CONF, broker.url)
    monkeypatch.setattr(nova_rpc, 'get_transport_url', lambda: url)
    probes.connect_to_rabbitmq(peer_rpc.queue_of(_HOST))
    broker.stop()
    began_s = _CLOCK.now_s()
    with pytest.raises(kombu.exceptions.OperationalError):
        probes.connect_to_rabbitmq(peer_rpc.queue_of(_HOST))
    assert _CLOCK.now_s() - began_s < 2 * probes.TIMEOUT_S
    broker.start()


def test_path_worker_receives_when_its_queue_is_allowed_again(
    broker: brokers.Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else its agent would stay half alive until somebody restarts it.

    Its messages leave no threads behind.
    """
    transport = oslo_messaging.get_rpc_transport(cfg.CONF, broker.url)
    monkeypatch.setattr(nova_rpc, 'TRANSPORT', transport)
    queue = oslo_messaging.Target(topic='paths', server=_HOST)
    broker.allow('')
    threading.Thread(
        target=path_worker.receive, args=(queue,), daemon=True
    ).start()
    with pytest.raises(oslo_messaging.MessageDeliveryFailure):
        path_worker.check_queue(queue)
    broker.allow('.*')
    _await_answer(lambda: path_worker.check_queue(queue))
    before_count = threading.active_count()
    for _ in range(20):
        path_worker.check_queue(queue)
    assert threading.active_count() < before_count + 10


def _await_answer(check: Callable[[], None]) -> None:
    ends_s = _CLOCK.now_s() + _TIMEOUT_S
    while _CLOCK.now_s() < ends_s:
        with contextlib.suppress(Exception):
            check()
            return
        _CLOCK.sleep(1.0)
    pytest.fail('no answer')


@pytest.mark.slow
def test_broker_that_is_gone_fails_until_it_is_back(
    broker: brokers.Broker, probing: _Probing
) -> None:
    """Its port refuses connections; no probe tries to connect for ever."""
    probing.await_failing(False)
    broker.stop()
    probing.await_reason('refused')
    broker.start()
    probing.await_failing(False)

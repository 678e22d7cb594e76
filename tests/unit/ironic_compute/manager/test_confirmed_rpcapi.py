# SPDX-License-Identifier: Apache-2.0
"""RabbitMQ refuses a message that no queue would receive."""

from collections.abc import Sequence
from typing import Any

import amqp.exceptions
import oslo_messaging
import pytest
from nova import context as nova_context
from nova.compute import rpcapi
from oslo_config import cfg

from ironic_compute.manager.confirmed_rpcapi import ConfirmedComputeAPI
from tests.fakes.clock import ManualClock


class _Router:
    """Nova's router with clients of a message bus in this process."""

    def client(self, context: Any) -> Any:
        return oslo_messaging.get_rpc_client(
            oslo_messaging.get_rpc_transport(cfg.ConfigOpts(), url='fake://'),
            oslo_messaging.Target(topic='compute', version='6.0'),
        )


def test_messages_ask_for_a_confirmation(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Also after Nova has prepared the client for a host."""
    monkeypatch.setattr(rpcapi, '_ROUTER', _Router())
    api = ConfirmedComputeAPI(ManualClock())
    client = api.router.client(nova_context.get_admin_context())
    prepared = client.prepare(server='c1', version='5.11')
    assert prepared.transport_options.at_least_once


class _Bus:
    """A client of a message bus; the host gets its queue at some time."""

    def __init__(self, clock: ManualClock, queue_s: float) -> None:
        self._clock = clock
        self._queue_s = queue_s
        self.builds: list[str] = []
        self.refusals: list[Exception] = []

    def client(self, context: Any) -> Any:
        return self

    def prepare(self, **how: Any) -> Any:
        return self

    def can_send_version(self, version: str) -> bool:
        return True

    def cast(self, context: Any, method: str, **arguments: Any) -> None:
        if self._clock.now_s() < self._queue_s:
            raise oslo_messaging.MessageUndeliverable(None, None, None, None)
        if self.refusals:
            raise self.refusals.pop()
        self.builds.append(arguments['node'])


def _send(
    queue_s: float,
    monkeypatch: pytest.MonkeyPatch,
    name: str = 'build',
    refusals: Sequence[Exception] = (),
) -> list[str]:
    """Send a build or an unshelve to a host that has a queue in some time."""
    clock = ManualClock()
    bus = _Bus(clock, clock.now_s() + queue_s)
    bus.refusals = list(refusals)
    monkeypatch.setattr(rpcapi, '_ROUTER', bus)
    api = ConfirmedComputeAPI(clock)
    monkeypatch.setattr(api, '_ver', lambda context, old: old)
    context = nova_context.get_admin_context()
    if name == 'build':
        api.build_and_run_instance(context, 's', 'c1', 'i', 'r', {}, node='n1')
    else:
        api.unshelve_instance(context, 's', 'c1', 'r', 'i', node='n1')
    return bus.builds


@pytest.mark.parametrize('name', ['build', 'unshelve'])
def test_build_waits_for_the_queue_of_a_host_that_is_adopted(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A take-over takes some seconds."""
    assert _send(20.0, monkeypatch, name) == ['n1']


def test_build_for_a_host_that_stays_without_a_queue_is_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The sender does something else with it."""
    with pytest.raises(oslo_messaging.MessageUndeliverable):
        _send(3600.0, monkeypatch)


@pytest.mark.parametrize('name', ['build', 'unshelve'])
def test_build_is_sent_again_if_the_broker_has_refused_it(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A broker that has just been started may have no virtual host yet.

    The message that was to be forwarded was acknowledged, so the server stayed
    BUILDING until its build counted as lost.
    """
    refusals = [
        oslo_messaging.MessageDeliveryFailure('(541) vhost is down'),
        amqp.exceptions.NotAllowed('vhost not found'),
    ]
    assert _send(0.0, monkeypatch, name, refusals) == ['n1']

# SPDX-License-Identifier: Apache-2.0
"""VIFs: attach and detach of interfaces."""

import contextlib
from typing import Any

import nova.conf
import pytest
from nova import exception as nova_exception

from ironic_compute import errors

from . import fake

_RPC_S = 60


@pytest.fixture(autouse=True)
def _rpc(monkeypatch):
    """Nova-api waits so long; oslo.messaging registers the option."""
    conf = nova.conf.CONF
    monkeypatch.setattr(conf, 'rpc_response_timeout', _RPC_S, raising=False)


def test_attach_and_detach_may_be_repeated():
    """A second attach, and a second detach, of a VIF succeeds."""
    bench = fake.bench_with_server()
    vif = fake.network()[0]
    for _ in range(2):
        bench.driver.attach_interface(None, fake.server(), None, vif)
    assert bench.ironic.attached[fake.NODE] == [fake.VIF]
    for _ in range(2):
        bench.driver.detach_interface(None, fake.server(), vif)
    assert bench.ironic.attached[fake.NODE] == []


def test_refused_attach_is_an_error():
    """A conflict about a VIF that is not attached raises an error."""
    bench = fake.bench_with_server()
    bench.ironic.refused['vif_attach'] = 'no free port'
    with pytest.raises(nova_exception.NovaException, match='no free port'):
        bench.driver.attach_interface(
            None, fake.server(), None, fake.network()[0]
        )


@pytest.mark.parametrize('request_', ['read_node_of_instance', 'attach_vif'])
def test_port_is_not_attached_after_nova_api_has_given_up(request_):
    """The user was told that the port is not attached, and got it later."""
    bench = fake.bench_with_server()
    send, begun_s = getattr(bench.ironic, request_), bench.clock.now_s()

    def send_or_refuse(*args):
        if bench.clock.now_s() - begun_s < 90.0:
            raise errors.NodeLocked('it is locked')
        return send(*args)

    setattr(bench.ironic, request_, send_or_refuse)
    with pytest.raises(nova_exception.VirtualInterfacePlugException):
        bench.driver.attach_interface(
            None, fake.server(), None, fake.network()[0]
        )
    assert not bench.ironic.attached[fake.NODE]
    assert bench.clock.now_s() - begun_s <= _RPC_S / 4


@pytest.mark.parametrize('status', [500, 504, None])
@pytest.mark.parametrize(
    ('failures_count', 'attached'), [(1, [fake.VIF]), (99, [])]
)
def test_port_of_a_running_server_is_bound_or_not_attached(
    failures_count: int, attached: list[str], status: int | None
) -> None:
    """Neutron refused the binding, and the user was told that all is well."""
    bench = fake.bench_with_server()
    send = bench.ironic.attach_vif
    failures, bound = iter(range(failures_count)), list[str]()

    def attach(node: str, vif: str) -> None:
        if vif in bench.ironic.attached[node]:
            return  # As the client does if Ironic answers 409.
        send(node, vif)
        if next(failures, None) is not None:
            raise errors.IronicUnavailable('could not add VIF', status)
        bound.append(vif)

    bench.ironic.attach_vif = attach
    server, vif = fake.server(), fake.network()[0]
    is_refused: Any = contextlib.nullcontext()
    if not attached:
        is_refused = pytest.raises(nova_exception.NovaException)
    with is_refused:
        bench.driver.attach_interface(None, server, None, vif)
    assert bench.ironic.attached[fake.NODE] == bound == attached


def test_port_whose_answer_was_lost_is_attached():
    """It is on its card, and bound."""
    bench = fake.bench_with_server()
    send = bench.ironic.attach_vif

    def attach(node, vif):
        bench.ironic.attach_vif = send
        send(node, vif)
        raise errors.IronicUnavailable('no answer')

    bench.ironic.attach_vif = attach
    bench.driver.attach_interface(None, fake.server(), None, fake.network()[0])
    assert bench.ironic.attached[fake.NODE] == [fake.VIF]

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


class _LateAttach:
    """An Ironic whose answer to the first request is lost.

    It saves the VIF a second after the request, and then works on for some
    time to bind the port; it keeps the node locked meanwhile.

    :param binds: whether the first request binds the port
    """

    def __init__(self, bench: Any, works_s: float, *, binds: bool) -> None:
        self._ironic, self._clock = bench.ironic, bench.clock
        self._send = bench.ironic.attach_vif
        self._works_s, self._binds = works_s, binds
        self._sent_s: float | None = None
        self._is_at_work = False
        self.bound: list[str] = []
        bench.ironic.attach_vif = self._attach_vif
        self._detach = bench.ironic.detach_vif
        bench.ironic.detach_vif = self._detach_vif
        bench.ironic.list_vifs = self.list_vifs

    def list_vifs(self, node: str) -> list[str]:
        """Return the VIFs that Ironic has saved by now."""
        if self._is_at_work:
            self._work(node, self._clock.now_s() - (self._sent_s or 0.0))
        return list(self._ironic.attached[node])

    def _work(self, node: str, worked_s: float) -> None:
        if worked_s >= 1.0 and not self._ironic.attached[node]:
            self._send(node, fake.VIF)
        if worked_s >= self._works_s:
            self._is_at_work = False
            self.bound += [fake.VIF] if self._binds else []

    def _attach_vif(self, node: str, vif: str) -> None:
        if self._sent_s is None:
            self._sent_s, self._is_at_work = self._clock.now_s(), True
            raise errors.IronicUnavailable('the connection was reset')
        if vif in self.list_vifs(node):
            return  # As the client does if Ironic answers 409.
        self._refuse_if_locked()
        self._send(node, vif)
        self.bound.append(vif)

    def _detach_vif(self, node: str, vif: str) -> None:
        self.list_vifs(node)
        self._refuse_if_locked()
        self._detach(node, vif)
        self.bound.clear()

    def _refuse_if_locked(self) -> None:
        if self._is_at_work:
            raise errors.NodeLocked('Ironic binds the port')


@pytest.mark.parametrize('binds', [True, False])
def test_port_that_ironic_attaches_after_its_answer_was_lost_is_bound(
    *, binds: bool
) -> None:
    """The first look came too early, and the next request was taken for done.

    Neutron refused the binding, and the user was told that all is well.
    """
    bench = fake.bench_with_server()
    ironic = _LateAttach(bench, 5.0, binds=binds)
    server, vif = fake.server(), fake.network()[0]
    bench.driver.attach_interface(None, server, None, vif)
    bench.clock.sleep(5.0)
    assert ironic.list_vifs(fake.NODE) == ironic.bound == [fake.VIF]


@pytest.mark.parametrize('binds', [True, False])
def test_port_that_ironic_attaches_after_nova_api_has_given_up_is_detached(
    *, binds: bool
) -> None:
    """The user was told that the port is not attached, and a card had it."""
    bench = fake.bench_with_server()
    ironic = _LateAttach(bench, 40.0, binds=binds)
    with pytest.raises(nova_exception.VirtualInterfacePlugException):
        bench.driver.attach_interface(
            None, fake.server(), None, fake.network()[0]
        )
    bench.clock.sleep(40.0)
    assert ironic.list_vifs(fake.NODE) == ironic.bound == []


def test_port_is_detached_after_a_long_outage() -> None:
    """Nova has taken the port back, and the server kept a card for it."""
    bench = fake.bench_with_server()
    ironic, began_s = bench.ironic, bench.clock.now_s()
    send, detach = ironic.attach_vif, ironic.detach_vif

    def attach(node: str, vif: str) -> None:
        send(node, vif)
        raise errors.IronicUnavailable('the connection was reset')

    def detach_after_outage(node: str, vif: str) -> None:
        if bench.clock.now_s() - began_s < 600.0:
            raise errors.IronicNotReached('connection refused')
        detach(node, vif)

    ironic.attach_vif = attach  # type: ignore[method-assign]
    ironic.detach_vif = detach_after_outage  # type: ignore[method-assign]
    with pytest.raises(nova_exception.VirtualInterfacePlugException):
        bench.driver.attach_interface(
            None, fake.server(), None, fake.network()[0]
        )
    assert not ironic.attached[fake.NODE]

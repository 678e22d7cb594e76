# SPDX-License-Identifier: Apache-2.0
"""What the scheduler sent to the former holder of a node goes on."""

import inspect
import types
from typing import Any

import pytest
from nova import objects
from nova.compute import manager as nova_manager

from ironic_compute.manager import forwarding
from ironic_compute.manager.compute_manager import IronicComputeManager
from ironic_compute.manager.stale_messages import DropsStaleMessages


class _Rpc:
    """Remembers what is cast to whom."""

    def __init__(self) -> None:
        self.casts: list[tuple[Any, ...]] = []

    def unshelve_instance(
        self, context: Any, instance: Any, host: str, spec: Any, **rest: Any
    ) -> None:
        self.casts.append((instance, host, spec, rest))


class _Ends(DropsStaleMessages):
    """Remembers what has come to its end here."""

    ended: list[Any]

    def unshelve_instance(self, context: Any, *message: Any) -> None:
        self.ended.append(message)


class _Manager(IronicComputeManager, _Ends):
    """The real one, before what serves a message."""


def _manager(monkeypatch: pytest.MonkeyPatch, holder: str) -> Any:
    """Return what answers RPC of host c1, and holds no node."""
    manager: Any = object.__new__(_Manager)
    manager.host, manager.compute_rpcapi = 'c1', _Rpc()
    manager.ended = []
    manager._components = types.SimpleNamespace(
        held_nodes=types.SimpleNamespace(row=lambda node: None),
        new_nodes=types.SimpleNamespace(hold_if_ours=manager.ended.append),
    )
    monkeypatch.setattr(
        objects.ComputeNode,
        'get_by_nodename',
        lambda context, node: types.SimpleNamespace(host=holder),
    )
    return manager


@pytest.mark.parametrize('properties', [None, {'limits': {}}])
def test_unshelving_goes_on_as_it_came(
    properties: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """To the holder, as a cast, with all that the conductor said."""
    manager = _manager(monkeypatch, 'c2')
    manager.unshelve_instance('ctx', 's', 'image', properties, 'n', 'spec', [])
    rest = {
        'image': 'image',
        'filter_properties': {**(properties or {}), forwarding._HOPS: 1},
        'node': 'n',
        'accel_uuids': [],
    }
    assert manager.compute_rpcapi.casts == [('s', 'c2', 'spec', rest)]
    assert not manager.ended


@pytest.mark.parametrize(
    ('holder', 'hops_count'), [('c1', 0), ('c2', forwarding.HOPS_MAX), ('', 0)]
)
def test_unshelving_ends_where_it_may_not_go_on(
    holder: str, hops_count: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Here after all, after three hops, or with nobody: Nova's handler."""
    manager = _manager(monkeypatch, holder)
    message = ('s', 'image', {forwarding._HOPS: hops_count}, 'n', 'spec', [])
    manager.unshelve_instance('ctx', *message)
    assert manager.ended == ['n', message]
    assert not manager.compute_rpcapi.casts


def test_unshelving_takes_what_nova_sends() -> None:
    """Nova 33 and 34 call it by position."""
    ours, novas = (
        list(inspect.signature(cls.unshelve_instance).parameters)
        for cls in (IronicComputeManager, nova_manager.ComputeManager)
    )
    assert ours == novas

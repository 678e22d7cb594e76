# SPDX-License-Identifier: Apache-2.0
"""A build goes on elsewhere if Ironic was away while it was prepared."""

import functools
from collections.abc import Mapping
from typing import Any

import pytest
from nova import context as nova_context
from nova import exception as nova_exception
from nova import objects
from nova import rpc as nova_rpc
from nova.compute import task_states, vm_states

from ironic_compute import errors
from ironic_compute.manager.deletes import RepeatedDeletes
from tests.unit.ironic_compute.driver import fake, timed

# Longer than the driver repeats one request, the undoing of the build, and the
# freeing of its node.
_AWAY_S = 600.0
_REQUESTS = (
    'read_node',
    'read_node_of_instance',
    'list_volume_targets',
    'attach_vif',
    'list_vifs',
    'patch_node',
    'validate_node',
    'set_provision_state',
)
# The last one that is sent before the deploy is requested.
_LAST = 5


class _Quiet:
    """What Nova mentions on its way, and nobody needs here."""

    def is_enabled(self) -> bool:
        return False

    def __getattr__(self, name: str) -> Any:
        return lambda *_, **__: self


class _Manager(RepeatedDeletes):
    """Nova's manager with the real driver, and without other services."""

    def __init__(self, bench: timed.TimedBench) -> None:
        self.clock, self.driver, self.host = bench.clock, bench.driver, 'c1'
        self.network_api = _Quiet()
        self.share_manager: Any = _Quiet()
        self.share_manager.get_share_info = lambda *_, **__: []
        # Nova 33 reads the shares itself.
        self._get_share_info = lambda *_, **__: []

    def nothing(self, *_: Any, **__: Any) -> Mapping[str, Any]:
        return {}

    def networks(self, *_: Any, **__: Any) -> Any:
        return _Networks(fake.network())

    _build_networks_for_instance = networks
    _notify_about_instance_usage = _prep_block_device = nothing
    _default_block_device_names = _get_instance_block_device_info = nothing
    _try_deallocate_network = nothing


class _Networks(list[Any]):
    """Networks that Neutron has allocated."""

    def wait(self, do_raise: bool = True) -> None:
        """Return at once."""

    def fixed_ips(self) -> list[Any]:
        return []

    floating_ips = fixed_ips


def _build_resources(manager: _Manager, server: Any) -> Any:
    """Return Nova's context in which the server is built."""
    return manager._build_resources(
        nova_context.get_admin_context(),
        server,
        None,
        None,
        None,
        objects.BlockDeviceMappingList(objects=[]),
        None,
        None,
    )


def _go_away(bench: timed.TimedBench, number: int) -> None:
    """Have Ironic not answer for a while, from one of its requests on."""
    numbers, ends_s = iter(range(number)), 0.0

    def answer(send: Any, *args: Any, **kwargs: Any) -> Any:
        nonlocal ends_s
        if next(numbers, None) is not None:
            return send(*args, **kwargs)
        ends_s = ends_s or bench.clock.now_s() + _AWAY_S
        if bench.clock.now_s() < ends_s:
            raise errors.IronicNotReached('connection refused')
        return send(*args, **kwargs)

    for name in _REQUESTS:
        send = getattr(bench.ironic, name)
        setattr(bench.ironic, name, functools.partial(answer, send))


@pytest.mark.parametrize('number', range(_LAST + 1))
def test_build_that_ironic_has_not_heard_of_goes_to_another_node(
    number: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nova would put the server to ERROR, as its node could not be freed."""
    for notifier in ('LEGACY_NOTIFIER', 'NOTIFIER'):
        monkeypatch.setattr(nova_rpc, notifier, _Quiet())
    monkeypatch.setattr(
        fake.Server, 'get_network_info', lambda _: fake.network()
    )
    bench = timed.bench()
    server = fake.unsaved_server(vm_state=vm_states.BUILDING)
    resources = _build_resources(_Manager(bench), server)
    with pytest.raises(nova_exception.InstanceDeployFailure), resources as got:
        server.task_state = task_states.SPAWNING
        _go_away(bench, number)
        bench.driver.spawn(
            None,
            server,
            fake.image(),
            None,
            None,
            {},
            network_info=got['network_info'],
        )
    assert bench.is_free()
    assert not bench.ironic.begun


def test_build_that_fails_on_each_node_ends_when_ironic_answers() -> None:
    """Nova scheduled it anew, as the error of Ironic replaced its own."""
    bench = timed.bench()

    def refuse(*_: Any) -> None:
        _go_away(bench, 0)
        raise nova_exception.InvalidBDMVolume(id='v1')

    manager: Any = _Manager(bench)
    manager._prep_block_device = refuse
    server = fake.unsaved_server(vm_state=vm_states.BUILDING)
    resources = _build_resources(manager, server)
    with pytest.raises(nova_exception.BuildAbortException), resources:
        pass
    assert bench.is_free()

# SPDX-License-Identifier: Apache-2.0
"""The power state of a server, during an outage of Ironic."""

import contextlib
import types
from typing import Any

import pytest
from nova import context as nova_context
from nova import exception as nova_exception
from nova import objects, safe_utils
from nova import rpc as nova_rpc
from nova.compute import manager as nova_manager
from nova.compute import power_state, task_states, vm_states

from ironic_compute.manager.deployed_servers import KeepsDeployedServers


class _Manager(KeepsDeployedServers):
    """A manager without the rest of Nova."""

    def __init__(self, info: Any) -> None:
        def get_info(instance: Any, use_cache: bool) -> Any:
            if isinstance(info, Exception):
                raise info
            return types.SimpleNamespace(state=info)

        self.driver = types.SimpleNamespace(get_info=get_info)


def _server(task_state: str | None) -> Any:
    return types.SimpleNamespace(
        uuid='s1',
        task_state=task_state,
        vm_state=vm_states.BUILDING,
        config_drive='True',
        launched_at=None,
        obj_what_changed=set,
    )


_AWAY = nova_exception.VirtDriverNotReady()


@pytest.mark.parametrize(
    'task_state', [task_states.SPAWNING, task_states.REBUILD_SPAWNING]
)
def test_server_that_is_deployed_is_active_while_ironic_is_away(
    task_state: str,
) -> None:
    """Its state is unknown until Nova's periodic task reads it."""
    server = _server(task_state)
    _Manager(_AWAY)._update_instance_after_spawn(server)
    assert (server.vm_state, server.task_state) == (vm_states.ACTIVE, None)
    assert server.power_state == power_state.NOSTATE
    assert server.launched_at is not None


@pytest.mark.parametrize('task_state', [None, task_states.POWERING_OFF])
def test_any_other_request_fails_as_in_nova(task_state: str | None) -> None:
    """A stop, for example: recovery looks whether it was carried out."""
    with pytest.raises(nova_exception.VirtDriverNotReady):
        _Manager(_AWAY)._get_power_state(_server(task_state))


class _Row(types.SimpleNamespace):
    """A server that nobody else uses."""

    def save(self, **expected: Any) -> None:
        """Keep the changes."""

    def refresh(self) -> None:
        """Keep the record."""


class _Quiet:
    """What Nova mentions on its way, and nobody needs here."""

    def is_enabled(self) -> bool:
        return False

    def __getattr__(self, name: str) -> Any:
        return lambda *_, **__: self


class _PowerManager(_Manager):
    """A manager whose driver has switched a machine on, or could not."""

    def __init__(self, error: Exception | None) -> None:
        super().__init__(_AWAY)
        self._error = error
        self.host, self.network_api = 'c1', _Quiet()
        self.driver.reboot = self.driver.power_on = self._switch
        self.share_manager = _Quiet()
        # Nova 33 reads the shares itself.
        self._get_share_info = lambda *_: objects.ShareMappingList(objects=[])

    def _switch(self, *_: Any, **__: Any) -> None:
        if self._error:
            raise self._error

    def nothing(self, *_: Any, **__: Any) -> dict[str, Any]:
        return {}

    _notify_about_instance_usage = _delete_dangling_bdms = nothing
    _get_instance_block_device_info = _get_accel_info = nothing


@pytest.mark.parametrize(
    ('name', 'task_state'),
    [
        ('start_instance', task_states.POWERING_ON),
        ('_reboot_instance', task_states.REBOOTING_HARD),
    ],
)
@pytest.mark.parametrize('error', [None, _AWAY])
def test_stopped_server_that_was_switched_on_is_active(
    name: str,
    task_state: str,
    error: Exception | None,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Nova would switch it off again; one that is off stays STOPPED."""
    for notifier in ('LEGACY_NOTIFIER', 'NOTIFIER'):
        monkeypatch.setattr(nova_rpc, notifier, _Quiet())
    monkeypatch.setattr(
        objects.BlockDeviceMappingList, 'get_by_instance_uuid', _Quiet()._none
    )
    states = [power_state.SHUTDOWN]
    server = _Row(
        uuid='s1',
        vm_state=vm_states.STOPPED,
        task_state=task_state,
        system_metadata={},
    )
    manager = _PowerManager(error)
    known = manager.driver.get_info
    manager.driver.get_info = lambda instance, use_cache: (
        types.SimpleNamespace(state=states.pop())
        if states and name == '_reboot_instance'
        else known(instance, use_cache)
    )
    bare = safe_utils.get_wrapped_function(
        getattr(nova_manager.ComputeManager, name)
    )
    request = {'block_device_info': None, 'reboot_type': 'HARD'}
    with contextlib.suppress(nova_exception.VirtDriverNotReady):
        bare(
            manager,
            nova_context.get_admin_context(),
            server,
            **(request if name == '_reboot_instance' else {}),
        )
    is_on = error is None
    assert server.vm_state == (
        vm_states.ACTIVE if is_on else vm_states.STOPPED
    )


def test_state_that_ironic_answers_is_used() -> None:
    """Also that of a node that does not go on."""
    server = _server(task_states.SPAWNING)
    _Manager(power_state.SHUTDOWN)._update_instance_after_spawn(server)
    assert server.power_state == power_state.SHUTDOWN

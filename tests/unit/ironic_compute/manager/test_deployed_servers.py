# SPDX-License-Identifier: Apache-2.0
"""The power state of a server, during an outage of Ironic."""

import types
from typing import Any

import pytest
from nova import exception as nova_exception
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


def test_state_that_ironic_answers_is_used() -> None:
    """Also that of a node that does not go on."""
    server = _server(task_states.SPAWNING)
    _Manager(power_state.SHUTDOWN)._update_instance_after_spawn(server)
    assert server.power_state == power_state.SHUTDOWN

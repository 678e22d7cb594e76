# SPDX-License-Identifier: Apache-2.0
"""A rescue that has begun is not interrupted by its repeated message."""

import types
from typing import Any

import pytest
from nova.compute import manager as nova_manager
from nova.compute import task_states

from ironic_compute.manager.rescues import RepeatedRescues
from tests.fakes.clock import ManualClock


@pytest.mark.parametrize(
    ('task_state', 'is_begun', 'is_off'),
    [
        (task_states.RESCUING, False, True),
        (task_states.RESCUING, True, False),
        (task_states.POWERING_OFF, True, True),
    ],
)
def test_machine_in_rescue_stays_on(
    task_state: str,
    is_begun: bool,
    is_off: bool,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Nova's rescue switches the server off first; a stop goes on to."""
    switched_off: list[bool] = []
    monkeypatch.setattr(
        nova_manager.ComputeManager,
        '_power_off_instance',
        lambda *args: switched_off.append(True),
    )
    manager: Any = object.__new__(RepeatedRescues)
    manager.clock = ManualClock()
    manager.driver = types.SimpleNamespace(
        is_rescue_begun=lambda instance: is_begun
    )
    server = types.SimpleNamespace(task_state=task_state)
    manager._power_off_instance(None, server, clean_shutdown=True)
    assert bool(switched_off) is is_off

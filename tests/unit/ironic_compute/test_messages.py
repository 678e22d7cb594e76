# SPDX-License-Identifier: Apache-2.0
"""A build is served once, however often its message comes."""

import types
from typing import Any

import pytest
from nova import exception as nova_exception
from nova.compute import build_results, vm_states
from nova.compute import manager as nova_manager

from ironic_compute.messages import ServedOnce
from ironic_compute.tasks import LiveTasks

UNBUILT = (vm_states.BUILDING, None)


class _Server(types.SimpleNamespace):
    """A server whose row changes while the message waits."""

    def refresh(self) -> None:
        if self.then is None:
            raise nova_exception.InstanceNotFound(instance_id=self.uuid)
        self.vm_state, self.host = self.then


@pytest.mark.parametrize(
    ('then', 'result'),
    [
        (UNBUILT, build_results.ACTIVE),
        ((vm_states.ACTIVE, 'c1'), build_results.RESCHEDULED_BY_POLICY),
        ((vm_states.BUILDING, 'c1'), build_results.RESCHEDULED_BY_POLICY),
        (None, build_results.ACTIVE),
    ],
)
def test_a_build_that_waited_for_the_lock_looks_again(
    then: Any, result: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two messages came at once: the second finds the server built."""
    manager: Any = object.__new__(ServedOnce)
    manager.tasks = LiveTasks()
    monkeypatch.setattr(
        nova_manager.ComputeManager,
        '_do_build_and_run_instance',
        lambda *args: build_results.ACTIVE,
    )
    server = _Server(
        uuid='s1', vm_state=UNBUILT[0], host=UNBUILT[1], then=then
    )
    assert manager._do_build_and_run_instance(None, server) == result

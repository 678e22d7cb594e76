# SPDX-License-Identifier: Apache-2.0
"""A build whose message comes while recovery works on its server."""

import threading
import types
from typing import Any

import pytest
from nova import exception as nova_exception
from nova import utils as nova_utils
from nova.compute import manager as nova_manager
from nova.compute import task_states, vm_states

from ironic_compute.manager.build_messages import BuildMessages
from ironic_compute.recovery.in_progress import InProgress
from tests.fakes.clock import ManualClock

# Seconds after which a thread counts as stuck.
_STUCK_S = 5.0


class _Server(types.SimpleNamespace):
    """A server whose delete was accepted, and that has no host."""

    uuid = 's1'
    vm_state = vm_states.BUILDING
    host = None
    task_state = task_states.DELETING
    is_gone = False

    def obj_get_changes(self) -> dict[str, Any]:
        return {}

    def refresh(self) -> None:
        if self.is_gone:
            raise nova_exception.InstanceNotFound(instance_id=self.uuid)


class _Manager(BuildMessages):
    def __init__(self) -> None:
        self.clock, self.host = ManualClock(), 'c1'
        self.in_progress = InProgress()
        self.reportclient: Any = self
        self.freed: list[str] = []

    def delete_allocation_for_instance(
        self, context: Any, server: str, *, force: bool
    ) -> None:
        self.freed.append(server)


def test_build_that_comes_while_recovery_deletes_its_server_ends(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Recovery waits for Nova's lock, which a build has while it waits."""
    manager, server = _Manager(), _Server()
    has_lock = threading.Event()
    one_by_one = nova_utils.synchronized(server.uuid)

    def begin(_: Any, context: Any, *args: Any) -> None:
        @one_by_one
        def build() -> None:
            has_lock.set()
            manager._do_build_and_run_instance(context, server, *'123456789')

        threading.Thread(target=build, daemon=True).start()

    def delete() -> None:
        server.is_gone = True

    def recover() -> None:
        with manager.in_progress.exclusive(server.uuid) as is_free:
            assert is_free
            message.start()
            has_lock.wait(0.2)
            one_by_one(delete)()

    nova = nova_manager.ComputeManager
    monkeypatch.setattr(nova, 'build_and_run_instance', begin)
    message = threading.Thread(
        target=manager.build_and_run_instance,
        args=(types.SimpleNamespace(), server),
        daemon=True,
    )
    recovery = threading.Thread(target=recover, daemon=True)
    recovery.start()
    recovery.join(_STUCK_S)
    assert not recovery.is_alive()
    message.join(_STUCK_S)
    assert manager.freed == [server.uuid]

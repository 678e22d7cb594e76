# SPDX-License-Identifier: Apache-2.0
"""Nova's periodic tasks, run by Nova's own code, harm no other server."""

import threading
import time
import types
from typing import Any

import futurist
import pytest
from nova import objects

from ironic_compute.manager.compute_manager import IronicComputeManager
from ironic_compute.manager.periodic_tasks import DISABLED_TASKS, PeriodicTasks
from ironic_compute.recovery.in_progress import InProgress


class _Manager(PeriodicTasks):
    """As much of a manager as looks at the power of servers."""

    def __init__(self) -> None:
        self.host = 'c1'
        self.driver = types.SimpleNamespace(get_num_instances=lambda: 2)
        self.in_progress = InProgress()
        self.looked: list[str] = []
        self._syncs_in_progress: set[str] = set()
        self._syncs_in_progress_lock = threading.Lock()
        self._sync_power_executor = futurist.ThreadPoolExecutor(1)

    def look(self) -> list[str]:
        """Run the task; return which servers were looked at."""
        others = set(self._syncs_in_progress)
        self.looked.clear()
        self._sync_power_states(None)
        deadline_s = time.monotonic() + 60.0
        while self._syncs_in_progress != others:
            assert time.monotonic() < deadline_s
            time.sleep(0.01)
        return sorted(self.looked)

    def _query_driver_power_state_and_sync(
        self, context: Any, server: Any
    ) -> None:
        self.looked.append(server.uuid)


@pytest.fixture
def manager(monkeypatch: pytest.MonkeyPatch) -> _Manager:
    """Return one whose host has two servers."""
    servers = [types.SimpleNamespace(uuid=name) for name in ('s1', 's2')]
    monkeypatch.setattr(
        objects.InstanceList, 'get_by_host', lambda *_, **__: servers
    )
    return _Manager()


def test_power_of_servers_at_work_is_not_looked_at(manager: _Manager) -> None:
    """It would wait, in one of few threads, until their deploys end."""
    with manager.in_progress.shared('s1'):
        assert manager.look() == ['s2']
    assert manager.look() == ['s1', 's2']


def test_a_look_that_goes_on_is_not_forgotten(manager: _Manager) -> None:
    """Nova counts it itself, and would begin another beside it."""
    manager._syncs_in_progress.add('s1')
    with manager.in_progress.shared('s1'):
        assert manager.look() == ['s2']
    assert manager._syncs_in_progress == {'s1'}


def test_what_runs_is_ours() -> None:
    """Also a task that comes from one of the manager's bases."""
    tasks = dict(IronicComputeManager._periodic_tasks)
    assert not DISABLED_TASKS & tasks.keys()
    assert tasks['_sync_power_states'] is PeriodicTasks._sync_power_states

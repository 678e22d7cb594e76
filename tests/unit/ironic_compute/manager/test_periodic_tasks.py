# SPDX-License-Identifier: Apache-2.0
"""Which periodic tasks run, on which servers, and how long they wait."""

import contextlib
import datetime
import inspect
import re
import threading
import time
import types
from typing import Any

import futurist
import pytest
from keystoneauth1 import exceptions as ksa_exceptions
from nova import exception as nova_exception
from nova import objects
from nova.compute import manager as nova_manager
from nova.compute import power_state, task_states, vm_states

from ironic_compute.driver.driver import IronicComputeDriver
from ironic_compute.manager.compute_manager import IronicComputeManager
from ironic_compute.manager.periodic_tasks import DISABLED_TASKS, PeriodicTasks
from ironic_compute.paths.repeated_requests import RepeatedRequests
from ironic_compute.recovery.in_progress import InProgress
from tests.fakes.clock import ManualClock
from tests.unit.ironic_compute.driver import fake


class _Manager(PeriodicTasks):
    """The parts of a manager that sync power states."""

    def __init__(self) -> None:
        self.host = 'c1'
        self.driver = types.SimpleNamespace(get_num_instances=lambda: 2)
        self.in_progress = InProgress()
        self.synced: list[str] = []
        self._syncs_in_progress: set[str] = set()
        self._syncs_in_progress_lock = threading.Lock()
        self._sync_power_executor = futurist.ThreadPoolExecutor(1)

    def sync(self) -> list[str]:
        """Run the power sync; return the servers that were synced."""
        others = set(self._syncs_in_progress)
        self.synced.clear()
        self._sync_power_states(None)
        deadline_s = time.monotonic() + 60.0
        while self._syncs_in_progress != others:
            assert time.monotonic() < deadline_s
            time.sleep(0.01)
        return sorted(self.synced)

    def _query_driver_power_state_and_sync(
        self, context: Any, server: Any
    ) -> None:
        self.synced.append(server.uuid)


@pytest.fixture
def manager(monkeypatch: pytest.MonkeyPatch) -> _Manager:
    """Return the manager of a host with two servers."""
    servers = [types.SimpleNamespace(uuid=name) for name in ('s1', 's2')]
    monkeypatch.setattr(
        objects.InstanceList, 'get_by_host', lambda *_, **__: servers
    )
    return _Manager()


def test_power_of_servers_in_progress_is_not_synced(manager: _Manager) -> None:
    """A server that a thread works on is left out of the power sync."""
    with manager.in_progress.shared('s1'):
        assert manager.sync() == ['s2']
    assert manager.sync() == ['s1', 's2']


def test_a_running_power_sync_stays_recorded(manager: _Manager) -> None:
    """Nova's record of a running sync is kept, or a second would start."""
    manager._syncs_in_progress.add('s1')
    with manager.in_progress.shared('s1'):
        assert manager.sync() == ['s2']
    assert manager._syncs_in_progress == {'s1'}


def test_disabled_tasks_do_not_run() -> None:
    """Nova runs no disabled task, and the power sync of PeriodicTasks."""
    tasks = dict(IronicComputeManager._periodic_tasks)
    assert not DISABLED_TASKS & tasks.keys()
    assert tasks['_sync_power_states'] is PeriodicTasks._sync_power_states


def test_no_task_calls_what_the_driver_lacks() -> None:
    """With ``reboot_timeout`` set, one logged a traceback each minute."""
    called = {
        (name, method)
        for name in dict(IronicComputeManager._periodic_tasks)
        for method in re.findall(
            r'self\.driver\.(\w+)\(',
            inspect.getsource(getattr(nova_manager.ComputeManager, name)),
        )
    }
    assert called
    assert not [
        (name, method)
        for name, method in called
        if method not in vars(IronicComputeDriver)
    ]


def test_periodic_task_does_not_wait_for_neutron(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """All other tasks would wait with it, in their one thread."""
    clock = ManualClock()

    def refuse() -> None:
        raise ksa_exceptions.ConnectTimeout

    def run(self: Any, context: Any, raise_on_error: bool) -> float:
        with contextlib.suppress(ksa_exceptions.ConnectTimeout):
            RepeatedRequests(clock, 75.0).call('GET', refuse)
        return 1.0

    monkeypatch.setattr(nova_manager.ComputeManager, 'periodic_tasks', run)
    began_s = clock.now_s()
    assert object.__new__(_Manager).periodic_tasks(None) == 1.0
    assert clock.now_s() == began_s


@pytest.fixture
def deleted(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """The servers that Nova's own method has deleted."""
    servers: list[Any] = []
    monkeypatch.setattr(
        nova_manager.ComputeManager,
        '_delete_instance',
        lambda *args: servers.append(args[2]),
    )
    return servers


@pytest.mark.parametrize('is_restored', [False, True])
def test_reclaimed_server_is_left_to_recovery(
    is_restored: bool, deleted: list[Any]
) -> None:
    """A server that was restored after Nova had listed it stays in use."""
    saved: list[Any] = []

    def save(**expected: Any) -> None:
        if is_restored:
            raise nova_exception.InstanceUpdateConflict(
                instance_uuid='s1', expected=expected, actual={}
            )
        saved.append((server.task_state, expected))

    server = types.SimpleNamespace(
        uuid='s1', vm_state=vm_states.SOFT_DELETED, task_state=None, save=save
    )
    _Manager()._delete_instance(None, server, [])
    expected = {
        'expected_vm_state': [vm_states.SOFT_DELETED],
        'expected_task_state': [None],
    }
    done = [] if is_restored else [(task_states.DELETING, expected)]
    assert (saved, deleted) == (done, [])


def test_delete_of_a_soft_deleted_server_is_done_at_once(
    deleted: list[Any],
) -> None:
    """Its user, or recovery, has given it the task of a delete."""
    server = types.SimpleNamespace(
        vm_state=vm_states.SOFT_DELETED, task_state=task_states.DELETING
    )
    _Manager()._delete_instance(None, server, [])
    assert deleted == [server]


@pytest.mark.parametrize(
    ('deleted_at', 'is_reclaimed'),
    [
        (datetime.datetime(2026, 11, 2, tzinfo=datetime.UTC), True),
        (None, False),
    ],
)
def test_server_whose_restore_has_failed_is_not_reclaimed(
    deleted_at: Any, is_reclaimed: bool
) -> None:
    """nova-api has cleared the time of its delete, however short ago."""
    server = types.SimpleNamespace(deleted_at=deleted_at)
    assert _Manager()._deleted_old_enough(server, 60) is is_reclaimed


def _sync_power(
    vm_state: str, known: int, **node: Any
) -> tuple[list[str], int]:
    """Sync the power of a server; return what Nova did, and what it knows.

    :param known: the power state in the server's record
    :param node: fields of its node in Ironic
    """
    bench = fake.bench(**{'instance_uuid': fake.SERVER, **node})
    server = fake.server()
    server.host, server.vm_state, server.power_state = 'c1', vm_state, known
    server.task_state, server.shutdown_terminate = None, False
    server.__class__ = fake.UnsavedServer
    done: list[str] = []
    manager = _Manager()
    manager.driver = bench.driver
    manager.compute_api = types.SimpleNamespace(
        stop=lambda *_: done.append('stopped'),
        force_stop=lambda *_: done.append('stopped'),
    )
    PeriodicTasks._query_driver_power_state_and_sync(manager, None, server)
    return done, server.power_state


_STOPPED = (vm_states.STOPPED, power_state.SHUTDOWN)
_IN_USE = (vm_states.ACTIVE, power_state.RUNNING)


@pytest.mark.parametrize(
    'state', ['servicing', 'service wait', 'rescue', 'wait call-back']
)
@pytest.mark.parametrize(
    ('server', 'power'), [(_STOPPED, 'power on'), (_IN_USE, 'power off')]
)
def test_machine_that_an_operator_services_stays_on(
    state: str, server: tuple[str, int], power: str
) -> None:
    """Nova would cut its power, maybe while Ironic writes its firmware."""
    found = _sync_power(*server, provision_state=state, power_state=power)
    assert found == ([], server[1])


@pytest.mark.parametrize(
    ('server', 'power', 'wanted'),
    [
        (_STOPPED, 'power on', power_state.RUNNING),
        (_IN_USE, 'power off', power_state.SHUTDOWN),
        # The record was saved by a sync whose stop has failed.
        (
            (vm_states.STOPPED, power_state.RUNNING),
            'power on',
            power_state.RUNNING,
        ),
    ],
)
def test_server_of_another_power_state_is_stopped(
    server: tuple[str, int], power: str, wanted: int
) -> None:
    """As Nova does, with what Ironic says of the server's own machine."""
    found = _sync_power(*server, provision_state='active', power_state=power)
    assert found == (['stopped'], wanted)


def test_power_of_a_server_in_rescue_is_known() -> None:
    """Nova does nothing but save it."""
    found = _sync_power(
        vm_states.RESCUED,
        power_state.RUNNING,
        provision_state='rescue',
        power_state='power off',
    )
    assert found == ([], power_state.SHUTDOWN)


def test_server_without_a_node_has_no_power_state() -> None:
    """An operator may have undeployed its node in Ironic."""
    found = _sync_power(*_IN_USE, instance_uuid=None)
    assert found == ([], power_state.NOSTATE)

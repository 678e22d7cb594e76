# SPDX-License-Identifier: Apache-2.0
"""Stale RPC messages are dropped: each task runs once."""

import threading
import types
from typing import Any

import oslo_messaging
import pytest
from nova import exception as nova_exception
from nova.compute import manager as nova_manager
from nova.compute import power_state, task_states, vm_states

from ironic_compute import errors
from ironic_compute.driver import nova_errors
from ironic_compute.driver.cancellations import Cancellations
from ironic_compute.manager import stale_messages
from ironic_compute.manager.stale_messages import DropsStaleMessages
from ironic_compute.recovery.in_progress import InProgress
from tests.fakes.clock import ManualClock


class _Server(types.SimpleNamespace):
    """A server whose row changes while the message waits."""

    def obj_get_changes(self) -> dict[str, Any]:
        return {'availability_zone': 'z2', 'task_state': 'stale'}

    def save(self, **expected: Any) -> None:
        """Do nothing."""

    def refresh(self) -> None:
        if self.then is None:
            raise nova_exception.InstanceNotFound(instance_id=self.uuid)
        self.vm_state, self.host = self.then


class _Task(_Server):
    """A server whose task has changed when its row is read."""

    def refresh(self) -> None:
        self.task_state, self.availability_zone = self.then, 'z1'


def _serve(
    name: str, row: str | None, monkeypatch: pytest.MonkeyPatch
) -> tuple[list[str], _Task]:
    manager: Any = object.__new__(DropsStaleMessages)
    manager.clock = ManualClock()
    manager.in_progress = InProgress()
    served: list[str] = []

    def handle(self: Any, context: Any, server: _Task) -> None:
        assert not _is_idle(self.in_progress, server.uuid)
        served.append(server.availability_zone)

    monkeypatch.setattr(nova_manager.ComputeManager, name, handle)
    server = _Task(uuid='s1', then=row)
    stale_messages._drops_stale(name)(manager, None, server)
    return served, server


def _is_idle(in_progress: InProgress, server: str) -> bool:
    with in_progress.exclusive(server) as free:
        return free


_SHELVES = [
    ('shelve_offload_instance', task_states.SHELVING),
    ('shelve_offload_instance', task_states.SHELVING_OFFLOADING),
    ('unshelve_instance', task_states.UNSHELVING),
]


@pytest.mark.parametrize(('name', 'row'), _SHELVES)
def test_a_server_is_in_progress_while_it_is_shelved_or_unshelved(
    name: str, row: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A server is in progress during its message, and keeps its zone."""
    served, server = _serve(name, row, monkeypatch)
    assert served == ['z2']
    assert server.task_state == row
    assert name in vars(DropsStaleMessages)


@pytest.mark.parametrize(('name', 'row'), _SHELVES)
def test_stale_shelving_and_unshelving_are_dropped(
    name: str, row: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A message is dropped if the row no longer has its task."""
    served, _ = _serve(name, None, monkeypatch)
    assert not served


@pytest.mark.parametrize(
    'error',
    [
        oslo_messaging.MessagingTimeout('no answer'),
        oslo_messaging.MessageDeliveryFailure('(541) vhost is down'),
        oslo_messaging.RemoteError('DBConnectionError'),
    ],
)
def test_message_waits_until_the_record_of_its_server_can_be_read(
    error: Exception, caplog: pytest.LogCaptureFixture
) -> None:
    """An outage of the database, behind nova-conductor, lost the message."""
    clock = ManualClock()
    errors, begun_s = [error] * 2, clock.now_s()

    class Unread(_Task):
        def refresh(self) -> None:
            if errors:
                raise errors.pop()
            super().refresh()

    server = Unread(uuid='s1', then=task_states.POWERING_OFF)
    due = frozenset({task_states.POWERING_OFF})
    assert stale_messages.is_due(server, due, clock)
    assert clock.now_s() - begun_s == 20.0
    assert caplog.text.count('waits until Nova answers') == 2


def test_message_ends_if_its_server_is_deleted_while_it_is_read() -> None:
    """Its handler raised, since only the cache of its networks was gone."""

    class Uncached(_Task):
        def refresh(self) -> None:
            raise nova_exception.InstanceInfoCacheNotFound(
                instance_uuid=self.uuid
            )

    server = Uncached(uuid='s1', then=None)
    assert not stale_messages.refresh(server, ManualClock())


def test_delete_cancels_the_build_of_its_server(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The build is cancelled before Nova waits for the server's lock."""
    manager: Any = object.__new__(DropsStaleMessages)
    manager.clock = ManualClock()
    manager.in_progress = InProgress()
    cancellations = Cancellations()
    manager.driver = types.SimpleNamespace(cancel_build=cancellations.cancel)
    cancelled: list[Any] = []

    def terminate(self: Any, context: Any, server: _Server) -> None:
        with pytest.raises(nova_errors.Cancelled) as info:
            cancellations.raise_if_cancelled(server.uuid)
        cancelled.append(info)

    monkeypatch.setattr(
        nova_manager.ComputeManager, 'terminate_instance', terminate
    )
    manager.terminate_instance(
        None, _Server(uuid='s1', then=('building', 'c1'))
    )
    assert cancelled
    cancellations.raise_if_cancelled('s1')


@pytest.mark.parametrize(
    ('row', 'reboots_count'),
    [
        (task_states.REBOOTING_HARD, 1),
        (None, 0),
        # An older message must not be recorded as failed.
        (task_states.REBOOT_STARTED, 0),
    ],
)
def test_reboot_that_another_one_has_done_is_dropped(
    row: str | None,
    reboots_count: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A message that RabbitMQ delivers again may do it while this one waits.

    Nova then records the second one as failed, although its user asked before
    the server was rebooted.
    """
    manager: Any = object.__new__(DropsStaleMessages)
    manager.clock = ManualClock()
    rebooted: list[str] = []

    def reboot(self: Any, context: Any, server: _Task, *args: Any) -> None:
        rebooted.append(server.uuid)

    monkeypatch.setattr(
        nova_manager.ComputeManager, '_reboot_instance', reboot
    )
    # Nova calls it with the lock of the server.
    manager._reboot_instance(None, _Task(uuid='s1', then=row), None, 'HARD')
    assert len(rebooted) == reboots_count


@pytest.mark.parametrize(
    ('vm_state', 'is_on', 'target', 'is_saved'),
    [
        (vm_states.ACTIVE, False, 'POWER_OFF', True),
        (vm_states.ACTIVE, True, 'POWER_OFF', False),
        (vm_states.STOPPED, True, 'POWER_ON', True),
        (vm_states.STOPPED, False, 'POWER_ON', False),
        (vm_states.RESCUED, True, 'POWER_OFF', True),
    ],
)
def test_power_event_is_saved_if_the_machine_still_is_so(
    vm_state: str,
    is_on: bool,
    target: str,
    is_saved: bool,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Nova's power sync would switch a machine off that is STOPPED in Nova.

    Nova itself ignores an event that does not fit the state of the server.
    """
    saved: list[str] = []
    monkeypatch.setattr(
        nova_manager.ComputeManager,
        'power_update',
        lambda self, context, instance, target: saved.append(target),
    )
    manager: Any = object.__new__(DropsStaleMessages)
    manager.clock = ManualClock()
    state = power_state.RUNNING if is_on else power_state.SHUTDOWN
    manager.driver = types.SimpleNamespace(
        get_info=lambda instance, use_cache: types.SimpleNamespace(state=state)
    )
    is_active = vm_state == vm_states.ACTIVE
    server = _Task(
        uuid='s1',
        then=None,
        vm_state=vm_state,
        power_state=(
            power_state.RUNNING if is_active else power_state.SHUTDOWN
        ),
    )
    manager.power_update(None, server, target)
    assert bool(saved) is is_saved


class _Powered(_Server):
    """A server whose row has a vm_state and a power state."""

    def refresh(self) -> None:
        vars(self).update(self.row, task_state=None)


def test_power_event_that_comes_during_the_one_before_is_saved(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A machine was switched off and on, while a notification was slow.

    Left STOPPED, it would be switched off by Nova's power sync.
    """
    row = {'vm_state': vm_states.ACTIVE, 'power_state': power_state.RUNNING}
    is_handled, goes_on = threading.Event(), threading.Event()

    def update(self: Any, context: Any, server: Any, target: str) -> None:
        if self._is_state_valid_for_power_update_event(server, target):
            is_on = target == 'POWER_ON'
            is_handled.set()
            assert is_on or goes_on.wait(60.0)
            row['vm_state'] = vm_states.ACTIVE if is_on else vm_states.STOPPED
            row['power_state'] = (
                power_state.RUNNING if is_on else power_state.SHUTDOWN
            )

    monkeypatch.setattr(nova_manager.ComputeManager, 'power_update', update)
    manager: Any = object.__new__(DropsStaleMessages)
    manager.clock = ManualClock()
    machine = types.SimpleNamespace(state=power_state.SHUTDOWN)
    manager.driver = types.SimpleNamespace(
        get_info=lambda instance, use_cache: machine
    )
    threads = [
        threading.Thread(
            target=manager.power_update,
            args=(None, _Powered(uuid='s1', row=row), target),
        )
        for target in ('POWER_OFF', 'POWER_ON')
    ]
    threads[0].start()
    assert is_handled.wait(60.0)
    machine = types.SimpleNamespace(state=power_state.RUNNING)
    threads[1].start()
    threads[1].join(0.5)
    goes_on.set()
    for thread in threads:
        thread.join(60.0)
    assert row['vm_state'] == vm_states.ACTIVE


@pytest.mark.parametrize(
    ('answers', 'is_saved'),
    [
        ([power_state.SHUTDOWN, power_state.RUNNING], False),
        ([power_state.SHUTDOWN, power_state.SHUTDOWN], True),
        ([power_state.SHUTDOWN], True),
    ],
)
def test_power_event_that_waits_for_a_reboot_is_not_saved(
    answers: list[int], is_saved: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Left STOPPED, the machine would be switched off by Nova's power sync.

    It is saved if Ironic goes away meanwhile.
    """
    saved: list[str] = []

    def update(self: Any, context: Any, server: Any, target: str) -> None:
        # As Nova does when it has the lock of the server.
        if self._is_state_valid_for_power_update_event(server, target):
            saved.append(target)

    def read(instance: Any, use_cache: bool) -> types.SimpleNamespace:
        with nova_errors.as_nova_errors(
            instance, nova_exception.VirtDriverNotReady
        ):
            if not answers:
                raise errors.IronicNotReached('Ironic is away')
        return types.SimpleNamespace(state=answers.pop(0))

    monkeypatch.setattr(nova_manager.ComputeManager, 'power_update', update)
    manager: Any = object.__new__(DropsStaleMessages)
    manager.clock = ManualClock()
    manager.driver = types.SimpleNamespace(get_info=read)
    row = {'vm_state': vm_states.ACTIVE, 'power_state': power_state.RUNNING}
    manager.power_update(None, _Powered(uuid='s1', row=row), 'POWER_OFF')
    assert saved == ['POWER_OFF'] * is_saved


def test_power_event_that_ironic_fails_at_takes_no_task_away(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Nova clears the task of the server if an error ends the event.

    Here it is that of a stop which came meanwhile: its message was dropped.
    """
    row = {'vm_state': vm_states.ACTIVE, 'power_state': power_state.RUNNING}
    tasks: list[str | None] = [None]
    answers = [power_state.SHUTDOWN]

    @nova_manager.reverts_task_state
    def update(self: Any, context: Any, instance: Any, target: str) -> None:
        if self._is_state_valid_for_power_update_event(instance, target):
            raise nova_exception.UnexpectedTaskStateError(
                instance_uuid='s1', expected=[None], actual=tasks
            )

    def read(instance: Any, use_cache: bool) -> types.SimpleNamespace:
        with nova_errors.as_nova_errors(
            instance, nova_exception.VirtDriverNotReady
        ):
            if not answers:
                tasks.append(task_states.POWERING_OFF)
                raise errors.IronicUnavailable('it has failed', 500)
        return types.SimpleNamespace(state=answers.pop(0))

    monkeypatch.setattr(nova_manager.ComputeManager, 'power_update', update)
    manager: Any = object.__new__(DropsStaleMessages)
    manager.clock = ManualClock()
    manager.driver = types.SimpleNamespace(get_info=read)
    manager._instance_update = lambda context, instance, task_state: (
        tasks.append(task_state)
    )
    with pytest.raises(nova_exception.UnexpectedTaskStateError):
        manager.power_update(None, _Powered(uuid='s1', row=row), 'POWER_OFF')
    assert tasks == [None, task_states.POWERING_OFF]


@pytest.mark.parametrize(
    ('later', 'is_saved'), [(vm_states.STOPPED, True), (None, False)]
)
def test_power_event_waits_until_ironic_answers(
    later: str | None,
    is_saved: bool,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """A machine that was switched on was switched off by the power sync.

    The server may be gone when Ironic answers.
    """
    row = {'vm_state': vm_states.STOPPED, 'power_state': power_state.SHUTDOWN}
    saved: list[str] = []
    answers = iter([False, False, True])

    def read(instance: Any, use_cache: bool) -> types.SimpleNamespace:
        with nova_errors.as_nova_errors(
            instance, nova_exception.VirtDriverNotReady
        ):
            if not next(answers):
                row['vm_state'] = later
                raise errors.IronicNotReached('Ironic is away')
        return types.SimpleNamespace(state=power_state.RUNNING)

    class Server(_Powered):
        def refresh(self) -> None:
            if row['vm_state'] is None:
                raise nova_exception.InstanceNotFound(instance_id=self.uuid)
            super().refresh()

    monkeypatch.setattr(
        nova_manager.ComputeManager,
        'power_update',
        lambda self, context, instance, target: saved.append(target),
    )
    manager: Any = object.__new__(DropsStaleMessages)
    manager.clock = ManualClock()
    manager.driver = types.SimpleNamespace(get_info=read)
    manager.power_update(None, Server(uuid='s1', row=row), 'POWER_ON')
    assert saved == ['POWER_ON'] * is_saved
    assert 'waits until Ironic answers' in caplog.text

# SPDX-License-Identifier: Apache-2.0
"""Nova's own handlers do not overwrite a task that came while they ran."""

import threading
import time
import types
from collections.abc import Callable, Iterator
from typing import Any

import oslo_messaging
import pytest
from nova import context as nova_context
from nova import exception as nova_exception
from nova import objects
from nova import rpc as nova_rpc
from nova.compute import power_state, task_states, vm_states
from nova.network import model
from nova.objects import base as objects_base

from ironic_compute.manager.newer_tasks import keeping_newer_tasks
from ironic_compute.manager.stale_messages import DropsStaleMessages
from ironic_compute.manager.unsupported import UnsupportedOperations
from ironic_compute.recovery.in_progress import InProgress
from tests.fakes.clock import ManualClock

_UUID = '0b5d6a4e-5b0b-4ec3-9d0c-0c6a1d3a6c11'
_NEWER = [
    task_states.REBOOTING_HARD,
    task_states.SOFT_DELETING,
    task_states.DELETING,
    task_states.POWERING_OFF,
]


class _Quiet:
    """Nova's notifier and other parts that these handlers only mention."""

    def prepare(self, **_: Any) -> '_Quiet':
        return self

    def is_enabled(self) -> bool:
        return False

    def __getattr__(self, name: str) -> Callable[..., Any]:
        return lambda *args, **kwargs: self


class _Conductor(_Quiet):
    """nova-conductor, with the record of one Instance."""

    def __init__(self, task: str) -> None:
        self.row: dict[str, Any] = {
            'vm_state': vm_states.ACTIVE,
            'task_state': task,
            'power_state': power_state.RUNNING,
        }

    def object_action(
        self, context: Any, instance: Any, method: str, _: Any, kwargs: Any
    ) -> Any:
        """Read or save the Instance, as Nova's database does."""
        if instance.obj_name() != 'Instance':
            return {}, None
        if method == 'refresh':
            return {**self.row, 'obj_what_changed': []}, None
        expected = kwargs.get('expected_task_state')
        some = expected if isinstance(expected, list | tuple) else (expected,)
        if expected is not None and self.row['task_state'] not in some:
            raise nova_exception.UnexpectedTaskStateError(
                instance_uuid=_UUID, expected=expected, actual=self.row
            )
        self.row.update(instance.obj_get_changes())
        return {'obj_what_changed': []}, None

    def object_class_action_versions(self, context: Any, *_: Any) -> Any:
        """Return that the server has no disks."""
        return objects.BlockDeviceMappingList(objects=[])


def _instance(row: dict[str, Any]) -> Any:
    instance = objects.Instance(
        nova_context.get_admin_context(),
        uuid=_UUID,
        system_metadata={},
        metadata={},
        **row,
    )
    instance.obj_reset_changes()
    return instance


class _Manager(DropsStaleMessages):
    """Nova's manager over a driver that serves one server.

    :param during: is called while the node is switched
    """

    def __init__(self, during: Callable[[], None]) -> None:
        self.in_progress = InProgress()
        self.clock = ManualClock()
        self.host = 'c1'
        self.during = during
        self.switches: list[str] = []
        self.state = power_state.RUNNING
        self.driver = types.SimpleNamespace(
            reboot=lambda *args, **kwargs: self._switch('reboot', True),
            power_off=lambda *args, **kwargs: self._switch('off', False),
            power_on=lambda *args, **kwargs: self._switch('on', True),
        )
        self.share_manager = self.rt = _Quiet()
        self.network_api = types.SimpleNamespace(
            get_instance_nw_info=lambda *_: model.NetworkInfo()
        )
        self.notifier = _Quiet()

    def _switch(self, name: str, on: bool) -> None:
        self.switches.append(name)
        self.during()
        self.state = power_state.RUNNING if on else power_state.SHUTDOWN

    def _get_power_state(self, instance: Any) -> int:
        return self.state

    def _get_instance_block_device_info(self, *_: Any, **__: Any) -> Any:
        return {}

    def _nothing(self, *_: Any, **__: Any) -> list[Any]:
        return []

    _notify_about_instance_usage = _get_accel_info = _nothing
    _delete_dangling_bdms = _update_resource_tracker = _nothing


@pytest.fixture(autouse=True)
def _no_notifications(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    objects.register_all()
    for name in ('LEGACY_NOTIFIER', 'NOTIFIER'):
        monkeypatch.setattr(nova_rpc, name, _Quiet())
    yield


def _manager(
    task: str,
    newer: str | None,
    monkeypatch: pytest.MonkeyPatch,
    error: Exception | None = None,
) -> tuple[_Manager, _Conductor]:
    """Return a manager during whose handler the task becomes another."""
    conductor = _Conductor(task)
    monkeypatch.setattr(objects_base.NovaObject, 'indirection_api', conductor)

    def during() -> None:
        if newer is not None:
            conductor.row['task_state'] = newer
        if error is not None:
            raise error

    return _Manager(during), conductor


def _request(instance: Any) -> Any:
    return instance._context, instance


@pytest.mark.parametrize('newer', _NEWER)
def test_task_that_comes_during_a_reboot_is_kept(
    newer: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A hard reboot during a soft one was dropped: its task was gone."""
    manager, conductor = _manager(task_states.REBOOTING, newer, monkeypatch)
    instance = _instance(conductor.row)
    manager.reboot_instance(*_request(instance), None, 'SOFT')
    assert conductor.row['task_state'] == newer
    # The handler of the newer task begins with a clean object.
    assert not instance.obj_get_changes()
    assert 'save' not in vars(instance)


def test_hard_reboot_is_done_after_a_soft_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Both messages are handled, and the task is over in the end."""
    manager, conductor = _manager(
        task_states.REBOOTING, task_states.REBOOTING_HARD, monkeypatch
    )
    hard = _instance({**conductor.row, 'task_state': 'rebooting_hard'})
    soft = _instance(conductor.row)
    manager.reboot_instance(*_request(soft), None, 'SOFT')
    manager.during = lambda: None
    manager.reboot_instance(*_request(hard), None, 'HARD')
    assert manager.switches == ['reboot', 'reboot']
    assert conductor.row['task_state'] is None


@pytest.mark.parametrize('kind', ['SOFT', 'HARD'])
def test_reboot_ends_its_own_task(
    kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without a newer task, a reboot ends as in Nova."""
    task = {'SOFT': 'rebooting', 'HARD': 'rebooting_hard'}[kind]
    manager, conductor = _manager(task, None, monkeypatch)
    instance = _instance(conductor.row)
    manager.reboot_instance(*_request(instance), None, kind)
    assert conductor.row['task_state'] is None
    assert conductor.row['vm_state'] == vm_states.ACTIVE


def test_task_of_the_same_kind_is_kept_after_the_end(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Nova ends the rebuild of a stopped server, and then stops it again."""
    _, conductor = _manager(task_states.REBUILD_SPAWNING, None, monkeypatch)
    instance = _instance(conductor.row)
    own = frozenset(
        {task_states.REBUILDING, task_states.REBUILD_SPAWNING, None}
    )
    with keeping_newer_tasks(instance, own):
        instance.task_state = None
        instance.save(expected_task_state=[task_states.REBUILD_SPAWNING])
        conductor.row['task_state'] = task_states.REBUILDING
        instance.task_state = task_states.POWERING_OFF
        instance.save()
    assert conductor.row['task_state'] == task_states.REBUILDING


@pytest.mark.parametrize('newer', _NEWER[:3])
def test_task_that_comes_during_a_failing_request_is_kept(
    newer: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nova clears the task of a request that failed."""
    manager, conductor = _manager(
        task_states.POWERING_OFF, newer, monkeypatch, RuntimeError('refused')
    )
    instance = _instance(conductor.row)
    with pytest.raises(RuntimeError):
        manager.stop_instance(*_request(instance), True)
    assert conductor.row['task_state'] == newer


def test_failing_request_ends_its_own_task(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The server does not keep a task that nobody works on."""
    manager, conductor = _manager(
        task_states.POWERING_OFF, None, monkeypatch, RuntimeError('refused')
    )
    instance = _instance(conductor.row)
    with pytest.raises(RuntimeError):
        manager.stop_instance(*_request(instance), True)
    assert conductor.row['task_state'] is None


def test_second_of_two_equal_messages_is_dropped(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It would power the server off even if it was started meanwhile."""
    manager, conductor = _manager(task_states.POWERING_OFF, None, monkeypatch)
    instances = [_instance(conductor.row), _instance(conductor.row)]
    first, second = (
        threading.Thread(
            target=manager.stop_instance, args=(*_request(each), True)
        )
        for each in instances
    )

    def begin_second() -> None:
        """The second message arrives while the node is switched off."""
        if second.ident is None:
            second.start()
            _wait_until(lambda: manager.in_progress._shared[_UUID] == 2)

    manager.during = begin_second
    first.start()
    first.join(60.0)
    second.join(60.0)
    assert manager.switches == ['off']
    assert conductor.row['task_state'] is None


class _Refusing(UnsupportedOperations, _Manager):
    """The manager, which refuses to pause and suspend a server."""


@pytest.mark.parametrize('name', ['pause', 'suspend'])
def test_hard_reboot_that_comes_during_a_refusal_is_done(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """nova-api accepts it, and the refusal cleared its task."""
    task = {'pause': 'pausing', 'suspend': 'suspending'}[name]
    conductor = _Conductor(task)
    monkeypatch.setattr(objects_base.NovaObject, 'indirection_api', conductor)
    manager = _Refusing(lambda: None)
    refused = _instance(conductor.row)
    conductor.row['task_state'] = task_states.REBOOTING_HARD
    rebooted = _instance(conductor.row)
    with pytest.raises(oslo_messaging.ExpectedException):
        getattr(manager, f'{name}_instance')(*_request(refused))
    manager.reboot_instance(*_request(rebooted), None, 'HARD')
    assert manager.switches == ['reboot']
    assert conductor.row['task_state'] is None


@pytest.mark.parametrize('name', ['pause', 'suspend'])
def test_refusal_ends_its_own_task(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The server can be used again at once."""
    conductor = _Conductor({'pause': 'pausing', 'suspend': 'suspending'}[name])
    monkeypatch.setattr(objects_base.NovaObject, 'indirection_api', conductor)
    manager = _Refusing(lambda: None)
    context, instance = _request(_instance(conductor.row))
    with pytest.raises(oslo_messaging.ExpectedException):
        getattr(manager, f'{name}_instance')(context, instance=instance)
    assert conductor.row['task_state'] is None


def _wait_until(is_so: Callable[[], bool]) -> None:
    deadline_s = time.monotonic() + 60.0
    while not is_so():
        assert time.monotonic() < deadline_s
        time.sleep(0.01)
    # The thread has read the record by now, if it reads it too early.
    time.sleep(0.1)


def test_task_that_is_cleared_twice_is_a_newer_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Nova clears the one of a refused rebuild, and once more at the end."""
    objects.register_all()
    conductor = _Conductor(task_states.REBUILDING)
    monkeypatch.setattr(objects_base.NovaObject, 'indirection_api', conductor)
    instance = _instance(conductor.row)
    own = frozenset({task_states.REBUILDING, None})
    with keeping_newer_tasks(instance, own):
        instance.task_state = None
        instance.save()
        conductor.row['task_state'] = task_states.POWERING_OFF
        instance.task_state = None
        instance.save()
    assert conductor.row['task_state'] == task_states.POWERING_OFF

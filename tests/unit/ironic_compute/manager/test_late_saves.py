# SPDX-License-Identifier: Apache-2.0
"""Saves of a request that is over change no server that is in use again."""

import types
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from nova import context as nova_context
from nova import exception as nova_exception
from nova import objects
from nova import rpc as nova_rpc
from nova.compute import build_results, power_state, task_states, vm_states
from nova.compute import manager as nova_manager
from nova.objects import base as objects_base

from ironic_compute.manager.build_messages import BuildMessages
from ironic_compute.manager.shelving import RepeatedShelving
from ironic_compute.recovery.in_progress import InProgress
from tests.fakes.clock import ManualClock

_UUID = '0b5d6a4e-5b0b-4ec3-9d0c-0c6a1d3a6c11'
_BUILT = [vm_states.ACTIVE, vm_states.SHELVED_OFFLOADED, vm_states.ERROR]


class _Conductor:
    """nova-conductor, with the states of one server."""

    def __init__(self) -> None:
        self.vm_state: str = vm_states.BUILDING
        self.task_state: str | None = None
        self.host: str | None = None
        self.node: str | None = None
        self.saves: list[dict[str, Any]] = []

    def object_action(
        self, context: Any, instance: Any, method: str, _: Any, kwargs: Any
    ) -> Any:
        """Save as Nova's database does; a request may be sent again later."""
        if instance.obj_name() != 'Instance':
            return {}, None
        if method == 'refresh':
            row = {'vm_state': self.vm_state, 'task_state': self.task_state}
            return {**row, 'obj_what_changed': []}, None
        assert method == 'save'
        saved = {**kwargs, 'changes': instance.obj_get_changes()}
        self.saves.append(saved)
        self.carry_out(saved)
        return {'obj_what_changed': []}, None

    def carry_out(self, saved: dict[str, Any]) -> None:
        """Carry out a save."""
        unexpected = nova_exception.UnexpectedTaskStateError
        wanted = (
            (self.task_state, saved.get('expected_task_state'), unexpected),
            (
                self.vm_state,
                saved.get('expected_vm_state'),
                nova_exception.InstanceUpdateConflict,
            ),
        )
        for state, expected, error in wanted:
            if expected is not None and state not in expected:
                raise error(instance_uuid=_UUID, expected={}, actual={})
        for name, value in saved['changes'].items():
            setattr(self, name, value)

    def carry_out_late(self, saved: dict[str, Any], **row: Any) -> None:
        """Carry out a save when the server has these states; it is refused."""
        vars(self).update(row)
        with pytest.raises(nova_exception.InstanceUpdateConflict):
            self.carry_out(saved)
        assert row.items() <= vars(self).items()

    def object_class_action_versions(self, *_: Any, **__: Any) -> Any:
        """Return that the server has no disks."""
        return objects.BlockDeviceMappingList(objects=[])


class _Quiet:
    """Parts of Nova that these handlers only mention."""

    def is_enabled(self) -> bool:
        return False

    def __getattr__(self, name: str) -> Callable[..., Any]:
        return lambda *args, **kwargs: self


class _Manager(BuildMessages):
    """Nova's manager with the first steps of a build."""

    def __init__(self) -> None:
        self.network_api = types.SimpleNamespace()


def _begin_build(self: Any, context: Any, instance: Any) -> None:
    """Make the first two saves of Nova's ``_build_resources``."""
    self._allocate_network(context, instance, None, None, None, None)
    instance.vm_state = vm_states.BUILDING
    instance.task_state = task_states.BLOCK_DEVICE_MAPPING
    instance.save()


def _install_conductor(monkeypatch: pytest.MonkeyPatch) -> _Conductor:
    objects.register_all()
    one = _Conductor()
    monkeypatch.setattr(objects_base.NovaObject, 'indirection_api', one)
    for name in ('LEGACY_NOTIFIER', 'NOTIFIER'):
        monkeypatch.setattr(nova_rpc, name, _Quiet())
    return one


def _read(conductor: _Conductor) -> Any:
    """Return the server as a message has it."""
    instance = objects.Instance(
        nova_context.get_admin_context(),
        uuid=_UUID,
        vm_state=conductor.vm_state,
        task_state=conductor.task_state,
        host=conductor.host,
        node=conductor.node,
        compute_id=None,
        launched_on=None,
    )
    instance.obj_reset_changes()
    return instance


@pytest.fixture
def conductor(monkeypatch: pytest.MonkeyPatch) -> Iterator[_Conductor]:
    """A conductor that has served the first saves of a build."""
    one = _install_conductor(monkeypatch)
    nova = nova_manager.ComputeManager
    monkeypatch.setattr(nova, '_build_and_run_instance', _begin_build)
    monkeypatch.setattr(
        nova, '_allocate_network_async', lambda *args, **kwargs: None
    )
    instance = _read(one)
    _Manager()._build_and_run_instance(None, instance)
    assert 'save' not in vars(instance)
    yield one


def test_first_saves_of_a_build(conductor: _Conductor) -> None:
    """A server that is building is saved as by Nova."""
    assert [s['changes']['task_state'] for s in conductor.saves] == [
        task_states.NETWORKING,
        task_states.BLOCK_DEVICE_MAPPING,
    ]
    assert conductor.task_state == task_states.BLOCK_DEVICE_MAPPING


@pytest.mark.parametrize('vm_state', _BUILT)
def test_late_save_changes_no_server_that_is_built(
    conductor: _Conductor, vm_state: str
) -> None:
    """Nova-conductor carries it out when the server has no task any more."""
    for saved in conductor.saves:
        conductor.carry_out_late(saved, vm_state=vm_state, task_state=None)


def test_late_save_takes_no_task_from_a_server_that_is_deployed(
    conductor: _Conductor,
) -> None:
    """Else the save that makes the server ACTIVE would be refused."""
    for saved in conductor.saves:
        conductor.carry_out_late(saved, task_state=task_states.SPAWNING)


def test_second_save_of_a_build_takes_no_delete_from_a_server(
    conductor: _Conductor,
) -> None:
    """A delete was requested since the first one."""
    conductor.carry_out_late(
        conductor.saves[-1], task_state=task_states.DELETING
    )


def _reschedule(conductor: _Conductor, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Have a build fail, so that another host builds; return the last save."""
    conductor.host, conductor.node = 'c1', 'n1'

    def fail(self: Any, *args: Any) -> None:
        raise nova_exception.RescheduledException(
            instance_uuid=_UUID, reason='no power'
        )

    nova: Any = nova_manager.ComputeManager
    monkeypatch.setattr(nova, '_build_and_run_instance', fail)
    manager: Any = _Manager()
    manager.host = 'c1'
    manager.in_progress = InProgress()
    manager._must_build = lambda *args: True
    manager.forward_late = lambda *args: False
    manager.network_api = manager.reportclient = _Quiet()
    manager.compute_task_api = _Quiet()
    manager._cleanup_allocated_networks = lambda *args: None
    context = nova_context.get_admin_context()
    instance = _read(conductor)
    retry = {'retry': {'num_attempts': 1}}
    result = manager._do_build_and_run_instance(
        context, instance, {}, None, retry, None, [], None, [], [], 'n1'
    )
    assert result == build_results.RESCHEDULED
    assert 'save' not in vars(instance)
    assert (conductor.host, conductor.task_state) == (None, 'scheduling')
    return conductor.saves[-1]


def test_late_end_of_a_build_takes_no_host_from_a_built_server(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The server was built on another host meanwhile."""
    conductor = _install_conductor(monkeypatch)
    saved = _reschedule(conductor, monkeypatch)
    conductor.carry_out_late(
        saved, vm_state=vm_states.ACTIVE, task_state=None, host='c2'
    )


class _Shelving(RepeatedShelving):
    """Nova's manager, with the steps of a shelving that save the server."""

    def __init__(self, while_freed: Callable[[], None]) -> None:
        self.clock = ManualClock()
        self.host = 'c1'
        self.driver = _Quiet()
        self.network_api = types.SimpleNamespace(
            get_instance_nw_info=lambda *_: [],
            unbind_ports=lambda *_, **__: None,
        )
        self.rt = types.SimpleNamespace(
            delete_allocation_for_shelve_offloaded_instance=lambda *_: None,
        )
        self._while_freed = while_freed

    def has_active_node(self, instance: Any) -> bool:
        return True

    def _get_power_state(self, instance: Any) -> int:
        return power_state.SHUTDOWN

    def _update_resource_tracker(self, context: Any, instance: Any) -> None:
        self._while_freed()

    def _nothing(self, *_: Any, **__: Any) -> list[Any]:
        return []

    _notify_about_instance_usage = _power_off_instance = _nothing
    _get_instance_block_device_info = _terminate_volume_connections = _nothing
    _delete_scheduler_instance_info = _nothing


def _shelve(
    conductor: _Conductor, while_freed: Callable[[], None] = lambda: None
) -> None:
    conductor.vm_state = vm_states.ACTIVE
    conductor.task_state = task_states.SHELVING
    conductor.host, conductor.node = 'c1', 'n1'
    instance = _read(conductor)
    _Shelving(while_freed)._shelve_offload_instance(
        instance._context, instance, True, []
    )
    assert 'save' not in vars(instance)
    assert not instance.obj_get_changes()


@pytest.mark.parametrize('task_state', [None, task_states.UNSHELVING])
def test_host_of_a_shelved_server_is_cleared(
    task_state: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its user may request an unshelve before the second save."""
    conductor = _install_conductor(monkeypatch)

    def unshelve() -> None:
        conductor.task_state = task_state

    _shelve(conductor, unshelve)
    assert conductor.vm_state == vm_states.SHELVED_OFFLOADED
    assert (conductor.host, conductor.node) == (None, None)
    assert conductor.task_state == task_state


@pytest.mark.parametrize(
    ('vm_state', 'task_state'),
    [
        (vm_states.SHELVED_OFFLOADED, task_states.SPAWNING),
        (vm_states.ACTIVE, None),
    ],
)
def test_late_end_of_a_shelving_takes_no_host_from_a_server(
    vm_state: str, task_state: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is unshelved meanwhile, and its host has saved the new node."""
    conductor = _install_conductor(monkeypatch)
    _shelve(conductor)
    conductor.carry_out_late(
        conductor.saves[-1],
        vm_state=vm_state,
        task_state=task_state,
        host='c2',
        node='n2',
    )


def test_delete_that_comes_during_a_shelving_finds_its_host(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Recovery finds a delete by the host; the shelving does not fail."""
    conductor = _install_conductor(monkeypatch)

    def delete() -> None:
        conductor.task_state = task_states.DELETING

    _shelve(conductor, delete)
    assert (conductor.host, conductor.task_state) == ('c1', 'deleting')


def _unshelve(
    conductor: _Conductor,
    monkeypatch: pytest.MonkeyPatch,
    while_spawned: Callable[[], None] = lambda: None,
) -> None:
    """Have an unshelve fail when its node is claimed."""
    conductor.vm_state = vm_states.SHELVED_OFFLOADED
    conductor.task_state = task_states.UNSHELVING

    def fail(self: Any, context: Any, instance: Any, *args: Any) -> None:
        instance.task_state = task_states.SPAWNING
        instance.save()
        instance.host, instance.node, instance.compute_id = 'c1', 'n1', 1
        instance.save(expected_task_state=[task_states.SPAWNING])
        while_spawned()
        self._nil_out_instance_obj_host_and_node(instance)
        raise nova_exception.ComputeResourcesUnavailable(reason='no power')

    nova: Any = nova_manager.ComputeManager
    monkeypatch.setattr(nova, '_unshelve_instance', fail)
    manager: Any = _Manager()
    manager.clock, manager.host = ManualClock(), 'c1'
    manager.in_progress = InProgress()
    manager.notifier = _Quiet()
    manager._update_resource_tracker = lambda *args: None
    instance = _read(conductor)
    with pytest.raises(nova_exception.ComputeResourcesUnavailable):
        manager.unshelve_instance(
            instance._context, instance, None, {}, 'n1', None, []
        )
    assert 'save' not in vars(instance)


def test_failed_unshelve_leaves_a_shelved_server(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Without late saves it ends as in Nova."""
    conductor = _install_conductor(monkeypatch)
    _unshelve(conductor, monkeypatch)
    assert (conductor.host, conductor.node) == (None, None)
    assert (conductor.vm_state, conductor.task_state) == (
        vm_states.SHELVED_OFFLOADED,
        None,
    )


@pytest.mark.parametrize(
    'vm_state', [vm_states.ACTIVE, vm_states.SHELVED_OFFLOADED]
)
def test_late_saves_of_an_unshelve_change_no_server_at_rest(
    vm_state: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The next unshelve has succeeded meanwhile, or failed, too.

    The first save would leave a shelved server with a task for ever; the last
    one would take the host from an ACTIVE one.
    """
    conductor = _install_conductor(monkeypatch)
    _unshelve(conductor, monkeypatch)
    for saved in (conductor.saves[0], conductor.saves[-1]):
        conductor.carry_out_late(
            saved, vm_state=vm_state, task_state=None, host='c2', node='n2'
        )


def test_first_save_of_an_unshelve_takes_the_former_host(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A worker was killed between the two saves that end a shelving.

    Recovery of the former host would undo the unshelve while Cinder is slow.
    """
    conductor = _install_conductor(monkeypatch)
    conductor.host, conductor.node = 'c2', 'n2'
    _unshelve(conductor, monkeypatch)
    former = {'host': None, 'node': None, 'compute_id': None}
    assert former.items() <= conductor.saves[0]['changes'].items()


def test_task_that_comes_during_an_unshelve_is_kept(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The end of the failed unshelve changes nothing, and hides no error."""
    conductor = _install_conductor(monkeypatch)

    def delete() -> None:
        conductor.task_state = task_states.DELETING

    _unshelve(conductor, monkeypatch, delete)
    assert (conductor.host, conductor.task_state) == ('c1', 'deleting')

# SPDX-License-Identifier: Apache-2.0
"""Nova's first saves of a build change no server that is built."""

import types
from collections.abc import Iterator
from typing import Any

import pytest
from nova import context as nova_context
from nova import exception as nova_exception
from nova import objects
from nova.compute import manager as nova_manager
from nova.compute import task_states, vm_states
from nova.objects import base as objects_base

from ironic_compute.manager.build_messages import BuildMessages

_UUID = '0b5d6a4e-5b0b-4ec3-9d0c-0c6a1d3a6c11'
_BUILT = [vm_states.ACTIVE, vm_states.SHELVED_OFFLOADED, vm_states.ERROR]


class _Conductor:
    """nova-conductor, with the states of one server."""

    def __init__(self) -> None:
        self.vm_state: str = vm_states.BUILDING
        self.task_state: str | None = None
        self.saves: list[dict[str, Any]] = []

    def object_action(
        self, context: Any, instance: Any, method: str, _: Any, kwargs: Any
    ) -> Any:
        """Save as Nova's database does; a request may be sent again later."""
        assert method == 'save'
        saved = {**kwargs, 'changes': instance.obj_get_changes()}
        self.saves.append(saved)
        self.carry_out(saved)
        return {'obj_what_changed': []}, None

    def carry_out(self, saved: dict[str, Any]) -> None:
        """Carry out a save."""
        wanted = (
            (self.task_state, saved.get('expected_task_state')),
            (self.vm_state, saved.get('expected_vm_state')),
        )
        for state, expected in wanted:
            if expected is not None and state not in expected:
                raise nova_exception.InstanceUpdateConflict(
                    instance_uuid=_UUID, expected={}, actual={}
                )
        for name, value in saved['changes'].items():
            setattr(self, name, value)


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


@pytest.fixture
def conductor(monkeypatch: pytest.MonkeyPatch) -> Iterator[_Conductor]:
    """A conductor that has served the first saves of a build."""
    one = _Conductor()
    monkeypatch.setattr(objects_base.NovaObject, 'indirection_api', one)
    nova = nova_manager.ComputeManager
    monkeypatch.setattr(nova, '_build_and_run_instance', _begin_build)
    monkeypatch.setattr(
        nova, '_allocate_network_async', lambda *args, **kwargs: None
    )
    instance = objects.Instance(
        nova_context.get_admin_context(),
        uuid=_UUID,
        vm_state=vm_states.BUILDING,
        task_state=None,
    )
    instance.obj_reset_changes()
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
        conductor.vm_state, conductor.task_state = vm_state, None
        with pytest.raises(nova_exception.InstanceUpdateConflict):
            conductor.carry_out(saved)
        assert (conductor.vm_state, conductor.task_state) == (vm_state, None)

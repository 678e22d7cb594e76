# SPDX-License-Identifier: Apache-2.0
"""Deletes of servers outlast an outage of Nova or Neutron."""

import contextlib
import types
import unittest.mock
from typing import Any

import oslo_messaging
import pytest
from keystoneauth1 import exceptions as keystone_exceptions
from neutronclient.common import exceptions as neutron_exceptions
from nova import exception as nova_exception
from nova import objects
from nova.compute import manager as nova_manager
from nova.compute import task_states, vm_states

from ironic_compute import errors
from ironic_compute.manager.deletes import RepeatedDeletes
from tests.fakes.clock import ManualClock
from tests.fakes.ironic import NODE

from ..driver import fake


def _delete(
    raised: list[Exception], monkeypatch: pytest.MonkeyPatch
) -> tuple[int, float]:
    """Delete a server; return the number of tries and the seconds waited.

    :param raised: what Nova's own delete raises, before it succeeds
    """
    tries = list(raised)

    def delete(*args: Any) -> None:
        if tries:
            raise tries.pop(0)

    monkeypatch.setattr(
        nova_manager.ComputeManager, '_delete_instance', delete
    )
    manager: Any = object.__new__(RepeatedDeletes)
    manager.clock = ManualClock()
    begun_s = manager.clock.now_s()
    manager._delete_instance(None, types.SimpleNamespace(uuid='s1'), [])
    return len(raised) - len(tries), manager.clock.now_s() - begun_s


@pytest.mark.parametrize(
    'error',
    [
        oslo_messaging.MessagingTimeout(),
        oslo_messaging.RemoteError('DBConnectionError'),
        keystone_exceptions.ConnectFailure(),
        keystone_exceptions.ConnectTimeout(),
        neutron_exceptions.ConnectionFailed(reason='refused'),
        neutron_exceptions.ServiceUnavailable(),
    ],
)
def test_a_delete_without_an_answer_is_tried_until_it_succeeds(
    error: Exception, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nova would put the server to ERROR after the first time-out."""
    assert _delete([error] * 3, monkeypatch) == (3, 30.0)


_AWAY_S = 900.0


@pytest.mark.parametrize(
    ('error', 'is_done'),
    [
        (errors.IronicNotReached('connection refused'), True),
        (errors.IronicUnavailable('too late', 504), True),
        (errors.IronicUnavailable('oops', 500), False),
    ],
)
def test_a_delete_waits_until_ironic_answers(
    error: errors.IronicUnavailable,
    is_done: bool,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Nova would put the server to ERROR, without its ports, after a while.

    Ironic may answer 500 to this request for ever, so that is a refusal.
    """
    bench = fake.bench_with_server()
    manager: Any = object.__new__(RepeatedDeletes)
    manager.clock, ironic = bench.clock, bench.ironic
    ends_s, read = bench.clock.now_s() + _AWAY_S, ironic.read_node_of_instance

    def read_later(server: str) -> Any:
        if bench.clock.now_s() < ends_s:
            raise error
        return read(server)

    ironic.read_node_of_instance = read_later  # type: ignore[method-assign]
    monkeypatch.setattr(
        nova_manager.ComputeManager,
        '_delete_instance',
        lambda self, *args: bench.driver.destroy(*args),
    )
    server = fake.unsaved_server(task_state=task_states.DELETING)
    with contextlib.suppress(nova_exception.InstanceDeployFailure):
        manager._delete_instance(None, server, [])
    assert bench.is_free() is is_done


@pytest.mark.parametrize(
    ('task_state', 'is_off'),
    [(task_states.SOFT_DELETING, True), (task_states.POWERING_OFF, False)],
)
def test_soft_delete_waits_until_ironic_answers(
    task_state: str, is_off: bool
) -> None:
    """Nova would forget it; a stop that has failed can be requested again."""
    bench = fake.bench_with_server()
    manager: Any = object.__new__(RepeatedDeletes)
    manager.clock, manager.driver = bench.clock, bench.driver
    manager.share_manager = unittest.mock.MagicMock()
    # Nova 33 reads the shares itself.
    manager._get_share_info = lambda *_: objects.ShareMappingList(objects=[])
    ends_s, ironic = bench.clock.now_s() + _AWAY_S, bench.ironic
    read = ironic.read_node_of_instance

    def read_later(server: str) -> Any:
        if bench.clock.now_s() < ends_s:
            raise errors.IronicNotReached('connection refused')
        return read(server)

    ironic.read_node_of_instance = read_later  # type: ignore[method-assign]
    server = fake.unsaved_server(task_state=task_state)
    with contextlib.suppress(nova_exception.InstancePowerOffFailure):
        manager._power_off_instance(None, server, clean_shutdown=False)
    calls = [call[0] for call in ironic.calls]
    assert bool(calls) is is_off, calls


@pytest.mark.parametrize(
    ('task_state', 'is_on'),
    [(task_states.RESTORING, True), (task_states.POWERING_ON, False)],
)
def test_restore_waits_until_ironic_answers(
    task_state: str, is_on: bool
) -> None:
    """The server would be deleted again; a start can be requested again."""
    bench = fake.bench_with_server()
    manager: Any = object.__new__(RepeatedDeletes)
    manager.clock, manager.driver = bench.clock, bench.driver
    manager.share_manager = manager.network_api = unittest.mock.MagicMock()
    manager._get_instance_block_device_info = lambda *_: {}
    manager._get_accel_info = lambda *_: []
    # Nova 33 reads and mounts the shares itself.
    manager._get_share_info = lambda *_: objects.ShareMappingList(objects=[])
    manager._mount_all_shares = lambda *_: None
    ends_s, ironic = bench.clock.now_s() + _AWAY_S, bench.ironic
    ironic.change(NODE, power_state='power off')
    read = ironic.read_node_of_instance

    def read_later(server: str) -> Any:
        if bench.clock.now_s() < ends_s:
            raise errors.IronicNotReached('connection refused')
        return read(server)

    ironic.read_node_of_instance = read_later  # type: ignore[method-assign]
    server = fake.unsaved_server(task_state=task_state)
    with contextlib.suppress(nova_exception.InstancePowerOnFailure):
        manager._power_on(None, server)
    assert bool(ironic.calls) is is_on, ironic.calls


def test_a_delete_that_is_refused_is_not_tried_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A refusal is an answer; Nova puts the server to ERROR."""
    refused = nova_exception.InstanceTerminationFailure(reason='no')
    with pytest.raises(nova_exception.InstanceTerminationFailure):
        _delete([refused], monkeypatch)


@pytest.mark.parametrize(
    ('current', 'is_build', 'saved'),
    [
        (task_states.DELETING, True, []),
        (None, True, []),
        (task_states.SPAWNING, True, [(vm_states.ERROR, None)]),
        (task_states.DELETING, False, [(vm_states.ERROR, 'deleting')]),
    ],
)
def test_build_that_fails_because_of_a_delete_is_no_error(
    current: str | None,
    is_build: bool,
    saved: list[Any],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A delete that fails is one; a server without a record is deleted."""

    def read(context: Any, uuid: str) -> Any:
        if current is None:
            raise nova_exception.InstanceNotFound(instance_id=uuid)
        return types.SimpleNamespace(task_state=current)

    monkeypatch.setattr(objects.Instance, 'get_by_uuid', read)
    server = _Server()
    manager: Any = object.__new__(RepeatedDeletes)
    manager._set_instance_obj_error_state(server, clean_task_state=is_build)
    assert server.saved == saved


@pytest.mark.parametrize('is_deleted', [True, False])
def test_changes_that_a_delete_refused_are_not_saved_later(
    is_deleted: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nova's cleanup would save ACTIVE without a task over the delete."""
    server = objects.Instance(uuid='s1')
    server.obj_reset_changes()
    error = (
        nova_exception.UnexpectedDeletingTaskStateError(
            instance_uuid='s1', expected={}, actual={}
        )
        if is_deleted
        else nova_exception.RescheduledException(instance_uuid='s1', reason='')
    )

    def build(manager: Any, context: Any, instance: Any) -> None:
        instance.vm_state, instance.task_state = vm_states.ACTIVE, None
        raise error

    monkeypatch.setattr(
        nova_manager.ComputeManager, '_build_and_run_instance', build
    )
    manager: Any = object.__new__(RepeatedDeletes)
    with pytest.raises(type(error)):
        manager._build_and_run_instance(None, server)
    changed = set() if is_deleted else {'vm_state', 'task_state'}
    assert server.obj_what_changed() == changed


class _Server:
    """A server whose object does not show its delete."""

    def __init__(self) -> None:
        self.uuid, self.vm_state = 's1', vm_states.BUILDING
        self.task_state: str | None = 'deleting'
        self.saved: list[Any] = []

    def save(self) -> None:
        self.saved.append((self.vm_state, self.task_state))

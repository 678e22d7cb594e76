# SPDX-License-Identifier: Apache-2.0
"""A save that nova-conductor carried out twice is no error."""

import contextlib
from typing import Any

import amqp.exceptions
import oslo_messaging
import pytest
from nova import context as nova_context
from nova import exception as nova_exception
from nova import objects
from nova.compute import task_states, vm_states
from nova.objects import base as objects_base
from oslo_utils import timeutils

from hashring.clock import Clock
from ironic_compute.gate import LeaseGate
from ironic_compute.paths.path_health import CONDUCTOR, PathHealth
from ironic_compute.paths.traffic import ConductorTraffic
from ironic_compute.worker.gated_writes import GatedConductor
from tests.fakes.clock import ManualClock

_UUID = '0b5d6a4e-5b0b-4ec3-9d0c-0c6a1d3a6c11'


_NO_DATABASE = oslo_messaging.RemoteError('DBConnectionError', 'gone')


class _Conductor(GatedConductor):
    """nova-conductor with one Instance, which refuses each save.

    :param row: the task of the Instance in the database
    :param away_s: seconds from now for which the database is away
    :param away: the error meanwhile
    """

    def __init__(
        self,
        row: str | None,
        timeouts_count: int = 0,
        away_s: float = 0.0,
        away: Exception = _NO_DATABASE,
    ) -> None:
        self._away = away
        clock: Clock = ManualClock()
        self._clock, self._back_s = clock, clock.now_s() + away_s
        self._gate = LeaseGate(clock, clock.now_s() + 600.0)
        self._traffic = ConductorTraffic(PathHealth(clock), clock)
        self.client = self
        self._row = row
        self._timeouts_count = timeouts_count
        self.sent_count = 0

    def prepare(self) -> Any:
        return self

    def call(self, context: Any, method: str, **arguments: Any) -> Any:
        if method == 'object_action':
            self.sent_count += 1
            if self._timeouts_count:
                self._timeouts_count -= 1
                raise oslo_messaging.MessagingTimeout
            if self._clock.now_s() < self._back_s:
                raise self._away
            raise nova_exception.UnexpectedTaskStateError(
                instance_uuid=_UUID, expected={}, actual={}
            )
        return objects.Instance(context, uuid=_UUID, task_state=self._row)


def _save(
    row: str | None,
    monkeypatch: pytest.MonkeyPatch,
    task: str | None = None,
    timeouts_count: int = 0,
    away_s: float = 0.0,
    away: Exception = _NO_DATABASE,
) -> Any:
    """Save a server with another task than it had before."""
    objects.register_all()
    monkeypatch.setattr(
        objects_base.NovaObject,
        'indirection_api',
        _Conductor(row, timeouts_count, away_s, away),
    )
    context = nova_context.get_admin_context()
    instance = objects.Instance(context, uuid=_UUID)
    instance.obj_reset_changes()
    instance.task_state = task
    instance.save(expected_task_state=[task_states.REBOOT_STARTED_HARD])
    return instance


def test_save_that_was_done_before_succeeds(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The Instance has no changes left afterwards."""
    instance = _save(None, monkeypatch)
    assert not instance.obj_get_changes()


@pytest.mark.parametrize(
    'row', [task_states.DELETING, task_states.REBOOTING_HARD]
)
def test_save_that_another_task_refused_fails(
    row: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A delete that the user requested meanwhile is kept."""
    with pytest.raises(nova_exception.UnexpectedTaskStateError):
        _save(row, monkeypatch)


def test_save_without_an_answer_is_sent_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The first one was carried out, so the second one is refused."""
    instance = _save(None, monkeypatch, timeouts_count=2)
    assert not instance.obj_get_changes()


def test_save_that_never_has_an_answer_fails(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It is sent three times at most."""
    with pytest.raises(oslo_messaging.MessagingTimeout):
        _save(None, monkeypatch, timeouts_count=3)


@pytest.mark.parametrize(
    'error',
    [
        'DBConnectionError',
        # MariaDB has too many connections (1040) or is stopping (1053).
        'OperationalError',
        # Of SQLAlchemy: nova-conductor has no connection left.
        'TimeoutError',
        # Galera has refused the commit, or a lock was not had in time.
        'DBDeadlock',
    ],
)
def test_save_waits_for_the_database(
    error: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another of its servers takes over, which may have had the save."""
    away = oslo_messaging.RemoteError(error, 'gone')
    instance = _save(None, monkeypatch, away_s=30.0, away=away)
    assert not instance.obj_get_changes()


@pytest.mark.parametrize(
    'refusal',
    [
        oslo_messaging.MessageDeliveryFailure('(541) vhost is down'),
        amqp.exceptions.InternalError('vhost is down'),
    ],
)
def test_save_waits_for_a_broker_that_refuses_it(
    refusal: Exception, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A broker that has just been started; the build went to ERROR.

    The second error is that of a new connection.
    """
    instance = _save(None, monkeypatch, away_s=30.0, away=refusal)
    assert not instance.obj_get_changes()
    with pytest.raises(oslo_messaging.MessageDeliveryFailure):
        _save(None, monkeypatch, away_s=100.0, away=refusal)


class _WaitsBefore(_Conductor):
    """nova-conductor, whose database is away when a save is sent at last.

    :param lapsed_s: seconds for which the save waits for the lease
    :param silent_s: seconds after which its first answer counts as lost
    """

    def __init__(self, lapsed_s: float, silent_s: float) -> None:
        waited_s = lapsed_s + silent_s
        super().__init__(None, int(silent_s > 0.0), waited_s + 30.0)
        self._lapsed_s, self._silent_s = lapsed_s, silent_s
        self._gate: Any = self

    def wait(self) -> None:
        self._clock.sleep(self._lapsed_s)
        self._lapsed_s = 0.0

    def call(self, context: Any, method: str, **arguments: Any) -> Any:
        try:
            return super().call(context, method, **arguments)
        except oslo_messaging.MessagingTimeout:
            self._clock.sleep(self._silent_s)
            raise


@pytest.mark.parametrize(('lapsed_s', 'silent_s'), [(300.0, 0.0), (0.0, 60.0)])
def test_save_that_has_waited_waits_for_the_database_as_well(
    lapsed_s: float, silent_s: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A controller that fails takes the backend and the database with it."""
    objects.register_all()
    conductor = _WaitsBefore(lapsed_s, silent_s)
    monkeypatch.setattr(objects_base.NovaObject, 'indirection_api', conductor)
    instance = objects.Instance(nova_context.get_admin_context(), uuid=_UUID)
    instance.obj_reset_changes()
    instance.task_state = None
    instance.save(expected_task_state=[task_states.REBOOT_STARTED_HARD])
    assert not instance.obj_get_changes()


def test_save_fails_if_the_database_stays_away(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It is sent again for a minute."""
    with pytest.raises(oslo_messaging.RemoteError):
        _save(None, monkeypatch, away_s=100.0)


def test_save_of_other_fields_fails_while_a_delete_is_requested(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The refused save changes no task, and the database has its changes."""
    objects.register_all()
    monkeypatch.setattr(
        objects_base.NovaObject,
        'indirection_api',
        _Conductor(task_states.DELETING),
    )
    context = nova_context.get_admin_context()
    instance = objects.Instance(context, uuid=_UUID, task_state=None)
    instance.obj_reset_changes()
    with pytest.raises(nova_exception.UnexpectedTaskStateError):
        instance.save(expected_task_state=[None])


@pytest.mark.parametrize(
    ('vm_state', 'task_state', 'is_saved'),
    [
        (vm_states.ACTIVE, task_states.SHELVING, True),
        (vm_states.ACTIVE, task_states.DELETING, False),
        (vm_states.BUILDING, task_states.SPAWNING, False),
    ],
)
def test_end_of_a_build_is_saved_if_the_next_task_was_accepted(
    vm_state: str,
    task_state: str,
    monkeypatch: pytest.MonkeyPatch,
    *,
    is_saved: bool,
) -> None:
    """The user saw the server ACTIVE before the worker had the answer.

    Nova would fail the build, and clear the task that the user requested.
    """

    class HasTask(_Conductor):
        def call(self, context: Any, method: str, **arguments: Any) -> Any:
            found = super().call(context, method, **arguments)
            found.vm_state = vm_state
            return found

    objects.register_all()
    monkeypatch.setattr(
        objects_base.NovaObject, 'indirection_api', HasTask(task_state)
    )
    context = nova_context.get_admin_context()
    instance = objects.Instance(context, uuid=_UUID)
    instance.vm_state, instance.task_state = vm_states.ACTIVE, None
    expected = pytest.raises(nova_exception.UnexpectedTaskStateError)
    with contextlib.nullcontext() if is_saved else expected:
        instance.save(expected_task_state=[task_states.SPAWNING])


@pytest.mark.parametrize(
    ('note', 'is_saved'), [({'b': '2'}, True), ({'a': '1'}, False)]
)
def test_end_of_a_rebuild_that_was_done_before_succeeds(
    note: dict[str, str], monkeypatch: pytest.MonkeyPatch, *, is_saved: bool
) -> None:
    """It removes a note from the system metadata, which Nova reads if asked.

    Another worker may have ended the rebuild, a moment before.
    """

    class HasNote(_Conductor):
        def call(self, context: Any, method: str, **arguments: Any) -> Any:
            found = super().call(context, method, **arguments)
            if 'system_metadata' in arguments['kwargs']['expected_attrs']:
                found.system_metadata = note
            found.launched_at = timeutils.utcnow(with_timezone=True)
            return found

    objects.register_all()
    monkeypatch.setattr(
        objects_base.NovaObject, 'indirection_api', HasNote(None)
    )
    context = nova_context.get_admin_context()
    instance = objects.Instance(context, uuid=_UUID)
    instance.system_metadata = {'b': '2'}
    instance.task_state = None
    instance.launched_at = timeutils.utcnow(with_timezone=True)
    expected = pytest.raises(nova_exception.UnexpectedTaskStateError)
    with contextlib.nullcontext() if is_saved else expected:
        instance.save(expected_task_state=[task_states.REBUILD_SPAWNING])


def test_row_of_a_node_is_sent_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """``ComputeNodes`` decides anew behind the gate before it writes again."""
    objects.register_all()
    conductor = _Conductor(None, timeouts_count=1)
    monkeypatch.setattr(objects_base.NovaObject, 'indirection_api', conductor)
    row = objects.ComputeNode(nova_context.get_admin_context(), host='c1')
    with pytest.raises(oslo_messaging.MessagingTimeout):
        row.save()
    assert conductor.sent_count == 1


class _Silent(GatedConductor):
    """nova-conductor whose first answers are lost."""

    def __init__(self, timeouts_count: int) -> None:
        clock: Clock = ManualClock()
        self._clock = clock
        self._gate = LeaseGate(clock, clock.now_s() + 60.0)
        self.health = PathHealth(clock)
        self._traffic = ConductorTraffic(self.health, clock)
        self.client = self
        self._timeouts_count = timeouts_count
        self.sent_count = 0

    def prepare(self) -> Any:
        return self

    def call(self, context: Any, method: str, **arguments: Any) -> Any:
        self.sent_count += 1
        if self.sent_count <= self._timeouts_count:
            raise oslo_messaging.MessagingTimeout
        return None


@pytest.mark.parametrize(
    ('name', 'method', 'is_sent_again'),
    [
        ('Instance', 'get_by_uuid', True),
        ('VirtualInterface', 'delete_by_instance_uuid', True),
        ('InstanceActionEvent', 'event_finish_with_failure', True),
        ('InstanceActionEvent', 'event_start', True),
        ('VirtualInterface', 'create', False),
        ('ComputeNode', 'get_by_uuid', False),
    ],
)
def test_requests_without_an_answer_are_sent_again_if_that_is_safe(
    name: str, method: str, is_sent_again: bool
) -> None:
    """A restart of RabbitMQ lost the answer, and a delete ended in ERROR."""
    conductor = _Silent(timeouts_count=2)
    if is_sent_again:
        conductor.object_class_action_versions(None, name, method, {}, (), {})
        assert conductor.sent_count == 3
        return
    with pytest.raises(oslo_messaging.MessagingTimeout):
        conductor.object_class_action_versions(None, name, method, {}, (), {})
    assert conductor.sent_count == 1


def test_a_read_that_never_has_an_answer_fails() -> None:
    """It is sent three times at most."""
    conductor = _Silent(timeouts_count=3)
    with pytest.raises(oslo_messaging.MessagingTimeout):
        conductor.object_class_action_versions(
            None, 'Instance', 'get_by_uuid', {}, (), {}
        )
    assert conductor.sent_count == 3


def test_requests_show_whether_the_conductor_is_reached() -> None:
    """Each time-out is noted, and so is an answer."""
    for timeouts_count, fails in ((3, True), (0, False)):
        conductor = _Silent(timeouts_count)
        with contextlib.suppress(oslo_messaging.MessagingTimeout):
            conductor.object_class_action_versions(
                None, 'Instance', 'get_by_uuid', {}, (), {}
            )
        assert list(conductor.health.states()) == [CONDUCTOR]
        assert conductor.health.is_failing(CONDUCTOR) is fails

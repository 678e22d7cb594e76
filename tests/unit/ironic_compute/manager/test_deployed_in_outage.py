# SPDX-License-Identifier: Apache-2.0
"""A server becomes ACTIVE though Nova's database is away after its deploy."""

import contextlib
import types
from collections.abc import Callable, Iterator
from typing import Any

import oslo_messaging
import pytest
from nova import context as nova_context
from nova import exception as nova_exception
from nova import objects
from nova import rpc as nova_rpc
from nova.compute import build_results, task_states, vm_states
from nova.compute import manager as nova_manager
from nova.compute import utils as compute_utils
from nova.objects import base as objects_base

from hashring.clock import Clock
from ironic_compute.gate import LeaseGate
from ironic_compute.manager.deployed_servers import KeepsDeployedServers
from ironic_compute.manager.stale_messages import DropsStaleMessages
from ironic_compute.paths.path_health import PathHealth
from ironic_compute.paths.traffic import ConductorTraffic
from ironic_compute.recovery.in_progress import InProgress
from ironic_compute.worker.gated_writes import GatedConductor
from tests.fakes.clock import ManualClock
from tests.unit.ironic_compute.driver import fake

_NOVA = nova_manager.ComputeManager
_AWAY_S = 300.0


class _Conductor(GatedConductor):
    """nova-conductor with one server, whose database is away for a while.

    :param error: what it answers meanwhile
    """

    def __init__(self, error: Exception, task_state: str | None) -> None:
        clock: Clock = ManualClock()
        self.clock = self._clock = clock
        self._gate = LeaseGate(clock, clock.now_s() + 7200.0)
        self._traffic = ConductorTraffic(PathHealth(clock), clock)
        self.client = self
        self._error, self._back_s = error, 0.0
        self.row: dict[str, Any] = {'task_state': task_state}
        self.rows: list[dict[str, Any]] = []

    def go_away(self) -> None:
        self._back_s = self.clock.now_s() + _AWAY_S

    def prepare(self) -> Any:
        return self

    def call(self, context: Any, method: str, **request: Any) -> Any:
        if self.clock.now_s() < self._back_s:
            self.clock.sleep(1.0)
            raise self._error
        server = request.get('objinst')
        if server is None:
            return None
        if not isinstance(server, objects.Instance):
            return {'obj_what_changed': []}, None
        expected = request['kwargs'].get('expected_task_state')
        if isinstance(expected, str):
            expected = [expected]
        if expected and self.row['task_state'] not in expected:
            raise nova_exception.UnexpectedTaskStateError(
                instance_uuid=server.uuid, expected={}, actual={}
            )
        self.row.update(server.obj_get_changes())
        self.rows.append(dict(self.row))
        return {'obj_what_changed': []}, None


class _Quiet:
    """A notifier that nobody listens to."""

    def is_enabled(self) -> bool:
        return False

    def __getattr__(self, name: str) -> Callable[..., Any]:
        return lambda *_, **__: self


class _Manager(KeepsDeployedServers):
    """Nova's manager, whose driver deploys as the database goes away."""

    def __init__(self, conductor: _Conductor) -> None:
        self.clock, self.host = conductor.clock, 'c1'
        self.reportclient = self.driver = self.rt = self
        self.send_instance_updates = False
        self.capabilities: dict[str, bool] = {}
        self._conductor = conductor

    def get_allocations_for_consumer(self, *_: Any) -> dict[str, Any]:
        return {}

    def instance_claim(self, *_: Any) -> Any:
        return contextlib.nullcontext()

    def spawn(self, *_: Any, **__: Any) -> None:
        self._conductor.go_away()

    def get_info(self, *_: Any, **__: Any) -> Any:
        return types.SimpleNamespace(state=1)


@contextlib.contextmanager
def _resources(
    self: Any, context: Any, server: Any, *_: Any
) -> Iterator[dict[str, Any]]:
    """Save what Nova saves before a deploy."""
    server.task_state = task_states.BLOCK_DEVICE_MAPPING
    server.save()
    yield dict.fromkeys(['block_device_info', 'network_info', 'accel_info'])


def _end(self: Any, context: Any, server: Any, *_: Any) -> None:
    """End a deploy as Nova ends a rebuild and an unshelve."""
    task_state = server.task_state
    self.spawn()
    self._update_instance_after_spawn(server)
    server.save(expected_task_state=[task_state])


@pytest.fixture(
    params=[
        oslo_messaging.RemoteError('DBConnectionError', 'gone'),
        oslo_messaging.MessagingTimeout(),
    ],
    ids=['database', 'conductor'],
)
def begin(
    request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> Callable[..., tuple[_Conductor, Any]]:
    """Return a function that makes a server, and its nova-conductor."""

    def make(task_state: str | None, vm_state: str) -> tuple[_Conductor, Any]:
        conductor = _Conductor(request.param, task_state)
        monkeypatch.setattr(
            objects_base.NovaObject, 'indirection_api', conductor
        )
        for name in ('LEGACY_NOTIFIER', 'NOTIFIER'):
            monkeypatch.setattr(nova_rpc, name, _Quiet())
        server = fake.server(
            task_state=task_state, vm_state=vm_state, trusted_certs=None
        )
        server._context = nova_context.get_admin_context()
        server.obj_reset_changes()
        return conductor, server

    return make


def test_build_that_was_deployed_is_not_undone(
    begin: Callable[..., tuple[_Conductor, Any]],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Nova would free its ports and its allocation, and put it to ERROR."""
    conductor, server = begin(None, vm_states.BUILDING)
    monkeypatch.setattr(_NOVA, '_build_resources', _resources)
    monkeypatch.setattr(
        _NOVA, '_notify_about_instance_usage', lambda *_, **__: None
    )
    image = {'id': 'img', 'properties': {}}
    result = _Manager(conductor)._do_build_and_run_instance(
        server._context, server, image, None, {}, *[None] * 5, 'n1'
    )
    assert result == build_results.ACTIVE
    assert conductor.row['vm_state'] == vm_states.ACTIVE


def test_build_that_was_saved_does_not_fail_at_the_end_of_its_event(
    begin: Callable[..., tuple[_Conductor, Any]],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Nova would delete the allocation of the server, which is ACTIVE."""
    conductor, server = begin(None, vm_states.BUILDING)
    monkeypatch.setattr(_NOVA, '_build_resources', _resources)

    def notify(
        self: Any, context: Any, server: Any, what: str, **_: Any
    ) -> None:
        if what == 'create.end':
            conductor.go_away()

    monkeypatch.setattr(_NOVA, '_notify_about_instance_usage', notify)
    manager = _Manager(conductor)
    monkeypatch.setattr(manager, 'spawn', lambda *_, **__: None)
    image = {'id': 'img', 'properties': {}}
    result = manager._do_build_and_run_instance(
        server._context, server, image, None, {}, *[None] * 5, 'n1'
    )
    assert conductor.row['vm_state'] == vm_states.ACTIVE
    assert result == build_results.ACTIVE


@pytest.mark.parametrize(
    ('name', 'vm_state', 'task_state'),
    [
        (
            '_do_rebuild_instance',
            vm_states.ERROR,
            task_states.REBUILD_SPAWNING,
        ),
        (
            '_unshelve_instance',
            vm_states.SHELVED_OFFLOADED,
            task_states.SPAWNING,
        ),
    ],
)
def test_rebuild_or_unshelve_that_was_deployed_has_not_failed(
    name: str,
    vm_state: str,
    task_state: str,
    begin: Callable[..., tuple[_Conductor, Any]],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Nova would put a rebuilt server to ERROR."""
    conductor, server = begin(task_state, vm_state)
    monkeypatch.setattr(_NOVA, name, _end)
    getattr(_Manager(conductor), name)(server._context, server, None)
    assert conductor.row['vm_state'] == vm_states.ACTIVE
    assert 'save' not in vars(server)


class _Stopping(DropsStaleMessages, _Manager):
    """A manager whose Ironic goes away when a server is rebuilt."""

    def __init__(self, conductor: _Conductor) -> None:
        super().__init__(conductor)
        self.in_progress = InProgress()
        self.image_api = self.notifier = self.share_manager = _Quiet()
        # Nova 33 reads the shares itself.
        self._get_share_info = lambda *_: objects.ShareMappingList(objects=[])

    def rebuild(self, *, instance: Any, **_: Any) -> None:
        """Deploy, as the driver does."""
        instance.task_state = task_states.REBUILD_SPAWNING
        instance.save(expected_task_state=[task_states.REBUILDING])

    def power_off(self, *_: Any) -> None:
        raise nova_exception.InstancePowerOffFailure(reason='no answer')

    def nothing(self, *_: Any, **__: Any) -> dict[str, Any]:
        return {}

    _get_instance_block_device_info = nothing
    _notify_about_instance_usage = nothing


def test_rebuilt_server_is_stopped_later_if_ironic_is_away(
    begin: Callable[..., tuple[_Conductor, Any]],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Nova would put it to ERROR; recovery finds the task of its stop."""
    conductor, server = begin(task_states.REBUILDING, vm_states.STOPPED)
    monkeypatch.setattr(
        compute_utils, 'notify_usage_exists', lambda *_, **__: None
    )
    monkeypatch.setattr(fake.Server, 'get_network_info', lambda _: [])
    monkeypatch.setattr(fake.Server, 'refresh', lambda _: None)
    server.migration_context = None
    _Stopping(conductor)._do_rebuild_instance(
        server._context,
        server,
        'img',
        fake.image(),
        *[None] * 4,
        False,
        *[None] * 9,
    )
    assert conductor.row['vm_state'] == vm_states.ACTIVE
    assert conductor.row['task_state'] == task_states.POWERING_OFF
    # A worker that is killed after its save leaves the stop to recovery.
    ended = [r for r in conductor.rows if r.get('vm_state') == 'active']
    assert ended[0]['task_state'] == task_states.POWERING_OFF

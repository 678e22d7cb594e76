# SPDX-License-Identifier: Apache-2.0
"""The shelving of a server ends, also after an outage or a crash."""

import types
from typing import Any

import oslo_messaging
import pytest
from cinderclient import exceptions as cinder_exceptions
from nova import exception as nova_exception
from nova import objects
from nova.compute import manager as nova_manager
from nova.compute import task_states
from nova.volume import cinder

from ironic_compute import errors
from ironic_compute.manager.shelving import RepeatedShelving
from tests.fakes.clock import ManualClock

_NO_CONDUCTOR = oslo_messaging.MessagingTimeout()
_NO_IRONIC = nova_exception.InstancePowerOffFailure(reason='no answer')
_NO_IRONIC.__cause__ = errors.IronicUnavailable('no answer')

objects.register_all()


@pytest.fixture(autouse=True)
def specs(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """Return the request specs of the servers."""
    found: dict[str, Any] = {}

    def read(context: Any, server: str) -> Any:
        if server not in found:
            raise nova_exception.RequestSpecNotFound(instance_uuid=server)
        if isinstance(found[server], Exception):
            raise found[server]
        return found[server]

    monkeypatch.setattr(objects.RequestSpec, 'get_by_instance_uuid', read)
    return found


class _Shelving(RepeatedShelving):
    """A manager; shelving frees the node and then raises the errors."""

    def __init__(self, answers: list[Exception], *, has_node: bool) -> None:
        self.clock = ManualClock()
        self.done: list[str] = []
        self.has_node = has_node
        self.answers = answers

    def has_active_node(self, instance: Any) -> bool:
        return self.has_node

    def take(self, duration_s: float) -> bool:
        self.clock.advance(duration_s)
        return self.has_node

    def finish_shelving(self, context: Any, instance: Any) -> None:
        self.done.append('finished')
        if self.answers:
            raise self.answers.pop(0)


def _shelve(
    manager: _Shelving,
    monkeypatch: pytest.MonkeyPatch,
    task_state: str | None = task_states.SHELVING,
) -> list[str]:
    def shelve(self: Any, *args: Any) -> None:
        self.done.append('shelved')
        if self.answers:
            self.has_node = isinstance(self.answers[0].__cause__, Exception)
            raise self.answers.pop(0)

    monkeypatch.setattr(
        nova_manager.ComputeManager, '_shelve_offload_instance', shelve
    )
    server = types.SimpleNamespace(
        uuid='s1',
        flavor=types.SimpleNamespace(flavorid='small'),
        task_state=task_state,
        obj_get_changes=dict,
        refresh=lambda: None,
        save=lambda: None,
    )
    manager._shelve_offload_instance(None, server, True)
    return manager.done


def test_server_with_a_node_is_shelved_by_nova(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Nothing is done twice if all services answer."""
    assert _shelve(_Shelving([], has_node=True), monkeypatch) == ['shelved']


def test_redelivered_shelving_of_a_freed_node_is_finished(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The former worker ended after it had freed the node.

    Nova would fail to switch it off, and leave an ACTIVE server without a
    node.
    """
    assert _shelve(_Shelving([], has_node=False), monkeypatch) == ['finished']


def test_shelving_goes_on_when_nova_answers_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The node is free by then, and Nova would leave the server ACTIVE."""
    manager = _Shelving([_NO_CONDUCTOR], has_node=True)
    assert _shelve(manager, monkeypatch) == ['shelved', 'finished']


@pytest.mark.parametrize(
    'error',
    [
        nova_exception.CinderConnectionFailed(reason='refused'),
        cinder_exceptions.ClientException(503, 'no server is available'),
        cinder_exceptions.ClientException(500, 'no database'),
    ],
)
def test_shelving_goes_on_when_cinder_answers_again(
    error: Exception, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every server that can be shelved has a volume, and its node is free."""
    manager = _Shelving([error], has_node=True)
    assert _shelve(manager, monkeypatch) == ['shelved', 'finished']


class _Cinder:
    """Cinder, which cannot delete attachments at first."""

    def __init__(self) -> None:
        self.attachments = {'a1': 'attached'}
        self.failures_count = 2

    def attachment_get_all(self, context: Any, **wanted: str) -> list[Any]:
        assert wanted == {'instance_id': 's1'}
        return self._list_all() if context.project_id == 'owner' else []

    def _list_all(self) -> list[Any]:
        return [
            {'id': 'b1', 'status': 'reserved', 'volume_id': 'v2'},
            *(
                {'id': key, 'status': status, 'volume_id': 'v1'}
                for key, status in self.attachments.items()
            ),
        ]

    def client(self, context: Any, *args: Any, **kwargs: Any) -> Any:
        """Return a client of an administrator; see ``nova.volume.cinder``."""
        assert context.is_admin

        def list_wanted(search_opts: dict[str, str]) -> list[Any]:
            assert search_opts == {'all_tenants': '1', 'instance_id': 's1'}
            return [
                types.SimpleNamespace(to_dict=lambda each=each: each)
                for each in self._list_all()
            ]

        attachments = types.SimpleNamespace(list=list_wanted)
        return types.SimpleNamespace(attachments=attachments)

    def attachment_create(
        self, context: Any, volume: str, server: str
    ) -> dict[str, str]:
        key = f'a{len(self.attachments) + 1}'
        self.attachments[key] = 'reserved'
        return {'id': key}

    def attachment_delete(self, context: Any, key: str) -> None:
        if self.failures_count:
            self.failures_count -= 1
            raise cinder_exceptions.ClientException(500)
        del self.attachments[key]


@pytest.mark.parametrize(
    ('project', 'is_admin'), [('owner', False), ('service', True)]
)
def test_each_try_uses_the_reservation_of_the_first_one(
    project: str, is_admin: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A volume would else have one more attachment after each try.

    Cinder lists it to recovery, which is of another project, only if recovery
    asks for those of all projects.
    """
    manager, saved = _Shelving([], has_node=False), []
    manager.volume_api = fake = _Cinder()
    monkeypatch.setattr(cinder, 'cinderclient', fake.client)
    volume = types.SimpleNamespace(
        is_volume=True, attachment_id='a1', volume_id='v1'
    )
    volume.save = lambda: saved.append(volume.attachment_id)
    server = types.SimpleNamespace(uuid='s1')
    context = types.SimpleNamespace(project_id=project, is_admin=is_admin)
    for _ in range(2):
        with pytest.raises(cinder_exceptions.ClientException):
            manager._terminate_volume_connections(context, server, [volume])
    manager._terminate_volume_connections(context, server, [volume])
    assert (fake.attachments, saved) == ({'a2': 'reserved'}, ['a2'])


def test_shelving_goes_on_when_ironic_answers_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Ironic was away before the node was freed."""
    manager = _Shelving([_NO_IRONIC], has_node=True)
    assert _shelve(manager, monkeypatch) == ['shelved', 'shelved']


def test_shelving_that_fails_in_ironic_ends_after_a_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Ironic answers so to some teardowns that it refuses."""
    failed = nova_exception.InstanceDeployFailure(reason='no power driver')
    failed.__cause__ = errors.IronicUnavailable('no power driver', 500)
    manager = _Shelving([failed] * 1000, has_node=True)
    with pytest.raises(nova_exception.InstanceDeployFailure):
        _shelve(manager, monkeypatch)
    assert manager.clock.now_s() == 1600.0


def test_shelving_that_ironic_refuses_fails(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A refusal is an answer."""
    refused = nova_exception.InstancePowerOffFailure(reason='no')
    with pytest.raises(nova_exception.InstancePowerOffFailure):
        _shelve(_Shelving([refused], has_node=True), monkeypatch)


def test_shelving_that_cinder_refuses_fails(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """So is a status below 500."""
    refused = cinder_exceptions.Forbidden(403)
    with pytest.raises(cinder_exceptions.Forbidden):
        _shelve(_Shelving([refused], has_node=True), monkeypatch)


def test_shelving_that_fails_in_cinder_ends_after_a_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A driver may fail each time, and a delete of the server waits."""
    manager = _Shelving([], has_node=True)
    failed = cinder_exceptions.ClientException(500, 'the driver failed')
    manager.answers = [failed] * 1000
    with pytest.raises(cinder_exceptions.ClientException):
        _shelve(manager, monkeypatch)
    assert manager.clock.now_s() == 1600.0


def test_shelving_goes_on_if_cinder_fails_after_a_long_teardown(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The machine was switched off, and its node freed, in a half hour."""
    manager = _Shelving([], has_node=True)
    manager.answers = [cinder_exceptions.ClientException(500, 'no database')]
    monkeypatch.setattr(
        manager, 'has_active_node', lambda _: manager.take(1800.0)
    )
    assert _shelve(manager, monkeypatch) == ['shelved', 'finished']


def test_shelving_of_a_server_that_is_in_use_again_is_dropped(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Another message has shelved it while this one waited for the lock."""
    manager = _Shelving([], has_node=True)
    assert _shelve(manager, monkeypatch, task_state=None) == []


@pytest.mark.parametrize('has_node', [False, True])
@pytest.mark.parametrize(('flavor', 'count'), [('big', 1), ('small', 0)])
def test_shelved_server_is_scheduled_by_its_own_flavor(
    flavor: str,
    count: int,
    has_node: bool,
    specs: dict[str, Any],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A resize was refused, whose flavor nova-conductor has saved."""
    saved: list[str] = []
    specs['s1'] = types.SimpleNamespace(
        flavor=types.SimpleNamespace(flavorid=flavor),
        save=lambda: saved.append(specs['s1'].flavor.flavorid),
    )
    assert _shelve(_Shelving([], has_node=has_node), monkeypatch)
    assert saved == ['small'] * count


def test_conductor_without_an_api_database_does_not_stop_a_shelving(
    specs: dict[str, Any],
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Its error is that of a conductor without any database."""
    specs['s1'] = oslo_messaging.RemoteError('CantStartEngineError')
    assert _shelve(_Shelving([], has_node=True), monkeypatch) == ['shelved']
    assert 'the flavor in the request spec of server s1' in caplog.text

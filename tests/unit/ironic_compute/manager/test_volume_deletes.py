# SPDX-License-Identifier: Apache-2.0
"""The volumes of a deleted server are freed, also after Cinder was away."""

import types
from typing import Any

import pytest
from cinderclient import exceptions as cinder_exceptions
from nova import exception as nova_exception
from nova.compute import manager as nova_manager

from ironic_compute.manager import volume_deletes
from ironic_compute.manager.deletes import RepeatedDeletes
from tests.fakes.clock import ManualClock

_AWAY = nova_exception.CinderConnectionFailed(reason='refused')
_TOO_MANY = cinder_exceptions.ClientException(429, 'later')
_BROKEN = cinder_exceptions.ClientException(500, 'no database')
_DISKS = [
    types.SimpleNamespace(volume_id='v1', delete_on_termination=True),
    types.SimpleNamespace(volume_id='v2', delete_on_termination=False),
    types.SimpleNamespace(volume_id='v3', delete_on_termination=True),
]


class _Cinder:
    """Cinder, whose first answers are errors."""

    def __init__(self, *failures: Exception) -> None:
        self.failures = list(failures)
        self.done: list[str] = []

    def _request(self, context: Any, what: str) -> None:
        if self.failures:
            raise self.failures.pop(0)
        self.done.append(what)

    attachment_delete = delete = _request


def _manager(cinder: _Cinder) -> Any:
    manager: Any = object.__new__(RepeatedDeletes)
    manager.clock = ManualClock()
    manager.volume_api = cinder
    volume_deletes.repeat_requests(cinder, manager.clock)
    return manager


def _delete(cinder: _Cinder, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Delete a server; Nova ignores all errors of Cinder meanwhile."""

    def delete(self: Any, context: Any, instance: Any, bdms: Any) -> None:
        self._cleanup_volumes(
            context, instance, bdms, raise_exc=False, detach=False
        )

    monkeypatch.setattr(
        nova_manager.ComputeManager, '_delete_instance', delete
    )
    manager = _manager(cinder)
    server = types.SimpleNamespace(uuid='s1')
    manager._delete_instance(None, server, _DISKS)
    return manager


@pytest.mark.parametrize('failure', [_AWAY, _BROKEN, _TOO_MANY])
def test_volumes_are_deleted_when_cinder_answers_again(
    failure: Exception, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nova would leave them behind, and nobody would know whose they are."""
    cinder = _Cinder(failure, failure)
    _delete(cinder, monkeypatch)
    assert cinder.done == ['v1', 'v3']


def test_a_refusal_of_cinder_does_not_keep_the_server(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Its user may have deleted the volume already."""
    cinder = _Cinder(nova_exception.VolumeNotFound(volume_id='v1'))
    _delete(cinder, monkeypatch)
    assert cinder.done == ['v3']


def test_a_request_that_always_fails_is_given_up(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A driver of Cinder may fail so at each delete of a volume."""
    begun_s = ManualClock().now_s()
    manager = _delete(_Cinder(*[_BROKEN] * 200), monkeypatch)
    assert manager.clock.now_s() - begun_s == 1200.0, 'two volumes'


def test_failures_after_an_outage_are_repeated_as_long(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Cinder may fail for a moment when it comes back."""
    cinder = _Cinder(*[_AWAY] * 200, _BROKEN)
    _delete(cinder, monkeypatch)
    assert cinder.done == ['v1', 'v3']


def test_what_else_frees_a_volume_fails_at_once() -> None:
    """A build that fails for Cinder ends, and its user sees why."""
    manager = _manager(cinder := _Cinder(_AWAY))
    with pytest.raises(nova_exception.CinderConnectionFailed):
        manager.volume_api.attachment_delete(None, 'a1')
    assert cinder.done == []

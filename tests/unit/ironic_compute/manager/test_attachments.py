# SPDX-License-Identifier: Apache-2.0
"""A volume is attached or detached when Cinder answers."""

import types
from typing import Any

import oslo_messaging
import pytest
from cinderclient import exceptions as cinder_exceptions
from nova import exception as nova_exception
from nova.compute import manager as nova_manager

from ironic_compute import errors
from ironic_compute.driver.nova_errors import as_nova_errors
from ironic_compute.manager.attachments import WaitingAttachments
from tests.fakes.clock import ManualClock

_AWAY = nova_exception.CinderConnectionFailed(reason='refused')
_SERVER = types.SimpleNamespace(uuid='s1')


class _Cinder:
    """Cinder, whose first answers are errors."""

    def __init__(self, *failures: Exception) -> None:
        self.failures = list(failures)

    def get(self, context: Any, volume: str) -> None:
        """Return a volume."""
        assert volume == 'v1'
        if self.failures:
            raise self.failures.pop(0)


def _manager(monkeypatch: pytest.MonkeyPatch, *failures: Exception) -> Any:
    """Return a manager; Nova's own handlers note when they are called."""
    manager: Any = object.__new__(WaitingAttachments)
    manager.clock = ManualClock()
    manager.volume_api = _Cinder(*failures)
    manager.done = []
    begun_s = manager.clock.now_s()

    def handle(self: Any, context: Any, *request: Any) -> None:
        self.done.append((request, self.clock.now_s() - begun_s))

    for name in (
        'attach_volume',
        'detach_volume',
        'swap_volume',
        'remove_volume_connection',
    ):
        monkeypatch.setattr(nova_manager.ComputeManager, name, handle)
    return manager


def test_volume_is_attached_when_cinder_answers(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Nova would leave the volume reserved for ever."""
    bdm = types.SimpleNamespace(volume_id='v1')
    proxy_error = cinder_exceptions.ClientException(504, 'no server')
    manager = _manager(monkeypatch, _AWAY, proxy_error)
    manager.attach_volume(None, instance=_SERVER, bdm=bdm)
    assert manager.done == [((_SERVER, bdm), 20.0)]


def test_volume_is_not_exported_to_a_controller(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Nova would have Ironic forget the volume from which the node boots."""
    manager = _manager(monkeypatch)
    with pytest.raises(oslo_messaging.ExpectedException) as refused:
        manager.remove_volume_connection(None, 'v1', _SERVER, True)
    assert 'exported to its node' in str(refused.value.exc_info[1])
    assert not manager.done


def test_volume_is_not_replaced_before_cinder_answers(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The refusal frees both volumes in Cinder, or they stay as they are."""
    manager = _manager(monkeypatch, _AWAY)
    manager.swap_volume(
        None,
        old_volume_id='v1',
        new_volume_id='v2',
        instance=_SERVER,
        new_attachment_id='a2',
    )
    assert manager.done == [(('v1', 'v2', _SERVER, 'a2'), 10.0)]


@pytest.mark.parametrize(
    'error',
    [
        nova_exception.VolumeNotFound(volume_id='v1'),
        cinder_exceptions.ClientException(500, 'no driver'),
    ],
)
def test_what_cinder_answers_is_left_to_nova(
    error: Exception, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The message of a detach may come twice, or for a deleted volume."""
    manager = _manager(monkeypatch, _AWAY, error)
    manager.detach_volume(
        None, volume_id='v1', instance=_SERVER, attachment_id='a1'
    )
    assert manager.done == [(('v1', _SERVER, 'a1'), 10.0)]


@pytest.mark.parametrize(
    ('error', 'waited_s'),
    [
        (errors.IronicNotReached('away'), 10.0),
        (errors.IronicRefused('lacks a right'), 0.0),
    ],
)
def test_deleted_port_is_detached_when_ironic_answers(
    error: Exception, waited_s: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The node kept the port, and had no card left for another one."""
    manager: Any = object.__new__(WaitingAttachments)
    manager.clock, failures = ManualClock(), [error]
    begun_s = manager.clock.now_s()
    detached: list[tuple[str, float]] = []

    def read(instance: Any) -> None:
        with as_nova_errors(instance, nova_exception.VirtDriverNotReady):
            if failures:
                raise failures.pop()

    manager.driver = types.SimpleNamespace(instance_exists=read)
    monkeypatch.setattr(
        nova_manager.ComputeManager,
        '_process_instance_vif_deleted_event',
        lambda self, context, server, port: detached.append(
            (port, self.clock.now_s() - begun_s)
        ),
    )
    manager._process_instance_vif_deleted_event(None, _SERVER, 'p1')
    assert detached == [('p1', waited_s)]

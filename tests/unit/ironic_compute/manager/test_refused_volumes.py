# SPDX-License-Identifier: Apache-2.0
"""A refused request for a volume ends in Cinder, although it goes away."""

import types
from collections.abc import Callable
from typing import Any

import oslo_messaging
import pytest
from cinderclient import exceptions as cinder_exceptions
from nova import context as nova_context
from nova import exception as nova_exception
from nova import objects
from nova import rpc as nova_rpc
from nova.objects import base as objects_base
from oslo_utils.fixture import uuidsentinel as uuids

from ironic_compute.manager.attachments import WaitingAttachments
from ironic_compute.manager.rescues import RepeatedRescues
from ironic_compute.manager.unsupported import UnsupportedOperations
from ironic_compute.recovery.in_progress import InProgress
from tests.fakes.clock import ManualClock

objects.register_all()

_AWAY = nova_exception.CinderConnectionFailed(reason='refused')
_FAILED = cinder_exceptions.ClientException(500, 'no database')


class _Quiet:
    """Nova's notifier and nova-conductor, which do nothing."""

    def is_enabled(self) -> bool:
        return False

    def object_action(self, *_: Any) -> Any:
        """Read or save a record."""
        return {'obj_what_changed': []}, None

    def __getattr__(self, name: str) -> Callable[..., Any]:
        return lambda *args, **kwargs: self


class _Cinder:
    """Cinder, whose first requests to free a volume fail."""

    def __init__(self, *failures: Exception) -> None:
        self.volumes = {'v1': 'detaching', 'v2': 'reserved'}
        self.failures = list(failures)

    def get(self, context: Any, volume: str) -> Any:
        """Return a volume."""
        return {'id': volume}

    def roll_detaching(self, context: Any, volume: str) -> None:
        """Set a volume to in-use again."""
        if self.failures:
            raise self.failures.pop()
        self.volumes[volume] = 'in-use'

    def attachment_delete(self, context: Any, attachment: str) -> None:
        """Free the volume of an attachment."""
        if self.failures:
            raise self.failures.pop()
        self.volumes['v2'] = 'available'


class _Manager(WaitingAttachments, UnsupportedOperations, RepeatedRescues):
    """The manager of a server whose volume cannot be detached."""

    def __init__(self, *failures: Exception) -> None:
        self.clock = ManualClock()
        self.in_progress = InProgress()
        self.host = 'c1'
        self.volume_api = _Cinder(*failures)
        self.driver = types.SimpleNamespace(
            why_no_detach=lambda *_: 'the machine is on'
        )


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Return a server; Nova notes its events and faults."""
    quiet = _Quiet()
    monkeypatch.setattr(objects_base.NovaObject, 'indirection_api', quiet)
    monkeypatch.setattr(nova_rpc, 'NOTIFIER', quiet)
    monkeypatch.setattr(nova_rpc, 'LEGACY_NOTIFIER', quiet)
    instance = objects.Instance(
        nova_context.get_admin_context(), uuid=uuids.server, host='c1'
    )
    instance.obj_reset_changes()
    return instance


@pytest.mark.parametrize('error', [_AWAY, _FAILED])
def test_volume_that_is_not_detached_is_in_use_again(
    error: Exception, server: Any
) -> None:
    """It stayed "detaching", and nova-api refuses another detach then."""
    manager = _Manager(error)
    with pytest.raises(oslo_messaging.ExpectedException) as refused:
        manager.detach_volume(
            server._context,
            volume_id='v1',
            instance=server,
            attachment_id='a1',
        )
    assert str(refused.value.exc_info[1]) == 'the machine is on'
    assert manager.volume_api.volumes['v1'] == 'in-use'


@pytest.mark.parametrize('error', [_AWAY, _FAILED])
def test_volumes_that_are_not_swapped_are_free_again(
    error: Exception, server: Any
) -> None:
    """One stayed "detaching", and nobody could use or delete the other."""
    manager = _Manager(error, error)
    with pytest.raises(oslo_messaging.ExpectedException) as refused:
        manager.swap_volume(
            server._context,
            old_volume_id='v1',
            new_volume_id='v2',
            instance=server,
            new_attachment_id='a2',
        )
    assert 'cannot be replaced' in str(refused.value.exc_info[1])
    assert manager.volume_api.volumes == {'v1': 'in-use', 'v2': 'available'}

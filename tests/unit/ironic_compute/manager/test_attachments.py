# SPDX-License-Identifier: Apache-2.0
"""A volume is attached or detached when Cinder answers."""

import contextlib
import types
from typing import Any

import oslo_messaging
import pytest
from cinderclient import exceptions as cinder_exceptions
from keystoneauth1 import exceptions as ksa_exceptions
from neutronclient.common import exceptions as neutron_exceptions
from nova import context as nova_context
from nova import exception as nova_exception
from nova import objects
from nova import rpc as nova_rpc
from nova.compute import manager as nova_manager
from nova.network import neutron
from nova.virt import block_device
from oslo_utils.fixture import uuidsentinel as uuids

from ironic_compute import errors
from ironic_compute.driver.nova_errors import as_nova_errors
from ironic_compute.manager.attachments import WaitingAttachments
from ironic_compute.recovery.in_progress import InProgress
from tests.fakes.clock import ManualClock

objects.register_all()

_AWAY = nova_exception.CinderConnectionFailed(reason='refused')
_SERVER = types.SimpleNamespace(
    uuid='s1',
    info_cache=types.SimpleNamespace(refresh=lambda: None),
    obj_get_changes=dict,
    refresh=lambda: None,
)

_NOVA_ATTACH: Any = nova_manager.ComputeManager.attach_volume
_QUIET = types.SimpleNamespace(is_enabled=lambda: False)


class _Cinder:
    """Cinder, whose first answers are errors."""

    def __init__(self, *failures: Exception) -> None:
        self.failures = list(failures)

    def get(self, context: Any, volume: str) -> None:
        """Return a volume."""
        assert volume == 'v1'
        if self.failures:
            raise self.failures.pop(0)


def _bdm(server: str) -> Any:
    """Return Nova's record of the volume of a server."""
    return objects.BlockDeviceMapping(
        source_type='volume',
        destination_type='volume',
        instance_uuid=server,
        volume_id='v1',
        connection_info='{"serial": "v1"}',
        attachment_id='a1',
        **dict.fromkeys(
            (
                'device_name',
                'boot_index',
                'delete_on_termination',
                'disk_bus',
                'device_type',
                'guest_format',
                'no_device',
                'volume_size',
            )
        ),
    )


def _manager(monkeypatch: pytest.MonkeyPatch, *failures: Exception) -> Any:
    """Return a manager; Nova's own handlers note when they are called."""
    manager: Any = object.__new__(WaitingAttachments)
    manager.clock = ManualClock()
    manager.volume_api = _Cinder(*failures)
    manager.in_progress = InProgress()
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


def test_recovery_continues_a_request_while_a_detach_waits_for_cinder(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A rebuild that Ironic had ended kept its task until Cinder answered."""
    manager, was_free = _manager(monkeypatch, _AWAY), []
    sleep, in_progress = manager.clock.sleep, manager.in_progress

    def look() -> None:
        with in_progress.exclusive('s1') as is_free:
            was_free.append(is_free)

    def detach(self: Any, *_: Any) -> None:
        look()

    def sleep_and_look(seconds: float) -> None:
        sleep(seconds)
        look()

    manager.clock.sleep = sleep_and_look
    monkeypatch.setattr(nova_manager.ComputeManager, 'detach_volume', detach)
    with in_progress.with_message('s1'):
        manager.detach_volume(None, 'v1', _SERVER, 'a1')
        look()
    look()
    # While it waits, while Nova detaches, until the message ends, and after.
    assert was_free == [True, False, False, True]


@pytest.mark.parametrize(
    'error', [_AWAY, cinder_exceptions.ClientException(500, 'no backend')]
)
def test_detach_goes_on_if_cinder_was_away_in_the_middle(
    error: Exception, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The volume stayed "detaching", and nova-api refused another detach."""
    manager = _manager(monkeypatch)
    _detach_after(error, manager, monkeypatch)
    assert manager.done == [(None, 'v1', _SERVER, 'a1')]


def test_detach_goes_on_if_cinder_fails_when_it_comes_back(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The ten minutes of a failing Cinder do not count an outage before."""
    manager = _manager(monkeypatch, *[_AWAY] * 90)
    error = cinder_exceptions.ClientException(500, 'no database')
    _detach_after(error, manager, monkeypatch)
    assert manager.done == [(None, 'v1', _SERVER, 'a1')]


def _detach_after(
    error: Exception, manager: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Detach a volume; Nova's own handler fails the first time."""
    errors_left = [error]

    def detach(self: Any, *args: Any) -> None:
        if errors_left:
            raise errors_left.pop()
        self.done.append(args)

    monkeypatch.setattr(nova_manager.ComputeManager, 'detach_volume', detach)
    manager.detach_volume(
        None, volume_id='v1', instance=_SERVER, attachment_id='a1'
    )


@pytest.mark.parametrize(
    ('found', 'freed'), [(None, ['a1']), ('a2', ['a1']), ('a1', [])]
)
def test_volume_that_is_not_attached_is_freed_when_cinder_answers(
    found: str | None, freed: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """It stayed "reserved": Nova had no record of it, so nobody freed it.

    Nova keeps its record if only the end of the event could not be saved.
    """
    manager, failures = _manager(monkeypatch), [_AWAY, _AWAY]

    def free(context: Any, attachment: str) -> None:
        if failures:
            raise failures.pop()
        manager.done.append(attachment)

    def attach(self: Any, context: Any, instance: Any, bdm: Any) -> None:
        # As Nova does it, before it deletes its record.
        self.volume_api.attachment_delete(context, bdm.attachment_id)

    def read(context: Any, volume: str, server: str) -> Any:
        if found is None:
            raise nova_exception.VolumeBDMNotFound(volume_id=volume)
        return types.SimpleNamespace(attachment_id=found)

    manager.volume_api.attachment_delete = free
    monkeypatch.setattr(nova_manager.ComputeManager, 'attach_volume', attach)
    monkeypatch.setattr(
        objects.BlockDeviceMapping, 'get_by_volume_and_instance', read
    )
    bdm = types.SimpleNamespace(volume_id='v1', attachment_id='a1')
    with pytest.raises(nova_exception.CinderConnectionFailed):
        manager.attach_volume(None, instance=_SERVER, bdm=bdm)
    assert manager.done == freed


def _attach(
    monkeypatch: pytest.MonkeyPatch, recorded: str, listed: list[Any]
) -> list[str]:
    """Attach a volume whose attachment is gone; return destroyed records.

    :param recorded: the attachment that Nova's record names
    :param listed: the attachments that Cinder has
    """
    bdm = _bdm(uuids.server)
    manager, destroyed = _manager(monkeypatch), []
    bdm.destroy = lambda: destroyed.append(bdm.volume_id)
    bdm.save = lambda: None

    def fail(context: Any, attachment: str, *_: Any) -> None:
        raise nova_exception.VolumeAttachmentNotFound(attachment_id=attachment)

    manager.volume_api = types.SimpleNamespace(
        get=lambda *_, **__: {'id': 'v1'},
        check_availability_zone=lambda *_, **__: None,
        attachment_get=fail,
        attachment_get_all=lambda context, instance_id: listed,
        attachment_update=fail,
        attachment_delete=fail,
    )
    manager.host = 'c1'
    manager.driver = types.SimpleNamespace(
        get_volume_connector=lambda instance: {}, capabilities={}
    )
    monkeypatch.setattr(
        objects.BlockDeviceMapping,
        'get_by_volume_and_instance',
        lambda *_: types.SimpleNamespace(
            attachment_id=recorded, volume_id='v1'
        ),
    )
    # Without Nova's notifications, events and faults.
    monkeypatch.setattr(nova_rpc, 'NOTIFIER', _QUIET)
    handler = _NOVA_ATTACH
    while hasattr(handler, '__wrapped__'):
        handler = handler.__wrapped__
    monkeypatch.setattr(nova_manager.ComputeManager, 'attach_volume', handler)
    context = nova_context.RequestContext('user', 'project', is_admin=False)
    server = objects.Instance(context, uuid=uuids.server, host='c1')
    with contextlib.suppress(nova_exception.VolumeAttachmentNotFound):
        manager.attach_volume(context, instance=server, bdm=bdm)
    return destroyed


_RESERVED = {'id': 'a2', 'volume_id': 'v1', 'status': 'reserved'}


@pytest.mark.parametrize('recorded', ['a2', 'a1'])
def test_volume_of_a_server_that_is_shelved_first_keeps_its_record(
    recorded: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It stayed "reserved", and was not attached by the unshelve.

    Shelving has replaced the attachment that the message names, or its worker
    was killed before it had saved that.
    """
    assert _attach(monkeypatch, recorded, [_RESERVED]) == []


@pytest.mark.parametrize('other', [None, 'v2'])
def test_volume_without_any_attachment_is_not_kept(
    other: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An operator has deleted it: nothing would attach the volume later."""
    listed = [{**_RESERVED, 'volume_id': other}] if other else []
    assert _attach(monkeypatch, 'a1', listed) == ['v1']


def test_volume_of_a_server_that_has_moved_leaves_the_node(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Nova asks the driver only if the record names the host of the worker."""
    monkeypatch.setattr(nova_manager.CONF, 'host', 'c2')
    server = objects.Instance(uuid=uuids.server, host='c1')
    server.refresh = lambda: setattr(server, 'host', 'c2')
    bdm = _bdm(uuids.server)
    device = block_device.convert_volume(bdm)
    manager, detached = _manager(monkeypatch), []
    manager.volume_api.attachment_delete = lambda context, attachment: None
    driver = types.SimpleNamespace(
        instance_exists=lambda instance: True,
        detach_volume=lambda *args, **kwargs: detached.append(args[1]),
    )
    monkeypatch.setattr(
        nova_manager.ComputeManager,
        'detach_volume',
        lambda self, context, volume, instance, attachment: device._do_detach(
            context, instance, self.volume_api, driver, attachment, True
        ),
    )
    manager.detach_volume(None, 'v1', server, 'a1')
    assert detached == [{'serial': 'v1'}]


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


def test_port_that_was_deleted_during_the_wait_is_not_saved_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The second event of an outage has the first port, which is detached."""
    saved = ['p1', 'p2', 'p3']

    class Cache(types.SimpleNamespace):
        def refresh(self) -> None:
            self.network_info = [{'id': port} for port in saved]

    def save(*_: Any, nw_info: Any) -> None:
        saved[:] = [vif['id'] for vif in nw_info]

    monkeypatch.setattr(neutron, 'update_instance_cache_with_nw_info', save)
    manager: Any = object.__new__(WaitingAttachments)
    manager.clock, manager.network_api = ManualClock(), None
    manager.driver = types.SimpleNamespace(
        instance_exists=lambda *_: True, detach_interface=lambda *_: None
    )
    caches = [Cache(), Cache()]
    for cache in caches:
        cache.refresh()
    for cache, port in zip(caches, ('p1', 'p2'), strict=True):
        server = types.SimpleNamespace(uuid='s1', info_cache=cache)
        manager._process_instance_vif_deleted_event(None, server, port)
    assert saved == ['p3']


def test_event_that_fails_ends_no_other_event(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Neutron puts the events of two seconds into one message."""
    manager: Any = object.__new__(WaitingAttachments)
    server = types.SimpleNamespace(uuid='s1')
    detached: list[str] = []

    def refresh(*args: Any, refresh_vif_id: str) -> None:
        raise neutron_exceptions.InternalServerError(message=refresh_vif_id)

    manager.network_api = types.SimpleNamespace(get_instance_nw_info=refresh)
    monkeypatch.setattr(
        manager,
        '_process_instance_vif_deleted_event',
        lambda context, server, port: detached.append(port),
        raising=False,
    )
    # Without Nova's notification of an error.
    monkeypatch.setattr(
        nova_manager.ComputeManager,
        'external_instance_event',
        nova_manager.ComputeManager.external_instance_event.__wrapped__,
    )
    events = [
        types.SimpleNamespace(
            name=f'network-{name}', tag=port, instance_uuid='s1', key=port
        )
        for name, port in (
            ('vif-deleted', 'p1'),
            ('changed', 'p2'),
            ('vif-deleted', 'p3'),
            ('changed', 'p4'),
        )
    ]
    context = nova_context.get_admin_context()
    manager.external_instance_event(context, [server], events)
    assert detached == ['p1', 'p3']
    assert [record.getMessage() for record in caplog.records] == [
        f'Could not handle event {port} of server s1' for port in ('p2', 'p4')
    ]


@pytest.mark.parametrize(
    ('at_list', 'at_volume'),
    [
        (ksa_exceptions.ConnectFailure('refused'), None),
        (ksa_exceptions.DiscoveryFailure('no versions'), None),
        (None, _AWAY),
        (None, cinder_exceptions.ClientException(500, 'no database')),
    ],
)
def test_reboot_does_not_need_cinder(
    at_list: Exception | None, at_volume: Exception | None
) -> None:
    """Nova expects only some of these errors, and would end the reboot."""

    def answer(error: Exception | None) -> list[Any]:
        if error is not None:
            raise error
        return []

    manager: Any = object.__new__(WaitingAttachments)
    manager.volume_api = types.SimpleNamespace(
        attachment_get_all=lambda *_: answer(at_list),
        attachment_get=lambda *_: answer(at_volume),
    )
    bdms = objects.BlockDeviceMappingList(objects=[_bdm('s1')])
    manager._delete_dangling_bdms(None, _SERVER, bdms)
    assert len(bdms) == 1

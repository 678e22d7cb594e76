# SPDX-License-Identifier: Apache-2.0
"""No volume that a build makes is lost, also if its worker ends meanwhile."""

import types
from collections.abc import Callable
from typing import Any

import oslo_messaging
import pytest
from nova import context as nova_context
from nova import exception as nova_exception
from nova import objects
from nova.compute import manager as nova_manager
from nova.objects import base as objects_base

from ironic_compute.manager.new_volumes import NamesNewVolumes, name_volumes
from ironic_compute.manager.shelving import RepeatedShelving
from tests.fakes.clock import ManualClock

objects.register_all()

_CONTEXT = nova_context.RequestContext('u', 'owner', is_admin=False)
_SERVER: Any = types.SimpleNamespace(
    uuid='s1', availability_zone='z1', host='h', root_device_name='/dev/sda'
)


class _Killed(BaseException):
    """The worker was killed."""


class _Nova:
    """nova-conductor with the block devices of a server.

    :ivar rows: of the server; None if it was deleted
    :ivar failures: what is raised for the next saves, once each
    """

    def __init__(self, *sources: str) -> None:
        self.failures: list[Exception] = []
        self.rows: list[dict[str, Any]] | None = [
            {
                'id': number,
                'instance_uuid': 's1',
                'source_type': source,
                'destination_type': 'volume',
                'device_name': f'/dev/sd{"abc"[number]}',
                'image_id': 'i1' if source == 'image' else None,
                'snapshot_id': 'sn1' if source == 'snapshot' else None,
                'boot_index': number,
                'volume_size': 1,
                'volume_id': None,
                'volume_type': None,
                'attachment_id': None,
                'connection_info': None,
                'delete_on_termination': True,
                'no_device': False,
                'tag': None,
                'guest_format': None,
                'disk_bus': None,
                'device_type': None,
            }
            for number, source in enumerate(sources)
        ]

    def read(self) -> list[Any]:
        """Return the block devices, as a worker reads them."""
        made = []
        for row in self.rows or ():
            bdm = objects.BlockDeviceMapping(_CONTEXT, **row)
            bdm.obj_reset_changes()
            made.append(bdm)
        return made

    def object_action(
        self, context: Any, bdm: Any, method: str, *args: Any
    ) -> tuple[Any, None]:
        assert method == 'save'
        if self.failures:
            raise self.failures.pop(0)
        if self.rows is None:
            raise nova_exception.BDMNotFound(id=bdm.id)
        self.rows[bdm.id].update(bdm.obj_get_changes())
        return {'obj_what_changed': set()}, None

    def object_class_action_versions(
        self, context: Any, name: str, method: str, *args: Any
    ) -> Any:
        assert (name, method) == (
            'BlockDeviceMappingList',
            'get_by_instance_uuid',
        )
        return objects.BlockDeviceMappingList(objects=self.read())

    def volumes(self) -> list[str | None]:
        assert self.rows is not None
        return [row['volume_id'] for row in self.rows]


class _Cinder:
    """Cinder, which makes a volume while somebody waits for it.

    :ivar statuses: volume -> its status
    :ivar ends: the status of volumes whose creation ends
    :ivar at_sleep: called when Nova waits for a volume
    :ivar zone: of the volumes
    :ivar refused: an attachment that is not deleted
    :ivar reserved: the attachments to no node
    """

    def __init__(self) -> None:
        self.statuses: dict[str, str] = {}
        self.attachments: dict[str, tuple[str, str]] = {}
        self.ends = 'available'
        self.at_sleep: Callable[[], None] = lambda: None
        self.at_attach: Callable[[], None] = lambda: None
        self.zones: set[str] = {'z1'}
        self.is_up = True
        self.refused: str | None = None
        self.reserved: set[str] = set()
        self.made_count = 0

    def create(self, context: Any, size: int, *args: Any, **how: Any) -> Any:
        self.made_count += 1
        name = f'v{self.made_count}'
        self.statuses[name] = 'creating'
        return {'id': name}

    def sleep(self, seconds: float) -> None:
        self.at_sleep()
        for name, status in self.statuses.items():
            if status == 'creating':
                self.statuses[name] = self.ends

    def get(self, context: Any, name: str, **version: Any) -> Any:
        if name not in self.statuses:
            raise nova_exception.VolumeNotFound(volume_id=name)
        return {'id': name, 'status': self.statuses[name]}

    def get_snapshot(self, context: Any, name: str) -> Any:
        return {'id': name}

    def check_availability_zone(
        self, context: Any, volume: Any, instance: Any
    ) -> None:
        if instance.availability_zone not in self.zones:
            raise nova_exception.InvalidVolume(reason='another zone')

    def delete(self, context: Any, name: str) -> None:
        if self.get(context, name)['status'] not in ('available', 'error'):
            raise nova_exception.InvalidInput(reason='it is in use')
        del self.statuses[name]

    def attachment_create(self, context: Any, name: str, server: str) -> Any:
        is_theirs = (name, server) in self.attachments.values()
        if self.statuses[name] != 'available' and not is_theirs:
            raise nova_exception.InvalidInput(reason='it is in use')
        self.statuses[name] = 'reserved'
        key = f'a{len(self.attachments) + 1}'
        self.attachments[key] = name, server
        self.reserved.add(key)
        return {'id': key}

    def attachment_get_all(self, context: Any, instance_id: str) -> Any:
        if not self.is_up:
            self.is_up = True
            raise nova_exception.CinderConnectionFailed(reason='refused')
        return [
            {
                'id': key,
                'volume_id': name,
                'status': 'reserved' if key in self.reserved else 'attached',
            }
            for key, (name, server) in self.attachments.items()
            if server == instance_id
        ]

    def attachment_update(
        self, context: Any, key: str, connector: Any, device: str
    ) -> Any:
        self.at_attach()
        self.reserved.discard(key)
        return {'connection_info': {'data': {}}}

    def attachment_complete(self, context: Any, key: str) -> None:
        self.statuses[self.attachments[key][0]] = 'in-use'

    def attachment_delete(self, context: Any, key: str) -> None:
        if key == self.refused:
            raise nova_exception.InvalidInput(reason='it is in use')
        name, server = self.attachments.pop(key)
        if (name, server) not in self.attachments.values():
            self.statuses[name] = 'available'


class _Manager(NamesNewVolumes, RepeatedShelving):
    """The part of the manager that has to do with volumes."""


class _Room:
    """Workers of one host, Nova and Cinder."""

    def __init__(self, *sources: str) -> None:
        self.nova, self.cinder = _Nova(*sources), _Cinder()

    def start_worker(self) -> Any:
        """Return the manager of a new worker."""
        manager: Any = object.__new__(_Manager)
        manager.clock = ManualClock()
        methods = {
            name: getattr(self.cinder, name)
            for name in dir(_Cinder)
            if not name.startswith('_')
        }
        manager.volume_api = types.SimpleNamespace(**methods)
        name_volumes(manager.volume_api, manager.clock)
        manager.driver = types.SimpleNamespace(
            capabilities={}, get_volume_connector=lambda instance: {}
        )
        manager.host = 'h'
        return manager

    def build(self, bdms: Any = None) -> Any:
        """Prepare the block devices of the server in a new worker."""
        bdms = self.nova.read() if bdms is None else bdms
        self.start_worker()._prep_block_device(_CONTEXT, _SERVER, bdms)

    def build_and_die(self) -> None:
        """Begin to make a volume, in a worker that is killed meanwhile."""

        def die() -> None:
            raise _Killed

        self.cinder.at_sleep = die
        with pytest.raises(_Killed):
            self.build()
        self.cinder.at_sleep = lambda: None

    def delete(self, bdms: Any = None) -> None:
        """Delete the server."""
        bdms = self.nova.read() if bdms is None else bdms
        self.start_worker()._delete_instance(_CONTEXT, _SERVER, bdms)

    def fail(self, bdms: Any) -> None:
        """Do what Nova does when a build has failed at a volume."""
        self.start_worker()._cleanup_volumes(
            _CONTEXT, _SERVER, bdms, raise_exc=False
        )


@pytest.fixture
def make_room(monkeypatch: pytest.MonkeyPatch) -> Callable[..., _Room]:
    """Return a room whose server has block devices from these sources."""

    def make(*sources: str) -> _Room:
        room = _Room(*sources)
        monkeypatch.setattr(
            objects_base.NovaObject, 'indirection_api', room.nova
        )
        monkeypatch.setattr(
            nova_manager,
            'time',
            types.SimpleNamespace(time=lambda: 0, sleep=room.cinder.sleep),
        )
        nova = nova_manager.ComputeManager
        monkeypatch.setattr(nova, '_shutdown_instance', _shut_down)
        monkeypatch.setattr(nova, '_delete_instance', _delete_in_nova)
        monkeypatch.setattr(nova, '_detach_volume', _detach)
        return room

    return make


def _shut_down(
    self: Any, context: Any, instance: Any, bdms: Any, *rest: Any
) -> None:
    """Nova's, without the machine and the ports."""
    for bdm in bdms:
        _detach(self, context, bdm, instance)


def _detach(
    self: Any, context: Any, bdm: Any, instance: Any, **how: Any
) -> None:
    """Nova's, with what the request from before Queens does in Cinder."""
    assert bdm.attachment_id, f'volume {bdm.volume_id} is made "available"'
    self.volume_api.attachment_delete(context, bdm.attachment_id)


def _delete_in_nova(self: Any, context: Any, instance: Any, bdms: Any) -> None:
    """Nova's, without the machine and the ports."""
    self._shutdown_instance(context, instance, bdms)
    self._cleanup_volumes(
        context, instance, bdms, raise_exc=False, detach=False
    )


_SOURCES = ['image', 'snapshot', 'blank']


@pytest.mark.parametrize('source', _SOURCES)
def test_build_whose_worker_was_killed_goes_on_with_its_volume(
    source: str, make_room: Any
) -> None:
    """A second one would be made, and the first one belong to nobody."""
    room = make_room(source)
    room.build_and_die()
    room.build_and_die()
    room.build()
    assert room.cinder.statuses == {'v1': 'in-use'}
    assert room.nova.volumes() == ['v1']
    assert room.nova.rows[0]['attachment_id'] == 'a1'


def test_each_block_device_has_its_own_volume(make_room: Any) -> None:
    """Nova makes those from snapshots first, then those from images."""
    room = make_room('blank', 'image', 'snapshot')
    room.build_and_die()
    assert room.nova.volumes() == [None, None, 'v1']
    room.build()
    assert room.nova.volumes() == ['v3', 'v2', 'v1']
    assert set(room.cinder.statuses.values()) == {'in-use'}


def test_attachment_that_was_not_saved_is_used(make_room: Any) -> None:
    """The worker was killed while Cinder exported the volume."""
    room = make_room('image')

    def die() -> None:
        if len(room.cinder.attachments) == 1:
            # Nova saves what it has at an error, which no kill allows.
            room.nova.failures = [_Killed()]
            raise _Killed

    room.cinder.at_attach = die
    with pytest.raises(_Killed):
        room.build()
    room.cinder.at_attach = lambda: None
    assert room.nova.rows[0]['attachment_id'] is None
    room.build()
    assert room.nova.rows[0]['attachment_id'] == 'a1'
    assert room.cinder.statuses == {'v1': 'in-use'}


@pytest.mark.parametrize('status', ['error', None, 'in-use', 'zone'])
def test_volume_that_cannot_be_used_is_replaced(
    status: str | None, make_room: Any
) -> None:
    """Its user may have deleted it, or have attached it elsewhere."""
    room = make_room('image')
    room.build_and_die()
    left = {'in-use': {'v1': 'in-use'}}.get(status or '', {})
    if status is None:
        del room.cinder.statuses['v1']
    elif status == 'zone':
        room.cinder.sleep(1.0)
        zones = iter([set(), {'z1'}, {'z1'}])
        room.cinder.check_availability_zone = lambda *args, instance: (
            _Cinder.check_availability_zone(
                types.SimpleNamespace(zones=next(zones)),  # type: ignore[arg-type]
                *args,
                instance,
            )
        )
    else:
        room.cinder.statuses['v1'] = status
    room.build()
    assert room.cinder.statuses == {**left, 'v2': 'in-use'}
    assert room.nova.volumes() == ['v2']


def test_volume_that_cinder_never_makes_ends_the_build(make_room: Any) -> None:
    """As in Nova; a second one would not be made either."""
    room = make_room('image')
    room.build_and_die()
    room.cinder.ends = 'creating'
    with pytest.raises(nova_exception.InvalidBDM, match='v1 did not finish'):
        room.build(bdms := room.nova.read())
    room.fail(bdms)
    assert room.cinder.statuses == {'v1': 'creating'}
    room.cinder.ends = 'available'
    room.delete()
    assert room.cinder.statuses == {}


def test_volume_whose_creation_fails_is_not_detached(make_room: Any) -> None:
    """It has no attachment, and Nova has deleted it."""
    room = make_room('image')
    room.cinder.ends = 'error'
    with pytest.raises(nova_exception.InvalidBDM):
        room.build(bdms := room.nova.read())
    room.fail(bdms)
    assert room.cinder.statuses == {}


@pytest.mark.parametrize('is_kept', [False, True])
def test_delete_frees_a_volume_that_is_still_made(
    is_kept: bool, make_room: Any
) -> None:
    """Cinder refuses to delete it before; Nova would only log that."""
    room = make_room('image')
    room.nova.rows[0]['delete_on_termination'] = not is_kept
    room.build_and_die()
    room.delete()
    assert room.cinder.statuses == ({'v1': 'creating'} if is_kept else {})


def test_delete_that_is_older_than_the_attachment_frees_it(
    make_room: Any,
) -> None:
    """nova-api has read the block devices while Cinder made the volume."""
    room = make_room('image')
    read: list[Any] = []
    room.cinder.at_sleep = lambda: read.extend(room.nova.read())
    room.build()
    assert [bdm.volume_id for bdm in read] == ['v1']
    room.cinder.is_up = False
    room.delete(read)
    assert (room.cinder.statuses, room.cinder.attachments) == ({}, {})


def test_delete_that_is_older_than_another_volume_frees_it(
    make_room: Any,
) -> None:
    """nova-api has read the block devices before Cinder has failed."""
    room = make_room('image')
    room.build_and_die()
    read = room.nova.read()
    room.cinder.statuses['v1'] = 'error'
    room.build()
    assert [bdm.volume_id for bdm in read] == ['v1']
    assert room.nova.volumes() == ['v2']
    room.delete(read)
    assert (room.cinder.statuses, room.cinder.attachments) == ({}, {})


def test_delete_that_is_older_than_a_shelving_frees_the_volume(
    make_room: Any,
) -> None:
    """The shelving has put a reservation in the place of the attachment."""
    room = make_room('image')
    room.build()
    read = room.nova.read()
    shelving: Any = object.__new__(RepeatedShelving)
    shelving.volume_api = room.cinder
    shelving._terminate_volume_connections(_CONTEXT, _SERVER, room.nova.read())
    room.delete(read)
    assert not room.cinder.attachments
    assert not room.cinder.statuses


def test_delete_after_half_a_shelving_frees_the_volume(make_room: Any) -> None:
    """The worker was killed between the reservation and its record."""
    room = make_room('image')
    room.build()
    room.cinder.attachment_create(_CONTEXT, 'v1', 's1')
    room.delete()
    assert (room.cinder.statuses, room.cinder.attachments) == ({}, {})


def test_delete_frees_each_attachment_although_cinder_refuses_another(
    make_room: Any,
) -> None:
    """Cinder may lose an attachment, or refuse to delete it."""
    room = make_room('image')
    room.build()
    for _ in range(3):
        room.cinder.attachment_create(_CONTEXT, 'v1', 's1')
    room.cinder.refused = 'a2'
    room.delete()
    assert list(room.cinder.attachments) == ['a2']


def test_delete_frees_no_attachment_of_another_server(make_room: Any) -> None:
    """Several servers may have the same volume."""
    room = make_room('image')
    room.build()
    room.cinder.attachments['a9'] = 'v1', 's2'
    room.delete()
    assert room.cinder.attachments == {'a9': ('v1', 's2')}


def test_volume_is_named_when_nova_answers(make_room: Any) -> None:
    """An error would end the build, and nobody would know the volume."""
    room = make_room('image')
    room.nova.failures = [oslo_messaging.MessagingTimeout()] * 2
    room.build_and_die()
    assert room.nova.volumes() == ['v1']


def test_volume_of_a_server_that_was_deleted_meanwhile_is_deleted(
    make_room: Any,
) -> None:
    """nova-api has deleted the block devices while Cinder was asked."""
    room = make_room('image')
    bdms = room.nova.read()
    room.nova.rows = None
    with pytest.raises(nova_exception.InvalidBDM):
        room.build(bdms)
    room.fail(bdms)
    assert room.cinder.statuses == {}


def test_volumes_that_were_there_before_are_left_to_nova(
    make_room: Any,
) -> None:
    """nova-api has reserved them."""
    room = make_room('volume')
    room.nova.rows[0].update(volume_id='v9', attachment_id='a9')
    room.cinder.statuses['v9'] = 'reserved'
    room.cinder.attachments['a9'] = 'v9', 's1'
    room.build()
    assert room.cinder.statuses == {'v9': 'in-use'}
    assert room.cinder.made_count == 0


def test_volume_leaves_the_node_of_a_build_that_has_failed(
    make_room: Any,
) -> None:
    """Cinder was away when that build had failed, and is back now.

    It exports a volume to a further node without an end of the former export.
    """
    room = make_room('volume', 'volume')
    for row, name in zip(room.nova.rows, ('v1', 'v2'), strict=True):
        room.cinder.statuses[name] = 'available'
        made = room.cinder.attachment_create(_CONTEXT, name, 's1')
        row |= {'volume_id': name, 'attachment_id': made['id']}
    room.build()
    room.cinder.reserved = {'a2'}
    room.build()
    assert set(room.cinder.attachments) == {'a3', 'a2'}
    assert [row['attachment_id'] for row in room.nova.rows] == ['a3', 'a2']
    assert room.cinder.statuses == {'v1': 'in-use', 'v2': 'in-use'}

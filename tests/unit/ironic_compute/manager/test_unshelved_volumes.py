# SPDX-License-Identifier: Apache-2.0
"""A failed unshelve leaves no volume on the node that it had."""

import types
from collections.abc import Callable
from typing import Any

import pytest
from nova import context as nova_context
from nova import exception as nova_exception
from nova import objects
from nova.compute import manager as nova_manager
from nova.compute import task_states, vm_states
from nova.objects import base as objects_base

from ironic_compute.delivery import Delivery
from ironic_compute.manager.failed_unshelves import FreesFailedUnshelves
from ironic_compute.manager.shelving import RepeatedShelving
from resource_tracker.node import NodeId
from tests.fakes.clock import ManualClock

objects.register_all()

_CONTEXT = nova_context.RequestContext('u', 'owner', is_admin=False)
_AWAY = nova_exception.CinderConnectionFailed(reason='refused')
_SERVER: Any = types.SimpleNamespace(
    uuid='s1',
    availability_zone='z1',
    host=None,
    root_device_name='/dev/sda',
    vm_state=vm_states.SHELVED_OFFLOADED,
    key_data=None,
    auto_disk_config=False,
)


class _Cinder:
    """Cinder with the volumes of a shelved server.

    :ivar attachments: those of each volume, with the node of each
    :ivar failures: names of requests in their order, and what is raised for
        each; None: nothing
    :ivar refused: a volume that is not reserved
    """

    def __init__(self, *volumes: str) -> None:
        self.attachments = {
            f'a{each}': {'volume_id': each, 'status': 'reserved', 'node': None}
            for each in volumes
        }
        self.failures: list[tuple[str, Exception | None]] = []
        self.refused: str | None = None

    def _arrive(self, name: str) -> None:
        if self.failures and self.failures[0][0] == name:
            failure = self.failures.pop(0)[1]
            if failure is not None:
                raise failure

    def get(self, context: Any, volume: str, **version: Any) -> Any:
        return {'id': volume, 'status': 'reserved'}

    def check_availability_zone(self, *args: Any, **how: Any) -> None:
        pass

    def attachment_get_all(self, context: Any, instance_id: str) -> Any:
        self._arrive('list')
        return [{'id': key, **each} for key, each in self.attachments.items()]

    def attachment_create(self, context: Any, volume: str, server: str) -> Any:
        self._arrive('create')
        if volume == self.refused:
            raise nova_exception.InvalidInput(reason='it is in use')
        key = f'new-{volume}'
        self.attachments[key] = {
            'volume_id': volume,
            'status': 'reserved',
            'node': None,
        }
        return {'id': key}

    def attachment_update(
        self, context: Any, key: str, connector: Any, device: str
    ) -> Any:
        self._arrive('update')
        if key not in self.attachments:
            raise nova_exception.VolumeAttachmentNotFound(attachment_id=key)
        self.attachments[key] |= {'status': 'attaching', **connector}
        return {'connection_info': {'data': {}}}

    def attachment_complete(self, context: Any, key: str) -> None:
        self._arrive('complete')
        self.attachments[key]['status'] = 'attached'

    def attachment_delete(self, context: Any, key: str) -> None:
        self._arrive('delete')
        self.attachments.pop(key, None)

    def nodes(self) -> dict[Any, Any]:
        """Return the node of each volume."""
        return {e['volume_id']: e['node'] for e in self.attachments.values()}


class _Nova:
    """nova-conductor with the block devices of the server."""

    def __init__(self, *volumes: str) -> None:
        self.rows: list[dict[str, Any]] = [
            {
                'id': number,
                'instance_uuid': 's1',
                'source_type': 'volume',
                'destination_type': 'volume',
                'device_name': f'/dev/sd{"abc"[number]}',
                'image_id': None,
                'snapshot_id': None,
                'boot_index': number,
                'volume_size': 1,
                'volume_id': volume,
                'volume_type': None,
                'attachment_id': f'a{volume}',
                'connection_info': '{}',
                'delete_on_termination': False,
                'no_device': False,
                'tag': None,
                'guest_format': None,
                'disk_bus': None,
                'device_type': None,
            }
            for number, volume in enumerate(volumes)
        ]

    def read(self) -> Any:
        made = [objects.BlockDeviceMapping(_CONTEXT, **r) for r in self.rows]
        for bdm in made:
            bdm.obj_reset_changes()
        return objects.BlockDeviceMappingList(objects=made)

    def object_action(
        self, context: Any, bdm: Any, method: str, *args: Any
    ) -> tuple[Any, None]:
        assert method == 'save'
        self.rows[bdm.id].update(bdm.obj_get_changes())
        return {'obj_what_changed': set()}, None

    def object_class_action_versions(self, *args: Any) -> Any:
        return self.read()


class _Manager(RepeatedShelving, FreesFailedUnshelves):
    """The manager of host c1, with a server that is unshelved on n1."""

    def __init__(self, *volumes: str) -> None:
        self.host: Any = 'c1'
        self.clock = ManualClock()
        self.nova, self.cinder = _Nova(*volumes), _Cinder(*volumes)
        self.volume_api: Any = self.cinder
        self.driver: Any = types.SimpleNamespace(
            capabilities={},
            get_volume_connector=lambda instance: {'node': 'n1'},
        )
        self.freed: list[dict[Any, Any]] = []
        self.reportclient: Any = types.SimpleNamespace(
            delete_allocation_for_instance=lambda *args, force: (
                self.freed.append(self.cinder.nodes())
            )
        )
        self.allocated = ['n1']
        self.record = {
            'vm_state': vm_states.SHELVED_OFFLOADED,
            'task_state': task_states.SPAWNING,
            'host': None,
        }

    def list_allocated_nodes(self, context: Any, server: str) -> list[NodeId]:
        return [NodeId(each) for each in self.allocated]

    def release_node(self, node: str | None, server: str) -> None:
        pass

    def attachments(self) -> list[str]:
        """Return the attachments that Nova's records name."""
        return [row['attachment_id'] for row in self.nova.rows]

    def unshelve(self) -> None:
        with Delivery(lambda: None, False).handled():
            self._unshelve_instance(_CONTEXT, _SERVER, None, {}, 'n1')


@pytest.fixture
def make_manager(monkeypatch: pytest.MonkeyPatch) -> Callable[..., _Manager]:
    """Return a manager; Nova's unshelve only attaches the volumes."""

    def make(*volumes: str) -> _Manager:
        manager = _Manager(*volumes)
        monkeypatch.setattr(
            objects_base.NovaObject, 'indirection_api', manager.nova
        )
        monkeypatch.setattr(
            objects.Instance,
            'get_by_uuid',
            lambda context, server: types.SimpleNamespace(**manager.record),
        )
        monkeypatch.setattr(
            nova_manager.ComputeManager,
            '_unshelve_instance',
            lambda self, context, instance, *rest: self._prep_block_device(
                context, instance, manager.nova.read()
            ),
        )
        return manager

    return make


def test_volume_leaves_the_node_if_the_next_one_fails(
    make_manager: Any,
) -> None:
    """The node goes to another server, which could read the volume."""
    manager = make_manager('v1', 'v2')
    refusal = nova_exception.InvalidInput(reason='not now')
    manager.cinder.failures = [('complete', None), ('update', refusal)]
    with pytest.raises(nova_exception.InvalidBDM):
        manager.unshelve()
    assert manager.freed == [{'v1': None, 'v2': None}]
    assert manager.attachments() == ['new-v1', 'av2']


def test_server_can_be_unshelved_after_cinder_was_away_at_the_end(
    make_manager: Any,
) -> None:
    """Nova has deleted the attachment that its record of the volume names."""
    manager = make_manager('v1')
    manager.cinder.failures = [
        ('complete', _AWAY),
        ('delete', None),
        ('list', _AWAY),
        ('create', _AWAY),
        ('create', None),
        ('delete', _AWAY),
    ]
    with pytest.raises(nova_exception.InvalidBDM):
        manager.unshelve()
    manager.unshelve()
    assert manager.cinder.nodes() == {'v1': 'n1'}
    assert manager.attachments() == ['new-v1']


def test_volume_that_cinder_does_not_reserve_keeps_no_other(
    make_manager: Any,
) -> None:
    """Its user may have attached it to another server."""
    manager = make_manager('v1', 'v2')
    manager.cinder.refused = 'v1'
    manager.cinder.failures = [('complete', None), ('complete', _AWAY)]
    with pytest.raises(nova_exception.InvalidBDM):
        manager.unshelve()
    assert manager.freed == [{'v1': 'n1', 'v2': None}]


@pytest.mark.parametrize(
    ('record', 'allocated'),
    [
        ({'host': 'c2'}, ['n1']),
        ({'vm_state': vm_states.ACTIVE}, ['n2']),
        ({'task_state': task_states.DELETING}, []),
        ({}, ['n2']),
    ],
)
def test_volumes_of_a_newer_request_stay_attached(
    record: Any, allocated: Any, make_manager: Any
) -> None:
    """The message that has failed was an older one."""
    manager = make_manager('v1', 'v2')
    manager.record |= record
    manager.allocated = allocated
    refusal = nova_exception.InvalidInput(reason='not now')
    manager.cinder.failures = [('complete', None), ('update', refusal)]
    with pytest.raises(nova_exception.InvalidBDM):
        manager.unshelve()
    assert manager.attachments() == ['av1', 'av2']

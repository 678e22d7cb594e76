# SPDX-License-Identifier: Apache-2.0
"""Rebuild of servers."""

import pytest
from nova import exception as nova_exception
from nova import objects

from . import fake


class _Server(objects.Instance):
    """A server whose record is not saved."""

    def save(self, *args, **kwargs):
        self.obj_reset_changes()


def _rebuild(bench, is_volume):
    server = fake.server(task_state='rebuilding')
    server.__class__ = _Server
    root = objects.BlockDeviceMapping(
        boot_index=0,
        destination_type='volume' if is_volume else 'local',
        source_type='image',
    )
    bench.driver.rebuild(
        None,
        server,
        fake.image(),
        None,
        None,
        {},
        objects.BlockDeviceMappingList(objects=[root]),
        None,
        None,
        network_info=fake.network(),
        preserve_ephemeral=True,
        reimage_boot_volume=True,
    )
    return server


def test_bug_2127017_image_is_written_anew_at_any_version():
    """``reimage_boot_volume`` is ignored for a server without root volume."""
    bench = fake.bench(instance_uuid=fake.SERVER, provision_state='active')
    server = _rebuild(bench, is_volume=False)
    assert bench.ironic.names() == ['patch', 'rebuild']
    assert bench.ironic.infos[fake.NODE]['preserve_ephemeral'] == 'True'
    assert server.task_state == 'rebuild_spawning'


def test_volume_backed_server_is_refused_untouched():
    """The rebuild of a server with a root volume sends nothing to Ironic."""
    bench = fake.bench(instance_uuid=fake.SERVER, provision_state='active')
    with pytest.raises(nova_exception.NovaException, match='volume'):
        _rebuild(bench, is_volume=True)
    assert not bench.ironic.calls


def test_failed_rebuild_keeps_the_node():
    """A failed rebuild raises Ironic's error; the node keeps its server."""
    bench = fake.bench(instance_uuid=fake.SERVER, provision_state='active')
    bench.ironic.fails['active'] = 'deploy failed'
    with pytest.raises(nova_exception.InstanceDeployFailure, match='broken'):
        _rebuild(bench, is_volume=False)
    assert bench.ironic.nodes[fake.NODE].instance_uuid == fake.SERVER


def test_rebuild_spawning_is_saved_just_before_the_request(monkeypatch):
    """The task state REBUILD_SPAWNING is saved after all other preparation.

    A rebuild that was interrupted before has not requested a deploy.
    """
    bench = fake.bench(instance_uuid=fake.SERVER, provision_state='active')
    saved = []
    monkeypatch.setattr(
        _Server, 'save', lambda *a, **k: saved.append(bench.ironic.names())
    )
    _rebuild(bench, is_volume=False)
    assert saved == [['patch']]

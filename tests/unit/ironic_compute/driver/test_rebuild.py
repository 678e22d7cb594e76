# SPDX-License-Identifier: Apache-2.0
"""Rebuild of servers."""

import pytest
from nova import exception as nova_exception

from . import fake


def _rebuild(bench, destination='local'):
    server = fake.unsaved_server(task_state='rebuilding')
    bench.rebuild(
        server, destination, preserve_ephemeral=True, reimage_boot_volume=True
    )
    return server


def test_bug_2127017_image_is_written_anew_at_any_version():
    """``reimage_boot_volume`` is ignored for a server without root volume."""
    bench = fake.bench_with_server()
    server = _rebuild(bench)
    assert bench.ironic.names() == ['patch', 'rebuild']
    assert bench.ironic.infos[fake.NODE]['preserve_ephemeral'] == 'True'
    assert server.task_state == 'rebuild_spawning'


def test_traits_of_the_former_image_are_removed():
    """A rebuild with an image without traits leaves the flavor's traits.

    Ironic refuses a deploy with a trait that the node does not have, and
    chooses deploy templates by these traits.
    """
    bench = fake.bench_with_server()
    for traits in (['CUSTOM_OLD', 'CUSTOM_FAST'], ['CUSTOM_OLD']):
        bench.ironic.infos[fake.NODE]['traits'] = traits
        _rebuild(bench)
        assert bench.ironic.infos[fake.NODE]['traits'] == ['CUSTOM_FAST']
    bench.ironic.infos[fake.NODE]['traits'] = ['CUSTOM_OLD']
    server = fake.unsaved_server(task_state='rebuilding')
    server.flavor.extra_specs = {}
    bench.rebuild(server)
    assert bench.ironic.infos[fake.NODE]['traits'] == []


def test_volume_backed_server_is_refused_untouched():
    """The rebuild of a server with a root volume sends nothing to Ironic."""
    bench = fake.bench_with_server()
    with pytest.raises(nova_exception.NovaException, match='volume'):
        _rebuild(bench, 'volume')
    assert not bench.ironic.calls


def test_failed_rebuild_keeps_the_node():
    """A failed rebuild raises Ironic's error; the node keeps its server."""
    bench = fake.bench_with_server()
    bench.ironic.fails['active'] = 'deploy failed'
    with pytest.raises(nova_exception.InstanceDeployFailure, match='broken'):
        _rebuild(bench)
    assert bench.ironic.nodes[fake.NODE].instance_uuid == fake.SERVER


def test_rebuild_spawning_is_saved_just_before_the_request(monkeypatch):
    """The task state REBUILD_SPAWNING is saved after all other preparation.

    A rebuild that was interrupted before has not requested a deploy.
    """
    bench = fake.bench_with_server()
    saved = []
    monkeypatch.setattr(
        fake.UnsavedServer,
        'save',
        lambda *a, **k: saved.append(bench.ironic.names()),
    )
    _rebuild(bench)
    assert saved == [['patch']]

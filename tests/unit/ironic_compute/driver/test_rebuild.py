# SPDX-License-Identifier: Apache-2.0
"""Rebuild of servers."""

import pytest
from nova import exception as nova_exception

from ironic_compute import errors
from ironic_compute.nodes import records

from . import fake


def _rebuild(bench, destination='local'):
    server = fake.unsaved_server(task_state='rebuilding')
    bench.rebuild(
        server, destination, preserve_ephemeral=True, reimage_boot_volume=True
    )
    return server


def _refusal(reason):
    """Expect the error after which Nova restores the server's state."""
    return pytest.raises(nova_exception.InstanceFaultRollback, match=reason)


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


def test_type_of_the_former_image_is_removed():
    """Ironic then finds out whether the new image has a partition table.

    Ironic 39 takes a type that is written on the node for the image's own.
    """
    bench = fake.bench_with_server()
    bench.ironic.infos[fake.NODE]['image_type'] = 'whole-disk'
    _rebuild(bench)
    assert bench.ironic.infos[fake.NODE]['image_type'] is None


def test_build_leaves_the_type_of_its_image_to_ironic():
    """A node that is not deployed has none."""
    bench = fake.bench()
    bench.spawn(fake.server())
    assert 'image_type' not in bench.ironic.infos[fake.NODE]


def test_volume_backed_server_is_refused_untouched():
    """The rebuild of a server with a root volume sends nothing to Ironic."""
    bench = fake.bench_with_server()
    with _refusal('volume'):
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


def test_time_of_the_former_deploy_is_saved_with_rebuild_spawning(
    monkeypatch,
):
    """Recovery compares it with the time after the rebuild."""
    bench = fake.bench_with_server()
    bench.ironic.changed_at[fake.NODE] = '2026-11-02T07:04:00+00:00'
    saved = []
    monkeypatch.setattr(
        fake.UnsavedServer,
        'save',
        lambda self, **k: saved.append(records.before_rebuild(self)),
    )
    server = _rebuild(bench)
    assert saved == ['2026-11-02T07:04:00+00:00']
    assert records.before_rebuild(server) is None


def _refuse_request(bench):
    bench.ironic.refused['rebuild'] = 'the node is in maintenance'


def _refuse_patch(bench):
    bench.ironic.refused['patch'] = 'the node is in maintenance'


def _find_invalid(bench):
    bench.ironic.invalid['deploy'] = 'it is in maintenance'


@pytest.mark.parametrize(
    'refuse', [_refuse_request, _refuse_patch, _find_invalid]
)
def test_refused_rebuild_leaves_the_node_as_it_was(refuse):
    """Nova learns that the disk is untouched; instance_info is restored."""
    bench = fake.bench_with_server()
    info = {
        'image_source': 'former',
        'traits': ['CUSTOM_OLD'],
        'display_name': 'one',
        'image_url': '******',
    }
    bench.ironic.infos[fake.NODE] = dict(info)
    refuse(bench)
    with _refusal('in maintenance') as refused:
        _rebuild(bench)
    assert isinstance(
        refused.value.inner_exception, nova_exception.InstanceDeployFailure
    )
    assert bench.ironic.infos[fake.NODE] == info
    assert bench.ironic.nodes[fake.NODE].provision_state == 'active'


def test_rebuild_of_a_node_that_stays_locked_is_refused():
    """Ironic has answered each request, and has begun none."""
    bench = fake.bench_with_server()
    bench.ironic.locked_count = 10_000
    with _refusal('locked'):
        _rebuild(bench)


def test_rebuild_without_an_answer_is_not_refused():
    """Ironic may begin it later: the disk may be lost."""
    bench = fake.bench_with_server()

    def lose(node, target, **arguments):
        raise errors.IronicUnavailable('no answer')

    bench.ironic.set_provision_state = lose
    with pytest.raises(nova_exception.InstanceDeployFailure, match='answer'):
        _rebuild(bench)


def test_rebuild_without_an_answer_that_ironic_has_ended_is_not_refused():
    """It is not requested again, and Ironic's own error is raised."""
    bench = fake.bench_with_server()
    request, answers = bench.ironic.set_provision_state, []

    def lose(node, target, **arguments):
        answers.append(node)
        request(node, target, **arguments)
        bench.ironic.settle(node)
        raise errors.IronicUnavailable('no answer')

    bench.ironic.set_provision_state = lose
    bench.ironic.fails['active'] = 'deploy failed'
    with pytest.raises(nova_exception.InstanceDeployFailure, match='broken'):
        _rebuild(bench)
    assert len(answers) == 1


def test_rebuild_that_was_refused_after_it_had_begun_is_no_refusal():
    """The first answer was lost, and the second request was refused.

    So was the read after it.
    """
    bench = fake.bench_with_server()
    read, answers = bench.ironic.read_fields, []

    def answer(node, target, **arguments):
        answers.append(node)
        if len(answers) == 1:
            raise errors.IronicUnavailable('no answer')
        bench.ironic.change(node, provision_state='deploy failed')
        bench.ironic.read_fields = refuse_once
        raise errors.IronicRefused('no more room')

    def refuse_once(node, fields):
        bench.ironic.read_fields = read
        raise errors.IronicRefused('no more room')

    bench.ironic.set_provision_state = answer
    with pytest.raises(nova_exception.InstanceDeployFailure, match='room'):
        _rebuild(bench)


def test_rebuild_that_ironic_refuses_is_not_taken_for_one_that_was_begun():
    """An operator ends a service of the node meanwhile.

    The server would be ACTIVE with the new image, but the former disk.
    """
    bench = fake.bench_with_server()
    bench.ironic.changed_at[fake.NODE] = '2026-11-02T07:04:00+00:00'

    def refuse(node, target, **arguments):
        bench.ironic.changed_at[node] = '2026-11-02T07:05:00+00:00'
        raise errors.IronicRefused('no more room')

    bench.ironic.set_provision_state = refuse
    with pytest.raises(nova_exception.InstanceDeployFailure, match='room'):
        _rebuild(bench)


@pytest.mark.parametrize(
    'last', [errors.NodeLocked, errors.IronicNotReached, errors.NoConductor]
)
def test_rebuild_whose_first_answer_was_lost_is_not_refused(last):
    """Ironic may begin it later, whatever it answers to the next requests.

    The server was ACTIVE with its former image, and Ironic wrote the new one.
    """
    bench = fake.bench_with_server()
    answers = [errors.IronicUnavailable('no answer')]

    def answer(node, target, **arguments):
        raise answers.pop() if answers else last('not yet')

    bench.ironic.set_provision_state = answer
    with pytest.raises(nova_exception.InstanceDeployFailure, match='not yet'):
        _rebuild(bench)

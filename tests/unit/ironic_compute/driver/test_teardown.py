# SPDX-License-Identifier: Apache-2.0
"""Teardown of servers: removal from their nodes, with locks and errors."""

import logging

import pytest
from ironicclient.common.apiclient import exceptions as api_exc
from nova import exception as nova_exception
from oslo_utils import timeutils

from ironic_compute import errors
from ironic_compute.ironic_api.session import translate_error
from ironic_compute.retry import retry

from . import fake, timed

_LAUNCHED = timeutils.utcnow(with_timezone=True)


def _warnings(caplog):
    """Return the messages of warnings and errors."""
    return [
        record.getMessage()
        for record in caplog.records
        if record.levelno >= logging.WARNING
    ]


def test_destroy_of_nothing_succeeds():
    """The destroy of a server that no node has succeeds, without a change."""
    bench = fake.bench(instance_uuid=fake.OTHER, provision_state='active')
    bench.driver.destroy(None, fake.server(), None)
    assert not bench.ironic.calls


def test_destroy_twice_succeeds():
    """A second destroy succeeds and sends no second request."""
    bench = fake.bench(instance_uuid=fake.SERVER, provision_state='active')
    bench.driver.destroy(None, fake.server(), None)
    bench.driver.destroy(None, fake.server(), None)
    assert bench.ironic.names() == ['deleted']


def test_destroy_waits_for_a_locked_node():
    """A lock that is released delays the destroy, which then succeeds."""
    bench = fake.bench(instance_uuid=fake.SERVER, provision_state='active')
    bench.ironic.locked_count = 3
    bench.driver.destroy(None, fake.server(), None)
    assert bench.ironic.nodes[fake.NODE].instance_uuid is None


def test_destroy_waits_for_a_conductor_of_the_node():
    """Ironic answers 404 meanwhile, and its machine still runs."""
    bench = fake.bench(instance_uuid=fake.SERVER, provision_state='active')
    send = bench.ironic.set_provision_state
    answers = [api_exc.NotFound('No valid host was found. Reason: …')] * 3

    def answer(*args, **kwargs):
        if answers:
            raise translate_error('set a node to deleted', answers.pop())
        send(*args, **kwargs)

    bench.ironic.set_provision_state = answer
    bench.driver.destroy(None, fake.server(), None)
    assert bench.ironic.nodes[fake.NODE].instance_uuid is None


def test_node_locked_for_good_fails_the_destroy():
    """A lock that stays fails the destroy after half an hour."""
    bench = fake.bench(instance_uuid=fake.SERVER, provision_state='active')
    bench.ironic.locked_count = 10_000
    started_s = bench.clock.now_s()
    with pytest.raises(nova_exception.NovaException, match='locked'):
        bench.driver.destroy(None, fake.server(), None)
    assert 1800.0 <= bench.clock.now_s() - started_s < 2400.0


@pytest.mark.parametrize('state', ['active', 'deploy failed'])
def test_destroy_waits_for_a_node_that_is_locked_for_minutes(state):
    """A deploy has failed because the BMC died, which Ironic goes on calling.

    The node was not freed, so the server was in ERROR, and no other node was
    tried.
    """
    bench = fake.bench(instance_uuid=fake.SERVER, provision_state=state)
    send, free_s = bench.ironic.set_provision_state, bench.clock.now_s() + 600

    def answer(*args, **kwargs):
        if bench.clock.now_s() < free_s:
            raise errors.NodeLocked('node is locked by host x')
        send(*args, **kwargs)

    bench.ironic.set_provision_state = answer
    bench.driver.destroy(None, fake.server(), None)
    assert bench.ironic.nodes[fake.NODE].instance_uuid is None


def test_lock_after_a_long_deploy_is_waited_for():
    """The half-hour counted from the delete; most of it went to the deploy."""
    bench = timed.bench(instance_uuid=fake.SERVER, provision_state='deploying')
    ironic = bench.ironic
    ironic.change_after(1700.0, provision_state='deploy failed')
    ironic.change_after(2500.0, reservation=None)
    bench.driver.destroy(None, fake.server(), None)
    assert ironic.nodes[fake.NODE].instance_uuid is None


def test_failed_teardown_raises_the_error_of_ironic():
    """The user reads Ironic's error if the teardown fails."""
    bench = fake.bench(instance_uuid=fake.SERVER, provision_state='active')
    bench.ironic.fails['cleaning'] = 'error'
    with pytest.raises(nova_exception.NovaException, match='it is broken'):
        bench.driver.destroy(None, fake.server(), None)


def test_machine_that_ironic_could_not_tear_down_is_named(caplog):
    """Ironic removes the server's uuid all the same, so the delete succeeds.

    Without the warning nobody would look at the node.
    """
    bench = fake.bench(instance_uuid=fake.SERVER, provision_state='active')
    ironic = bench.ironic

    def fail(node, target, **_):
        ironic.change(
            node,
            provision_state='error',
            instance_uuid=None,
            last_error='no power',
        )

    ironic.set_provision_state = fail
    bench.driver.destroy(None, fake.server(), None)
    (line,) = _warnings(caplog)
    assert 'may still run: no power' in line
    assert fake.NODE in line


def test_uuid_that_ironic_removes_after_the_error_is_waited_for(caplog):
    """Ironic shows "error", unbinds the networks, and then removes the uuid.

    The delete failed, and its repetition found no node and said nothing.
    """
    bench = timed.bench(instance_uuid=fake.SERVER, provision_state='active')
    ironic = bench.ironic

    def fail(node, target, **_):
        ironic.change(
            node,
            provision_state='error',
            reservation='conductor',
            last_error='no power',
        )
        ironic.change_after(15.0, instance_uuid=None, reservation=None)

    ironic.set_provision_state = fail
    begun_s = bench.clock.now_s()
    bench.driver.destroy(None, fake.server(), None)
    assert bench.clock.now_s() - begun_s < 60.0
    (line,) = _warnings(caplog)
    assert 'may still run: no power' in line


def test_free_node_of_leaves_the_node_of_another_server():
    """A node with the uuid of another server is not changed."""
    bench = fake.bench(instance_uuid=fake.OTHER)
    bench.driver.free_node_of(fake.server())
    assert bench.ironic.nodes[fake.NODE].instance_uuid == fake.OTHER
    assert not bench.ironic.calls


def test_free_node_of_frees_a_reserved_node():
    """VIFs, instance_info and uuid of a build without a deploy are removed."""
    bench = fake.bench(instance_uuid=fake.SERVER)
    bench.ironic.attached[fake.NODE] = [fake.VIF]
    bench.ironic.infos[fake.NODE] = {'root_gb': '1'}
    bench.driver.free_node_of(fake.server())
    assert bench.ironic.nodes[fake.NODE].instance_uuid is None
    assert bench.ironic.attached[fake.NODE] == []
    assert bench.ironic.infos[fake.NODE] == {}


def test_node_that_another_server_gets_meanwhile_keeps_all_of_it():
    """The worker of another host has freed the node, see ``Deploy``.

    It lost the VIFs and the volumes of its new server, and was switched off.
    """
    bench = fake.bench(instance_uuid=fake.SERVER)
    ironic, list_vifs = bench.ironic, bench.ironic.list_vifs
    targets = {'t': {'uuid': 't', 'node_uuid': fake.NODE, 'volume_id': 'v'}}

    def fail_once(node):
        ironic.list_vifs = list_vifs
        ironic.change(node, instance_uuid=fake.OTHER)
        ironic.attached[node], ironic.targets = [fake.VIF], dict(targets)
        raise errors.IronicUnavailable('no answer')

    ironic.list_vifs = fail_once
    bench.driver.free_node_of(fake.server())
    assert not ironic.calls
    assert ironic.attached[fake.NODE] == [fake.VIF]
    assert ironic.targets == targets


@pytest.mark.parametrize(
    ('state', 'free'),
    [
        ('active', 'free_node_of'),
        ('deploy failed', 'free_node_of'),
        ('deploy failed', 'undo_build'),
    ],
)
@pytest.mark.parametrize('request_', ['detach_vif', 'patch_node'])
def test_node_whose_deploy_begins_late_is_torn_down(request_, state, free):
    """Ironic had not answered the request for it, and the build was undone.

    The node lost its server while it was deployed: nobody removed the machine
    that ran, or the node stayed in deploy failed for ever.
    """
    bench = fake.bench(instance_uuid=fake.SERVER)
    ironic = bench.ironic
    ironic.attached[fake.NODE] = [fake.VIF]
    send = getattr(ironic, request_)

    def begin(node, *args):
        setattr(ironic, request_, send)
        ironic.change(node, provision_state=state)
        raise errors.NodeLocked('a state transition is in progress')

    setattr(ironic, request_, begin)
    if free == 'free_node_of':
        bench.driver.free_node_of(fake.server())
    else:
        bench.driver._teardown.undo_build(fake.NODE, fake.SERVER)
    assert 'deleted' in ironic.names()
    assert ironic.nodes[fake.NODE].provision_state == 'cleaning'
    assert ironic.nodes[fake.NODE].instance_uuid is None


@pytest.mark.parametrize(
    ('state', 'end'),
    [('active', 'active'), ('wait call-back', 'active'), ('rescue', 'rescue')],
)
@pytest.mark.parametrize(
    'fields',
    [
        {'vm_state': 'building'},
        {'vm_state': 'error'},
        {'vm_state': 'shelved_offloaded', 'launched_at': _LAUNCHED},
    ],
    ids=lambda fields: fields['vm_state'],
)
def test_deploy_of_another_user_of_ironic_is_left_alone(state, end, fields):
    """A worker was killed when it had just reserved the node for a build.

    A delete of the server removed what another user of Ironic ran there.
    """
    bench = timed.bench(instance_uuid=fake.SERVER, provision_state=state)
    bench.ironic.infos[fake.NODE] = {'image_source': 'theirs'}
    bench.ironic.change_after(100, provision_state=end, reservation=None)
    bench.driver.destroy(None, fake.server(**fields), None)
    assert bench.ironic.names() == ['release']
    assert bench.ironic.nodes[fake.NODE].provision_state == end
    assert bench.ironic.infos[fake.NODE] == {'image_source': 'theirs'}


@pytest.mark.parametrize('state', ['cleaning', 'clean wait'])
def test_node_in_cleaning_without_a_description_is_left_alone(state, caplog):
    """It was taken for a foreign deploy, whose uuid Ironic did not remove.

    Ironic removes the description of each server before it cleans a node.
    """
    bench = fake.bench(instance_uuid=fake.SERVER, provision_state=state)
    bench.ironic.infos[fake.NODE] = {}
    bench.ironic.locked_count = 10_000
    bench.driver.destroy(None, fake.server(vm_state='building'), None)
    assert not _warnings(caplog)


def test_stray_deploy_of_another_user_of_ironic_is_left_alone():
    """Nova has deleted the server before the node was given back."""
    bench = fake.bench(instance_uuid=fake.SERVER, provision_state='active')
    bench.ironic.infos[fake.NODE] = {'image_source': 'theirs'}
    bench.driver.free_node(fake.NODE, fake.SERVER)
    assert bench.ironic.names() == ['release']


@pytest.mark.parametrize(
    ('state', 'fields'),
    [
        ('active', {'vm_state': 'active', 'launched_at': _LAUNCHED}),
        ('deploy failed', {'vm_state': 'building'}),
    ],
)
def test_server_without_a_description_is_torn_down(state, fields):
    """An operator has removed the description of a server that has run."""
    bench = fake.bench(instance_uuid=fake.SERVER, provision_state=state)
    bench.ironic.infos[fake.NODE] = {}
    bench.driver.destroy(None, fake.server(**fields), None)
    assert bench.ironic.names() == ['deleted']


def test_destroy_outlasts_an_outage_that_is_longer_than_its_wait() -> None:
    """Ironic removed the server, and Nova took it for one that stays.

    A server whose delete had failed so was in ERROR, and so was one that
    recovery shelved.
    """
    bench = timed.bench(instance_uuid=fake.SERVER, provision_state='active')
    ironic, clock = bench.ironic, bench.clock
    timed.break_after_change(bench, 2400.0)
    retry(
        lambda: bench.driver.destroy(None, fake.server(), None),
        clock,
        errors.is_ironic_away,  # As of a delete, and of a build that failed.
    )
    assert ironic.nodes[fake.NODE].instance_uuid is None
    assert clock.now_s() >= 2400.0


def test_teardown_that_does_not_end_fails_the_destroy() -> None:
    """Ironic answers, and shows that the server stays on its node."""
    bench = timed.bench(instance_uuid=fake.SERVER, provision_state='active')
    bench.ironic.settle = lambda node: None  # type: ignore[method-assign]
    with pytest.raises(nova_exception.NovaException) as caught:
        bench.driver.destroy(None, fake.server(), None)
    assert errors.is_node_kept(caught.value)


def test_aborted_deploy_is_cleaned_if_the_answer_was_lost() -> None:
    """The node was free, and stayed in "deploy failed" for ever."""
    bench = fake.bench(
        instance_uuid=fake.SERVER, provision_state='deploy hold'
    )
    ironic, send = bench.ironic, bench.ironic.set_provision_state

    def lose(node: str, target: str, **arguments: object) -> None:
        send(node, target, **arguments)
        if target == 'abort':
            ironic.settle(node)
            raise errors.IronicUnavailable('no answer')

    ironic.set_provision_state = lose  # type: ignore[method-assign]
    bench.driver.destroy(None, fake.server(), None)
    assert ironic.names() == ['abort', 'deleted']


def test_aborted_deploy_is_cleaned_after_a_long_removal() -> None:
    """Ironic removes the server in "deploy failed", and locks its node.

    The delete failed after two minutes, and the next one found no node.
    """
    bench = timed.bench(
        instance_uuid=fake.SERVER, provision_state='deploy hold'
    )
    ironic, send = bench.ironic, bench.ironic.set_provision_state

    def remove_slowly(node: str, target: str, **arguments: object) -> None:
        if target != 'abort':
            send(node, target, **arguments)
            return
        ironic.change(
            node, provision_state='deploy failed', reservation='conductor'
        )
        ironic.change_after(200, instance_uuid=None, reservation=None)

    ironic.set_provision_state = remove_slowly  # type: ignore[method-assign]
    bench.driver.destroy(None, fake.server(), None)
    assert ironic.begun == ['deleted']


def test_hold_that_ironic_does_not_abort_fails_the_destroy() -> None:
    """Ironic 39 aborts a service after its step, and a hold is a step.

    The destroy asked it to, without a pause and without an end.
    """
    bench = timed.bench(
        instance_uuid=fake.SERVER, provision_state='service hold'
    )
    ironic, asked = bench.ironic, list[str]()

    def note(node: str, target: str, **arguments: object) -> None:
        asked.append(target)
        assert len(asked) < 10

    ironic.set_provision_state = note  # type: ignore[method-assign]
    with pytest.raises(nova_exception.NovaException) as caught:
        bench.driver.destroy(None, fake.server(), None)
    assert errors.is_node_kept(caught.value)
    assert asked == ['abort']

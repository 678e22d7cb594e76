# SPDX-License-Identifier: Apache-2.0
"""What the driver relies on in Ironic.

VIFs are not part of it: a real Ironic attaches them only with a Neutron. The
real cloud of ``devstack/cloud`` has one.
"""

import dataclasses
import uuid

import pytest

from ironic_compute import errors
from tests.fakes import ironic_machine

STATES = sorted(
    {state for allowed in ironic_machine.ALLOWED.values() for state in allowed}
    | ironic_machine.IN_TRANSITION
    | {'enroll', 'manageable', 'clean failed', 'adopt failed'}
)
# Possible at a newer version of Ironic's API than ours.
BEYOND = {('abort', 'wait call-back')}
PASSWORD = {'rescue': {'rescue_password': 'secret'}}


def _server() -> str:
    return str(uuid.uuid4())


@pytest.fixture
def node(world):
    """Offer a node that can take a build."""
    return world.enroll()


def _patch():
    """Describe an image; Ironic 39 cannot rebuild a node without one."""
    values = {'image_source': 'http://x/i', 'kernel': 'k', 'ramdisk': 'r'}
    return [
        {'op': 'add', 'path': f'/instance_info/{name}', 'value': value}
        for name, value in values.items()
    ]


def test_unknown_node_is_said(world):
    """No request takes a node that is not there for anything else."""
    absent = _server()
    for ask in (
        lambda: world.ironic.read_node(absent),
        lambda: world.ironic.patch_node(absent, _patch()),
        lambda: world.ironic.set_provision_state(absent, 'deleted'),
        lambda: world.ironic.set_power_state(absent, 'off'),
        lambda: world.ironic.read_fields(absent, ['uuid']),
    ):
        with pytest.raises(errors.NodeNotFound):
            ask()
    assert world.ironic.read_node_of_instance(absent) is None


def test_node_is_reserved_once(world, node):
    """The same server again is fine, another is told so."""
    server = _server()
    world.ironic.reserve_node(node, server)
    world.ironic.reserve_node(node, server)
    assert world.ironic.read_node_of_instance(server).uuid == node
    with pytest.raises(errors.NodeAssociated):
        world.ironic.reserve_node(node, _server())
    assert world.ironic.read_node(node).instance_uuid == server


def _lasting(facts):
    """Leave out what the end of a request changes: the lock and the time."""
    return dataclasses.replace(facts, reservation=None, updated_at=None)


def test_a_change_is_answered_with_the_node(world, node):
    """All of it, or it would seem to have lost its traits."""
    world.give_trait(node, 'CUSTOM_A')
    reserved = world.ironic.reserve_node(node, _server())
    assert reserved.traits == {'CUSTOM_A'}
    assert _lasting(reserved) == _lasting(world.ironic.read_node(node))
    described = world.ironic.patch_node(node, _patch())
    assert _lasting(described) == _lasting(world.ironic.read_node(node))


def test_server_has_one_node(world, node):
    """A second node for the same server is refused by Ironic itself."""
    server = _server()
    world.ironic.reserve_node(node, server)
    with pytest.raises(errors.NodeAssociated):
        world.ironic.reserve_node(world.enroll(), server)


def test_reservation_ends_for_its_own_server_only(world, node):
    """Another's stays."""
    server = _server()
    world.ironic.reserve_node(node, server)
    world.ironic.release_node(node, _server())
    assert world.ironic.read_node(node).instance_uuid == server
    world.ironic.release_node(node, server)
    world.ironic.release_node(node, server)
    assert world.ironic.read_node(node).instance_uuid is None


def test_deploy_and_teardown(world, node):
    """A teardown takes the server off the node by itself."""
    server = _server()
    world.ironic.reserve_node(node, server)
    world.ironic.patch_node(node, _patch())
    assert world.ironic.validate_node(node)['deploy']['result']
    world.ironic.set_provision_state(node, 'active')
    world.reach(node, provision_state='active', instance_uuid=server)
    world.ironic.set_provision_state(node, 'rebuild')
    world.reach(node, provision_state='active', instance_uuid=server)
    world.ironic.set_provision_state(node, 'deleted')
    world.reach(node, provision_state='available', instance_uuid=None)
    assert world.ironic.read_node_of_instance(server) is None


def test_deploy_takes_a_config_drive(world, node):
    """A description is enough: Ironic makes the drive of it."""
    drive = {'meta_data': {'uuid': 'u'}, 'user_data': 'x'}
    world.ironic.set_provision_state(node, 'active', configdrive=drive)
    world.reach(node, provision_state='active')


def test_rescue_and_back(world, node):
    """A rescue needs a password and ends when it is told to."""
    world.put(node, 'active')
    world.ironic.set_provision_state(node, 'rescue', rescue_password='x')
    world.reach(node, provision_state='rescue')
    world.ironic.set_provision_state(node, 'unrescue')
    world.reach(node, provision_state='active')


@pytest.mark.parametrize('is_soft', [False, True])
def test_power_is_where_it_was_told_to_be(world, node, is_soft):
    """Off and on again; the target goes when it is reached."""
    world.ironic.set_power_state(node, 'off', soft=is_soft)
    world.reach(node, power_state='power off', target_power_state=None)
    world.ironic.set_power_state(node, 'on')
    world.reach(node, power_state='power on', target_power_state=None)


def test_node_in_work_is_locked(world, node):
    """Whatever is asked of it, the answer is one that may be repeated."""
    world.put(node, 'active')
    world.lock(node)
    for ask in (
        lambda: world.ironic.patch_node(node, _patch()),
        lambda: world.ironic.set_provision_state(node, 'deleted'),
        lambda: world.ironic.set_power_state(node, 'off'),
        lambda: world.ironic.reserve_node(node, _server()),
    ):
        with pytest.raises(errors.NodeLocked):
            ask()
    assert world.ironic.read_node(node).reservation == 'other'


@pytest.mark.parametrize('state', STATES)
def test_each_state_takes_what_it_takes(world, node, state):
    """What is not possible is refused, and changes nothing."""
    for verb, allowed in ironic_machine.ALLOWED.items():
        if state in allowed or (verb, state) in BEYOND:
            continue
        world.put(node, state)
        with pytest.raises(errors.IronicRefused):
            world.ironic.set_provision_state(
                node, verb, **PASSWORD.get(verb, {})
            )
        assert world.ironic.read_node(node).provision_state == state


@pytest.mark.parametrize('verb', ironic_machine.ALLOWED)
def test_each_verb_is_taken_where_it_may_be(world, verb):
    """What is possible is begun at once."""
    for state in ironic_machine.ALLOWED[verb]:
        node = world.enroll()
        world.ironic.patch_node(node, _patch())
        world.put(node, state)
        world.ironic.set_provision_state(node, verb, **PASSWORD.get(verb, {}))


def test_deploy_on_hold_that_is_aborted_has_lost_its_server(world, node):
    """Ironic takes it off, and leaves the node where it is, not cleaned."""
    world.ironic.reserve_node(node, _server())
    world.put(node, 'deploy hold')
    world.ironic.set_provision_state(node, 'abort')
    world.reach(node, provision_state='deploy failed', instance_uuid=None)
    world.ironic.set_provision_state(node, 'deleted')
    world.reach(node, provision_state='available')


@pytest.mark.parametrize('state', STATES)
def test_node_in_transition_takes_no_patch(world, node, state):
    """Which is an answer that may be repeated."""
    world.put(node, state)
    if state not in ironic_machine.IN_TRANSITION:
        world.ironic.patch_node(node, _patch())
        return
    with pytest.raises(errors.NodeLocked):
        world.ironic.patch_node(node, _patch())


@pytest.mark.parametrize('state', sorted(ironic_machine.NO_POWER))
def test_node_that_is_wiped_keeps_its_power(world, node, state):
    """Ironic refuses to switch it."""
    world.put(node, state)
    with pytest.raises(errors.IronicRefused):
        world.ironic.set_power_state(node, 'off')


def test_node_has_no_cards_at_first(world, node):
    """Lists of nothing are empty, not errors."""
    assert world.ironic.list_ports(node) == []
    assert world.ironic.list_portgroups(node) == []


def test_version_is_agreed_on(world):
    """The highest that both know."""
    assert world.ironic.read_microversion() == (1, 95)


def test_all_nodes_are_shown_to_us(world, node):
    """Else "404" would not mean that there is no such node."""
    assert world.ironic.can_list_all_nodes()


def test_access_is_granted(world):
    """An Ironic that is reached and accepts the token raises nothing."""
    world.ironic.check_access(60.0)


def test_volume_target_stays_until_it_is_taken_away(world, node):
    """A teardown leaves it; it goes only when the machine is off."""
    volume = _server()
    target = world.ironic.create_volume_target(
        node,
        volume_id=volume,
        volume_type='iscsi',
        boot_index=0,
        properties={'target_lun': '1'},
    )
    (found,) = world.ironic.list_volume_targets(node)
    assert (found['uuid'], found['volume_id']) == (target, volume)
    with pytest.raises(errors.IronicRefused):
        world.ironic.create_volume_target(
            node,
            volume_id=_server(),
            volume_type='iscsi',
            boot_index=0,
            properties={},
        )
    world.put(node, 'active')
    with pytest.raises(errors.IronicRefused):
        world.ironic.delete_volume_target(target)
    world.ironic.set_provision_state(node, 'deleted')
    world.reach(node, provision_state='available')
    assert len(world.ironic.list_volume_targets(node)) == 1
    world.ironic.set_power_state(node, 'off')
    world.reach(node, power_state='power off')
    world.ironic.delete_volume_target(target)
    world.ironic.delete_volume_target(target)
    assert world.ironic.list_volume_targets(node) == []
    assert world.ironic.list_volume_connectors(node) == []

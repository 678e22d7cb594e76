# SPDX-License-Identifier: Apache-2.0
"""The cases about nodes, and about users' requests that need one."""

import uuid
from typing import Any

from onemachine import registry
from onemachine.backends import sql
from onemachine.night.case import Case, Kept, undo_nothing
from onemachine.night.pool import Pool

_LOCK = """UPDATE ironic.nodes SET reservation = (SELECT hostname
    FROM ironic.conductors ORDER BY updated_at DESC LIMIT 1)
    WHERE uuid = '{node}';"""
_UNLOCK = "UPDATE ironic.nodes SET reservation = NULL WHERE uuid = '{node}';"
_TRAIT = 'CUSTOM_GPU_L40'
_FLAVOR = 'bm-gpu'
_FORBID = '"baremetal:node:vif:attach": "role:network_admin"\n'


def _boot(pool: Pool, name: str, flavor: str = registry.FLAVOR) -> Any:
    """Create a server, as a user does; return at once."""
    cloud = pool.content.cloud
    return cloud.compute.create_server(
        name=name,
        flavor_id=cloud.compute.find_flavor(flavor, False).id,
        image_id=cloud.image.find_image(registry.IMAGE, False).id,
        networks=[
            {'uuid': cloud.network.find_network(registry.NETWORK, False).id}
        ],
    )


def _has_failed(pool: Pool, kept: Kept) -> bool:
    return bool(pool.content.server(kept['id']).status == 'ERROR')


# A flavor that no node fits


def _make_flavor(pool: Pool) -> Kept:
    cloud = pool.content.cloud
    cloud.placement.put(f'/traits/{_TRAIT}')
    flavor = cloud.compute.create_flavor(name=_FLAVOR, ram=1, vcpus=1, disk=0)
    cloud.compute.create_flavor_extra_specs(
        flavor, {**registry.EXTRA_SPECS, f'trait:{_TRAIT}': 'required'}
    )
    server = _boot(pool, 'train-1', _FLAVOR)
    return {'id': server.id, 'server': server.name}


UNFIT = Case(
    'A user writes: "My servers with flavor bm-gpu go to ERROR, such as '
    '{server} a minute ago: No valid host was found. With flavor bm I get '
    'servers."',
    f'The flavor bm-gpu requires the trait {_TRAIT}, which no node has.',
    f'openstack baremetal node add trait NODE {_TRAIT} for the nodes that '
    'have such a card (or take the trait off the flavor).',
    _make_flavor,
    _has_failed,
    undo_nothing,
)


# Ironic refuses a request of the daemons


def _forbid(pool: Pool) -> Kept:
    pool.policy.write_text(_FORBID)
    server = _boot(pool, 'web-9')
    return {'id': server.id, 'server': server.name}


UNALLOWED = Case(
    'Several users write: "Each new server goes to ERROR, such as {server}." '
    'The servers that they have run on. Nothing was changed at the daemons.',
    'The policy.yaml of Ironic allows baremetal:node:vif:attach to a role '
    'only that the user of the daemons does not have.',
    'Remove the line from the policy.yaml beside ironic.conf (Ironic reads it '
    'again by itself), or give the users nova-c1 to nova-c3 that role.',
    _forbid,
    _has_failed,
    undo_nothing,
)


# Another provider has the name of a node


def _take_name(pool: Pool) -> Kept:
    content, node = pool.content, pool.free_nodes()[-1]
    placement = content.cloud.placement
    other = str(uuid.uuid4())
    content.metal.set_node_maintenance(node, 'repair')
    placement.delete(f'/resource_providers/{node.id}')
    placement.post(
        '/resource_providers', json={'name': node.id, 'uuid': other}
    )
    content.metal.unset_node_maintenance(node)
    content.boot(len(pool.free_nodes()) - 1)
    server = _boot(pool, 'batch-7')
    return {
        'node_id': node.id,
        'node': node.name,
        'other': other,
        'id': server.id,
        'server': server.name,
    }


def _is_left(pool: Pool, kept: Kept) -> bool:
    """Return whether the build has failed, and its node is the free one."""
    free = [node.id for node in pool.free_nodes()]
    return _has_failed(pool, kept) and free == [kept['node_id']]


def _free_name(pool: Pool, kept: Kept) -> None:
    content = pool.content
    content.cloud.placement.delete(f'/resource_providers/{kept["other"]}')
    # The daemon reports a node again when it changes.
    content.metal.set_node_maintenance(kept['node_id'], 'repair')
    content.metal.unset_node_maintenance(kept['node_id'])


NAMESAKE = Case(
    'A user writes: "I get no more servers, {server} is in ERROR: No valid '
    'host was found." One node is free and available in Ironic: {node}, '
    'which came back from repair an hour ago and has had no build since.',
    'Placement has a provider with the name of the node and another uuid, '
    'which somebody has made during the repair. Nova has no node of that '
    'uuid, so nova-scheduler drops it.',
    'openstack resource provider delete with the uuid of that provider '
    '(fsck names it); the daemon makes its own when the node changes, or at '
    'once with ironic-computectl fsck --repair.',
    _take_name,
    _is_left,
    _free_name,
)


# A lock that nobody holds any more


def _lock(pool: Pool) -> Kept:
    content = pool.content
    server = min(content.servers(), key=lambda s: str(s.name))
    node = server.hypervisor_hostname
    sql(pool.layout, _LOCK.format(node=node))
    content.request_reboot(server)
    return {'id': server.id, 'server': server.name, 'node': node}


def _unlock(pool: Pool, kept: Kept) -> None:
    sql(pool.layout, _UNLOCK.format(node=kept['node']))


def _is_busy(pool: Pool, kept: Kept) -> bool:
    """Return whether the server exists, and has a task."""
    return any(
        s.id == kept['id'] and s.task_state for s in pool.content.servers()
    )


LOCKED = Case(
    'A user writes: "I asked for a reboot of {server} ten minutes ago, and it '
    'has not ended. I can do nothing with the server meanwhile."',
    'The node of the server is locked in Ironic: its reservation names an '
    'ironic-conductor that lost the lock when it was interrupted, and works '
    'on nothing.',
    'Restart that ironic-conductor, which releases its locks at its start '
    '(openstack baremetal node show NODE --fields reservation shows whose '
    'it is); the daemon then reboots the server.',
    _lock,
    _is_busy,
    _unlock,
)

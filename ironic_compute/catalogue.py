# SPDX-License-Identifier: Apache-2.0
"""The list of all consistency checks: name, meaning and cure of each.

``ironic-computectl fsck`` prints the names and cures, and the manual explains
each check with these texts. Nothing here imports Nova, so that any process can
use the list. A name never changes, because operators' scripts use it.
"""

import dataclasses


@dataclasses.dataclass(frozen=True, slots=True)
class Check:
    """One kind of inconsistency.

    :param meaning: sentences for the manual: what is found, and what it causes
    :param cure: a phrase that tells the operator what to do; it may contain
        ``{node}``, ``{server}``, ``{host}`` and ``{other}``
    :param is_mended: the worker that serves the host mends it when it looks
        again at what it serves, which ``--repair`` asks it to do now
    """

    name: str
    meaning: str
    cure: str
    is_mended: bool = False


_WAIT = 'nothing, if it is gone in a few minutes; else see the log of the '
_HOLDER = (
    f'{_WAIT}daemon that serves the host of the node, and search it for the '
    f'node'
)

# Hosts

HOST_NOT_SERVED = Check(
    'host-not-served',
    'No daemon serves a host of the pool. Its servers cannot be rebooted or '
    'deleted, and its nodes get no builds.',
    'ironic-computectl host list; start the daemon of the host, or another '
    'one of the pool',
)
HOST_WITHOUT_SERVICE = Check(
    'host-without-service',
    'The pool knows a host of which Nova has no Service record. Nobody can '
    'use it.',
    'start the daemon of the host; if it is gone for good: ironic-computectl '
    'host forget {host}',
)
HOST_NOT_MAPPED = Check(
    'host-not-mapped',
    'Nova has mapped the host to no cell. It gets no nodes, because each '
    'build on it would fail.',
    'nova-manage cell_v2 discover_hosts --by-service',
)
HOST_DOWN = Check(
    'host-down',
    'A daemon serves the host, but Nova counts its Service as down, because '
    'its last report is too old. It gets no builds.',
    'look at the log of the daemon and at RabbitMQ; compare the clocks of the '
    'controllers with that of the database',
)
HOST_FORCED_DOWN = Check(
    'host-forced-down',
    'Somebody has declared the host to be down. It gets no builds, and a user '
    'may evacuate its servers, which bare metal cannot do.',
    'openstack compute service set --up {host} nova-compute',
)
HOST_OF_OTHER_ZONE = Check(
    'host-of-other-zone',
    'The hosts of the pool are in different availability zones. A node that '
    'moves between them changes its zone.',
    'put all hosts of the pool into the same aggregates: openstack aggregate '
    'add host AGGREGATE {host}',
)
UNEVEN_AGGREGATE = Check(
    'uneven-aggregate',
    'An aggregate has some hosts of the pool and not all. A node that moves '
    'between them leaves or joins it.',
    'openstack aggregate add host {other} HOST for each host of the pool that '
    'it lacks, or remove the others',
)
RINGS_DIFFER = Check(
    'rings-differ',
    'The daemons do not agree about the hash ring, so no free node changes '
    'its host.',
    'ironic-computectl pool show; the log of each daemon names who does not '
    'agree and why',
)

# Nodes and their records

NODE_WITHOUT_ROW = Check(
    'node-without-record',
    'Ironic has the node in this pool, and Nova has no ComputeNode record of '
    'it. It gets no builds.',
    'ironic-computectl host list; a host must be served, mapped and enabled; '
    'then see the log of the daemons for the node',
    is_mended=True,
)
ROW_WITHOUT_NODE = Check(
    'record-without-node',
    'A host of the pool has a ComputeNode record of a node that Ironic does '
    'not have. The daemon removes it when Ironic has said so twice, unless a '
    'server or an allocation is on it.',
    'nothing, if it is gone in an hour; else delete the server on it, or see '
    'the log of host {host} for the node',
    is_mended=True,
)
NODE_OF_OTHER_POOL = Check(
    'node-of-other-pool',
    'A host of the pool has a ComputeNode record of a node that Ironic has in '
    'another conductor group or shard. The host gives the node away when a '
    'daemon of that pool asks for it and its server has no task.',
    'nothing, if it is gone in a few minutes; else see the log of host {host} '
    'for the node; if no daemon has that pool, set the conductor group or '
    'shard of the node back, or ironic-computectl node forget {node}',
)
TWO_ROWS = Check(
    'two-records',
    'Nova has several ComputeNode records of one node. The scheduler may send '
    'builds to the wrong host.',
    'stop what serves the host that is not of this pool; delete its Service: '
    'openstack compute service delete',
)
ROW_WITH_OTHER_UUID = Check(
    'record-with-other-uuid',
    'The uuid of the ComputeNode record is not that of the node: it was made '
    'before Nova 18, or by another program. It works, but its provider has '
    'the other uuid, too.',
    'nothing; it ends when the node is deleted in Ironic and enrolled again',
)
ROW_ON_UNKNOWN_HOST = Check(
    'record-on-unknown-host',
    'The ComputeNode record of the node names a host of which Nova has no '
    'Service record. A daemon of the pool takes such a node by itself.',
    'nothing, if it is gone in a few minutes; else ironic-computectl host '
    'list: no daemon of the pool may take the node',
    is_mended=True,
)
ROW_ON_FOREIGN_HOST = Check(
    'record-on-foreign-host',
    'A host outside of the pool has the ComputeNode record of the node. '
    'Either the node came from another pool, whose host is asked for it, or a '
    'nova-compute serves the same nodes.',
    'nothing, if it is gone in a few minutes; else see the log of host {host} '
    'for the node; or ironic-computectl host adopt {host}, if its daemon is '
    'gone; or stop the nova-compute',
)

# Providers

NODE_WITHOUT_PROVIDER = Check(
    'node-without-provider',
    'Placement has no provider of a node of which Nova has a record. It gets '
    'no builds.',
    _HOLDER,
    is_mended=True,
)
PROVIDER_WITHOUT_NODE = Check(
    'provider-without-node',
    'Placement has a provider like that of a node, which neither this Ironic '
    'nor this cell of Nova has. It may get builds, which fail.',
    'if no other Ironic or cell has it: openstack resource provider delete '
    '{node}',
)
PROVIDER_WITH_OTHER_UUID = Check(
    'provider-with-other-uuid',
    'The provider of the node has another uuid than the node and its record '
    'in Nova. A build that gets it finds no host.',
    'delete the provider when nothing is allocated on it: openstack resource '
    'provider delete {other}; then run fsck again, which finds that the '
    'node has none, and have that repaired',
)
TWO_PROVIDERS = Check(
    'two-providers',
    'Placement has two providers of the node, so that two servers may get it.',
    'delete the one that has not the uuid of the node: openstack resource '
    'provider delete {other}',
)
OFFERED_BUT_UNUSABLE = Check(
    'offered-but-unusable',
    'Placement offers the node to builds, although it cannot take one now. '
    'Such builds fail and are scheduled again.',
    _HOLDER,
    is_mended=True,
)
NOT_OFFERED = Check(
    'usable-but-not-offered',
    'The node can take a build, and nothing is allocated on it, but Placement '
    'does not offer it.',
    f'{_WAIT}daemon that serves host {{host}}, and search it for the node',
    is_mended=True,
)
WRONG_CLASS = Check(
    'wrong-resource-class',
    'The provider has another resource class than the node in Ironic.',
    _HOLDER,
    is_mended=True,
)
NOT_RESERVED = Check(
    'in-use-but-not-reserved',
    'The node is in use, but its provider is not reserved. If the allocation '
    'of its server were lost, it would be offered.',
    _HOLDER,
    is_mended=True,
)
WITHOUT_COMPUTE_TRAIT = Check(
    'no-compute-trait',
    'The provider lacks the trait COMPUTE_NODE, which the scheduler may '
    'require.',
    _HOLDER,
    is_mended=True,
)
STATUS_TRAIT_DIFFERS = Check(
    'wrong-status-trait',
    'Nova has the Service of the host enabled, and the provider of its node '
    'has the trait COMPUTE_STATUS_DISABLED; or the other way round.',
    _HOLDER,
    is_mended=True,
)
TRAIT_MISSING = Check(
    'trait-missing',
    'The node has a trait in Ironic which its provider lacks, so that flavors '
    'that require it do not get the node.',
    _HOLDER,
    is_mended=True,
)
TRAIT_LEFT_BEHIND = Check(
    'trait-left-behind',
    'The provider has a custom trait that other nodes have in Ironic, and '
    'this node has not. Another program may have set it.',
    'if no other program has set it: openstack resource provider trait list '
    '{node}, then openstack resource provider trait set with all but {other}',
)

# Allocations

ALLOCATION_WITHOUT_SERVER = Check(
    'allocation-without-server',
    'Placement has an allocation on the node of a server that Nova has '
    'deleted. The node gets no builds.',
    'openstack resource provider allocation delete {server}',
    is_mended=True,
)
ALLOCATION_OF_UNKNOWN = Check(
    'allocation-of-unknown-consumer',
    'Placement has an allocation on the node of a consumer that is no server '
    'of Nova, and Ironic does not show it on the node either. Another program '
    'may have reserved the node.',
    'if no other program uses the node: openstack resource provider '
    'allocation delete {server}',
)
ALLOCATION_OF_SHELVED = Check(
    'allocation-of-shelved-server',
    'Placement has an allocation on the node of a server that is shelved and '
    'on no node. The node gets no builds until its user unshelves or deletes '
    'the server.',
    'if openstack server show {server} shows no task: openstack resource '
    'provider allocation delete {server}',
)
ALLOCATION_ON_TWO_NODES = Check(
    'allocation-on-two-nodes',
    'One server has allocations on several nodes, of which it can use one.',
    'openstack resource provider allocation show {server}, then openstack '
    'resource provider allocation set with the node of the server alone',
    is_mended=True,
)
ALLOCATION_ON_OTHER_NODE = Check(
    'allocation-on-other-node',
    'The allocation of a server is on another node than the server. That '
    'node gets no builds.',
    'openstack resource provider allocation show {server}, then nova-manage '
    'placement heal_allocations --instance {server} --force',
    is_mended=True,
)
SERVER_WITHOUT_ALLOCATION = Check(
    'server-without-allocation',
    'A server is on its node, and Placement has no allocation of it.',
    'take the reservation of the node off, then nova-manage placement '
    'heal_allocations --instance {server}; see "A server has lost its '
    'allocation" in the manual',
    is_mended=True,
)

# Servers

UNKNOWN_SERVER = Check(
    'unknown-server-on-node',
    'Ironic has a server on the node which Nova never had, and which has no '
    'allocation. The node is left alone and not offered.',
    'openstack baremetal node show {node}; if nothing uses it: openstack '
    'baremetal node undeploy {node}',
)
DELETED_SERVER = Check(
    'deleted-server-on-node',
    'Nova has deleted the server, and Ironic still has it on the node. The '
    'daemon frees the node by itself, unless '
    'running_deleted_instance_action forbids it.',
    f'{_WAIT}host {{host}}; or openstack baremetal node undeploy {{node}}',
    is_mended=True,
)
FAILED_BUILD = Check(
    'failed-build-on-node',
    'The build of the server has failed, and Ironic still has it on the node. '
    'The daemon frees the node by itself.',
    f'{_WAIT}host {{host}}',
    is_mended=True,
)
SERVER_ON_OTHER_HOST = Check(
    'server-on-other-host',
    'Nova has the server on another host than the ComputeNode record of its '
    'node. The record follows the server by itself.',
    f'{_WAIT}host {{host}}',
    is_mended=True,
)
SERVER_WITHOUT_HOST = Check(
    'server-without-host',
    'The server is on the node, and Nova has no host for it. Nova refuses '
    'each request for it but a delete. The daemon restores the host by '
    'itself.',
    f'{_WAIT}host {{host}}',
    is_mended=True,
)
SERVER_NOT_ON_NODE = Check(
    'server-not-on-its-node',
    'Nova has the server on the node, and Ironic has none or another one '
    'there. The server does not exist, or is on another node.',
    'openstack baremetal node show {node}; if nothing is deployed there, '
    'delete the server: openstack server delete {server}',
)
SERVER_WITHOUT_NODE = Check(
    'server-without-node',
    'Nova has the server on a node that Ironic does not have.',
    'openstack server delete {server}',
)
TWO_SERVERS = Check(
    'two-servers-on-node',
    'Nova has several servers on one node.',
    'openstack baremetal node show {node} has the one that is there; delete '
    'the other: openstack server delete {server}',
)
STUCK_TASK = Check(
    'task-without-progress',
    'The server has a task, or is being built, and nothing has happened for a '
    'quarter of an hour; Ironic is not working on its node.',
    'ironic-computectl host list: is host {host} served? Then see the log of '
    'its daemon for the server',
    is_mended=True,
)
LOST_BUILD = Check(
    'lost-build',
    'A bare metal server is being built on no host, and nothing has happened '
    'for a quarter of an hour. A daemon ends it if it has an allocation.',
    'openstack server show {server}; if it does not end: openstack server '
    'delete {server}',
)
UNFINISHED_DELETE = Check(
    'unfinished-delete',
    'A user has deleted the server, and the delete has never been done. The '
    'daemon does it if the server has changed in the day before its start.',
    'openstack server event list {server}; then delete it again: openstack '
    'server delete {server}',
    is_mended=True,
)

# Leftovers in Ironic

VIF_LEFT_BEHIND = Check(
    'vif-left-behind',
    'A free node has a VIF, which is the port of a former server in Neutron. '
    'The next build may fail.',
    'openstack baremetal node vif detach {node} {other}',
    is_mended=True,
)
VOLUME_TARGET_LEFT_BEHIND = Check(
    'volume-target-left-behind',
    'A free node has a volume target of a former server. The next build may '
    'fail, or start from that volume.',
    'openstack baremetal volume target delete {other}',
    is_mended=True,
)
NODE_WITHOUT_CLASS = Check(
    'node-without-class',
    'The node has no resource_class in Ironic, so no flavor can select it.',
    'openstack baremetal node set --resource-class CLASS {node}',
)
DEPLOY_FAILED = Check(
    'failed-without-server',
    'A deploy or a removal has failed on the node, and it has no server any '
    'more. Nothing cleans it, and it is not offered.',
    'openstack baremetal node undeploy {node}',
)
DEPLOY_WITHOUT_CONDUCTOR = Check(
    'deploying-without-conductor',
    'The node is in deploying, and no ironic-conductor works on it, because '
    'it was stopped. Ironic refuses each request for the node.',
    'restart the ironic-conductor of the node; see "ironic-conductor died" in '
    'the manual',
)

# Flavors

FLAVOR_WITHOUT_NODE = Check(
    'flavor-without-node',
    'A bare metal flavor requests a resource class that no node in Ironic '
    'has. Its builds fail with "No valid host".',
    'set the class on nodes in Ironic, or correct or delete flavor {other}',
)
FLAVOR_TRAIT_WITHOUT_NODE = Check(
    'flavor-trait-without-node',
    'A bare metal flavor requires a custom trait that no node of its resource '
    'class has. Its builds fail with "No valid host".',
    'set the trait on nodes in Ironic, or correct or delete flavor {other}',
)

ALL: tuple[Check, ...] = tuple(
    value for value in list(globals().values()) if isinstance(value, Check)
)
"""All checks that fsck makes, in the order of the manual."""

# What only the daemons see, on their status page. fsck compares records.

LEASE_LAPSED = Check(
    'lease-lapsed',
    'The lease of a daemon is not in force. It changes nothing, and others '
    'adopt its hosts.',
    'look at the coordination backend, and at the log of the daemon of {host}',
)
CHANGE_NOT_IN_PLACEMENT = Check(
    'change-not-in-placement',
    'A change of a node has not been written to Placement for ten seconds.',
    'search the log of the daemon that serves host {host} for "Placement"; it '
    'names the node and the reason',
)

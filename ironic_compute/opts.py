# SPDX-License-Identifier: Apache-2.0
"""Options of the daemons, group ``[ironic_compute]``.

Options that Nova registers (``[DEFAULT] host``, ``[ironic]``, ``[placement]``)
are read from nova.conf and not declared here again.
"""

from typing import Any

from oslo_config import cfg

GROUP = 'ironic_compute'

_DAEMON = [
    cfg.StrOpt(
        'state_path',
        default='/var/lib/ironic-compute',
        help='Folder in which the agent keeps its lock, the token of its last '
        'home lock (etcd), the hosts of the pool, and what Placement '
        'acknowledged of each node. One folder for each agent, on a local '
        'disk, kept across restarts. If it is lost, the agent learns the '
        'hosts again from the other agents, and its workers read every '
        'provider once.',
    ),
    cfg.FloatOpt(
        'worker_silence_s',
        default=60.0,
        min=10.0,
        help='Seconds without a message from a worker after which its agent '
        'kills it and starts another. Lower: a hung worker is replaced '
        'sooner. Higher: a worker on an overloaded machine is not killed. A '
        'worker of which no thread can run, because it is stopped or waits '
        'for a lock or a disk, is replaced after 12 s in any case.',
    ),
    cfg.FloatOpt(
        'worker_start_s',
        default=180.0,
        min=10.0,
        help='Seconds from the first sign of life of a worker, before it '
        'loads Nova, to its next message, after which its agent kills it and '
        'starts another. Lower: a worker that hangs at its start is replaced '
        'sooner. Higher: an overloaded machine, on which loading takes a '
        'minute, does not begin again and again.',
    ),
    cfg.BoolOpt(
        'fork_workers',
        default=True,
        help='Start workers as forks of one process, the fork server, that '
        'has loaded Nova. True: a worker starts at once and shares most of '
        'its memory with the fork server, which takes the place of the spare '
        'worker. If the fork server ends or hangs, its workers go on, and '
        'further ones load Nova themselves until there is another fork '
        'server. False: each worker loads Nova itself, which takes seconds '
        'of a processor, and has some 120 MB of memory of its own.',
    ),
    cfg.BoolOpt(
        'spare_worker',
        default=True,
        help='Keep one worker process ready that has loaded Nova and serves '
        'no host yet, while there is no fork server: without fork_workers, '
        'and for the minute until a fork server that has ended is replaced. '
        'True: a host of a controller that died is served seconds sooner. '
        'False: saves the memory of this process, some 120 MB for each '
        'agent.',
    ),
    cfg.FloatOpt(
        'services_interval_s',
        default=60.0,
        min=1.0,
        help="Seconds between two reads of Nova's Service records, which "
        'decide which hosts may be in the ring (the record exists, is '
        'enabled, and its host is mapped to a cell). One RPC for each read. '
        'While a host is not mapped, or the daemons have different hosts in '
        'the ring, the interval is a third, and the first reads come after '
        '2, 4 and 8 s. A service that an operator enables or disables '
        'through Nova is read at once.',
    ),
]

_BUILDS = [
    cfg.ListOpt(
        'config_drive_hooks',
        default=[],
        help='Names of entry points in ironic_compute.config_drive_hooks that '
        'change the contents of config drives, in this order. Each one is '
        'code of yours that runs in each build; if it fails, the build fails. '
        'The manual has an example.',
    ),
    cfg.BoolOpt(
        'full_config_drives',
        default=False,
        help='Make each config drive on this machine, as nova-compute does. '
        'True: it also has the folder ec2/, from which cloud-init learns the '
        'device of the ephemeral disk; this needs the program in [DEFAULT] '
        'mkisofs_cmd, and some CPU for each build. False: Ironic makes it '
        'from the data in openstack/, where its API has at least version '
        '1.56.',
    ),
]

_FEED = [
    cfg.BoolOpt(
        'use_notifications',
        default=True,
        help="Listen to Ironic's versioned notifications. False: changes are "
        'found by the delta list alone, up to delta_interval_s later. Ironic '
        'must send them: [DEFAULT] notification_level = info and '
        '[oslo_messaging_notifications] driver = messagingv2 in ironic.conf.',
    ),
    cfg.ListOpt(
        'notification_topics',
        default=['ironic_versioned_notifications'],
        help='Topics on which Ironic publishes versioned notifications, as in '
        'its own [DEFAULT] versioned_notifications_topics. If the compute '
        'daemons have a topic of their own, other readers do not take '
        'messages from their queues.',
    ),
    cfg.StrOpt(
        'notification_exchange',
        default='ironic',
        help='Exchange to which Ironic publishes notifications, as in its own '
        "[DEFAULT] control_exchange. Nova's own exchange does not receive "
        'them.',
    ),
    cfg.StrOpt(
        'notification_transport_url',
        secret=True,
        help='URL of the message bus to which Ironic publishes, if it is not '
        "Nova's own [DEFAULT] transport_url.",
    ),
    cfg.FloatOpt(
        'delta_interval_s',
        default=10.0,
        min=1.0,
        help='Seconds between two reads of the nodes that changed lately (the '
        'delta list). It finds changes whose notification was lost, for one '
        'short request to Ironic each time. Lower: such a change is found '
        'sooner.',
    ),
    cfg.FloatOpt(
        'audit_interval_s',
        default=1800.0,
        min=10.0,
        help='Seconds between two reads of all nodes of the pool (the audit). '
        'It finds deletions and other changes that the delta list cannot '
        'contain. At 5,000 nodes one audit costs Ironic about six seconds of '
        'CPU, and takes twice as long. One worker reads the nodes for all '
        'workers of the pool; one that hears nothing of it for one and a half '
        'intervals reads them itself.',
    ),
]

_METRICS = [
    cfg.PortOpt(
        'agent_port',
        default=0,
        help='Port on which the daemon serves its health, its readiness, its '
        'state, and the metrics of the agent and all its workers, over HTTP. '
        'All of it is read-only. 0: no port.',
    ),
    cfg.StrOpt(
        'agent_address',
        default='127.0.0.1',
        help='Address on which agent_port is served. The pages contain names '
        'of hosts and machines, versions, numbers of nodes, uuids of nodes '
        'and servers that have moved, names of the operators who have ordered '
        'that, and no secrets; everybody who reaches the port may read them.',
    ),
    cfg.PortOpt(
        'metrics_port',
        default=0,
        help='Port on which the worker of the home host serves its metrics to '
        'Prometheus. Workers of adopted hosts use the next free ones of the '
        'sixteen ports after it. 0: no such ports. Needs not be set if '
        'agent_port is: that one port has the metrics of all workers.',
    ),
    cfg.StrOpt(
        'metrics_address',
        default='127.0.0.1',
        help='Address on which metrics are served. They contain host names '
        'and numbers of nodes, and everybody who reaches the port may read '
        'them.',
    ),
]

_OWNERSHIP = [
    cfg.FloatOpt(
        'settle_s',
        default=5.0,
        min=0.0,
        help='Seconds for which the ring must not have changed before a free '
        'node is pushed to another host. Lower: a new host gets its share '
        'sooner. Higher: a host that comes and goes moves no nodes.',
    ),
    cfg.FloatOpt(
        'confirm_s',
        default=80.0,
        min=0.0,
        help='Seconds after which no other daemon can still create a record '
        'of the same new node. Then the record is read again and, if this '
        'host still holds the node, the node is offered to builds. The time '
        'counts from when all daemons agreed on the ring, so that in a '
        'settled pool a new node waits for one heartbeat only; while they do '
        'not agree, it counts from the creation of the record. Two daemons '
        'can never both offer a node if this is longer than [DEFAULT] '
        'rpc_response_timeout and [coordination] lease_term_s together, as '
        'the default is. Lower: nodes can be used sooner after a daemon was '
        'started. Placement gets the provider at once, but without inventory '
        'until then.',
    ),
    cfg.IntOpt(
        'push_budget',
        default=200,
        min=1,
        help='Free nodes that are pushed to other hosts in one round (about a '
        'second). Lower: less load on the conductor while a host joins.',
    ),
    cfg.IntOpt(
        'row_parallelism',
        default=8,
        min=1,
        max=64,
        help='ComputeNode records that are written at once. Each write takes '
        '15 to 20 ms.',
    ),
]

_RECOVERY = [
    cfg.FloatOpt(
        'upkeep_interval_s',
        default=60.0,
        min=1.0,
        help='Seconds between two searches for interrupted tasks (servers '
        'with a task that no worker executes) and for stray instances '
        '(servers on nodes that Nova has deleted). One RPC for each search. '
        'Lower: the tasks of a killed daemon continue sooner.',
    ),
    cfg.FloatOpt(
        'unfinished_s',
        default=60.0,
        min=1.0,
        help="Seconds for which a server's task may make no progress, while "
        'no worker executes it, before the worker continues it from the '
        'database. Until then its message may still be on its way. A worker '
        'that has just started does not wait.',
    ),
    cfg.FloatOpt(
        'lost_build_s',
        default=300.0,
        min=1.0,
        help='Seconds after which a build that no worker has begun counts as '
        'lost with the daemon that had received it. The server then goes to '
        'ERROR, and its node is free again at most as long again later. A '
        'server whose unshelve was lost is shelved as before. Must be longer '
        'than the conductor takes to send all builds of one request.',
    ),
]

ALL = [*_DAEMON, *_BUILDS, *_FEED, *_METRICS, *_OWNERSHIP, *_RECOVERY]


def register_opts(conf: Any) -> None:
    """Register all options of this package on ``conf``."""
    conf.register_opts(ALL, group=GROUP)


def list_opts() -> list[tuple[str, list[Any]]]:
    """Return (group, options) pairs for oslo-config-generator."""
    return [(GROUP, ALL)]

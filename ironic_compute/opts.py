# SPDX-License-Identifier: Apache-2.0
"""Options of the daemons, group ``[ironic_compute]``.

What Nova already knows (``[DEFAULT] host``, ``[ironic]``, ``[placement]``…)
is read from nova.conf as it is and never declared again here.
"""

from typing import Any

from oslo_config import cfg

GROUP = 'ironic_compute'

_DAEMON = [
    cfg.StrOpt(
        'state_path',
        default='/var/lib/ironic-compute',
        help='Folder of the agent: its lock, its boot file and the hosts it '
        'has seen. One folder an agent, on a local disk, kept across '
        'restarts. If it is lost the agent starts as if it were new and '
        'learns the hosts again from its peers.',
    ),
    cfg.FloatOpt(
        'worker_silence_s',
        default=60.0,
        min=10.0,
        help='Seconds without a sign of life from a worker after which its '
        'agent kills it and starts another. Lower: a hung worker is '
        'replaced sooner. Higher: a worker on a starved machine is left '
        'alone.',
    ),
    cfg.BoolOpt(
        'spare_worker',
        default=True,
        help='Keep one worker process ready that has loaded Nova and serves '
        'no host yet. True: a host of a controller that died is served '
        'seconds sooner. False: saves its memory, some 150 MB an agent.',
    ),
    cfg.FloatOpt(
        'services_interval_s',
        default=60.0,
        min=1.0,
        help="Seconds between two looks at Nova's Service records, which "
        'say who may be in the ring (exists, mapped, enabled). One RPC '
        'each time; three times as many, the first ones after 2, 4 and 8 s, '
        'while a host is not mapped to its '
        'cell, or daemons see different ones in the ring. What '
        'an operator enables or disables through Nova is looked at at once.',
    ),
]

_FEED = [
    cfg.BoolOpt(
        'use_notifications',
        default=True,
        help="Listen to Ironic's versioned notifications. Off: changes are "
        'seen through the delta list alone, delta_interval_s later. '
        'Ironic must send them: [DEFAULT] notification_level = info and '
        '[oslo_messaging_notifications] driver = messagingv2 in ironic.conf.',
    ),
    cfg.ListOpt(
        'notification_topics',
        default=['ironic_versioned_notifications'],
        help='Topics on which Ironic publishes versioned notifications, as '
        'in its own [DEFAULT] versioned_notifications_topics. A topic of '
        'their own for the compute daemons keeps their queues apart from '
        "other readers'.",
    ),
    cfg.StrOpt(
        'notification_exchange',
        default='ironic',
        help='Exchange to which Ironic publishes notifications, as in its '
        "own [DEFAULT] control_exchange. Nova's own would be another one, "
        'to which Ironic says nothing.',
    ),
    cfg.StrOpt(
        'notification_transport_url',
        secret=True,
        help="Where Ironic publishes, if not on Nova's own [DEFAULT] "
        'transport_url.',
    ),
    cfg.FloatOpt(
        'delta_interval_s',
        default=10.0,
        min=1.0,
        help='Seconds between two reads of the nodes that changed lately. '
        'It finds what notifications miss; one short request to Ironic '
        'each time. Lower: a missed change is seen sooner.',
    ),
    cfg.FloatOpt(
        'audit_interval_s',
        default=1800.0,
        min=10.0,
        help='Seconds between two reads of all nodes of the pool. It finds '
        'deletions and whatever else the delta list cannot show. At 5,000 '
        'nodes one read costs Ironic about six seconds, and takes twice as '
        'long.',
    ),
]

_METRICS = [
    cfg.PortOpt(
        'metrics_port',
        default=0,
        help='Port on which the worker of the home host answers Prometheus; '
        'workers of adopted hosts take the next free ones of the sixteen '
        'after it. 0: no metrics.',
    ),
    cfg.StrOpt(
        'metrics_address',
        default='127.0.0.1',
        help='Address on which metrics are served. They name hosts and count '
        'nodes, and whoever reaches the port may read them.',
    ),
]

_HANDOVER = [
    cfg.FloatOpt(
        'settle_s',
        default=5.0,
        min=0.0,
        help='Seconds the ring must have stayed as it is before a free node '
        'is given to another host. Lower: a new host gets its share sooner. '
        'Higher: a host that comes and goes moves nothing.',
    ),
    cfg.FloatOpt(
        'confirm_s',
        default=20.0,
        min=0.0,
        help='Seconds after which no other daemon can be about to create the '
        'record of a new node: then it is read again and, if it is still '
        'ours, offered to builds. Counted from when all daemons agreed on '
        'the ring, so that in a settled pool a new node waits for a heartbeat '
        'only; where they do not agree, from the record. Above [DEFAULT] '
        'rpc_response_timeout and [coordination] lease_term_s together it is '
        'proof; lower: nodes can be used sooner after a daemon was started. '
        'Placement hears of a node before, without anything that could be '
        'asked of it.',
    ),
    cfg.IntOpt(
        'push_budget',
        default=200,
        min=1,
        help='Free nodes given away in one round (about a second). Lower: '
        'less load on the conductor while a host joins.',
    ),
    cfg.IntOpt(
        'row_parallelism',
        default=8,
        min=1,
        max=64,
        help='ComputeNode records written at once, 15 to 20 ms each.',
    ),
]

_UPKEEP = [
    cfg.FloatOpt(
        'upkeep_interval_s',
        default=60.0,
        min=1.0,
        help='Seconds between two looks for unfinished work: servers whose '
        'task nobody is at, servers on nodes that Nova has deleted. One RPC '
        'each time. Lower: what a killed daemon left is taken up sooner.',
    ),
    cfg.FloatOpt(
        'unfinished_s',
        default=60.0,
        min=1.0,
        help="Seconds a server's task may stand still, with nobody at work "
        'on it, before it is taken up from the database. Its message may '
        'be on its way until then. A worker that has just started does not '
        'wait.',
    ),
    cfg.FloatOpt(
        'lost_build_s',
        default=300.0,
        min=1.0,
        help='Seconds after which a build that nobody has begun counts as '
        'lost with the daemon that had received it. The server goes to '
        'ERROR, its node is free again, at most as long again later. '
        'Must be longer than the conductor takes to send all builds of one '
        'request.',
    ),
]

ALL = [*_DAEMON, *_FEED, *_METRICS, *_HANDOVER, *_UPKEEP]


def register_opts(conf: Any) -> None:
    """Register all options of this package on ``conf``."""
    conf.register_opts(ALL, group=GROUP)


def list_opts() -> list[tuple[str, list[Any]]]:
    """Return (group, options) pairs for oslo-config-generator."""
    return [(GROUP, ALL)]

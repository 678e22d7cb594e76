# SPDX-License-Identifier: Apache-2.0
"""Options of the resource tracker, group ``[resource_tracker]``."""

from typing import Any

from oslo_config import cfg

GROUP = 'resource_tracker'

ALL = [
    cfg.IntOpt(
        'placement_parallelism',
        default=8,
        min=1,
        max=64,
        help='Nodes reported to Placement at once. Writes for one node stay '
        'in order. Nodes that builds have just claimed go last and use at '
        'most half of these threads. Higher: the first report of many nodes '
        'ends sooner. Lower: less load on Placement, which on two cores does '
        'about 100 writes a second regardless of this option.',
    ),
    cfg.FloatOpt(
        'read_rate',
        default=20.0,
        min=0.1,
        max=1000.0,
        help='Providers read from Placement in a second when nothing is '
        'urgent: after a host was adopted from another machine, and when an '
        'audit finds providers that others have written. Each takes two '
        'requests, or three where Nova has host aggregates. A node that '
        'changes never waits for this. Higher: such a host is verified '
        'sooner. Lower: less load on Placement after an adoption.',
    ),
    cfg.FloatOpt(
        'aggregates_interval_s',
        default=300.0,
        min=0.0,
        help="Seconds between two reads of Nova's host aggregates, one RPC "
        'each. All nodes of a host are put into the Placement aggregates of '
        'the host; Nova itself does that for only one of them. The read '
        'takes place with a read of the Service records, so up to '
        'services_interval_s later. Lower: a new availability zone can be '
        'used sooner. 0: never read them, and leave the aggregates of '
        'providers to other programs.',
    ),
    cfg.ListOpt(
        'capability_traits',
        default=[],
        help="Keys of an Ironic node's properties/capabilities that are "
        'reported as traits: with boot_mode in this list, boot_mode:uefi '
        'becomes CUSTOM_BOOT_MODE_UEFI. A flavor can then require the trait, '
        'which Placement filters by, instead of capabilities:boot_mode, for '
        'which the scheduler examines each node.',
    ),
]


def register_opts(conf: Any) -> None:
    """Register all options of this package on ``conf``."""
    conf.register_opts(ALL, group=GROUP)


def list_opts() -> list[tuple[str, list[Any]]]:
    """Return (group, options) pairs for oslo-config-generator."""
    return [(GROUP, ALL)]

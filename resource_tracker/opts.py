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
        help='Nodes reported to Placement at once. Writes of one node stay '
        'in order. Nodes that builds have just taken go last, and are half '
        'of these at most. Higher: the first report of many nodes ends '
        'sooner. Lower: less load on Placement; it does about 100 writes a '
        'second on two cores whatever this says.',
    ),
    cfg.FloatOpt(
        'read_rate',
        default=20.0,
        min=0.1,
        max=1000.0,
        help='Providers read in a second, two requests each, or three where '
        'Nova has host aggregates, if nothing calls for haste: after a host '
        'was taken over from another machine, and where an audit finds that '
        'others wrote. A node that changes never waits for this. Higher: such '
        'a host is verified sooner. Lower: less load on Placement at a '
        'take-over.',
    ),
    cfg.FloatOpt(
        'aggregates_interval_s',
        default=300.0,
        min=0.0,
        help="Seconds between two looks at Nova's host aggregates, one RPC "
        'each. All nodes of a host are put into the Placement aggregates of '
        'the host; Nova itself does that for one of them only. It is done '
        'with a read of the Service records, so up to services_interval_s '
        'later. Lower: a new availability zone can be used sooner. 0: never '
        'look, and leave aggregates to others.',
    ),
    cfg.ListOpt(
        'capability_traits',
        default=[],
        help="Keys of an Ironic node's properties/capabilities that are "
        'reported as traits: with boot_mode in this list, boot_mode:uefi '
        'becomes CUSTOM_BOOT_MODE_UEFI. Flavors can then ask for the trait, '
        'which Placement answers, in place of capabilities:boot_mode, for '
        'which the scheduler looks at each node.',
    ),
]


def register_opts(conf: Any) -> None:
    """Register all options of this package on ``conf``."""
    conf.register_opts(ALL, group=GROUP)


def list_opts() -> list[tuple[str, list[Any]]]:
    """Return (group, options) pairs for oslo-config-generator."""
    return [(GROUP, ALL)]

# SPDX-License-Identifier: Apache-2.0
"""Options of the resource tracker, group ``[resource_tracker]``."""

from typing import Any

from oslo_config import cfg

GROUP = 'resource_tracker'

_OPTS = [
    cfg.IntOpt(
        'placement_parallelism',
        default=8,
        min=1,
        max=64,
        help='Nodes reported to Placement at once. Writes of one node stay '
        'in order. Higher: the first report of many nodes ends sooner. '
        'Lower: less load on Placement; it does about 100 writes a second '
        'on two cores whatever this says.',
    ),
]


def register_opts(conf: Any) -> None:
    """Register all options of this package on ``conf``."""
    conf.register_opts(_OPTS, group=GROUP)


def list_opts() -> list[tuple[str, list[Any]]]:
    """Return (group, options) pairs for oslo-config-generator."""
    return [(GROUP, _OPTS)]

# SPDX-License-Identifier: Apache-2.0
"""What ours shall cost: a goal and a limit for each of a few figures.

The goal is what we want, and the limit is what no change may exceed. Both are
for two processors that also run all other services.
"""

import dataclasses
from collections.abc import Sequence


@dataclasses.dataclass(frozen=True, slots=True)
class Goal:
    """The goal and the limit of one figure, with one number of nodes."""

    figure: str
    title: str
    nodes_count: int
    goal: float
    limit: float


_MEMORY = 'idle: memory, shared memory counted once, MiB'

GOALS: Sequence[Goal] = (
    Goal('restart_placement', 'restart: requests to Placement', 1000, 2, 10),
    Goal('restart_unserved_s', 'restart: not served, s', 1000, 2.0, 7.0),
    Goal('replaced_unserved_s', 'replacement: not served, s', 1000, 2.0, 4.0),
    Goal(
        'killed_unserved_s', 'kill -9 and start: not served, s', 1000, 4.0, 8.0
    ),
    Goal(
        'first_placement_per_node',
        'first report: requests to Placement a node',
        1000,
        3,
        3.1,
    ),
    Goal(
        'arrival_per_server_cpu',
        "nodes enrolled at once: time / (servers' CPU / processors)",
        1000,
        1.25,
        2.5,
    ),
    Goal(
        'idle_placement_per_min',
        'idle: requests to Placement a minute',
        1000,
        0,
        0.1,
    ),
    Goal('idle_ironic_per_min', '… to Ironic', 1000, 6.1, 7.0),
    Goal('idle_client_cpu_percent', '… CPU, % of a core', 1000, 0.3, 1.0),
    Goal('pss_client_mib', _MEMORY, 1000, 190, 220),
    Goal('pss_client_mib', _MEMORY, 5000, 230, 260),
    Goal('boot_s', 'boots at once: s until all are ACTIVE', 1000, 197, 300),
    Goal('boot_failed_count', '… that failed', 1000, 0, 0),
)

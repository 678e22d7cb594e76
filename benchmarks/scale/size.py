# SPDX-License-Identifier: Apache-2.0
"""The size of a simulated pool."""

import dataclasses


@dataclasses.dataclass(frozen=True)
class Size:
    """The size of a pool.

    :param processes_count: of Ironic's API, Placement and nova-conductor each
    """

    hosts_count: int
    nodes_count: int
    processes_count: int

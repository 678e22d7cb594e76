# SPDX-License-Identifier: Apache-2.0
"""The cases of the night, by number."""

from collections.abc import Mapping

from onemachine.night import of_hosts, of_nodes
from onemachine.night.case import Case

CASES: Mapping[int, Case] = dict(
    enumerate(
        (
            of_hosts.DRAINED,
            of_nodes.UNALLOWED,
            of_hosts.EXPIRED,
            of_nodes.NAMESAKE,
            of_hosts.FROZEN,
            of_nodes.UNFIT,
            of_hosts.MISLED,
            of_nodes.LOCKED,
            of_hosts.FORBIDDEN,
            of_hosts.UNMAPPED,
        ),
        1,
    )
)

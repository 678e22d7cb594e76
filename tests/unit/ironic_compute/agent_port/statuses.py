# SPDX-License-Identifier: Apache-2.0
"""Statuses of an agent for tests of its port."""

import dataclasses
import types
from typing import Any

from hashring.adoption import View
from hashring.agent_status import AgentStatus
from hashring.counts import Counts, Durations
from hashring.group import Boot, Member
from hashring.heartbeat import HeartbeatState
from hashring.host_states import HostState, Phase
from hashring.lease import Lease
from hashring.paths import Path
from hashring.ring import Host, Ring

C1, C2, C3 = Host('c1'), Host('c2'), Host('c3')
NOW_S = 1000.0
SECRET = 'hunter2'
ME = Member(
    C1,
    Boot('b1'),
    machine='m1',
    version='1.2',
    serving=(C1, C3),
    ring='d1',
    lease_term_s=15.0,
)
PEER = Member(
    C2,
    Boot('b2'),
    machine='m2',
    version='1.1',
    ring='d2',
    failing_paths=(Path('Neutron'),),
)
LEASE = Lease(15.0, 2.0, base_s=NOW_S - 2.0, counted=True, epoch=1)

STATUS = AgentStatus(
    turned_at_s=NOW_S - 0.5,
    me=ME,
    heartbeat=HeartbeatState(
        LEASE,
        View((ME, PEER)),
        failure=f'heartbeat: no answer from http://u:{SECRET}@etcd',
    ),
    deadline_s=LEASE.deadline_s,
    hosts=(
        HostState(C1, Phase.SERVING, serves_since_s=1.0),
        HostState(C3, Phase.SERVING),
    ),
    opens_s={},
    known=frozenset({C1, C2, C3}),
    ring=Ring((C1, C2)),
    agreed_since_s=NOW_S - 30.0,
    lost_path=None,
    counts=Counts(
        lapses=3,
        adoptions=2,
        hand_backs=1,
        worker_starts=types.MappingProxyType({C1: 4, C3: 2}),
        worker_exits=types.MappingProxyType(
            {(C1, '-9'): 2, (C3, 'killed'): 1}
        ),
        adoption_s=Durations().with_one(12.0).with_one(200.0),
    ),
)
"""The agent of c1 serves c1, starts c3; nobody serves c2."""


def changed(**changes: Any) -> AgentStatus:
    """Return the status above with these changes."""
    return dataclasses.replace(STATUS, **changes)


WELL = changed(hosts=STATUS.hosts[:1], me=dataclasses.replace(ME, serving=()))
"""The agent of c1 serves c1 and nothing else."""

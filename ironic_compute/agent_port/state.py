# SPDX-License-Identifier: Apache-2.0
"""The state of an agent and its pool as JSON values, for ``/api/v1``.

Keys are only added in later releases. All durations are in seconds, and no
value but the time of a move is an instant, because machines do not share a
clock. Nothing here is
the text of a library, which may contain a URL with a password.
"""

import time
from collections.abc import Iterable, Mapping
from typing import Any

from hashring.agent_status import AgentStatus
from hashring.counts import Counts
from hashring.group import Boot, Member
from hashring.paths import Path
from hashring.ring import Host
from ironic_compute.journal.moves import Move

# The services that workers need, in the order in which a build needs them.
PATHS = tuple(
    map(Path, ('RabbitMQ', 'nova-conductor', 'Ironic', 'Placement', 'Neutron'))
)


def describe_agent(status: AgentStatus, now_s: float) -> dict[str, Any]:
    """Return the state of this agent: its lease, its workers, its counts."""
    me = status.me
    age_s = status.heartbeat_age_s(now_s)
    return {
        **_identity(me),
        'state': me.state.value,
        'last_turn_s': _rounded(now_s - status.turned_at_s),
        'lease': {
            'in_force': status.has_lease(now_s),
            'term_s': me.lease_term_s,
            'heartbeat_age_s': None if age_s is None else _rounded(age_s),
            'backend_answers': status.heartbeat.failure is None,
            'lapses': status.counts.lapses,
        },
        'half_alive': status.lost_path is not None,
        'failing_paths': list(me.failing_paths),
        'working_paths': list(me.working_paths),
        'wants_home': me.wants_home,
        'counts': _counts(status.counts),
    }


def describe_hosts(status: AgentStatus, now_s: float) -> list[dict[str, Any]]:
    """Return each known host, with the daemon that serves it."""
    unserved = status.unserved_here(now_s)
    here = status.served_here(now_s)
    phases = {state.host: state.phase.value for state in status.hosts}
    hosts = sorted(status.known | here | unserved.keys())
    return [
        {
            'host': host,
            'in_ring': host in status.ring.hosts,
            'served_by': _server(status, host),
            'served_here': host in here,
            'phase_here': phases.get(host, 'idle'),
            'why_not_served_here': unserved.get(host),
        }
        for host in hosts
    ]


def describe_ring(
    status: AgentStatus, now_s: float, answering: Mapping[Boot, bool]
) -> dict[str, Any]:
    """Return the ring of this agent, and that of each member of the group.

    A daemon that is gone publishes nothing; others may serve its host.

    :param answering: whether the ports of other members answer, if it is known
    """
    answering = {**answering, status.me.boot: True}
    since_s = status.agreed_since_s
    return {
        'digest': status.ring.digest,
        'hosts': sorted(status.ring.hosts),
        'known': sorted(status.known),
        'agreed_for_s': None if since_s is None else _rounded(now_s - since_s),
        'members': [
            {
                **_identity(member),
                'state': member.state.value,
                'ring': member.ring,
                'serving': list(member.serving),
                'known': list(member.known),
                'half_alive': member.is_half_alive,
                'failing_paths': list(member.failing_paths),
                'port_answers': answering.get(member.boot),
            }
            for member in sorted(status.members(), key=lambda m: m.home)
        ],
        'gone': [
            {'home': home, 'served_by': _server(status, home)}
            for home in sorted(status.gone_homes())
        ],
    }


def describe_moves(moves: Iterable[Move]) -> list[dict[str, Any]]:
    """Return moves, with their times for people and for programs."""
    return [{'at': utc(move.at_s), **move.as_json()} for move in moves]


def utc(at_s: float) -> str:
    """Return a time in UTC, as ISO 8601 has it.

    :param at_s: in seconds since 1970; another machine may have sent it
    """
    try:
        return time.strftime('%Y-%m-%dT%H:%M:%SZ', time.gmtime(at_s))
    except (OverflowError, ValueError, OSError):
        return 'unknown'


def _identity(member: Member) -> dict[str, Any]:
    return {
        'home': member.home,
        'machine': member.machine,
        'boot': member.boot,
        'version': member.version,
    }


def _server(status: AgentStatus, host: Host) -> dict[str, Any] | None:
    member = status.served_by(host)
    return None if member is None else _identity(member)


def _counts(counts: Counts) -> dict[str, Any]:
    return {
        'adoptions': counts.adoptions,
        'hand_backs': counts.hand_backs,
        'worker_starts': dict(counts.worker_starts),
        'worker_exits': [
            {'host': host, 'status': status, 'count': count}
            for (host, status), count in sorted(counts.worker_exits.items())
        ],
    }


def _rounded(seconds: float) -> float:
    return round(seconds, 1)

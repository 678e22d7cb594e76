# SPDX-License-Identifier: Apache-2.0
"""Which hosts matter for a migration, and who serves each."""

import dataclasses
from collections import Counter
from typing import Any

import pytest

from hashring.group import Boot, Member
from hashring.ring import Host
from ironic_compute.cmd.migration_evidence import Evidence, count_servers
from ironic_compute.cmd.migration_plan import HostState, ServedBy
from ironic_compute.fsck.snapshot import Row
from resource_tracker.node import NodeId

A, B, C, D = map(Host, 'abcd')
N1, N2, N3 = map(NodeId, ('n1', 'n2', 'n3'))


@dataclasses.dataclass
class Record:
    """A Service record of Nova."""

    host: Host
    forced_down: bool = False
    disabled: bool = False
    disabled_reason: str | None = None


@dataclasses.dataclass
class Server:
    """A server of Nova."""

    host: Host | None
    task_state: str | None = None
    deleted: bool = False


def _evidence(**fields: Any) -> Evidence:
    defaults: dict[str, Any] = {
        'members': (),
        'records': {host: Record(host) for host in (A, B)},
        'up': frozenset({A, B}),
        'rows': (Row(N1, 'n1', A), Row(N2, 'n2', B)),
        'others': frozenset(),
        'nodes': frozenset({N1, N2}),
        'nodes_elsewhere': frozenset(),
        'mapped': frozenset({A, B}),
        'wanted': frozenset(),
    }
    return Evidence(**{**defaults, **fields})


def _states(
    evidence: Evidence, **answers: bool | None
) -> dict[Host, HostState]:
    given = {
        Host(name): frozenset() if answer is None else frozenset({answer})
        for name, answer in answers.items()
    }
    return evidence.states(given, Counter(), Counter())


def _who(evidence: Evidence, **answers: bool | None) -> dict[Host, ServedBy]:
    states = _states(evidence, **answers)
    return {host: state.served_by for host, state in states.items()}


def test_holders_of_the_nodes_are_asked() -> None:
    """Their answers show who serves them."""
    evidence = _evidence()
    assert evidence.hosts_to_ask() == {A, B}
    assert _who(evidence, a=False, b=None) == {
        A: ServedBy.NOVA_COMPUTE,
        B: ServedBy.SILENT,
    }


def test_host_that_is_down_is_not_asked() -> None:
    """Nobody serves it; an answer would only be waited for."""
    evidence = _evidence(up=frozenset({A}))
    assert evidence.hosts_to_ask() == {A}
    assert _who(evidence, a=False)[B] is ServedBy.NOBODY


def test_host_that_is_forced_down_is_asked() -> None:
    """Nova shows it as down also if somebody serves it."""
    records = {A: Record(A), B: Record(B, forced_down=True)}
    evidence = _evidence(records=records, up=frozenset({A}))
    assert evidence.hosts_to_ask() == {A, B}
    assert _who(evidence, b=False)[B] is ServedBy.NOVA_COMPUTE
    state = _states(evidence, a=False, b=None)[B]
    assert state.served_by is ServedBy.NOBODY
    assert state.is_forced_down


MEMBER = Member(A, Boot('1'), 'm1', serving=(A, B), known=(A, B))


def test_daemons_of_the_pool_are_seen_in_the_backend() -> None:
    """Their hosts may have no answer yet."""
    states = _states(_evidence(members=(MEMBER,)))
    assert {s.served_by for s in states.values()} == {ServedBy.DAEMON}
    assert states[A].machine == 'm1'
    assert states[B].machine is None


def test_nova_compute_beside_a_daemon_is_seen() -> None:
    """Both answer in turn, so each host is asked more than once."""
    evidence = _evidence(members=(MEMBER,))
    assert evidence.hosts_to_ask() == {A, B}
    both = {A: frozenset({True}), B: frozenset({True, False})}
    states = evidence.states(both, Counter(), Counter())
    assert states[B].served_by is ServedBy.DAEMON
    assert [states[host].is_doubled for host in (A, B)] == [False, True]


def test_daemon_outside_of_the_pool_is_seen() -> None:
    """It answers, and no member serves its host."""
    assert _who(_evidence(), a=True, b=False)[A] is ServedBy.OTHER_POOL


def test_host_that_is_being_started_is_of_the_pool() -> None:
    """Its daemon answers, and does not publish it yet."""
    member = Member(A, Boot('1'), 'm1', known=(A,))
    assert _who(_evidence(members=(member,)), a=True)[A] is ServedBy.DAEMON


def test_nova_compute_without_a_node_is_found() -> None:
    """There may be fewer nodes than hosts; a hypervisor has a record."""
    records = {host: Record(host) for host in (A, B, C, D)}
    evidence = _evidence(
        records=records,
        up=frozenset({A, B, C, D}),
        others=frozenset({D}),
    )
    assert evidence.hosts_to_ask() == {A, B, C}
    assert set(_states(evidence, a=False, b=False, c=False)) == {A, B, C}
    assert set(_states(evidence, a=False, b=False, c=True)) == {A, B}


def test_hypervisor_that_is_named_is_marked() -> None:
    """Its nova-compute must not be stopped because of a wrong name."""
    records = {host: Record(host) for host in (A, B, D)}
    evidence = _evidence(
        records=records, others=frozenset({D}), wanted=frozenset({A, D})
    )
    assert _states(evidence, a=False)[D].is_other


def test_nodes_are_counted_by_pool() -> None:
    """Rows of nodes that Ironic does not have count for no pool."""
    evidence = _evidence(
        rows=(Row(N1, 'n1', A), Row(N2, 'n2', A), Row(N3, 'n3', A)),
        nodes=frozenset({N1}),
        nodes_elsewhere=frozenset({N2}),
    )
    state = _states(evidence, a=False)[A]
    assert (state.nodes_count, state.other_nodes_count) == (1, 1)


@pytest.mark.parametrize(
    ('mapped', 'is_mapped'), [(None, None), (frozenset({B}), False)]
)
def test_mapping_may_be_unknown(mapped: Any, is_mapped: bool | None) -> None:
    """A conductor without the API database cannot read it."""
    assert _states(_evidence(mapped=mapped))[A].is_mapped is is_mapped


def test_order_to_drain_is_seen() -> None:
    """Nova stores it as the reason why the host is disabled."""
    reason = 'ironic-compute: draining'
    drained = Record(A, disabled=True, disabled_reason=reason)
    evidence = _evidence(records={A: drained, B: Record(B, disabled=True)})
    states = _states(evidence)
    assert (states[A].is_drained, states[B].is_drained) == (True, False)


def test_servers_are_counted_by_host() -> None:
    """Those without a host, and deleted ones, are on none."""
    servers = [
        Server(A),
        Server(A, task_state='rebooting'),
        Server(A, deleted=True),
        Server(None),
    ]
    assert count_servers(servers) == (Counter({A: 2}), Counter({A: 1}))

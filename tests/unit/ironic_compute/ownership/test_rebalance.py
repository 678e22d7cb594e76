# SPDX-License-Identifier: Apache-2.0
"""Rounds of the rebalancer: which nodes are pushed, taken or left."""

import dataclasses
import types
from collections.abc import Callable
from typing import Any

import pytest

from hashring.ring import Host
from hashring.workers import WorkerView
from ironic_compute.gate import LeaseGate
from ironic_compute.nodes.held_nodes import HeldVersion, HostStatus
from ironic_compute.ownership.new_nodes import NewNodes
from ironic_compute.ownership.pacing import Pace, RowWriters
from ironic_compute.ownership.rebalance import _RECHECK_ROUNDS, Rebalancer
from ironic_compute.ownership.unheld_nodes import UnheldNodes
from ironic_compute.pool.foreign_hosts import Answer, ForeignHosts
from ironic_compute.pool.host_mappings import HostMappings
from ironic_compute.pool.services import ServiceDirectory
from ironic_compute.pool.view import PoolView
from resource_tracker.node import NodeFacts, NodeId
from tests.fakes.clock import ManualClock
from tests.simulation.faults import Unreachable
from tests.simulation.nova import ServerRecord
from tests.unit.ironic_compute.hosts import Cloud, Counted

C1, C2, N1 = Host('c1'), Host('c2'), NodeId('n1')


class _Rows:
    """One ComputeNode row, of host c2; new holders are recorded."""

    def __init__(self) -> None:
        self.given: list[Host] = []
        self.read_count = 0
        self.row = types.SimpleNamespace(
            hypervisor_hostname=N1, host=C2, stats={}
        )

    def list_by_nodes(self, nodes: Any) -> dict[NodeId, Any]:
        self.read_count += 1
        return {N1: self.row}

    def take_row(
        self,
        row: Any,
        host: Host,
        service_id: int,
        is_wanted: Callable[[], bool],
    ) -> bool:
        self.given.append(host)
        return is_wanted()


class _Directory(ServiceDirectory):
    """Nova has no Service record at all."""

    def read_exists(self, host: Host) -> bool:
        return False


def _rebalancer(rows: _Rows, services: Any) -> Rebalancer:
    clock = ManualClock(start_s=0.0)
    pool = PoolView(clock)
    pool.update(WorkerView(100.0, ring=(C1,), agreed_since_s=0.0, known=(C1,)))
    held_nodes: Any = types.SimpleNamespace(
        host=C1,
        host_status=HostStatus(service_id=1),
        rows=dict,
        unconfirmed_rows=types.SimpleNamespace(nodes=frozenset),
        confirm_row=lambda node: None,
        version=lambda: HeldVersion(0),
        add_node=lambda row, facts, read_at, created=False: None,
    )
    foreign = ForeignHosts(
        services, pool, lambda host: True, lambda host, nodes: Answer.NONE
    )
    pace, writers = Pace(1.0, 1.0, push_budget=1), RowWriters(1)
    nova: Any = rows
    new_nodes = NewNodes(
        UnheldNodes(),
        held_nodes,
        nova,
        services,
        foreign,
        pool,
        clock,
        pace,
        writers,
        lambda node: None,
        lambda: None,
    )
    return Rebalancer(
        held_nodes,
        nova,
        services,
        new_nodes,
        foreign,
        pool,
        LeaseGate(clock, 100.0),
        pace,
        writers,
        lambda host, nodes: None,
    )


def test_no_node_is_taken_before_the_services_were_read() -> None:
    """Every host would seem to be deleted before the first read."""
    rows, services = _Rows(), _Directory(HostMappings(lambda host: False))
    rebalancer = _rebalancer(rows, services)
    rebalancer._new_nodes._unheld.add(NodeFacts(N1))
    rebalancer.run_round()
    assert not rows.given
    services.is_read = True  # It has no record of c2.
    rebalancer.run_round()
    assert rows.given == [C1]


def test_nodes_of_a_disabled_host_move_once() -> None:
    """A host that still has the old ring does not push the nodes back."""
    cloud = Cloud([f'node-{number}' for number in range(30)])
    one, two = cloud.add('c1'), cloud.add('c2')
    cloud.show('c1', 'c2')
    cloud.settle()
    for host in (one, two):
        pace = dataclasses.replace(host.rebalancer._pace, disagree_s=65.0)
        host.rebalancer._pace = pace
    cloud.moved.clear()
    one.show('c2', agreed=False)  # c1 has read that it is disabled,
    two.show('c1', 'c2', agreed=False)  # and c2 has not.
    cloud.settle()
    assert cloud.moved == []
    cloud.show('c2')
    cloud.settle()
    assert {(old, new) for _, old, new in cloud.moved} == {(C1, C2)}
    nodes = [node for node, _, _ in cloud.moved]
    assert len(nodes) == len(set(nodes))


def test_nodes_of_a_worker_that_is_killed_in_a_round_are_held() -> None:
    """The target is told of each node before the next one is pushed."""
    cloud = Cloud([f'node-{number}' for number in range(9)])
    one, two = cloud.add('c1'), cloud.add('c2')
    cloud.show('c1')
    cloud.settle()
    cloud.show('c2')
    for node in cloud.nodes:
        # Two has seen them at c1, as in its last audit.
        two.unheld._of_pool.add(node)
    rows: Any = one.rows
    write = rows.write_holder

    def write_four(*args: Any) -> bool:
        if len(cloud.moved) == 4:
            raise KeyboardInterrupt
        return bool(write(*args))

    rows.write_holder = write_four
    cloud.moved.clear()
    with pytest.raises(KeyboardInterrupt):
        one.rebalancer.run_round()
    given = [node for node, _, _ in cloud.moved]
    assert len(given) == 4
    for facts in cloud.nodes.values():
        two.node_changes.node_changed(facts)
    two.rebalancer.run_round()
    assert sorted(two.held_nodes.rows()) == given


def test_given_node_is_held_while_all_hosts_are_disabled() -> None:
    """Its server would not be served, although its record names this host."""
    cloud = Cloud(['node-1'])
    cloud.add('c1')
    cloud.show('c1')
    cloud.settle()
    two = cloud.add('c2')
    cloud.hosts[C1].show('c2')
    two.show()
    two.unheld.add(cloud.nodes[NodeId('node-1')])
    cloud.rounds(cloud.hosts[C1], 20)
    assert {(old, new) for _, old, new in cloud.moved} == {(C1, C2)}
    cloud.rounds(two, 2)
    assert two.held_nodes.row(NodeId('node-1'))


def test_node_with_a_server_is_checked_once_in_60_rounds() -> None:
    """Nova has a server on the node that Ironic does not show."""
    cloud = Cloud(['node-1'])
    one = cloud.add('c1')
    cloud.show('c1')
    cloud.settle()
    server = ServerRecord('s1', 0.0, host=C1, node='node-1')
    cloud.nova.servers['s1'] = server
    cloud.add('c2')
    cloud.show('c2')
    cloud.settle()
    assert one.rebalancer.misplaced() == {'node-1': C2}
    counted = Counted(one)
    for _ in range(2 * _RECHECK_ROUNDS):
        one.rebalancer.run_round()
    assert counted.counts == {'read': 2 * 2}
    server.deleted = True
    for _ in range(_RECHECK_ROUNDS):
        one.rebalancer.run_round()
    assert {(old, new) for _, old, new in cloud.moved} == {(C1, C2)}
    one.rebalancer.run_round()
    assert one.rebalancer.misplaced() == {}


def _with_foreign_server(*, is_noted: bool = True) -> tuple[Cloud, Any]:
    """Return a cloud whose host c1, to be left by all, has a foreign server.

    :param is_noted: Nova has answered that it never had the server
    """
    cloud = Cloud([N1])
    one: Any = cloud.add('c1')
    cloud.show('c1')
    cloud.settle()
    cloud.nodes[N1] = NodeFacts(
        N1, instance_uuid='x1', provision_state='active'
    )
    one.audit()
    if is_noted:
        one.held_nodes.foreign_servers.note(N1, 'x1')
    cloud.add('c2')
    return cloud, one


def test_node_that_somebody_else_deployed_is_pushed() -> None:
    """No request of Nova depends on its holder."""
    cloud, _ = _with_foreign_server()
    cloud.show('c2')
    cloud.settle()
    assert cloud.moved == [(N1, C1, C2)]
    assert cloud.holders() == {N1: [C2]}


def test_node_is_kept_until_nova_has_said_that_its_server_is_foreign() -> None:
    """Most often Nova has the server."""
    cloud, _ = _with_foreign_server(is_noted=False)
    cloud.show('c2')
    cloud.settle()
    assert cloud.moved == []


def test_node_is_kept_if_nova_has_its_server_by_now() -> None:
    """Nova's database was restored, for instance; the server counts."""
    cloud, one = _with_foreign_server()
    cloud.nova.servers['x1'] = ServerRecord('x1', 0.0, deleted=True)
    cloud.show('c2')
    cloud.settle()
    assert cloud.moved == []
    assert one.held_nodes.foreign_server(N1) is None


def test_node_is_kept_while_nova_does_not_answer() -> None:
    """An error says nothing about the server."""
    cloud, one = _with_foreign_server()
    read = one.rows.read_servers

    def read_servers(uuids: list[str]) -> Any:
        raise Unreachable('no answer')

    one.rows.read_servers = read_servers
    cloud.show('c2')
    cloud.settle()
    assert cloud.moved == []
    one.rows.read_servers = read
    cloud.settle()
    assert cloud.moved == [(N1, C1, C2)]


def test_node_is_kept_if_it_has_another_server_by_now() -> None:
    """The foreign one was removed, and a server of Nova deployed."""
    cloud, one = _with_foreign_server()
    cloud.nodes[N1] = NodeFacts(N1, instance_uuid='s1')
    one.audit()
    cloud.show('c2')
    cloud.settle()
    assert cloud.moved == []


def test_node_is_kept_while_a_build_has_claimed_it() -> None:
    """Placement may have offered it before somebody else deployed it."""
    cloud, one = _with_foreign_server()
    one.claims.claim(N1, 's1')
    cloud.show('c2')
    cloud.settle()
    assert cloud.moved == []
    one.claims.release(N1, 's1')
    cloud.settle()
    assert cloud.moved == [(N1, C1, C2)]


def test_node_is_kept_if_nova_has_another_server_on_it() -> None:
    """Somebody else has deployed the node of a server."""
    cloud, _ = _with_foreign_server()
    cloud.nova.servers['s1'] = ServerRecord('s1', 0.0, host=C1, node=N1)
    cloud.show('c2')
    cloud.settle()
    assert cloud.moved == []


def test_nodes_are_pushed_despite_disagreement_after_disagree_s() -> None:
    """One host may be cut off from Nova for days."""
    cloud = Cloud(['node-1', 'node-2', 'node-3'])
    one = cloud.add('c1')
    cloud.show('c1')
    cloud.settle()
    cloud.add('c2')
    one.rebalancer._pace = dataclasses.replace(
        one.rebalancer._pace, disagree_s=65.0
    )
    one.show('c2', agreed=False)
    cloud.clock.advance(64.0)
    one.rebalancer.run_round()
    assert cloud.moved == []
    cloud.clock.advance(1.0)
    one.rebalancer.run_round()
    assert {new for _, _, new in cloud.moved} == {C2}


def _disagreeing() -> tuple[_Rows, Rebalancer, Any]:
    """Return an orphan that waits because the agents disagree."""
    rows, services = _Rows(), _Directory(HostMappings(lambda host: False))
    services.is_read = True
    rebalancer = _rebalancer(rows, services)
    pool: Any = rebalancer._pool
    pool.update(
        WorkerView(100.0, ring=(C1,), agreed_since_s=None, known=(C1,))
    )
    rebalancer._new_nodes._unheld.add(NodeFacts(N1))
    return rows, rebalancer, pool


def test_rows_of_waiting_nodes_are_read_every_ten_seconds() -> None:
    """The agents may disagree for hours while one has no worker."""
    rows, rebalancer, pool = _disagreeing()
    clock: Any = rebalancer._new_nodes._clock
    for _ in range(30):
        rebalancer.run_round()
        rebalancer._new_nodes._unheld.add(NodeFacts(N1))  # By a list.
        clock.advance(1.0)
    assert rows.read_count == 3
    pool.update(WorkerView(100.0, ring=(C1,), agreed_since_s=0.0, known=(C1,)))
    rebalancer.run_round()
    assert rows.given == [C1]


def test_given_node_does_not_wait() -> None:
    """The former holder sent a message that it gave the node away."""
    rows, rebalancer, _ = _disagreeing()
    rebalancer.run_round()
    rebalancer.run_round()
    assert rows.read_count == 1
    rebalancer._new_nodes._unheld.mark_given([N1])
    rebalancer.run_round()
    assert rows.read_count == 2

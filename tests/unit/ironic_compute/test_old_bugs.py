# SPDX-License-Identifier: Apache-2.0
"""Old bugs of Nova and other projects about the holders of nodes, by number.

Each test replays the events of one bug, in every order if the order matters.
The page on old bugs in the contributor manual describes the bugs.
"""

import dataclasses
import functools
import itertools
import logging
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from oslo_config import cfg

from hashring.group import Boot, Member
from hashring.membership import Membership
from hashring.ring import Host, Ring
from hashring.workers import WorkerView
from ironic_compute import errors, opts
from ironic_compute.agent.groups import group_name
from ironic_compute.feed.node_feed import NodeFeed
from ironic_compute.pool.view import PoolView, RingStatus
from ironic_compute.recovery.stray_instances import StrayInstances
from resource_tracker.node import NodeFacts, NodeId
from tests.fakes.clock import ManualClock
from tests.simulation.nova import ServerRecord
from tests.unit.ironic_compute.hosts import Cloud, One

C1, C2, C3 = Host('c1'), Host('c2'), Host('c3')
NODES = [f'node-{number}' for number in range(30)]
N = NodeId('node-1')

Steps = list[Callable[[], None]]


def cloud_of(*hosts: str, nodes: list[str] = NODES) -> Cloud:
    """Return a settled pool with these hosts in its ring."""
    made = Cloud(nodes)
    for host in hosts:
        made.add(host)
    made.show(*hosts)
    made.settle()
    assert set(made.providers) == set(made.nodes)
    made.moved.clear()
    return made


def orders(*threads: int) -> Iterator[tuple[int, ...]]:
    """Yield all orders of the steps of threads with so many steps each."""
    steps = [n for n, count in enumerate(threads) for _ in range(count)]
    seen = set()
    for order in itertools.permutations(steps):
        if order not in seen:
            seen.add(order)
            yield order


def play(order: tuple[int, ...], threads: list[Steps]) -> None:
    """Run the steps of several threads in one order."""
    waiting = [iter(steps) for steps in threads]
    for thread in order:
        next(waiting[thread])()


def serve(cloud: Cloud, host: Host, node: NodeId, server: str) -> None:
    """Put an active server on a node."""
    facts = cloud.nodes[node]
    cloud.nodes[node] = dataclasses.replace(facts, instance_uuid=server)
    cloud.nova.servers[server] = ServerRecord(
        server, 0.0, 'active', None, host, node
    )


# ---- a former holder acts on stale reads


def test_bug_1853009_no_order_of_lists_and_moves_deletes_anything() -> None:
    """The former holder pushes a node and audits lists that lack the node."""
    for order in orders(4, 1, 3):
        cloud = cloud_of('c1', nodes=[N])
        one, two = cloud.hosts[C1], cloud.add('c2')
        two.audit()
        cloud.show('c2')
        threads: list[Steps] = [
            [functools.partial(one.node_changes.audit_nodes, {})] * 4,
            [one.rebalancer.run_round],
            [two.audit, two.rebalancer.run_round, two.audit],
        ]
        play(order, threads)
        assert cloud.removed == []
        cloud.settle()
        assert cloud.removed == []
        assert cloud.holders() == {N: [C2]}
        assert cloud.providers == {N: C2}
        assert cloud.moved == [(N, C1, C2)]


def test_bug_1853009_node_given_away_is_not_deleted_by_its_giver() -> None:
    """A row whose holder has changed since it was read is not deleted."""
    cloud = cloud_of('c1', nodes=[N])
    one, two = cloud.hosts[C1], cloud.add('c2')
    stale = one.rows.list_by_host(C1)[0]
    cloud.show('c2')
    one.rebalancer.run_round()
    two.audit()
    two.rebalancer.run_round()
    assert not one.rows.delete_row(stale)
    assert cloud.holders() == {N: [C2]}


def test_bug_1841481_list_that_took_minutes_makes_nothing_foreign() -> None:
    """No provider is removed for builds and deletions during the list."""
    cloud = cloud_of('c1')
    one = cloud.hosts[C1]
    booted, deleted, enrolled = NODES[0], NODES[1], 'node-new'
    serve(cloud, C1, NodeId(deleted), 'old')
    begun = dict(cloud.nodes)

    class Ironic:
        """An Ironic whose list takes five minutes, while nodes change."""

        def list_nodes(self, **paging: object) -> tuple[NodeFacts, ...]:
            one.claims.claim(NodeId(booted), 'new')
            serve(cloud, C1, NodeId(booted), 'new')
            feed._deliver(cloud.nodes[NodeId(booted)])
            cloud.nova.servers['old'].deleted = True
            cloud.nodes[NodeId(deleted)] = NodeFacts(NodeId(deleted))
            cloud.nodes[NodeId(enrolled)] = NodeFacts(NodeId(enrolled))
            cloud.clock.advance(300.0)
            return tuple(begun.values())

        def is_in_pool(self, facts: NodeFacts) -> bool:
            return True

        def list_changed_nodes(self, stamp: str | None) -> list[NodeFacts]:
            return []

    class Sink:
        node_changed = staticmethod(one.held_nodes.accept_facts)
        audit_nodes = staticmethod(one.node_changes.audit_nodes)

    conf = cfg.ConfigOpts()
    opts.register_opts(conf)
    feed = NodeFeed(conf, Ironic(), Sink(), cloud.clock, host='c1')  # type: ignore[arg-type]
    freed: list[tuple[str, str]] = []
    for _ in range(3):
        feed._audit()
        strays = StrayInstances(
            one.held_nodes,
            one.rows,  # type: ignore[arg-type]
            one.rebalancer.follow_instance,
            lambda node, server: freed.append((node, server)),
            pytest.fail,
            Alone(),  # type: ignore[arg-type]
            lambda name, act: act(),
        )
        strays.check()
        one.rebalancer.run_round()
        one.claims.release(NodeId(booted), 'new')
        begun = dict(begun)
    assert cloud.removed == cloud.moved == []
    assert set(begun) <= set(cloud.providers)
    assert {server for _, server in freed} <= {'old'}
    facts = one.held_nodes.facts(NodeId(booted))
    assert facts is not None and facts.instance_uuid == 'new'


class Alone:
    """No task of any server is in progress."""

    def exclusive(self, server: str) -> 'Alone':
        return self

    def __enter__(self) -> bool:
        return True

    def __exit__(self, *error: object) -> None:
        pass


@pytest.mark.parametrize(
    'error',
    [errors.IronicUnavailable('500'), errors.IronicRefused('401'), None],
    ids=['no answer', 'refused', 'another pool'],
)
def test_bug_1744139_list_without_nodes_deletes_nothing(
    error: Exception | None,
) -> None:
    """Nodes that a list lacks are kept unless Ironic answers 404 for each."""
    cloud = cloud_of('c1')
    if error is not None:
        cloud.hidden = dict.fromkeys(NODES, error)
    for listed in ([], NODES[:3], [], NODES[5:9]):
        cloud.hosts[C1].audit(listed)
    assert cloud.removed == []
    assert set(cloud.providers) == set(NODES)


def test_bug_1750450_404_counts_only_twice_in_turn() -> None:
    """An error or a found node between two 404s starts the count again."""
    cloud = cloud_of('c1', nodes=[N])
    facts = cloud.nodes.pop(N)

    def audit() -> None:
        cloud.clock.advance(120.0)
        cloud.hosts[C1].audit([])

    audit()
    cloud.hidden[N] = errors.IronicUnavailable('500')
    audit()
    del cloud.hidden[N]
    audit()
    cloud.nodes[N] = facts
    audit()
    del cloud.nodes[N]
    audit()
    assert cloud.removed == []
    audit()
    assert cloud.removed == [f'provider of {N}', N]


def test_bug_947bb5f641_node_that_left_the_pool_is_logged_and_kept(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """A node of another conductor group is removed by an operator only."""
    cloud = cloud_of('c1', nodes=[N])
    cloud.nodes[N] = NodeFacts(N, conductor_group='other')
    for _ in range(3):
        cloud.hosts[C1].audit([])
    assert f'Node {N} is in Ironic but not in this pool' in caplog.text
    assert cloud.removed == []
    assert cloud.providers == {N: C1}


def test_networking_baremetal_moved_node_keeps_its_provider() -> None:
    """A node that moved to another host keeps its provider."""
    cloud = cloud_of('c1')
    cloud.add('c2')
    cloud.show('c2')
    cloud.settle()
    assert {old for _, old, _ in cloud.moved} == {C1}
    assert len(cloud.moved) == len(NODES)
    assert cloud.removed == []
    assert set(cloud.providers.values()) == {C2}


# ---- a node leaves a host and comes back


def test_bug_1777422_1784874_node_that_comes_back_has_no_old_facts() -> None:
    """The host keeps no facts and no claim of a node that it gave away."""
    cloud = cloud_of('c1', nodes=[N])
    one, two = cloud.hosts[C1], cloud.add('c2')
    cloud.show('c2')
    cloud.settle()
    assert one.held_nodes.facts(N) is None
    assert one.claims.consumer(N) is None
    serve(cloud, C2, N, 'server')
    cloud.settle()
    cloud.show('c1')
    cloud.settle()
    assert cloud.holders() == {N: [C2]}  # The node has a server, so it stays.
    cloud.nodes[N] = NodeFacts(N)
    cloud.nova.servers['server'].deleted = True
    cloud.settle()
    assert cloud.holders() == {N: [C1]}
    facts = one.held_nodes.facts(N)
    assert facts is not None and facts.instance_uuid is None
    assert two.held_nodes.facts(N) is None


# ---- two hosts take the same node


@pytest.mark.parametrize('first_count', [0, 1])
@pytest.mark.parametrize('order', sorted(orders(3, 3)))
def test_two_claims_at_once_have_one_winner(
    order: tuple[int, ...], first_count: int
) -> None:
    """Two hosts create the row of one node: in any order of their steps one
    host offers the node in the end, and never both."""
    cloud = Cloud([N])
    one, two = cloud.add('c1'), cloud.add('c2')
    steps: Steps = [one.audit, one.rebalancer.run_round]
    for side in (one, two):
        side.show(side.host)  # Each host is alone in its ring.
    create = two.rows.create_row

    def create_late(*arguments: Any) -> Any:
        for step in steps[first_count:]:
            step()
        return create(*arguments)

    two.rows.create_row = create_late  # type: ignore[method-assign]
    for step in (*steps[:first_count], two.audit, two.rebalancer.run_round):
        step()
    assert not cloud.providers
    wait = functools.partial(cloud.clock.advance, 1.0)
    ends: Steps = [wait, one.rebalancer.run_round, one.rebalancer.run_round]
    play(
        order,
        [ends, [wait, two.rebalancer.run_round, two.rebalancer.run_round]],
    )
    row = cloud.nova.live_row(N)
    assert row is not None and row.host == C2  # c2 wrote later.
    assert set(cloud.providers.values()) <= {C2}
    cloud.show('c1', 'c2')
    cloud.settle()
    (holders,) = cloud.holders().values()
    assert holders == [Ring([C1, C2]).target(N)]
    assert list(cloud.providers.values()) == holders


def test_disabled_host_gives_each_node_once() -> None:
    """The nodes of one disabled host of three move once; no other moves."""
    cloud = cloud_of('c1', 'c2', 'c3')
    before = cloud.holders()
    cloud.show('c1', 'c3')
    for _ in range(3):
        cloud.settle()
    theirs = {node for node, hosts in before.items() if hosts == [C2]}
    assert sorted(node for node, _, _ in cloud.moved) == sorted(theirs)
    assert {old for _, old, _ in cloud.moved} == {C2}
    assert [C2] not in cloud.holders().values()


def test_new_host_without_nodes_never_holds_what_another_holds() -> None:
    """No node has two holders at any time, from the join to the last push."""
    cloud = cloud_of('c1', 'c2')
    third = cloud.add('c3')
    everybody: list[One] = list(cloud.hosts.values())
    for agreed, shown in ((False, [third]), (True, everybody)):
        for one in shown:
            one.show('c1', 'c2', 'c3', agreed=agreed)
        for _ in range(3):
            for one in (third, *everybody):
                for act in (one.audit, one.rebalancer.run_round):
                    act()
                    assert max(map(len, cloud.holders().values())) == 1
    assert {new for _, _, new in cloud.moved} == {C3}
    assert set(cloud.providers.values()) == {C1, C2, C3}


def test_bug_1792872_ring_and_its_age_are_read_as_one() -> None:
    """A new ring does not inherit the age and agreement of the last one."""
    clock = ManualClock(start_s=0.0)
    pool = PoolView(clock)
    pool.update(WorkerView(9.0, ring=(C1,), agreed_since_s=0.0, known=()))
    clock.advance(60.0)
    before = pool.ring_status()
    pool.update(WorkerView(9.0, ring=(C2,), agreed_since_s=None, known=()))
    assert (before.ring, before.agreed) == (Ring([C1]), True)
    assert before.settled_for_s == 60.0
    after = pool.ring_status()
    assert (after.ring, after.agreed) == (Ring([C2]), False)
    assert after.settled_for_s == 0.0


@pytest.mark.parametrize('reads_count', range(1, 5))
def test_bug_1792872_ring_that_changes_meanwhile_pushes_nothing(
    reads_count: int,
) -> None:
    """The ring changes after any of the reads of the pool in a round."""
    cloud = cloud_of('c1')
    one = cloud.hosts[C1]
    cloud.add('c2')
    one.rebalancer._pace = dataclasses.replace(
        one.rebalancer._pace, settle_s=30
    )
    cloud.clock.advance(60.0)
    reads, read = itertools.count(1), one.pool.ring_status

    def read_and_change() -> RingStatus:
        found = read()
        if next(reads) == reads_count:
            one.show('c2')
        return found

    one.pool.ring_status = read_and_change  # type: ignore[method-assign]
    for _ in range(4):
        one.rebalancer.run_round()
    assert one.pool.ring_status().ring == Ring([C2])
    assert cloud.moved == []


def test_bug_1771806_row_with_a_uuid_of_its_own_is_not_doubled() -> None:
    """The row is found by the node's name before another one is created."""
    cloud = cloud_of('c1', nodes=[N])
    two = cloud.add('c2')
    two.rows.list_by_nodes = lambda nodes: {}  # type: ignore[method-assign]
    cloud.show('c2')
    created: list[object] = []
    two.rows.create_row = created.append  # type: ignore[assignment,method-assign]
    cloud.settle()
    assert created == []
    assert cloud.holders() == {N: [C2]}


# ---- other pools


def test_bug_2043036_another_groups_nodes_are_left_alone() -> None:
    """Rows of a dead host with a Service record are left to that host."""
    cloud = cloud_of('rack2', nodes=[N])
    del cloud.hosts[Host('rack2')]
    one = cloud.add('c1')
    cloud.show('c1')
    for _ in range(5):
        cloud.settle()
    assert cloud.moved == []
    assert one.held_nodes.rows() == {}


def test_sap_update_host_groups_do_not_meet(tmp_path: object) -> None:
    """Agents of two conductor groups or shards share one backend."""
    pools = [('rack1', None), ('rack2', None), ('rack1', 's1'), (None, None)]
    joined = []
    for number, (group, shard) in enumerate(pools):
        me = Member(Host(f'c{number}'), Boot(f'b{number}'))
        made = Membership(
            f'file://{tmp_path}',
            group_name(group, shard),
            me.home,
            me.boot,
            term_s=15.0,
        )
        made.connect()
        made.join(me)
        joined.append((made, me))
    for made, me in joined:
        assert made.members() == (me,)
        made.close(leave=False, timeout_s=5.0)


def test_bug_1811726_orphan_with_a_server_is_logged_and_left(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Only the free nodes of a host without a Service record are taken."""
    caplog.set_level(logging.INFO)
    cloud = cloud_of('c1', 'c2')
    gone = [n for n, hosts in cloud.holders().items() if hosts == [C2]]
    serve(cloud, C2, NodeId(gone[0]), 'server')
    del cloud.hosts[C2], cloud.nova.services[C2]
    cloud.show('c1')
    cloud.settle()
    assert sorted(n for n, _, _ in cloud.moved) == sorted(gone[1:])
    assert cloud.removed == []
    row = cloud.nova.live_row(gone[0])
    assert row is not None and row.host == C2
    assert f'Node {gone[0]} has an instance' in caplog.text

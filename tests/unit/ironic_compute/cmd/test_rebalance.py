# SPDX-License-Identifier: Apache-2.0
"""The table of a rebalance of the pool, and the moves that it requests."""

import dataclasses
import io
import itertools
import types
from typing import Any

import oslo_messaging
import pytest

from hashring.ring import Host
from ironic_compute.cmd import rebalance
from ironic_compute.cmd.nova_access import NovaRefused
from ironic_compute.ownership.move_plan import PlannedMove
from ironic_compute.ownership.node_moves import HostPlan, MoveResult
from ironic_compute.ownership.rebalance_order import (
    VALID_S,
    RebalanceOrder,
    RebalanceOrders,
)
from resource_tracker.node import NodeId
from tests.fakes.clock import ManualClock

C1, C2, C3 = map(Host, ('c1', 'c2', 'c3'))
FREE = PlannedMove('n1', None, 'c3')
ONE = PlannedMove('n2', 's2', 'c3')
OTHER = PlannedMove('n3', 's3', 'c1')
BUSY = PlannedMove('n4', 's4', 'c3', 'Server s4 has task rebuilding')


class Pool:
    """Workers of three hosts, which move what they are asked to move."""

    def __init__(self) -> None:
        self.plans = {
            C1: HostPlan(5, 3, (FREE, ONE)),
            C2: HostPlan(4, 2, (OTHER, BUSY)),
            C3: HostPlan(0, 0, ()),
        }
        self.asked: list[NodeId] = []
        self.errors: list[Exception] = []
        self.clock = ManualClock()

    def read_plan(self, host: Host) -> HostPlan:
        """Return the plan of a host, or fail once."""
        if self.errors:
            raise self.errors.pop()
        if host not in self.plans:
            raise oslo_messaging.MessagingTimeout
        return self.plans[host]

    def request(self, holder: Host, node: NodeId) -> MoveResult:
        """Move a node, unless it is not in the plan any more."""
        self.asked.append(node)
        if self.errors:
            raise self.errors.pop()
        plan = self.plans[holder]
        found = [move for move in plan.moves if move.node == node]
        if not found:
            return MoveResult(holder, why_not=f'{holder} lacks {node}')
        self.take(holder, found[0])
        return MoveResult(holder, found[0].server)

    def take(self, holder: Host, move: PlannedMove) -> None:
        """Give a node of a host to its target."""
        plan, servers = self.plans[holder], int(move.server is not None)
        moves = tuple(m for m in plan.moves if m.node != move.node)
        self.plans[holder] = HostPlan(
            plan.nodes_count - 1, plan.servers_count - servers, moves
        )
        target = Host(str(move.target))
        other = self.plans[target]
        self.plans[target] = dataclasses.replace(
            other,
            nodes_count=other.nodes_count + 1,
            servers_count=other.servers_count + servers,
        )

    def work(
        self, *, with_servers: bool = True, limit: int | None = None
    ) -> rebalance.PoolRebalance:
        """Return what rebalances this pool."""
        return rebalance.PoolRebalance(
            lambda: sorted(self.plans),
            self.read_plan,
            self.request,
            self.clock,
            with_servers,
            limit,
        )


@pytest.fixture
def pool() -> Pool:
    """Host c3 is new; a server of c2 has a task."""
    return Pool()


def test_table_has_what_the_run_leads_to(pool: Pool) -> None:
    """Its columns of then are those of now afterwards."""
    work = pool.work()
    plans = work.read_plans()
    table = rebalance.rows(plans, with_servers=True)
    assert table == [
        ('c1', 5, 4, 3, 3, 0),
        ('c2', 4, 2, 2, 0, 1),
        ('c3', 0, 3, 0, 2, 0),
    ]
    list(work.move_servers(plans))
    pool.take(C1, FREE)
    pool.take(C2, BUSY)
    after = rebalance.rows(work.read_plans(), with_servers=True)
    assert [row[:5] for row in after] == [
        (host, nodes, nodes, servers, servers)
        for host, _, nodes, _, servers, _ in table
    ]


def test_free_nodes_are_all_without_the_option(pool: Pool) -> None:
    """They move by themselves, and no order is given."""
    work = pool.work(with_servers=False)
    plans = work.read_plans()
    assert rebalance.rows(plans, with_servers=False) == [
        ('c1', 5, 4, 3, 3, 0),
        ('c2', 4, 4, 2, 2, 0),
        ('c3', 0, 1, 0, 0, 0),
    ]
    assert not list(work.move_servers(plans))
    assert not pool.asked


def test_what_can_be_moved_is_moved(pool: Pool) -> None:
    """A server with a task is left out."""
    work = pool.work()
    assert list(work.move_servers(work.read_plans())) == [
        'Node n2 with server s2 moved from host c1 to host c3',
        'Node n3 with server s3 moved from host c2 to host c1',
    ]
    assert pool.asked == ['n2', 'n3']


def test_waiting_ends_when_nothing_is_left(pool: Pool) -> None:
    """Each change is said once; a daemon that is away is waited for."""
    work = pool.work()
    sentences = work.work_until_done(work.read_plans())
    said = [next(sentences) for _ in range(3)]
    assert said[2] == (
        '2 nodes are left, 1 of them with a server. Server s4 has task '
        'rebuilding'
    )
    pool.take(C1, FREE)
    assert next(sentences).startswith('1 nodes are left, 1 of them')
    pool.errors = [oslo_messaging.MessagingTimeout()]
    assert 'No daemon serves host c1' in next(sentences)
    pool.plans[C2] = dataclasses.replace(
        pool.plans[C2], moves=(dataclasses.replace(BUSY, why_not=None),)
    )
    assert list(sentences) == [
        '1 nodes are left, 1 of them with a server',
        'Node n4 with server s4 moved from host c2 to host c3',
    ]


def test_command_does_not_wait_for_a_host_that_was_retired(
    pool: Pool,
) -> None:
    """Nobody serves it any more, and it has nothing to be moved."""
    pool.plans[C2] = HostPlan(1, 1, (BUSY,))
    work = pool.work()
    sentences = work.work_until_done(work.read_plans())
    assert 'moved from host c1' in next(sentences)
    assert '2 nodes are left' in next(sentences)
    del pool.plans[C2]
    pool.plans[C1] = HostPlan(1, 0, ())
    assert list(itertools.islice(sentences, 3)) == []


def test_command_waits_for_a_host_that_no_record_names_for_a_moment(
    pool: Pool,
) -> None:
    """The backend had lost the record that names it."""
    del pool.plans[C2]
    pool.plans[C1] = HostPlan(1, 0, ())
    plans = {**pool.plans, C2: HostPlan(1, 1, (BUSY,))}
    pool.clock.sleep = lambda _: pool.plans.update(plans)
    said = next(pool.work().work_until_done(plans), 'nothing')
    assert 'Server s4 has task rebuilding' in said


def test_limit_holds_for_the_whole_pool(pool: Pool) -> None:
    """The second server waits for the end of a minute."""
    work = pool.work(limit=1)
    begun_s = pool.clock.now_s()
    assert len(list(work.move_servers(work.read_plans()))) == 2
    assert pool.clock.now_s() - begun_s >= 60.0


def test_refused_move_is_said_and_the_others_go_on(pool: Pool) -> None:
    """Its state has changed since the plan was read."""
    work = pool.work()
    plans = work.read_plans()
    pool.take(C1, ONE)
    assert list(work.move_servers(plans)) == [
        'c1 lacks n2',
        'Node n3 with server s3 moved from host c2 to host c1',
    ]


def test_lost_answer_is_said(pool: Pool) -> None:
    """The node may have been moved all the same."""
    work = pool.work()
    plans = work.read_plans()
    pool.errors = [oslo_messaging.MessagingTimeout()]
    said = list(work.move_servers(plans))
    assert said[0].endswith('It may still move node n2')
    assert len(said) == 2


@pytest.mark.parametrize(
    ('fails', 'option', 'status'),
    [(True, '', 1), (True, '--wait', 0), (False, '', 0)],
)
@pytest.mark.parametrize('is_silent', [True, False])
def test_move_that_was_not_made_is_no_success(
    pool: Pool, is_silent: bool, fails: bool, option: str, status: int
) -> None:
    """A script would go on as if the servers had moved."""
    pool.plans[C1] = HostPlan(5, 3, (ONE,))
    pool.plans[C2] = HostPlan(4, 2, (OTHER,))

    class Command(rebalance.PoolRebalanceCommand):
        """Move the servers of this pool."""

        def take_action(self, parsed_args: Any) -> tuple[Any, Any]:
            """Move as the command does; the first request may fail."""
            work = pool.work()
            plans = work.read_plans()
            if fails and is_silent:
                pool.errors = [oslo_messaging.MessagingTimeout()]
            elif fails:
                pool.take(C1, ONE)
            self._carry_out(work, plans, waits=parsed_args.wait)
            return (), []

    app = types.SimpleNamespace(stdout=io.StringIO(), stderr=io.StringIO())
    command = Command(app, None)
    parsed = command.get_parser('').parse_args([option] if option else [])
    assert command.run(parsed) == status
    assert pool.asked[:2] == ['n2', 'n3']


def test_server_that_may_move_still_counts_for_the_limit(pool: Pool) -> None:
    """Its holder is slow, and would move more servers than are allowed."""
    work = pool.work(limit=1)
    plans = work.read_plans()
    pool.errors = [oslo_messaging.MessagingTimeout()]
    begun_s = pool.clock.now_s()
    assert len(list(work.move_servers(plans))) == 2
    assert pool.clock.now_s() - begun_s >= 60.0


@pytest.mark.parametrize(
    ('error', 'sentence'),
    [
        (oslo_messaging.MessagingTimeout(), 'No daemon serves host c1'),
        (
            oslo_messaging.RemoteError('UnsupportedVersion'),
            'cannot rebalance the pool',
        ),
        (oslo_messaging.UnsupportedVersion('1.5'), 'is of an older release'),
    ],
)
def test_host_that_does_not_answer_is_a_refusal(
    pool: Pool, error: Any, sentence: str
) -> None:
    """Before the first move: the table would be wrong."""
    pool.errors = [error]
    with pytest.raises(NovaRefused, match=sentence):
        pool.work().read_plans()


def test_target_that_nobody_has_named_has_a_row(pool: Pool) -> None:
    """Its agent joined after the members were read."""
    del pool.plans[C3]
    table = rebalance.rows(pool.plans, with_servers=True)
    assert table[-1] == ('c3', 0, 3, 0, 2, 0)


class Orders:
    """The workers of three hosts, which know the order under way."""

    def __init__(self) -> None:
        self.clock = ManualClock()
        self.hosts = {h: RebalanceOrders(self.clock) for h in (C1, C2, C3)}
        self.away: set[Host] = set()
        self.began: list[Host] = []

    def begin(
        self, host: Host, order: RebalanceOrder, *, is_dry_run: bool
    ) -> str | None:
        """Do what the worker of a host does."""
        self._reach(host)
        self.began.append(host)
        return self.hosts[host].begin(order, is_dry_run=is_dry_run)

    def end(self, host: Host, order: RebalanceOrder) -> None:
        """Do what the worker of a host does."""
        self._reach(host)
        self.hosts[host].end(order.key)

    def _reach(self, host: Host) -> None:
        if host in self.away:
            raise oslo_messaging.MessagingTimeout

    def order(self, by: str) -> rebalance.PoolOrder:
        """Return the order of a command."""
        return rebalance.PoolOrder(
            self.hosts,
            RebalanceOrder(f'key of {by}', by),
            self.begin,
            self.end,
            self.clock,
        )


def test_second_command_is_refused_until_the_first_has_ended() -> None:
    """The first host decides; the second command leaves nothing behind."""
    orders = Orders()
    ann, bob = orders.order('ann'), orders.order('bob')
    ann.begin()
    assert orders.began == [C1, C2, C3]
    for is_dry_run in (True, False):
        with pytest.raises(NovaRefused, match='ordered by ann'):
            bob.begin(is_dry_run=is_dry_run)
    bob.end()
    ann.end()
    bob.begin(is_dry_run=True)
    bob.begin()
    with pytest.raises(NovaRefused, match='ordered by bob'):
        ann.begin()


def test_order_is_repeated_for_as_long_as_the_command_works() -> None:
    """A worker that was started anew learns of it."""
    orders = Orders()
    ann, bob = orders.order('ann'), orders.order('bob')
    ann.begin()
    ann.repeat_if_due()
    assert len(orders.began) == 3
    orders.hosts[C1] = RebalanceOrders(orders.clock)
    orders.away = {C2}
    for _ in range(20):
        orders.clock.advance(31.0)
        ann.repeat_if_due()
    orders.away = set()
    with pytest.raises(NovaRefused, match='ordered by ann'):
        bob.begin()


def test_order_that_was_lost_is_said() -> None:
    """The machine of the command was suspended; another one has begun."""
    orders = Orders()
    ann, bob = orders.order('ann'), orders.order('bob')
    ann.begin()
    orders.clock.advance(VALID_S)
    bob.begin()
    with pytest.raises(NovaRefused, match='ordered by bob'):
        ann.repeat_if_due()


def test_order_needs_all_hosts_at_its_begin() -> None:
    """The end does not: that host forgets the order by itself."""
    orders = Orders()
    ann = orders.order('ann')
    orders.away = {C3}
    with pytest.raises(NovaRefused, match='No daemon serves host c3'):
        ann.begin()
    ann.end()
    orders.away = set()
    orders.order('bob').begin()

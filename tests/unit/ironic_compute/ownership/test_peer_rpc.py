# SPDX-License-Identifier: Apache-2.0
"""RPC between workers, on oslo.messaging's driver for RabbitMQ."""

import queue
from collections.abc import Iterable, Iterator
from typing import Any

import oslo_messaging
import pytest
from nova import rpc as nova_rpc
from nova.compute import rpcapi
from oslo_config import cfg

from hashring.ring import Host
from ironic_compute.ironic_api.node_pool import NodePool
from ironic_compute.journal.moves import LIMIT_MAX, Query
from ironic_compute.nodes.changes_read import ChangesRead
from ironic_compute.nodes.listed_nodes import ListPart
from ironic_compute.nodes.pins import Pin
from ironic_compute.ownership import peer_endpoints, peer_rpc
from ironic_compute.ownership.departures import Asker
from ironic_compute.ownership.move_plan import PlannedMove
from ironic_compute.ownership.node_moves import (
    HostPlan,
    MoveResult,
    UnpinResult,
)
from ironic_compute.ownership.rebalance_order import (
    RebalanceOrder,
    RebalanceOrders,
)
from ironic_compute.pool.foreign_hosts import Answer
from resource_tracker.node import NodeId
from tests.fakes.clock import ManualClock
from tests.unit.ironic_compute.journal.made_up import move

C1, STOCK, N1 = Host('c1'), Host('stock'), NodeId('n1')
GIVEN: queue.Queue[list[NodeId]] = queue.Queue()
CHECKED: queue.Queue[Any] = queue.Queue()
READ: queue.Queue[ChangesRead] = queue.Queue()
LISTED: queue.Queue[ListPart] = queue.Queue()


class Requests:
    """Refuses the requests of an operator."""

    def adopt_host(self, host: Host) -> str:
        return f'cannot adopt {host}'

    def forget_host(self, host: Host) -> str:
        return f'cannot forget {host}'

    def confirm_mapping(self, host: Host) -> str:
        return f'cannot confirm {host}'


class Moves:
    """Answers with what it was asked."""

    def __init__(self) -> None:
        self.orders = RebalanceOrders(ManualClock())

    def move(
        self,
        node: NodeId,
        pin: Pin,
        *,
        replaces: bool,
        is_dry_run: bool,
        changes_zone: bool,
    ) -> MoveResult:
        zone = ', zone' if changes_zone else ''
        options = f'{replaces}, {is_dry_run}{zone}'
        return MoveResult('c1', node, f'{pin.host} by {pin.by}: {options}')

    def unpin(self, node: NodeId) -> UnpinResult:
        return UnpinResult('c1', 'c9', 'c1', f'cannot unpin {node}')

    def plan(self, *, changes_zone: bool) -> HostPlan:
        why_not = None if changes_zone else 'it waits'
        return HostPlan(5, 2, (PlannedMove('n1', 's1', 'c9', why_not),))

    def rebalance(
        self, node: NodeId, order: str, *, changes_zone: bool
    ) -> MoveResult:
        zone = ', zone' if changes_zone else ''
        return MoveResult('c1', f'server of {node}', f'{order}{zone}')


class Drain:
    """Refuses the orders of an operator, and has a plan."""

    def begin(
        self, limit: int | None, *, retires: bool, changes_zone: bool
    ) -> str:
        what = 'retire' if retires else 'drain'
        zone = ', zone' if changes_zone else ''
        return f'cannot {what}, {limit} a minute{zone}'

    def check(self, *, retires: bool) -> str:
        return f'cannot {"retire" if retires else "drain"}'

    def end(self) -> str:
        return 'cannot end'

    def plan(self, *, changes_zone: bool) -> list[PlannedMove]:
        why_not = None if changes_zone else 'it has a task'
        return [PlannedMove('n1', 's1', 'c9', why_not)]


class OtherPool:
    """Records which nodes it was asked for."""

    def __init__(self) -> None:
        self.asked: queue.Queue[Any] = queue.Queue()

    def request_nodes(self, nodes: Iterable[NodeId], asker: Asker) -> None:
        self.asked.put((list(nodes), asker))


OTHER_POOL: Any = OtherPool()


def _read_moves(query: Query) -> list[Any]:
    """Return one move, which tells what was asked."""
    return [move(int(query.since_s), host=query.host, seconds=query.limit)]


class StockEndpoint:
    """The endpoint of a stock nova-compute: another RPC namespace."""

    target = oslo_messaging.Target(version='6.0')


@pytest.fixture(autouse=True, scope='module')
def _serve() -> Iterator[None]:
    """Start a worker's server of host c1 and a stock one of another host."""
    transport = oslo_messaging.get_rpc_transport(cfg.CONF, 'kombu+memory:////')
    requests: Any = Requests()
    moves: Any = Moves()
    drain: Any = Drain()
    peer = peer_endpoints.PeerEndpoint(
        GIVEN.put, lambda node: f'cannot forget {node}', requests
    )
    servers = [
        oslo_messaging.get_rpc_server(
            transport,
            oslo_messaging.Target(topic=rpcapi.RPC_TOPIC, server=host),
            endpoints,
            executor='threading',
        )
        for host, endpoints in (
            (
                C1,
                [
                    peer,
                    peer_endpoints.ChecksEndpoint(
                        lambda *named: CHECKED.put(named)
                    ),
                    peer_endpoints.MovesEndpoint(moves, drain),
                    peer_endpoints.PoolsEndpoint(OTHER_POOL),
                    peer_endpoints.HistoryEndpoint(_read_moves),
                    peer_endpoints.DirtyNodesEndpoint(lambda: {N1: 2.5}),
                    peer_endpoints.FeedEndpoint(READ.put, LISTED.put),
                ],
            ),
            (STOCK, [StockEndpoint()]),
        )
    ]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(nova_rpc, 'TRANSPORT', transport)
        for server in servers:
            server.start()
        yield
    for act in ('stop', 'wait'):
        for server in servers:
            getattr(server, act)()
    transport.cleanup()


def test_given_nodes_arrive() -> None:
    """The host that gets nodes receives their uuids in one cast."""
    peer_rpc.notify_given(C1, [N1])
    assert GIVEN.get(timeout=10.0) == [N1]


@pytest.mark.parametrize('fingerprints', [{N1: 'f1'}, {}, None])
def test_changes_arrive_as_they_were_read(fingerprints: Any) -> None:
    """They are a cast: nobody waits for an answer."""
    read = ChangesRead('since', 'next', fingerprints)
    peer_rpc.notify_changes(C1, read)
    assert READ.get(timeout=10.0) == read


def test_part_of_a_list_arrives_as_it_was_read() -> None:
    """It is a cast, too."""
    part = ListPart(C1, 12.5, number=1, count=3, fingerprints={N1: 'f1'})
    peer_rpc.notify_listed(C1, part)
    assert LISTED.get(timeout=10.0) == part


def test_requests_return_the_sentence_of_the_worker() -> None:
    """The sentence that says why not reaches the caller."""
    assert peer_rpc.request_forget_node(C1, N1) == 'cannot forget n1'
    adopted = peer_rpc.request_adopt_host(C1, Host('c9'))
    assert adopted == 'cannot adopt c9'
    forgotten = peer_rpc.request_forget_host(C1, Host('c9'))
    assert forgotten == 'cannot forget c9'
    confirmed = peer_rpc.request_confirm_mapping(C1, Host('c9'))
    assert confirmed == 'cannot confirm c9'


def test_moves_return_what_has_become_of_them() -> None:
    """A dry run is another question to the same worker."""
    pin = Pin(Host('c9'), 'root')
    for replaces, is_dry_run in ((False, True), (True, False)):
        assert peer_rpc.request_move_node(
            C1, N1, pin, replaces=replaces, is_dry_run=is_dry_run
        ) == MoveResult('c1', N1, f'c9 by root: {replaces}, {is_dry_run}')
    answer = peer_rpc.request_move_node(
        C1, N1, pin, replaces=False, is_dry_run=False, changes_zone=True
    )
    assert answer.why_not == 'c9 by root: False, False, zone'
    assert peer_rpc.request_unpin_node(C1, N1) == UnpinResult(
        'c1', 'c9', 'c1', 'cannot unpin n1'
    )


def test_plan_of_a_rebalance_arrives_as_it_was_sent() -> None:
    """The moves of it are requested one by one."""
    moves = (PlannedMove('n1', 's1', 'c9', 'it waits'),)
    assert peer_rpc.request_rebalance_plan(C1) == HostPlan(5, 2, moves)
    assert peer_rpc.request_rebalance_node(C1, N1, 'k1') == MoveResult(
        'c1', 'server of n1', 'k1'
    )


def test_drain_is_ordered_and_its_plan_is_read() -> None:
    """The plan arrives as it was sent, with the reasons."""
    assert peer_rpc.request_drain(C1, 7) == 'cannot drain, 7 a minute'
    assert peer_rpc.request_retire(C1, 7) == 'cannot retire, 7 a minute'
    assert peer_rpc.request_drain_check(C1, retires=True) == 'cannot retire'
    assert peer_rpc.request_undrain(C1) == 'cannot end'
    plan = [PlannedMove('n1', 's1', 'c9', 'it has a task')]
    assert peer_rpc.request_drain_plan(C1) == plan


def test_consent_to_another_zone_arrives_with_each_request() -> None:
    """Nothing is moved to another zone without it."""
    drained = peer_rpc.request_drain(C1, 7, changes_zone=True)
    assert drained == 'cannot drain, 7 a minute, zone'
    retired = peer_rpc.request_retire(C1, None, changes_zone=True)
    assert retired == 'cannot retire, None a minute, zone'
    moves = [PlannedMove('n1', 's1', 'c9')]
    assert peer_rpc.request_drain_plan(C1, changes_zone=True) == moves
    plan = peer_rpc.request_rebalance_plan(C1, changes_zone=True)
    assert plan.moves == tuple(moves)
    moved = peer_rpc.request_rebalance_node(C1, N1, 'k1', changes_zone=True)
    assert moved.why_not == 'k1, zone'


def test_check_is_begun_with_what_is_named() -> None:
    """The answer comes before the check has ended."""
    peer_rpc.request_check(C1, ['s1', 's2'], [NodeId('n1')])
    assert CHECKED.get(timeout=10.0) == (['s1', 's2'], ['n1'])
    with pytest.raises(oslo_messaging.RemoteError):
        peer_rpc.request_check(STOCK, [])


def test_order_to_rebalance_is_begun_and_ended() -> None:
    """A second one is told who has given the first."""
    ann, bob = RebalanceOrder('k1', 'ann'), RebalanceOrder('k2', 'bob')
    begin = peer_rpc.request_begin_rebalance
    assert begin(C1, ann, is_dry_run=True) is None
    assert begin(C1, bob, is_dry_run=False) is None
    assert 'ordered by bob' in (begin(C1, ann, is_dry_run=True) or '')
    peer_rpc.request_end_rebalance(C1, bob)
    assert begin(C1, ann, is_dry_run=False) is None
    peer_rpc.request_end_rebalance(C1, ann)


def test_moves_arrive_as_they_were_read() -> None:
    """No answer has more of them than one message holds."""
    query = Query(host='c9', since_s=7.0, limit=LIMIT_MAX + 1)
    assert peer_rpc.request_moves(C1, query) == [
        move(7, host='c9', seconds=float(LIMIT_MAX))
    ]
    with pytest.raises(oslo_messaging.RemoteError):
        peer_rpc.request_moves(STOCK, query)


def test_dirty_nodes_arrive_with_their_ages() -> None:
    """They are those of one host."""
    assert peer_rpc.request_dirty_nodes(C1) == {N1: 2.5}


def test_older_release_cannot_move_nodes() -> None:
    """Its worker answers that it lacks the message."""
    with pytest.raises(oslo_messaging.RemoteError):
        peer_rpc.request_unpin_node(STOCK, N1)


def test_stock_nova_compute_is_not_ironic_compute() -> None:
    """A stock nova-compute answers that it lacks the RPC namespace."""
    assert peer_rpc.is_ironic_compute(C1) is True
    assert peer_rpc.is_ironic_compute(STOCK) is False


def test_queue_that_is_read_answers() -> None:
    """A worker sends itself a message; nobody reads the queue of host c7."""
    peer_rpc.check_queue(C1, 10.0, 1)
    peer_rpc.check_queue(STOCK, 10.0, 1)
    with pytest.raises(oslo_messaging.MessagingTimeout):
        peer_rpc.check_queue(Host('c7'), 0.1, 1)


@pytest.mark.parametrize('pool', [NodePool(), NodePool('', 's1')])
def test_host_of_another_pool_is_asked_for_nodes(pool: NodePool) -> None:
    """It learns who asks, and for which pool."""
    asker = Asker(Host('d1'), pool)
    answer = peer_rpc.request_nodes(C1, [N1], asker)
    assert answer is Answer.RECEIVED
    assert OTHER_POOL.asked.get(timeout=10) == ([N1], asker)


def test_host_that_cannot_give_nodes_or_does_not_answer(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """An older release, and a host that nobody serves."""
    asker = Asker(Host('d1'), NodePool())
    assert peer_rpc.request_nodes(STOCK, [N1], asker) is Answer.UNKNOWN
    monkeypatch.setattr(peer_rpc, '_HELLO_TIMEOUT_S', 0.2)
    nobody = Host('nobody')
    assert peer_rpc.request_nodes(nobody, [N1], asker) is Answer.NONE

# SPDX-License-Identifier: Apache-2.0
"""What an operator says of a host is believed where nobody knows better."""

from typing import Any

import pytest

from hashring.ring import Host
from hashring.workers import HostAdded, MappingConfirmed, WorkerView
from ironic_compute.ownership.operator_requests import OperatorRequests
from ironic_compute.pool.host_mappings import Mapped
from resource_tracker.node import NodeId
from tests.simulation.nova import ServiceRecord
from tests.unit.ironic_compute.hosts import Cloud

C1, C9 = Host('c1'), Host('c9')
NODES = ['n1', 'n2']


class Desk:
    """The orders of host c1, in a pool of two nodes that c1 holds."""

    def __init__(self) -> None:
        self.cloud = Cloud(NODES)
        self.one = self.cloud.add('c1')
        self.cloud.show('c1')
        self.cloud.settle()
        self.is_ironic_compute: bool | None = None
        self.mapped = Mapped.UNREADABLE
        self.listed = [NodeId(node) for node in NODES]
        self.told: list[Any] = []
        self.losses_count = 0
        rows: Any = self.one.rows
        self.orders = OperatorRequests(
            self.one.pool,
            rows,
            self.cloud.clock,
            make_directory=lambda: self.one.services,
            is_ironic_compute=lambda host: self.is_ironic_compute,
            list_nodes=lambda: self.listed,
            read_mapping=lambda host: self.mapped,
            send_to_agent=self._tell,
        )

    def add_service(self, host: Host, *, is_up: bool) -> None:
        """Have Nova know a host that the pool does not."""
        nova = self.cloud.nova
        reported_s = 0.0 if is_up else -1e9
        nova.services[host] = ServiceRecord(
            nova.new_id(), host, reported_s=reported_s
        )

    def move(self, *nodes: str) -> None:
        """Have rows name c9."""
        for node in nodes:
            row = self.cloud.nova.live_row(node)
            assert row is not None
            row.host = C9

    def _tell(self, order: HostAdded | MappingConfirmed) -> None:
        """Be the agent: one that may miss the first messages."""
        self.told.append(order)
        if len(self.told) <= self.losses_count:
            return
        known, vouched = {C1}, set()
        (known if isinstance(order, HostAdded) else vouched).add(order.host)
        self.one.pool.update(
            WorkerView(
                1e9,
                ring=(C1,),
                agreed_since_s=0.0,
                known=tuple(sorted(known)),
                confirmed_mappings=tuple(vouched),
            )
        )


@pytest.fixture
def desk() -> Desk:
    """Where orders come in."""
    return Desk()


@pytest.mark.parametrize('losses_count', [0, 3])
def test_orphan_is_adopted_once_the_agent_shows_it(
    desk: Desk, losses_count: int
) -> None:
    """A lost message to the agent is sent again."""
    desk.add_service(C9, is_up=False)
    desk.move('n2')
    desk.losses_count = losses_count
    assert desk.orders.adopt_host(C9) is None
    assert desk.told == [HostAdded(C9)] * (losses_count + 1)
    assert desk.orders.adopt_host(C9) is None  # Known already.
    assert len(desk.told) == losses_count + 1


def test_host_without_nodes_is_adopted(desk: Desk) -> None:
    """All its nodes were pushed, or deleted, before it was lost."""
    desk.add_service(C9, is_up=False)
    assert desk.orders.adopt_host(C9) is None


def test_agent_that_does_not_hear_is_told_of(desk: Desk) -> None:
    """The operator is not told that it is done."""
    desk.add_service(C9, is_up=False)
    desk.losses_count = 999
    assert 'has not shown yet' in (desk.orders.adopt_host(C9) or '')


def test_host_that_nova_does_not_know_is_refused(desk: Desk) -> None:
    """Nobody but its own daemon may create it."""
    assert 'no Service record' in (desk.orders.adopt_host(C9) or '')
    assert not desk.told


@pytest.mark.parametrize(
    ('is_ironic_compute', 'sentence'),
    [
        (True, 'A daemon of another pool serves host c9'),
        (False, 'A nova-compute that is not ours serves host c9'),
        (None, 'does not answer'),
    ],
)
def test_host_that_is_up_is_refused(
    desk: Desk, is_ironic_compute: bool | None, sentence: str
) -> None:
    """Somebody serves it, or did a moment ago."""
    desk.add_service(C9, is_up=True)
    desk.is_ironic_compute = is_ironic_compute
    assert sentence in (desk.orders.adopt_host(C9) or '')
    assert not desk.told


def test_host_whose_nodes_are_of_another_pool_is_refused(desk: Desk) -> None:
    """All agents of that pool may be down just now."""
    desk.add_service(C9, is_up=False)
    desk.move('n2')
    desk.listed = [NodeId('n1')]
    assert 'holds 1 nodes and none' in (desk.orders.adopt_host(C9) or '')
    assert not desk.told


@pytest.mark.parametrize('mapped', [Mapped.UNREADABLE, Mapped.NO_ANSWER])
def test_host_is_vouched_for_where_nova_does_not_tell(
    desk: Desk, mapped: Mapped
) -> None:
    """The agent writes it down."""
    desk.mapped = mapped
    assert desk.orders.confirm_mapping(C1) is None
    assert desk.told == [MappingConfirmed(C1)]


@pytest.mark.parametrize(
    ('mapped', 'sentence'),
    [(Mapped.YES, None), (Mapped.NO, 'discover_hosts --by-service')],
)
def test_word_of_nova_counts_more(
    desk: Desk, mapped: Mapped, sentence: str | None
) -> None:
    """Nothing is written down that Nova tells itself."""
    desk.mapped = mapped
    answer = desk.orders.confirm_mapping(C1)
    assert answer is None if sentence is None else sentence in (answer or '')
    assert not desk.told


def test_unknown_host_is_not_vouched_for(desk: Desk) -> None:
    """A typing error would lie on every disk for ever."""
    assert 'is not known in this pool' in (
        desk.orders.confirm_mapping(C9) or ''
    )
    assert not desk.told

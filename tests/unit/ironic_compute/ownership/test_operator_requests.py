# SPDX-License-Identifier: Apache-2.0
"""Requests of an operator: adding a host, confirming a host mapping."""

from typing import Any

import pytest

from hashring.ring import Host
from hashring.workers import (
    HostAdded,
    HostForgotten,
    MappingConfirmed,
    OperatorRequest,
    WorkerView,
)
from ironic_compute import errors
from ironic_compute.ownership.operator_requests import OperatorRequests
from ironic_compute.pool.host_mappings import Mapped
from resource_tracker.node import NodeFacts, NodeId
from tests.simulation.nova import ServerRecord, ServiceRecord
from tests.unit.ironic_compute.hosts import Cloud

C1, C9 = Host('c1'), Host('c9')
NODES = ['n1', 'n2']


class Ironic:
    """The nodes of a cloud; each read is counted and takes some time."""

    def __init__(self, cloud: Cloud) -> None:
        self._cloud = cloud
        self.is_in_pool = cloud.is_in_pool
        self.reads: list[NodeId] = []
        self.read_s = 0.0

    def read_node(self, node: NodeId) -> NodeFacts:
        """See IronicReader."""
        self.reads.append(node)
        self._cloud.clock.advance(self.read_s)
        return self._cloud.read_node(node)


class Desk:
    """A worker of host c1 that receives requests; c1 holds two nodes."""

    def __init__(self) -> None:
        self.cloud = Cloud(NODES)
        self.one = self.cloud.add('c1')
        self.cloud.show('c1')
        self.cloud.settle()
        self.is_ironic_compute: bool | None = None
        self.mapped = Mapped.UNREADABLE
        self.sent: list[Any] = []
        self.losses_count = 0
        self.ironic: Any = Ironic(self.cloud)
        rows: Any = self.one.rows
        self.requests = OperatorRequests(
            self.one.pool,
            rows,
            self.cloud.clock,
            self.ironic,
            make_directory=lambda: self.one.services,
            is_ironic_compute=lambda host: self.is_ironic_compute,
            read_mapping=lambda host: self.mapped,
            send_to_agent=self._send,
        )

    def add_service(self, host: Host, *, is_up: bool) -> None:
        """Add a Service record of a host that is not in the pool."""
        nova = self.cloud.nova
        reported_s = 0.0 if is_up else -1e9
        nova.services[host] = ServiceRecord(
            nova.new_id(), host, reported_s=reported_s
        )

    def move(self, *nodes: str) -> None:
        """Make c9 the holder of nodes."""
        for node in nodes:
            row = self.cloud.nova.live_row(node)
            assert row is not None
            row.host = C9

    def move_to_other_pool(self, *nodes: str) -> None:
        """Give nodes another conductor group in Ironic."""
        for node in map(NodeId, nodes):
            self.cloud.nodes[node] = NodeFacts(node, conductor_group='other')

    def _send(self, message: OperatorRequest) -> None:
        """Answer as the agent, unless the message is one of those lost."""
        self.sent.append(message)
        if len(self.sent) <= self.losses_count:
            return
        known, vouched = {C1}, set()
        match message:
            case HostAdded(host=host):
                known.add(host)
            case MappingConfirmed(host=host):
                vouched.add(host)
            case HostForgotten():
                pass  # It is not shown any more.
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
    """Return a worker that receives requests."""
    return Desk()


@pytest.mark.parametrize('losses_count', [0, 3])
def test_orphan_is_adopted_once_the_agent_shows_it(
    desk: Desk, losses_count: int
) -> None:
    """A lost message to the agent is sent again."""
    desk.add_service(C9, is_up=False)
    desk.move('n2')
    desk.losses_count = losses_count
    assert desk.requests.adopt_host(C9) is None
    assert desk.sent == [HostAdded(C9)] * (losses_count + 1)
    assert desk.requests.adopt_host(C9) is None  # It is in the pool already.
    assert len(desk.sent) == losses_count + 1


def test_host_without_nodes_is_adopted(desk: Desk) -> None:
    """Its nodes may have been pushed or deleted before its agent died."""
    desk.add_service(C9, is_up=False)
    assert desk.requests.adopt_host(C9) is None


def test_agent_that_never_applies_a_request_is_named(desk: Desk) -> None:
    """The operator reads that the request has not been carried out."""
    desk.add_service(C9, is_up=False)
    desk.losses_count = 999
    assert 'is not carried out yet' in (desk.requests.adopt_host(C9) or '')


def test_host_without_a_service_record_is_refused(desk: Desk) -> None:
    """Only the host's own daemon may create its Service record."""
    assert 'no Service record' in (desk.requests.adopt_host(C9) or '')
    assert not desk.sent


@pytest.mark.parametrize(
    ('is_ironic_compute', 'sentence'),
    [
        (True, 'A daemon of another pool serves host c9'),
        (False, 'A nova-compute outside of this pool serves host c9'),
        (None, 'does not answer'),
    ],
)
def test_host_that_is_up_is_refused(
    desk: Desk, is_ironic_compute: bool | None, sentence: str
) -> None:
    """A host that is up is served, or was a moment ago."""
    desk.add_service(C9, is_up=True)
    desk.is_ironic_compute = is_ironic_compute
    assert sentence in (desk.requests.adopt_host(C9) or '')
    assert not desk.sent


def test_host_whose_nodes_are_of_another_pool_is_refused(desk: Desk) -> None:
    """The agents of the host's own pool may all be down for a while."""
    desk.add_service(C9, is_up=False)
    desk.move('n1', 'n2')
    desk.move_to_other_pool('n1', 'n2')
    answer = desk.requests.adopt_host(C9) or ''
    assert 'holds 2 nodes and none of them is in this pool' in answer
    assert not desk.sent


@pytest.mark.parametrize(
    'error',
    [
        errors.NodeNotFound('deleted'),
        errors.IronicRefused('400: neither a uuid nor a name'),
    ],
)
def test_node_that_ironic_does_not_show_is_not_of_the_pool(
    desk: Desk, error: errors.IronicComputeError
) -> None:
    """It was deleted, or its row is of a nova-compute for other hardware."""
    desk.add_service(C9, is_up=False)
    desk.move('n1', 'n2')
    desk.cloud.hidden = {'n1': error, 'n2': error}
    assert 'holds 2 nodes and none' in (desk.requests.adopt_host(C9) or '')
    del desk.cloud.hidden['n2']
    assert desk.requests.adopt_host(C9) is None


def test_machine_with_the_name_of_a_node_is_not_of_the_pool(
    desk: Desk,
) -> None:
    """Ironic finds a node by its name, too."""
    desk.add_service(C9, is_up=False)
    desk.move('n2')
    desk.cloud.nodes[NodeId('n2')] = NodeFacts(NodeId('n7'), name='n2')
    assert 'holds 1 nodes and none' in (desk.requests.adopt_host(C9) or '')


@pytest.mark.parametrize(
    'error', [errors.IronicUnavailable, errors.IronicForbidden]
)
def test_host_is_not_judged_without_an_answer_of_ironic(
    desk: Desk, error: Any
) -> None:
    """The command shows the error."""
    desk.add_service(C9, is_up=False)
    desk.move('n2')
    desk.cloud.hidden = {'n2': error('why')}
    with pytest.raises(error):
        desk.requests.adopt_host(C9)
    assert not desk.sent


def test_no_more_nodes_are_read_than_needed(desk: Desk) -> None:
    """The first node that is in the pool decides."""
    desk.add_service(C9, is_up=False)
    desk.move('n1', 'n2')
    assert desk.requests.adopt_host(C9) is None
    assert len(desk.ironic.reads) == 1


def test_refusal_comes_before_the_command_ceases_to_wait(desk: Desk) -> None:
    """The request of the operator waits for an answer for 30 s."""
    desk.add_service(C9, is_up=False)
    desk.move('n1', 'n2')
    desk.move_to_other_pool('n1', 'n2')
    desk.ironic.read_s = 15.0
    began_s = desk.cloud.clock.now_s()
    answer = desk.requests.adopt_host(C9) or ''
    assert desk.cloud.clock.now_s() - began_s < 30.0
    assert 'holds 2 nodes and none of the 1 that were read' in answer
    assert not desk.sent


@pytest.mark.parametrize('mapped', [Mapped.UNREADABLE, Mapped.NO_ANSWER])
def test_mapping_is_confirmed_if_nova_has_no_answer(
    desk: Desk, mapped: Mapped
) -> None:
    """The confirmation is sent to the agent, which stores it."""
    desk.mapped = mapped
    assert desk.requests.confirm_mapping(C1) is None
    assert desk.sent == [MappingConfirmed(C1)]


@pytest.mark.parametrize(
    ('mapped', 'sentence'),
    [(Mapped.YES, None), (Mapped.NO, 'discover_hosts --by-service')],
)
def test_mapping_is_not_confirmed_if_nova_answers(
    desk: Desk, mapped: Mapped, sentence: str | None
) -> None:
    """Nothing is stored that can be read from Nova."""
    desk.mapped = mapped
    answer = desk.requests.confirm_mapping(C1)
    assert answer is None if sentence is None else sentence in (answer or '')
    assert not desk.sent


def test_mapping_of_an_unknown_host_is_refused(desk: Desk) -> None:
    """A mistyped name would otherwise be stored by every agent for ever."""
    assert 'is not a host of this pool' in (
        desk.requests.confirm_mapping(C9) or ''
    )
    assert not desk.sent


def show_pool(desk: Desk, *ring: str, agreed: bool = True) -> None:
    """Show the worker a pool of c1 and c9, with some of them in the ring."""
    desk.one.pool.update(
        WorkerView(
            1e9,
            ring=tuple(map(Host, ring)),
            agreed_since_s=0.0 if agreed else None,
            known=(C1, C9),
        )
    )


@pytest.mark.parametrize('losses_count', [0, 3])
def test_host_is_forgotten_once_the_agent_shows_it(
    desk: Desk, losses_count: int
) -> None:
    """A lost message is sent again; a second request finds nothing to do."""
    show_pool(desk, 'c1')
    desk.losses_count = losses_count
    assert desk.requests.forget_host(C9) is None
    assert desk.sent == [HostForgotten(C9)] * (losses_count + 1)
    assert desk.requests.forget_host(C9) is None
    assert len(desk.sent) == losses_count + 1


def test_host_with_nodes_or_servers_is_not_forgotten(desk: Desk) -> None:
    """Nobody would serve them any more."""
    show_pool(desk, 'c1')
    desk.move('n2')
    assert 'holds 1 nodes' in (desk.requests.forget_host(C9) or '')
    server = ServerRecord('s1', 'n2', host=C9)
    desk.cloud.nova.servers['s1'] = server
    desk.cloud.nova.rows.clear()
    assert 'has 1 servers' in (desk.requests.forget_host(C9) or '')
    assert not desk.sent


@pytest.mark.parametrize(
    ('ring', 'agreed', 'sentence'),
    [(('c1', 'c9'), True, 'host drain c9'), (('c1',), False, 'do not agree')],
)
def test_host_that_may_get_nodes_is_not_forgotten(
    desk: Desk, ring: tuple[str, ...], sentence: str, *, agreed: bool
) -> None:
    """Another worker may be giving it a node at this moment."""
    show_pool(desk, *ring, agreed=agreed)
    assert sentence in (desk.requests.forget_host(C9) or '')
    assert not desk.sent

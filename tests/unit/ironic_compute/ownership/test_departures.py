# SPDX-License-Identifier: Apache-2.0
"""Nodes that have left the pool go to the pool that asks, or stay."""

import dataclasses
from collections.abc import Callable
from typing import Any

import pytest

from hashring.ring import Host
from ironic_compute import errors
from ironic_compute.gate import LeaseGate
from ironic_compute.ironic_api.node_pool import NodePool
from ironic_compute.nodes.pins import Pin, read_pin, set_pin
from ironic_compute.ownership.departures import (
    RETRY_S,
    VALID_S,
    Asker,
    Departures,
)
from ironic_compute.ownership.pacing import RowWriters
from resource_tracker.node import NodeId
from tests.simulation.compute import Inline
from tests.simulation.faults import Unreachable
from tests.simulation.nova import ServiceRecord
from tests.unit.ironic_compute.ownership.moving import C1, S1, Desk

D1, RACK_2 = Host('d1'), NodePool('rack-2')
D = Asker(D1, RACK_2)


class Leaving(Desk):
    """Host c1, whose nodes leave for the pool of host d1."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        super().__init__(patch)
        nova = self.cloud.nova
        nova.services[D1] = ServiceRecord(nova.new_id(), D1, mapped=True)
        self.reads_requested: list[NodeId] = []
        self.wakes_count = 0
        self.one.moved.clear()
        self.departures = Departures(
            self.one.held_nodes,
            self.evictor._client,
            self.evictor,
            self.one.rebalancer.push,
            self.one.new_nodes.hold_if_ours,
            self.reads_requested.append,
            lambda host, nodes: self.told.append((host, nodes)),
            self.gate,
            self.cloud.clock,
            RowWriters(1, Inline(None)),
            2,
            self._wake,
            self.one.moves,
        )

    def _wake(self) -> None:
        self.wakes_count += 1

    def leave(self, node: NodeId, group: str = 'rack-2') -> None:
        """Give a node another conductor group in Ironic."""
        facts = self.cloud.nodes[node]
        self.cloud.nodes[node] = dataclasses.replace(
            facts, conductor_group=group
        )

    def ask(self, *nodes: NodeId, asker: Asker = D) -> float:
        """Have nodes asked for, and run a round."""
        self.departures.request_nodes(nodes, asker)
        return self.again()

    def again(self) -> float:
        """Run the next round; return the seconds until the one after it."""
        self.cloud.clock.advance(RETRY_S)
        return self.departures.try_round()

    def holder_of(self, node: NodeId) -> Host:
        """Return the host in a node's row."""
        row = self.cloud.nova.live_row(node)
        assert row is not None
        return row.host

    def row_of(self, node: NodeId) -> Any:
        """Return the row as c1 has it."""
        return self.one.held_nodes.row(node)


@pytest.fixture
def desk(monkeypatch: pytest.MonkeyPatch) -> Leaving:
    """Server s1 on a node of c1; the node has left its pool."""
    made = Leaving(monkeypatch)
    made.leave(made.node)
    made.leave(made.free)
    return made


def test_node_with_a_server_goes_after_its_server(desk: Leaving) -> None:
    """In the order of every move."""
    set_pin(desk.row_of(desk.node), Pin(C1, 'ann'))
    desk.ask(desk.node)
    assert desk.writes == ['locked', 'server', 'row']
    assert (desk.server.host, desk.holder) == (D1, D1)
    assert desk.row_of(desk.node) is None
    assert desk.told == [(D1, [desk.node])]
    assert desk.one.moved[0].reason == 'pool'
    assert desk.wakes_count == 1


def test_free_node_goes(desk: Leaving) -> None:
    """Nothing else is written than its row."""
    desk.ask(desk.free)
    assert desk.writes == ['row']
    assert desk.holder_of(desk.free) == D1
    assert desk.row_of(desk.free) is None
    assert desk.told == [(D1, [desk.free])]
    (move,) = desk.one.moved
    assert (move.kind, move.reason) == ('push', 'pool')
    assert (move.source, move.target, move.node) == (C1, D1, desk.free)


def test_node_that_somebody_else_deployed_goes_like_a_free_one(
    desk: Leaving,
) -> None:
    """Nova never had the server on it."""
    del desk.cloud.nova.servers[S1]
    desk.ask(desk.node)
    assert desk.holder_of(desk.node) == C1
    desk.one.held_nodes.foreign_servers.note(desk.node, S1)
    desk.again()
    assert desk.holder_of(desk.node) == D1
    assert desk.writes == ['locked', 'row']


@pytest.mark.parametrize('name', ['node', 'free'])
def test_pin_ends_when_its_node_leaves_the_pool(
    desk: Leaving, name: str
) -> None:
    """The pin names a host of the former pool."""
    node = getattr(desk, name)
    row = desk.row_of(node)
    desk.one.rows.write_pin(row, Pin(C1, 'ann'))
    desk.ask(node)
    assert desk.holder_of(node) == D1
    assert read_pin(desk.cloud.nova.live_row(node)) is None


def _change(**fields: Any) -> Callable[[Leaving], None]:
    def change(desk: Leaving) -> None:
        for name, value in fields.items():
            setattr(desk.server, name, value)

    return change


def _change_service(**fields: Any) -> Callable[[Leaving], None]:
    def change(desk: Leaving) -> None:
        for name, value in fields.items():
            setattr(desk.cloud.nova.services[D1], name, value)

    return change


def _hide(error: Exception) -> Callable[[Leaving], None]:
    return lambda desk: desk.cloud.hidden.update(
        {desk.node: error, desk.free: error}
    )


def _leave_for(group: str) -> Callable[[Leaving], None]:
    def change(desk: Leaving) -> None:
        for node in (desk.node, desk.free):
            desk.leave(node, group)

    return change


def _give_rows_away(desk: Leaving) -> None:
    for node in (desk.node, desk.free):
        row = desk.cloud.nova.live_row(node)
        assert row is not None
        row.host = Host('c7')


OF_BOTH = {
    'is in this pool': _leave_for(''),
    'not in the pool that asks': _leave_for('rack-3'),
    'did not answer: away': _hide(Unreachable('away')),
    'did not answer: 404': _hide(errors.NodeNotFound('404')),
    'd1 is disabled or unknown': _change_service(disabled=True),
    'd1 drained; end that first': _change_service(
        disabled=True, disabled_reason='ironic-compute: draining'
    ),
    'd1 is down in Nova': lambda desk: setattr(desk, 'is_up', False),
    'Host d1 is disabled or': lambda d: d.cloud.nova.services.pop(D1),
}
OF_SERVERS = {
    'has task rebooting': _change(task_state='rebooting'),
    'is building; only': _change(vm_state='building'),
    'on host c7 and node': _change(host='c7'),
    'zones, nova and zone-2': lambda desk: desk.zone(
        'b', 'd1', availability_zone='zone-2'
    ),
    'same aggregates: fast': lambda desk: desk.zone('fast', 'c1'),
    'is deploying in Ironic': lambda d: d.change_node(
        provision_state='deploying'
    ),
}
OF_FREE_NODES = {
    'not free': lambda d: d.one.claims.claim(d.free, 's7'),
    'not confirmed': lambda d: d.one.held_nodes.unconfirmed_rows.add(d.free),
}
CASES = [
    *(('node', why, OF_BOTH[why]) for why in OF_BOTH),
    *(('free', why, OF_BOTH[why]) for why in OF_BOTH),
    *(('node', why, OF_SERVERS[why]) for why in OF_SERVERS),
    *(('free', why, OF_FREE_NODES[why]) for why in OF_FREE_NODES),
]


@pytest.mark.parametrize(('name', 'why', 'change'), CASES)
def test_node_that_cannot_go_stays_and_is_tried_again(
    desk: Leaving,
    name: str,
    why: str,
    change: Callable[[Leaving], None],
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Nothing is written, and the log says why, once."""
    caplog.set_level('INFO')
    node = getattr(desk, name)
    change(desk)
    assert desk.ask(node) == RETRY_S
    desk.again()
    assert caplog.text.count('stays here for now') == 1
    assert why in caplog.text
    assert desk.holder_of(node) == C1
    assert desk.row_of(node) is not None
    assert 'server' not in desk.writes
    assert 'row' not in desk.writes
    assert not desk.told


def test_row_that_another_host_got_is_dropped(desk: Leaving) -> None:
    """A late write has made another host the holder."""
    _give_rows_away(desk)
    desk.ask(desk.free, desk.node)
    assert desk.holder_of(desk.free) == desk.holder == Host('c7')
    assert desk.row_of(desk.free) is None
    assert not desk.told


def test_node_goes_as_soon_as_it_can(desk: Leaving) -> None:
    """Within the seconds for which it is asked for."""
    desk.server.task_state = 'rebooting'
    desk.ask(desk.node)
    desk.server.task_state = None
    desk.again()
    assert desk.holder == D1
    assert desk.again() > RETRY_S


def test_request_ends_if_it_is_not_repeated(desk: Leaving) -> None:
    """The asker may not be the target any more, or its pool may be gone."""
    desk.server.task_state = 'rebooting'
    desk.ask(desk.node)
    assert desk.departures.find_asker(desk.node, D1) == D
    assert desk.departures.find_asker(desk.node, C1) is None
    desk.cloud.clock.advance(VALID_S)
    desk.server.task_state = None
    desk.again()
    assert desk.holder == C1
    assert desk.departures.find_asker(desk.node, D1) is None


def test_newest_asker_gets_the_node(desk: Leaving) -> None:
    """The ring of the other pool has changed meanwhile."""
    desk.server.task_state = 'rebooting'
    nova, other = desk.cloud.nova, Host('d2')
    nova.services[other] = ServiceRecord(nova.new_id(), other, mapped=True)
    desk.ask(desk.node)
    desk.server.task_state = None
    desk.ask(desk.node, asker=Asker(other, RACK_2))
    assert desk.holder == other


def test_round_gives_so_many_nodes_and_no_node_keeps_others_waiting(
    desk: Leaving,
) -> None:
    """Those that were tried longest ago are tried first."""
    desk.server.task_state = 'rebooting'
    others = sorted(desk.one.held_nodes.rows().keys() - {desk.node})[:3]
    for node in others:
        desk.leave(node)
    assert desk.ask(desk.node, *others) < RETRY_S
    desk.departures.try_round()
    assert {desk.holder_of(node) for node in others} == {D1}
    assert desk.holder == C1


def test_nothing_is_given_without_the_lease(desk: Leaving) -> None:
    """The requests wait for it."""
    desk.gate = desk.departures._gate = LeaseGate(desk.cloud.clock)
    desk.ask(desk.node, desk.free)
    assert not desk.writes
    desk.gate.extend(1e9)
    desk.again()
    assert desk.holder == D1


def test_lease_that_lapses_while_ironic_is_read_ends_the_push(
    desk: Leaving,
) -> None:
    """What was read before a wait is not written after it."""
    gate: Any = desk.one.rows._gate
    read = desk.cloud.read_node

    def read_and_lapse(node: str) -> Any:
        gate._deadline_s = desk.cloud.clock.now_s()
        return read(node)

    client: Any = desk.departures._client
    client.read_node = read_and_lapse
    desk.ask(desk.free)
    assert desk.holder_of(desk.free) == C1
    assert not desk.told
    gate.extend(1e9)
    desk.one.held_nodes.report_node(desk.free)
    assert desk.row_of(desk.free) is not None


def test_lease_that_lapses_before_the_row_is_written_ends_no_pin(
    desk: Leaving,
) -> None:
    """The node stays, and may come back to its pool."""
    rows: Any = desk.one.rows
    rows.write_pin(desk.row_of(desk.free), Pin(C1, 'ann'))
    list_instances_on = rows.list_instances_on

    def list_and_lapse(node: NodeId, host: Host) -> Any:
        rows._gate._deadline_s = desk.cloud.clock.now_s()
        return list_instances_on(node, host)

    rows.list_instances_on = list_and_lapse
    desk.ask(desk.free)
    assert desk.holder_of(desk.free) == C1
    assert read_pin(desk.row_of(desk.free)) == Pin(C1, 'ann')


def test_node_that_was_pushed_here_after_it_left_is_held_and_goes(
    desk: Leaving,
) -> None:
    """No list of the pool contains it, so nothing else holds it."""
    desk.one.held_nodes.drop_node(desk.free)
    desk.ask(desk.free)
    assert desk.reads_requested == [desk.free]
    desk.one.held_nodes.accept_facts(desk.cloud.nodes[desk.free])
    desk.one.held_nodes.unconfirmed_rows.discard(desk.free)
    desk.again()
    assert desk.holder_of(desk.free) == D1


def test_node_of_another_host_is_not_asked_for_again(desk: Leaving) -> None:
    """Its row names that host, so the asker will ask that one."""
    desk.one.held_nodes.drop_node(desk.node)
    _give_rows_away(desk)
    desk.ask(desk.node)
    assert desk.departures.find_asker(desk.node, D1) is None
    assert not desk.writes


def test_server_whose_node_has_not_followed_is_checked_again(
    desk: Leaving,
) -> None:
    """The recovery gives the row to the server's host, of whatever pool."""
    rows: Any = desk.one.rows

    def fail(*args: Any) -> bool:
        raise Unreachable('no answer')

    rows.write_holder = fail
    desk.ask(desk.node)
    assert (desk.server.host, desk.holder) == (D1, C1)
    assert desk.rechecked == [(desk.node, S1)]


def test_error_of_a_round_is_logged(
    desk: Leaving, caplog: pytest.LogCaptureFixture
) -> None:
    """The next round tries again."""
    writers: Any = desk.departures._writers
    writers.for_each = None
    assert desk.ask(desk.node) == RETRY_S
    assert 'Could not give nodes to other pools' in caplog.text

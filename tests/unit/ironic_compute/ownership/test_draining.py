# SPDX-License-Identifier: Apache-2.0
"""A host gives all its nodes away, and its order is stored in Nova."""

import dataclasses
import types
from typing import Any

import attrs
import oslo_messaging
import pytest
from nova.compute import task_states, vm_states

from hashring.ring import Host, Ring
from hashring.workers import HostRetired
from ironic_compute.nodes.pins import Pin, set_pin
from ironic_compute.ownership.drain_order import (
    MARK,
    DrainOrder,
    read_order,
)
from ironic_compute.ownership.draining import Draining
from ironic_compute.ownership.move_plan import PlannedMove
from ironic_compute.ownership.retirement import Retirement
from resource_tracker.node import NodeId
from tests.simulation.nova import ServiceRecord
from tests.unit.ironic_compute.ownership.moving import C1, C2, S1, Desk


class Drained(Desk):
    """Host c1 with one server on a node, and its drain.

    :param record: the Service record of c1, as Nova has it
    """

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        super().__init__(patch)
        self.changes: list[str] = []
        self.record: Any = types.SimpleNamespace(
            id=1,
            host=C1,
            disabled=False,
            disabled_reason=None,
            save=lambda: self.changes.append('saved'),
            destroy=self._destroy,
        )
        services: Any = self.one.services
        read, find = services.read_record, services.find_record
        services.read_record = lambda host: (
            self.record if host == C1 else read(host)
        )
        services.find_record = lambda host: (
            self.record if host == C1 else find(host)
        )
        rows: Any = self.one.rows
        self.sent: list[Any] = []
        self.sent_when_read: list[Any] = []
        self.api_error: Exception | None = None
        self.is_own_agent_away = False
        retirement = Retirement(
            C1,
            rows,
            services,
            self.gate,
            self.cloud.clock,
            self._delete_api_records,
            self._read_again,
            self.sent.append,
            lambda: self.is_own_agent_away,
            moves=self.one.moves,
        )
        self.draining = Draining(
            self.one.held_nodes,
            rows,
            services,
            self.one.pool,
            self.gate,
            self.cloud.clock,
            self.evictor,
            retirement,
            settle_s=5.0,
            services_changed=lambda: self.changes.append('read again'),
            why_not_pushed=self.one.rebalancer.why_not_pushed,
        )

    def order_without_answer(self) -> None:
        """Order to retire c1; Nova stores that, and does not answer."""
        save, self.record.save = self.record.save, self._time_out
        with pytest.raises(oslo_messaging.MessagingTimeout):
            self.draining.begin(None, retires=True)
        self.record.save = save
        self.cloud.show('c2')
        self.cloud.clock.advance(10.0)

    def _time_out(self) -> None:
        raise oslo_messaging.MessagingTimeout('no answer')

    def _destroy(self) -> None:
        self.changes.append('destroyed')
        self.record = None

    def _read_again(self) -> None:
        self.changes.append('read again')
        self.sent_when_read = list(self.sent)

    def _delete_api_records(self, host: Host) -> None:
        self.changes.append('mapping deleted')
        if self.api_error is not None:
            raise self.api_error

    def order(
        self,
        limit: int | None = None,
        *,
        waits_s: float = 10.0,
        retires: bool = False,
        changes_zone: bool = False,
    ) -> None:
        """Have the host drained, and let all agents read that."""
        why_not = self.draining.begin(
            limit, retires=retires, changes_zone=changes_zone
        )
        assert why_not is None
        self.cloud.show('c2')
        self.cloud.clock.advance(waits_s)

    def add_servers(self, count: int) -> None:
        """Deploy further servers on nodes of c1."""
        for number, node in enumerate(self.other_nodes()[:count], 2):
            self.node = node
            self.change_node(
                instance_uuid=f's{number}', provision_state='active'
            )
            record = self.server
            self.cloud.nova.servers[f's{number}'] = type(record)(
                f's{number}', 0.0, 'active', None, C1, node
            )
        self.one.audit()

    def other_nodes(self) -> list[Any]:
        """Return the nodes of c1 without a server."""
        nodes = sorted(self.one.held_nodes.rows())
        return [n for n in nodes if self.one.held_nodes.is_free(n)]

    def moved(self) -> list[str]:
        """Return the servers that are on c2."""
        servers = self.cloud.nova.servers.values()
        return sorted(s.uuid for s in servers if s.host == C2)


@pytest.fixture
def desk(monkeypatch: pytest.MonkeyPatch) -> Drained:
    """Host c1 of two, with a server."""
    return Drained(monkeypatch)


def test_order_is_stored_in_nova(desk: Drained) -> None:
    """Whoever serves the host next finds it there."""
    assert desk.draining.begin(None, retires=False) is None
    assert _state(desk) == (True, MARK)
    assert desk.changes == ['saved', 'read again']
    assert desk.draining.begin(7, retires=False) is None
    assert _state(desk) == (True, DrainOrder(7).reason())
    assert desk.draining.end() is None
    assert _state(desk) == (False, None)
    assert desk.draining.end() is None


def _state(desk: Drained) -> tuple[bool, str | None]:
    return desk.record.disabled, desk.record.disabled_reason


@pytest.mark.parametrize('reason', [None, 'a new disk; disabled before: x'])
def test_disabled_host_is_drained_and_disabled_again(
    desk: Drained, reason: str | None
) -> None:
    """Its former reason outlasts a change of the order."""
    desk.record.disabled, desk.record.disabled_reason = True, reason
    assert desk.draining.begin(None, retires=False) is None
    assert desk.draining.begin(3, retires=True) is None
    assert desk.record.disabled_reason == (
        f'{MARK}, then retired, servers per minute: 3; disabled before: '
        f'{reason or ""}'
    )
    assert desk.draining.end() is None
    assert _state(desk) == (True, reason)


def test_host_that_somebody_else_has_disabled_is_not_enabled(
    desk: Drained,
) -> None:
    """Its reason is shown, and kept."""
    desk.record.disabled, desk.record.disabled_reason = True, 'a new disk'
    assert 'with the reason a new disk' in (desk.draining.end() or '')
    assert not desk.changes


def test_order_to_retire_is_not_overruled(desk: Drained) -> None:
    """Another operator has given it."""
    assert desk.draining.begin(None, retires=True) is None
    why_not = desk.draining.begin(None, retires=False)
    assert 'An operator has host c1 retired' in (why_not or '')
    assert desk.record.disabled_reason == DrainOrder(retires=True).reason()


def test_host_without_service_is_not_drained(desk: Drained) -> None:
    """There is nowhere to store the order."""
    desk.record = None
    why_not = desk.draining.begin(None, retires=False)
    assert 'no Service record of host c1' in (why_not or '')


def test_order_is_not_stored_after_the_lease(desk: Drained) -> None:
    """Another daemon may serve the host, and have another order, by then."""
    services: Any = desk.one.services
    read = services.read_record

    def read_slowly(host: Host) -> Any:
        desk.cloud.clock.advance(20.0)
        return read(host)

    services.read_record = read_slowly
    desk.gate._deadline_s = desk.cloud.clock.now_s() + 10.0
    why_not = desk.draining.begin(None, retires=False)
    assert 'coordination backend' in (why_not or '')
    desk.gate._deadline_s = desk.cloud.clock.now_s() + 10.0
    assert 'coordination backend' in (desk.draining.end() or '')
    assert not desk.changes


def test_last_host_is_not_drained(desk: Drained) -> None:
    """Its nodes could go nowhere."""
    desk.cloud.show('c1')
    why_not = desk.draining.begin(None, retires=True)
    assert 'is the only host' in (why_not or '')
    assert not desk.changes


def test_hosts_are_not_all_drained_at_once(desk: Drained) -> None:
    """The ring has a host for some seconds after its drain has begun."""
    desk.cloud.nova.services['c2'].disabled = True
    for retires in (True, False):
        why_not = desk.draining.begin(None, retires=retires)
        assert why_not == desk.draining.check(retires=retires)
        assert 'is the only host' in (why_not or '')
    assert not desk.changes


def test_dry_run_is_refused_as_the_order_is(desk: Drained) -> None:
    """The check writes nothing."""
    assert desk.draining.check(retires=False) is None
    desk.cloud.show('c1')
    for retires in (True, False):
        why_not = desk.draining.check(retires=retires)
        assert why_not == desk.draining.begin(None, retires=retires)
        assert 'is the only host' in (why_not or '')
    desk.cloud.show('c1', 'c2')
    assert not desk.changes
    assert desk.draining.begin(None, retires=True) is None
    assert desk.draining.check(retires=True) is None
    why_not = desk.draining.check(retires=False)
    assert why_not == desk.draining.begin(None, retires=False)
    assert 'has host c1 retired' in (why_not or '')
    desk.record = None
    why_not = desk.draining.check(retires=False)
    assert 'no Service record of host c1' in (why_not or '')


def test_pinned_node_goes_to_its_pin(desk: Drained) -> None:
    """The ring without the host names another one for some nodes."""
    c3 = Host('c3')
    desk.cloud.add('c3')
    desk.cloud.show('c1', 'c2', 'c3')
    for node, row in desk.one.held_nodes.rows().items():
        target = Ring([C2, c3]).target(node)
        set_pin(row, Pin(C2 if target == c3 else c3, 'ann'))
    targets = {m.node: m.target for m in desk.draining.plan()}
    for node in desk.one.held_nodes.rows():
        assert targets[node] not in (C1, Ring([C2, c3]).target(node))


def test_plan_is_what_the_drain_does(desk: Drained) -> None:
    """Before the order it shows each node; afterwards what is left."""
    plan = desk.draining.plan()
    assert plan == [
        PlannedMove(node, S1 if node == desk.node else None, C2)
        for node in sorted(desk.one.held_nodes.rows())
    ]
    assert not desk.writes
    desk.order()
    desk.draining.run_round()
    assert desk.moved() == [S1]
    assert desk.draining.plan() == [m for m in plan if m.server is None]


def test_node_that_somebody_else_deployed_is_drained(desk: Drained) -> None:
    """The plan shows it like a free one, and the rebalancer pushes it."""
    del desk.cloud.nova.servers[S1]
    (move,) = [m for m in desk.draining.plan() if m.server]
    assert 'is not on host c1 in Nova' in (move.why_not or '')
    desk.one.held_nodes.foreign_servers.note(desk.node, S1)
    assert PlannedMove(desk.node, None, C2) in desk.draining.plan()
    desk.order(retires=True)
    desk.draining.run_round()
    desk.one.rebalancer.run_round()
    assert not desk.one.held_nodes.rows()
    assert desk.draining.plan() == []


def test_new_worker_does_not_say_that_servers_are_on_no_node(
    desk: Drained,
) -> None:
    """It has read the rows of its nodes, and Ironic does not answer yet."""
    fresh = desk.cloud.add('c1')
    desk.cloud.show('c1', 'c2')
    draining = attrs.evolve(desk.draining, held_nodes=fresh.held_nodes)
    nodes = sorted(fresh.held_nodes.rows())
    assert desk.node in nodes
    assert draining.plan() == [
        PlannedMove(
            node, None, C2, f'Node {node} has not been read from Ironic yet'
        )
        for node in nodes
    ]
    fresh.audit()
    assert draining.plan() == desk.draining.plan()


def test_plan_says_why_a_node_waits(desk: Drained) -> None:
    """A server with a task stays until it has ended."""
    desk.server.task_state = task_states.REBOOTING
    desk.one.claims.claim(desk.free, 's9')
    reasons = {m.node: m.why_not for m in desk.draining.plan() if m.why_not}
    assert 'has task rebooting' in reasons[desk.node]
    assert 'is being built on' in reasons[desk.free]
    desk.order()
    desk.draining.run_round()
    assert not desk.moved()
    desk.server.task_state = None
    desk.draining.run_round()
    assert desk.moved() == [S1]


@pytest.mark.parametrize('has_restarted', [False, True])
def test_plan_says_that_ironic_has_no_such_node(
    desk: Drained, *, has_restarted: bool
) -> None:
    """The node stays until somebody deletes its server in Nova."""
    if has_restarted:
        fresh = desk.cloud.add('c1')
        desk.cloud.show('c1', 'c2')
        desk.draining = attrs.evolve(
            desk.draining, held_nodes=fresh.held_nodes
        )
        desk.one = fresh
    del desk.cloud.nodes[desk.node]
    desk.one.audit()
    desk.one.held_nodes.mark_missing(desk.node)
    (move,) = [m for m in desk.draining.plan() if m.node == desk.node]
    assert 'Ironic does not have node' in (move.why_not or '')


def test_server_that_is_being_built_is_not_said_to_be_on_no_node(
    desk: Drained,
) -> None:
    """Else an operator would delete it, as the manual says.

    Ironic shows it on the node only when the build has begun there.
    """
    desk.one.claims.claim(desk.free, 's9')
    build = desk.cloud.nova.servers['s9'] = dataclasses.replace(
        desk.server,
        uuid='s9',
        vm_state=vm_states.BUILDING,
        task_state=task_states.SPAWNING,
        node=desk.free,
    )
    (why_not,) = [m.why_not for m in desk.draining.plan() if not m.node]
    assert why_not == (
        'Server s9 has task spawning; try again when it has ended'
    )
    desk.one.claims.release(desk.free, 's9')
    build.vm_state, build.task_state = vm_states.ERROR, None
    (why_not,) = [m.why_not for m in desk.draining.plan() if not m.node]
    assert 'is on host c1 in Nova, and on no node of it' in (why_not or '')


@pytest.mark.parametrize('holder', [C1, C2])
def test_server_whose_node_was_not_taken_is_not_said_to_be_on_no_node(
    desk: Drained, holder: Host
) -> None:
    """Another worker was killed while it gave them to this host."""
    desk.one.held_nodes.drop_node(desk.node)
    desk.cloud.nova.rows[desk.node].host = holder
    (move,) = [m for m in desk.draining.plan() if m.server]
    assert (move.node, move.server) == ('', S1)
    assert move.why_not == (
        f'Host c1 has not taken node {desk.node} of server s1 yet, which '
        f'host {holder} holds in Nova; wait for an audit'
    )


@pytest.mark.parametrize(
    ('fields', 'reason'),
    [
        ({'provision_state': 'service wait'}, 'is service wait in Ironic'),
        ({'conductor_group': 'other'}, 'has left this pool'),
    ],
)
def test_plan_says_what_ironic_has_against_a_move(
    desk: Drained, fields: dict[str, str], reason: str
) -> None:
    """It may last until somebody mends it, and the drain as long."""
    desk.change_node(**fields)
    desk.one.node_changes.node_changed(desk.cloud.nodes[desk.node])
    (why_not,) = {m.why_not for m in desk.draining.plan() if m.server}
    assert reason in (why_not or '')
    desk.order()
    desk.draining.run_round()
    assert not desk.moved()


def _start_stock_compute(desk: Drained) -> ServiceRecord:
    """Have a stock nova-compute take a node; return its Service."""
    cloud, stock = desk.cloud, Host('stock')
    record = ServiceRecord(cloud.nova.new_id(), stock, mapped=True)
    cloud.nova.services[stock] = record
    row = cloud.nova.live_row(desk.free)
    assert row is not None
    row.host = stock
    cloud.stock.add(stock)
    cloud.settle()
    return record


def test_plan_says_that_a_stock_nova_compute_holds_nodes_here(
    desk: Drained,
) -> None:
    """The drain waits for as long as that runs; servers move all the same."""
    record = _start_stock_compute(desk)
    desk.order()
    for _ in range(3):
        desk.one.rebalancer.run_round()
        desk.draining.run_round()
    assert desk.moved() == [S1]
    free = desk.other_nodes()
    plan = desk.draining.plan()
    assert [move.node for move in plan] == free
    for move in plan:
        assert 'nova-compute outside of this pool' in (move.why_not or '')
        assert 'host stock' in (move.why_not or '')
    record.reported_s = -1000.0
    desk.one.services.read_records()
    desk.one.rebalancer.run_round()
    assert not desk.draining.plan()


def test_plan_says_that_no_host_may_take_a_server(desk: Drained) -> None:
    """The target is checked once, for all its servers."""
    desk.zone('a', 'c1', availability_zone='zone-1')
    (why_not,) = {m.why_not for m in desk.draining.plan() if m.server}
    assert 'availability zones' in (why_not or '')
    desk.order()
    desk.draining.run_round()
    assert not desk.moved()


@pytest.mark.parametrize('retires', [False, True])
def test_server_leaves_its_zone_if_the_order_says_so(
    desk: Drained, *, retires: bool
) -> None:
    """The plan of such an order says the same before it."""
    changed = _separate_zones(desk)
    (move,) = [m for m in desk.draining.plan() if m.server]
    assert '--change-zone' in (move.why_not or '')
    moves = desk.draining.plan(changes_zone=True)
    (move,) = [m for m in moves if m.server]
    assert move == PlannedMove(desk.node, S1, C2)
    desk.order(retires=retires, changes_zone=True)
    assert ', also to other zones' in desk.record.disabled_reason
    desk.draining.run_round()
    assert desk.moved() == [S1]
    assert changed == [(S1, C2)]


def _separate_zones(desk: Drained) -> list[tuple[Any, Host]]:
    """Return a list that grows by each server whose zone is changed."""
    desk.zone('a', 'c1', availability_zone='zone-1')
    changed: list[tuple[Any, Host]] = []
    evictor: Any = desk.evictor
    evictor._change_zone = lambda instance, target: changed.append(
        (instance.uuid, target)
    )
    return changed


def test_consent_to_another_zone_ends_with_the_next_order(
    desk: Drained,
) -> None:
    """Also in the middle of a round."""
    desk.add_servers(1)
    _separate_zones(desk)
    desk.order(changes_zone=True)

    def order_without() -> None:
        assert desk.draining.begin(None, retires=False) is None

    desk.before_save = order_without
    desk.draining.run_round()
    assert len(desk.moved()) == 1
    desk.draining.run_round()
    assert len(desk.moved()) == 1


@pytest.mark.parametrize('limit', [None, 7])
@pytest.mark.parametrize('retires', [False, True])
@pytest.mark.parametrize('former', [None, '', 'a disk, also to other zones'])
@pytest.mark.parametrize('changes_zone', [False, True])
def test_order_is_read_as_it_was_stored(
    limit: int | None,
    retires: bool,
    former: str | None,
    changes_zone: bool,
) -> None:
    """A former reason may contain anything."""
    order = DrainOrder(limit, retires, former, changes_zone)
    record = types.SimpleNamespace(
        disabled=True, disabled_reason=order.reason()
    )
    assert read_order(record) == order


def test_plan_without_any_other_host_moves_nothing(desk: Drained) -> None:
    """The ring was emptied after the order."""
    desk.order()
    desk.cloud.show()
    desk.cloud.clock.advance(10.0)
    (move,) = [m for m in desk.draining.plan() if m.server]
    assert move.target is None
    desk.draining.run_round()
    assert not desk.moved()


def test_server_that_is_gone_in_nova_is_not_moved(desk: Drained) -> None:
    """Recovery frees its node."""
    desk.server.deleted = True
    (move,) = [m for m in desk.draining.plan() if m.server]
    assert 'is not on host c1 in Nova' in (move.why_not or '')


@pytest.mark.parametrize('reason', [None, 'a new disk'])
def test_disabled_host_keeps_its_servers(
    desk: Drained, reason: str | None
) -> None:
    """Only our mark has them moved."""
    desk.record.disabled, desk.record.disabled_reason = True, reason
    desk.cloud.show('c2')
    desk.cloud.clock.advance(10.0)
    desk.draining.run_round()
    assert not desk.moved()


def test_nothing_moves_before_all_agents_know(desk: Drained) -> None:
    """Another host's agent may still have this host in its ring."""
    desk.order(waits_s=1.0)
    desk.draining.run_round()
    assert not desk.moved()
    desk.cloud.show('c2', agreed=False)
    desk.cloud.clock.advance(10.0)
    desk.draining.run_round()
    assert not desk.moved()


def test_host_in_the_ring_is_not_drained(desk: Drained) -> None:
    """It would get its free nodes back."""
    assert desk.draining.begin(None, retires=False) is None
    desk.cloud.clock.advance(10.0)
    desk.draining.run_round()
    assert not desk.moved()


def test_nothing_moves_without_the_lease(desk: Drained) -> None:
    """The round is left out instead of waiting."""
    desk.order()
    desk.gate._deadline_s = 0.0
    desk.draining.run_round()
    assert not desk.moved()


def test_limit_holds_for_a_minute(desk: Drained) -> None:
    """The rest follows as time goes on."""
    desk.add_servers(2)
    desk.order(limit=2)
    desk.draining.run_round()
    assert len(desk.moved()) == 2
    desk.cloud.clock.advance(30.0)
    desk.draining.run_round()
    assert len(desk.moved()) == 2
    desk.cloud.clock.advance(31.0)
    desk.draining.run_round()
    assert len(desk.moved()) == 3


def test_node_that_lost_its_server_in_ironic_alone_is_said_to_stay(
    desk: Drained,
) -> None:
    """A drain waited for a node that somebody undeployed, and did not say why.

    The node stays with its host, because Nova still has the server there.
    """
    desk.change_node(instance_uuid=None, provision_state='available')
    desk.one.audit()
    desk.order()
    desk.one.rebalancer.run_round()
    plan = {move.node: move.why_not for move in desk.draining.plan()}
    assert f'Nova has a server on node {desk.node}' in (plan[desk.node] or '')


def test_node_that_has_lost_its_server_waits_for_a_stock_nova_compute(
    desk: Drained,
) -> None:
    """The plan named a server that Nova has deleted meanwhile.

    No round runs while a stock nova-compute is up, so none looks for servers.
    """
    desk.change_node(instance_uuid=None, provision_state='available')
    desk.one.audit()
    desk.order()
    desk.one.rebalancer.run_round()
    _start_stock_compute(desk)
    del desk.cloud.nova.servers[S1]
    desk.one.rebalancer.run_round()
    plan = {move.node: move.why_not for move in desk.draining.plan()}
    assert 'host stock' in (plan[desk.node] or '')


def test_servers_are_not_read_while_the_limit_is_reached(
    desk: Drained,
) -> None:
    """A drain of a thousand servers would read all of them all the time."""
    desk.add_servers(2)
    desk.order(limit=2)
    desk.draining.run_round()
    rows: Any = desk.one.rows
    read, counts = rows.read_servers, []
    rows.read_servers = lambda some: counts.append(1) or read(some)
    desk.cloud.clock.advance(30.0)
    desk.draining.run_round()
    assert not counts
    desk.cloud.clock.advance(31.0)
    desk.draining.run_round()
    assert counts


def test_drain_ends_when_the_host_is_enabled(desk: Drained) -> None:
    """Also in the middle of a round."""
    desk.add_servers(2)
    desk.order()
    desk.before_save = lambda: setattr(desk.record, 'disabled', False)
    desk.draining.run_round()
    assert len(desk.moved()) == 1


def test_error_of_one_round_is_logged(
    desk: Drained, caplog: pytest.LogCaptureFixture
) -> None:
    """The next round tries again."""
    desk.order()
    desk.one.rows.read_servers = None  # type: ignore[assignment,method-assign]
    assert desk.draining.try_round() == 5.0
    assert 'Could not drain this host' in caplog.text


def test_targets_are_those_of_the_ring_without_the_host(
    desk: Drained,
) -> None:
    """The rest of the ring stays as it is."""
    desk.cloud.add('c3')
    desk.cloud.show('c1', 'c2', 'c3')
    ring = Ring([C2, Host('c3')])
    for move in desk.draining.plan():
        assert move.target == ring.target(move.node)


# The end of a host that is retired


@pytest.fixture
def retired(desk: Drained) -> Drained:
    """Host c1, empty and to be retired."""
    desk.order(retires=True)
    desk.draining.run_round()
    desk.one.rebalancer.run_round()
    assert not desk.one.held_nodes.rows()
    desk.changes.clear()
    return desk


def _run(desk: Drained, seconds: float) -> None:
    """Run a round in each of the next 5 s steps."""
    for _ in range(int(seconds / 5.0)):
        desk.draining.run_round()
        desk.cloud.clock.advance(5.0)


def test_empty_host_is_retired_after_a_while(retired: Drained) -> None:
    """The Service goes last, and then the agent is told until it acts."""
    _run(retired, 90.0)
    assert not retired.changes
    _run(retired, 10.0)
    assert retired.changes == ['mapping deleted', 'destroyed', 'read again']
    assert retired.sent == [HostRetired(C1)] * 2
    (move,) = [m for m in retired.one.moved if m.kind == 'retirement']
    assert (move.host, move.source, move.target) == (C1, C1, '')
    assert (move.reason, move.seconds) == ('retire', 90.0)
    _run(retired, 10.0)
    assert retired.sent == [HostRetired(C1)] * 4
    assert len(retired.changes) == 3


@pytest.mark.parametrize('is_answered', [True, False])
def test_new_order_to_retire_begins_the_wait_anew(
    retired: Drained, is_answered: bool
) -> None:
    """Meanwhile the host took nodes, and builds may be on their way to it.

    No round has seen it with a node: all were free, and went at once.
    """
    _run(retired, 30.0)
    assert retired.draining.end() is None
    retired.cloud.clock.advance(300.0)
    if is_answered:
        retired.order(retires=True)
    else:
        retired.order_without_answer()
    retired.changes.clear()
    _run(retired, 30.0)
    retired.order(retires=True)
    retired.changes.clear()
    _run(retired, 50.0)
    assert not retired.changes
    _run(retired, 20.0)
    assert 'destroyed' in retired.changes


def test_agent_is_told_before_the_services_are_read_again(
    retired: Drained,
) -> None:
    """A list without the Service has the agent end an adopted host's worker.

    No later round of that worker would tell the agent, and other daemons
    would adopt the host until they read the list, too.
    """
    _run(retired, 95.0)
    assert retired.changes[-1] == 'read again'
    assert retired.sent_when_read == [HostRetired(C1)]


def test_drained_host_that_is_empty_stays(desk: Drained) -> None:
    """Only an order to retire it removes it."""
    desk.order()
    desk.draining.run_round()
    desk.one.rebalancer.run_round()
    _run(desk, 200.0)
    assert 'destroyed' not in desk.changes


def test_host_with_a_node_is_not_retired(desk: Drained) -> None:
    """Its server has a task for as long as it takes."""
    desk.server.task_state = task_states.REBUILDING
    desk.order(retires=True)
    desk.one.rebalancer.run_round()
    assert list(desk.one.held_nodes.rows()) == [desk.node]
    _run(desk, 200.0)
    assert 'destroyed' not in desk.changes


def test_host_is_not_retired_because_the_worker_holds_no_node(
    retired: Drained,
) -> None:
    """Nova's records decide: a late write may have given it a node."""
    row = retired.cloud.nova.live_row(retired.free)
    assert row is not None
    row.host = C1
    _run(retired, 200.0)
    assert not retired.changes
    row.host = C2
    _run(retired, 50.0)
    assert not retired.changes
    _run(retired, 50.0)
    assert 'destroyed' in retired.changes


def test_host_with_a_server_on_no_node_is_not_retired(
    retired: Drained,
) -> None:
    """The plan shows the server, which is in the way."""
    retired.server.host, retired.server.node = C1, NodeId('gone')
    (move,) = retired.draining.plan()
    assert (move.node, move.server, move.target) == ('', S1, None)
    assert 'on no node of it' in (move.why_not or '')
    _run(retired, 200.0)
    assert not retired.changes


@pytest.mark.parametrize('reason', [None, MARK])
def test_order_that_has_ended_meanwhile_retires_nothing(
    retired: Drained, reason: str | None
) -> None:
    """It is read again before anything is deleted.

    Somebody may have enabled the host with Nova's own command since the
    records were read last. It needs its mapping and its aggregates then.
    """
    retired.cloud.clock.advance(5.0)
    _run(retired, 90.0)
    former = types.SimpleNamespace(**vars(retired.record))
    retired.record.disabled_reason = reason
    services: Any = retired.one.services
    services.find_record = lambda host: former
    _run(retired, 10.0)
    assert not retired.changes
    assert not retired.sent


def test_conductor_without_api_database_keeps_the_mapping(
    retired: Drained,
) -> None:
    """The Service goes all the same."""
    retired.api_error = oslo_messaging.RemoteError('CantStartEngineError')
    _run(retired, 100.0)
    assert retired.changes == ['mapping deleted', 'destroyed', 'read again']


def test_delete_without_an_answer_counts_once_the_service_is_gone(
    retired: Drained,
) -> None:
    """The request was carried out all the same."""
    destroy = retired.record.destroy

    def destroy_without_answer() -> None:
        destroy()
        raise oslo_messaging.MessagingTimeout

    retired.record.destroy = destroy_without_answer
    _run(retired, 90.0)
    retired.draining.try_round()
    assert not retired.sent
    retired.draining.try_round()
    assert retired.sent == [HostRetired(C1)]


def test_host_is_not_retired_when_the_lease_ends_in_between(
    retired: Drained,
) -> None:
    """A later worker reads anew."""
    gate = retired.gate
    _run(retired, 90.0)
    retired.one.rows.list_servers_of_host = (  # type: ignore[method-assign]
        lambda host: setattr(gate, '_deadline_s', 0.0) or frozenset()
    )
    retired.draining.try_round()
    assert 'destroyed' not in retired.changes


def test_adopted_host_waits_for_its_own_daemon(
    retired: Drained, caplog: pytest.LogCaptureFixture
) -> None:
    """That daemon would make a new Service when it serves its host again."""
    caplog.set_level('INFO')
    retired.is_own_agent_away = True
    _run(retired, 200.0)
    assert not retired.changes
    (move,) = retired.draining.plan()
    assert (move.node, move.server, move.target) == ('', None, None)
    assert 'when its own daemon, which is up, serves' in (move.why_not or '')
    assert caplog.text.count('Not retired yet: Host c1') == 1
    retired.is_own_agent_away = False
    assert not retired.draining.plan()
    _run(retired, 90.0)
    assert not retired.changes
    _run(retired, 10.0)
    assert 'destroyed' in retired.changes


def test_retirement_that_waits_for_the_pool_says_so(retired: Drained) -> None:
    """It would wait for ever, and --wait would announce its end."""
    retired.cloud.show('c2', agreed=False)
    _run(retired, 200.0)
    (move,) = retired.draining.plan()
    assert (move.node, move.server) == ('', None)
    assert 'do not agree on their hosts yet' in (move.why_not or '')
    retired.cloud.show(agreed=False)  # Nobody agrees on an empty ring.
    _run(retired, 200.0)
    assert not retired.changes
    (move,) = retired.draining.plan()
    assert 'No host of this pool takes nodes' in (move.why_not or '')
    retired.cloud.show('c2')
    assert not retired.draining.plan()
    _run(retired, 100.0)
    assert 'destroyed' in retired.changes


def test_drain_that_waits_for_the_pool_says_so(desk: Drained) -> None:
    """Its servers could go, but for a daemon with another ring."""
    desk.order()
    desk.cloud.show('c2', agreed=False)
    reasons = [m.why_not for m in desk.draining.plan() if m.why_not]
    assert len(reasons) == 1
    assert 'do not agree on their hosts yet' in reasons[0]
    desk.cloud.show('c2')
    desk.cloud.clock.advance(10.0)
    desk.draining.run_round()
    desk.one.rebalancer.run_round()
    desk.cloud.show('c2', agreed=False)
    assert not desk.draining.plan()


def test_daemon_that_is_seen_once_begins_the_wait_anew(
    retired: Drained,
) -> None:
    """A member list may lack it for a moment."""
    _run(retired, 60.0)
    retired.is_own_agent_away = True
    _run(retired, 5.0)
    retired.is_own_agent_away = False
    _run(retired, 90.0)
    assert not retired.changes


def test_daemon_that_comes_at_the_last_moment_keeps_its_service(
    retired: Drained,
) -> None:
    """The requests before the delete of the Service may take a minute."""
    _run(retired, 90.0)
    services: Any = retired.one.services
    read = services.read_record

    def come(host: Host) -> Any:
        retired.is_own_agent_away = True
        return read(host)

    services.read_record = come
    retired.draining.run_round()
    assert retired.changes == ['mapping deleted']


def test_drained_host_does_not_wait_for_its_own_daemon(
    desk: Drained,
) -> None:
    """Only a retirement does."""
    desk.is_own_agent_away = True
    desk.order()
    desk.draining.run_round()
    desk.one.rebalancer.run_round()
    assert not desk.draining.plan()

# SPDX-License-Identifier: Apache-2.0
"""Confirmation of new rows: when a new node may get builds."""

from typing import Any

import pytest
from oslo_config import cfg
from oslo_messaging import opts as messaging_opts

from hashring import opts as hashring_opts
from hashring.ring import Host
from ironic_compute import opts
from ironic_compute.nodes.records import NEW
from resource_tracker.node import NodeId
from tests.simulation.wire import SentRequest
from tests.unit.ironic_compute.hosts import Cloud

C1, C2 = Host('c1'), Host('c2')


@pytest.fixture
def cloud() -> Cloud:
    """Return a pool of one host that has not placed its nodes yet."""
    made = Cloud(f'node-{number:03}' for number in range(250))
    made.add('c1')
    made.show('c1')
    return made


def test_new_node_is_not_offered_before_confirm_s(cloud: Cloud) -> None:
    """The time counts from the creation of the row."""
    one = cloud.hosts[C1]
    one.new_nodes.reset_from_list(cloud.nodes)
    one.rebalancer.run_round()
    cloud.clock.advance(0.9)
    one.rebalancer.run_round()
    assert not cloud.providers


def test_new_node_is_offered_at_once_in_a_settled_pool(
    cloud: Cloud,
) -> None:
    """No request of another target can be on its way any more."""
    one = cloud.hosts[C1]
    cloud.clock.advance(1.0)
    one.new_nodes.reset_from_list(cloud.nodes)
    one.rebalancer.run_round()
    assert set(cloud.providers) == set(cloud.nodes)


@pytest.mark.parametrize(
    ('ring', 'agreed'),
    [
        (('c1', 'c2'), True),  # another ring
        (('c1',), False),  # an agent disagrees
    ],
)
def test_changed_ring_or_agreement_delays_the_offer(
    ring: tuple[str, ...], cloud: Cloud, *, agreed: bool
) -> None:
    """A request that another target sent last may be on its way."""
    one = cloud.hosts[C1]
    one.new_nodes.reset_from_list(cloud.nodes)
    one.rebalancer.run_round()
    cloud.clock.advance(0.9)
    cloud.show(*ring, agreed=agreed)
    cloud.clock.advance(0.05)
    one.new_nodes.place_nodes()
    assert not cloud.providers
    assert one.held_nodes.unconfirmed_rows.nodes()


def test_agreement_from_before_the_row_delays_the_offer(
    cloud: Cloud,
) -> None:
    """An agent that is cut off may have another ring by now."""
    one = cloud.hosts[C1]
    one.show('c1', until_s=cloud.clock.now_s() + 50.0)
    cloud.clock.advance(60.0)
    one.new_nodes.reset_from_list(cloud.nodes)
    one.rebalancer.run_round()
    cloud.clock.advance(0.9)
    one.new_nodes.place_nodes()
    assert not cloud.providers


def test_row_that_another_host_overwrote_is_dropped(cloud: Cloud) -> None:
    """The row is read before the node is offered, however settled the pool."""
    one, node = cloud.hosts[C1], NodeId('node-000')
    create = cloud.nova.create_row

    def overtaken(*arguments: Any) -> Any:
        made = create(*arguments)
        request = SentRequest('c2', 'c2', late=True, way_s=9.0)
        create(request, made.node, C2, 7)
        return made

    cloud.nova.create_row = overtaken  # type: ignore[method-assign]
    cloud.clock.advance(1.0)
    one.new_nodes.reset_from_list({node: cloud.nodes[node]})
    one.rebalancer.run_round()
    assert cloud.nova.rows[node].host == C2
    assert not cloud.providers
    assert not one.held_nodes.rows()


def test_row_that_is_created_again_waits_as_long_again(cloud: Cloud) -> None:
    """An operator has deleted the Service, and Nova its rows with it."""
    one, node = cloud.hosts[C1], NodeId('node-000')
    one.new_nodes.reset_from_list({node: cloud.nodes[node]})
    one.rebalancer.run_round()
    cloud.nova.rows[node].deleted = True
    cloud.clock.advance(0.6)
    one.held_nodes.drop_node(node)
    one.unheld.add(cloud.nodes[node])
    cloud.show('c1')
    cloud.clock.advance(0.6)
    one.rebalancer.run_round()
    assert one.held_nodes.unconfirmed_rows.nodes() == {node}
    assert not cloud.providers


def test_pushed_row_is_confirmed(cloud: Cloud) -> None:
    """The write that gives the node away also marks its row as not new."""
    one = cloud.hosts[C1]
    one.new_nodes.reset_from_list(cloud.nodes)
    cloud.rounds(one, 2)
    two = cloud.add('c2')
    cloud.show('c2')
    one.rebalancer.run_round()
    given = [row for row in cloud.nova.rows.values() if row.host == C2]
    assert given
    assert not any(NEW in row.stats for row in given)
    two.held_nodes.load_rows()
    assert not two.held_nodes.unconfirmed_rows.nodes()


def test_new_rows_of_a_former_worker_are_unconfirmed(
    cloud: Cloud,
) -> None:
    """The next worker of the host reads the rows once more."""
    one = cloud.hosts[C1]
    one.new_nodes.reset_from_list(cloud.nodes)
    cloud.rounds(one, 2)
    again = cloud.add('c1')
    assert again.held_nodes.unconfirmed_rows.nodes() == set(cloud.nodes)
    again.show('c1')
    cloud.rounds(again, 2)
    assert not again.held_nodes.unconfirmed_rows.nodes()


@pytest.mark.parametrize(('target', 'is_sure'), [('c1', True), ('c2', False)])
def test_new_rows_of_a_former_worker_are_confirmed_by_the_target(
    target: str, cloud: Cloud, *, is_sure: bool
) -> None:
    """A host that is not the target waits, since the target may have read
    that there is no row before the former worker created it."""
    one = cloud.hosts[C1]
    one.new_nodes.reset_from_list(cloud.nodes)
    one.rebalancer.run_round()
    again = cloud.add('c1')
    again.show(target)
    cloud.clock.advance(1.0)
    again.new_nodes.place_nodes()
    assert bool(again.held_nodes.unconfirmed_rows.nodes()) is not is_sure


def test_old_rows_of_a_former_worker_are_confirmed(cloud: Cloud) -> None:
    """No request to create so old a row can still be on its way."""
    one = cloud.hosts[C1]
    one.new_nodes.reset_from_list(cloud.nodes)
    cloud.rounds(one, 2)
    cloud.clock.advance(91.0)
    assert not cloud.add('c1').held_nodes.unconfirmed_rows.nodes()


@pytest.mark.parametrize(('age_s', 'is_new'), [(0.0, True), (91.0, False)])
def test_orphan_stays_as_new_as_its_row(
    age_s: float, is_new: bool, cloud: Cloud
) -> None:
    """Taking an orphan writes its row, but does not make it new."""
    one, orphan = cloud.hosts[C1], NodeId('node-000')
    cloud.nova.create_row(
        SentRequest('c2', 'c2', late=False),
        orphan,
        C2,
        7,
        cloud.clock.wall_s(),
    )
    cloud.clock.advance(age_s)
    one.new_nodes.reset_from_list({orphan: cloud.nodes[orphan]})
    one.rebalancer.run_round()
    assert cloud.nova.rows[orphan].host == C1
    assert (orphan in one.held_nodes.unconfirmed_rows.nodes()) is is_new


def test_default_wait_outlasts_every_request_to_create_a_row() -> None:
    """A request may be sent a term late and be carried out at its time-out."""
    conf = cfg.ConfigOpts()
    conf([], default_config_files=[])
    opts.register_opts(conf)
    hashring_opts.register_opts(conf)
    (of_rpc,) = (o for g, o in messaging_opts.list_opts() if g is None)
    conf.register_opts(of_rpc)
    longest_s = conf.rpc_response_timeout + conf.coordination.lease_term_s
    assert conf.ironic_compute.confirm_s > longest_s

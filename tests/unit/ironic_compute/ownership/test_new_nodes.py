# SPDX-License-Identifier: Apache-2.0
"""Many new nodes at once: what they cost, and in which order it is done."""

from typing import Any

import pytest

from hashring.ring import Host
from ironic_compute.nodes.records import NEW
from resource_tracker.node import NodeId
from tests.simulation.wire import Letter
from tests.unit.ironic_compute.hosts import Cloud, Counted

_NODES_COUNT = 250
C1, C2 = Host('c1'), Host('c2')


@pytest.fixture
def cloud() -> Cloud:
    """Return a pool of one host that has not looked at its nodes yet."""
    made = Cloud(f'node-{number:03}' for number in range(_NODES_COUNT))
    made.add('c1')
    made.show('c1')
    return made


def test_a_new_node_costs_one_write_and_no_read_of_its_own(
    cloud: Cloud,
) -> None:
    """Its row is made; all else is in bulk."""
    one = cloud.hosts[C1]
    counted = Counted(one)
    one.new_nodes.reset_from_list(cloud.nodes)
    cloud.rounds(one, 20)
    assert set(cloud.providers) == set(cloud.nodes)
    assert counted.counts['write'] == _NODES_COUNT
    assert counted.counts['read'] < _NODES_COUNT / 10


def test_the_first_are_confirmed_while_others_are_still_created(
    cloud: Cloud,
) -> None:
    """A row takes a hundredth of a second; thousands take a while."""
    one = cloud.hosts[C1]
    create = cloud.nova.create_row
    offered_counts = []

    def slow(*arguments: Any) -> Any:
        cloud.clock.advance(0.013)
        offered_counts.append(len(cloud.providers))
        return create(*arguments)

    cloud.nova.create_row = slow  # type: ignore[method-assign]
    one.new_nodes.reset_from_list(cloud.nodes)
    one.rebalancer.run_round()
    assert offered_counts[0] == 0
    assert 0 < offered_counts[-1] < _NODES_COUNT


def test_no_node_is_offered_before_its_time_has_come(cloud: Cloud) -> None:
    """Whether it is one of the first or of the last."""
    one = cloud.hosts[C1]
    one.new_nodes.reset_from_list(cloud.nodes)
    one.rebalancer.run_round()
    cloud.clock.advance(0.9)
    one.rebalancer.run_round()
    assert not cloud.providers


def test_where_all_have_agreed_for_long_a_new_node_is_offered_at_once(
    cloud: Cloud,
) -> None:
    """No other target's request can be under way any more."""
    one = cloud.hosts[C1]
    cloud.clock.advance(1.0)
    one.new_nodes.reset_from_list(cloud.nodes)
    one.rebalancer.run_round()
    assert set(cloud.providers) == set(cloud.nodes)


@pytest.mark.parametrize(
    ('ring', 'agreed'),
    [
        (('c1', 'c2'), True),  # others than before
        (('c1',), False),  # somebody does not agree any more
    ],
)
def test_what_was_agreed_on_before_counts_for_nothing(
    ring: tuple[str, ...], cloud: Cloud, *, agreed: bool
) -> None:
    """What another target sent last may be under way."""
    one = cloud.hosts[C1]
    one.new_nodes.reset_from_list(cloud.nodes)
    one.rebalancer.run_round()
    cloud.clock.advance(0.9)
    cloud.show(*ring, agreed=agreed)
    cloud.clock.advance(0.05)
    one.new_nodes.place_nodes()
    assert not cloud.providers
    assert one.held_nodes.unconfirmed()


def test_what_all_said_before_the_row_was_there_counts_for_nothing(
    cloud: Cloud,
) -> None:
    """Who is cut off has the ring of before, and may not know yet."""
    one = cloud.hosts[C1]
    one.show('c1', until_s=cloud.clock.now_s() + 50.0)
    cloud.clock.advance(60.0)
    one.new_nodes.reset_from_list(cloud.nodes)
    one.rebalancer.run_round()
    cloud.clock.advance(0.9)
    one.new_nodes.place_nodes()
    assert not cloud.providers


def test_who_looked_before_all_agreed_creates_nothing(cloud: Cloud) -> None:
    """The target of before may have created and offered it meanwhile."""
    one, two = cloud.hosts[C1], cloud.add('c2')
    one.show('c1')
    cloud.clock.advance(60.0)
    two.show('c2', agreed=False)
    look = two.rows.of_nodes

    def slow(nodes: Any) -> Any:
        found = look(nodes)
        two.rows.of_nodes = look  # type: ignore[method-assign]
        one.new_nodes.reset_from_list(cloud.nodes)
        one.new_nodes.place_nodes()
        cloud.clock.advance(0.3)
        two.show('c2')
        cloud.clock.advance(0.3)
        return found

    two.rows.of_nodes = slow  # type: ignore[method-assign]
    two.new_nodes.reset_from_list(cloud.nodes)
    two.new_nodes.place_nodes()
    assert set(cloud.providers) == set(cloud.nodes)
    assert not cloud.moved


def test_a_row_that_somebody_took_is_offered_by_nobody(cloud: Cloud) -> None:
    """However long all agree: it is read before."""
    one, node = cloud.hosts[C1], NodeId('node-000')
    create = cloud.nova.create_row

    def overtaken(*arguments: Any) -> Any:
        made = create(*arguments)
        letter = Letter('c2', 'c2', late=True, way_s=9.0)
        create(letter, made.node, C2, 7)
        return made

    cloud.nova.create_row = overtaken  # type: ignore[method-assign]
    cloud.clock.advance(1.0)
    one.new_nodes.reset_from_list({node: cloud.nodes[node]})
    one.rebalancer.run_round()
    assert cloud.nova.rows[node].host == C2
    assert not cloud.providers
    assert not one.held_nodes.rows()


@pytest.mark.parametrize('count', [1, _NODES_COUNT])
def test_a_row_of_another_uuid_is_found_for_one_and_for_many(
    cloud: Cloud, count: int
) -> None:
    """One is asked for by name; for many, all rows are read."""
    one = cloud.hosts[C1]
    odd = NodeId('node-000')
    cloud.nova.create_row(Letter('c2', 'c2', late=False), odd, C2, 7)
    one.rows.odd_ones.add(odd)
    cloud.nova.services.pop(C2, None)
    one.services.read_records()
    one.new_nodes.reset_from_list(
        {n: cloud.nodes[n] for n in list(cloud.nodes)[:count]}
    )
    one.rebalancer.run_round()
    assert cloud.nova.rows[odd].host == C1
    assert [n for n, _, _ in cloud.moved] == [odd]


def test_a_pushed_row_is_not_new_to_its_next_holder(cloud: Cloud) -> None:
    """The save that gives it away says so along with it."""
    one = cloud.hosts[C1]
    one.new_nodes.reset_from_list(cloud.nodes)
    cloud.rounds(one, 2)
    two = cloud.add('c2')
    cloud.show('c2')
    one.rebalancer.run_round()
    given = [row for row in cloud.nova.rows.values() if row.host == C2]
    assert given
    assert not any(NEW in row.stats for row in given)
    two.held_nodes.load()
    assert not two.held_nodes.unconfirmed()


def test_a_worker_that_dies_early_leaves_the_next_one_in_doubt(
    cloud: Cloud,
) -> None:
    """What was created lately is read once more."""
    one = cloud.hosts[C1]
    one.new_nodes.reset_from_list(cloud.nodes)
    cloud.rounds(one, 2)
    again = cloud.add('c1')
    assert again.held_nodes.unconfirmed() == set(cloud.nodes)
    again.show('c1')
    cloud.rounds(again, 2)
    assert not again.held_nodes.unconfirmed()


@pytest.mark.parametrize(('target', 'is_sure'), [('c1', True), ('c2', False)])
def test_the_next_one_is_sure_at_once_if_all_agree_for_long(
    target: str, cloud: Cloud, *, is_sure: bool
) -> None:
    """Unless another is the target: it may have looked before we created."""
    one = cloud.hosts[C1]
    one.new_nodes.reset_from_list(cloud.nodes)
    one.rebalancer.run_round()
    again = cloud.add('c1')
    again.show(target)
    cloud.clock.advance(1.0)
    again.new_nodes.place_nodes()
    assert bool(again.held_nodes.unconfirmed()) is not is_sure


def test_a_worker_that_dies_late_leaves_no_doubt(cloud: Cloud) -> None:
    """Nobody can be about to create a row that is as old as this."""
    one = cloud.hosts[C1]
    one.new_nodes.reset_from_list(cloud.nodes)
    cloud.rounds(one, 2)
    cloud.clock.advance(91.0)
    assert not cloud.add('c1').held_nodes.unconfirmed()


@pytest.mark.parametrize(('age_s', 'is_new'), [(0.0, True), (91.0, False)])
def test_an_orphan_is_as_new_as_it_was(
    age_s: float, is_new: bool, cloud: Cloud
) -> None:
    """To take it writes its row, which does not make an old one new."""
    one, orphan = cloud.hosts[C1], NodeId('node-000')
    cloud.nova.create_row(
        Letter('c2', 'c2', late=False), orphan, C2, 7, cloud.clock.wall_s()
    )
    cloud.clock.advance(age_s)
    one.new_nodes.reset_from_list({orphan: cloud.nodes[orphan]})
    one.rebalancer.run_round()
    assert cloud.nova.rows[orphan].host == C1
    assert (orphan in one.held_nodes.unconfirmed()) is is_new


def test_rows_that_came_about_during_a_pass_are_not_taken(
    cloud: Cloud,
) -> None:
    """The other host has offered their nodes by then, and may build there."""
    one, two = cloud.hosts[C1], cloud.add('c2')
    cloud.show('c1', 'c2')
    create = cloud.nova.create_row

    def meanwhile(*arguments: Any) -> Any:
        """While the first row is created: the ring is another for a while."""
        cloud.nova.create_row = create  # type: ignore[method-assign]
        cloud.show('c2')
        two.new_nodes.reset_from_list(cloud.nodes)
        cloud.rounds(two, 3)
        assert set(cloud.providers) == set(cloud.nodes)
        cloud.show('c1', 'c2')
        return create(*arguments)

    cloud.nova.create_row = meanwhile  # type: ignore[method-assign]
    one.new_nodes.reset_from_list(cloud.nodes)
    cloud.rounds(one, 20)
    assert len(cloud.moved) == 1  # What was on its way.


def test_a_row_is_looked_for_again_after_a_while(cloud: Cloud) -> None:
    """One that was on its way may be confirmed by then."""
    one = cloud.hosts[C1]
    create = cloud.nova.create_row

    def slow(*arguments: Any) -> Any:
        """Take a sixth of the time that a look is good for."""
        cloud.clock.advance(1.0)
        return create(*arguments)

    cloud.nova.create_row = slow  # type: ignore[method-assign]
    one.new_nodes.reset_from_list(cloud.nodes)
    one.rebalancer.run_round()
    assert len(cloud.nova.rows) == 3 * 6
    cloud.nova.create_row = create  # type: ignore[method-assign]
    cloud.rounds(one, 3)
    assert set(cloud.providers) == set(cloud.nodes)


def test_a_node_that_ironic_denies_is_not_taken(cloud: Cloud) -> None:
    """It was deleted between the list and its turn."""
    one, gone = cloud.hosts[C1], NodeId('node-000')
    one.new_nodes.reset_from_list(cloud.nodes)
    one.unheld.mark_missing(gone)
    cloud.rounds(one, 3)
    assert set(cloud.providers) == set(cloud.nodes) - {gone}


def test_a_node_that_is_given_during_a_look_is_not_missed(
    cloud: Cloud,
) -> None:
    """Its row was read before it changed hands."""
    one = cloud.hosts[C1]
    one.new_nodes.reset_from_list(cloud.nodes)
    cloud.rounds(one, 2)
    two = cloud.add('c2')
    cloud.show('c1')
    of_nodes = two.rows.of_nodes

    def early(nodes: list[NodeId]) -> Any:
        found = of_nodes(nodes)
        cloud.show('c2')
        one.rebalancer.run_round()
        return found

    two.rows.of_nodes = early  # type: ignore[assignment, method-assign]
    two.new_nodes.reset_from_list(cloud.nodes)
    two.rebalancer.run_round()
    two.rows.of_nodes = of_nodes  # type: ignore[method-assign]
    two.rebalancer.run_round()
    given = {n for n, row in cloud.nova.rows.items() if row.host == C2}
    assert given == set(two.held_nodes.rows()) != set()

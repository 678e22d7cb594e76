# SPDX-License-Identifier: Apache-2.0
"""The node cache: newest facts of the held nodes, and waits for them."""

import dataclasses
import threading

import pytest

from hashring.clock import SystemClock
from ironic_compute import errors
from ironic_compute.nodes.node_cache import NodeCache
from resource_tracker.node import NodeFacts
from tests.fakes.clock import ManualClock

OLD = '2023-01-01T00:00:01+00:00'
NEW = '2023-01-01T00:00:02+00:00'
PATIENCE_S = 60.0
AHEAD = '2043-01-01T00:00:00+00:00'


def node(uuid='n1', **fields):
    """Return facts of a node."""
    return NodeFacts(**{'uuid': uuid, 'updated_at': OLD, **fields})


def is_active(facts):
    """Return whether a node is in the state that most tests wait for."""
    return facts.provision_state == 'active'


def no_read():
    """Fail, because a test expects no read of the node."""
    raise AssertionError('the node was read')


def start_waiter(node_cache, predicate=is_active):
    """Return a thread that waits for node n1 without reading the node."""
    waiter = threading.Thread(
        target=node_cache.wait_for,
        args=('n1', predicate, PATIENCE_S, no_read, 2 * PATIENCE_S),
    )
    waiter.start()
    return waiter


def test_older_facts_are_ignored():
    """A late answer does not replace newer facts."""
    node_cache = NodeCache(ManualClock())
    late = node(provision_state='deploying', read_at_s=9.9)
    node_cache.update_facts(
        node(provision_state='active', updated_at=NEW, read_at_s=10.0)
    )
    assert not node_cache.update_facts(late)
    assert node_cache.facts('n1').provision_state == 'active'


def test_later_read_counts_although_its_stamp_is_earlier():
    """A conductor's clock was set back, or another conductor's is behind."""
    node_cache = NodeCache(ManualClock())
    node_cache.update_facts(node(updated_at=NEW, read_at_s=10.0))
    for second in range(11, 16):
        facts = node(maintenance=True, read_at_s=float(second))
        assert node_cache.update_facts(facts) is (second == 11)
    assert node_cache.facts('n1').maintenance


def test_stamp_of_a_clock_that_is_ahead_makes_nothing_old():
    """A stamp in the future does not hide changes by other conductors."""
    node_cache = NodeCache(ManualClock())
    node_cache.update_facts(
        node(provision_state='deploying', updated_at=AHEAD, read_at_s=10.0)
    )
    assert node_cache.update_facts(
        node(provision_state='active', updated_at=NEW, read_at_s=11.0)
    )
    assert not node_cache.update_facts(
        node(provision_state='deploying', read_at_s=10.5)
    )
    assert node_cache.facts('n1').provision_state == 'active'


def test_notification_counts_after_a_list():
    """Its facts were not read, so none that were read before are newer."""
    node_cache = NodeCache(ManualClock())
    node_cache.update_facts(node(provision_state='available', read_at_s=10.0))
    assert node_cache.update_facts(
        node(provision_state='active', updated_at=NEW, read_at_s=None)
    )
    assert not node_cache.update_facts(
        node(provision_state='available', read_at_s=9.9)
    )
    assert node_cache.facts('n1').provision_state == 'active'


def test_facts_of_the_same_second_count():
    """Stamps are whole seconds, so facts with an equal stamp are stored."""
    node_cache = NodeCache(ManualClock())
    node_cache.update_facts(node(provision_state='deploying'))
    assert node_cache.update_facts(node(provision_state='active'))
    assert not node_cache.update_facts(node(provision_state='active'))


def test_facts_of_a_list_keep_the_stamp():
    """Facts without a stamp do not make older facts newer."""
    node_cache = NodeCache(ManualClock())
    node_cache.update_facts(
        node(provision_state='active', updated_at=NEW, read_at_s=10.0)
    )
    assert not node_cache.update_facts(
        node(provision_state='active', updated_at=None, read_at_s=11.0)
    )
    assert not node_cache.update_facts(
        node(provision_state='deploying', read_at_s=10.5)
    )
    assert node_cache.facts('n1').updated_at == NEW


def test_instance_that_moved_is_found_on_its_new_node():
    """Later changes or the removal of its old node do not hide it."""
    node_cache = NodeCache(ManualClock())
    node_cache.update_facts(node('n1', instance_uuid='i1'))
    node_cache.update_facts(node('n2', instance_uuid='i1'))
    node_cache.update_facts(node('n1'))
    assert node_cache.find_by_instance('i1').uuid == 'n2'
    node_cache.remove_node('n1')
    assert node_cache.find_by_instance('i1').uuid == 'n2'
    node_cache.remove_node('n2')
    assert node_cache.find_by_instance('i1') is None
    assert node_cache.list_nodes() == ()


def test_waiter_is_not_woken_for_another_node():
    """Changes of a node wake only the waiters of that node."""
    node_cache, looks = NodeCache(SystemClock()), []
    node_cache.update_facts(node('n1'))
    node_cache.update_facts(node('n2'))

    def is_done(facts):
        looks.append(facts)
        return is_active(facts)

    waiter = start_waiter(node_cache, is_done)
    for number in range(50):
        node_cache.update_facts(node('n2', power_state=str(number)))
        threading.Event().wait(0.01)
    looks_before = len(looks)
    node_cache.update_facts(node('n1', provision_state='active'))
    waiter.join(PATIENCE_S)
    # One evaluation at first, and one each second, however long that took.
    assert looks_before < 10
    assert looks[-1].provision_state == 'active'
    assert not waiter.is_alive()


def test_waiters_of_one_node_are_all_woken():
    """A change wakes every thread that waits for the node."""
    node_cache = NodeCache(SystemClock())
    node_cache.update_facts(node('n1'))
    waiters = [start_waiter(node_cache) for _ in range(8)]
    node_cache.update_facts(node('n1', provision_state='active'))
    for waiter in waiters:
        waiter.join(PATIENCE_S)
    assert not any(waiter.is_alive() for waiter in waiters)


def test_waiter_is_woken_by_a_change():
    """A change from the feed ends the wait without a read."""
    node_cache = NodeCache(SystemClock())
    node_cache.update_facts(node(provision_state='deploying'))
    changed = node(provision_state='active', updated_at=NEW)
    threading.Timer(0.05, node_cache.update_facts, [changed]).start()
    found = node_cache.wait_for(
        'n1', is_active, PATIENCE_S, no_read, 2 * PATIENCE_S
    )
    assert found == changed


def test_wait_times_out():
    """The error names the node, the time-out and the state."""
    node_cache = NodeCache(SystemClock())
    node_cache.update_facts(node(provision_state='deploying'))

    def refresh():
        raise errors.IronicUnavailable('away')

    with pytest.raises(errors.WaitTimeout, match=r'n1.*0.1 s.*deploying'):
        node_cache.wait_for('n1', is_active, 0.1, refresh, refresh_s=0.05)


def test_waiter_reads_the_node_without_a_change():
    """A lost change costs one read, which the cache does not store."""
    node_cache = NodeCache(SystemClock())
    node_cache.update_facts(node(provision_state='deploying'))
    changed = node(provision_state='active', updated_at=NEW)
    found = node_cache.wait_for(
        'n1', is_active, 60.0, lambda: changed, refresh_s=0.01
    )
    assert found == changed
    assert node_cache.facts('n1') != changed


def test_waiter_survives_an_outage():
    """An error that may pass is followed by another read."""
    node_cache = NodeCache(SystemClock())
    answers = [
        errors.IronicUnavailable('away'),
        errors.NodeLocked('busy'),
        node(provision_state='active'),
    ]

    def refresh():
        answer = answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer

    found = node_cache.wait_for('n1', is_active, 60.0, refresh, refresh_s=0.01)
    assert is_active(found)
    assert node_cache.list_nodes() == (), 'a node that is not held stays so'


def test_waiter_learns_that_the_node_is_gone():
    """If Ironic answers 404 to the read, the wait ends with an error."""
    node_cache = NodeCache(SystemClock())
    node_cache.update_facts(node())

    def refresh():
        raise errors.NodeNotFound('no node n1')

    with pytest.raises(errors.NodeGone, match='no node n1'):
        node_cache.wait_for('n1', is_active, 60.0, refresh, refresh_s=0.01)


def test_waiter_of_a_dropped_node_does_not_hang():
    """A node that is neither held nor in Ironic ends the wait at once."""
    node_cache = NodeCache(SystemClock())
    node_cache.update_facts(node())
    threading.Timer(0.05, node_cache.remove_node, ['n1']).start()

    def refresh():
        raise errors.NodeNotFound('no node n1')

    with pytest.raises(errors.NodeGone):
        node_cache.wait_for(
            'n1', is_active, PATIENCE_S, refresh, 2 * PATIENCE_S
        )


def test_waiter_of_a_dropped_node_reads_at_once():
    """A node that is not held any more may have reached the state."""
    node_cache = NodeCache(SystemClock())
    node_cache.update_facts(node(provision_state='deploying'))
    threading.Timer(0.05, node_cache.remove_node, ['n1']).start()
    found = node_cache.wait_for(
        'n1',
        is_active,
        30.0,
        lambda: node(provision_state='active'),
        refresh_s=60.0,
    )
    assert is_active(found)


def test_old_refresh_does_not_overwrite():
    """An old result of a read does not replace newer facts in the cache."""
    node_cache = NodeCache(SystemClock())
    newest = node(provision_state='deploying', updated_at=NEW)
    node_cache.update_facts(newest)
    stale = dataclasses.replace(newest, updated_at=OLD, name='stale')
    with pytest.raises(errors.WaitTimeout):
        node_cache.wait_for(
            'n1', is_active, 0.1, lambda: stale, refresh_s=0.01
        )
    assert node_cache.facts('n1') == newest

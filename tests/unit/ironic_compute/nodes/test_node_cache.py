# SPDX-License-Identifier: Apache-2.0
"""What a worker knows of its nodes, and who waits for them."""

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
    """Say whether a node is where most tests want it."""
    return facts.provision_state == 'active'


def test_older_facts_are_ignored():
    """A slow answer does not undo a quick one."""
    node_cache = NodeCache(ManualClock())
    node_cache.update_facts(node(provision_state='active', updated_at=NEW))
    assert not node_cache.update_facts(node(provision_state='deploying'))
    assert node_cache.facts('n1').provision_state == 'active'


def test_stamp_of_a_clock_that_is_ahead_makes_nothing_old():
    """One conductor wrote with it, and what another one writes is news."""
    node_cache = NodeCache(ManualClock())
    node_cache.update_facts(
        node(provision_state='deploying', updated_at=AHEAD)
    )
    assert node_cache.update_facts(
        node(provision_state='active', updated_at=NEW)
    )
    assert not node_cache.update_facts(node(provision_state='deploying'))
    assert node_cache.facts('n1').provision_state == 'active'


def test_facts_of_the_same_second_count():
    """Stamps are whole seconds: equal is not older."""
    node_cache = NodeCache(ManualClock())
    node_cache.update_facts(node(provision_state='deploying'))
    assert node_cache.update_facts(node(provision_state='active'))
    assert not node_cache.update_facts(node(provision_state='active'))


def test_facts_of_a_list_keep_the_stamp():
    """A list has no stamps; what is older than the last one stays older."""
    node_cache = NodeCache(ManualClock())
    node_cache.update_facts(node(provision_state='active', updated_at=NEW))
    assert not node_cache.update_facts(
        node(provision_state='active', updated_at=None)
    )
    assert not node_cache.update_facts(node(provision_state='deploying'))


def test_instance_that_moved_is_found_on_its_new_node():
    """News of the old node, or its end, do not hide the new one."""
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
    """Of hundreds of deploys each change would wake them all."""
    node_cache, looks = NodeCache(SystemClock()), []
    node_cache.update_facts(node('n1'))
    node_cache.update_facts(node('n2'))

    def is_done(facts):
        looks.append(facts)
        return is_active(facts)

    waiter = threading.Thread(target=node_cache.wait_for, args=('n1', is_done))
    waiter.start()
    for number in range(50):
        node_cache.update_facts(node('n2', power_state=str(number)))
        threading.Event().wait(0.01)
    looks_before = len(looks)
    node_cache.update_facts(node('n1', provision_state='active'))
    waiter.join(PATIENCE_S)
    # The first look, and one each second however long that took.
    assert looks_before < 10
    assert looks[-1].provision_state == 'active'
    assert not waiter.is_alive()


def test_waiters_of_one_node_are_all_woken():
    """A build and an order by an operator may wait for the same."""
    node_cache = NodeCache(SystemClock())
    node_cache.update_facts(node('n1'))
    waiters = [
        threading.Thread(target=node_cache.wait_for, args=('n1', is_active))
        for _ in range(8)
    ]
    for waiter in waiters:
        waiter.start()
    node_cache.update_facts(node('n1', provision_state='active'))
    for waiter in waiters:
        waiter.join(PATIENCE_S)
    assert not any(waiter.is_alive() for waiter in waiters)


def test_waiter_is_woken_by_news():
    """No request to Ironic is needed if the feed brings the state."""
    node_cache = NodeCache(SystemClock())
    node_cache.update_facts(node(provision_state='deploying'))
    news = node(provision_state='active', updated_at=NEW)
    threading.Timer(0.05, node_cache.update_facts, [news]).start()
    assert node_cache.wait_for('n1', is_active, 60.0) == news


def test_waiter_gives_up():
    """The sentence says where the node was."""
    node_cache = NodeCache(SystemClock())
    node_cache.update_facts(node(provision_state='deploying'))
    with pytest.raises(errors.WaitTimeout, match=r'n1.*0.1 s.*deploying'):
        node_cache.wait_for('n1', is_active, 0.1, refresh_s=0.05)


def test_waiter_reads_again_in_silence():
    """Lost news cost one cheap read; who reads tells the book himself."""
    node_cache = NodeCache(SystemClock())
    node_cache.update_facts(node(provision_state='deploying'))
    news = node(provision_state='active', updated_at=NEW)
    found = node_cache.wait_for(
        'n1', is_active, 60.0, lambda: news, refresh_s=0.01
    )
    assert found == news
    assert node_cache.facts('n1') != news


def test_waiter_survives_an_outage():
    """An Ironic that is away is asked again, and again."""
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
    """Ironic says so with 404."""
    node_cache = NodeCache(SystemClock())
    node_cache.update_facts(node())

    def refresh():
        raise errors.NodeNotFound('no node n1')

    with pytest.raises(errors.NodeGone, match='no node n1'):
        node_cache.wait_for('n1', is_active, 60.0, refresh, refresh_s=0.01)


def test_waiter_of_a_dropped_node_does_not_hang():
    """Without a way to ask, a node that was struck out is gone."""
    node_cache = NodeCache(SystemClock())
    node_cache.update_facts(node())
    threading.Timer(0.05, node_cache.remove_node, ['n1']).start()
    with pytest.raises(errors.NodeGone):
        node_cache.wait_for('n1', is_active)


def test_waiter_of_a_dropped_node_asks_at_once():
    """Ironic decides what became of a node that was struck out."""
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
    """A re-read that was overtaken leaves the book as it is."""
    node_cache = NodeCache(SystemClock())
    newest = node(provision_state='deploying', updated_at=NEW)
    node_cache.update_facts(newest)
    stale = dataclasses.replace(newest, updated_at=OLD, name='stale')
    with pytest.raises(errors.WaitTimeout):
        node_cache.wait_for(
            'n1', is_active, 0.1, lambda: stale, refresh_s=0.01
        )
    assert node_cache.facts('n1') == newest

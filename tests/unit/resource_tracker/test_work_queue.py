# SPDX-License-Identifier: Apache-2.0
"""The queue of dirty nodes: which node is next, and when."""

import dataclasses

import pytest
from hypothesis import given
from hypothesis import strategies as st

from resource_tracker.claims import Claim
from resource_tracker.delta import KnownProvider
from resource_tracker.provider import WantedProvider
from resource_tracker.work_queue import (
    Failed,
    Interrupted,
    Settled,
    WorkQueue,
)
from tests.unit.resource_tracker.nodes import NODE

ONE = WantedProvider(NODE, None, frozenset({'CUSTOM_1'}), None)
TWO = dataclasses.replace(ONE, traits=frozenset({'CUSTOM_2'}))
OTHER = dataclasses.replace(ONE, uuid='other')
CLAIM = Claim('server')


@pytest.fixture
def queue():
    """Return an empty queue."""
    return WorkQueue()


def _taken(queue):
    """Return the item of a node whose write has begun."""
    queue.put(ONE, 0)
    return queue.take(0)


def test_newest_state_wins(queue):
    """Of several states before a node is taken, only the last is written."""
    for wanted in (ONE, TWO, ONE, TWO):
        queue.put(wanted, 0)
    assert queue.take(0).wanted == TWO
    assert queue.take(0) is None


def test_nodes_come_in_their_order(queue):
    """The node that has waited longest is taken first."""
    queue.put(OTHER, 0)
    queue.put(ONE, 0)
    assert [queue.take(1).wanted, queue.take(1).wanted] == [OTHER, ONE]


def test_busy_node_is_not_taken_twice(queue):
    """A state that arrives during a write is taken after that write."""
    item = _taken(queue)
    queue.put(TWO, 0)
    assert queue.take(0) is None
    queue.finish(item, Settled(), 1)
    assert queue.take(1).wanted == TWO


def test_rewrite_of_a_busy_node_follows_its_write(queue):
    """A rewrite scheduled during a write takes place once after it."""
    item = _taken(queue)
    queue.schedule_rewrite(NODE, 5)
    assert queue.take(5) is None
    queue.finish(item, Settled(), 5)
    assert queue.take(4) is None
    queue.finish(queue.take(5), Settled(), 5)
    assert queue.take(9) is None


def test_forgotten_node_is_not_rewritten(queue):
    """A rewrite of a node that was forgotten does nothing."""
    queue.schedule_rewrite(NODE, 0)
    assert queue.take(0) is None


def test_nodes_are_listed_by_a_wanted_trait(queue):
    """The list has only the nodes whose newest state has the trait."""
    queue.put(ONE, 0)
    queue.put(OTHER, 0)
    queue.put(TWO, 0)
    assert queue.list_nodes_wanting(frozenset({'CUSTOM_1'})) == ['other']


def _known(queue):
    """Return the state of a queued node whose provider was read."""
    queue.put(ONE, 0)
    state = queue.entry(NODE).state
    state.known = KnownProvider(NODE, 1)
    return state


def test_claim_makes_the_known_provider_stale(queue):
    """A claim of unknown generation makes the known provider stale."""
    state = _known(queue)
    queue.put(TWO, 0)
    assert not state.is_stale
    queue.put(ONE, 0, claim=CLAIM)
    assert state.is_stale


@pytest.mark.parametrize(
    ('seen', 'generation', 'is_stale'),
    [(1, 1, False), (2, 2, False), (3, 1, True), (0, 1, False)],
    ids=['ours since', 'the allocation', 'others, too', 'before ours'],
)
def test_claim_updates_the_generation(queue, seen, generation, is_stale):
    """The generation of a claim is adopted if no other write came between."""
    state = _known(queue)
    queue.put(TWO, 0, claim=Claim('server', seen))
    assert state.known.generation == generation
    assert state.is_stale == is_stale


def test_claim_of_a_node_that_is_as_wanted_changes_nothing(queue):
    """A claim of a node that needs no write does not make it stale."""
    state = _known(queue)
    queue.finish(queue.take(0), Settled(), 0)
    queue.put(ONE, 0, claim=CLAIM)
    assert not state.is_stale


def test_claim_does_not_change_the_state_of_a_busy_node(queue):
    """A claim during a write leaves the state to the writing thread."""
    state = _known(queue)
    queue.take(0)
    queue.put(TWO, 0, claim=CLAIM)
    assert not state.is_stale


def test_claim_of_an_unread_provider_changes_nothing(queue):
    """A provider that was never read does not become stale."""
    queue.put(ONE, 0)
    queue.put(TWO, 0, claim=CLAIM)
    assert not queue.entry(NODE).state.is_stale


def _named(name):
    return dataclasses.replace(ONE, uuid=name)


def test_nodes_of_builds_go_last(queue):
    """A free node is taken before nodes that builds have claimed."""
    queue.put(_named('built on'), 0, claim=CLAIM)
    queue.put(_named('free'), 5)
    assert queue.take(9).wanted.uuid == 'free'
    assert queue.take(9).wanted.uuid == 'built on'


def test_builds_leave_room_for_others():
    """Only some of the writes at once are for nodes of builds."""
    queue = WorkQueue(deferred_max=2)
    for name in ('a', 'b', 'c'):
        queue.put(_named(name), 0, claim=CLAIM)
    first, _ = queue.take(0), queue.take(0)
    assert queue.take(0) is None
    assert queue.next_due_s() is None
    queue.put(_named('free'), 1)
    assert queue.take(1).wanted.uuid == 'free'
    queue.finish(first, Failed(60), 2)
    assert queue.next_due_s() == 0
    assert queue.take(2).wanted.uuid == 'c'


def test_node_is_not_deferred_after_its_build_has_ended(queue):
    """A node whose build has ended counts as a free node again."""
    queue.put(_named('built on'), 0, claim=CLAIM)
    assert not queue.put(_named('built on'), 1, occupied=True)
    queue.put(OTHER, 2)
    assert queue.put(_named('built on'), 1)
    assert queue.take(9).wanted.uuid == 'built on'
    assert queue.take(9).wanted == OTHER
    assert queue.take(9) is None


def test_build_that_fails_at_once_is_not_written():
    """A build that fails during the deferral causes no write of its own."""
    queue = WorkQueue(deferral_s=2)
    queue.put(ONE, 0)
    queue.finish(queue.take(0), Settled(), 0)
    queue.put(TWO, 1, claim=CLAIM)
    assert queue.take(2.9) is None
    assert queue.put(ONE, 2.9)
    assert queue.take(2.9).wanted == ONE


def test_node_of_a_build_waits_once(queue):
    """Further changes do not prolong the deferral of a node of a build."""
    queue = WorkQueue(deferral_s=2)
    queue.put(ONE, 0, claim=CLAIM)
    queue.put(TWO, 1.5, claim=CLAIM)
    assert (queue.next_due_s(), queue.backlog()) == (2, (1, 2))
    assert list(queue.dirty_since_s().values()) == [2]
    assert queue.take(2).wanted == TWO


def test_node_of_a_server_is_not_deferred_after_its_first_write(queue):
    """A node of a build is no longer deferred after its first write."""
    queue.put(ONE, 0, claim=CLAIM)
    queue.finish(queue.take(0), Settled(), 0)
    queue.put(_named('built on'), 1, claim=CLAIM)
    queue.put(TWO, 2, occupied=True)
    assert queue.take(9).wanted == TWO


def test_written_state_is_not_dirty(queue):
    """A state that is already written makes no work."""
    queue.put(ONE, 0)
    queue.finish(queue.take(0), Settled(), 0)
    assert not queue.put(ONE, 5)
    assert queue.next_due_s() is None
    assert queue.is_idle()


def test_failed_node_waits_and_does_not_count_as_written(queue):
    """After a failure the same state waits, and another one does not."""
    queue.put(ONE, 0)
    queue.finish(queue.take(0), Failed(10), 0)
    assert not queue.put(ONE, 1)
    assert queue.take(9) is None
    assert not queue.is_idle()
    assert queue.put(TWO, 9)
    assert queue.take(9).wanted == TWO


def test_newer_state_does_not_wait_for_the_retry_of_an_older_one(queue):
    """A state that arrives during a failing write is tried at once."""
    item = _taken(queue)
    queue.put(TWO, 0)
    queue.finish(item, Failed(99), 1)
    assert queue.take(1).wanted == TWO


def test_former_state_is_written_again_after_another_failed(queue):
    """A state is written again after a different one failed half-way."""
    queue.put(ONE, 0)
    queue.finish(queue.take(0), Settled(), 0)
    queue.put(TWO, 0)
    queue.finish(queue.take(0), Failed(9), 0)
    queue.put(ONE, 1)
    assert not queue.is_idle()
    assert queue.take(1).wanted == ONE


def test_refused_node_is_tried_when_it_is_submitted_again(queue):
    """A refused node is tried again when it is submitted again."""
    queue.put(ONE, 0)
    queue.finish(queue.take(0), Failed(), 0)
    assert queue.next_due_s() is None
    assert queue.put(ONE, 1)
    assert queue.take(1).entry.failures_count == 1


def test_node_with_a_kept_class_is_taken_again(queue):
    """A node with a class that must be kept is taken again later."""
    queue.put(ONE, 0)
    queue.finish(queue.take(0), Settled(60), 0)
    assert queue.is_idle()
    assert not queue.put(ONE, 1)
    assert queue.take(60).wanted == ONE


@pytest.mark.parametrize('is_busy', [True, False])
def test_provider_is_not_stale_because_of_a_write_in_progress(queue, is_busy):
    """The write itself may have changed the generation."""
    state = _known(queue)
    item = queue.take(0)
    if not is_busy:
        queue.finish(item, Settled(), 0)
    queue.mark_stale(NODE, 1)
    if is_busy:
        queue.finish(item, Settled(), 0)
    assert state.is_stale is not is_busy
    assert (queue.take(1) is None) is is_busy


def test_interrupted_node_is_due_at_once(queue):
    """An interrupted write is repeated at once, and is no failure."""
    queue.put(ONE, 0)
    queue.finish(queue.take(0), Interrupted(), 0)
    assert queue.take(0).entry.failures_count == 0


def test_forgotten_node_stays_forgotten(queue):
    """Neither a failed write nor a wait brings a forgotten node back."""
    item = _taken(queue)
    queue.forget(NODE)
    assert not queue.is_current(item.entry)
    queue.finish(item, Failed(1), 0)
    queue.put(OTHER, 0)
    queue.forget('other')
    assert queue.take(100) is None
    assert queue.is_idle()


def test_node_that_came_back_waits_for_its_former_task(queue):
    """A node held again waits until the earlier write has ended."""
    former = _taken(queue)
    queue.forget(NODE)
    assert queue.put(TWO, 0)
    assert queue.take(0) is None
    queue.finish(former, Failed(99), 0)
    item = queue.take(0)
    assert item.wanted == TWO
    assert item.entry.failures_count == 0


def test_retry_can_be_made_due_at_once(queue):
    """A retry can be made due at once."""
    queue.put(ONE, 0)
    queue.finish(queue.take(0), Failed(60), 0)
    queue.retry_now(NODE, 1)
    assert queue.take(1) is not None


def test_locked_node_is_not_taken(queue):
    """A locked node is not taken until it is unlocked."""
    assert queue.lock_node(NODE)
    assert not queue.lock_node(NODE)
    queue.put(ONE, 0)
    assert queue.take(5) is None
    queue.unlock_node(NODE)
    assert queue.take(5) is not None


_OUTCOMES = st.sampled_from(
    [
        Settled(),
        Failed(1.0),
        Failed(9.0),
        Failed(),
        Settled(5.0),
    ]
)
_EVENTS = st.lists(
    st.one_of(
        st.tuples(st.just('want'), st.sampled_from([ONE, TWO, OTHER])),
        st.tuples(st.just('claim'), st.sampled_from([ONE, TWO, OTHER])),
        st.tuples(st.just('take'), st.none()),
        st.tuples(st.just('done'), _OUTCOMES),
        st.tuples(st.just('forget'), st.just(NODE)),
        st.tuples(st.just('wait'), st.floats(0.1, 20.0)),
    ),
    max_size=40,
)


@given(_EVENTS)
def test_any_order_of_events_ends_with_the_newest_state_written(events):
    """After any events each node's newest state is written.

    A node that was forgotten is not written.
    """
    queue, now_s, items, newest = WorkQueue(), 0.0, [], {}
    for what, value in events:
        if what in ('want', 'claim'):
            claimed = what == 'claim'
            queue.put(value, now_s, claim=CLAIM if claimed else None)
            newest[value.uuid] = value
        elif what == 'take' and (item := queue.take(now_s)):
            busy = {t.entry.node for t in items}
            assert item.entry.node not in busy
            assert item.wanted == newest[item.entry.node]
            items.append(item)
        elif what == 'done' and items:
            queue.finish(items.pop(0), value, now_s)
        elif what == 'forget':
            queue.forget(value)
            newest.pop(value, None)
        elif what == 'wait':
            now_s += value
    for item in items:
        queue.finish(item, Failed(1.0), now_s)
    for wanted in newest.values():
        queue.put(wanted, now_s)
    now_s += 100
    while item := queue.take(now_s):
        queue.finish(item, Settled(), now_s)
    assert queue.is_idle()
    for node, wanted in newest.items():
        assert queue.entry(node).written == wanted

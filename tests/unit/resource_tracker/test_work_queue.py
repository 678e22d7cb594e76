# SPDX-License-Identifier: Apache-2.0
"""Which node is next, and when."""

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
    """No nodes."""
    return WorkQueue()


def test_newest_wish_wins(queue):
    """Of several wishes before it is taken only the last is said."""
    for wanted in (ONE, TWO, ONE, TWO):
        queue.put(wanted, 0)
    assert queue.take(0).wanted == TWO
    assert queue.take(0) is None


def test_nodes_come_in_their_order(queue):
    """Who waits longest is first."""
    queue.put(OTHER, 0)
    queue.put(ONE, 0)
    assert [queue.take(1).wanted, queue.take(1).wanted] == [OTHER, ONE]


def test_busy_node_is_not_taken_twice(queue):
    """Writes of one node never overlap; what came meanwhile is next."""
    queue.put(ONE, 0)
    item = queue.take(0)
    queue.put(TWO, 0)
    assert queue.take(0) is None
    queue.finish(item, Settled(), 1)
    assert queue.take(1).wanted == TWO


def test_node_that_is_being_said_is_revisited_after(queue):
    """Who says it may have looked too early; once more is enough."""
    queue.put(ONE, 0)
    item = queue.take(0)
    queue.schedule_rewrite(NODE, 5)
    assert queue.take(5) is None
    queue.finish(item, Settled(), 5)
    assert queue.take(4) is None
    queue.finish(queue.take(5), Settled(), 5)
    assert queue.take(9) is None


def test_node_that_is_gone_is_not_revisited(queue):
    """It was forgotten while its turn was worked out."""
    queue.schedule_rewrite(NODE, 0)
    assert queue.take(0) is None


def test_only_who_wants_a_trait_is_revisited(queue):
    """The others have nothing more to say."""
    queue.put(ONE, 0)
    queue.put(OTHER, 0)
    queue.put(TWO, 0)
    assert queue.list_nodes_wanting(frozenset({'CUSTOM_1'})) == ['other']


def _known(queue):
    """The memory of a node of which something is known."""
    queue.put(ONE, 0)
    state = queue.entry(NODE).state
    state.known = KnownProvider(NODE, 1)
    return state


def test_claim_makes_what_is_known_doubtful(queue):
    """The allocation of the build was written to the provider since."""
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
def test_claim_tells_the_generation(queue, seen, generation, is_stale):
    """Nova has just seen the provider, with the allocation of the build."""
    state = _known(queue)
    queue.put(TWO, 0, claim=Claim('server', seen))
    assert state.known.generation == generation
    assert state.is_stale == is_stale


def test_claim_of_a_node_that_is_as_wanted_changes_nothing(queue):
    """What is not written is not read."""
    state = _known(queue)
    queue.finish(queue.take(0), Settled(), 0)
    queue.put(ONE, 0, claim=CLAIM)
    assert not state.is_stale


def test_claim_leaves_the_memory_to_the_thread_that_has_it(queue):
    """Only its present thread writes it; a conflict tells that one."""
    state = _known(queue)
    queue.take(0)
    queue.put(TWO, 0, claim=CLAIM)
    assert not state.is_stale


def test_claim_of_a_node_not_looked_at_yet_needs_no_doubt(queue):
    """It will be read anyway."""
    queue.put(ONE, 0)
    queue.put(TWO, 0, claim=CLAIM)
    assert not queue.entry(NODE).state.is_stale


def _named(name):
    return dataclasses.replace(ONE, uuid=name)


def test_nodes_of_builds_go_last(queue):
    """Their allocations keep them from others; who comes free is needed."""
    queue.put(_named('built on'), 0, claim=CLAIM)
    queue.put(_named('free'), 5)
    assert queue.take(9).wanted.uuid == 'free'
    assert queue.take(9).wanted.uuid == 'built on'


def test_builds_leave_room_for_others():
    """However many begin at once; and nobody is told to look in vain."""
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


def test_node_is_waited_for_again_when_its_build_is_gone(queue):
    """Its allocation may be gone as well; who wants it has not changed."""
    queue.put(_named('built on'), 0, claim=CLAIM)
    assert not queue.put(_named('built on'), 1, occupied=True)
    queue.put(OTHER, 2)
    assert queue.put(_named('built on'), 1)
    assert queue.take(9).wanted.uuid == 'built on'
    assert queue.take(9).wanted == OTHER
    assert queue.take(9) is None


def test_build_that_fails_at_once_is_not_said():
    """Its node is as it was before anybody has said otherwise."""
    queue = WorkQueue(deferral_s=2)
    queue.put(ONE, 0)
    queue.finish(queue.take(0), Settled(), 0)
    queue.put(TWO, 1, claim=CLAIM)
    assert queue.take(2.9) is None
    assert queue.put(ONE, 2.9)
    assert queue.take(2.9).wanted == ONE


def test_node_of_a_build_waits_once(queue):
    """However often it changes: it is late from when it was to be said."""
    queue = WorkQueue(deferral_s=2)
    queue.put(ONE, 0, claim=CLAIM)
    queue.put(TWO, 1.5, claim=CLAIM)
    assert (queue.next_due_s(), queue.backlog()) == (2, (1, 2))
    assert queue.take(2).wanted == TWO


def test_node_of_a_server_is_as_urgent_as_any_once_it_was_said(queue):
    """Only the burst of builds had to wait."""
    queue.put(ONE, 0, claim=CLAIM)
    queue.finish(queue.take(0), Settled(), 0)
    queue.put(_named('built on'), 1, claim=CLAIM)
    queue.put(TWO, 2, occupied=True)
    assert queue.take(9).wanted == TWO


def test_what_is_said_is_not_dirty(queue):
    """The same wish again is nothing to do."""
    queue.put(ONE, 0)
    queue.finish(queue.take(0), Settled(), 0)
    assert not queue.put(ONE, 5)
    assert queue.next_due_s() is None
    assert queue.is_idle()


def test_failed_node_waits_and_does_not_count_as_said(queue):
    """The same wish does not shorten the wait, another one does."""
    queue.put(ONE, 0)
    queue.finish(queue.take(0), Failed(10), 0)
    assert not queue.put(ONE, 1)
    assert queue.take(9) is None
    assert not queue.is_idle()
    assert queue.put(TWO, 9)
    assert queue.take(9).wanted == TWO


def test_newer_wish_does_not_sit_out_the_older_ones_wait(queue):
    """What came while the older one failed is tried at once."""
    queue.put(ONE, 0)
    item = queue.take(0)
    queue.put(TWO, 0)
    queue.finish(item, Failed(99), 1)
    assert queue.take(1).wanted == TWO


def test_former_wish_is_not_said_after_another_was_tried(queue):
    """Half of the other one may be in Placement."""
    queue.put(ONE, 0)
    queue.finish(queue.take(0), Settled(), 0)
    queue.put(TWO, 0)
    queue.finish(queue.take(0), Failed(9), 0)
    queue.put(ONE, 1)
    assert not queue.is_idle()
    assert queue.take(1).wanted == ONE


def test_refused_node_is_tried_when_it_is_wanted_again(queue):
    """Somebody may have put it right in Placement."""
    queue.put(ONE, 0)
    queue.finish(queue.take(0), Failed(), 0)
    assert queue.next_due_s() is None
    assert queue.put(ONE, 1)
    assert queue.take(1).entry.failures_count == 1


def test_kept_node_is_said_and_looked_at_again(queue):
    """What waits for an allocation to end is not left to do."""
    queue.put(ONE, 0)
    queue.finish(queue.take(0), Settled(60), 0)
    assert queue.is_idle()
    assert not queue.put(ONE, 1)
    assert queue.take(60).wanted == ONE


def test_interrupted_node_is_due_at_once(queue):
    """Nobody's fault, so no wait and no count."""
    queue.put(ONE, 0)
    queue.finish(queue.take(0), Interrupted(), 0)
    assert queue.take(0).entry.failures_count == 0


def test_forgotten_node_stays_forgotten(queue):
    """Neither a failure under way nor a wait brings it back."""
    queue.put(ONE, 0)
    item = queue.take(0)
    queue.forget(NODE)
    assert not queue.is_current(item.entry)
    queue.finish(item, Failed(1), 0)
    queue.put(OTHER, 0)
    queue.forget('other')
    assert queue.take(100) is None
    assert queue.is_idle()


def test_node_that_came_back_waits_for_its_former_task(queue):
    """Forgotten and held again while a request is out: in order still."""
    queue.put(ONE, 0)
    former = queue.take(0)
    queue.forget(NODE)
    assert queue.put(TWO, 0)
    assert queue.take(0) is None
    queue.finish(former, Failed(99), 0)
    item = queue.take(0)
    assert item.wanted == TWO
    assert item.entry.failures_count == 0


def test_hurried_node_need_not_wait(queue):
    """Placement is back: whoever waits for it goes on."""
    queue.put(ONE, 0)
    queue.finish(queue.take(0), Failed(60), 0)
    queue.retry_now(NODE, 1)
    assert queue.take(1) is not None


def test_held_node_is_not_taken(queue):
    """A node that is being removed is nobody else's."""
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
def test_any_order_of_events_ends_with_the_newest_wish_said(events):
    """No wish is lost, none is said after its node was forgotten."""
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

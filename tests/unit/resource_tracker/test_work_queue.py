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
    Interrupted,
    LookAgain,
    Refused,
    RetryAfter,
    Settled,
    WorkQueue,
)
from tests.unit.resource_tracker.nodes import NODE

ONE = WantedProvider(NODE, None, frozenset({'CUSTOM_1'}), None)
TWO = dataclasses.replace(ONE, traits=frozenset({'CUSTOM_2'}))
OTHER = dataclasses.replace(ONE, uuid='other')
CLAIM = Claim('server')


@pytest.fixture
def nodes():
    """No nodes."""
    return WorkQueue()


def test_newest_wish_wins(nodes):
    """Of several wishes before it is taken only the last is said."""
    for wanted in (ONE, TWO, ONE, TWO):
        nodes.want(wanted, 0)
    assert nodes.take(0).wanted == TWO
    assert nodes.take(0) is None


def test_nodes_come_in_their_order(nodes):
    """Who waits longest is first."""
    nodes.want(OTHER, 0)
    nodes.want(ONE, 0)
    assert [nodes.take(1).wanted, nodes.take(1).wanted] == [OTHER, ONE]


def test_busy_node_is_not_taken_twice(nodes):
    """Writes of one node never overlap; what came meanwhile is next."""
    nodes.want(ONE, 0)
    task = nodes.take(0)
    nodes.want(TWO, 0)
    assert nodes.take(0) is None
    nodes.done(task, Settled(), 1)
    assert nodes.take(1).wanted == TWO


def test_node_that_is_being_said_is_revisited_after(nodes):
    """Who says it may have looked too early; once more is enough."""
    nodes.want(ONE, 0)
    task = nodes.take(0)
    nodes.revisit(NODE, 5)
    assert nodes.take(5) is None
    nodes.done(task, Settled(), 5)
    assert nodes.take(4) is None
    nodes.done(nodes.take(5), Settled(), 5)
    assert nodes.take(9) is None


def test_node_that_is_gone_is_not_revisited(nodes):
    """It was forgotten while its turn was worked out."""
    nodes.revisit(NODE, 0)
    assert nodes.take(0) is None


def test_only_who_wants_a_trait_is_revisited(nodes):
    """The others have nothing more to say."""
    nodes.want(ONE, 0)
    nodes.want(OTHER, 0)
    nodes.want(TWO, 0)
    assert nodes.wanting(frozenset({'CUSTOM_1'})) == ['other']


def _known(nodes):
    """The memory of a node of which something is known."""
    nodes.want(ONE, 0)
    memory = nodes.entry(NODE).memory
    memory.known = KnownProvider(NODE, 1)
    return memory


def test_claim_makes_what_is_known_doubtful(nodes):
    """The allocation of the build was written to the provider since."""
    memory = _known(nodes)
    nodes.want(TWO, 0)
    assert not memory.is_doubtful
    nodes.want(ONE, 0, claim=CLAIM)
    assert memory.is_doubtful


@pytest.mark.parametrize(
    ('seen', 'generation', 'is_doubtful'),
    [(1, 1, False), (2, 2, False), (3, 1, True), (0, 1, False)],
    ids=['ours since', 'the allocation', 'others, too', 'before ours'],
)
def test_claim_tells_the_generation(nodes, seen, generation, is_doubtful):
    """Nova has just seen the provider, with the allocation of the build."""
    memory = _known(nodes)
    nodes.want(TWO, 0, claim=Claim('server', seen))
    assert memory.known.generation == generation
    assert memory.is_doubtful == is_doubtful


def test_claim_of_a_node_that_is_as_wanted_changes_nothing(nodes):
    """What is not written is not read."""
    memory = _known(nodes)
    nodes.done(nodes.take(0), Settled(), 0)
    nodes.want(ONE, 0, claim=CLAIM)
    assert not memory.is_doubtful


def test_claim_leaves_the_memory_to_the_thread_that_has_it(nodes):
    """Only its present thread writes it; a conflict tells that one."""
    memory = _known(nodes)
    nodes.take(0)
    nodes.want(TWO, 0, claim=CLAIM)
    assert not memory.is_doubtful


def test_claim_of_a_node_not_looked_at_yet_needs_no_doubt(nodes):
    """It will be read anyway."""
    nodes.want(ONE, 0)
    nodes.want(TWO, 0, claim=CLAIM)
    assert not nodes.entry(NODE).memory.is_doubtful


def _named(name):
    return dataclasses.replace(ONE, uuid=name)


def test_nodes_of_builds_go_last(nodes):
    """Their allocations keep them from others; who comes free is needed."""
    nodes.want(_named('built on'), 0, claim=CLAIM)
    nodes.want(_named('free'), 5)
    assert nodes.take(9).wanted.uuid == 'free'
    assert nodes.take(9).wanted.uuid == 'built on'


def test_builds_leave_room_for_others():
    """However many begin at once; and nobody is told to look in vain."""
    nodes = WorkQueue(patient_max=2)
    for name in ('a', 'b', 'c'):
        nodes.want(_named(name), 0, claim=CLAIM)
    first, _ = nodes.take(0), nodes.take(0)
    assert nodes.take(0) is None
    assert nodes.next_due_s() is None
    nodes.want(_named('free'), 1)
    assert nodes.take(1).wanted.uuid == 'free'
    nodes.done(first, RetryAfter(60), 2)
    assert nodes.next_due_s() == 0
    assert nodes.take(2).wanted.uuid == 'c'


def test_node_is_waited_for_again_when_its_build_is_gone(nodes):
    """Its allocation may be gone as well; who wants it has not changed."""
    nodes.want(_named('built on'), 0, claim=CLAIM)
    assert not nodes.want(_named('built on'), 1, occupied=True)
    nodes.want(OTHER, 2)
    assert nodes.want(_named('built on'), 1)
    assert nodes.take(9).wanted.uuid == 'built on'
    assert nodes.take(9).wanted == OTHER
    assert nodes.take(9) is None


def test_build_that_fails_at_once_is_not_said():
    """Its node is as it was before anybody has said otherwise."""
    nodes = WorkQueue(patience_s=2)
    nodes.want(ONE, 0)
    nodes.done(nodes.take(0), Settled(), 0)
    nodes.want(TWO, 1, claim=CLAIM)
    assert nodes.take(2.9) is None
    assert nodes.want(ONE, 2.9)
    assert nodes.take(2.9).wanted == ONE


def test_node_of_a_build_waits_once(nodes):
    """However often it changes: it is late from when it was to be said."""
    nodes = WorkQueue(patience_s=2)
    nodes.want(ONE, 0, claim=CLAIM)
    nodes.want(TWO, 1.5, claim=CLAIM)
    assert (nodes.next_due_s(), nodes.waiting()) == (2, (1, 2))
    assert nodes.take(2).wanted == TWO


def test_node_of_a_server_is_as_urgent_as_any_once_it_was_said(nodes):
    """Only the burst of builds had to wait."""
    nodes.want(ONE, 0, claim=CLAIM)
    nodes.done(nodes.take(0), Settled(), 0)
    nodes.want(_named('built on'), 1, claim=CLAIM)
    nodes.want(TWO, 2, occupied=True)
    assert nodes.take(9).wanted == TWO


def test_what_is_said_is_not_dirty(nodes):
    """The same wish again is nothing to do."""
    nodes.want(ONE, 0)
    nodes.done(nodes.take(0), Settled(), 0)
    assert not nodes.want(ONE, 5)
    assert nodes.next_due_s() is None
    assert nodes.is_idle()


def test_failed_node_waits_and_does_not_count_as_said(nodes):
    """The same wish does not shorten the wait, another one does."""
    nodes.want(ONE, 0)
    nodes.done(nodes.take(0), RetryAfter(10), 0)
    assert not nodes.want(ONE, 1)
    assert nodes.take(9) is None
    assert not nodes.is_idle()
    assert nodes.want(TWO, 9)
    assert nodes.take(9).wanted == TWO


def test_newer_wish_does_not_sit_out_the_older_ones_wait(nodes):
    """What came while the older one failed is tried at once."""
    nodes.want(ONE, 0)
    task = nodes.take(0)
    nodes.want(TWO, 0)
    nodes.done(task, RetryAfter(99), 1)
    assert nodes.take(1).wanted == TWO


def test_former_wish_is_not_said_after_another_was_tried(nodes):
    """Half of the other one may be in Placement."""
    nodes.want(ONE, 0)
    nodes.done(nodes.take(0), Settled(), 0)
    nodes.want(TWO, 0)
    nodes.done(nodes.take(0), RetryAfter(9), 0)
    nodes.want(ONE, 1)
    assert not nodes.is_idle()
    assert nodes.take(1).wanted == ONE


def test_refused_node_is_tried_when_it_is_wanted_again(nodes):
    """Somebody may have put it right in Placement."""
    nodes.want(ONE, 0)
    nodes.done(nodes.take(0), Refused(), 0)
    assert nodes.next_due_s() is None
    assert nodes.want(ONE, 1)
    assert nodes.take(1).entry.failures_count == 1


def test_kept_node_is_said_and_looked_at_again(nodes):
    """What waits for an allocation to end is not left to do."""
    nodes.want(ONE, 0)
    nodes.done(nodes.take(0), LookAgain(60), 0)
    assert nodes.is_idle()
    assert not nodes.want(ONE, 1)
    assert nodes.take(60).wanted == ONE


def test_interrupted_node_is_due_at_once(nodes):
    """Nobody's fault, so no wait and no count."""
    nodes.want(ONE, 0)
    nodes.done(nodes.take(0), Interrupted(), 0)
    assert nodes.take(0).entry.failures_count == 0


def test_forgotten_node_stays_forgotten(nodes):
    """Neither a failure under way nor a wait brings it back."""
    nodes.want(ONE, 0)
    task = nodes.take(0)
    nodes.forget(NODE)
    assert not nodes.is_current(task.entry)
    nodes.done(task, RetryAfter(1), 0)
    nodes.want(OTHER, 0)
    nodes.forget('other')
    assert nodes.take(100) is None
    assert nodes.is_idle()


def test_node_that_came_back_waits_for_its_former_task(nodes):
    """Forgotten and held again while a request is out: in order still."""
    nodes.want(ONE, 0)
    former = nodes.take(0)
    nodes.forget(NODE)
    assert nodes.want(TWO, 0)
    assert nodes.take(0) is None
    nodes.done(former, RetryAfter(99), 0)
    task = nodes.take(0)
    assert task.wanted == TWO
    assert task.entry.failures_count == 0


def test_hurried_node_need_not_wait(nodes):
    """Placement is back: whoever waits for it goes on."""
    nodes.want(ONE, 0)
    nodes.done(nodes.take(0), RetryAfter(60), 0)
    nodes.hurry(NODE, 1)
    assert nodes.take(1) is not None


def test_held_node_is_not_taken(nodes):
    """A node that is being removed is nobody else's."""
    assert nodes.hold(NODE)
    assert not nodes.hold(NODE)
    nodes.want(ONE, 0)
    assert nodes.take(5) is None
    nodes.release(NODE)
    assert nodes.take(5) is not None


_OUTCOMES = st.sampled_from(
    [Settled(), RetryAfter(1.0), RetryAfter(9.0), Refused(), LookAgain(5.0)]
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
    nodes, now_s, tasks, newest = WorkQueue(), 0.0, [], {}
    for what, value in events:
        if what in ('want', 'claim'):
            claimed = what == 'claim'
            nodes.want(value, now_s, claim=CLAIM if claimed else None)
            newest[value.uuid] = value
        elif what == 'take' and (task := nodes.take(now_s)):
            busy = {t.entry.node for t in tasks}
            assert task.entry.node not in busy
            assert task.wanted == newest[task.entry.node]
            tasks.append(task)
        elif what == 'done' and tasks:
            nodes.done(tasks.pop(0), value, now_s)
        elif what == 'forget':
            nodes.forget(value)
            newest.pop(value, None)
        elif what == 'wait':
            now_s += value
    for task in tasks:
        nodes.done(task, RetryAfter(1.0), now_s)
    for wanted in newest.values():
        nodes.want(wanted, now_s)
    now_s += 100
    while task := nodes.take(now_s):
        nodes.done(task, Settled(), now_s)
    assert nodes.is_idle()
    for node, wanted in newest.items():
        assert nodes.entry(node).said == wanted

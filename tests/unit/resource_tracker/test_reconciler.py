# SPDX-License-Identifier: Apache-2.0
"""The reconciler over a Placement that keeps the rules."""

import dataclasses

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hashring.clock import ManualClock
from resource_tracker import errors
from resource_tracker.claims import ClaimBook
from resource_tracker.node import NodeFacts, NodeId
from resource_tracker.provider import Situation, wanted
from resource_tracker.reconciler import Reconciler
from tests.fakes.placement import FakePlacement

NODE = NodeId('6f1d5c1e-0000-4000-8000-000000000001')
READY = NodeFacts(
    uuid=NODE,
    resource_class='gold',
    provision_state='available',
    power_state='power on',
)
DRAIN_S = 10.0


class OpenGate:
    """A gate that never shuts."""

    def is_open(self):
        return True

    def wait(self):
        return


@pytest.fixture
def placement():
    """An empty Placement."""
    return FakePlacement()


@pytest.fixture
def reconciler(placement):
    """A reconciler of two threads over it."""
    made = Reconciler(placement, OpenGate(), ManualClock(), parallelism=2)
    yield made
    made.stop()


def test_new_node_takes_three_writes(placement, reconciler):
    """A list, then POST, traits, inventory: nothing is read first."""
    reconciler.submit(READY, Situation())
    assert reconciler.drain(DRAIN_S)
    assert placement.requests == [
        'list',
        'Create',
        'PutTraits',
        'PutInventories',
    ]


def test_no_change_costs_no_request(placement, reconciler):
    """What Placement acknowledged is not said again."""
    reconciler.submit(READY, Situation())
    reconciler.drain(DRAIN_S)
    count = len(placement.requests)
    for _ in range(10):
        reconciler.submit(READY, Situation())
    reconciler.drain(DRAIN_S)
    assert len(placement.requests) == count


def test_existing_provider_is_never_created_again(placement):
    """Bug 1714248: taking a node over neither posts nor deletes."""
    first = Reconciler(placement, OpenGate(), ManualClock(), parallelism=1)
    first.submit(READY, Situation())
    first.drain(DRAIN_S)
    placement.allocate(NODE, 'server')
    placement.requests.clear()
    second = Reconciler(placement, OpenGate(), ManualClock(), parallelism=1)
    second.submit(
        dataclasses.replace(READY, instance_uuid='server'), Situation()
    )
    assert second.drain(DRAIN_S)
    assert placement.requests == ['list', 'read', 'PutInventories']
    assert placement.held[NODE].allocations == {'server': 'CUSTOM_GOLD'}


def test_foreign_write_is_read_and_kept(placement, reconciler):
    """A conflict reads again; a trait somebody else set stays."""
    reconciler.submit(READY, Situation())
    reconciler.drain(DRAIN_S)
    placement.tag(NODE, 'CUSTOM_RACK_7')
    reconciler.submit(READY, Situation(disabled=True))
    reconciler.drain(DRAIN_S)
    assert placement.held[NODE].traits >= {
        'CUSTOM_RACK_7',
        'COMPUTE_STATUS_DISABLED',
    }


def test_trait_removed_in_ironic_goes(placement, reconciler):
    """A trait that we set and that is not wanted any more is removed."""
    tagged = dataclasses.replace(READY, traits=frozenset({'CUSTOM_GPU'}))
    for facts in (tagged, READY):
        reconciler.submit(facts, Situation())
        reconciler.drain(DRAIN_S)
    assert 'CUSTOM_GPU' not in placement.held[NODE].traits


def test_class_changed_under_an_allocation_waits(placement, reconciler):
    """Bug 1751472: an inventory in use is kept until it is free."""
    reconciler.submit(READY, Situation())
    reconciler.drain(DRAIN_S)
    placement.allocate(NODE, 'server')
    silver = dataclasses.replace(READY, resource_class='silver')
    reconciler.submit(silver, Situation())
    reconciler.drain(DRAIN_S)
    assert set(placement.held[NODE].inventories) == {'CUSTOM_GOLD'}
    placement.deallocate(NODE)
    reconciler.submit(silver, Situation())
    reconciler.drain(DRAIN_S)
    assert set(placement.held[NODE].inventories) == {'CUSTOM_SILVER'}


def test_provider_in_use_is_not_removed(placement, reconciler):
    """What is allocated stays, whatever Ironic said."""
    reconciler.submit(READY, Situation())
    reconciler.drain(DRAIN_S)
    placement.allocate(NODE, 'server')
    assert not reconciler.remove(NODE)
    assert NODE in placement.held


_STEPS = st.lists(
    st.one_of(
        st.tuples(st.just('maintenance'), st.booleans()),
        st.tuples(st.just('resource_class'), st.sampled_from(['a', 'b'])),
        st.tuples(
            st.just('traits'),
            st.frozensets(st.sampled_from(['CUSTOM_A', 'CUSTOM_B'])),
        ),
        st.tuples(st.just('allocate'), st.none()),
        st.tuples(st.just('deallocate'), st.none()),
        st.tuples(st.just('tag'), st.none()),
        st.tuples(st.just('lose'), st.sampled_from(['before', 'after'])),
    ),
    max_size=12,
)


@settings(max_examples=150, deadline=None)
@given(_STEPS)
def test_any_history_ends_in_the_wanted_state(steps):
    """Changes, foreign writes, conflicts, lost answers: all are healed."""
    placement, facts, tagged = FakePlacement(), READY, False
    reconciler = _Impatient(placement)
    reconciler.say(facts)
    for what, value in steps:
        if what == 'lose':
            lost = errors.GenerationConflict('lost')
            placement.fail_next = [(value, lost)]
        elif what == 'tag':
            placement.tag(NODE, 'CUSTOM_FOREIGN')
            tagged = True
        elif what == 'deallocate':
            placement.deallocate(NODE)
        elif what == 'allocate':
            if not placement.held[NODE].allocations:
                placement.allocate(NODE, 'server')
        else:
            facts = dataclasses.replace(facts, **{what: value})
            reconciler.say(facts)
        _check_in_use(placement)
    placement.fail_next = []
    placement.deallocate(NODE)
    reconciler.say(facts)
    want, held = wanted(facts, Situation()), placement.held[NODE]
    assert set(held.inventories) == {want.inventory.resource_class}
    assert held.traits - {'CUSTOM_FOREIGN'} == want.traits
    assert ('CUSTOM_FOREIGN' in held.traits) == tagged


def _check_in_use(placement):
    provider = placement.held[NODE]
    assert set(provider.allocations.values()) <= set(provider.inventories)


class _Impatient:
    """Says a node until it is said, without waiting for a timer."""

    def __init__(self, placement):
        self._reconciler = Reconciler(
            placement, OpenGate(), ManualClock(), parallelism=1
        )

    def say(self, facts):
        for _ in range(4):
            self._reconciler.submit(facts, Situation())
            assert self._reconciler.drain(DRAIN_S)


def test_one_consumer_a_node():
    """The claim book refuses a second consumer and knows the first."""
    book = ClaimBook()
    book.claim(NODE, 'one')
    book.claim(NODE, 'one')
    with pytest.raises(errors.NodeClaimed) as caught:
        book.claim(NODE, 'two')
    assert caught.value.consumer == 'one'
    book.release(NODE, 'two')
    assert book.consumer(NODE) == 'one'
    book.release(NODE, 'one')
    assert book.consumer(NODE) is None

# SPDX-License-Identifier: Apache-2.0
"""The write of one node's provider, with other clients that write too."""

import dataclasses
import pathlib
import tempfile

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from resource_tracker import delta, errors
from resource_tracker.disk_cache import FileDiskCache, NoDiskCache
from resource_tracker.provider import (
    Aggregates,
    Situation,
    wanted_provider,
    withdrawn_provider,
)
from resource_tracker.provider_state import ProviderState
from resource_tracker.provider_sync import ProviderSync
from tests.fakes.clock import ManualClock
from tests.fakes.placement import FakePlacement
from tests.unit.resource_tracker.nodes import (
    GOLD,
    NODE,
    READY,
    changed,
    numbered,
)


class World:
    """A Placement, one node, and one worker that reports the node."""

    def __init__(self, cache_path=None):
        self.placement = FakePlacement()
        self.facts = READY
        self._cache_path = cache_path
        self._disk_cache = NoDiskCache()
        self.crash()

    def crash(self):
        """Start the worker again; it keeps only its disk cache, if any."""
        self.clock = ManualClock()
        if isinstance(self._disk_cache, FileDiskCache):
            self._disk_cache.close()
        if self._cache_path is not None:
            self._disk_cache = FileDiskCache(self._cache_path, 'c1')
        self.provider_sync = ProviderSync(
            self.placement, self.clock, self._disk_cache
        )
        self.state = ProviderState()

    def report(self, **situation):
        """Report the node."""
        return self.provider_sync.sync(
            wanted_provider(self.facts, Situation(**situation)),
            self.state,
            lambda: None,
        )

    def provider(self):
        """Return the provider of the node in Placement."""
        return self.placement.providers[NODE]


@pytest.fixture
def world():
    """Return a world without providers and without a disk cache."""
    return World()


def test_new_node_takes_a_list_and_three_writes(world):
    """A node that the list does not have is not read."""
    assert world.report().writes_count == 3
    assert world.placement.requests == [
        'list',
        'Create',
        'PutTraits',
        'PutInventories',
    ]


def test_unconfirmed_node_is_described_and_not_offered(world):
    """A node with an unconfirmed row gets traits, and no inventory yet.

    After the confirmation only the inventory is written.
    """
    world.report(confirmed=False)
    assert world.placement.requests == ['list', 'Create', 'PutTraits']
    assert world.provider().inventories == {}
    world.report()
    assert world.placement.requests[3:] == ['PutInventories']


def test_unconfirmed_node_with_a_provider_stays_as_it_is(world):
    """An unconfirmed node whose provider is as wanted needs no write."""
    world.report()
    world.crash()
    assert world.report(confirmed=False).writes_count == 0
    assert world.report().writes_count == 0


def test_unconfirmed_node_that_is_not_fit_is_reserved(world):
    """An unconfirmed node is reserved, and freed after the confirmation."""
    world.report()
    world.facts = changed(maintenance=True)
    world.report(confirmed=False)
    assert world.provider().inventories[GOLD]['reserved'] == 1
    world.facts = READY
    world.report(confirmed=False)
    assert world.provider().inventories[GOLD]['reserved'] == 1
    world.report()
    assert world.provider().inventories[GOLD]['reserved'] == 0


def test_unconfirmed_node_that_is_not_fit_gets_no_inventory(world):
    """An unconfirmed node that cannot take a build gets no inventory."""
    world.facts = changed(maintenance=True)
    world.report(confirmed=False)
    assert world.provider().inventories == {}


def test_deleted_node_is_reserved_without_having_been_read(world):
    """A deleted node is reserved, even by a worker that never read it."""
    world.report()
    traits = world.provider().traits
    world.crash()
    world.provider_sync.sync(
        withdrawn_provider(NODE), world.state, lambda: None
    )
    assert world.provider().inventories[GOLD]['reserved'] == 1
    assert world.provider().traits == traits


def test_deleted_node_without_a_provider_gets_none(world):
    """A deleted node without a provider gets none."""
    outcome = world.provider_sync.sync(
        withdrawn_provider(NODE), world.state, lambda: None
    )
    assert outcome.writes_count == 0
    assert not world.placement.providers
    world.report()
    assert world.provider().inventories[GOLD]['reserved'] == 0


def test_node_that_comes_back_loses_our_former_traits(world):
    """A node that comes back loses the traits that we set before."""
    world.facts = changed(traits=frozenset({'CUSTOM_OLD'}))
    world.report()
    world.provider_sync.sync(
        withdrawn_provider(NODE), world.state, lambda: None
    )
    world.facts = READY
    world.report()
    assert 'CUSTOM_OLD' not in world.provider().traits


@pytest.mark.parametrize('is_withdrawn_before', [True, False])
def test_node_that_comes_back_after_a_restart_loses_our_former_traits(
    tmp_path, is_withdrawn_before
):
    """Ironic has answered 404 for it before the restart, or after it."""
    world = World(tmp_path / 'cache')
    gone = withdrawn_provider(NODE, 'row-1')
    world.facts = changed(traits=frozenset({'CUSTOM_OLD'}))
    world.report(row_id='row-1')
    if is_withdrawn_before:
        world.provider_sync.sync(gone, world.state, lambda: None)
    world.crash()
    if not is_withdrawn_before:
        world.provider_sync.sync(gone, world.state, lambda: None)
    world.facts = READY
    world.report(row_id='row-1')
    assert 'CUSTOM_OLD' not in world.provider().traits


def test_unchanged_node_costs_no_request(world):
    """A second report of the same state sends no request."""
    world.report()
    world.placement.requests.clear()
    assert world.report().writes_count == 0
    assert world.placement.requests == []


def test_one_list_serves_all_nodes(world):
    """Many new nodes cause one list and no read."""
    for number in range(2, 12):
        world.provider_sync.sync(
            wanted_provider(numbered(number), Situation()),
            ProviderState(),
            lambda: None,
        )
    assert world.placement.requests.count('list') == 1
    assert 'read' not in world.placement.requests


def test_old_list_is_read_again_before_a_provider_is_created(world):
    """An old list is read again before a provider is created.

    Another holder may have created the provider meanwhile.
    """
    world.report()
    other = numbered(2)
    world.placement.make_provider(other.uuid, other.uuid)
    world.clock.advance(3600)
    world.placement.requests.clear()
    world.provider_sync.sync(
        wanted_provider(other, Situation()), ProviderState(), lambda: None
    )
    assert 'Create' not in world.placement.requests


def test_saved_state_is_compared_with_a_fresh_list(tmp_path):
    """A saved state is compared with a list that is not old.

    The start of a worker may take longer than a list stays fresh.
    """
    world = World(tmp_path / 'cache')
    world.report()
    world.crash()
    world.provider_sync.provider_index.reload()
    world.clock.advance(31)
    world.placement.requests.clear()
    world.report()
    assert world.placement.requests == ['list']


def test_provider_created_again_is_not_taken_for_the_saved_one(tmp_path):
    """A provider created again is read, not taken for the saved one."""
    world = World(tmp_path / 'cache')
    world.report()
    generation = world.provider().generation
    del world.placement.providers[NODE]
    world.crash()
    lost = errors.PlacementUnavailable('no answer')
    world.placement.fail_next = [('after', lost)]
    with pytest.raises(errors.PlacementUnavailable):
        world.report()
    while world.provider().generation < generation:
        world.placement.add_trait(NODE, 'CUSTOM_FOREIGN')
    world.crash()
    world.report()
    assert world.provider().inventories[GOLD]['reserved'] == 0


class Killed(BaseException):
    """Ends a worker between two requests."""


def _end_before(world, kind, error):
    """Report the node with a worker that ends before such a write."""

    def end(what, uuid):
        if what == kind:
            raise error

    world.placement.on_request = end
    with pytest.raises(type(error)):
        world.report()
    world.placement.on_request = lambda what, uuid: None
    world.crash()


@pytest.mark.parametrize(
    'end', [Killed(), errors.PlacementUnavailable('down')], ids=repr
)
@pytest.mark.parametrize('record', ['', '2'])
def test_worker_that_ends_between_two_writes_leaves_no_trait(
    tmp_path, end, record
):
    """The next worker removes traits that its predecessor had set.

    This holds with the same row and with a new row of the node.
    """
    world = World(tmp_path / 'cache')
    world.report(row_id=record)
    world.facts = changed(maintenance=True, traits=frozenset())
    _end_before(world, 'PutTraits', end)
    assert world.provider().inventories[GOLD]['reserved'] == 1
    world.placement.requests.clear()
    world.report()
    assert world.provider().traits == {'COMPUTE_NODE', 'OWNER_NOVA'}
    assert world.placement.requests == ['list', 'PutTraits']


def test_worker_that_ends_before_a_new_node_is_offered(tmp_path):
    """Traits of an unfinished first report count as ours."""
    world = World(tmp_path / 'cache')
    _end_before(world, 'PutInventories', Killed())
    world.facts = changed(traits=frozenset())
    world.report()
    assert world.provider().traits == {'COMPUTE_NODE', 'OWNER_NOVA'}


def test_trait_set_by_another_client_between_two_workers_stays(tmp_path):
    """A trait that another client set between two workers stays."""
    world = World(tmp_path / 'cache')
    world.report()
    world.facts = changed(maintenance=True, traits=frozenset())
    _end_before(world, 'PutTraits', Killed())
    world.placement.add_trait(NODE, 'CUSTOM_FOREIGN')
    world.report()
    traits = world.provider().traits
    assert traits == {'COMPUTE_NODE', 'OWNER_NOVA', 'CUSTOM_FOREIGN'}


def test_each_write_adds_one_line_to_the_disk_cache(tmp_path):
    """Each write adds one line to the disk cache; no write adds none.

    New traits add another line before they are sent.
    """
    path = tmp_path / 'cache'
    world = World(path)

    def lines_count():
        return path.read_text().count('\n') - 1

    world.report()
    assert lines_count() == 4
    world.report()
    assert lines_count() == 4
    world.facts = changed(maintenance=True, traits=frozenset({'CUSTOM_B'}))
    world.report()
    assert lines_count() == 7
    world.facts = changed(traits=frozenset())
    world.report()
    assert lines_count() == 9


def test_conflict_is_read_again_and_tried_once_more(world):
    """A write of another client costs one read and one more write."""
    world.report()
    world.placement.add_trait(NODE, 'CUSTOM_FOREIGN')
    world.placement.requests.clear()
    world.facts = changed(maintenance=True)
    world.report()
    assert world.placement.requests == [
        'PutInventories',
        'read',
        'PutInventories',
    ]


def test_endless_conflicts_end(world):
    """A provider that another client keeps writing is left for later."""
    world.report()
    world.placement.on_request = lambda kind, uuid: (
        kind == 'PutInventories'
        and world.placement.add_trait(NODE, 'CUSTOM_BUSY')
    )
    world.facts = changed(maintenance=True)
    with pytest.raises(errors.GenerationConflict):
        world.report()
    assert world.placement.requests.count('PutInventories') <= 4


def test_allocation_between_read_and_write_is_not_lost(world):
    """Bug 1751472: a class allocated just before the write is kept."""
    world.report()

    def allocate(kind, uuid):
        if kind == 'PutInventories' and not world.provider().allocations:
            world.placement.allocate(NODE, 'server', GOLD)

    world.placement.on_request = allocate
    world.facts = changed(resource_class='silver')
    assert world.report().kept == {GOLD}
    assert set(world.provider().inventories) == {GOLD}


def _report_without_answer(world, trait):
    """Report a node, then again with a trait; the answer to that is lost."""
    world.report()
    world.facts = changed(traits=frozenset({trait}))
    lost = errors.PlacementUnavailable('no answer')
    world.placement.fail_next = [('after', lost)]
    with pytest.raises(errors.PlacementUnavailable):
        world.report()


def test_traits_whose_answer_was_lost_are_still_ours(world):
    """Traits of a write without an answer are removed when unwanted."""
    _report_without_answer(world, 'CUSTOM_LOST')
    world.facts = changed(traits=frozenset())
    world.report()
    assert world.provider().traits == {'COMPUTE_NODE', 'OWNER_NOVA'}


def test_traits_whose_answer_was_lost_stay_ours_without_a_write(world):
    """Traits of a write without an answer are ours until the next read.

    The state before the lost write may be wanted again, which needs no write.
    """
    _report_without_answer(world, 'CUSTOM_LOST')
    world.facts = READY
    world.report()
    world.facts = changed(maintenance=True)
    world.report()
    assert 'CUSTOM_LOST' not in world.provider().traits


_BACK_AND_FORTH = pytest.mark.parametrize(
    ('before', 'after'),
    [
        (READY, changed(maintenance=True)),
        (changed(maintenance=True), READY),
        (READY, changed(traits=frozenset({'CUSTOM_LOST'}))),
    ],
    ids=['reserved', 'freed', 'traits'],
)


@_BACK_AND_FORTH
def test_write_without_an_answer_is_undone(world, before, after):
    """A write was done, its answer was lost, and it is not wanted any more."""
    world.facts = before
    world.report()
    wanted = dataclasses.replace(world.provider(), generation=0)
    world.facts = after
    world.placement.fail_next = [
        ('after', errors.PlacementUnavailable('no answer'))
    ]
    with pytest.raises(errors.PlacementUnavailable):
        world.report()
    world.facts = before
    world.report()
    assert dataclasses.replace(world.provider(), generation=0) == wanted
    assert world.report().writes_count == 0


def test_write_that_is_done_late_changes_nothing(world):
    """Placement may do a write only after it is not wanted any more."""
    world.report()
    generation = world.provider().generation
    world.facts = changed(maintenance=True)
    world.placement.fail_next = [
        ('before', errors.PlacementUnavailable('no answer'))
    ]
    with pytest.raises(errors.PlacementUnavailable):
        world.report()
    assert world.placement.requests[-1] == 'PutInventories'
    world.facts = READY
    world.report()
    with pytest.raises(errors.GenerationConflict):
        world.placement.write(delta.PutInventories(NODE, {}), generation)
    assert world.report().writes_count == 0


def test_traits_found_as_wanted_are_ours_from_then_on(world):
    """Wanted traits that a restarted worker finds count as ours."""
    world.report()
    world.crash()
    assert world.report().writes_count == 0
    world.facts = changed(traits=frozenset())
    world.report()
    assert world.provider().traits == {'COMPUTE_NODE', 'OWNER_NOVA'}


def test_trait_that_we_left_out_and_another_client_set_stays(world):
    """A trait that we left out, and another client set, stays."""
    world.placement.standard_traits -= {'OWNER_NOVA'}
    world.report()
    assert 'OWNER_NOVA' not in world.provider().traits
    world.placement.add_standard_trait('OWNER_NOVA')
    world.placement.add_trait(NODE, 'OWNER_NOVA')
    world.facts = changed(traits=frozenset({'CUSTOM_NEW'}))
    world.report()
    assert {'OWNER_NOVA', 'CUSTOM_NEW'} <= world.provider().traits
    assert world.state.known.traits == world.provider().traits


def test_traits_whose_answer_was_lost_are_ours_after_a_restart(tmp_path):
    """A restarted worker removes traits of a write without an answer."""
    world = World(tmp_path / 'cache')
    world.report()
    world.facts = changed(traits=frozenset({'CUSTOM_GPU', 'CUSTOM_SHORT'}))
    world.placement.fail_next = [
        ('after', errors.PlacementUnavailable('no answer'))
    ]
    with pytest.raises(errors.PlacementUnavailable):
        world.report()
    assert 'CUSTOM_SHORT' in world.provider().traits
    world.crash()
    world.facts = READY
    world.report()
    assert 'CUSTOM_SHORT' not in world.provider().traits


def test_trait_sent_right_after_the_first_read_is_ours_after_a_restart(
    tmp_path,
):
    """A worker ends before the answer to its first write of a node."""
    world = World(tmp_path / 'cache')
    world.report()
    world.crash()
    world.placement.allocate(NODE, 'server', GOLD)
    world.facts = changed(traits=READY.traits | {'CUSTOM_NEW'})
    world.placement.fail_next = [('after', errors.PlacementUnavailable('?'))]
    with pytest.raises(errors.PlacementUnavailable):
        world.report()
    world.crash()
    world.facts = READY
    world.report()
    assert 'CUSTOM_NEW' not in world.provider().traits


def test_provider_whose_answer_was_lost_is_found(world):
    """A provider whose creation had no answer is found at the next report."""
    lost = errors.PlacementUnavailable('no answer')
    world.placement.fail_next = [('after', lost)]
    with pytest.raises(errors.PlacementUnavailable):
        world.report()
    world.report()
    assert set(world.provider().inventories) == {GOLD}


def test_write_that_is_not_allowed_is_not_sent(world):
    """The lease is checked before each write."""

    def require():
        if 'Create' in world.placement.requests:
            raise PermissionError

    with pytest.raises(PermissionError):
        world.provider_sync.sync(
            wanted_provider(READY, Situation()), world.state, require
        )
    assert world.placement.requests == ['list', 'Create']
    world.report()
    assert world.placement.requests.count('Create') == 1


@pytest.mark.parametrize(
    'facts',
    [changed(traits=frozenset({'CUSTOM_NEW'})), changed(maintenance=True)],
    ids=['PutTraits', 'PutInventories'],
)
def test_lease_that_ends_while_names_are_created_prevents_the_write(
    world, facts
):
    """A lease that ends while a name is created prevents the write.

    Traits that were not sent do not count as ours.
    """
    world.report()
    world.placement.requests.clear()
    our_traits, made = world.state.our_traits, []
    world.placement.on_request = lambda what, uuid: made.append(what)

    def require():
        if 'names' in made:
            raise PermissionError

    with pytest.raises(PermissionError):
        world.provider_sync.sync(
            wanted_provider(facts, Situation()), world.state, require
        )
    assert world.placement.requests == []
    assert world.state.our_traits == our_traits


def _built_on(world):
    """Allocate the node, and add a foreign trait before Nova reads it."""
    world.report()
    world.placement.allocate(NODE, 'server', GOLD)
    world.facts = changed(power_state='error')
    world.report()
    world.placement.add_trait(NODE, 'CUSTOM_FOREIGN')
    world.state.apply_allocation(world.provider().generation)
    world.placement.requests.clear()


def test_foreign_trait_taken_for_an_allocation_stays(world):
    """A provider with an inferred generation is read before a trait write.

    The inferred write may have been another client's, not the build's.
    """
    _built_on(world)
    world.facts = changed(traits=frozenset({'CUSTOM_B'}))
    world.report()
    assert world.provider().traits >= {'CUSTOM_B', 'CUSTOM_FOREIGN'}
    assert world.placement.requests[0] == 'read'


def test_disk_cache_has_that_a_generation_was_inferred(tmp_path):
    """The disk cache has that a generation was only inferred."""
    world = World(tmp_path / 'cache')
    _built_on(world)
    world.facts = READY
    world.report()
    assert world.placement.requests == ['PutInventories']
    world.crash()
    world.facts = changed(traits=frozenset({'CUSTOM_B'}))
    world.report()
    assert world.provider().traits >= {'CUSTOM_B', 'CUSTOM_FOREIGN'}


_FOREIGN = 'CUSTOM_FOREIGN'
_FAULTS = st.one_of(
    st.builds(kind, st.just('?'))
    for kind in (
        errors.GenerationConflict,
        errors.PlacementUnavailable,
        errors.PlacementFailed,
        errors.NameVanished,
    )
)
_CHANGES = st.one_of(
    st.tuples(st.just('maintenance'), st.booleans()),
    st.tuples(st.just('provision_state'), st.sampled_from(['available', 'x'])),
    st.tuples(
        st.just('resource_class'), st.sampled_from(['a', 'b', 'c', None])
    ),
    st.tuples(
        st.just('traits'),
        st.frozensets(st.sampled_from(['CUSTOM_A', 'CUSTOM_B', 'HW_NEW'])),
    ),
)
_STEPS = st.lists(
    st.one_of(
        st.tuples(st.just('change'), _CHANGES),
        st.tuples(st.just('change'), _CHANGES),
        st.tuples(st.just('allocate'), st.none()),
        st.tuples(st.just('claim'), st.none()),
        st.tuples(st.just('free'), st.none()),
        st.tuples(st.just('tag'), st.none()),
        st.tuples(st.just('join'), st.none()),
        st.tuples(st.just('move'), st.frozensets(st.sampled_from('gh'))),
        st.tuples(st.just('audit'), st.none()),
        st.tuples(st.just('delete'), st.none()),
        st.tuples(st.just('fault'), st.tuples(st.booleans(), _FAULTS)),
        st.tuples(st.just('report'), st.none()),
    ),
    max_size=20,
)


class Storm(World):
    """A world in which events occur between reports and inside them."""

    def __init__(self, cache_path=None):
        super().__init__(cache_path)
        self.tagged = self.joined = False
        self.member = frozenset()
        self.inside = []
        self.placement.on_request = self._request

    def _request(self, kind, uuid):
        """Let an event occur just before a request arrives."""
        if self.inside and kind != 'list':
            self.step(*self.inside.pop())

    def step(self, what, value):
        """Let one event occur."""
        provider = self.placement.providers.get(NODE)
        if what == 'change':
            self.facts = dataclasses.replace(self.facts, **dict([value]))
        elif what == 'fault':
            after, error = value
            when = 'after' if after else 'before'
            self.placement.fail_next.append((when, error))
        elif what == 'report':
            self.try_to_report()
        elif what == 'move':
            self.member = value
        elif what == 'audit':
            self.audit()
        elif provider is not None:
            getattr(self, f'_{what}')(provider)
        self.check()

    def _allocate(self, provider):
        for name, record in provider.inventories.items():
            used = name in provider.allocations.values()
            if not record['reserved'] and not used:
                self.placement.allocate(NODE, f'server-{name}', name)
                return

    def _claim(self, provider):
        """Adopt the generation that Nova read with an allocation."""
        if provider.allocations:
            self.state.apply_allocation(provider.generation)

    def _free(self, provider):
        for consumer in list(provider.allocations):
            self.placement.deallocate(NODE, consumer)

    def _tag(self, provider):
        self.placement.add_trait(NODE, _FOREIGN)
        self.tagged = True

    def _delete(self, provider):
        if not provider.allocations:
            del self.placement.providers[NODE]
            self.tagged = self.joined = False

    def _join(self, provider):
        self.placement.add_aggregate(NODE, 'foreign')
        self.joined = True

    def audit(self):
        """Mark the state stale if the list differs; report the node."""
        provider = self.placement.providers.get(NODE)
        known = self.state.known
        if known and (
            provider is None or provider.generation != known.generation
        ):
            self.state.is_stale = True
        self.try_to_report()

    def report(self, **situation):
        """Report the node, in the aggregates of its host."""
        aggregates = Aggregates(self.member, frozenset('gh'))
        return super().report(aggregates=aggregates, **situation)

    def try_to_report(self):
        """Report the node; an error of Placement is allowed."""
        try:
            self.report()
        except errors.PlacementError:
            return

    def check(self):
        """Check what must hold after each event."""
        provider = self.placement.providers.get(NODE)
        if provider is not None:
            assert set(provider.allocations.values()) <= set(
                provider.inventories
            )
            assert not self.tagged or _FOREIGN in provider.traits
            assert not self.joined or 'foreign' in provider.aggregates

    def calm(self):
        """End the faults, free the node, and report it twice.

        The two reports differ, because only a write shows that a provider was
        deleted; an audit would find it otherwise.
        """
        self.placement.fail_next, self.inside = [], []
        if NODE in self.placement.providers:
            self._free(self.provider())
        self.report(disabled=True)
        self.report()


def _check_inventory(storm):
    """Check the inventory; return the wanted provider and the present one."""
    want, provider = (
        wanted_provider(storm.facts, Situation()),
        storm.provider(),
    )
    inventory = want.inventory
    assert provider.inventories == (
        {inventory.resource_class: inventory.body()} if inventory else {}
    )
    return want, provider


@settings(max_examples=300, deadline=None)
@given(_STEPS, _STEPS)
def test_any_history_ends_in_the_wanted_state(between, inside):
    """After any events the provider is as wanted.

    Events are changes, writes of others, conflicts and lost answers. At no
    moment is an allocated inventory or a foreign trait removed, and no trait
    of our own stays behind.
    """
    storm = Storm()
    storm.report()
    # Only one thread reports a node, and a claim then leaves its state alone.
    alone = ('report', 'audit', 'fault', 'claim')
    inside = [step for step in inside if step[0] not in alone]
    storm.inside = inside
    for step in between:
        storm.step(*step)
    storm.calm()
    want, provider = _check_inventory(storm)
    usable = storm.placement.supported_traits(want.traits)
    assert provider.traits == usable | ({_FOREIGN} if storm.tagged else set())
    foreign = {'foreign'} if storm.joined else set()
    assert provider.aggregates == storm.member | foreign
    storm.placement.requests.clear()
    assert storm.report().writes_count == 0
    assert storm.placement.requests == []


@settings(max_examples=100, deadline=None)
@given(st.lists(_STEPS, min_size=2, max_size=4), st.booleans())
def test_any_history_of_several_workers_ends_in_the_wanted_state(
    lives, has_a_disk
):
    """After any restarts the provider has the right inventory and traits.

    This holds with a disk cache and without.
    """
    with tempfile.TemporaryDirectory() as folder:
        path = pathlib.Path(folder, 'cache') if has_a_disk else None
        _live(Storm(path), lives)


def _live(storm, lives):
    for steps in lives:
        storm.crash()
        for step in steps:
            storm.step(*step)
    storm.crash()
    storm.calm()
    want, provider = _check_inventory(storm)
    assert storm.placement.supported_traits(want.traits) <= provider.traits

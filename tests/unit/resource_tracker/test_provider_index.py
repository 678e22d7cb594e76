# SPDX-License-Identifier: Apache-2.0
"""The cached list of providers: when it is read again."""

import threading

import pytest

from resource_tracker import errors
from resource_tracker.placement import ListedProvider
from resource_tracker.provider_index import ProviderIndex
from tests.fakes.clock import ManualClock
from tests.fakes.placement import FakePlacement

OLD_S = 30.0


@pytest.fixture
def clock():
    """Return the clock that dates the list."""
    return ManualClock()


@pytest.fixture
def placement():
    """Return a Placement with one provider, ``u``, that has another name."""
    made = FakePlacement()
    made.make_provider('u', 'n')
    return made


@pytest.fixture
def index(placement, clock):
    """Return an index that has not read the list."""
    return ProviderIndex(placement, clock)


def test_concurrent_first_lookups_share_one_request(placement, index):
    """The first lookup reads the list; the others wait for its answer."""
    start, found = threading.Barrier(8), []

    def find():
        start.wait()
        found.append(index.find_provider('n').uuid)

    threads = [threading.Thread(target=find) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == ['u'] * 8
    assert placement.requests == ['list']


def test_failed_list_is_read_again(placement, index):
    """The lookup after a failed request sends a new request."""
    placement.fail_next = [('before', errors.PlacementUnavailable('down'))]
    with pytest.raises(errors.PlacementUnavailable):
        index.find_provider('x')
    assert index.find_provider('x') is None


def test_provider_is_found_by_uuid_and_by_name(index):
    """A provider of an older Nova has the node's uuid as its name."""
    assert index.find_provider('u') == index.find_provider('n')
    assert index.find_provider('n') == ListedProvider('u', 'n', 0)


@pytest.mark.parametrize(('age_s', 'reads_count'), [(29.0, 1), (OLD_S, 2)])
def test_absence_needs_a_list_that_is_not_old(
    placement, clock, index, age_s, reads_count
):
    """An old list is read again before a provider counts as absent."""
    index.find_provider('u')
    clock.advance(age_s)
    assert index.find_provider('x') is None
    assert placement.requests == ['list'] * reads_count


def test_slow_list_is_read_once_for_all_nodes(placement, clock, index):
    """Placement would else get the request again for each node."""
    placement.on_request = lambda kind, uuid: clock.advance(OLD_S)
    for number in range(5):
        assert index.find_provider(f'x{number}') is None
        assert index.find_fresh_provider('u').uuid == 'u'
    assert placement.requests == ['list']


def test_old_list_still_shows_that_a_provider_exists(placement, clock, index):
    """A provider in an old list is returned without a request."""
    index.find_provider('u')
    clock.advance(OLD_S)
    assert index.find_provider('u').uuid == 'u'
    assert placement.requests == ['list']


def test_generation_comes_from_a_list_that_is_not_old(placement, clock, index):
    """An old list is read again before its generation is returned."""
    index.find_provider('u')
    placement.add_trait('u', 'CUSTOM_FOREIGN')
    assert index.find_fresh_provider('u').generation == 0
    clock.advance(OLD_S)
    assert index.find_fresh_provider('u').generation == 1


def test_added_provider_is_found_without_a_request(placement, index):
    """A provider that this process created need not be listed again."""
    index.add_provider('x')
    assert index.find_provider('x') == ListedProvider('x', 'x', 0)
    assert placement.requests == ['list']

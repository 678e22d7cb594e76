# SPDX-License-Identifier: Apache-2.0
"""The state of one provider after the allocation of a build."""

import pytest

from resource_tracker.delta import KnownProvider
from resource_tracker.provider_state import ProviderState

KNOWN = KnownProvider('u', 7, {}, frozenset({'CUSTOM_GPU'}))


@pytest.fixture
def state():
    """Return the saved state of a provider at generation 7."""
    return ProviderState(KNOWN, is_saved=True)


def test_allocation_on_an_unread_provider_changes_nothing():
    """A provider that was not read has no generation to update."""
    state = ProviderState()
    state.apply_allocation(8)
    assert state == ProviderState()


def test_next_generation_is_inferred_to_be_the_allocation_alone(state):
    """The next generation is adopted, and must be saved again."""
    state.apply_allocation(8)
    assert state.known == KnownProvider('u', 8, {}, KNOWN.traits)
    assert state.is_inferred
    assert not state.is_stale
    assert not state.is_saved


@pytest.mark.parametrize('generation', [None, 9])
def test_other_writes_make_the_state_stale(state, generation):
    """An unknown or later generation shows that others may have written."""
    state.apply_allocation(generation)
    assert state == ProviderState(KNOWN, is_saved=True, is_stale=True)


@pytest.mark.parametrize('generation', [6, 7])
def test_allocation_before_the_last_read_changes_nothing(state, generation):
    """An allocation with a known generation was seen by the last read."""
    state.apply_allocation(generation)
    assert state == ProviderState(KNOWN, is_saved=True)

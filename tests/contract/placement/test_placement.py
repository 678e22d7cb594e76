# SPDX-License-Identifier: Apache-2.0
"""What we rely on in Placement, held by the real one and by our fake."""

import uuid

import pytest
from oslo_config import cfg
from placement import conf as placement_conf
from placement import direct

from resource_tracker import errors
from resource_tracker.delta import (
    Create,
    PutAggregates,
    PutInventories,
    PutTraits,
)
from resource_tracker.placement import Placement
from resource_tracker.provider import Inventory
from tests.fakes.placement import FakePlacement

FREE = {'CUSTOM_GOLD': Inventory('CUSTOM_GOLD', reserved=False).body()}
RESERVED = {'CUSTOM_GOLD': Inventory('CUSTOM_GOLD', reserved=True).body()}
SILVER = {'CUSTOM_SILVER': Inventory('CUSTOM_SILVER', reserved=False).body()}


class RealPlacement(Placement):
    """Our client on the real service, and what other clients do to it."""

    def allocate(self, provider, consumer):
        """Allocate the one unit as Nova's scheduler would."""
        body = {
            'allocations': {provider: {'resources': {'CUSTOM_GOLD': 1}}},
            'consumer_generation': None,
            'project_id': 'p',
            'user_id': 'u',
            'consumer_type': 'INSTANCE',
        }
        self._ask('PUT', f'/allocations/{consumer}', body)


@pytest.fixture(params=['fake', 'real'])
def placement(request):
    """Placement: our fake, or the real one on SQLite in this process."""
    if request.param == 'fake':
        yield FakePlacement()
        return
    conf = cfg.ConfigOpts()
    placement_conf.register_opts(conf)
    conf.set_override('connection', 'sqlite://', group='placement_database')
    conf([], project='placement', default_config_files=[])
    conf.set_override('sync_on_startup', True, group='placement_database')
    conf.set_override('auth_strategy', 'noauth2', group='api')
    with direct.PlacementDirect(conf, latest_microversion=True) as adapter:
        yield RealPlacement(adapter)


@pytest.fixture
def node(placement):
    """The uuid of a provider that exists, offering one free unit."""
    made = str(uuid.uuid4())
    generation = placement.write(Create(made), 0)
    placement.write(PutInventories(made, FREE), generation)
    return made


def _generation(placement, node):
    return placement.provider(node).generation


def test_new_provider_is_listed_and_read(placement, node):
    """The list has each provider's generation, the read its inventory."""
    assert placement.providers()[node] == _generation(placement, node)
    assert set(placement.provider(node).inventories) == {'CUSTOM_GOLD'}


def test_absent_provider_reads_as_none(placement):
    """A 404 is an answer, not an error."""
    assert placement.provider(str(uuid.uuid4())) is None


def test_created_twice_is_a_conflict(placement, node):
    """The second POST of a uuid is refused."""
    with pytest.raises(errors.GenerationConflict):
        placement.write(Create(node), 0)


@pytest.mark.parametrize(
    'change',
    [
        lambda node: PutInventories(node, RESERVED),
        lambda node: PutTraits(
            node, frozenset({'CUSTOM_A'}), ours=frozenset()
        ),
        lambda node: PutAggregates(node, frozenset({str(uuid.uuid4())})),
    ],
)
def test_stale_generation_is_a_conflict(placement, node, change):
    """Each kind of write is fenced by the generation."""
    stale = _generation(placement, node)
    placement.write(change(node), stale)
    with pytest.raises(errors.GenerationConflict):
        placement.write(change(node), stale)


def test_inventory_in_use_can_be_reserved(placement, node):
    """Bug 1974070: reserved = total is accepted with an allocation."""
    placement.allocate(node, str(uuid.uuid4()))
    generation = _generation(placement, node)
    placement.write(PutInventories(node, RESERVED), generation)
    assert placement.provider(node).inventories['CUSTOM_GOLD']['reserved'] == 1


def test_inventory_in_use_cannot_go(placement, node):
    """Bug 1751472: a class with an allocation cannot be replaced."""
    placement.allocate(node, str(uuid.uuid4()))
    with pytest.raises(errors.ProviderInUse):
        placement.write(
            PutInventories(node, SILVER), _generation(placement, node)
        )


def test_consumers_are_those_that_allocated(placement, node):
    """Who uses a provider can be asked."""
    consumer = str(uuid.uuid4())
    placement.allocate(node, consumer)
    assert placement.consumers(node) == {consumer}


def test_provider_in_use_cannot_be_deleted(placement, node):
    """An allocation keeps its provider; without one it goes."""
    free = str(uuid.uuid4())
    placement.write(Create(free), 0)
    placement.delete(free)
    placement.delete(free)
    assert placement.provider(free) is None
    placement.allocate(node, str(uuid.uuid4()))
    with pytest.raises(errors.ProviderInUse):
        placement.delete(node)


def test_traits_of_a_newer_library_are_left_out(placement, node):
    """An unknown standard trait must not fail the whole write."""
    if isinstance(placement, FakePlacement):
        pytest.skip('the fake knows no list of standard traits')
    change = PutTraits(
        node,
        frozenset({'COMPUTE_NODE', 'HW_FROM_THE_FUTURE', 'CUSTOM_ODD_NAME'}),
        ours=frozenset(),
    )
    placement.write(change, _generation(placement, node))
    assert placement.provider(node).traits == {
        'COMPUTE_NODE',
        'CUSTOM_ODD_NAME',
    }

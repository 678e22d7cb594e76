# SPDX-License-Identifier: Apache-2.0
"""The rights in Placement that the manual lists are those that we need.

A real Placement, in this process, enforces its policies. Every method of the
client is called, and requests about allocations are sent as Nova's own code
sends them.
"""

import contextlib
import inspect
import pathlib
from collections.abc import Callable, Iterator, Mapping

import pytest
from oslo_config import cfg
from oslo_config import fixture as oslo_fixture
from placement import conf as placement_conf
from placement import direct, policies, policy
from placement.tests import fixtures

from resource_tracker import delta, errors, rights
from resource_tracker.placement import Placement
from tests.contract.placement.services import RealPlacement
from tests.contract.rights import manual

NODE = '4f0a8bc4-6f6d-4a4c-9d5e-0f4b6d6c3f10'
SERVER = '6c1b8b64-3b3e-4f8c-8f3b-6b5b0f7f2a11'
_INVENTORY = {
    'total': 1,
    'reserved': 0,
    'min_unit': 1,
    'max_unit': 1,
    'step_size': 1,
    'allocation_ratio': 1.0,
}


def _put_inventories(placement: RealPlacement) -> None:
    inventories = {'CUSTOM_GOLD': _INVENTORY}
    placement.write(delta.PutInventories(NODE, inventories), _now(placement))


def _put_traits(placement: RealPlacement) -> None:
    traits = frozenset({'CUSTOM_NEW'})
    placement.write(delta.PutTraits(NODE, traits), _now(placement))


def _put_aggregates(placement: RealPlacement) -> None:
    change = delta.PutAggregates(NODE, frozenset({SERVER}))
    placement.write(change, _now(placement))


def _now(placement: RealPlacement) -> int:
    return placement.list_providers()[NODE].generation


Call = Callable[[RealPlacement], object]
# In an order in which each can succeed.
CALLS: Mapping[str, Call] = {
    'check_access': lambda placement: placement.check_access(10.0),
    'write': lambda placement: placement.write(delta.Create(NODE), 0),
    'list_providers': lambda placement: placement.list_providers(),
    'write inventories': _put_inventories,
    'write traits': _put_traits,
    'write aggregates': _put_aggregates,
    'list_offering': lambda placement: placement.list_offering('CUSTOM_GOLD'),
    'list_with_trait': lambda placement: placement.list_with_trait(
        'CUSTOM_NEW'
    ),
    'read_provider_uuid': lambda placement: placement.read_provider_uuid(NODE),
    'read_date': lambda placement: placement.read_date(),
    'read_aggregates': lambda placement: placement.read_aggregates(NODE),
    'read_provider': lambda placement: placement.read_provider(NODE),
    'read_classes_in_use': lambda placement: placement.read_classes_in_use(
        NODE
    ),
    'read_consumers': lambda placement: placement.read_consumers(NODE),
    'read_provider_allocations': (
        lambda placement: placement.read_provider_allocations(NODE)
    ),
    'read_usages': lambda placement: placement.read_usages(NODE),
    'supported_traits': lambda placement: placement.supported_traits(
        ['HW_CPU_X86_AVX']
    ),
    'missing_rights': lambda placement: placement.missing_rights(),
    'read_new_traits': lambda placement: placement.read_new_traits(),
    'claim of Nova': lambda placement: placement.allocate(
        NODE, SERVER, 'CUSTOM_GOLD'
    ),
    'allocations of Nova': lambda placement: placement.read_allocations(
        SERVER
    ),
    'restored allocation': lambda placement: _reshape(placement),
    'deallocation of Nova': lambda placement: _deallocate(placement),
    'delete_provider': lambda placement: placement.delete_provider(NODE),
}


def _reshape(placement: RealPlacement) -> None:
    """Send the inventory and the allocation of a node in one request."""
    inventories = {'CUSTOM_GOLD': _INVENTORY}
    body = {
        'inventories': {
            NODE: {
                'inventories': inventories,
                'resource_provider_generation': _now(placement),
            }
        },
        'allocations': {},
    }
    placement._request('POST', '/reshaper', body)


def _deallocate(placement: RealPlacement) -> None:
    with contextlib.suppress(errors.ProviderNotFound):
        placement.deallocate(NODE, SERVER)


@contextlib.contextmanager
def _placement(denied: set[str], folder: pathlib.Path) -> Iterator[Call]:
    """Return a client of a Placement that denies these rules to everybody."""
    file = folder / 'policy.yaml'
    file.write_text(''.join(f'"{name}": "!"\n' for name in sorted(denied)))
    conf = cfg.ConfigOpts()
    placement_conf.register_opts(conf)
    conf.set_override('connection', 'sqlite://', group='placement_database')
    conf([], project='placement', default_config_files=[])
    conf.set_override('policy_file', str(file), group='oslo_policy')
    policy.reset()
    try:
        with (
            fixtures.Database(oslo_fixture.Config(conf)),
            direct.PlacementDirect(conf) as adapter,
        ):
            # The role of the manual's user; without it, one is the operator.
            adapter.additional_headers['x-roles'] = 'service'
            yield RealPlacement(adapter, conf)
    finally:
        policy.reset()


def _refusals(placement: RealPlacement) -> dict[str, str]:
    """Call each method; return what was refused, by method."""
    refused = {}
    for name, call in CALLS.items():
        try:
            call(placement)
        except errors.PlacementError as exc:
            if 'not authorized' in str(exc).lower() or '403' in str(exc):
                refused[name] = str(exc)
        except KeyError:
            # The provider was refused before.
            continue
    return refused


def _all_rules() -> set[str]:
    names = (rule.name for rule in policies.list_rules())
    return {name for name in names if name.startswith('placement:')}


def test_each_method_of_the_client_is_called() -> None:
    """A new method needs a call here, and perhaps a right in the manual."""
    public = {
        name
        for name, _ in inspect.getmembers(Placement, inspect.isfunction)
        if not name.startswith('_')
    }
    assert public <= CALLS.keys()


def test_the_role_service_has_them_by_default() -> None:
    """Nobody needs to change Placement's policies."""
    rules = {rule.name: rule for rule in policies.list_rules()}
    for name in manual.rights('Placement'):
        assert 'service' in rules[name].check_str, name


def test_the_rights_of_the_manual_suffice(tmp_path: pathlib.Path) -> None:
    """With all other rules denied, every request is allowed."""
    denied = _all_rules() - manual.rights('Placement')
    with _placement(denied, tmp_path) as placement:
        assert _refusals(placement) == {}


@pytest.mark.parametrize('rule', sorted(manual.rights('Placement')))
def test_a_right_that_is_taken_away_is_missed(
    rule: str, tmp_path: pathlib.Path
) -> None:
    """At least one request is refused, with a sentence about it."""
    with _placement({rule}, tmp_path) as placement:
        refused = _refusals(placement)
        assert refused, rule
        for text in refused.values():
            assert f'{rule} ' in text
            assert 'below [placement] in nova.conf lacks this right' in text


def test_each_right_of_the_manual_is_tried() -> None:
    """So a new one in the manual needs a trial, too."""
    tried = {trial.rule for trial in rights.trials()}
    assert tried == manual.rights('Placement')


@pytest.mark.parametrize('rule', sorted(manual.rights('Placement')))
def test_a_right_that_is_missing_is_found_without_a_change(
    rule: str, tmp_path: pathlib.Path
) -> None:
    """It alone is named, and Placement has no provider afterwards."""
    with _placement({rule}, tmp_path) as placement:
        missing = placement.missing_rights()
        assert [trial.rule for trial in missing] == [rule]
    with _placement(set(), tmp_path) as placement:
        assert placement.missing_rights() == []
        assert placement.list_providers() == {}

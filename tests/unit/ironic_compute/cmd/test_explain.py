# SPDX-License-Identifier: Apache-2.0
"""Each thing that keeps a node from builds is named, with its cure."""

import dataclasses

import pytest

from hashring.ring import Host
from ironic_compute.cmd.ctl import collect
from ironic_compute.cmd.explain import explain, explain_pin
from ironic_compute.cmd.nova_access import NovaRefused
from ironic_compute.nodes.pins import Pin
from resource_tracker.claims import Claim
from resource_tracker.provider import Situation, wanted_provider
from resource_tracker.provider_state import ProviderState
from resource_tracker.provider_sync import ProviderSync
from tests.fakes.clock import ManualClock
from tests.fakes.ironic import NODE, FakeIronic
from tests.fakes.placement import FakePlacement

GOLD = 'CUSTOM_GOLD'


class Cloud:
    """One node in Ironic and Placement."""

    def __init__(self):
        self.ironic = FakeIronic()
        self.ironic.is_in_pool = lambda facts: facts.shard is None
        self.ironic.add(traits=frozenset({'CUSTOM_GPU'}))
        self.placement = FakePlacement()

    def report(self, **situation):
        """Let a worker report the node as it is."""
        provider = wanted_provider(
            self.ironic.read_node(NODE), Situation(**situation)
        )
        provider_sync = ProviderSync(self.placement, ManualClock())
        provider_sync.sync(provider, ProviderState(), lambda: None)

    def findings(self):
        """What an operator is told."""
        return explain(collect(NODE, self.ironic, self.placement))

    def text(self):
        """The same in one string."""
        found = [dataclasses.astuple(one) for one in self.findings()]
        return '\n'.join(' -> '.join(pair) for pair in found)


@pytest.fixture
def cloud():
    """A node that is offered."""
    made = Cloud()
    made.report()
    return made


def test_offered_node_says_what_finds_it(cloud):
    """The only finding has the resource class and the traits."""
    assert len(cloud.findings()) == 1
    assert f'resources:{GOLD}=1' in cloud.text()
    assert 'CUSTOM_GPU' in cloud.text()


@pytest.mark.parametrize(
    ('fields', 'words'),
    [
        ({'maintenance': True}, ['maintenance unset']),
        ({'retired': True}, ['retired']),
        ({'resource_class': None}, ['--resource-class']),
        ({'instance_uuid': 'server'}, ['server show server']),
        (
            {'provision_state': 'clean failed', 'last_error': 'no disk'},
            ['clean failed', 'no disk'],
        ),
        ({'power_state': None}, ['power state is unknown']),
        ({'shard': 's2'}, ['not in this pool', 's2']),
    ],
)
def test_obstacle_in_ironic_is_named(cloud, fields, words):
    """The finding has the state in Ironic and a command against it."""
    cloud.ironic.change(NODE, **fields)
    cloud.report()
    assert all(word in cloud.text() for word in words), cloud.text()
    assert 'offered to' not in cloud.text()


def test_node_that_nobody_reported_is_named():
    """A node without a provider leads to a check of the hosts."""
    assert 'no provider yet' in Cloud().text()


def test_new_node_is_named():
    """A provider without inventory is explained as a new node."""
    cloud = Cloud()
    cloud.report(confirmed=False)
    assert 'not confirmed yet' in cloud.text()
    assert 'in place of' not in cloud.text()


def test_disabled_host_is_named(cloud):
    """A trait keeps the nodes of a disabled host from builds."""
    cloud.report(disabled=True)
    assert 'is disabled' in cloud.text()


def test_allocation_is_named(cloud):
    """An allocation of any consumer is named."""
    cloud.placement.allocate(NODE, 'somebody', GOLD)
    assert 'somebody has an allocation' in cloud.text()


def test_claimed_node_is_named(cloud):
    """A node that is free in Ironic but reserved is explained."""
    cloud.report(claim=Claim('server'))
    assert 'node is reserved' in cloud.text()


def test_class_that_is_not_reported_yet_is_named(cloud):
    """A resource class that was changed just now is explained."""
    cloud.ironic.change(NODE, resource_class='silver')
    assert f'provider has {GOLD} in place of CUSTOM_SILVER' in cloud.text()


def test_pin_of_a_node_is_explained():
    """Who has ordered it, or why that is not known."""
    assert explain_pin(None) == ()
    (found,) = explain_pin(Pin(Host('c2'), 'ann on ctl1'))
    assert found.text == 'The node is pinned to host c2 by ann on ctl1'
    (found,) = explain_pin(NovaRefused('nova-conductor did not answer'))
    assert 'not known whether the node is pinned: nova-cond' in found.text

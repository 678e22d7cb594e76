# SPDX-License-Identifier: Apache-2.0
"""Each thing that keeps a node from builds is named, with its cure."""

import dataclasses

import pytest

from hashring.ring import Host
from ironic_compute import catalogue
from ironic_compute.cmd.ctl import collect
from ironic_compute.cmd.explain import explain, explain_pin
from ironic_compute.cmd.nova_access import NovaRefused
from ironic_compute.cmd.nova_hosts import NovaHost
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
        return '\n'.join(f'{f.text} -> {f.remedy}' for f in self.findings())

    def names(self):
        """The checks of fsck that have found something."""
        return [f.check.name for f in self.findings() if f.check]


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
        ({'parent_node': 'm1'}, ['machine m1', 'unset --parent-node']),
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


def test_part_of_a_machine_is_named_once(cloud):
    """Its provision state is no second finding: no build ever gets it."""
    cloud.ironic.change(NODE, parent_node='m1', provision_state='enroll')
    cloud.report()
    (found,) = cloud.findings()
    assert 'machine m1' in found.text


def test_long_last_error_is_cut(cloud):
    """The output of a program, of many lines, made the table unreadable."""
    error = 'Deploy step failed:\n  stderr: ' + 'no such disk\n' * 2000
    cloud.ironic.change(NODE, provision_state='clean failed', last_error=error)
    cloud.report()
    (found,) = cloud.findings()
    assert 'Deploy step failed: stderr: no such disk no' in found.remedy
    assert '\n' not in found.remedy
    assert len(found.remedy) < 500
    assert found.remedy.isascii() and found.remedy.endswith(' ...)')


def test_node_that_nobody_reported_is_named():
    """The check of fsck is named, with its cure."""
    cloud = Cloud()
    assert cloud.names() == ['node-without-provider']
    assert catalogue.NODE_WITHOUT_PROVIDER.cure in cloud.text()


@pytest.mark.parametrize('state', ['enroll', 'manageable', 'inspecting'])
def test_node_that_is_enrolled_without_a_class_is_explained(state):
    """Ironic gives a new node no class, and Nova has no record of it yet."""
    cloud = Cloud()
    cloud.ironic.change(NODE, provision_state=state, resource_class=None)
    evidence = collect(NODE, cloud.ironic, cloud.placement)
    only = explain(dataclasses.replace(evidence, is_holder_read=True))
    assert [each.text for each in only] == [
        'Ironic: its resource_class is not set in Ironic'
    ]
    assert f'--resource-class CLASS {NODE}' in only[0].remedy


def test_new_node_is_named():
    """A provider without inventory is not offered."""
    cloud = Cloud()
    cloud.report(confirmed=False)
    assert cloud.names() == ['usable-but-not-offered']


@pytest.mark.parametrize(
    ('nova', 'texts', 'remedy'),
    [
        (
            NovaHost(exists=False),
            ['Nova has no Service record of host c1, which holds the node'],
            'host list',
        ),
        (
            NovaHost(exists=True, is_up=True, is_mapped=False),
            ['Nova has mapped host c1, which holds the node, to no cell'],
            'discover_hosts',
        ),
        (
            NovaHost(exists=True, is_up=False, is_mapped=True),
            ['Nova: host c1, which holds the node, is down'],
            'set --up c1 nova-compute',
        ),
    ],
)
def test_host_that_gets_no_builds_is_named(cloud, nova, texts, remedy):
    """The node was said to be offered, and no build came to it."""
    evidence = dataclasses.replace(
        collect(NODE, cloud.ironic, cloud.placement),
        holder=Host('c1'),
        is_holder_read=True,
        row_uuid=NODE,
        nova=nova,
    )
    found = explain(evidence)
    assert [each.text for each in found] == texts
    assert remedy in found[0].remedy


def test_host_that_gets_builds_is_no_obstacle(cloud):
    """Also if nova-conductor cannot read whether it is mapped."""
    evidence = dataclasses.replace(
        collect(NODE, cloud.ironic, cloud.placement),
        holder=Host('c1'),
        is_holder_read=True,
        row_uuid=NODE,
        nova=NovaHost(exists=True, is_up=True, is_mapped=None),
    )
    (only,) = explain(evidence)
    assert 'is offered to' in only.text


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
    assert cloud.names() == ['usable-but-not-offered']
    assert 'it is reserved' in cloud.text()


def test_class_that_is_not_reported_yet_is_named(cloud):
    """A resource class that was changed just now is explained."""
    cloud.ironic.change(NODE, resource_class='silver')
    assert cloud.names() == ['wrong-resource-class']
    assert f'has {GOLD}, and Ironic has silver' in cloud.text()


def test_offered_node_that_cannot_be_built_on_is_named(cloud):
    """Both why it cannot, and that Placement does not know yet."""
    cloud.ironic.change(NODE, maintenance=True)
    assert cloud.names() == ['offered-but-unusable']
    assert 'maintenance unset' in cloud.text()


def test_failed_node_without_a_server_is_named(cloud):
    """Nothing cleans it."""
    cloud.ironic.change(NODE, provision_state='deploy failed')
    cloud.report()
    assert cloud.names() == ['failed-without-server']


def test_trait_that_is_not_reported_is_named(cloud):
    """A flavor that requires it does not get the node."""
    cloud.ironic.change(NODE, traits=frozenset({'CUSTOM_GPU', 'CUSTOM_X'}))
    assert cloud.names() == ['trait-missing']


def test_node_without_a_record_is_named(cloud):
    """If nova-conductor has answered that there is none."""
    evidence = collect(NODE, cloud.ironic, cloud.placement)
    (found,) = explain(dataclasses.replace(evidence, is_holder_read=True))
    assert found.check is catalogue.NODE_WITHOUT_ROW


def test_cure_names_the_host_of_the_record(cloud):
    """Its log is the one to read."""
    cloud.report(claim=Claim('server'))
    evidence = dataclasses.replace(
        collect(NODE, cloud.ironic, cloud.placement),
        holder=Host('c7'),
        is_holder_read=True,
    )
    (found,) = explain(evidence)
    assert 'the daemon that serves host c7' in found.remedy


def test_provider_with_another_uuid_than_the_record_is_named(cloud):
    """The node looks as if it were offered."""
    evidence = dataclasses.replace(
        collect(NODE, cloud.ironic, cloud.placement),
        holder=Host('c1'),
        is_holder_read=True,
        row_uuid='another',
    )
    (found,) = explain(evidence)
    assert found.check is catalogue.PROVIDER_WITH_OTHER_UUID


def test_pin_of_a_node_is_explained():
    """Who has ordered it, or why that is not known."""
    assert explain_pin(None) == ()
    (found,) = explain_pin(Pin(Host('c2'), 'ann on ctl1'))
    assert found.text == 'The node is pinned to host c2 by ann on ctl1'
    (found,) = explain_pin(NovaRefused('nova-conductor did not answer'))
    assert 'not known whether the node is pinned: nova-cond' in found.text

# SPDX-License-Identifier: Apache-2.0
"""What we report is what the real scheduler finds nodes by."""

import pathlib
import sys
import textwrap
import uuid
from collections.abc import Mapping
from typing import Any, ClassVar

import fixtures

from tests.functional import scheduling
from tests.functional.scheduling import wants

# A filter as a deployer may have one: it reads the row of the node.
_OWN_FILTER = textwrap.dedent(
    """
    from nova.scheduler import filters

    class RackFilter(filters.BaseHostFilter):
        RUN_ON_REBUILD = False

        def host_passes(self, host_state, spec_obj):
            wanted = spec_obj.flavor.extra_specs.get('own:rack')
            return wanted in (None, host_state.stats.get('rack'))
    """
)


class PlacementTest(scheduling.SchedulerTestCase):
    """What Placement answers by: classes, traits, reserved."""

    def test_nodes_are_found_by_class_and_traits_as_they_are_now(self) -> None:
        """Placement finds nodes by their present class and traits."""
        one, two = self.nodes[:2]
        for node in (one, two):
            self.change(node, resource_class='Gold-2.x large')
        self.change(one, traits=frozenset({'CUSTOM_GPU', 'HW_CPU_X86_VMX'}))
        gold = 'CUSTOM_GOLD_2_X_LARGE'
        self.expect(one, wants(gold, CUSTOM_GPU='required'))
        self.expect(one, wants(gold, HW_CPU_X86_VMX='required'))
        self.expect(two, wants(gold, CUSTOM_GPU='forbidden'))
        self._move_trait(one, two, wants(gold, CUSTOM_GPU='required'))
        self._name_several_classes(gold, {one, two})
        self._change_class(one, two, gold)

    def _move_trait(self, one: str, two: str, flavor: dict[str, str]) -> None:
        self.change(one, traits=frozenset())
        self.expect(None, flavor)
        self.change(two, traits=frozenset({'CUSTOM_GPU'}))
        self.expect(two, flavor)

    def _name_several_classes(self, gold: str, nodes: set[str]) -> None:
        both = wants(gold) | wants('CUSTOM_BAREMETAL')
        self.assertIsNone(self.chosen(both))
        one_of_them = both | {'resources:CUSTOM_BAREMETAL': '0'}
        self.expect_one_of(nodes, one_of_them)

    def _change_class(self, one: str, two: str, gold: str) -> None:
        self.change(one, resource_class='silver')
        self.expect(one, wants('CUSTOM_SILVER'))
        self.change(two, resource_class=None)
        self.expect(None, wants(gold))
        self.change(two, resource_class='gold')
        self.expect(two, wants('CUSTOM_GOLD'))

    def test_node_that_cannot_take_a_build_is_not_chosen(self) -> None:
        """Bugs 1771577, 1974070: an unavailable node is not chosen."""
        node = self.nodes[0]
        self.change(node, resource_class='lone')
        lone = wants('CUSTOM_LONE')
        self.expect(node, lone)
        for fields in (
            {'maintenance': True},
            {'retired': True},
            {'provision_state': 'clean wait'},
            {'provision_state': 'enroll'},
            {'provision_state': 'a new state'},
            {'power_state': 'error'},
            {'power_state': None},
        ):
            before = self.ironic.nodes[node]
            self.change(node, **fields)
            self.expect(None, lone)
            self.change(node, **{n: getattr(before, n) for n in fields})
            self.expect(node, lone)

    def test_flavor_of_virtual_machines_finds_nothing(self) -> None:
        """Bug 1796920: a node offers neither processors nor memory."""
        for name in ('VCPU', 'MEMORY_MB', 'DISK_GB'):
            only = {key: '0' for key in wants('CUSTOM_BAREMETAL')}
            self.assertIsNone(self.chosen({**only, f'resources:{name}': '1'}))

    def test_disabled_host_gets_nothing(self) -> None:
        """T6: the nodes of a disabled host have COMPUTE_STATUS_DISABLED."""
        flavor = wants('CUSTOM_BAREMETAL')
        services = self.api.get_services(binary='nova-compute')
        for status in ('disabled', 'enabled'):
            for service in services:
                self.api.put_service(service['id'], {'status': status})
            if status == 'disabled':
                self.expect(None, flavor)
        self.until(lambda: self.chosen(flavor), 'a node chosen again')


class DisabledTest(scheduling.SchedulerTestCase):
    """Who is told does not wait for his next look at Nova's services."""

    OPTIONS: ClassVar[Mapping[str, Any]] = {'services_interval_s': 600.0}

    def test_disabled_host_reads_its_record_at_once(self) -> None:
        """A disabled host reads its Service record before the interval."""
        services = self.api.get_services(binary='nova-compute')
        for status in ('disabled', 'enabled'):
            for service in services:
                self.api.put_service(service['id'], {'status': status})
                host = service['host']
                known = self.components(host).services
                self.until(
                    lambda known=known, host=host, status=status: (
                        known.find_record(host).disabled
                        == (status == 'disabled')
                    ),
                    f'{host} {status} in its own eyes',
                )


class FiltersTest(scheduling.SchedulerTestCase):
    """Filters look at Nova's rows and aggregates."""

    FILTERS = ('AggregateInstanceExtraSpecsFilter', 'RackFilter')

    def _use_fixtures(self) -> None:
        """Put the deployer's filter where Nova can import it."""
        super()._use_fixtures()
        name = f'filter_{uuid.uuid4().hex}'
        folder = pathlib.Path(self.useFixture(fixtures.TempDir()).path)
        (folder / f'{name}.py').write_text(_OWN_FILTER)
        sys.path.insert(0, str(folder))
        self.addCleanup(sys.path.remove, str(folder))
        available = ['nova.scheduler.filters.all_filters']
        available.append(f'{name}.RackFilter')
        self.flags(available_filters=available, group='filter_scheduler')

    def test_scheduler_filters_use_properties_of_ironic_nodes(self) -> None:
        """The scheduler's filters use the properties of Ironic nodes."""
        one, two = self.nodes[:2]
        any_node = wants('CUSTOM_BAREMETAL')
        self.change(
            one,
            properties={
                'cpu_arch': 'aarch64',
                'capabilities': 'boot_mode:uefi,rack:7',
            },
        )
        self.expect(one, {**any_node, 'capabilities:boot_mode': 'uefi'})
        self.expect(one, {**any_node, 'own:rack': '7'})
        self.assertIsNone(
            self.chosen({**any_node, 'capabilities:boot_mode': 'bios'})
        )
        arm = {'hw_architecture': 'aarch64'}
        self.expect(one, any_node, arm)
        self.change(
            two, properties={'cpu_arch': 'x86_64', 'capabilities': 'rack:8'}
        )
        self.expect(two, {**any_node, 'own:rack': '8'})
        self.change(two, properties={'cpu_arch': 'x86_64'})
        self.expect(None, {**any_node, 'own:rack': '8'})

    def test_aggregates_hold_for_all_nodes_of_a_host(self) -> None:
        """All nodes of a host are in the host's aggregates."""
        zone = self._make_aggregate('zone-b', 'c2')
        flavor = wants('CUSTOM_BAREMETAL')
        mine = {**flavor, 'aggregate_instance_extra_specs:pool': 'b'}
        theirs = self.held('c2')
        self.until(lambda: self._members(zone) == theirs, 'all in the zone')
        self.expect_one_of(theirs, flavor, zone='zone-b')
        self.expect_one_of(theirs, mine)
        self._fill(theirs, sorted(theirs)[-1], flavor)
        self.api.remove_host_from_aggregate(zone['id'], 'c2')
        self.until(lambda: not self._members(zone), 'none in the zone')
        self.assertIsNone(self.chosen(flavor, zone='zone-b'))

    def _fill(self, nodes: set[str], last: str, flavor: Any) -> None:
        """Take all nodes but one: the scheduler finds that one as well."""
        for node in nodes - {last}:
            self.change(node, maintenance=True)
        self.until(
            lambda: self.chosen(flavor, zone='zone-b') == last, 'the last one'
        )

    def _make_aggregate(self, zone: str, host: str) -> Any:
        made = self.api.post_aggregate(
            {'aggregate': {'name': zone, 'availability_zone': zone}}
        )
        self.api.post_aggregate_action(
            made['id'], {'set_metadata': {'metadata': {'pool': 'b'}}}
        )
        self.api.add_host_to_aggregate(made['id'], host)
        return made

    def _members(self, aggregate: Any) -> set[str]:
        response = self.placement.get(
            f'/resource_providers?member_of={aggregate["uuid"]}',
            version='1.36',
        )
        return {p['uuid'] for p in response.body['resource_providers']}


class ForeignConsumerTest(scheduling.SchedulerTestCase):
    """Somebody who is not Nova uses a node, by Placement and Ironic."""

    def test_node_of_another_client_is_left_alone_until_released(self) -> None:
        """A node that another client uses is left to that client."""
        node, consumer = self.nodes[0], str(uuid.uuid4())
        self.change(node, resource_class='lone')
        lone = wants('CUSTOM_LONE')
        self.expect(node, lone)
        self._allocate(consumer, node)
        self.assertIsNone(self.chosen(lone))
        self.change(node, instance_uuid=consumer, provision_state='deploying')
        self.change(node, provision_state='active')
        self._look_at_everything(node)
        self.assertIsNone(self.chosen(lone))
        self.assertEqual([node], self._allocated(consumer))
        self._release(consumer, node, lone)
        self.assertEqual([], self.ironic.calls)

    def _allocate(self, consumer: str, node: str) -> None:
        body = {
            'allocations': {node: {'resources': {'CUSTOM_LONE': 1}}},
            'project_id': 'another project',
            'user_id': 'another client',
            'consumer_generation': None,
        }
        url = f'/allocations/{consumer}'
        response = self.placement.put(url, body, version='1.28')
        self.assertEqual(204, response.status, response.body)

    def _allocated(self, consumer: str) -> list[str]:
        response = self.placement.get(f'/allocations/{consumer}')
        return list(response.body['allocations'])

    def _look_at_everything(self, node: str) -> None:
        """Have all that repairs anything look at the node."""
        self.until(
            lambda: self._reserved(node), 'the node reserved by its worker'
        )
        for _ in range(2):
            self.deliver_audit(self.ironic.nodes)
            for host in self.workers:
                self.manager(host)._recovery_loop._strays.check()
                self.manager(host)._recovery_loop._lost.check()
        for host in self.workers:
            self.components(host).reconciler.drain(5)

    def _reserved(self, node: str) -> bool:
        response = self.placement.get(
            f'/resource_providers/{node}/inventories'
        )
        inventories = response.body['inventories'].values()
        return all(each['reserved'] for each in inventories)

    def _release(self, consumer: str, node: str, flavor: Any) -> None:
        """First in Placement; until Ironic has cleaned it, it is no use."""
        self.placement.delete(f'/allocations/{consumer}')
        self.assertIsNone(self.chosen(flavor))
        self.change(node, instance_uuid=None, provision_state='clean wait')
        self.assertIsNone(self.chosen(flavor))
        self.change(node, provision_state='available')
        self.expect(node, flavor)

# SPDX-License-Identifier: Apache-2.0
"""The consistency checks in a whole Nova: clean pools, planted defects."""

import functools
import types
import uuid
from collections.abc import Mapping
from typing import Any

from nova import context as nova_context
from nova import objects

from hashring.clock import SystemClock
from hashring.group import Boot, Member
from hashring.ring import Host
from ironic_compute import catalogue
from ironic_compute.catalogue import Check
from ironic_compute.cmd import migrate
from ironic_compute.cmd.fsck_repair import repair
from ironic_compute.cmd.migration_plan import HostState, ServedBy
from ironic_compute.fsck.look import Looker
from ironic_compute.fsck.nova_reader import RECORDS_PER_RPC, NovaReader
from ironic_compute.fsck.placement_reader import PlacementReader
from ironic_compute.fsck.snapshot import PoolHosts
from ironic_compute.gate import NeverOpen
from ironic_compute.nodes.compute_nodes import ComputeNodes
from ironic_compute.ownership import peer_rpc
from resource_tracker.node import NodeId
from tests.functional import pool

_CLASS = 'CUSTOM_BAREMETAL'
_VERSION = '1.39'
_BOTH = frozenset({Host('c1'), Host('c2')})


class LateClock(SystemClock):
    """An hour after all that a test has done; nothing waits for it."""

    def wall_s(self) -> float:
        """Return the time in an hour."""
        return super().wall_s() + 3600.0

    def sleep(self, seconds: float) -> None:
        """Do not wait."""


class FsckTestCase(pool.PoolTestCase):
    """A pool that can be looked at."""

    def setUp(self) -> None:
        """Have the rights of an operator."""
        super().setUp()
        self.context = nova_context.get_admin_context()
        self.notes: list[str] = []
        self.pool_hosts = PoolHosts(_BOTH, _BOTH)

    def look(self, *, is_deep: bool = False) -> set[tuple[str, str]]:
        """Look twice; return each check's name with what it is about."""
        return {
            (f.check.name, f.subject.node or f.subject.server or '')
            for f in self.looker(is_deep=is_deep).look_twice(0.0).findings
        }

    def looker(self, *, is_deep: bool) -> Looker:
        """Return what looks at the pool."""
        clock = LateClock()
        rows = ComputeNodes(NeverOpen(), clock, page_rows=RECORDS_PER_RPC)
        return Looker(
            pool.TheCloud.ironic,
            NovaReader(rows, clock, self.notes.append),
            # Its SQLite is no place for eight threads.
            PlacementReader(
                pool.TheCloud.placement, self.notes.append, is_deep, 1
            ),
            lambda: self.pool_hosts,
            clock,
            self.notes.append,
            is_deep=is_deep,
        )

    def stop_workers(self) -> None:
        """Stop all that would mend what a test breaks."""
        for host in self.workers:
            self.components(host).stop()
            self.manager(host)._recovery_loop.stop()

    def _row(self, node: str) -> Any:
        return objects.ComputeNode.get_by_nodename(self.context, node)

    def _inventory(self, node: str, **fields: int) -> None:
        url = f'/resource_providers/{node}/inventories/{_CLASS}'
        known = self.placement.get(url, version=_VERSION).body
        self._put(url, {**known, **fields})

    def _traits(self, node: str, add: str = '', remove: str = '') -> None:
        url = f'/resource_providers/{node}/traits'
        known = self.placement.get(url, version=_VERSION).body
        traits = (set(known['traits']) | {add}) - {remove, ''}
        if add.startswith('CUSTOM_'):
            self._put(f'/traits/{add}', {})
        self._put(url, {**known, 'traits': sorted(traits)})

    def _allocate(self, consumer: str, *nodes: str) -> None:
        known = self.placement.get(
            f'/allocations/{consumer}', version=_VERSION
        ).body
        generation = known.get('consumer_generation')
        self._put(
            f'/allocations/{consumer}',
            {
                'allocations': {n: {'resources': {_CLASS: 1}} for n in nodes},
                'project_id': 'p',
                'user_id': 'u',
                'consumer_generation': generation,
                'consumer_type': 'INSTANCE',
            },
        )

    def _put(self, url: str, body: Mapping[str, Any]) -> None:
        done = self.placement.put(url, body, version=_VERSION)
        self.assertLess(done.status, 300, done.body)


class CleanPoolTest(FsckTestCase):
    """Nothing is found in a pool in which nothing is wrong."""

    def test_nothing_is_found_in_a_healthy_pool(self) -> None:
        """With free nodes, with a server, and after its delete."""
        self.assertEqual(set(), self.look(is_deep=True))
        server = self.boot(self.flavor)
        self.until(lambda: not self.look(is_deep=True), 'a server is clean')
        self.delete(server)
        self.until(lambda: self.offered() == self.NODES_COUNT, 'free again')
        self.until(lambda: not self.look(is_deep=True), 'clean again')
        self.assertEqual([], self.notes)

    def test_migration_reads_who_serves_the_hosts(self) -> None:
        """The hosts themselves answer, and the backend names the pool."""
        server = self.boot(self.flavor)
        host = Host(server['OS-EXT-SRV-ATTR:host'])
        nodes = frozenset(map(NodeId, self.ironic.nodes))
        read = functools.partial(
            migrate.read_hosts,
            nodes=nodes,
            nodes_elsewhere=frozenset(),
            wanted=frozenset(),
        )
        states = read(())
        self.assertEqual({ServedBy.OTHER_POOL}, _served_by(states))
        member = Member(host, Boot('1'), serving=tuple(_BOTH), known=(host,))
        states = read((member,))
        self.assertEqual({ServedBy.DAEMON}, _served_by(states))
        self.assertEqual(_BOTH, frozenset(states))
        held = sum(state.nodes_count for state in states.values())
        self.assertEqual(self.NODES_COUNT, held)
        self.assertEqual(1, states[host].servers_count)
        self.assertTrue(states[host].is_mapped)


def _served_by(states: Mapping[Host, HostState]) -> set[ServedBy]:
    return {state.served_by for state in states.values()}


class PlantedTest(FsckTestCase):
    """Each inconsistency is found, by its name, and nothing else."""

    NODES_COUNT = 24

    def _boot(self, count: int) -> None:
        """Boot servers, and stop the workers when all is well."""
        self.servers = [self.boot(self.flavor) for _ in range(count)]
        self.places = [self.node_of(server) for server in self.servers]
        self.until(lambda: not self.look(is_deep=True), 'clean at first')
        self.stop_workers()
        used = set(self.places)
        self.free = sorted(set(self.ironic.nodes) - used)
        self.expected: set[tuple[str, str]] = set()

    def _expect(self, subject: str, *found: Check) -> None:
        self.expected |= {(check.name, subject) for check in found}

    def _instance(self, number: int) -> Any:
        return objects.Instance.get_by_uuid(
            self.context, self.servers[number]['id']
        )

    def test_what_the_lists_show_is_found(self) -> None:
        """Inconsistencies that one look at lists and suspects finds."""
        self._boot(6)
        self._plant_in_placement()
        self._plant_in_ironic()
        self._plant_in_nova()
        self._plant_servers()
        self.assertEqual(self.expected, self.look())

    def _plant_in_placement(self) -> None:
        reserved, gone, taken, plain, has_y, lost_y = self.free[:6]
        self._inventory(reserved, reserved=1)
        self._expect(reserved, catalogue.NOT_OFFERED)
        self.placement.delete(f'/resource_providers/{gone}')
        self._expect(gone, catalogue.NODE_WITHOUT_PROVIDER)
        self._allocate(str(uuid.uuid4()), taken)
        self._expect(taken, catalogue.ALLOCATION_OF_UNKNOWN)
        self._traits(plain, remove='COMPUTE_NODE')
        self._expect(plain, catalogue.WITHOUT_COMPUTE_TRAIT)
        for node in (has_y, lost_y):
            self._traits(node, add='CUSTOM_Y')
        self.ironic.change(has_y, traits=frozenset({'CUSTOM_Y'}))
        self._expect(lost_y, catalogue.TRAIT_LEFT_BEHIND)
        ghost = str(uuid.uuid4())
        body = {'uuid': ghost, 'name': ghost}
        self.placement.post('/resource_providers', body, version=_VERSION)
        self._traits(ghost, add='COMPUTE_NODE')
        self._expect(ghost, catalogue.PROVIDER_WITHOUT_NODE)

    def _plant_in_ironic(self) -> None:
        broken, deleted, renamed, left, trait, target = self.free[6:12]
        failed, strange, classless = self.free[12:15]
        self.ironic.change(broken, maintenance=True)
        self._expect(broken, catalogue.OFFERED_BUT_UNUSABLE)
        del self.ironic.nodes[deleted]
        self._expect(deleted, catalogue.ROW_WITHOUT_NODE)
        self.ironic.change(renamed, resource_class='new')
        self._expect(renamed, catalogue.WRONG_CLASS)
        self.ironic.change(left, conductor_group='rack')
        self._expect(left, catalogue.NODE_OF_OTHER_POOL)
        self.ironic.change(trait, traits=frozenset({'CUSTOM_X'}))
        self._expect(trait, catalogue.TRAIT_MISSING)
        self.ironic.targets['t'] = {'uuid': 't', 'node_uuid': target}
        self._expect(target, catalogue.VOLUME_TARGET_LEFT_BEHIND)
        self.ironic.change(failed, provision_state='deploy failed')
        self._expect(
            failed, catalogue.DEPLOY_FAILED, catalogue.OFFERED_BUT_UNUSABLE
        )
        stranger = str(uuid.uuid4())
        self.ironic.change(
            strange, instance_uuid=stranger, provision_state='active'
        )
        self._expect(
            strange, catalogue.UNKNOWN_SERVER, catalogue.OFFERED_BUT_UNUSABLE
        )
        self.ironic.change(classless, resource_class=None)
        self._expect(
            classless, catalogue.NODE_WITHOUT_CLASS, catalogue.WRONG_CLASS
        )

    def _plant_in_nova(self) -> None:
        gone, orphan = self.free[15:17]
        self._row(gone).destroy()
        self._expect(gone, catalogue.NODE_WITHOUT_ROW)
        row = self._row(orphan)
        row.host = 'c9'
        row.save()
        self._expect(orphan, catalogue.ROW_ON_UNKNOWN_HOST)

    def _plant_servers(self) -> None:
        deleted, lost, followed, stuck, twice, restorable = self.places[:6]
        self._instance(0).destroy()
        self._expect(
            deleted,
            catalogue.DELETED_SERVER,
            catalogue.ALLOCATION_WITHOUT_SERVER,
        )
        self.ironic.change(
            lost, instance_uuid=None, provision_state='available'
        )
        self._expect(lost, catalogue.SERVER_NOT_ON_NODE)
        row = self._row(followed)
        row.host = 'c2' if row.host == 'c1' else 'c1'
        row.save()
        self._expect(followed, catalogue.SERVER_ON_OTHER_HOST)
        instance = self._instance(3)
        instance.task_state = 'powering-off'
        instance.save()
        self._expect(stuck, catalogue.STUCK_TASK)
        instance = self._instance(5)
        instance.vm_state, instance.task_state = 'soft-delete', 'restoring'
        instance.save()
        self.ironic.change(
            restorable, instance_uuid=None, provision_state='available'
        )
        self._expect(restorable, catalogue.STUCK_TASK)
        other = self.free[17]
        self._inventory(twice, reserved=0)
        self._allocate(self.servers[4]['id'], twice, other)
        self._inventory(twice, reserved=1)
        self._expect(other, catalogue.ALLOCATION_ON_OTHER_NODE)

    def test_what_only_details_show_is_found(self) -> None:
        """Inconsistencies that are looked for one by one, if told to."""
        self._boot(4)
        bare, neglected, open_ = self.places[:3]
        self.placement.delete(f'/allocations/{self.servers[0]["id"]}')
        self._expect(bare, catalogue.SERVER_WITHOUT_ALLOCATION)
        objects.InstanceAction.action_start(
            self.context, self.servers[1]['id'], 'delete', want_result=False
        )
        self._expect(neglected, catalogue.UNFINISHED_DELETE)
        self._inventory(open_, reserved=0)
        self._expect(open_, catalogue.NOT_RESERVED)
        vif_node, other = self.free[:2]
        self.ironic.attached[vif_node].append('v1')
        self._expect(vif_node, catalogue.VIF_LEFT_BEHIND)
        twice = self.servers[3]['id']
        self._inventory(self.places[3], reserved=0)
        self._allocate(twice, self.places[3], other)
        self._inventory(self.places[3], reserved=1)
        self._expect(other, catalogue.ALLOCATION_ON_OTHER_NODE)
        self._expect(twice, catalogue.ALLOCATION_ON_TWO_NODES)
        self.assertEqual(self.expected, self.look(is_deep=True))

    def test_hosts_flavors_and_builds_are_checked(self) -> None:
        """What is about no node is found, too."""
        self._boot(1)
        self.pool_hosts = PoolHosts(
            _BOTH | {Host('c9')}, frozenset({Host('c1')}), {Host('c1'): 'r'}
        )
        self.make_flavor(**{'resources:CUSTOM_NOTHING': '1'})
        # nova-api refuses it while a host has servers.
        zone = {'availability_zone': 'zone-2'}
        made = objects.Aggregate(self.context, name='a', metadata=zone)
        made.create()
        made.add_host('c1')
        instance = self._instance(0)
        instance.vm_state, instance.host = 'building', None
        instance.save()
        objects.HostMapping.get_by_host(self.context, 'c2').destroy()
        names = {name for name, _ in self.look()}
        self.assertEqual(
            {
                check.name
                for check in (
                    catalogue.HOST_NOT_SERVED,
                    catalogue.HOST_NOT_MAPPED,
                    catalogue.HOST_WITHOUT_SERVICE,
                    catalogue.HOST_OF_OTHER_ZONE,
                    catalogue.UNEVEN_AGGREGATE,
                    catalogue.FLAVOR_WITHOUT_NODE,
                    catalogue.LOST_BUILD,
                )
            },
            names,
        )


class RepairTest(FsckTestCase):
    """The workers mend at an operator's request what an audit would mend."""

    def test_workers_mend_what_an_operator_asks_them_to_check(self) -> None:
        """No audit is due for half an hour."""
        reserved, gone, plain, removed, orphan = sorted(self.ironic.nodes)[:5]
        self._inventory(reserved, reserved=1)
        self.placement.delete(f'/resource_providers/{gone}')
        self._traits(plain, remove='COMPUTE_NODE')
        self._row(removed).destroy()
        row = self._row(orphan)
        row.host = 'c9'
        row.save()
        self.assertEqual(
            {
                (catalogue.NOT_OFFERED.name, reserved),
                (catalogue.NODE_WITHOUT_PROVIDER.name, gone),
                (catalogue.WITHOUT_COMPUTE_TRAIT.name, plain),
                (catalogue.NODE_WITHOUT_ROW.name, removed),
                (catalogue.ROW_ON_UNKNOWN_HOST.name, orphan),
            },
            self.look(),
        )
        self.until(self._is_mended, 'all mended')

    def _is_mended(self) -> bool:
        for host in self.workers:
            peer_rpc.request_check(Host(host), [])
        return not self.look()


class RequestedRepairTest(FsckTestCase):
    """The workers mend what no audit would mend, and nothing else."""

    NODES_COUNT = 12
    OPTIONS: Mapping[str, Any] = types.MappingProxyType({'unfinished_s': 1.0})

    def test_workers_mend_allocations_and_leftovers(self) -> None:
        """What belongs to another program stays."""
        servers = [self.boot(self.flavor) for _ in range(4)]
        places = [self.node_of(server) for server in servers]
        former = self.boot(self.flavor)
        self.delete(former)
        self.until(lambda: not self.look(is_deep=True), 'clean at first')
        self.expected: set[tuple[str, str]] = set()
        free = sorted(set(self.ironic.nodes) - set(places))
        self._plant_allocations([s['id'] for s in servers], places, free)
        self._allocate(former['id'], free[2])
        self._expect(free[2], catalogue.ALLOCATION_WITHOUT_SERVER)
        self.ironic.attached[free[3]].append('v1')
        self._expect(free[3], catalogue.VIF_LEFT_BEHIND)
        self.ironic.targets['t'] = {'uuid': 't', 'node_uuid': free[4]}
        self.ironic.change(free[4], power_state='power off')
        self._expect(free[4], catalogue.VOLUME_TARGET_LEFT_BEHIND)
        stranger = str(uuid.uuid4())
        self._allocate(stranger, free[5])
        theirs = {(catalogue.ALLOCATION_OF_UNKNOWN.name, free[5])}
        self.assertEqual(self.expected | theirs, self.look(is_deep=True))
        self.until(lambda: self._repair() == theirs, 'all mended')
        self.assertEqual({free[5]}, self._nodes_of(stranger))
        self.assertEqual({places[3]}, self._nodes_of(servers[3]['id']))
        self.until(lambda: not self._offered_of(places), 'all reserved')

    def _expect(self, subject: str, *found: Check) -> None:
        self.expected |= {(check.name, subject) for check in found}

    def _plant_allocations(
        self, servers: list[str], places: list[str], free: list[str]
    ) -> None:
        self.placement.delete(f'/allocations/{servers[0]}')
        self._expect(places[0], catalogue.SERVER_WITHOUT_ALLOCATION)
        self._inventory(places[1], reserved=0)
        self._allocate(servers[1], places[1], free[0])
        self._inventory(places[1], reserved=1)
        self._expect(free[0], catalogue.ALLOCATION_ON_OTHER_NODE)
        self._expect(servers[1], catalogue.ALLOCATION_ON_TWO_NODES)
        self._allocate(servers[2], free[1])
        self._expect(free[1], catalogue.ALLOCATION_ON_OTHER_NODE)
        self._expect(places[2], catalogue.SERVER_WITHOUT_ALLOCATION)

    def _repair(self) -> set[tuple[str, str]]:
        looker = self.looker(is_deep=True)
        repair(looker, looker.look(), 0.0, peer_rpc.request_check)
        return self.look(is_deep=True)

    def _nodes_of(self, consumer: str) -> set[str]:
        url = f'/allocations/{consumer}'
        return set(
            self.placement.get(url, version=_VERSION).body['allocations']
        )

    def _offered_of(self, nodes: list[str]) -> set[str]:
        """Return the nodes whose inventory is not reserved."""
        urls = {n: f'/resource_providers/{n}/inventories' for n in nodes}
        return {
            node
            for node, url in urls.items()
            if not self.placement.get(url, version=_VERSION).body[
                'inventories'
            ][_CLASS]['reserved']
        }

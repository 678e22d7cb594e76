# SPDX-License-Identifier: Apache-2.0
"""Bugs of Nova about records of hosts and nodes, by number, in a whole Nova.

What they were is in the manual for contributors.
"""

import logging
import uuid
from typing import Any

from nova import context as nova_context
from nova import objects
from nova.cmd import manage
from nova.exception import NovaException
from nova.tests.functional.api import client as api_client

from hashring.ring import Host
from hashring.workers import HostAdded
from ironic_compute.cmd import ctl
from ironic_compute.nodes.records import incarnation_of
from ironic_compute.ownership import peer_rpc
from ironic_compute.pool.host_mappings import HostMappings
from ironic_compute.pool.services import ServiceDirectory
from resource_tracker.node import NodeId
from tests.functional import pool

_OURS = ('hashring', 'ironic_compute', 'resource_tracker', 'nova.compute')
# What a copy of a row does not share with it.
_OF_THE_ROW = ('id', 'uuid', 'created_at', 'updated_at', 'deleted_at')


class Heard(logging.Handler):
    """What was logged above INFO by what is ours, or by Nova's manager."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.lines: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        """Remember a line."""
        line = f'{record.name}: {record.getMessage()}'
        # Threads share one connection to SQLite here, which is nobody's bug.
        if record.name.startswith(_OURS) and 'sqlite3.' not in line:
            self.lines.append(line)


class OldRowsTest(pool.PoolTestCase):
    """Rows that are older than their worker, or gone."""

    def setUp(self) -> None:
        """Have the rights of an operator."""
        super().setUp()
        self.context = nova_context.get_admin_context()

    def _listen(self) -> Heard:
        heard = Heard()
        logging.getLogger().addHandler(heard)
        self.addCleanup(logging.getLogger().removeHandler, heard)
        return heard

    def _audit(self) -> None:
        """Have each worker read all nodes, as it does now and then."""
        for host in self.workers:
            feed = self.components(host).feed
            feed._try_read(feed._audit)

    def _rows(self, node: str) -> list[Any]:
        every = objects.ComputeNodeList.get_all(self.context)
        return [row for row in every if row.hypervisor_hostname == node]

    def _enroll(self, node: str, resource_class: str = 'baremetal') -> None:
        self.ironic.add(
            uuid=node,
            resource_class=resource_class,
            properties={'cpu_arch': 'x86_64'},
        )

    def test_bug_1771806_1798172_row_with_a_uuid_of_its_own_is_kept(
        self,
    ) -> None:
        """The node never gets a second row: pushed, adopted or built on."""
        node, old = str(uuid.uuid4()), str(uuid.uuid4())
        c1 = self.components('c1')
        row = self._old_row(node, old, c1.held_nodes.host_status.service_id)
        self._enroll(node, 'old')
        # No worker has read it at its start: unless the ring's target holds
        # it, it is found when the next list still shows a node without a row.
        self._audit()
        url = f'/resource_providers/{old}/inventories'

        def is_reported() -> bool:
            self._audit()
            return 'CUSTOM_OLD' in self.placement.get(url).body['inventories']

        self.until(is_reported, 'the old provider reported')
        for host in ('c2', 'c1'):
            pool.TheCloud.show(host)
            self.until(lambda h=host: node in self.held(h), f'at {host}')
            self._audit()
            (now,) = self._rows(node)
            self.assertEqual((row.id, old, host), (now.id, now.uuid, now.host))
            # T3: the row names the Service of its host as well.
            components = self.components(host)
            self.assertEqual(
                components.held_nodes.host_status.service_id, now.service_id
            )
        specs = {
            'resources:CUSTOM_BAREMETAL': '0',
            'resources:CUSTOM_OLD': '1',
        }
        server = self.boot(self.make_flavor(**specs))
        self.assertEqual(node, self.node_of(server))
        self.delete(server)

    def test_rows_of_another_uuid_are_found_among_all(self) -> None:
        """Rows with a uuid of their own are found in two pages of rows."""
        components = self.components('c1')
        for host in self.workers:
            # They share one connection to SQLite with what follows.
            self.manager(host)._recovery_loop.stop()
            self.components(host).stop()
        (known, *_) = objects.ComputeNodeList.get_all(self.context)
        odd = [str(uuid.uuid4()) for _ in range(2)]
        self._copy(known, odd[0], str(uuid.uuid4()), 'hypervisor')
        for number in range(300):
            plain = str(uuid.uuid5(uuid.NAMESPACE_DNS, f'plain-{number}'))
            self._copy(known, plain, plain, 'hypervisor')
        self._copy(known, odd[1], str(uuid.uuid4()), 'hypervisor')
        self.assertEqual(
            set(odd), components.compute_nodes.list_legacy_nodes(2)
        )
        self.assertIsNone(components.compute_nodes.list_legacy_nodes(1))

    def test_nova_manage_moves_what_stopped_daemons_leave(self) -> None:
        """The way back to a single nova-compute, as the manual has it."""
        server = self.boot(self.make_flavor())
        node = self.node_of(server)
        for host in self.workers:
            self.manager(host)._recovery_loop.stop()
            self.components(host).stop()
        (row,) = self._rows(node)
        source = objects.Service.get_by_compute_host(self.context, row.host)
        (target,) = {'c1', 'c2'} - {row.host}
        move = manage.DbCommands().ironic_compute_node_move
        with self.assertRaisesRegex(NovaException, 'not yet forced down'):
            move(node, target)
        source.forced_down = True
        source.save()
        move(node, target)
        (row,) = self._rows(node)
        service = objects.Service.get_by_compute_host(self.context, target)
        self.assertEqual((target, service.id), (row.host, row.service_id))
        instance = objects.Instance.get_by_uuid(self.context, server['id'])
        self.assertEqual((target, node), (instance.host, instance.node))

    def _copy(self, known: Any, node: str, own: str, host: str) -> Any:
        """Make a row like another one; return it."""
        row = objects.ComputeNode(self.context)
        for name in known.fields:
            if known.obj_attr_is_set(name) and name not in _OF_THE_ROW:
                setattr(row, name, getattr(known, name))
        row.uuid, row.hypervisor_hostname, row.stats = own, node, {}
        row.host, row.mapped = host, 1
        row.create()
        return row

    def _old_row(self, node: str, old: str, service_id: int | None) -> Any:
        """Make a row as a Nova before 18 did, with its provider."""
        known = objects.ComputeNodeList.get_all(self.context)[0]
        row = self._copy(known, node, old, 'c1')
        row.service_id = service_id
        row.save()
        self.placement.post(
            '/resource_providers', {'uuid': old, 'name': node}, version='1.20'
        )
        return row

    def test_bug_947bb5f641_node_that_left_the_pool_goes_by_an_order(
        self,
    ) -> None:
        """The node is kept until an operator orders its removal."""
        server = self.boot(self.make_flavor())
        node = NodeId(self.node_of(server))
        self.assertIn('is in this pool', ctl.forget_node(node))
        self.ironic.change(node, conductor_group='another')
        self._audit()
        self._audit()
        self.assertIn('has a server', ctl.forget_node(node))
        self.delete(server)
        self._audit()
        self.assertEqual(1, len(self._rows(node)))
        self.until(lambda: ctl.forget_node(node) is None, 'the node forgotten')
        self.assertEqual([], self._rows(node))
        answer = self.placement.get(f'/resource_providers/{node}')
        self.assertEqual(404, answer.status)
        self.assertIn('no record', ctl.forget_node(node))

    def test_bug_1853159_record_is_restored_without_an_error(self) -> None:
        """A deleted Service record is restored without a traceback."""
        heard, node = self._listen(), str(uuid.uuid4())
        ids, marks = set(), set()
        for ring in ('c1', 'c2'):
            pool.TheCloud.show(ring)
            self._enroll(node)
            self.until(lambda: self.offered() == 9, 'the node offered')
            (row,) = self._rows(node)
            self.assertEqual(ring, row.host)
            ids.add(row.id)
            marks.add(incarnation_of(row))
            del self.ironic.nodes[node]
            self._audit()
            self._audit()
            self.assertEqual([], self._rows(node))
        self.assertEqual((1, 2), (len(ids), len(marks - {''})))
        gone = f'Ironic has no node {node} any more'
        self.assertEqual([], [x for x in heard.lines if gone not in x])

    def test_bug_1847054_host_without_nodes_is_quiet(self) -> None:
        """A host without nodes logs nothing above INFO."""
        heard = self._listen()
        self.workers['c3'] = self.start_compute('c3', pool.MANAGER)
        components = self.components('c3')
        for _ in range(3):
            self._audit()
            components.rebalancer.run_round()
            components._service_thread._act()
            for _, task in self.manager('c3')._periodic_tasks:
                task(self.manager('c3'), self.context)
        self.assertEqual(set(), self.held('c3'))
        self.assertEqual([], heard.lines)

    def test_bug_1755602_unmapped_host_is_known_as_such(self) -> None:
        """A host is unmapped even if the row of its node is mapped."""
        heard = self._listen()
        objects.Service(
            self.context, host='c3', binary='nova-compute', topic='compute'
        ).create()
        node = next(iter(self.ironic.nodes))
        directory = ServiceDirectory(HostMappings(lambda host: False))
        (row,) = self._rows(node)
        row.mapped, row.host = 1, 'c3'
        row.save()
        directory.read_records()
        facts = directory.facts([Host('c1'), Host('c3')])
        self.assertEqual(
            [True, False], [facts[Host(h)].mapped for h in ('c1', 'c3')]
        )
        # A worker that looks at the node may say that its host is foreign.
        said = [line for line in heard.lines if 'discover_hosts' in line]
        self.assertEqual(1, len(said), heard.lines)
        self.assertIn('discover_hosts --by-service', said[0])
        self._map_host('c3')
        self.assertTrue(directory.facts([Host('c3')])[Host('c3')].mapped)

    def _delete_service(self, host: str) -> None:
        (service,) = self.api.get_services(binary='nova-compute', host=host)
        self.api.api_delete(f'/os-services/{service["id"]}')

    def test_bug_1811726_nodes_of_a_deleted_host_are_taken(self) -> None:
        """A host without servers can be deleted; others take its nodes.

        Also bugs 1756179, 1763183, 1829479, 1817833, 1860312 and 1852610.
        """
        pool.TheCloud.show('c1')
        self.until(lambda: len(self.held('c1')) == 8, 'all at c1')
        server = self.boot(self.flavor)
        refused = self.assertRaises(
            api_client.OpenStackApiException, self._delete_service, 'c1'
        )
        self.assertEqual(409, refused.response.status_code)
        self.assertEqual(
            [self.node_of(server)], list(self.allocations(server))
        )
        self.delete(server)
        self.until(lambda: self.offered() == 8, 'its node offered')
        self._delete_service('c2')  # Without a node.
        self._check_rows('c1')
        self._revive('c2')
        pool.TheCloud.show('c2')
        self.until(lambda: len(self.held('c2')) == 8, 'all at c2')
        self._delete_service('c1')
        self._check_rows('c2')
        self._revive('c1')
        self._take_all_of_c2()

    def _take_all_of_c2(self) -> None:
        """nova-api deletes many rows and providers; all are had anew."""
        self.components('c2').stop()
        self._delete_service('c2')
        self.assertEqual(0, self.offered())
        pool.TheCloud.show('c1')
        self._audit()
        self.until(lambda: self.offered() == 8, 'all offered again')
        self._check_rows('c1')

    def _check_rows(self, host: str) -> None:
        """In Nova, not in what a worker remembers, all nodes are a host's."""
        every = objects.ComputeNodeList.get_all(self.context)
        self.assertEqual(
            sorted((node, host) for node in self.ironic.nodes),
            sorted((row.hypervisor_hostname, row.host) for row in every),
        )
        self.assertEqual(8, self.offered())

    def _revive(self, host: str) -> None:
        """Have a Service of this name again, as its own daemon would."""
        service = objects.Service(
            self.context, host=host, binary='nova-compute', topic='compute'
        )
        service.create()
        components = self.components(host)
        components.held_nodes.update_host_status(service_id=service.id)
        for other in self.workers:
            self.components(other).services.read_records()

    def test_lost_host_is_adopted_by_an_operators_order(self) -> None:
        """A host that has no Service record, or is up, is not adopted."""
        here, c9 = Host('c1'), Host('c9')
        self.assertIn(
            'no Service record', peer_rpc.request_adopt_host(here, c9)
        )
        objects.Service(
            self.context,
            host='c9',
            binary='nova-compute',
            topic='compute',
            forced_down=True,
        ).create()
        self.start_compute('stock', pool.MANAGER)
        del pool.TheCloud.pools[Host('stock')]
        pool.TheCloud.show('c1', 'c2')
        # Whether it is one of ours is asked of it, for five seconds.
        self.until(
            lambda: (
                'A daemon of another pool'
                in str(peer_rpc.request_adopt_host(here, Host('stock')))
            ),
            'the host of another pool refused as such',
        )
        self.assertIsNone(peer_rpc.request_adopt_host(here, c9))
        self.assertEqual(
            ('c1', 'c2', 'c9'), pool.TheCloud.pools[Host('c2')].known
        )
        self.assertIsNone(peer_rpc.request_adopt_host(here, c9))
        self.assertEqual([HostAdded(c9)], pool.TheCloud.ordered)

    def test_mapping_in_nova_outweighs_confirm_mapped(
        self,
    ) -> None:
        """A mapping is read from Nova if the conductor can read it."""
        here = Host('c1')
        self.assertIn(
            'not a host of this pool',
            peer_rpc.request_confirm_mapping(here, Host('c9')),
        )
        self.assertIsNone(peer_rpc.request_confirm_mapping(here, Host('c2')))
        mapping = self.host_mappings.pop('c2')
        mapping.destroy()
        self.assertIn(
            'discover_hosts',
            peer_rpc.request_confirm_mapping(here, Host('c2')),
        )
        self.assertEqual([], pool.TheCloud.ordered)
        self._map_host('c2')

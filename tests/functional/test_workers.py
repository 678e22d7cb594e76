# SPDX-License-Identifier: Apache-2.0
"""Servers on our workers, through the real nova-api and scheduler."""

import threading
from typing import Any

from ironic_compute import errors
from resource_tracker.node import NodeId
from tests.functional import base, pool


class WorkersTest(pool.PoolTestCase):
    """Two hosts share the nodes of one Ironic."""

    def test_nodes_are_split_and_none_is_held_twice(self) -> None:
        """Each node has one holder and one provider in Placement."""
        held = [self.held(host) for host in ('c1', 'c2')]
        self.assertEqual(set(), held[0] & held[1])
        self.assertEqual(
            set(pool.TheCloud.ironic.fake.nodes), set.union(*held)
        )

    def test_server_lives_and_leaves_its_node_free(self) -> None:
        """A server can be used; after its deletion the node is offered."""
        server = self.boot(self.flavor)
        node = server['OS-EXT-SRV-ATTR:hypervisor_hostname']
        self.assertIn(node, self.held(server['OS-EXT-SRV-ATTR:host']))
        self.assertEqual([node], list(self.allocations(server)))
        self.until(lambda: self.offered() == 7, 'the node not offered')
        self._reboot_server(server, hard=True)
        self._stop_server(server)
        self._start_server(server)
        self.delete(server)
        self.assertEqual({}, self.allocations(server))
        self.until(lambda: self.offered() == 8, 'the node offered again')

    def test_host_that_leaves_the_ring_gives_its_free_nodes(self) -> None:
        """A host that leaves the ring keeps only nodes with servers."""
        server = self.boot(self.flavor)
        host = server['OS-EXT-SRV-ATTR:host']
        node = server['OS-EXT-SRV-ATTR:hypervisor_hostname']
        other = {'c1': 'c2', 'c2': 'c1'}[host]
        pool.TheCloud.show(other)
        self.until(lambda: self.held(host) == {node}, 'only the pinned one')
        self.until(lambda: len(self.held(other)) == 7, 'the seven others')
        self.delete(server)

    def test_build_sent_to_the_former_holder_goes_on(self) -> None:
        """A build goes to the new holder if the node was pushed."""
        pool.TheCloud.show('c1')
        self.until(lambda: len(self.held('c1')) == 8, 'all at c1')
        server = self.boot(self.flavor)
        self.assertEqual('c1', server['OS-EXT-SRV-ATTR:host'])
        self.delete(server)

    def test_maintenance_reserves_a_node(self) -> None:
        """A node in maintenance is not offered until it ends."""
        ironic = pool.TheCloud.ironic.fake
        node = next(iter(ironic.nodes))
        ironic.change(node, maintenance=True)
        self.until(lambda: self.offered() == 7, 'the node not offered')
        ironic.change(node, maintenance=False)
        self.until(lambda: self.offered() == 8, 'the node offered again')

    def test_node_missing_from_lists_is_kept(self) -> None:
        """Bug 1750450: an empty list of Ironic deletes no node of Nova."""
        ironic = pool.TheCloud.ironic.fake
        nodes, ironic.nodes = ironic.nodes, {}
        self.deliver_audit({})
        self.until(lambda: self.offered() == 0, 'no node offered')
        self.assertEqual(8, len(self.held('c1') | self.held('c2')))
        ironic.nodes = nodes
        self.deliver_audit(nodes)
        self.until(lambda: self.offered() == 8, 'all nodes offered again')

    def test_node_deleted_in_ironic_goes_after_two_audits(self) -> None:
        """A missing node is not offered; it is forgotten two audits later."""
        ironic = pool.TheCloud.ironic.fake
        gone = next(iter(ironic.nodes))
        del ironic.nodes[gone]
        for host in self.workers:
            self.components(host).feed.request_read(gone)
        self.until(lambda: self.offered() == 7, 'the node not offered')
        for _ in range(2):
            self.assertIn(gone, self.held('c1') | self.held('c2'))
            self.deliver_audit(ironic.nodes)
        self.assertNotIn(gone, self.held('c1') | self.held('c2'))

    def test_build_waits_for_ironic_after_a_take_over(self) -> None:
        """A build keeps its node while its worker has no facts of the node."""
        self.flags(api_retry_interval=1, group='ironic')
        is_away, reads = threading.Event(), []
        read_node = self.ironic.read_node

        def read(node: str) -> Any:
            if is_away.is_set():
                reads.append(node)
                raise errors.IronicUnavailable('Ironic does not answer')
            return read_node(node)

        self.ironic.read_node = read  # type: ignore[method-assign]
        is_away.set()
        for host in self.workers:
            for node in self.held(host):
                self.components(host).node_cache.remove_node(NodeId(node))
        server = self._post_server()
        self.until(lambda: self._is_read_twice(server, reads), 'the wait')
        is_away.clear()
        self._wait_for_state_change(server, 'ACTIVE')
        sent = self.notifier.versioned_notifications
        self.assertNotIn(
            'instance.create.error', [each['event_type'] for each in sent]
        )
        self.delete(server)

    def _is_read_twice(self, server: Any, reads: list[str]) -> bool:
        """Return whether reads of a server's node have failed twice."""
        nodes = self.allocations(server)
        return any(reads.count(node) >= 2 for node in nodes)

    def _post_server(self) -> Any:
        return self.api.post_server(
            {
                'server': self._build_server(
                    image_uuid=base.IMAGE_ID,
                    flavor_id=self.flavor['id'],
                    networks='none',
                )
            }
        )

    def test_deploy_that_fails_goes_to_another_node(self) -> None:
        """A failed deploy is repeated on two other nodes, as Nova does."""
        ironic = pool.TheCloud.ironic.fake
        ironic.fails['active'] = 'deploy failed'
        server = self._wait_for_state_change(self._post_server(), 'ERROR')
        ironic.fails.clear()
        deploys = [call[1] for call in ironic.calls if 'active' in call]
        self.assertEqual((3, 3), (len(deploys), len(set(deploys))))
        self.assertEqual({}, self.allocations(server))
        self.until(lambda: self.offered() == 8, 'all nodes offered')
        self.delete(server)

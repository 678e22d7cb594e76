# SPDX-License-Identifier: Apache-2.0
"""What the commands that only show read from a whole Nova."""

from nova import context as nova_context
from nova import objects

from hashring.ring import Host
from ironic_compute.cmd import node_views, nova_hosts
from ironic_compute.cmd.nova_hosts import NovaHost
from ironic_compute.nodes.pins import Pin, set_pin
from ironic_compute.ownership import peer_rpc
from resource_tracker.node import NodeId
from tests.functional import pool

C1, C2, C9 = map(Host, ('c1', 'c2', 'c9'))


class ViewsTest(pool.PoolTestCase):
    """Two hosts, which hold some nodes."""

    def setUp(self) -> None:
        """Stop all that reads Nova meanwhile.

        Threads share one connection to SQLite here.
        """
        super().setUp()
        self.context = nova_context.get_admin_context()
        for host in (C1, C2):
            self.until(
                lambda h=host: not peer_rpc.request_dirty_nodes(h),
                'all is in Placement',
            )
            self.components(host).stop()
            self.manager(host)._recovery_loop.stop()

    def test_hosts_are_read_with_their_service_and_mapping(self) -> None:
        """A disabled host, one that lost its mapping, and an unknown one."""
        well = NovaHost(True, True, is_mapped=True)
        found = nova_hosts.read_hosts([C1, C2])
        self.assertEqual({C1: well, C2: well}, found)
        service = objects.Service.get_by_compute_host(self.context, 'c1')
        service.disabled, service.disabled_reason = True, 'broken'
        service.save()
        objects.HostMapping.get_by_host(self.context, 'c2').destroy()
        found = nova_hosts.read_hosts([C1, C2, C9])
        self.assertEqual(
            {
                C1: NovaHost(True, True, True, 'broken', True),
                C2: NovaHost(True, True, is_mapped=False),
                C9: NovaHost(False, is_mapped=False),
            },
            found,
        )

    def test_nodes_are_read_with_their_holder_and_pin(self) -> None:
        """Each worker agrees with the records."""
        node = NodeId(min(self.held('c1')))
        row = objects.ComputeNode.get_by_nodename(self.context, node)
        pin = Pin(C2, 'ann')
        set_pin(row, pin)
        row.save()
        held = node_views.read_held()
        self.assertEqual(node_views.Held(C1, pin), held[node])
        for host in (C1, C2):
            nodes = {n for n, each in held.items() if each.host == host}
            self.assertEqual(self.held(host), nodes)

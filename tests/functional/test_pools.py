# SPDX-License-Identifier: Apache-2.0
"""Nodes that change their shard: another pool serves them from then on."""

import threading
from collections.abc import Mapping
from typing import Any

from nova import context as nova_context
from nova import objects

from ironic_compute.ironic_api.node_pool import NodePool
from resource_tracker.node import NodeId
from tests.functional import pool


class PoolsTest(pool.PoolTestCase):
    """Two pools of one host each: c1 has shard s1 and all nodes, c2 has s2."""

    NODE_POOLS: Mapping[str, NodePool] = {
        'c1': NodePool(None, 's1'),
        'c2': NodePool(None, 's2'),
    }
    SHARD = 's1'

    def setUp(self) -> None:
        """Boot one server."""
        super().setUp()
        self.context = nova_context.get_admin_context()
        self.server = self.boot(self.flavor)
        self.node = NodeId(self.node_of(self.server))
        self.free = NodeId(min(self.held('c1') - {self.node}))

    def _holder(self, node: NodeId) -> str:
        row = objects.ComputeNode.get_by_nodename(self.context, node)
        return str(row.host)

    def _host(self) -> str:
        shown = self.api.get_server(self.server['id'])
        return str(shown['OS-EXT-SRV-ATTR:host'])

    def _change_shard(self, shard: str | None, *nodes: NodeId) -> None:
        for node in nodes:
            self.ironic.change(node, shard=shard)

    def _wait_for(self, host: str, *nodes: NodeId) -> None:
        """Wait until a host holds nodes, and offers those without servers."""
        self.until(lambda: self.held(host).issuperset(nodes), f'at {host}')
        other = 'c1' if host == 'c2' else 'c2'
        self.assertTrue(self.held(other).isdisjoint(nodes))
        for node in nodes:
            self.assertEqual(host, self._holder(node))

    def _allocated(self) -> dict[str, Any]:
        """Return what the server has; a report changes the generation."""
        found = self.allocations(self.server)
        return {node: found[node]['resources'] for node in found}

    def _provider(self, node: NodeId) -> Any:
        return self.placement.get(
            f'/resource_providers/{node}', version='1.36'
        ).body

    def test_nodes_go_to_the_pool_of_their_new_shard(self) -> None:
        """With a server and without; Placement keeps what it has."""
        before = self._allocated()
        providers = [self._provider(n)['uuid'] for n in (self.node, self.free)]
        self._change_shard('s2', self.node, self.free)
        self._wait_for('c2', self.node, self.free)
        self.assertEqual('c2', self._host())
        self.assertEqual(before, self._allocated())
        self.assertEqual(
            providers,
            [self._provider(n)['uuid'] for n in (self.node, self.free)],
        )
        self.assertEqual({self.node, self.free}, self.held('c2'))
        self.action(self.server, 'reboot', {'type': 'HARD'})
        self._wait_for_state_change(self.server, 'ACTIVE')
        self._change_shard('s1', self.node)
        self._wait_for('c1', self.node)
        self.assertEqual('c1', self._host())
        self.delete(self.server)
        self.until(lambda: self.offered() == self.NODES_COUNT, 'all free')

    def test_server_goes_when_its_reboot_has_ended(self) -> None:
        """Until then its former host serves it; other nodes do not wait."""
        ends = self._hold_up_reboots()
        self.action(self.server, 'reboot', {'type': 'HARD'})
        self._change_shard('s2', self.node, self.free)
        self._wait_for('c2', self.free)
        departures: Any = self.manager('c1').server_moves.departures
        self.until(lambda: self.node in departures._refused, 'refused')
        self.assertEqual(('c1', 'c1'), (self._host(), self._holder(self.node)))
        ends.set()
        self._wait_for('c2', self.node)
        self.assertEqual('c2', self._host())
        self._wait_for_state_change(self.server, 'ACTIVE')

    def _hold_up_reboots(self) -> threading.Event:
        """Let reboots by c1 wait for the event that is returned."""
        driver: Any = self.manager('c1').driver
        reboot, ends = driver.reboot, threading.Event()
        self.addCleanup(ends.set)

        def wait_and_reboot(*args: Any, **kwargs: Any) -> Any:
            ends.wait()
            return reboot(*args, **kwargs)

        driver.reboot = wait_and_reboot
        return ends

    def test_node_of_a_shard_without_a_pool_stays(self) -> None:
        """Nobody asks for it; its server can be used as before."""
        self._change_shard('s3', self.node)
        held = self.components('c1').held_nodes
        self.components('c1').feed.request_read(self.node)
        self.until(
            lambda: (
                (facts := held.facts(self.node)) is not None
                and facts.shard == 's3'
            ),
            'it is read',
        )
        self.action(self.server, 'reboot', {'type': 'HARD'})
        self._wait_for_state_change(self.server, 'ACTIVE')
        self.assertEqual(('c1', 'c1'), (self._host(), self._holder(self.node)))
        self._change_shard('s2', self.node)
        self._wait_for('c2', self.node)

    def test_node_whose_row_was_not_written_follows_to_its_pool(self) -> None:
        """As if the worker had ended between the two writes."""
        rows: Any = self.components('c1').compute_nodes
        write, fails = rows.write_holder, [True]

        def write_holder(*args: Any) -> bool:
            if fails and fails.pop():
                raise TimeoutError
            return bool(write(*args))

        rows.write_holder = write_holder
        self._change_shard('s2', self.node)
        self.until(lambda: self._host() == 'c2', 'the server has moved')
        self.action(self.server, 'reboot', {'type': 'HARD'})
        self._wait_for('c2', self.node)
        self._wait_for_state_change(self.server, 'ACTIVE')
        self.assertFalse(fails)

# SPDX-License-Identifier: Apache-2.0
"""Bugs of Nova's own driver for bare metal, by number, in a whole Nova."""

import contextlib
import uuid
from collections.abc import Iterator
from typing import Any

import fixtures
from nova import objects

from ironic_compute import errors
from ironic_compute.worker.components import Components
from tests.functional import pool


class OldBugsTest(pool.PoolTestCase):
    """What made nodes vanish from Nova or Placement, or never appear."""

    def _all_components(self) -> Iterator[Components]:
        return map(self.components, self.workers)

    def _audit(self) -> None:
        """Have each worker read all nodes, as it does now and then."""
        for components in self._all_components():
            components.feed._try_read(components.feed._audit)

    def _enroll(self, node: str) -> None:
        self.ironic.add(
            uuid=node,
            resource_class='baremetal',
            properties={'cpu_arch': 'x86_64'},
        )

    def test_bug_1839674_row_that_could_not_be_made_is_made(self) -> None:
        """A row that Nova could not create at first is created later."""
        create = objects.ComputeNode.create
        failed: list[str] = []

        def fail_first(row: Any) -> None:
            if len(failed) < 2:
                failed.append(row.uuid)
                raise RuntimeError('the database is away')
            create(row)

        self.useFixture(
            fixtures.MonkeyPatch(
                'nova.objects.compute_node.ComputeNode.create', fail_first
            )
        )
        self._enroll(str(uuid.uuid4()))
        self.until(lambda: self.offered() == 9, 'the new node offered')
        self.assertEqual(2, len(failed))

    def test_bug_1839560_node_that_left_comes_back_each_time(self) -> None:
        """A deleted row of the same uuid does not prevent a new row."""
        node = str(uuid.uuid4())
        for _ in range(2):
            self._enroll(node)
            self.until(lambda: self.offered() == 9, 'the node offered')
            del self.ironic.nodes[node]
            self._audit()
            self.until(lambda: self.offered() == 8, 'the node not offered')
            self.assertIn(node, self.held('c1') | self.held('c2'))
            self._audit()
            self.assertNotIn(node, self.held('c1') | self.held('c2'))

    def test_bug_1750450_1744139_ironic_in_trouble_deletes_nothing(
        self,
    ) -> None:
        """Errors and incomplete lists of Ironic delete no node."""
        ironic = pool.TheCloud.ironic
        for error in (
            errors.IronicUnavailable('502'),
            errors.IronicRefused('403'),
        ):
            with self._answering('list_nodes', error):
                self._audit()
                self._audit()
        shorter = dict(list(self.ironic.nodes.items())[:3])
        with self._answering('list_nodes', tuple(shorter.values())):
            self._audit()
            # Nor if it cannot say then whether the others exist.
            with self._answering('read_node', errors.IronicUnavailable('500')):
                self._audit()
                self._audit()
        self.assertEqual(8, self.offered())
        self.assertEqual(8, len(self.held('c1') | self.held('c2')))
        self.assertEqual(8, len(ironic.list_nodes()))

    @contextlib.contextmanager
    def _answering(self, what: str, answer: Any) -> Iterator[None]:
        """Have Ironic answer so, or fail so."""

        def say(*arguments: Any) -> Any:
            if isinstance(answer, Exception):
                raise answer
            return answer

        ironic = pool.TheCloud.ironic
        setattr(ironic, what, say)
        try:
            yield
        finally:
            delattr(ironic, what)

    def test_bug_1784705_a_server_uses_its_own_node_alone(self) -> None:
        """A server is on one node; its deletion leaves other nodes alone."""
        server = self.boot(self.flavor)
        node = server['OS-EXT-SRV-ATTR:hypervisor_hostname']
        self.until(lambda: self._reserved() == {node}, 'one node reserved')
        self.delete(server)
        self.until(lambda: self._reserved() == set(), 'none reserved')
        self.assertEqual({node: {}}, {node: self._usages(node)})

    def _reserved(self) -> set[str]:
        return {n for n in self.ironic.nodes if self._inventory(n)['reserved']}

    def _inventory(self, node: str) -> Any:
        url = f'/resource_providers/{node}/inventories'
        inventories = self.placement.get(url).body['inventories']
        self.assertEqual(['CUSTOM_BAREMETAL'], list(inventories))
        return inventories['CUSTOM_BAREMETAL']

    def _usages(self, node: str) -> Any:
        url = f'/resource_providers/{node}/usages'
        usages = self.placement.get(url).body['usages']
        return {name: used for name, used in usages.items() if used}

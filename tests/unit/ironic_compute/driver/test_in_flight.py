# SPDX-License-Identifier: Apache-2.0
"""Many deploys at once: waiting for them sends no requests to Ironic."""

import threading
import time

from nova import objects

from tests.fakes.ironic import FakeIronic

from . import fake

COUNT = 100


class _Server(objects.Instance):
    """A server whose record does not change."""

    def refresh(self, *args, **kwargs):
        pass


class _CountingIronic(FakeIronic):
    """Counts the reads of single nodes and the lists."""

    def __init__(self):
        super().__init__()
        self.reads_count = self.lists_count = 0

    def read_node(self, node):
        self.reads_count += 1
        return super().read_node(node)

    def list(self):
        """Return all nodes, as the feed reads them."""
        self.lists_count += 1
        return list(self.nodes.values())


def _uuid(number, kind):
    return f'{kind}{number:07}-0000-4000-8000-000000000000'


def _deploying():
    """Return a driver with a hundred nodes that are being deployed."""
    bench = fake.bench()
    ironic = _CountingIronic()
    for number in range(COUNT):
        ironic.add(
            uuid=_uuid(number, 'a'),
            instance_uuid=_uuid(number, 'b'),
            provision_state='deploying',
        )
    for facts in ironic.nodes.values():
        bench.node_cache.update_facts(facts)
    return fake.on(ironic, bench)


def _waiters(bench):
    """Yield one thread for each deploy, which waits for it."""
    for number in range(COUNT):
        server = fake.server(uuid=_uuid(number, 'b'), node=_uuid(number, 'a'))
        server.__class__ = _Server
        yield threading.Thread(
            target=bench.driver.wait_for_deploy,
            args=[server, server.node],
            daemon=True,
        )


def _feed(bench):
    """Read one list and update the node cache, as the feed does."""
    for facts in bench.ironic.list():
        bench.node_cache.update_facts(facts)


def test_hundred_deploys_need_one_list_for_each_interval():
    """During the wait no node is read; at the end each is read once."""
    bench = _deploying()
    waiters = list(_waiters(bench))
    for waiter in waiters:
        waiter.start()
    for _ in range(4):
        bench.clock.advance(12)
        time.sleep(1.2)  # Each thread checks the clock once a second.
        _feed(bench)
    assert all(waiter.is_alive() for waiter in waiters)
    assert bench.ironic.reads_count == 0
    for node in bench.ironic.nodes:
        bench.ironic.change(node, provision_state='active')
    _feed(bench)
    for waiter in waiters:
        waiter.join(60)
    assert not any(waiter.is_alive() for waiter in waiters)
    assert bench.ironic.reads_count == COUNT
    assert bench.ironic.lists_count == 5

# SPDX-License-Identifier: Apache-2.0
"""Two reads of a node cross: the one that was sent first is the newer one.

The sink is that of a worker, whose node cache orders facts by the times at
which their reads were sent.
"""

import dataclasses
from typing import Any

from hashring.ring import Host
from ironic_compute.feed.node_feed import NodeFeed
from ironic_compute.nodes.changes_read import ChangesRead, fingerprint
from resource_tracker.node import NodeFacts, NodeId
from tests.unit.ironic_compute.feed.test_node_feed import Ironic, conf
from tests.unit.ironic_compute.hosts import Cloud

__all__ = ['conf']

HOST, NODE = Host('c1'), NodeId('n1')


class _Shared:
    """Another worker reads for all."""

    silence_s = 25.0

    def is_reader(self) -> bool:
        return False

    def tell(self, read: ChangesRead) -> None:
        pass

    def tell_all(self, began_s: float, nodes: Any) -> None:
        pass


class _Ironic(Ironic):
    """Says when its answers were requested, as the client does."""

    def __init__(self, cloud: Cloud) -> None:
        super().__init__()
        self._cloud = cloud

    def list_changed_nodes(
        self, updated_at: str | None, limit: int = 100
    ) -> list[NodeFacts]:
        """See IronicReader."""
        found = super().list_changed_nodes(updated_at, limit)
        return [self._stamped(facts) for facts in found]

    def read_node(self, node: str, sent_ago_s: float = 0.0) -> NodeFacts:
        """Read a node, as it is now, by a request that was sent before."""
        return self._stamped(super().read_node(node), sent_ago_s)

    def _stamped(self, facts: NodeFacts, sent_ago_s: float = 0.0) -> NodeFacts:
        sent_s = self._cloud.clock.now_s() - sent_ago_s
        return dataclasses.replace(facts, read_at_s=sent_s)

    def change(self, second: int, state: str) -> None:
        """Change the provision state of the node."""
        stamp = f'1970-01-01T00:01:{second}+00:00'
        self.put(NODE, updated_at=stamp, provision_state=state)


class _Worker:
    """A feed and its sink; the node is held and was last seen in cleaning."""

    def __init__(self, conf: Any) -> None:
        self.cloud = Cloud([NODE])
        self.held_nodes = self.cloud.add('c1').held_nodes
        self.cloud.show('c1')
        self.cloud.clock.advance(10.0)
        self.cloud.settle()
        self.ironic = _Ironic(self.cloud)
        self.ironic.change(50, 'cleaning')
        self.feed = NodeFeed(
            conf,
            self.ironic,  # type: ignore[arg-type]
            self.cloud.hosts[HOST].node_changes,
            self.cloud.clock,
            host=HOST,
            shared=_Shared(),
        )
        self.feed._try_delta()
        self.cloud.clock.advance(10.0)

    def hear(self) -> None:
        """Hear what the reader has read just now, and read what waits."""
        facts, since = self.ironic.nodes_by_uuid[NODE], self.feed._watermark
        told = {NODE: fingerprint(facts)}
        self.feed.accept_changes(
            ChangesRead(since.since() or '', since.since() or '', told)
        )
        self.feed._try_delta()
        self.feed._read_queue._read_waiting()

    @property
    def state(self) -> str | None:
        """The provision state that this worker knows."""
        facts = self.held_nodes.facts(NODE)
        assert facts is not None
        return facts.provision_state


def test_read_that_ironic_carries_out_late_is_not_lost(conf: Any) -> None:
    """Its facts count as older than those of a read that was sent later.

    The next list of changed nodes shows what the feed has delivered already.
    """
    worker = _Worker(conf)
    ironic, feed = worker.ironic, worker.feed
    feed.accept_read(ironic.read_node(NODE, sent_ago_s=1.0))
    ironic.change(53, 'available')
    feed.accept_read(ironic.read_node(NODE, sent_ago_s=2.0))
    assert worker.state == 'cleaning'
    ironic.reads.clear()
    worker.hear()
    worker.hear()
    assert worker.state == 'available'
    assert ironic.reads == [NODE]


def test_told_node_of_another_host_is_not_read(conf: Any) -> None:
    """Its facts are not stored, so none are in their place."""
    worker = _Worker(conf)
    worker.held_nodes.drop_node(NODE)
    worker.ironic.reads.clear()
    worker.hear()
    assert worker.ironic.reads == []

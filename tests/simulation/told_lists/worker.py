# SPDX-License-Identifier: Apache-2.0
"""One worker of a walk; each of its threads is a step that a walk takes.

Real are the feed, PoolReads, and all of ``hosts.One``. No thread begins its
step again before it has ended.
"""

import dataclasses
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from oslo_config import cfg

from hashring.ring import Host
from ironic_compute import opts
from ironic_compute.feed.node_feed import NodeFeed
from ironic_compute.feed.shared_reads import PoolReads
from resource_tracker.node import NodeFacts, NodeId
from resource_tracker.provider import Situation
from tests.simulation.told_lists.answers import Answers
from tests.simulation.told_lists.services import Ironic, Wire
from tests.simulation.told_lists.world import LostRequest, World
from tests.unit.ironic_compute import hosts

AUDIT_S = 60.0
DELTA_S = 5.0


@dataclasses.dataclass(frozen=True)
class Parts(hosts.Parts):
    """The classes that a worker is made of; a defect replaces one."""

    feed: Callable[..., NodeFeed] = NodeFeed


class _Loop:
    """A thread that does nothing by itself."""

    def __init__(self, *_: object) -> None:
        pass

    def start(self) -> None:
        """See Loop."""

    wake = stop = start


class _Owner(hosts.One):
    """What a worker holds, and its Placement; checks what is offered."""

    def __init__(self, worker: 'Worker', client: Any, parts: Parts) -> None:
        self._worker = worker
        self._answers = worker.answers
        super().__init__(worker.world.cloud, worker.host, client, parts)

    def _request_audit(self) -> None:
        self._worker.feed.request_audit()

    def _notify_given(self, host: Host, nodes: list[NodeId]) -> None:
        self._worker.world.post(host, lambda to: to.accept_given(nodes))

    def submit(self, facts: NodeFacts, situation: Situation) -> None:
        if situation.confirmed:
            self._answers.check_offer(facts.uuid)
        super().submit(facts, situation)

    def forget_node(self, node: NodeId) -> None:
        self._answers.note_dropped(node)

    def delete_provider(self, node: NodeId) -> bool:
        self._answers.check_removal(node)
        return super().delete_provider(node)


class Worker:
    """The worker of one host, from its start to its next start."""

    def __init__(self, world: World, host: Host, parts: Parts) -> None:
        self.world, self.host = world, host
        self._running: set[str] = set()
        self.answers = Answers(world, host, self._is_held)
        self.ironic = Ironic(world, host, self.answers)
        asked = Ironic(world, host, self.answers)
        self.owner = owner = _Owner(self, asked, parts)
        world.cloud.hosts[host] = owner
        owner.services.read_records()
        wire: Any = Wire(world, owner.rows._wire, host)
        owner.rows._wire = owner.services._wire = wire
        self._pool_reads = self._new_pool_reads()
        self.feed = self._new_feed(parts)

    def _new_pool_reads(self) -> PoolReads:
        world, pool = self.world, self.owner.pool
        return PoolReads(
            self.host,
            lambda: pool.ring_status().ring.hosts,
            lambda: pool.known,
            lambda host, read: world.post(
                host, lambda to: to.feed.accept_changes(read)
            ),
            lambda host, part: world.post_list(
                host, lambda to: to.feed.accept_listed(part)
            ),
            DELTA_S,
            _Loop,
        )

    def _new_feed(self, parts: Parts) -> NodeFeed:
        conf = cfg.ConfigOpts()
        opts.register_opts(conf)
        conf([])
        conf.set_override('delta_interval_s', DELTA_S, 'ironic_compute')
        conf.set_override('audit_interval_s', AUDIT_S, 'ironic_compute')
        return parts.feed(
            conf,
            self.ironic,
            self.owner.node_changes,
            self.world.clock,
            self.host,
            _Loop,
            shared=self._pool_reads,
        )

    def accept_given(self, nodes: Sequence[NodeId]) -> None:
        """Hear that another worker has given nodes to this host."""
        self.owner.unheld.mark_given(nodes)
        self._request_reads(nodes)

    def _is_held(self, node: NodeId) -> bool:
        return self.owner.held_nodes.row(node) is not None

    # The threads

    def run_round(self) -> None:
        """Place new nodes, and push nodes to other hosts."""
        self._run(self.owner.rebalancer.run_round)

    def read_delta(self) -> None:
        """Read a delta list, or use a told one."""
        self._run(self.feed._try_delta)

    def audit(self) -> None:
        """Read all nodes, or use a told list, if it is time."""
        self._run(self.feed._try_audit)

    def read_nodes(self) -> None:
        """Read the nodes that wait to be read."""
        self._run(self.feed._read_queue._read_waiting)

    def tell(self) -> None:
        """Tell the other workers what was read."""
        self._run(self._pool_reads._send_untold)

    def remove(self) -> None:
        """Remove the nodes that Ironic has deleted."""
        self._run(self.owner.removal.run_round)

    def read_services(self) -> None:
        """Read Nova's Service records."""
        self._run(self.owner.services.read_records)

    def _run(self, act: Callable[[], object]) -> None:
        """Run a step of a thread, unless the thread is in one."""
        name = act.__name__
        if name in self._running:
            return
        self._running.add(name)
        try:
            act()
        except LostRequest:
            pass  # The thread logs it and goes on at its next turn.
        finally:
            self._running.discard(name)
        wanted, self.owner.reads_requested[:] = (
            [*self.owner.reads_requested],
            [],
        )
        self._request_reads(wanted)

    def _request_reads(self, nodes: Iterable[NodeId]) -> None:
        for node in nodes:
            self.feed.request_read(node)

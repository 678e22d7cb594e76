# SPDX-License-Identifier: Apache-2.0
"""Two pools that share Ironic and Nova, and nodes that change their pool.

Every second machine is of another conductor group, with a lock service of its
own. An operator gives nodes another group, with servers on them and without,
during everything else. In the end each node must be held by a host of its own
group, if a daemon of that group lives.
"""

from typing import Any

from hashring.ring import Host
from ironic_compute.ironic_api.node_pool import NodePool
from ironic_compute.ownership.departures import Asker
from ironic_compute.ownership.movability import Found
from ironic_compute.pool.foreign_hosts import Answer
from resource_tracker.node import NodeId
from tests.simulation.nova import ServerRecord
from tests.simulation.wire import SentRequest

GROUPS = ('', 'rack-2')
CHANGES_PER_S = (0.05, 0.3)
# How likely an operator changes a node back, and after how many seconds.
REGRETS_CHANCE = 0.4
REGRETS_S = (0.5, 6.0)
# How likely a request for nodes is lost, or its answer is.
LOST_CHANCE = 0.1


class Pools:
    """The pools of one world; most worlds have one."""

    def __init__(self, world: Any) -> None:
        self._world = world
        self.is_on: bool = world.environment.has_pools
        self.moved_count = 0
        # Server -> the group of its node, as read by whoever moves it.
        self._read: dict[str, str] = {}
        if self.is_on:
            rate = world.rng.choice(CHANGES_PER_S)
            world.faults.repeat('regroup', rate, self._change_any)

    def node_pool(self, machine: Any) -> NodePool:
        """Return the nodes of a machine's pool in Ironic."""
        return NodePool(machine.group) if self.is_on else NodePool()

    # Operators

    def begin_calm(self) -> None:
        """Change some nodes for the last time."""
        for _ in range(2 if self.is_on else 0):
            self._world.kernel.later(
                self._world.rng.uniform(0.0, 20.0), self._change_any
            )

    def _change_any(self) -> None:
        ironic = self._world.ironic
        used = [n for n, f in ironic.nodes.items() if f.instance_uuid]
        nodes = (
            used if used and self._world.rng.random() < 0.7 else ironic.nodes
        )
        if nodes:
            node = self._world.rng.choice(sorted(nodes))
            self._change(node)
            if self._world.rng.random() < REGRETS_CHANCE:
                delay_s = self._world.rng.uniform(*REGRETS_S)
                self._world.kernel.later(delay_s, lambda: self._change(node))

    def _change(self, node: NodeId) -> None:
        """Give a node the other group."""
        facts = self._world.ironic.nodes.get(node)
        if facts is None:
            return
        group = GROUPS[facts.conductor_group == GROUPS[0]]
        self._world.log(f'{node} is given group {group!r}')
        self._world.ironic.change(node, 'update.end', conductor_group=group)

    # RPC

    def request_nodes(
        self, worker: Any, holder: Host, nodes: list[NodeId]
    ) -> Answer:
        """``peer_rpc.request_nodes``."""
        if not self.is_on:
            return Answer.NONE
        self._world.kernel.sleep(self._world.rng.uniform(0.01, 0.1))
        if self._world.rng.random() < LOST_CHANCE:
            return Answer.NONE
        for other in self._world.workers():
            if other.host == holder and other.may_act and not other.draining:
                asker = Asker(worker.host, worker.client.pool)
                other.departures.request_nodes(nodes, asker)
                is_lost = self._world.rng.random() < LOST_CHANCE
                return Answer.NONE if is_lost else Answer.RECEIVED
        return Answer.NONE

    # Checks

    def group_of(self, host: str | None) -> str:
        """Return the conductor group of a host."""
        for machine in self._world.machines:
            if machine.home == host:
                return str(machine.group)
        return GROUPS[0]

    def note_read(self, found: Found) -> None:
        """Note which node a worker has read, just before it moves a server."""
        self._read[found.instance.uuid] = found.facts.conductor_group

    def check_move(
        self, request: SentRequest, former: ServerRecord, record: ServerRecord
    ) -> None:
        """Check that a server leaves its pool only together with its node."""
        source, target = map(self.group_of, (former.host, record.host))
        read = self._read.get(record.uuid)
        self.moved_count += source != target
        if self.is_on and source != target != read:
            self._world.fail(
                f'{request.sender} moves {record.uuid} into group {target!r}, '
                f'and has read that its node is in {read!r}'
            )

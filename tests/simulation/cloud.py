# SPDX-License-Identifier: Apache-2.0
"""The whole world: agents and workers, Nova, Ironic, Placement, users.

What must hold is that of the protocol. A request that outlived its sender's
right to act, a *late write*, may break it for a while: such breaks are
counted, and must be healed when the calm ends.
"""

from collections.abc import Iterator
from typing import Any

from nova import exception as nova_exception
from nova.compute import vm_states

from hashring.ring import Host, Ring
from ironic_compute import errors
from ironic_compute.manager.forwarding import HOPS_MAX
from resource_tracker.node import NodeId
from tests.simulation.compute import PACE
from tests.simulation.ironic import Ironic
from tests.simulation.load import Load
from tests.simulation.nova import (
    Message,
    NodeRecord,
    Nova,
    ServerRecord,
    ServiceRecord,
)
from tests.simulation.placement import Placement
from tests.simulation.wire import Letter
from tests.simulation.world import World

# Clocks differ by a per cent.
SLACK = 0.97
# An offer is sent so soon after it was decided.
ALONE_S = 10.0


class Cloud(World):
    """One seed's life of a whole cloud."""

    # What a service answers instead of doing what it was asked to.
    ANSWERS = (errors.IronicComputeError, nova_exception.NovaException)

    def prepare(self) -> None:
        super().prepare()
        self.breaks_count = 0  # By late writes.
        self.nova = Nova(self)
        self.ironic = Ironic(self)
        self.placement = Placement(self)
        self._robbed: dict[str, Host | None] = {}
        self._lagging: dict[tuple[Host, str], tuple[Host, float]] = {}
        self.load = Load(self, self.rng.randint(3, 6))

    # For workers

    def create_service(self, host: Host) -> ServiceRecord:
        record = ServiceRecord(self.nova.new_id(), host)
        self.nova.services[host] = record
        self.kernel.later(
            self.rng.choice((0.0, 5.0, 20.0)),
            lambda: setattr(record, 'mapped', True),
        )
        return record

    def read_holder(self, reader: Host, node: NodeId) -> Host | None:
        """Whose a row is, read from a replica that may lag behind."""
        row = self.nova.live_row(node)
        if row is None:
            return None
        if row.former is not None and self.faults.strikes('lag'):
            former, since_s = row.former
            until_s = since_s + self.rng.choice((2.0, 20.0))
            self._lagging.setdefault((reader, node), (former, until_s))
        former, until_s = self._lagging.get((reader, node), (row.host, 0.0))
        return former if self.kernel.now_s < until_s else row.host

    def forward(self, host: Host, message: Message) -> None:
        self.tell(f'{message.server} goes on to {host}')
        if message.hops > HOPS_MAX:
            self.fail(f'{message.server} was sent on {message.hops} times')
        self.nova.cast(host, message)

    # What must hold

    def check_holder(
        self, letter: Letter, record: NodeRecord, host: Host
    ) -> None:
        """Invariants 2 and 3, when a row changes its host.

        Who lost a node to a late write cannot know before it writes next,
        nor can who creates a row that a late write has just created.
        """
        node, former = record.node, record.host
        if letter.late:
            self.breaks_count += 1
            if letter.host != former:
                self._robbed[node] = former
            return
        came_late = self.kernel.now_s - record.came_late_s < PACE.confirm_s
        holders = (former, self._robbed.pop(node, former))
        is_known = former in self.nova.services and not came_late
        if letter.host not in holders and is_known:
            self.fail(f'{letter.sender} takes {node} from {former}')
        facts = self.ironic.nodes.get(NodeId(node))
        tenant = None if facts is None else facts.instance_uuid
        for server in self._on(node):
            # One that failed here long ago does not pin it.
            if server.host == former and tenant in (None, server.uuid):
                self.fail(f'{letter.sender} moves {node}, pinned, to {host}')

    def _on(self, node: str) -> Iterator[ServerRecord]:
        for server in self.nova.servers.values():
            if server.node == node and server.host and not server.deleted:
                yield server

    def check_offer(self, letter: Letter, node: NodeId) -> None:
        """A created row is not used before it was read again."""
        row = self.nova.live_row(node)
        if letter.late or row is None or row.created_s is None:
            return
        now_s = self.kernel.now_s
        age_s, alone_s_ago = now_s - row.created_s, now_s - letter.alone_s
        if alone_s_ago < ALONE_S or row.host != letter.host:
            return
        if age_s < PACE.confirm_s * SLACK:
            self.fail(f'{letter.sender} offers {node}, {age_s:.1f} s old')

    def check_creation(self, letter: Letter, record: NodeRecord) -> None:
        """What the wait for it is for: who is offered a node keeps it."""
        in_time = letter.way_s < PACE.confirm_s * SLACK
        if in_time and self.placement.offered.get(NodeId(record.node)):
            self.fail(f'{letter.sender} creates {record.node}, long in use')

    def check_removal(self, letter: Letter, node: str) -> None:
        """Invariant 4: only what Ironic has not any more is removed."""
        if node in self.ironic.nodes:
            self.fail(f'{letter.sender} removes {node}, which exists')
        if not letter.late and any(self._on(node)):
            self.fail(f'{letter.sender} removes {node} with a server')

    def check_server(self, server: ServerRecord) -> None:
        """Who has had a server keeps it until it is deleted."""
        if server.was_active and not server.delete_asked:
            if server.vm_state != vm_states.ACTIVE:
                self.fail(f'{server.uuid} was active, is {server.vm_state}')
            if server.host is None:
                self.fail(f'{server.uuid} was active, has lost its host')

    def check_undeploy(self, letter: Letter, uuid: str) -> None:
        """No machine is taken from a user who has not given it back."""
        server = self.nova.servers[uuid]
        if server.was_active and not server.delete_asked:
            self.fail(f'{letter.sender} undeploys {uuid}, which is in use')

    # The calm

    def heal(self) -> None:
        super().heal()
        for record in self.nova.services.values():
            record.disabled = False
        self.load.end_the_storm()
        self.load.clear_away()

    def amiss(self) -> str | None:
        return super().amiss() or next(self._wrongs(), None)

    def _wrongs(self) -> Iterator[str]:
        yield from self._wrong_nodes()
        yield from self._wrong_servers()
        for node, row in self.nova.rows.items():
            if not row.deleted and NodeId(node) not in self.ironic.nodes:
                yield f'{node} is gone, its row is not'
        for node in self.placement.offered:
            if node not in self.ironic.nodes:
                yield f'{node} is gone, its provider is not'
        for uuid, node in self.placement.allocations.items():
            server = self.nova.servers[uuid]
            if server.deleted or server.node != node:
                yield f'{uuid} is not on {node}, its allocation is'

    def _wrong_nodes(self) -> Iterator[str]:
        known = self.known()
        ring = Ring(
            host
            for host, service in self.nova.services.items()
            if service.mapped and host in known
        )
        for node, facts in self.ironic.nodes.items():
            row = self.nova.live_row(node)
            if row is None:
                yield f'{node} has no row'
            elif row.host not in known:
                continue  # Another pool's, to all who live.
            elif facts.instance_uuid is None:
                if facts.provision_state != 'available':
                    yield f'{node} is {facts.provision_state}'
                elif not self.placement.offered.get(node):
                    yield f'{node} is free and not offered'
                elif row.host != ring.target(node):
                    yield f'{node} is held by {row.host}'
            else:
                yield from self._wrong_pinned(row, facts)

    def _wrong_pinned(self, row: NodeRecord, facts: Any) -> Iterator[str]:
        server = self.nova.servers[facts.instance_uuid]
        if server.deleted:
            yield f'{row.node} has {server.uuid}, which is deleted'
        elif server.node != row.node:
            yield f'{row.node} has {server.uuid}, which is not on it'
        elif server.host != row.host:
            yield f'{row.node} of {row.host} has {server.uuid} of another'
        elif self.placement.offered.get(facts.uuid):
            yield f'{row.node} has {server.uuid} and is offered'

    def _wrong_servers(self) -> Iterator[str]:
        for server in self.nova.servers.values():
            if server.deleted:
                continue
            # A late write may leave a task on a server that has failed.
            lost = server.host is None and server.vm_state == vm_states.ERROR
            if server.task_state is not None and not lost:
                yield f'{server.uuid} is {server.task_state} for ever'
            if server.vm_state not in (vm_states.ACTIVE, vm_states.ERROR):
                yield f'{server.uuid} is {server.vm_state} for ever'
            if server.vm_state == vm_states.ACTIVE:
                facts = self.ironic.nodes.get(NodeId(server.node or ''))
                if facts is None or facts.instance_uuid != server.uuid:
                    yield f'{server.uuid} is active and has no node'

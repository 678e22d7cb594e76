# SPDX-License-Identifier: Apache-2.0
"""Simulated users and operators: boot, delete, disable, evict."""

from typing import Any

from nova.compute import task_states, vm_states

from hashring.ring import Host
from resource_tracker.node import NodeId
from tests.simulation.broker import Message
from tests.simulation.nova import ServerRecord

# How long a node is in maintenance during the calm.
TENDED_S = 9.0
# When that begins, in seconds of the calm.
TENDED_AFTER_S = (12.0, 30.0)


class Load:
    """Simulated nova-api, scheduler, conductor and operator."""

    def __init__(self, world: Any, nodes_count: int) -> None:
        self._world = world
        self._nodes_count = 0
        for _ in range(nodes_count):
            self._enroll()
        plan = world.faults.plan
        plan('boot', self._boot)
        plan('delete', self._delete)
        plan('disable', self._disable)
        plan('half evict', self._half_evict)
        plan('node leaves', self._node_leaves)
        plan('node comes', self._enroll)
        plan('node denied', self._deny)
        plan('maintenance', self._switch_maintenance)

    def _enroll(self) -> None:
        self._nodes_count += 1
        self._world.ironic.enroll(NodeId(f'n{self._nodes_count}'))

    # Users

    def _boot(self) -> None:
        """Schedule a build to an offered node and cast it."""
        nodes = self._world.scheduler.find_nodes()
        if nodes and self._world.tasks.leaves_nodes(len(nodes)):
            host = self._world.nova.rows[nodes[0]].host
            self.boot(nodes[0], host)
            if self._world.faults.occurs('node given twice'):
                self._boot_on(nodes[0], host)

    def boot(self, node: NodeId, host: Host) -> None:
        """Cast a build to the host that the scheduler chose, if it fits."""
        if self._world.scheduler.fits(node, host):
            self._boot_on(node, host)

    def _boot_on(self, node: NodeId, host: Host) -> None:
        """Boot a server; Placement may have given its node to another one."""
        world, now_s = self._world, self._world.kernel.now_s
        server = ServerRecord(
            f's{len(world.nova.servers) + 1}', now_s, updated_at=now_s
        )
        world.nova.servers[server.uuid] = server
        server.has_root_volume = world.tasks.draw_root_volume()
        world.log(f'boot {server.uuid} on {node} of {host}')
        world.scheduler.boot(server, node, host)

    def _delete(self) -> None:
        world = self._world
        if world.moves.keeps_server():
            return
        servers = [
            s
            for s in world.nova.servers.values()
            if not s.deleted and not s.delete_asked
        ]
        if servers and world.tasks.leaves_servers():
            self.ask_delete(world.rng.choice(servers))

    def ask_delete(self, server: ServerRecord) -> None:
        """Delete as nova-api does: by itself if the host is not up."""
        world = self._world
        world.log(f'delete {server.uuid} of {server.host}')
        server.delete_asked = True
        if server.host is not None and world.nova.is_up(server.host):
            server.task_state = task_states.DELETING
            server.updated_at = world.kernel.now_s
            message = Message('delete', server.uuid)
            world.nova.broker.cast(server.host, message)
            return
        self._delete_alone(server)

    def end_the_storm(self) -> None:
        """Make three last requests that are not completed by any worker.

        A delete message is lost, an evict is interrupted, and nova-api
        deletes a server alone because it considers the host down.
        """
        idle = [
            s
            for s in self._world.nova.servers.values()
            if s.vm_state == vm_states.ACTIVE
            and s.task_state is None
            and not s.deleted
        ]
        acts = (self._lose_delete, self._evict_half, self._delete_alone)
        for act, server in zip(acts, idle, strict=False):
            act(server)
        self.end_maintenance()
        if self._world.rng.random() < 0.5:
            delay_s = self._world.rng.uniform(*TENDED_AFTER_S)
            self._world.kernel.later(delay_s, self.test_feed)

    def _lose_delete(self, server: ServerRecord) -> None:
        self._world.log(f'delete {server.uuid}, lost on its way')
        server.delete_asked = True
        server.task_state = task_states.DELETING

    def _delete_alone(self, server: ServerRecord) -> None:
        self._world.log(f'nova-api deletes {server.uuid} alone')
        server.delete_asked = True
        self._world.placement.allocations.pop(server.uuid, None)
        self._world.nova.destroy_server(server.uuid)

    def clear_away(self) -> None:
        """Delete failed servers during the calm until they are gone."""
        for server in self._world.nova.servers.values():
            failed = server.vm_state == vm_states.ERROR
            if failed and server.task_state is None and not server.deleted:
                self.ask_delete(server)
        self._world.kernel.later(20.0, self.clear_away)

    # Operators

    def _disable(self) -> None:
        world = self._world
        services = sorted(world.nova.services.values(), key=lambda s: s.id)
        if services:
            record = world.rng.choice(services)
            record.disabled = not record.disabled
            world.log(f'{record.host} disabled: {record.disabled}')

    def _half_evict(self) -> None:
        """Interrupt an evict after its first write."""
        world = self._world
        if world.environment.has_moves:
            return  # There the real ones are interrupted.
        servers = [
            s
            for s in world.nova.servers.values()
            if s.vm_state == vm_states.ACTIVE
            and s.task_state is None
            and not s.deleted
        ]
        if servers:
            self._evict_half(world.rng.choice(servers))

    def _evict_half(self, server: ServerRecord) -> None:
        world = self._world
        # Nobody evicts a server to a host that is being dismantled.
        known = world.known()
        hosts: list[Host] = sorted(
            host
            for host, service in world.nova.services.items()
            if host in known and not service.disabled
        )
        if not hosts or world.moves.is_at_work_on(server.uuid):
            return
        row = world.nova.live_row(server.node)
        if row is not None and row.host != server.host:
            return  # Only the holder evicts, and it follows this server first.
        server.host = world.rng.choice(hosts)
        world.moves.forget_pin(server.node)
        if server.vm_state == vm_states.BUILDING:
            # Its build goes on at the former host when the message comes
            # again, and is ended by the new host if that finds it first.
            world.excuse(server.uuid, 'evicted during its build')
        elif server.task_state is not None:
            # Real hosts keep a server that has a task.
            world.tasks.excuse(server.uuid, 'evicted during its task')
        world.log(f'half evict of {server.uuid} to {server.host}')

    def evict_before_resume(
        self, worker: Any, servers: list[ServerRecord]
    ) -> None:
        """Evict a server that a worker has just listed to resume its task."""
        idle = [
            s
            for s in servers
            # A server that is unshelved has no host yet.
            if s.host and not worker.live_tasks.busy(s.uuid)
        ]
        if self._world.environment.has_moves:
            return
        if idle and self._world.faults.occurs('evict meets resume'):
            self._evict_half(self._world.rng.choice(idle))

    def freeze_before_create(self, worker: Any) -> None:
        """Let another host create the row that a worker is about to create.

        The host leaves the ring while its worker is frozen at the gate. Its
        agent must have another worker, which reads that from Nova.
        """
        faults = self._world.faults
        record = self._world.nova.services.get(worker.host)
        is_alone = len(worker.machine.workers.live) == 1
        if record is None or is_alone:
            return
        if faults.occurs('freeze before create'):
            self._world.log(f'{worker.host} disabled before a creation')
            record.disabled = True
            worker.sticks_s = faults.choose(30.0, 45.0)

    def _idle_nodes(self) -> list[NodeId]:
        """Return the nodes without a server and without an allocation."""
        return [
            node
            for node, facts in self._world.ironic.nodes.items()
            if facts.instance_uuid is None
            and facts.provision_state == 'available'
            and not self._world.placement.consumers(node)
        ]

    def _node_leaves(self) -> None:
        nodes = self._idle_nodes()
        if nodes:
            node = self._world.rng.choice(nodes)
            self._world.log(f'{node} leaves Ironic')
            self._world.ironic.remove(node)

    def _deny(self) -> None:
        nodes = self._idle_nodes()
        if nodes:
            self._world.ironic.deny(self._world.rng.choice(nodes))

    def _switch_maintenance(self) -> None:
        """Begin or end the maintenance of a node."""
        ironic = self._world.ironic
        nodes = [n for n, f in ironic.nodes.items() if f.maintenance]
        is_end = bool(nodes) and self._world.rng.random() < 0.7
        nodes = nodes if is_end else self._idle_nodes()
        if nodes:
            node = self._world.rng.choice(nodes)
            self.set_maintenance(node, is_on=not is_end)

    def set_maintenance(self, node: NodeId, *, is_on: bool) -> None:
        """Begin or end the maintenance of a node."""
        self._world.log(f'{node} in maintenance: {is_on}')
        self._world.ironic.change(
            node, 'maintenance_set.end', maintenance=is_on
        )

    def end_maintenance(self) -> None:
        """End the maintenance of all nodes."""
        for node, facts in list(self._world.ironic.nodes.items()):
            if facts.maintenance:
                self.set_maintenance(node, is_on=False)

    def test_feed(self) -> None:
        """Change a free node during the calm; see ``feed_checks``."""
        nodes = self._idle_nodes()
        if not nodes:
            return
        node = self._world.rng.choice(nodes)
        if self._world.rng.random() < 0.3:
            self._world.ironic.deny(node)
            return
        self.set_maintenance(node, is_on=True)
        self._world.kernel.later(TENDED_S, self.end_maintenance)

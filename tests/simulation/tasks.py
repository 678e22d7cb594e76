# SPDX-License-Identifier: Apache-2.0
"""Simulated users who reboot, stop, start, rebuild, shelve and unshelve.

Each request goes the way of nova-api: it is refused if another task of the
server is at work, or in a wrong VM state; the task state is saved, then the
action is recorded, and then the message is sent to the server's host. The
message of an unshelve is sent by nova-conductor to the host that the scheduler
has chosen.
"""

from typing import Any

from nova.compute import task_states, vm_states

from resource_tracker.node import NodeId
from tests.simulation.broker import Message
from tests.simulation.nova import LATE_WRITE, ServerRecord
from tests.simulation.requests import TaskRequest

# How often users request a task, in seconds; each world has one of them.
RATES_PER_S = (0.5, 1.0, 3.0)
# Fault of a task -> its chances; each world has one of them.
CHANCES = {
    'power fails': (0.0, 0.0, 0.1),
    'soft power refused': (0.0, 0.2, 1.0),
    'rebuild refused': (0.0, 0.0, 0.2),
    'rebuild fails': (0.0, 0.0, 0.2),
}
# Messages that have more than the server's record has: if one is lost, nobody
# can carry the request out.
DETAILED = frozenset({'rebuild', 'unshelve'})
_ON = (vm_states.ACTIVE, vm_states.STOPPED)
# Action -> the VM states in which nova-api accepts it, its task state, and the
# VM state that it asks for; None: the present one.
_ACTIONS: dict[str, tuple[tuple[str, ...], str, str | None]] = {
    'reboot SOFT': (
        (vm_states.ACTIVE,),
        task_states.REBOOTING,
        vm_states.ACTIVE,
    ),
    'reboot HARD': (_ON, task_states.REBOOTING_HARD, vm_states.ACTIVE),
    'stop': (
        (vm_states.ACTIVE,),
        task_states.POWERING_OFF,
        vm_states.STOPPED,
    ),
    'start': (
        (vm_states.STOPPED,),
        task_states.POWERING_ON,
        vm_states.ACTIVE,
    ),
    'rebuild': (_ON, task_states.REBUILDING, None),
    'shelve': (_ON, task_states.SHELVING, vm_states.SHELVED_OFFLOADED),
    'unshelve': (
        (vm_states.SHELVED_OFFLOADED,),
        task_states.UNSHELVING,
        vm_states.ACTIVE,
    ),
}


class TaskUsers:
    """The users of one world, and nova-api and nova-conductor for them."""

    REFUSED = 'Ironic refused the rebuild'
    NO_NODE = 'no node is free'
    WITHDRAWN = 'the node was withdrawn just now'
    DELETED_ALONE = 'a worker unshelves a deleted server on its node'
    UNENDED = 'Nova has not ended the former request'
    SUPERSEDED = 'a hard reboot was requested meanwhile'

    def __init__(self, world: Any) -> None:
        self._world = world
        self.is_on = world.environment.has_tasks
        self._has_shelving = world.environment.has_shelving
        self._actions = list(_ACTIONS)
        if self._has_shelving:
            self._actions = ['shelve', 'unshelve']
        self._chances = {
            kind: world.rng.choice(some) for kind, some in CHANCES.items()
        }
        self._requests_count = 0
        if self.is_on:
            rate = world.rng.choice(RATES_PER_S)
            world.faults.repeat('request', rate, self._request)

    # Chance

    def occurs(self, kind: str) -> bool:
        """Return whether this fault of a task occurs now."""
        if self._world.faults.calm or not self.is_on:
            return False
        return bool(self._world.rng.random() < self._chances[kind])

    def draw_root_volume(self) -> bool:
        """Return whether the root disk of a new server is a volume."""
        is_volume = self.is_on and self._world.rng.random() < 0.5
        return is_volume or self._has_shelving

    # For the parts of the world

    def leaves_servers(self) -> bool:
        """Return whether a server may be deleted now.

        Most of them live longer in worlds with tasks.
        """
        return not self.is_on or self._world.rng.random() < 0.25

    def leaves_nodes(self, count: int) -> bool:
        """Return whether one of so many free nodes may be used for a boot.

        Some are left for unshelves in worlds with tasks.
        """
        return not self.is_on or count > 2

    def excuse(self, server: str | None, why: str) -> None:
        """Note a reason for which the last request for a server may fail."""
        if server:
            self._world.nova.servers[server].excuse_task(why)

    def note_reboot(self, server: str | None) -> None:
        """Note that the machine of a server was rebooted."""
        record = self._world.nova.servers.get(server)
        if record is not None and record.requests:
            record.requests[-1].reboots_count += 1

    # Users

    def _request(self) -> None:
        """Request a task that a server's VM state allows."""
        action = self._world.rng.choice(self._actions)
        found = [
            server
            for server in self._world.nova.servers.values()
            if _is_accepted(server, action)
        ]
        if found:
            server = self._world.rng.choice(found)
            # A hard reboot of a server that is rebooted already is rare.
            if server.task_state is None or self._world.rng.random() < 0.2:
                self._accept(server, action)

    def _accept(self, server: ServerRecord, action: str) -> None:
        _, task_state, wanted = _ACTIONS[action]
        self._requests_count += 1
        request = TaskRequest(
            f'req-{self._requests_count}',
            action,
            server.vm_state,
            wanted or server.vm_state,
            self._world.kernel.now_s,
        )
        if server.task_state is not None:
            server.excuse_task(self.SUPERSEDED)
        if any(self._may_disturb(each) for each in server.requests):
            request.excuses.add(self.UNENDED)
        self._world.log(f'{action} {server.uuid} of {server.host}')
        message = self._message(server, request)
        server.task_state = task_state
        server.updated_at = self._world.kernel.now_s
        server.requests.append(request)
        if action == 'unshelve':
            delay_s = self._world.faults.choose(0.1, 1.0)
            self._world.kernel.later(
                delay_s, lambda: self._schedule(server, request)
            )
            return
        self._world.nova.broker.cast(server.host, message)

    def _may_disturb(self, former: TaskRequest) -> bool:
        """Return whether Nova may change the task of the next request."""
        return former.is_at_work and bool(former.excuses - {self.SUPERSEDED})

    def _message(self, server: ServerRecord, request: TaskRequest) -> Message:
        properties = {}
        if request.action == 'rebuild':
            request.image = f'image-{request.id}'
            request.former_image = server.image_ref
            properties = {
                'image': request.image,
                'former': server.image_ref,
                'metadata': server.system_metadata,
            }
            server.image_ref = request.image
        return Message(
            request.action,
            server.uuid,
            properties=properties,
            request=request.id,
        )

    def _schedule(self, server: ServerRecord, request: TaskRequest) -> None:
        """``unshelve_instance`` of nova-conductor."""
        world = self._world
        nodes = world.scheduler.find_nodes()
        if not nodes:
            request.excuses.add(self.NO_NODE)
            if server.task_state == task_states.UNSHELVING:
                server.task_state = None
            return
        node = NodeId(nodes[0])
        host = world.nova.live_row(node).host
        if world.ironic.is_doubtful(node):
            request.excuses.add(self.WITHDRAWN)
        if world.ironic.is_reserved_late(server.uuid):
            request.excuses.add(LATE_WRITE)
        # The server may have been deleted since nova-conductor has read it.
        world.placement.allocations[server.uuid] = node
        world.log(f'{server.uuid} is unshelved on {node} of {host}')
        message = Message('unshelve', server.uuid, node, request=request.id)
        world.nova.broker.cast(host, message)


def _is_accepted(server: ServerRecord, action: str) -> bool:
    """Return whether nova-api accepts an action."""
    states = _ACTIONS[action][0]
    if server.deleted or server.delete_asked or not server.was_active:
        return False
    if server.vm_state not in states:
        return False
    if (server.host is None) != (action == 'unshelve'):
        return False
    needs_volume = {'rebuild': False, 'shelve': True}
    if server.has_root_volume != needs_volume.get(
        action, server.has_root_volume
    ):
        return False
    if action == 'reboot HARD':
        return server.task_state in task_states.ALLOW_REBOOT
    return server.task_state is None

# SPDX-License-Identifier: Apache-2.0
"""Simulated Ironic: nodes that deploy and clean in simulated time.

It may answer with errors and with short or empty lists. For some seconds it
may deny a free node that it has: lists lack the node, and a read is answered
with 404. Each change is stamped by the clock of one of its conductors.
"""

import dataclasses
import math
import operator
from collections.abc import Callable, Iterable
from typing import Any

from ironic_compute import errors
from ironic_compute.ironic_api import timestamps
from ironic_compute.ironic_api.descriptions import HOST_KEY
from ironic_compute.ironic_api.node_pool import NodePool
from ironic_compute.ironic_api.states import ProvisionState
from resource_tracker.node import NodeFacts, NodeId
from tests.simulation.faults import Unreachable
from tests.simulation.kernel import WALL_START_S
from tests.simulation.notifications import Notifications
from tests.simulation.nova import LATE_WRITE
from tests.simulation.requests import wall_time
from tests.simulation.wire import PROMPT_S, SentRequest, Wire

_FIELDS = tuple(field.name for field in dataclasses.fields(NodeFacts))
_READ_FIELDS = operator.attrgetter(*_FIELDS)
# They write to a frozen value, too.
_WRITE_FIELDS = tuple(vars(NodeFacts)[name].__set__ for name in _FIELDS)
_WRITE_READ_AT = vars(NodeFacts)['read_at_s'].__set__
_WRITE_UPDATED_AT = vars(NodeFacts)['updated_at'].__set__
_DEPLOYABLE = ProvisionState.AVAILABLE.value
_HAS_SERVER = (
    ProvisionState.ACTIVE.value,
    ProvisionState.DEPLOYING.value,
    ProvisionState.DEPLOYFAIL.value,
)
# Shorter than the time between the two 404s of a removal.
DENIED_S = (3.0, 7.0)
# How long after that a worker may still take it for missing.
DOUBTED_S = 60.0


@dataclasses.dataclass
class NodeMachine:
    """What Ironic has of a node besides `NodeFacts`.

    :param disk: the image that was deployed last
    """

    provision_updated_at: str | None = None
    instance_info: dict[str, str] = dataclasses.field(default_factory=dict)
    disk: str = 'image-0'


class Ironic:
    """The nodes of one pool."""

    def __init__(self, world: Any) -> None:
        self._world = world
        self.notifications = Notifications(world)
        self.ill_until_s = 0.0
        world.faults.plan('ironic ill', self._fall_ill)
        self.nodes: dict[NodeId, NodeFacts] = {}
        self.machines: dict[NodeId, NodeMachine] = {}
        # Nodes that were denied once, and until when.
        self._denied: dict[NodeId, float] = {}
        # Node -> the server for which it was reserved late.
        self._reserved_late: dict[NodeId, str] = {}

    def _fall_ill(self) -> None:
        """Answer with errors and with incomplete lists for a while."""
        ill_s = self._world.faults.choose(10.0, 40.0, 60.0)
        self.ill_until_s = self._world.kernel.now_s + ill_s
        self._world.log(f'Ironic is ill for {ill_s:.1f} s')

    @property
    def is_ill(self) -> bool:
        is_calm = self._world.faults.calm
        return not is_calm and self._world.kernel.now_s < self.ill_until_s

    def enroll(self, node: NodeId) -> None:
        """Add a node."""
        self.machines[node] = NodeMachine()
        self.nodes[node] = NodeFacts(
            node,
            resource_class='baremetal',
            provision_state=_DEPLOYABLE,
            power_state='power off',
            updated_at=self._stamp(node),
        )
        self.notifications.publish('create.end', self.nodes[node])

    def _stamp(self, node: NodeId) -> str:
        """Return the time by the clock of the conductor of a node."""
        number = int(node.removeprefix('n'))
        ahead_s = self._world.environment.conductor_ahead_s(number)
        return timestamps.at(WALL_START_S + self._world.kernel.now_s + ahead_s)

    def change(self, node: NodeId, event: str, **fields: Any) -> None:
        """Change fields of a node; send a notification of this event."""
        if 'provision_state' in fields:
            now = wall_time(self._world.kernel.now_s)
            self.machines[node].provision_updated_at = now.isoformat()
        before = self.nodes[node]
        facts = self.nodes[node] = dataclasses.replace(
            before, updated_at=self._stamp(node), **fields
        )
        is_prompt = self.notifications.publish(event, facts)
        self._world.feed_checks.note_change(before, facts, is_prompt)

    def remove(self, node: NodeId) -> None:
        """Delete a node."""
        self.notifications.publish('delete.end', self.nodes.pop(node))

    def deny(self, node: NodeId) -> None:
        """Deny a node without an allocation for a while, once.

        A request of a user fails at the same time. Its notification makes the
        workers read the node.
        """
        if node in self._denied:
            return
        denied_s = self._world.rng.choice(DENIED_S)
        self._world.log(f'Ironic denies {node} for {denied_s:.1f} s')
        self._denied[node] = self._world.kernel.now_s + denied_s
        self.notifications.publish('update.error', self.nodes[node])
        self._world.kernel.later(
            denied_s, lambda: self._world.feed_checks.note_denial_over(node)
        )

    def denied_until_s(self, node: NodeId) -> float:
        """Return when the denial of a node ends, or has ended."""
        return self._denied.get(node, -math.inf)

    def is_denied(self, node: NodeId) -> bool:
        """Return whether a node is denied; none is that has a server."""
        if self._world.kernel.now_s >= self.denied_until_s(node):
            return False
        facts = self.nodes.get(node)
        return facts is not None and facts.instance_uuid is None

    def is_doubtful(self, node: NodeId) -> bool:
        """Return whether a worker may refuse a node that is offered."""
        facts = self.nodes.get(node)
        since_s = self._world.kernel.now_s - DOUBTED_S
        is_doubted = since_s < self._denied.get(node, since_s)
        if facts is None or facts.maintenance or is_doubted:
            return True
        late = self._reserved_late.get(node)
        return late is not None and facts.instance_uuid == late

    def is_reserved_late(self, server: str) -> bool:
        """Return whether a late write has reserved a server's former node."""
        facts = self.of_instance(server)
        late = None if facts is None else self._reserved_late.get(facts.uuid)
        return late == server

    def changed_since(self, stamp: str) -> list[NodeFacts]:
        """Return the nodes changed at this time or later, newest first."""
        found = [n for n in self.shown() if (n.updated_at or '') >= stamp]
        found.sort(key=lambda facts: facts.updated_at or '', reverse=True)
        return found

    def shown(self) -> list[NodeFacts]:
        """Return all nodes that are not denied."""
        return [
            facts
            for node, facts in self.nodes.items()
            if not self.is_denied(node)
        ]

    def node(self, node: NodeId) -> NodeFacts:
        if node not in self.nodes:
            raise errors.NodeNotFound(f'no node {node}')
        return self.nodes[node]

    def read(self, node: NodeId) -> NodeFacts:
        """Answer the read of a node."""
        if self.is_denied(node):
            raise errors.NodeNotFound(f'{node} is denied')
        return self.node(node)

    def of_instance(self, server: str) -> NodeFacts | None:
        found = [n for n in self.nodes.values() if n.instance_uuid == server]
        if len(found) > 1:
            self._world.fail(f'server {server} is on two nodes')
        return found[0] if found else None

    def reserve(self, request: SentRequest, node: NodeId, server: str) -> None:
        facts = self.node(node)
        if facts.instance_uuid not in (None, server):
            raise errors.NodeAssociated(f'{node} has another server')
        if self.of_instance(server) not in (None, facts):
            raise errors.NodeAssociated(f'{server} is on another node')
        if facts.instance_uuid is None:
            if request.way_s > PROMPT_S:
                self._reserved_late[node] = server
            self._world.log(f'{request.sender} reserves {node} for {server}')
            self.change(node, 'update.end', instance_uuid=server)
            self._world.nova.servers[server].has_left = False

    def release(self, request: SentRequest, node: NodeId, server: str) -> None:
        """Remove the reservation of a server that is not deployed."""
        facts = self.node(node)
        if facts.instance_uuid != server:
            raise errors.NodeAssociated(f'{node} has not {server}')
        if facts.provision_state in _HAS_SERVER:
            raise errors.IronicRefused(f'{node} is deployed')
        if request.way_s > PROMPT_S:
            # The sender had repeated it, and has reserved the node again.
            self._world.tasks.excuse(server, LATE_WRITE)
        self.change(node, 'update.end', instance_uuid=None)
        self._world.nova.servers[server].has_left = True

    def deploy(self, request: SentRequest, node: NodeId, server: str) -> None:
        facts = self.node(node)
        if facts.instance_uuid != server:
            raise errors.NodeAssociated(f'{node} has not {server}')
        if facts.provision_state != _DEPLOYABLE:
            raise errors.IronicRefused(f'{node} is {facts.provision_state}')
        self._world.log(f'{request.sender} deploys {server} on {node}')
        image = self._world.nova.servers[server].image_ref
        self.machines[node].disk = image
        self.machines[node].instance_info[HOST_KEY] = request.sender
        self.change(node, 'provision_set.success', provision_state='deploying')
        rng = self._world.rng
        failed = self._world.faults.occurs('deploy fails')
        end = 'deploy failed' if failed else 'active'
        if failed:
            self._world.excuse(server, 'Ironic failed the deploy')
            self._world.tasks.excuse(server, 'Ironic failed the deploy')
        self._end_deploy(node, rng.choice((2.0, 10.0, 30.0)), end)

    def _end_deploy(self, node: NodeId, delay_s: float, end: str) -> None:
        """End a deploy; the machine of a server that was deployed is on."""
        power = self._power('power on') if end == 'active' else {}
        self._end_later(node, delay_s, end, **power)

    def _power(self, power_state: str) -> dict[str, Any]:
        """Return the power fields of a node; none in worlds without tasks."""
        if not self._world.tasks.is_on:
            return {}
        return {'power_state': power_state, 'target_power_state': None}

    def rebuild(self, request: SentRequest, node: NodeId, server: str) -> None:
        """Begin to deploy a server again, on its node."""
        facts = self.node(node)
        if facts.target_power_state is not None:
            raise errors.NodeLocked(f'{node} is locked')
        if facts.provision_state not in ('active', 'deploy failed'):
            raise errors.IronicRefused(f'{node} is {facts.provision_state}')
        self._world.task_checks.check_rebuild(request, server, facts)
        self._world.log(f'{request.sender} rebuilds {server} on {node}')
        machine = self.machines[node]
        machine.disk = machine.instance_info.get('image_source', '')
        self.change(node, 'provision_set.success', provision_state='deploying')
        tasks = self._world.tasks
        failed = tasks.occurs('rebuild fails')
        if failed:
            tasks.excuse(server, 'Ironic failed the rebuild')
        end = 'deploy failed' if failed else 'active'
        self._end_deploy(node, self._world.faults.choose(10.0, 30.0), end)

    def set_power(
        self, request: SentRequest, node: NodeId, target: str, server: str
    ) -> None:
        """Begin a power action; the client acts for a server.

        :param target: as in Ironic's API, such as ``soft power off``
        """
        facts, tasks = self.node(node), self._world.tasks
        is_locked = facts.provision_state in ('deploying', 'cleaning')
        if is_locked or facts.target_power_state is not None:
            raise errors.NodeLocked(f'{node} is locked')
        self._world.task_checks.check_power(request, server, facts, target)
        is_soft = target.startswith('soft')
        if is_soft and tasks.occurs('soft power refused'):
            raise errors.IronicRefused(f'{node} has no {target}')
        self._world.log(f'{request.sender} has {node} {target}')
        end = 'power off' if target.endswith('off') else 'power on'
        self.change(
            node, 'power_set.start', target_power_state=end, last_error=None
        )
        failed = tasks.occurs('power fails')
        if failed and not is_soft:
            tasks.excuse(server, 'Ironic failed the power action')
        self._world.kernel.later(
            self._world.faults.choose(1.0, 4.0, 12.0),
            lambda: self._end_power(node, end, target, failed),
        )

    def _end_power(
        self, node: NodeId, end: str, target: str, failed: bool
    ) -> None:
        facts = self.nodes.get(node)
        if facts is None or facts.target_power_state != end:
            return  # It was undeployed meanwhile.
        if failed:
            self.change(
                node,
                'power_set.error',
                target_power_state=None,
                last_error='no power',
            )
            return
        self.change(node, 'power_set.end', **self._power(end))
        if target.endswith('rebooting'):
            self._world.tasks.note_reboot(facts.instance_uuid)

    def undeploy(
        self, request: SentRequest, node: NodeId, server: str
    ) -> None:
        """Start cleaning and remove the reservation."""
        facts = self.node(node)
        if facts.instance_uuid != server:
            raise errors.NodeAssociated(f'{node} has not {server}')
        if facts.provision_state not in _HAS_SERVER:
            raise errors.IronicRefused(f'{node} is {facts.provision_state}')
        self._world.check_undeploy(request, server)
        self._world.log(f'{request.sender} undeploys {server} from {node}')
        self.machines[node].instance_info = {}
        self.change(
            node,
            'provision_set.success',
            provision_state='cleaning',
            instance_uuid=None,
            **self._power('power off'),
        )
        self._world.nova.servers[server].has_left = True
        delay_s = self._world.rng.choice((1.0, 8.0))
        self._end_later(node, delay_s, _DEPLOYABLE)

    def reboot(self, request: SentRequest, node: NodeId, server: str) -> None:
        if self.node(node).instance_uuid != server:
            raise errors.NodeAssociated(f'{node} has not {server}')
        self._world.moves.check_served(request, server)
        self._world.log(f'{request.sender} reboots {server} on {node}')
        self._world.nova.servers[server].is_reboot_due = False

    def attach(self, request: SentRequest, node: NodeId, server: str) -> None:
        if self.node(node).instance_uuid != server:
            raise errors.NodeAssociated(f'{node} has not {server}')
        self._world.moves.check_served(request, server)
        self._world.log(f'{request.sender} attaches to {server} on {node}')

    def _end_later(
        self, node: NodeId, delay_s: float, end: str, **more: Any
    ) -> None:
        """End what the node has begun; nothing if it was aborted by then."""
        began = self.machines[node].provision_updated_at

        def pass_on() -> None:
            if node not in self.nodes:
                return
            if self.machines[node].provision_updated_at == began:
                is_error = end == ProvisionState.DEPLOYFAIL.value
                event = 'error' if is_error else 'end'
                state = {'provision_state': end, **more}
                self.change(node, f'provision_set.{event}', **state)

        self._world.kernel.later(delay_s, pass_on)


_ALL_NODES = NodePool()


class Client:
    """The `IronicClient` of a worker; changes wait at the gate.

    :param server_at_work: returns the server that the running task works on
    """

    def __init__(
        self,
        world: Any,
        wire: Wire,
        gate: Any,
        server_at_work: Callable[[], str] = str,
        pool: NodePool = _ALL_NODES,
    ) -> None:
        self._world = world
        self.pool = pool
        self._server_at_work = server_at_work
        self._ironic: Ironic = world.ironic
        self._wire = wire
        self._gate = gate

    def _read(self, act: Any) -> Any:
        try:
            return self._wire.read(act)
        except Unreachable as exc:
            raise errors.IronicUnavailable(str(exc)) from exc

    def _write(self, act: Any) -> None:
        self._gate.wait()
        try:
            self._wire.write(act)
        except Unreachable as exc:
            raise errors.IronicUnavailable(str(exc)) from exc

    has_shard = False

    def check_pool(self) -> None:
        self._read(lambda: None)

    def list_nodes(
        self, pause: Callable[[], None] | None = None
    ) -> tuple[NodeFacts, ...]:
        """Return the list of all nodes, which may be short or empty."""
        read_at_s = self._world.kernel.now_s
        found = self._shorten(self._of_pool(self._read(self._ironic.shown)))
        return tuple(_read_at(facts, read_at_s, None) for facts in found)

    def list_changed_nodes(self, since: str | None) -> list[NodeFacts]:
        """Return the nodes changed at this time or later, newest first."""
        if self._ironic.is_ill and self._world.rng.random() < 0.5:
            raise errors.IronicUnavailable('500 Internal Server Error')
        read_at_s = self._world.kernel.now_s
        found = self._read(lambda: self._ironic.changed_since(since or ''))
        return [
            _read_at(facts, read_at_s, facts.updated_at)
            for facts in self._shorten(self._of_pool(found))
        ]

    def _of_pool(self, found: list[NodeFacts]) -> list[NodeFacts]:
        return [facts for facts in found if self.is_in_pool(facts)]

    def _shorten(self, found: list[NodeFacts]) -> Iterable[NodeFacts]:
        """Return a list, or some of its nodes if something fails."""
        if not (
            self._ironic.is_ill or self._world.faults.occurs('short list')
        ):
            return found
        rng = self._world.rng
        share = rng.choice((0.0, 0.5, 0.8))
        return [facts for facts in found if rng.random() < share]

    def read_node(self, node: NodeId) -> NodeFacts:
        if self._ironic.is_ill:
            raise errors.IronicUnavailable('500 Internal Server Error')
        read_at_s = self._world.kernel.now_s
        facts: NodeFacts = self._read(lambda: self._ironic.read(node))
        return _read_at(facts, read_at_s, facts.updated_at)

    def can_list_all_nodes(self) -> bool:
        return bool(self._read(lambda: True))

    def is_in_pool(self, facts: NodeFacts) -> bool:
        """See IronicClient."""
        return self.pool.contains(facts)

    def is_in_group(self, conductor_group: str) -> bool:
        """See IronicClient."""
        return self.pool.may_contain(conductor_group)

    def read_node_of_instance(self, server: str) -> NodeFacts | None:
        facts: NodeFacts | None = self._read(
            lambda: self._ironic.of_instance(server)
        )
        return facts

    def attach(self, node: NodeId, server: str) -> None:
        self._write(lambda request: self._ironic.attach(request, node, server))

    def reboot(self, node: NodeId, server: str) -> None:
        self._write(lambda request: self._ironic.reboot(request, node, server))

    def reserve_node(self, node: NodeId, server: str) -> None:
        self._write(
            lambda request: self._ironic.reserve(request, node, server)
        )

    def release_node(self, node: NodeId, server: str) -> None:
        self._write(
            lambda request: self._ironic.release(request, node, server)
        )

    def deploy(self, node: NodeId, server: str) -> None:
        self._write(lambda request: self._ironic.deploy(request, node, server))

    def undeploy(self, node: NodeId, server: str) -> None:
        self._write(
            lambda request: self._ironic.undeploy(request, node, server)
        )

    def set_provision_state(
        self, node: NodeId, target: str, *, configdrive: None
    ) -> None:
        """Rebuild the server that the task works on."""
        assert target == 'rebuild'
        server = self._server_at_work()
        self._write(
            lambda request: self._ironic.rebuild(request, node, server)
        )

    def wait_for_lease(self) -> None:
        """Block until the worker has the lease; sends nothing."""
        self._gate.wait()

    def set_power_state(
        self,
        node: NodeId,
        target: str,
        *,
        soft: bool = False,
        timeout_s: int | None = None,
    ) -> None:
        """Begin a power action for the server that the task works on."""
        name = {'on': 'power on', 'off': 'power off', 'reboot': 'rebooting'}
        wanted = f'soft {name[target]}' if soft else name[target]
        server = self._server_at_work()
        self._write(
            lambda request: self._ironic.set_power(
                request, node, wanted, server
            )
        )

    def read_fields(self, node: NodeId, fields: list[str]) -> dict[str, Any]:
        """Return the fields; in worlds without tasks, without a request."""
        if not self._world.tasks.is_on:
            return dataclasses.asdict(self._ironic.machines[node])

        def read() -> dict[str, Any]:
            facts = self._ironic.node(node)
            found = dataclasses.asdict(self._ironic.machines[node])
            return {
                name: found[name] if name in found else getattr(facts, name)
                for name in fields
            }

        return dict(self._read(read))

    def patch_node(
        self, node: NodeId, patches: list[dict[str, str]]
    ) -> NodeFacts:
        """Change ``instance_info``."""

        def write(request: SentRequest) -> None:
            self._ironic.node(node)
            info = self._ironic.machines[node].instance_info
            for patch in patches:
                key = patch['path'].removeprefix('/instance_info/')
                info.pop(key, None)
                if patch['op'] == 'add':
                    info[key] = patch['value']

        self._write(write)
        return self.read_node(node)


def _read_at(
    facts: NodeFacts, read_at_s: float, updated_at: str | None
) -> NodeFacts:
    """Return a copy with these times, in a fraction of ``replace``'s."""
    copy = object.__new__(NodeFacts)
    for write, value in zip(_WRITE_FIELDS, _READ_FIELDS(facts), strict=True):
        write(copy, value)
    _WRITE_READ_AT(copy, read_at_s)
    _WRITE_UPDATED_AT(copy, updated_at)
    return copy

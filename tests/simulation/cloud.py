# SPDX-License-Identifier: Apache-2.0
"""The simulated cloud: agents, workers, Nova, Ironic, Placement, users.

`Cloud` checks the invariants of the protocol at each step. A *late write*, a
request that arrives after its sender lost the right to act, may violate some
of them for a while; such violations must be repaired by the end of the calm.
"""

from collections.abc import Iterator
from typing import Any

from nova import exception as nova_exception
from nova.compute import vm_states

from hashring.ring import Host, Ring
from ironic_compute import errors
from ironic_compute.manager.stale_messages import SHELVING
from ironic_compute.nodes.pins import target_of
from resource_tracker.node import NodeFacts, NodeId
from tests.simulation.broker import SILENCE_S, Message
from tests.simulation.compute import AUDITS_S, PACE
from tests.simulation.conductor import Conductor
from tests.simulation.disk import FOREIGN_HOSTS
from tests.simulation.feed_checks import FeedChecks
from tests.simulation.ironic import Ironic
from tests.simulation.kernel import Process
from tests.simulation.load import Load
from tests.simulation.moves import Moves
from tests.simulation.nova import (
    LATE_RELEASE,
    LATE_UNDEPLOY,
    LATE_WRITE,
    LOST,
    UNSAVED,
    NodeRecord,
    Nova,
    ServerRecord,
    ServiceRecord,
)
from tests.simulation.operator import Operator
from tests.simulation.path_checks import PathChecks
from tests.simulation.placement import Placement
from tests.simulation.pools import Pools
from tests.simulation.scheduling import Scheduler
from tests.simulation.task_checks import TaskChecks
from tests.simulation.tasks import DETAILED, TaskUsers
from tests.simulation.wire import SentRequest
from tests.simulation.world import REACH_S, World

# Reasons for which a deleted server may keep an allocation.
UNHEARD = frozenset({LATE_WRITE, LOST})
# Clocks differ by one per cent.
SLACK = 0.97
# Seconds for which a worker may rely on the read that a host has no Service; a
# clock may be 1 % slow.
KNOWN_S = 5.05
# Seconds between the decision to offer a node and the request.
ALONE_S = 10.0


class Cloud(World):
    """The whole cloud of one seed."""

    # The errors that a service may answer with.
    ANSWERS = (errors.IronicComputeError, nova_exception.NovaException)

    def prepare(self) -> None:
        super().prepare()
        self.breaks_count = 0  # Violations by late writes.
        self.nova = Nova(self)
        self.faults.plan('broker cut', self.nova.broker.cut)
        self.conductor = Conductor(self)
        self.audit_interval_s = self.rng.choice(AUDITS_S)
        self.feed_checks = FeedChecks(self)
        self.ironic = Ironic(self)
        self.placement = Placement(self)
        if self.environment.has_wrong_folders:
            for host in FOREIGN_HOSTS:
                self.nova.services[host] = ServiceRecord(
                    self.nova.new_id(), host, mapped=True
                )
        self._robbed: dict[str, Host | None] = {}
        self._lagging: dict[tuple[Host, str], tuple[Host, float]] = {}
        self.pools = Pools(self)
        self.tasks = TaskUsers(self)
        self.task_checks = TaskChecks(self)
        self.scheduler = Scheduler(self)
        # Servers that are shelved and unshelved need more nodes.
        nodes_count = self.rng.randint(3, 6) + 3 * self.tasks.is_on
        self.load = Load(self, nodes_count)
        self.operator = Operator(self)
        self.moves = Moves(self)
        self.path_checks: PathChecks | None = None
        if self.environment.has_path_faults:
            self.makeup.path_faults(self)
            self.path_checks = PathChecks(self)

    # For workers

    def create_service(self, host: Host) -> ServiceRecord:
        record = ServiceRecord(
            self.nova.new_id(), host, created_s=self.kernel.now_s
        )
        self.nova.insert_service(record)
        self.kernel.later(
            self.rng.choice((0.0, 5.0, 20.0)),
            lambda: setattr(record, 'mapped', True),
        )
        return record

    def read_holder(self, reader: Host, node: NodeId) -> Host | None:
        """Return the host of a row, from a replica that may lag behind."""
        row = self.nova.live_row(node)
        if row is None:
            return None
        if row.former is not None and self.faults.occurs('lag'):
            former, since_s = row.former
            until_s = since_s + self.rng.choice((2.0, 20.0))
            self._lagging.setdefault((reader, node), (former, until_s))
        former, until_s = self._lagging.get((reader, node), (row.host, 0.0))
        return former if self.kernel.now_s < until_s else row.host

    def excuse(self, server: str, why: str) -> None:
        """Note a reason for which the build of a server may fail."""
        self.nova.servers[server].excuses.add(why)

    def note_lost(self, message: Message) -> None:
        """Note that the broker itself has lost a message."""
        if message.name in ('build', 'unshelve'):
            self.excuse(message.server, LOST)
        if message.name in DETAILED:
            self.tasks.excuse(message.server, LOST)

    # Lost connections

    def end(self, process: Process) -> None:
        super().end(process)
        self.nova.broker.lose(process)

    def freeze(self, process: Process, freeze_s: float) -> None:
        super().freeze(process, freeze_s)
        if freeze_s > SILENCE_S:
            self.nova.broker.notice_frozen(process)

    # Invariants

    def check_holder(
        self, request: SentRequest, record: NodeRecord, host: Host
    ) -> None:
        """Check invariants 2 and 3 when a row changes its host.

        A host that lost a node to a late write, maybe of a former worker of
        its own, cannot know that before its next write, which may take the
        node from another host in turn; nor can a host that creates a row just
        after a late write has created it. A host that has found no Service of
        the holder may not know one that was created since. When a node has
        changed its pool, a host of each pool may create its row. If Nova has
        deleted the Service of the holder, another host may take its nodes that
        Ironic has no server on: a build that has begun goes on there.
        """
        node, former = record.node, record.host
        if request.late:
            self.breaks_count += 1
            self._robbed[node] = former
            return
        came_late = self.kernel.now_s - record.came_late_s < PACE.confirm_s
        holders = (former, self._robbed.pop(node, former))
        may_know = self._is_known(former, request) and not came_late
        is_known = may_know and not self._is_new_elsewhere(record, request)
        if request.host not in holders and is_known:
            self.fail(f'{request.sender} takes {node} from {former}')
        if request.host != former:
            self._robbed[node] = former
        is_orphan = request.host != former and not self._is_known(
            former, request
        )
        facts = self.ironic.nodes.get(NodeId(node))
        tenant = None if facts is None else facts.instance_uuid
        for server in self._on(node):
            # A server that failed here long ago does not pin the node, nor
            # does one that has left it, while its delete waits for Neutron, or
            # its shelving for anything.
            is_going = server.delete_asked or server.task_state in SHELVING
            is_leaving = is_going and server.has_left
            is_free = is_orphan or is_leaving or tenant is not None
            is_here = tenant == server.uuid or not is_free
            if server.host == former and is_here:
                self.fail(f'{request.sender} moves {node}, pinned, to {host}')

    def _is_known(self, host: Host, request: SentRequest) -> bool:
        """Return whether the sender of a request must know a host's Service.

        It may have looked for it `KNOWN_S` before it sent the request.
        """
        service = self.nova.services.get(host)
        if service is None:
            return False
        age_s = self.kernel.now_s - service.created_s
        return age_s > request.way_s + KNOWN_S

    def _is_new_elsewhere(
        self, record: NodeRecord, request: SentRequest
    ) -> bool:
        """Return whether another pool has just created a row.

        No build uses such a row yet.
        """
        created_s = record.created_s
        if created_s is None or self.kernel.now_s - created_s > PACE.confirm_s:
            return False
        groups = map(self.pools.group_of, (record.host, request.host))
        return len(set(groups)) > 1

    def _on(self, node: str) -> Iterator[ServerRecord]:
        for server in self.nova.servers.values():
            if server.node == node and server.host and not server.deleted:
                yield server

    def check_offer(self, request: SentRequest, node: NodeId) -> None:
        """Check that a created row is confirmed before it is offered."""
        row = self.nova.live_row(node)
        if request.late or row is None or row.created_s is None:
            return
        now_s = self.kernel.now_s
        age_s, alone_s_ago = now_s - row.created_s, now_s - request.alone_s
        if alone_s_ago < ALONE_S or row.host != request.host:
            return
        if age_s < PACE.confirm_s * SLACK:
            self.fail(f'{request.sender} offers {node}, {age_s:.1f} s old')

    def check_creation(self, request: SentRequest, record: NodeRecord) -> None:
        """Check that no worker creates the row of an offered node."""
        in_time = request.way_s < PACE.confirm_s * SLACK
        if in_time and self.placement.offered.get(NodeId(record.node)):
            self.fail(f'{request.sender} creates {record.node}, long in use')

    def check_removal(self, request: SentRequest, node: str) -> None:
        """Check invariant 4: only rows of missing nodes are removed."""
        if node in self.ironic.nodes:
            self.fail(f'{request.sender} removes {node}, which exists')
        if not request.late and any(self._on(node)):
            self.fail(f'{request.sender} removes {node} with a server')

    def check_server(self, server: ServerRecord) -> None:
        """Check that an active server stays active until it is deleted.

        A build may fail only for a reason that was noted: a service did not
        answer, Ironic has failed the deploy, no node was free, the broker has
        lost the message, or a late write has changed the record.
        """
        if server.requests:
            self.task_checks.check_server(server)
            return
        if server.was_active and not server.delete_asked:
            if server.vm_state != vm_states.ACTIVE:
                self.fail(f'{server.uuid} was active, is {server.vm_state}')
            if server.host is None:
                self.fail(f'{server.uuid} was active, has lost its host')
        is_failed = server.vm_state == vm_states.ERROR
        if is_failed and not (server.delete_asked or server.may_fail()):
            self.fail(f'{server.uuid} is in ERROR without a reason')

    def check_receipt(self, worker: Any) -> None:
        """Check that a worker receives messages with a lease only.

        One that was frozen may not have noticed yet that its lease is over.
        """
        runs_s = self.kernel.now_s - worker.thaws_s
        shut_s = worker.gate.shut_for_s()
        if min(runs_s, shut_s) > REACH_S and not self.faults.calm:
            self.fail(f'{worker.name} receives, its gate is shut')

    def check_resume(self, request: SentRequest, server: ServerRecord) -> None:
        """Check that a worker resumes the tasks of its own host only."""
        is_foreign = server.host not in (None, request.host)
        if request.resumes and is_foreign and not request.late:
            self.fail(f'{request.sender} resumes {server.uuid} of another')

    def check_undeploy(self, request: SentRequest, uuid: str) -> None:
        """Check that no server is undeployed before its deletion."""
        server = self.nova.servers[uuid]
        if server.requests:
            self.task_checks.check_undeploy(request, server)
        elif server.was_active and not server.delete_asked:
            self.fail(f'{request.sender} undeploys {uuid}, which is in use')

    # The calm

    def heal(self) -> None:
        self.operator.return_machine()
        super().heal()
        # What is thawed runs now, and not when it would have thawed: RabbitMQ
        # would take it for alive, and keep its messages until then.
        self.kernel.run_postponed()
        for host, record in self.nova.services.items():
            record.disabled = self.operator.has_forgotten(host)
        self.moves.keep_draining()
        self.pools.begin_calm()
        self.operator.restart_daemons()
        self.feed_checks.begin_calm()
        self.load.end_the_storm()
        self.load.clear_away()

    def find_problem(self) -> str | None:
        return super().find_problem() or next(self._problems(), None)

    def _problems(self) -> Iterator[str]:
        yield from self.moves.problems()
        yield from self._node_problems()
        yield from self._server_problems()
        if self.feed_checks.is_waiting:
            yield 'a change is not checked yet'
        if self.operator.forgotten_host in self.known():
            yield f'{self.operator.forgotten_host} is forgotten and known'
        yield from self._removal_problems()
        for uuid, node in self.placement.allocations.items():
            server = self.nova.servers[uuid]
            is_unheard = bool(server.excuses & UNHEARD)
            is_unheard |= self.nova.broker.is_left(uuid)
            if is_unheard and _has_ended(server):
                # It was scheduled when it was deleted, or when a late write
                # ended its unshelve, and nothing tells the new host; or the
                # Service of that host was deleted, and nobody takes its
                # messages. ``nova-manage placement audit`` finds it.
                continue
            if server.deleted or server.node != node:
                yield f'{uuid} is not on {node}, its allocation is'

    def _removal_problems(self) -> Iterator[str]:
        for node, row in self.nova.rows.items():
            is_left = row.deleted or self._may_stay(node)
            if not is_left and node not in self.ironic.nodes:
                yield f'{node} is gone, its row is not'
        for node in self.placement.offered:
            if node not in self.ironic.nodes and not self._may_stay(node):
                yield f'{node} is gone, its provider is not'

    def _may_stay(self, node: str) -> bool:
        """Return whether no daemon has to remove the records of a node."""
        row = self.nova.live_row(NodeId(node))
        # To all live agents its host is foreign: ``host adopt`` is needed.
        is_foreign = row is not None and row.host not in self.known()
        return is_foreign or self.nova.is_without_service(node)

    def _node_problems(self) -> Iterator[str]:
        known = self.known()
        for node, facts in self.ironic.nodes.items():
            row = self.nova.live_row(node)
            ring = self._ring_of(facts)
            if row is None:
                yield f'{node} has no row'
            elif row.host not in known:
                continue  # To all live agents the host is foreign.
            elif facts.instance_uuid is None:
                if facts.provision_state != 'available':
                    yield f'{node} is {facts.provision_state}'
                elif not self.placement.offered.get(node):
                    yield f'{node} is free and not offered'
                elif ring.hosts and row.host != target_of(row, ring):
                    yield f'{node} is held by {row.host}'
            elif self._is_in_wrong_pool(row, facts):
                yield f'{node} with a server is held by {row.host}'
            else:
                yield from self._pinned_problems(row, facts)

    def _ring_of(self, facts: NodeFacts) -> Ring:
        """Return the ring of the pool that a node is in."""
        known, group = self.known(), facts.conductor_group
        return Ring(
            host
            for host, service in self.nova.services.items()
            if service.mapped
            and host in known
            and not service.disabled
            and self.pools.group_of(host) == group
        )

    def _is_in_wrong_pool(self, row: NodeRecord, facts: NodeFacts) -> bool:
        """Return whether a server's node should be in another pool."""
        is_elsewhere = self.pools.group_of(row.host) != facts.conductor_group
        return (
            self.pools.is_on
            and is_elsewhere
            and bool(self._ring_of(facts).hosts)
        )

    def _pinned_problems(self, row: NodeRecord, facts: Any) -> Iterator[str]:
        server = self.nova.servers[facts.instance_uuid]
        if server.deleted:
            yield f'{row.node} has {server.uuid}, which is deleted'
        elif server.node != row.node:
            yield f'{row.node} has {server.uuid}, which is not on it'
        elif server.host != row.host and server.host in self.nova.services:
            # A node follows its server, but not to a host whose Service was
            # deleted: its daemon must be started again.
            yield f'{row.node} of {row.host} has {server.uuid} of another'
        elif self.placement.offered.get(facts.uuid):
            yield f'{row.node} has {server.uuid} and is offered'

    def _server_problems(self) -> Iterator[str]:
        known = self.known()
        for server in self.nova.servers.values():
            if server.deleted or server.host not in {None, *known}:
                # To all live agents its host is foreign: the folders that
                # knew it are lost. ``host adopt`` is needed, as for nodes.
                continue
            # A late write may leave a task on a server that has failed.
            lost = server.host is None and server.vm_state == vm_states.ERROR
            if server.task_state is not None and not lost:
                yield f'{server.uuid} is {server.task_state} for ever'
            if server.requests and not server.delete_asked:
                yield from self.task_checks.problems(server)
            elif server.vm_state not in (vm_states.ACTIVE, vm_states.ERROR):
                yield f'{server.uuid} is {server.vm_state} for ever'
            is_lost = LATE_UNDEPLOY in server.excuses
            if server.vm_state == vm_states.ACTIVE and not is_lost:
                facts = self.ironic.nodes.get(NodeId(server.node or ''))
                if facts is None or facts.instance_uuid != server.uuid:
                    yield f'{server.uuid} is active and has no node'
                elif (
                    server.uuid not in self.placement.allocations
                    # Not simulated is ``NeglectedServers``, which finds a
                    # delete whose message the broker has lost.
                    and not server.delete_asked
                    # Its build was repeated after its worker had died, and
                    # then Placement did what the dead worker had asked; or
                    # Nova had given the build up, could not save that, and
                    # the recovery has completed it.
                    # ``nova-manage placement heal_allocations`` mends it.
                    and not server.excuses & {LATE_RELEASE, UNSAVED}
                ):
                    yield f'{server.uuid} is active without an allocation'


def _has_ended(server: ServerRecord) -> bool:
    """Return whether a server is to have no node."""
    is_off = server.vm_state == vm_states.SHELVED_OFFLOADED
    return server.deleted or (is_off and server.task_state is None)

# SPDX-License-Identifier: Apache-2.0
"""Planted defects: real classes, each with one rule of the protocol broken.

They prove that the simulation detects a broken rule. Each is a makeup in
which a subclass replaces one part; nothing else changes.
"""

import dataclasses
from collections.abc import Callable, Iterator
from typing import Any

from nova import exception as nova_exception

from hashring.agent import Agent
from hashring.assignment import Assignment
from hashring.events import Effect, Release, Stop
from hashring.group import LockToken
from hashring.heartbeat import HeartbeatState
from hashring.host_states import Hold, Phase
from hashring.lease import Beat, Lease, Verdict
from hashring.lease_terms import LeaseTerms
from hashring.pool import Pool
from hashring.ring import Host, Ring
from hashring.workers import WorkerExited
from ironic_compute.errors import IronicComputeError
from ironic_compute.nodes.compute_nodes import ComputeNodes
from ironic_compute.nodes.held_nodes import HeldNodes, HeldVersion
from ironic_compute.ownership.new_nodes import NewNodes
from ironic_compute.ownership.rebalance import Rebalancer
from ironic_compute.ownership.removal import Removal
from ironic_compute.recovery.decisions import StrayState, find_task
from ironic_compute.recovery.interrupted_tasks import InterruptedTasks
from ironic_compute.recovery.stray_instances import StrayInstances
from ironic_compute.worker.rpc_gating import RpcGating
from resource_tracker.node import NodeFacts, NodeId
from tests.simulation import (
    feed_defects,
    move_defects,
    path_defects,
    pool_defects,
    task_defects,
)
from tests.simulation.broker import Connection, Delivered
from tests.simulation.disk import MemoryStateDir
from tests.simulation.handlers import Manager
from tests.simulation.makeup import Makeup, with_parts
from tests.simulation.rpc import RpcServer
from tests.simulation.scheduling import Rescheduler, SimulatedConductor
from tests.simulation.worker import Gate
from tests.unit.hashring.coordination import FakeGroup


class AdoptsWithoutLock(FakeGroup):
    """An agent adopts a host although its lock was refused."""

    def try_lock(self, host: Host) -> bool:
        super().try_lock(host)
        return True


class KeepsOldWorker(FakeGroup):
    """An agent takes a lock again and calls it the same lock."""

    def owns_lock(self, host: Host) -> bool:
        return super().owns_lock(host) or self.try_lock(host)


class BreaksAnyLock(FakeGroup):
    """An agent breaks a lock that another agent holds."""

    def break_lock(self, host: Host, token: LockToken) -> None:
        now = self._service.token(host)
        super().break_lock(host, LockToken(str(now)))


class CountsLateHeartbeats(Lease):
    """A heartbeat that returned late counts."""

    def after(self, beat: Beat) -> tuple[Lease, Verdict]:
        if not beat.is_listed:
            return super().after(beat)
        renewed = dataclasses.replace(self, base_s=beat.sent_s, counted=True)
        return renewed, Verdict.COUNTED


class LeaseWithoutMargin(Lease):
    """The lease has no margin."""

    @property
    def deadline_s(self) -> float:
        held_s = super().deadline_s
        return held_s + self.margin_s if held_s else 0.0


class CountsFromReply(Lease):
    """The deadline counts from the reply, not from the request."""

    def after(self, beat: Beat) -> tuple[Lease, Verdict]:
        lease, verdict = super().after(beat)
        if verdict is Verdict.COUNTED:
            lease = dataclasses.replace(lease, base_s=beat.returned_s)
        return lease, verdict


class ReleasesWhileDraining(Assignment):
    """A lock is released while its worker still drains."""

    def _stop_if_unwanted(self, hold: Hold, now_s: float) -> Iterator[Effect]:
        for effect in super()._stop_if_unwanted(hold, now_s):
            yield effect
            if isinstance(effect, Stop):
                yield Release(hold.host, hold.ticket, effect.why)


class IgnoresLostLocks(Assignment):
    """A worker goes on although its lock was lost."""

    def _apply_lock_check(self, event: Any) -> Iterator[Effect]:
        return super()._apply_lock_check(dataclasses.replace(event, ours=True))


class DrainsPastTheLease(Assignment):
    """A worker goes on draining when the lease lapses."""

    def _advance_lease(self, hold: Hold, in_force: bool) -> Iterator[Effect]:
        if hold.phase is not Phase.STOPPING:
            yield from super()._advance_lease(hold, in_force)


class CountsOwnTermOnly(LeaseTerms):
    """A host that was taken over waits for the term of its new agent."""

    @property
    def longest_s(self) -> float:
        return self._own_s


class BelievesForeignFolders(MemoryStateDir):
    """The hosts in a state directory count, whatever its pool."""

    def _read(self, name: str) -> Any:
        return self._group if name == 'group.json' else super()._read(name)


class ForgetsWithoutMark(Pool):
    """A forgotten host comes back from the list of another agent."""

    def _is_forgotten(self, host: Host) -> bool:
        return False

    def forget_host(self, host: Host) -> None:
        self._collected.discard(host)
        self._derive()


class BelievesStaleExits(Assignment):
    """The exit of a killed worker counts for the worker after it."""

    def _apply_exit(
        self, event: WorkerExited, now_s: float
    ) -> Iterator[Effect]:
        return super()._apply_exit(dataclasses.replace(event, tenure=0), now_s)


class NeverShutsAgain(Gate):
    """A gate that was open once stays open."""

    _was_open = False

    def is_open(self) -> bool:
        self._was_open = self._was_open or super().is_open()
        return self._was_open


def _agent_with_lease(kind: type[Lease]) -> Any:
    def make(**arguments: Any) -> Agent:
        agent = Agent(**arguments)
        timing = arguments['timing']
        lease = kind(timing.lease_term_s, timing.lease_margin_s)
        agent.heartbeat_thread._state = HeartbeatState(lease)
        return agent

    return make


def _agent_with_assignment(kind: type[Assignment]) -> Any:
    def make(**arguments: Any) -> Agent:
        agent = Agent(**arguments)
        agent.assignment = kind(
            arguments['home'],
            arguments['membership'].boot,
            arguments['timing'],
            arguments['membership'].traits,
        )
        return agent

    return make


def _agent_with_own_term(**arguments: Any) -> Agent:
    agent = Agent(**arguments)
    own_s = arguments['timing'].lease_term_s
    agent.assignment._lease_terms = CountsOwnTermOnly(own_s)
    return agent


def _agent_with_pool(**arguments: Any) -> Agent:
    agent = Agent(**arguments)
    state = arguments['saved_state']
    settle_s = arguments['timing'].settle_s
    agent.pool = ForgetsWithoutMark(
        arguments['home'], state.read_known(), settle_s
    )
    return agent


# Defects of nodes, servers and messages


class PushesPinnedNodes(Rebalancer):
    """A pinned node is pushed."""

    def _is_free(self, node: NodeId) -> bool:
        return True

    def _give(self, node: NodeId, target: Host, ring: Ring) -> bool:
        row, record = (
            self._held_nodes.row(node),
            self._services.find_record(target),
        )
        if row is None or record is None:
            return False
        given = self._compute_nodes.write_holder(row, target, record.id)
        if given:
            self._held_nodes.drop_node(node)
        return given


class CreatesWithoutAgreement(NewNodes):
    """A row is created although the agents disagree on the ring."""

    def _may_take(self, node: NodeId) -> bool:
        return (
            self._pool.ring_status().ring.target(node) == self._held_nodes.host
            and self._held_nodes.host_status.service_id is not None
        )

    def _may_create(self, node: NodeId, read: Any) -> bool:
        return self._may_take(node)


class SavesWithoutGate(ComputeNodes):
    """A row is saved although the lease has lapsed."""

    def _save(self, row: Any) -> None:
        row.save()


class DeletesWithoutGate(ComputeNodes):
    """A row is deleted although the lease has lapsed."""

    def delete_row(self, row: Any) -> bool:
        try:
            row.destroy()
        except nova_exception.ObjectActionError:
            return False
        return True


class CreatesAfterTheGate(ComputeNodes):
    """A row that was wanted before the wait at the gate is created."""

    def create_row(
        self,
        facts: NodeFacts,
        host: Host,
        service_id: int,
        is_wanted: Callable[[], bool],
    ) -> Any | None:
        wanted = is_wanted()
        return super().create_row(facts, host, service_id, lambda: wanted)


class UsesUnconfirmedRows(HeldNodes):
    """A created row is used before it is confirmed."""

    def _add_row(self, row: Any, read_at: HeldVersion) -> None:
        super()._add_row(row, read_at)
        for node in self.unconfirmed_rows.nodes():
            self.unconfirmed_rows.discard(node)


class IgnoresInstanceMoves(Rebalancer):
    """A node does not follow its server to another host."""

    def follow_instance(self, node: NodeId, host: Host) -> None:
        pass


class RemovesOnAnyError(Removal):
    """A read that Ironic does not answer counts as a 404."""

    def _is_missing(self, node: NodeId) -> bool:
        try:
            return super()._is_missing(node)
        except IronicComputeError:
            return True


class ResumesOnlyOnce(InterruptedTasks):
    """Interrupted tasks are resumed only once, at the worker's start."""

    _has_run = False

    def check(self) -> None:
        if not self._has_run:
            super().check()
            self._has_run = True


class ResumesForeignTasks(InterruptedTasks):
    """The task of a server is resumed that has gone to another host."""

    def _resume(self, instance: Any, is_idle: bool) -> None:
        instance.refresh()
        task = find_task(instance.vm_state, instance.task_state)
        if task is not None:
            self._methods()[task](self._context_of(instance), instance)


class LeavesDeletedServers(StrayInstances):
    """A server that Nova deleted stays on its node."""

    def _act(self, stray: StrayState, key: Any, rows: Any) -> None:
        if stray is not StrayState.DELETED:
            super()._act(stray, key, rows)


def endless_hop(holder: str | None, here: str, hops_count: int) -> str | None:
    """Forward a message without a limit of hops."""
    return holder if holder != here else None


class AcknowledgesAtReceipt(RpcServer):
    """A message is acknowledged when it is received, as oslo.messaging does.

    A killed worker loses the messages that it worked on.
    """

    def accept(self, delivered: Delivered, connection: Connection) -> None:
        connection.acknowledge(delivered.tag)
        self._worker.spawn(lambda: self._serve(delivered.message))


class ServesPastTheLease(RpcGating):
    """The RPC servers go on when the lease has lapsed."""

    def _close(self) -> None:
        pass


class DropsRedeliveredBuilds(Manager):
    """A build that an ended worker had begun is dropped."""

    def _is_interrupted(self, instance: Any) -> bool:
        return False


class LeavesInterruptedBuilds(Manager):
    """A redelivered build begins although nothing of the former was undone."""

    def undo_interrupted_build(self, *args: Any) -> bool:
        return True


class BuildsWithoutAllocation(Manager):
    """A redelivered build does not check that it still has its node."""

    def _has_allocation(self, instance: Any, request: Any) -> bool:
        return True


class TriesStaleAlternates(Rescheduler):
    """The loser of a node gets the alternates of its first schedule."""

    def build_instances(self, *args: Any, **kwargs: Any) -> None:
        SimulatedConductor.build_instances(self, *args, **kwargs)


class BuildsEachMessage(Manager):
    """A build message that was served already is served again."""

    def _is_interrupted(self, instance: Any) -> bool:
        return True

    def undo_interrupted_build(self, *args: Any) -> bool:
        return True


# Name of a defect -> the makeup with this defect.
MAKEUPS: dict[str, Makeup] = {
    'no margin': with_parts(
        'cut',
        'freeze',
        'freeze agent',
        'slow thaws',
        agent=_agent_with_lease(LeaseWithoutMargin),
    ),
    'gate not checked after a pause': with_parts(gate=NeverShutsAgain),
    'adopt without the lock': with_parts(group=AdoptsWithoutLock),
    'late heartbeat counts': with_parts(
        'lenient',
        'slow thaws',
        'freeze agent',
        agent=_agent_with_lease(CountsLateHeartbeats),
    ),
    'same worker in a new tenure': with_parts(group=KeepsOldWorker),
    "somebody else's lock freed": with_parts(group=BreaksAnyLock),
    'lock not proven after a lapse': with_parts(
        agent=_agent_with_assignment(IgnoresLostLocks)
    ),
    'deadline counted from the reply': with_parts(
        'slow beat', agent=_agent_with_lease(CountsFromReply)
    ),
    'hand-back before the worker stopped': with_parts(
        agent=_agent_with_assignment(ReleasesWhileDraining)
    ),
    'draining past the lease': with_parts(
        'cut', agent=_agent_with_assignment(DrainsPastTheLease)
    ),
    'exit of an older tenure believed': with_parts(
        agent=_agent_with_assignment(BelievesStaleExits)
    ),
    'own term counts': with_parts(
        'cache', 'mixed terms', 'restart', agent=_agent_with_own_term
    ),
    'forgotten host comes back': with_parts(
        'deletions', 'cut', agent=_agent_with_pool
    ),
    'foreign folder believed': with_parts(
        'wrong folders', state_dir=BelievesForeignFolders
    ),
    'row saved without the gate': with_parts(
        'cut', 'outage', compute_nodes=SavesWithoutGate
    ),
    'row deleted without the gate': with_parts(
        'cut', 'outage', 'node leaves', compute_nodes=DeletesWithoutGate
    ),
    'row created after the gate': with_parts(
        'freeze before create', 'kill', compute_nodes=CreatesAfterTheGate
    ),
    "resume of another host's task": with_parts(
        'evict meets resume', 'kill', resume=ResumesForeignTasks
    ),
    'push of a pinned node': with_parts(rebalancer=PushesPinnedNodes),
    'create without agreement': with_parts(
        'node comes',
        'kill',
        'cut',
        'freeze',
        new_nodes=CreatesWithoutAgreement,
    ),
    'created row used unconfirmed': with_parts(held_nodes=UsesUnconfirmedRows),
    'wall clocks of others trusted': with_parts(
        'wrong clocks', 'freeze before create', clock_skew_s=30.0
    ),
    'delete on error': with_parts(removal=RemovesOnAnyError),
    'resume only at start': with_parts(resume=ResumesOnlyOnce),
    'row not following the instance': with_parts(
        rebalancer=IgnoresInstanceMoves
    ),
    'deleted server left on its node': with_parts(strays=LeavesDeletedServers),
    'message acknowledged at receipt': with_parts(
        'crash', rpc_server=AcknowledgesAtReceipt
    ),
    'messages received past the lease': with_parts(
        rpc_gating=ServesPastTheLease
    ),
    'redelivered build dropped': with_parts(manager=DropsRedeliveredBuilds),
    'redelivered build not undone': with_parts(
        manager=LeavesInterruptedBuilds
    ),
    'redelivered build without its node': with_parts(
        'boot',
        'crash',
        'kill',
        'deploy fails',
        'quiet start',
        manager=BuildsWithoutAllocation,
    ),
    'loser of a node tries stale alternates': with_parts(
        rescheduler=TriesStaleAlternates
    ),
    'duplicate build let through': with_parts(manager=BuildsEachMessage),
    **feed_defects.MAKEUPS,
    **path_defects.makeups(_agent_with_assignment),
    **move_defects.MAKEUPS,
    **pool_defects.MAKEUPS,
    **task_defects.MAKEUPS,
}

# Name of a defect -> a seed that detects it. If a change of the simulation
# makes a seed miss its defect, --defects finds another one. A defect that only
# one in thousands of lives shows has no seed: --defect NAME looks for it.
SEEDS: dict[str, int] = {
    'no margin': 60044,
    'gate not checked after a pause': 3,
    'adopt without the lock': 60000,
    'late heartbeat counts': 60777,
    'same worker in a new tenure': 60052,
    "somebody else's lock freed": 292,
    'lock not proven after a lapse': 10,
    'deadline counted from the reply': 60032,
    'hand-back before the worker stopped': 22,
    'draining past the lease': 60883,
    'exit of an older tenure believed': 11,
    'own term counts': 60429,
    'forgotten host comes back': 10,
    'foreign folder believed': 7,
    'row saved without the gate': 60272,
    'row deleted without the gate': 111,
    'row created after the gate': 60250,
    "resume of another host's task": 60034,
    'push of a pinned node': 4,
    'create without agreement': 2063,
    'created row used unconfirmed': 1,
    'wall clocks of others trusted': 92,
    'delete on error': 60092,
    'resume only at start': 4,
    'row not following the instance': 60020,
    'deleted server left on its node': 4,
    'message acknowledged at receipt': 42,
    'messages received past the lease': 6,
    'redelivered build dropped': 60063,
    'redelivered build not undone': 60063,
    'redelivered build without its node': 60366,
    'loser of a node tries stale alternates': 60055,
    'duplicate build let through': 60063,
    **feed_defects.SEEDS,
    **path_defects.SEEDS,
    **move_defects.SEEDS,
    **pool_defects.SEEDS,
    **task_defects.SEEDS,
}

# SPDX-License-Identifier: Apache-2.0
"""Planted defects: the real things with one rule broken each.

They are what shows that the simulation can see. Each is a makeup with one
part exchanged for a subclass that forgets one thing; nothing else changes.
"""

import dataclasses
from collections.abc import Iterator
from typing import Any

from hashring.agent import Agent
from hashring.assignment import Assignment
from hashring.events import Effect, Release, Stop
from hashring.group import LockToken
from hashring.heartbeat import HeartbeatState
from hashring.host_states import Hold
from hashring.lease import Beat, Lease, Verdict
from hashring.ring import Host
from ironic_compute.errors import IronicComputeError, NodeNotFound
from ironic_compute.nodes.held_nodes import HeldNodes, Moment
from ironic_compute.ownership.new_nodes import NewNodes
from ironic_compute.ownership.rebalance import Rebalancer
from ironic_compute.ownership.removal import Removal
from ironic_compute.recovery.decisions import Stray
from ironic_compute.recovery.stray_instances import StrayInstances
from resource_tracker.node import NodeId
from tests.simulation.compute import ResumeHere
from tests.simulation.makeup import Makeup, with_parts
from tests.simulation.worker import Gate
from tests.unit.hashring.coordination import FakeGroup


class LawlessGroup(FakeGroup):
    """Adopts without the lock."""

    def try_lock(self, host: Host) -> bool:
        super().try_lock(host)
        return True


class TrustingGroup(FakeGroup):
    """Keeps the same worker when it gets the lock a second time."""

    def owns_lock(self, host: Host) -> bool:
        return super().owns_lock(host) or self.try_lock(host)


class BluntGroup(FakeGroup):
    """Frees the lock of whoever has it, for its own last life's."""

    def break_lock(self, host: Host, token: LockToken) -> None:
        now = self._service.token(host)
        super().break_lock(host, LockToken(str(now)))


class ForgivingLease(Lease):
    """Counts a heartbeat that came back late."""

    def after(self, beat: Beat) -> tuple[Lease, Verdict]:
        if not beat.shown:
            return super().after(beat)
        renewed = dataclasses.replace(self, base_s=beat.sent_s, counted=True)
        return renewed, Verdict.COUNTED


class GreedyLease(Lease):
    """Uses its term to the last instant."""

    @property
    def deadline_s(self) -> float:
        held_s = super().deadline_s
        return held_s + self.margin_s if held_s else 0.0


class ReplyLease(Lease):
    """Counts the deadline from the reply instead of the request."""

    def after(self, beat: Beat) -> tuple[Lease, Verdict]:
        lease, verdict = super().after(beat)
        if verdict is Verdict.COUNTED:
            lease = dataclasses.replace(lease, base_s=beat.returned_s)
        return lease, verdict


class HastyAssignment(Assignment):
    """Gives a host back while its worker still drains."""

    def _stop_if_unwanted(self, hold: Hold, now_s: float) -> Iterator[Effect]:
        for effect in super()._stop_if_unwanted(hold, now_s):
            yield effect
            if isinstance(effect, Stop):
                yield Release(hold.host, hold.ticket, effect.why)


class StubbornAssignment(Assignment):
    """Lets a worker go on whatever the backend says of its lock."""

    def _apply_lock_check(self, event: Any) -> Iterator[Effect]:
        return super()._apply_lock_check(dataclasses.replace(event, ours=True))


class OnceOpenGate(Gate):
    """Is not looked at again after a pause."""

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


# Of nodes, servers and messages


class PushyHandover(Rebalancer):
    """Pushes a node whoever is on it."""

    def _is_free(self, node: NodeId) -> bool:
        return True

    def _give(self, node: NodeId, target: Host) -> bool:
        row, record = (
            self._held_nodes.row(node),
            self._services.find_record(target),
        )
        if row is None or record is None:
            return False
        given = self._compute_nodes.give(row, target, record.id)
        if given:
            self._held_nodes.drop(node)
        return given


class LonelyNewcomers(NewNodes):
    """Creates a row although the others have another ring."""

    def _may_take(self, node: NodeId) -> bool:
        return (
            self._pool.ring_status().ring.target(node) == self._held_nodes.host
            and self._held_nodes.status.service_id is not None
        )

    def _may_create(self, node: NodeId, read: Any) -> bool:
        return self._may_take(node)


class TrustingHoldings(HeldNodes):
    """Offers a new node at once."""

    def _enter(self, row: Any, read_at: Moment) -> None:
        super()._enter(row, read_at)
        self._unconfirmed.clear()


class ForgetfulHandover(Rebalancer):
    """Leaves a node where it is, wherever its server is."""

    def follow_instance(self, node: NodeId, host: Host) -> None:
        pass


class RashRemoval(Removal):
    """Takes any error for "no such node"."""

    def _is_missing(self, node: NodeId) -> bool:
        try:
            self._client.node(node)
        except NodeNotFound:
            return True
        except IronicComputeError:
            return True
        return False


class LazyResume(ResumeHere):
    """Looks once, at the worker's start."""

    _looked = False

    def round(self) -> None:
        if not self._looked:
            super().round()
            self._looked = True


class IndulgentStrays(StrayInstances):
    """Leaves on a node what Nova has deleted."""

    def _act(self, stray: Stray, key: Any, rows: Any) -> None:
        if stray is not Stray.DELETED:
            super()._act(stray, key, rows)


def endless_hop(holder: str | None, here: str, hops_count: int) -> str | None:
    """Send a message on however often it was sent on already."""
    return holder if holder != here else None


def _everything(vm_state: str, host: str | None) -> bool:
    """Take each message for the first one."""
    return True


# Name -> the makeup that has it.
MAKEUPS: dict[str, Makeup] = {
    'no margin': with_parts(agent=_agent_with_lease(GreedyLease)),
    'gate not checked after a pause': with_parts(gate=OnceOpenGate),
    'adopt without the lock': with_parts(group=LawlessGroup),
    'late heartbeat counts': with_parts(
        agent=_agent_with_lease(ForgivingLease)
    ),
    'same worker in a new tenure': with_parts(group=TrustingGroup),
    "somebody else's lock freed": with_parts(group=BluntGroup),
    'lock not proven after a lapse': with_parts(
        agent=_agent_with_assignment(StubbornAssignment)
    ),
    'deadline counted from the reply': with_parts(
        agent=_agent_with_lease(ReplyLease)
    ),
    'hand-back before the worker stopped': with_parts(
        agent=_agent_with_assignment(HastyAssignment)
    ),
    'push of a pinned node': with_parts(rebalancer=PushyHandover),
    'create without agreement': with_parts(new_nodes=LonelyNewcomers),
    'created row used unconfirmed': with_parts(held_nodes=TrustingHoldings),
    'delete on error': with_parts(removal=RashRemoval),
    'resume only at start': with_parts(resume=LazyResume),
    'row not following the instance': with_parts(rebalancer=ForgetfulHandover),
    'deleted server left on its node': with_parts(strays=IndulgentStrays),
    'duplicate build let through': with_parts(is_wanted=_everything),
}

# Name -> a seed that shows it, so that the tests need not search; look for
# another one with --defects when the simulation was changed.
SEEDS: dict[str, int] = {
    'no margin': 123,
    'gate not checked after a pause': 9,
    'adopt without the lock': 9,
    'late heartbeat counts': 231,
    'same worker in a new tenure': 7,
    "somebody else's lock freed": 44,
    'lock not proven after a lapse': 10,
    'deadline counted from the reply': 102,
    'hand-back before the worker stopped': 11,
    'push of a pinned node': 0,
    'create without agreement': 202,
    'created row used unconfirmed': 2,
    'delete on error': 60,
    'resume only at start': 3,
    'row not following the instance': 0,
    'deleted server left on its node': 32,
    'duplicate build let through': 11,
}

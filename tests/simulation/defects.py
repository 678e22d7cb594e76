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
from hashring.lease import Beat, Lease, Verdict
from hashring.phases import Hold
from hashring.protocol import Effect, Release, Stop
from hashring.pulse import State
from hashring.ring import Host
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

    def still_ours(self, host: Host) -> bool:
        return super().still_ours(host) or self.try_lock(host)


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

    def _settle_wish(self, hold: Hold, now_s: float) -> Iterator[Effect]:
        for effect in super()._settle_wish(hold, now_s):
            yield effect
            if isinstance(effect, Stop):
                yield Release(hold.host, hold.ticket, effect.why)


class StubbornAssignment(Assignment):
    """Lets a worker go on whatever the backend says of its lock."""

    def _proven(self, event: Any) -> Iterator[Effect]:
        return super()._proven(dataclasses.replace(event, ours=True))


class OnceOpenGate(Gate):
    """Is not looked at again after a pause."""

    _was_open = False

    def is_open(self) -> bool:
        self._was_open = self._was_open or super().is_open()
        return self._was_open


def _agent_with_lease(kind: type[Lease]) -> Any:
    def make(**arguments: Any) -> Agent:
        agent = Agent(**arguments)
        timing = arguments['options']
        lease = kind(timing.lease_term_s, timing.lease_margin_s)
        agent.pulse._state = State(lease)
        return agent

    return make


def _agent_with_assignment(kind: type[Assignment]) -> Any:
    def make(**arguments: Any) -> Agent:
        agent = Agent(**arguments)
        agent.assignment = kind(
            arguments['home'],
            arguments['membership'].boot,
            arguments['options'],
            arguments['membership'].traits,
        )
        return agent

    return make


# Of leases and locks: name -> the makeup that has it.
OF_LEASES: dict[str, Makeup] = {
    'no margin': with_parts(agent=_agent_with_lease(GreedyLease)),
    'gate not checked after a pause': with_parts(gate=OnceOpenGate),
    'adopt without the lock': with_parts(group=LawlessGroup),
    'late heartbeat counts': with_parts(
        agent=_agent_with_lease(ForgivingLease)
    ),
    'same worker in a new tenure': with_parts(group=TrustingGroup),
    'lock not proven after a lapse': with_parts(
        agent=_agent_with_assignment(StubbornAssignment)
    ),
    'deadline counted from the reply': with_parts(
        agent=_agent_with_lease(ReplyLease)
    ),
    'hand-back before the worker stopped': with_parts(
        agent=_agent_with_assignment(HastyAssignment)
    ),
}

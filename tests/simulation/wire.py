# SPDX-License-Identifier: Apache-2.0
"""The way of a worker's requests to Nova, Ironic and Placement.

A request leaves, is carried out, and is answered. Once it has left it
happens, whatever becomes of the sender: that is how a late write comes
about. Its answer may be lost; then the sender does not know.
"""

import dataclasses
import math
from collections.abc import Callable
from typing import Any

from ironic_compute.gate import LeaseGate
from tests.simulation.faults import Unreachable

# What the sender waits for an answer; nova-conductor goes on regardless.
TIMEOUT_S = 6.0
# A request that takes longer, or outlives its sender's right to act, is a
# late write: what it breaks must only heal.
PROMPT_S = 2.0


@dataclasses.dataclass(frozen=True, slots=True)
class Letter:
    """A request as it arrives.

    :param late: its sender may have been replaced since it was sent
    :param way_s: how long it was under way
    :param alone_s: when its sender last had had, for long enough, a ring
        that all others had too
    """

    sender: str
    host: str
    late: bool
    way_s: float = 0.0
    alone_s: float = -math.inf


class _Reply:
    """What a request came to."""

    def __init__(self) -> None:
        self.arrived = False
        self.value: Any = None
        self.error: Exception | None = None


class Wire:
    """All requests of one worker."""

    def __init__(self, world: Any, worker: Any) -> None:
        self._world = world
        self._kernel = world.kernel
        self._faults = world.faults
        self._worker = worker

    def ask(self, act: Callable[[], Any]) -> Any:
        """Read something."""
        self._may_break_down()
        if self._faults.strikes('no answer'):
            self._kernel.sleep(1.0)
            raise Unreachable('no answer')
        self._kernel.sleep(self._world.rng.uniform(0.002, 0.03))
        value = act()
        self._kernel.sleep(self._delay_s())
        return value

    def order(
        self, act: Callable[[Letter], Any], *, gated: bool = True
    ) -> Any:
        """Change something.

        :param gated: the gate stands before this request; not so before
            what Nova's own code writes into a server's row
        """
        self._may_break_down()
        if gated:
            self._check_gate()
        reply = _Reply()
        way_s = self._way_s()
        self._kernel.later(way_s, self._carrier(act, way_s, reply))
        if self._faults.strikes('stick'):
            self._world.freeze(
                self._worker.machine, self._faults.choose(1.0, 16.0, 45.0)
            )
        self._kernel.sleep(min(way_s, TIMEOUT_S) + self._delay_s())
        if not reply.arrived or self._faults.strikes('lose'):
            raise Unreachable('no answer to a change')
        if reply.error is not None:
            raise reply.error
        return reply.value

    def _carrier(
        self, act: Callable[[Letter], Any], way_s: float, reply: _Reply
    ) -> Callable[[], None]:
        worker = self._worker

        def arrive() -> None:
            rightful = worker.alive and LeaseGate.is_open(worker.gate)
            late = way_s > PROMPT_S or not rightful
            letter = Letter(
                worker.name, worker.host, late, way_s, worker.pool.alone_s
            )
            try:
                reply.value = act(letter)
            except self._world.ANSWERS as exc:
                reply.error = exc
            reply.arrived = True

        return arrive

    def _way_s(self) -> float:
        if self._faults.strikes('late'):
            return self._faults.choose(3.0, 5.0, 15.0, 45.0)
        if self._faults.strikes('slow'):
            return self._faults.choose(0.5, 1.5)
        return float(self._world.rng.uniform(0.002, 0.03))

    def _delay_s(self) -> float:
        return float(self._world.rng.uniform(0.002, 0.03))

    def _may_break_down(self) -> None:
        if self._faults.strikes('die'):
            machine = self._worker.machine
            if self._world.rng.random() < 0.5:
                machine.kill(self._faults.choose(0.5, 5.0, 30.0))
            elif self._worker.alive:
                self._world.tell(f'crash {self._worker.name} at a request')
                machine.workers.crash(self._worker.host)

    def _check_gate(self) -> None:
        """Nothing that changes anything leaves while the gate is shut."""
        worker = self._worker
        if worker.alive and not LeaseGate.is_open(worker.gate):
            self._world.fail(f'{worker.name} sends through a shut gate')

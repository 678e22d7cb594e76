# SPDX-License-Identifier: Apache-2.0
"""Requests of a worker to Nova, Ironic and Placement, with delays and faults.

A request that was sent is carried out even if its sender has died or lost
its lease meanwhile; then it is a late write. Its reply may be lost; then the
sender does not know whether it was carried out.
"""

import contextlib
import dataclasses
import math
from collections.abc import Callable
from typing import Any

from hashring.paths import Path
from ironic_compute import errors
from ironic_compute.gate import LeaseGate
from ironic_compute.paths.path_health import RABBITMQ
from tests.simulation.faults import Unreachable
from tests.simulation.paths import Route

# Seconds that the sender waits for a reply; nova-conductor goes on anyway.
TIMEOUT_S = 6.0
# A request that takes longer, or whose sender loses the right to act
# meanwhile, is a late write; the invariants that it violates must be repaired.
PROMPT_S = 2.0
# How often a request without an answer is sent in all.
_TRIES_COUNT = 3


@dataclasses.dataclass(frozen=True, slots=True)
class SentRequest:
    """A changing request at the moment of its arrival.

    :param late: another worker may have replaced the sender since
    :param way_s: the seconds it was under way
    :param resumes: the sender continues an interrupted task
    :param alone_s: when the sender's ring was last agreed on by all agents
        for long enough
    :param is_repeated: the sender had no answer to the same request before
    """

    sender: str
    host: str
    late: bool
    way_s: float = 0.0
    resumes: bool = False
    alone_s: float = -math.inf
    is_repeated: bool = False


class _Reply:
    """The result of a request."""

    def __init__(self) -> None:
        self.arrived = False
        self.value: Any = None
        self.error: Exception | None = None


def _unnoted(send: Callable[[], Any]) -> Any:
    """Send a request."""
    return send()


class Wire:
    """The requests of one worker to one service.

    :param note: sends a request and notes whether it had an answer
    """

    def __init__(
        self,
        world: Any,
        worker: Any,
        service: Path,
        note: Callable[[Callable[[], Any]], Any] = _unnoted,
    ) -> None:
        self._world = world
        self._kernel = world.kernel
        self._faults = world.faults
        self._worker = worker
        self._note = note
        self._route = Route(world, worker.machine, service, TIMEOUT_S)
        # All casts go to RabbitMQ.
        self._cast_route = Route(world, worker.machine, RABBITMQ, TIMEOUT_S)
        # The threads that send a request again.
        self._repeating: set[Any] = set()

    def read(self, act: Callable[[], Any]) -> Any:
        """Send a reading request and return its result."""
        return self._note(lambda: self._read(act))

    def _read(self, act: Callable[[], Any]) -> Any:
        self._may_break_down()
        if self._faults.occurs('no answer'):
            self._kernel.sleep(1.0)
            raise Unreachable('no answer')
        self._kernel.sleep(self._delay_s() + self._route.slow_s())
        self._route.pass_request()
        try:
            value = act()
        except self._world.ANSWERS:
            self._route.pass_answer()
            raise
        self._kernel.sleep(self._delay_s() + self._route.slow_s())
        self._route.pass_answer()
        return value

    def write(
        self, act: Callable[[SentRequest], Any], *, gated: bool = True
    ) -> Any:
        """Send a changing request and return its result.

        :param gated: check the gate first; False for a Service's report
        """
        return self._note(lambda: self._write(act, gated))

    def _write(self, act: Callable[[SentRequest], Any], gated: bool) -> Any:
        if self._world.environment.has_tasks:
            # A task that is killed runs its ``finally``; it sends nothing.
            self._kernel.require_task()
        self._may_break_down()
        if gated:
            self._check_gate()
        self._route.pass_request()
        reply = _Reply()
        way_s = self._way_s() + self._route.slow_s()
        self._kernel.later(way_s, self._carrier(act, way_s, reply))
        self.stick('stick')
        back_s = self._delay_s() + self._route.slow_s()
        self._kernel.sleep(min(way_s, TIMEOUT_S) + back_s)
        if not reply.arrived or self._faults.occurs('lose'):
            raise Unreachable('no answer to a change')
        self._route.pass_answer()
        if reply.error is not None:
            raise reply.error
        return reply.value

    def cast(self, act: Callable[[], Any]) -> None:
        """Send a message; the sender may end before or after that."""
        self._may_break_down()
        self._cast_route.pass_request()
        self._kernel.later(self._delay_s(), act)
        self._kernel.sleep(2 * self._delay_s())
        self._cast_route.pass_answer()
        self._may_break_down()

    def repeat(self, send: Callable[[], Any]) -> Any:
        """Send a request again if it has no answer, as ``gated_writes`` does.

        A task may fail if the last try has no answer, either.
        """
        task = self._kernel.task
        try:
            for _ in range(_TRIES_COUNT - 1):
                with contextlib.suppress(Unreachable):
                    return send()
                self._repeating.add(task)
            return send()
        except (Unreachable, errors.IronicUnavailable) as exc:
            self._worker.excuse_task(repr(exc))
            raise
        finally:
            self._repeating.discard(task)

    def stick(self, kind: str) -> None:
        """Freeze the machine here, in worlds with this kind of fault."""
        if self._faults.occurs(kind):
            self._world.freeze(
                self._worker.machine, self._faults.choose(1.0, 16.0, 45.0)
            )
            self._kernel.sleep(0.001)

    def wait_and_write(self, act: Callable[[SentRequest], Any]) -> Any:
        """Write when the gate is open, as ``worker.gated_writes`` does."""
        self._worker.gate.wait()
        return self.write(act)

    def _carrier(
        self, act: Callable[[SentRequest], Any], way_s: float, reply: _Reply
    ) -> Callable[[], None]:
        worker = self._worker
        resumes = worker.is_resuming()
        is_repeated = self._kernel.task in self._repeating

        def arrive() -> None:
            rightful = worker.alive and LeaseGate.is_open(worker.gate)
            late = way_s > PROMPT_S or not rightful
            request = SentRequest(
                worker.name,
                worker.host,
                late,
                way_s,
                resumes,
                worker.pool.alone_s,
                is_repeated,
            )
            try:
                reply.value = act(request)
            except self._world.ANSWERS as exc:
                reply.error = exc
            reply.arrived = True

        return arrive

    def _way_s(self) -> float:
        if self._faults.occurs('late'):
            return self._faults.choose(3.0, 5.0, 15.0, 45.0)
        if self._faults.occurs('slow'):
            return self._faults.choose(0.5, 1.5)
        return float(self._world.rng.uniform(0.002, 0.03))

    def _delay_s(self) -> float:
        return float(self._world.rng.uniform(0.002, 0.03))

    def _may_break_down(self) -> None:
        if self._faults.occurs('die'):
            self._worker.excuse_begun_reboot()
            machine = self._worker.machine
            if self._world.rng.random() < 0.5:
                machine.kill(self._faults.choose(0.5, 5.0, 30.0))
            elif self._worker.alive:
                self._world.log(f'crash {self._worker.name} at a request')
                machine.workers.crash(self._worker.host)

    def _check_gate(self) -> None:
        """Check that no changing request is sent while the gate is shut."""
        worker = self._worker
        if worker.alive and not LeaseGate.is_open(worker.gate):
            self._world.fail(f'{worker.name} sends through a shut gate')

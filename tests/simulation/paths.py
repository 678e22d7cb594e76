# SPDX-License-Identifier: Apache-2.0
"""Simulated paths: the ways from each machine to each service and back.

Each machine has its own path to each service. A path may lose everything, only
the requests, or only the answers; or it is slow, or resets most connections.
nova-conductor is reached through RabbitMQ, so whoever loses RabbitMQ loses it,
too.
"""

import dataclasses
import enum
import math
from typing import Any

from hashring.paths import Path
from ironic_compute.paths.path_health import (
    CONDUCTOR,
    IRONIC,
    NEUTRON,
    PLACEMENT,
    RABBITMQ,
)
from tests.simulation.faults import Unreachable
from tests.simulation.kernel import Kernel

PATHS = (RABBITMQ, CONDUCTOR, IRONIC, PLACEMENT, NEUTRON)
# Services that a worker sends requests to, whatever happens.
BUSY_PATHS = (RABBITMQ, CONDUCTOR, IRONIC)
# Services for which each request needs a connection.
HTTP_PATHS = (IRONIC, PLACEMENT, NEUTRON)
# The paths that a request to a service needs.
_NEEDED = {path: (path,) for path in PATHS} | {
    CONDUCTOR: (RABBITMQ, CONDUCTOR)
}
# How often paths are cut, per second.
RATES_PER_S = (0.005, 0.015, 0.05)
# How long, in seconds. A path that is cut for the last of them fails for long
# enough to be noticed, proven to work elsewhere, and acted upon.
CUTS_S = (3.0, 12.0, 30.0, 130.0)
# By how much the cuts and the ends of cuts of several machines differ.
SPREADS_S = (0.0, 2.0, 10.0)
REFUSED_S = 0.1
# How often a path begins to reset connections, per second, in some worlds.
RESETS_PER_S = 0.01
# Of such a path: the shares of requests, and of the answers to others, that
# are lost. Three requests in twenty have an answer.
REQUESTS_RESET, ANSWERS_RESET = 0.6, 0.625
# Of a slow path: requests and answers take this time each.
SLOW_S = (1.0, 1.8)


class Loss(enum.Enum):
    """What a path does to requests and answers."""

    ALL = 'all is lost'
    REQUESTS = 'requests are lost'
    ANSWERS = 'answers are lost'
    SLOW = 'slow'
    RESETS = 'most connections are reset'


_LOSSES = (Loss.ALL, Loss.REQUESTS, Loss.ANSWERS)


@dataclasses.dataclass(frozen=True, eq=False)
class Cut:
    """A failure of one path of one machine.

    :param refuses: the sender is refused at once, and does not wait
    """

    loss: Loss
    refuses: bool
    since_s: float


class MachinePaths:
    """The paths of one machine."""

    def __init__(self, kernel: Kernel) -> None:
        self._kernel = kernel
        self._cuts: dict[Path, Cut] = {}

    def cut(self, path: Path, loss: Loss, *, refuses: bool = False) -> Cut:
        """Let a path fail; it remains so until `heal`."""
        former = self._cuts.get(path)
        since_s = self._kernel.now_s
        if former is not None and former.loss is not Loss.SLOW:
            since_s = former.since_s
        cut = self._cuts[path] = Cut(loss, refuses, since_s)
        return cut

    def heal(self, path: Path, cut: Cut) -> None:
        """End a failure, unless another one has begun since."""
        if self._cuts.get(path) is cut:
            del self._cuts[path]

    def heal_all(self) -> None:
        """End all failures."""
        self._cuts.clear()

    def find(self, service: Path, *losses: Loss) -> Cut | None:
        """Return a failure of this kind on the way to a service."""
        if not self._cuts:  # So it is nearly always.
            return None
        for path in _NEEDED[service]:
            cut = self._cuts.get(path)
            if cut is not None and cut.loss in losses:
                return cut
        return None

    def loses_requests(self, service: Path) -> bool:
        return self.find(service, Loss.ALL, Loss.REQUESTS) is not None

    def loses_answers(self, service: Path) -> bool:
        return self.find(service, Loss.ALL, Loss.ANSWERS) is not None

    def lost_since_s(self, service: Path) -> float:
        """Return since when no request has an answer; infinite: they do."""
        cut = self.find(service, *_LOSSES)
        return math.inf if cut is None else cut.since_s

    def failing_since_s(self, service: Path) -> float:
        """Return since when most requests fail; infinite: they do not."""
        cut = self.find(service, *_LOSSES, Loss.RESETS)
        return math.inf if cut is None else cut.since_s


class Route:
    """The path of one client of a machine, as its requests meet it.

    :param timeout_s: how long the client waits for an answer
    """

    def __init__(
        self, world: Any, machine: Any, service: Path, timeout_s: float
    ) -> None:
        self._world = world
        self._paths: MachinePaths = machine.paths
        self._service = service
        self._timeout_s = timeout_s

    def slow_s(self) -> float:
        """Return by how much a request, or an answer, is slower than usual."""
        if self._paths.find(self._service, Loss.SLOW) is None:
            return 0.0
        return float(self._world.rng.uniform(*SLOW_S))

    def pass_request(self) -> None:
        """Let a request pass; raise after the time-out if it is lost."""
        cut = self._paths.find(self._service, Loss.ALL, Loss.REQUESTS)
        if cut is not None:
            self._wait_and_fail(cut)
        self._may_reset(REQUESTS_RESET)

    def pass_answer(self) -> None:
        """Let an answer pass; raise after the time-out if it is lost."""
        cut = self._paths.find(self._service, Loss.ALL, Loss.ANSWERS)
        if cut is not None:
            self._wait_and_fail(cut)
        self._may_reset(ANSWERS_RESET)

    def _may_reset(self, share: float) -> None:
        if self._paths.find(self._service, Loss.RESETS) is None:
            return
        if self._world.rng.random() < share:
            self._world.kernel.sleep(REFUSED_S)
            raise Unreachable(f'reset by {self._service}')

    def _wait_and_fail(self, cut: Cut) -> None:
        is_refused = cut.refuses and cut.loss is Loss.ALL
        wait_s = REFUSED_S if is_refused else self._timeout_s
        self._world.kernel.sleep(wait_s)
        raise Unreachable(f'no answer of {self._service}')


class PathFaults:
    """Cuts and heals paths during the storm, in worlds with such faults."""

    def __init__(self, world: Any) -> None:
        self._world = world
        if world.environment.has_resets:
            world.faults.repeat('reset', RESETS_PER_S, self._reset)
            return
        rate = world.rng.choice(RATES_PER_S)
        causes = (self._fail, self._fail, self._fail_for_all, self._flap)
        world.faults.repeat('path', rate, lambda: world.rng.choice(causes)())

    def _fail(self) -> None:
        """Cut one path or several of one machine or several."""
        machines = self._world.machines
        count = self._world.rng.choice((1, 1, 2, len(machines)))
        chosen = self._world.rng.sample(machines, min(count, len(machines)))
        services = self._world.rng.sample(
            PATHS, self._world.rng.choice((1, 1, 2, 4))
        )
        for service in services:
            self._fail_for(chosen, service)

    def _reset(self) -> None:
        """Have one machine's connections to a service reset, most of them."""
        machine = self._world.rng.choice(self._world.machines)
        service = self._world.rng.choice(HTTP_PATHS)
        self._plan(machine, service, Loss.RESETS, 0.0, CUTS_S[-1])

    def _fail_for_all(self) -> None:
        """Cut all machines off from one service: its outage."""
        self._fail_for(self._world.machines, self._world.rng.choice(PATHS))

    def _fail_for(self, machines: list[Any], service: Path) -> None:
        loss = self._world.rng.choice(
            (Loss.ALL, Loss.ALL, *_LOSSES, Loss.SLOW)
        )
        spread_s = self._world.rng.choice(SPREADS_S)
        cut_s = self._world.rng.choice(CUTS_S)
        for machine in machines:
            begins_s = self._world.rng.uniform(0.0, spread_s)
            lasts_s = cut_s + self._world.rng.uniform(0.0, spread_s)
            self._plan(machine, service, loss, begins_s, lasts_s)

    def _flap(self) -> None:
        """Let one path fail and heal again and again."""
        machine = self._world.rng.choice(self._world.machines)
        service = self._world.rng.choice(PATHS)
        begins_s = 0.0
        for _ in range(self._world.rng.choice((3, 6))):
            lasts_s = self._world.rng.uniform(1.0, 20.0)
            self._plan(machine, service, Loss.ALL, begins_s, lasts_s)
            begins_s += lasts_s + self._world.rng.uniform(1.0, 20.0)

    def _plan(
        self,
        machine: Any,
        service: Path,
        loss: Loss,
        begins_s: float,
        lasts_s: float,
    ) -> None:
        refuses = self._world.rng.random() < 0.5
        self._world.kernel.later(
            begins_s,
            lambda: self._cut(machine, service, loss, refuses, lasts_s),
        )

    def _cut(
        self,
        machine: Any,
        service: Path,
        loss: Loss,
        refuses: bool,
        lasts_s: float,
    ) -> None:
        world = self._world
        if world.faults.calm:
            return
        cut = machine.paths.cut(service, loss, refuses=refuses)
        world.log(
            f'{machine.home} to {service}: {loss.value} for {lasts_s:.1f} s'
        )
        if service == RABBITMQ:
            world.nova.broker.notice_cut(machine)
        world.kernel.later(lasts_s, lambda: machine.paths.heal(service, cut))

# SPDX-License-Identifier: Apache-2.0
"""Lives in which one path of one machine comes and goes for ten minutes.

Nothing else fails. What counts is how often hosts move because of it: each
move kills a worker, and its requests wait for the next one.
"""

import itertools
import re
from collections.abc import Iterable, Iterator
from typing import Any

from ironic_compute.paths.path_health import RABBITMQ
from tests.simulation import lives
from tests.simulation.environment import Environment
from tests.simulation.makeup import with_parts
from tests.simulation.paths import PATHS, Loss

BEGINS_S = 40.0
LASTS_S = 600.0
_START = re.compile(r' start worker (\w+)\.\d+@(\w+)\.')


class Flapping:
    """Cuts and heals one path again and again, instead of ``PathFaults``.

    :param away_s: how long the path is cut each time
    :param there_s: how long it works in between
    """

    def __init__(self, world: Any, away_s: float, there_s: float) -> None:
        rng = world.rng
        self._world = world
        self._away_s = away_s
        self._machine = rng.choice(world.machines)
        self._service = rng.choice(PATHS)
        self._loss = rng.choice((Loss.ALL, Loss.REQUESTS, Loss.ANSWERS))
        self._refuses = rng.random() < 0.5
        for number in range(int(LASTS_S / (away_s + there_s))):
            begins_s = BEGINS_S + number * (away_s + there_s)
            world.kernel.later(begins_s, self._cut)

    def _cut(self) -> None:
        machine, service, world = self._machine, self._service, self._world
        cut = machine.paths.cut(service, self._loss, refuses=self._refuses)
        if service == RABBITMQ:
            world.nova.broker.notice_cut(machine)
        world.log(f'{machine.home} to {service}: {self._loss.value}')
        world.kernel.later(
            self._away_s, lambda: machine.paths.heal(service, cut)
        )


def seeds(first: int) -> Iterator[int]:
    """Yield the seeds of worlds in which only paths fail.

    Odd seeds are left out: there, a machine ends for good in the calm.
    """
    for seed in itertools.count(first + first % 2, 2):
        if Environment(seed).has_only_path_faults:
            yield seed


def count_moves(seed: int, away_s: float, there_s: float) -> int:
    """Live a life with a path that comes and goes; return all moves.

    The way back home counts, too.
    """
    makeup = with_parts(
        path_faults=lambda world: Flapping(world, away_s, there_s)
    )
    storm_s = (BEGINS_S + LASTS_S) / lives.PATHS_STORM_FACTOR
    return count_in(lives.run(seed, makeup, storm_s=storm_s).story)


def count_in(story: Iterable[str]) -> int:
    """Count the starts of workers on another machine than before."""
    machines: dict[str, str] = {}
    moves_count = 0
    for found in filter(None, map(_START.search, story)):
        host, machine = found.groups()
        moves_count += machines.get(host, machine) != machine
        machines[host] = machine
    return moves_count

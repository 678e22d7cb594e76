# SPDX-License-Identifier: Apache-2.0
"""Run the world of one seed through its storm and its calm."""

import contextlib
import logging
import pathlib
from collections.abc import Iterator

from tests.simulation.cloud import Cloud
from tests.simulation.makeup import BACKENDS, FOLDER, Makeup
from tests.simulation.world import World

STORM_S = 120.0
# At most; most lives are well long before. A build that was lost is ended
# after five minutes, and an agent that was half alive for the n-th time waits
# 45 s * 2 ** (n - 1) before it serves again.
CALM_S = 720.0
# In worlds in which paths fail, the storm lasts longer.
PATHS_STORM_FACTOR = 2.0


def run(
    seed: int,
    makeup: Makeup | None = None,
    *,
    storm_s: float = STORM_S,
    whole_story: bool = False,
) -> World:
    """Run one seed and return its world.

    :param whole_story: a failure shows all log lines, not only the last ones
    :raises Broken: an invariant was violated, or a host is not served in the
        calm
    """
    makeup = makeup or Makeup()
    environment = makeup.environment(seed, makeup.certain)
    certain = tuple(b for b in BACKENDS if b.name in makeup.certain)
    backends = certain or BACKENDS
    backend = backends[seed % len(backends)]
    if environment.is_on_folder:
        backend = FOLDER
    if environment.has_path_faults:
        storm_s *= PATHS_STORM_FACTOR
    hosts_count = 2 + seed // len(BACKENDS) % 3
    storm_s += environment.quiet_s
    world = Cloud(seed, makeup, backend, hosts_count)
    world.logs_all = whole_story
    with silence(), world.conductor.installed():
        try:
            world.live(storm_s, CALM_S)
        finally:
            world.end_all()
    return world


@contextlib.contextmanager
def silence() -> Iterator[None]:
    """Log nothing; for many lives at once, since each change costs 1 ms."""
    former = logging.root.manager.disable
    if former < logging.CRITICAL:
        logging.disable(logging.CRITICAL)
    try:
        yield
    finally:
        if former < logging.CRITICAL:
            logging.disable(former)


def kept() -> list[int]:
    """Return the seeds of ``kept.txt``, which every run includes."""
    path = pathlib.Path(__file__).with_name('kept.txt')
    lines = path.read_text().splitlines()
    return [int(line) for line in lines if line and not line.startswith('#')]

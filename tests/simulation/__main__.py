# SPDX-License-Identifier: Apache-2.0
"""Lives of invented clouds by the thousand: ``python -m tests.simulation``."""

import argparse
import contextlib
import gc
import sys
from collections.abc import Iterator
from concurrent import futures

# Chooses threads before anything of Nova is imported.
from tests import conftest  # noqa: F401  # isort: skip
from hashring.clock import SystemClock
from tests.simulation import defects, lives
from tests.simulation.makeup import Makeup
from tests.simulation.world import Broken

TEACH = """\
Each seed is one life: two to four controllers with real agents and workers'
real parts, a lock service, Nova, Ironic, Placement and users, all in one
thread and in invented time. In half of the seeds users are at work for a
minute. Then two minutes of storm, in which machines freeze, die and lose their
way and requests are late, lost or repeated; in some seeds machines lose their
paths to services, for four minutes; then calm.
Safety is checked after each step, and in the calm all must become well.

  python -m tests.simulation                    2,000 new seeds, kept ones too
  python -m tests.simulation --fixed            2,000 seeds, always the same
  python -m tests.simulation --seed 4711        one seed, with its whole story
  python -m tests.simulation --seeds 50000 --from 1 --jobs 2 --minutes 60
  python -m tests.simulation --all --jobs 2     2,000 new seeds and --defects
  python -m tests.simulation --defects          are all with a seed seen?
  python -m tests.simulation --defect 'no margin' --jobs 2

A seed that fails is printed with the end of its story; it goes into
tests/simulation/kept.txt when the cause is mended. The same seed is the same
life until the simulation itself is changed. The exit status is 1 if anything
failed, or a planted defect was not seen.
"""
CHUNK = 10
# The seeds that every change must live are always the same: a failure among
# them is due to the change. Other runs live new seeds, which find what fails
# once in some thousand lives, whoever brought it in.
FIXED_START = 20_000
# Bound the search for a planted defect, and for one that has no seed.
DEFECT_SEEDS = 1500
RARE_SEEDS = 100_000

Failure = tuple[int, str]


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog='python -m tests.simulation',
        description=TEACH,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = parser.add_argument
    add('--seeds', type=int, default=2000, metavar='N', help='how many')
    add('--skip', type=int, metavar='N', help='neither these nor kept ones')
    add('--from', type=int, dest='start', metavar='S', help='the first one')
    add('--fixed', action='store_true', help='those that every change lives')
    add('--seed', type=int, metavar='K', help='this one, with its story')
    add('--defect', choices=sorted(defects.MAKEUPS), metavar='NAME')
    add('--defects', action='store_true', help='all that have a seed')
    add('--all', action='store_true', help='new seeds and all these defects')
    add('--jobs', type=int, default=1, metavar='J', help='processes')
    add(
        '--storm',
        type=float,
        default=lives.STORM_S,
        metavar='S',
        help='seconds of storm in each life (default: %(default)g)',
    )
    add('--minutes', type=float, metavar='M', help='begin nothing after that')
    return parser.parse_args()


def failures_of(
    seeds: list[int], defect: str | None, storm_s: float
) -> list[Failure]:
    """Live these lives; the failed ones, each with the end of its story."""
    makeup = defects.MAKEUPS[defect] if defect else Makeup()
    failed = []
    with lives.silence():
        for seed in seeds:
            try:
                lives.run(seed, makeup, storm_s=storm_s)
            except Broken as exc:
                failed.append((seed, str(exc)))
            except Exception as exc:  # A mistake of ours is a failure too.
                failed.append((seed, f'seed {seed}: {exc!r}'))
    # The garbage of these lives only: see `_prepare_process`.
    gc.collect()
    return failed


def _prepare_process() -> None:
    """Let garbage be collected between lives only, and without Nova's modules.

    Python would look through all objects of all modules again and again.
    """
    gc.collect()
    gc.freeze()
    gc.disable()


class Run:
    """Some seeds on some processes, with a line of progress."""

    def __init__(self, options: argparse.Namespace) -> None:
        self._clock = SystemClock()
        self._jobs = options.jobs
        self._storm_s = options.storm
        self._began_s = self._clock.now_s()
        self._ends_s = self._began_s + 60 * (options.minutes or 1e6)
        self._failed: list[Failure] = []
        self.lived_count = 0

    def _say(self, total: int) -> None:
        spent_s = max(self._clock.now_s() - self._began_s, 0.1)
        print(
            f'{self.lived_count} of {total} seeds, '
            f'{self.lived_count / spent_s:.1f} a second, '
            f'{len(self._failed)} failed',
            file=sys.stderr,
            flush=True,
        )

    def all(self, seeds: list[int], defect: str | None) -> list[Failure]:
        """Live them all; for a defect, until one fails."""
        chunks = iter(
            seeds[at : at + CHUNK] for at in range(0, len(seeds), CHUNK)
        )
        said_s = self._began_s
        with futures.ProcessPoolExecutor(
            self._jobs, initializer=_prepare_process
        ) as pool:
            for count, failed in self._results(pool, chunks, defect):
                self.lived_count += count
                self._failed += failed
                for seed, story in failed if defect is None else ():
                    what = story.splitlines()[-1]
                    print(f'seed {seed}: {what}', flush=True)
                if self._clock.now_s() - said_s >= 10.0:
                    said_s = self._clock.now_s()
                    self._say(len(seeds))
                if defect and self._failed:
                    break
        self._say(len(seeds))
        return sorted(self._failed)

    def _results(
        self,
        pool: futures.Executor,
        chunks: Iterator[list[int]],
        defect: str | None,
    ) -> Iterator[tuple[int, list[Failure]]]:
        """What comes back; never more under way than can be worked on."""
        waiting: dict[futures.Future[list[Failure]], int] = {}
        while True:
            while len(waiting) < 2 * self._jobs and self._has_time():
                chunk = next(chunks, None)
                if chunk is None:
                    break
                done = pool.submit(failures_of, chunk, defect, self._storm_s)
                waiting[done] = len(chunk)
            if not waiting:
                return
            ready, _ = futures.wait(
                waiting, return_when=futures.FIRST_COMPLETED
            )
            for future in ready:
                yield waiting.pop(future), future.result()

    def _has_time(self) -> bool:
        return self._clock.now_s() < self._ends_s


def _tell_one(seed: int, defect: str | None, storm_s: float) -> int:
    makeup = defects.MAKEUPS[defect] if defect else Makeup()
    try:
        world = lives.run(seed, makeup, storm_s=storm_s, whole_story=True)
    except Broken as exc:
        print(exc)
        return 1
    print('\n'.join(world.story))
    print(f'seed {seed}: all well after {world.kernel.steps_count} steps')
    return 0


def _see_defects(names: list[str], options: argparse.Namespace) -> int:
    unseen = 0
    for name in names:
        seeds = [*range(RARE_SEEDS)]
        if name in defects.SEEDS:
            seeds = [defects.SEEDS[name], *range(DEFECT_SEEDS)]
        failed = Run(options).all(seeds, name)
        unseen += not failed
        what = failed[0][1].splitlines()[0] if failed else 'NOT SEEN'
        where = failed[0][0] if failed else '-'
        print(f'{name}: seed {where}: {what}', flush=True)
    return 1 if unseen else 0


def _new_seeds() -> int:
    """Return the first of some seeds that nobody has lived before."""
    return int(SystemClock().wall_s()) * 1000


def _first_seed(options: argparse.Namespace) -> int:
    if options.start is not None:
        return int(options.start)
    return FIXED_START if options.fixed else _new_seeds()


def _live_seeds(options: argparse.Namespace) -> int:
    start = _first_seed(options)
    end = start + options.seeds
    if options.skip is None:
        print(f'seeds from {start}, and the kept ones', flush=True)
        seeds = [*lives.kept(), *range(start, end)]
    else:
        print(f'seeds from {start + options.skip}', flush=True)
        seeds = [*range(start + options.skip, end)]
    run = Run(options)
    failed = run.all(seeds, None)
    for seed, story in failed[:3]:
        print(f'--- seed {seed}\n{story}')
    seeds_failed = ', '.join(str(seed) for seed, _ in failed) or 'none'
    print(f'{run.lived_count} seeds lived; failed: {seeds_failed}')
    return 1 if failed else 0


def main() -> int:
    """Do what the arguments ask for."""
    options = _arguments()
    if options.seed is not None:
        return _tell_one(options.seed, options.defect, options.storm)
    if options.defects or options.defect:
        names = [options.defect] if options.defect else list(defects.SEEDS)
        return _see_defects(names, options)
    status = _live_seeds(options)
    if options.all:
        status |= _see_defects(list(defects.SEEDS), options)
    return status


if __name__ == '__main__':
    with contextlib.suppress(KeyboardInterrupt):
        sys.exit(main())

# SPDX-License-Identifier: Apache-2.0
"""Do the tests detect small defects? ``python -m tests.mutation``."""

import argparse
import collections
import contextlib
import dataclasses
import hashlib
import json
import os
import pathlib
import signal
import sys
from collections.abc import Iterator

from hashring.clock import SystemClock
from tests.mutation import trials
from tests.mutation.mutants import Mutant, find_mutants
from tests.mutation.trials import ROOT, Copy

TEACH = """\
Each mutant is one small change of the code that decides who may act: a
comparison, a condition, a number, a statement that is left out, a result that
is not returned. For each, the tests of its module run, then those of its
rooms, then lives of the simulation, until one fails. A mutant that survives
shows a rule that no test holds, or a change that makes no difference; those
are in tests/mutation/excused.txt, each with the reason.

  python -m tests.mutation                 160 mutants
  python -m tests.mutation --count 40 --seed 7 --jobs 1
  python -m tests.mutation --survivors     only those that survived before

Results are kept in build/mutation, so a run that was stopped goes on where it
was. The exit status is 1 if a mutant survived that is not excused, or if less
than nine of ten were caught.
"""
SOURCES = (
    'hashring/*.py',
    'ironic_compute/gate.py',
    'ironic_compute/ownership/*.py',
    'ironic_compute/recovery/*.py',
    'ironic_compute/worker/gated_writes.py',
    'ironic_compute/worker/rpc_gating.py',
)
GOAL = 0.9
BUILD = ROOT / 'build' / 'mutation'
# A deadlock of the tests is a failure; nothing else takes so long.
TIMEOUT_S = 1500.0
# The code itself, which must pass: one trial for each set of rooms.
UNCHANGED = ('hashring/lease.py', 'ironic_compute/gate.py')
UNCHANGED_LIVES = 20
_POLL_S = 0.2
_TIMED_OUT = 'time-out'


@dataclasses.dataclass(slots=True)
class Slot:
    """A copy of the repository, and the trial that runs in it."""

    copy: Copy
    mutant: Mutant | None = None
    pid: int = 0
    began_s: float = 0.0


def key_of(mutant: Mutant) -> str:
    """Return a name of a mutant that holds until its file is changed."""
    text = mutant.path + mutant.apply()
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def sample(seed: int, count: int) -> list[Mutant]:
    """Return a sample of all mutants.

    It is drawn by the text of each change: after an edit of one file, most of
    the sample is still the same.
    """

    def order(mutant: Mutant) -> str:
        change = '\n'.join(_changed_lines(mutant))
        text = f'{seed} {mutant.path} {change} {mutant.text}'
        return hashlib.sha256(text.encode()).hexdigest()

    paths = sorted(p for each in SOURCES for p in ROOT.glob(each))
    found = [
        mutant
        for path in paths
        for mutant in find_mutants(
            path.relative_to(ROOT).as_posix(), path.read_text()
        )
    ]
    return sorted(found, key=order)[:count]


def _changed_lines(mutant: Mutant) -> tuple[str, ...]:
    """Return the lines that go and come, each with its sign."""
    diff = mutant.diff().splitlines()[2:]
    lines = [line for line in diff if not line.startswith('@@')]
    return tuple(f'{line[0]} {line[1:].strip()}' for line in lines)


def read_excused(text: str) -> dict[tuple[str, ...], str]:
    """Return the reason of each excused change: path and changed lines.

    A paragraph is a path, the changed lines, and the reason.
    """
    excused = {}
    for paragraph in text.split('\n\n'):
        lines = [x for x in paragraph.splitlines() if not x.startswith('#')]
        change = [
            f'{x[0]} {x[1:].strip()}'
            for x in lines
            if x.startswith(('-', '+'))
        ]
        reason = [x for x in lines[1:] if not x.startswith(('-', '+'))]
        if change:
            excused[lines[0], *change] = ' '.join(reason)
    return excused


class Results:
    """The outcome of each trial; saved as it comes."""

    def __init__(self, path: pathlib.Path) -> None:
        self._path = path
        self._outcomes: dict[str, str] = {}
        with contextlib.suppress(FileNotFoundError):
            for line in path.read_text().splitlines():
                self._outcomes.update([json.loads(line)])

    def get(self, mutant: Mutant) -> str | None:
        """Return the outcome: how it was caught, '' if it survived."""
        return self._outcomes.get(key_of(mutant))

    def add(self, mutant: Mutant, outcome: str) -> None:
        """Remember an outcome."""
        self._outcomes[key_of(mutant)] = outcome
        with self._path.open('a') as file:
            file.write(json.dumps([key_of(mutant), outcome]) + '\n')


class Run:
    """Trials of some mutants, several at once."""

    def __init__(self, jobs: int) -> None:
        self._clock = SystemClock()
        self._slots = [Slot(Copy(BUILD / f'copy-{n}')) for n in range(jobs)]
        for slot in self._slots:
            slot.copy.create()

    def outcomes(
        self, mutants: list[Mutant], lives: int
    ) -> Iterator[tuple[Mutant, str]]:
        """Try each mutant; yield it and its outcome as soon as it ends.

        :param lives: how many lives are simulated for each
        """
        waiting = iter(mutants)
        left = len(mutants)
        try:
            while left:
                for slot in self._slots:
                    if slot.mutant is None:
                        self._start(slot, next(waiting, None), lives)
                    elif (outcome := self._outcome(slot)) is not None:
                        left -= 1
                        yield self._end(slot), outcome
                self._clock.sleep(_POLL_S)
        finally:
            for slot in self._slots:
                if slot.mutant is not None:
                    _kill(slot.pid)

    def _start(self, slot: Slot, mutant: Mutant | None, lives: int) -> None:
        if mutant is None:
            return
        slot.mutant, slot.began_s = mutant, self._clock.now_s()
        slot.copy.change(mutant)
        slot.pid = trials.start(slot.copy.folder, mutant.path, lives)

    def _outcome(self, slot: Slot) -> str | None:
        """Return how a trial ended; None if it has not."""
        pid, status = os.waitpid(slot.pid, os.WNOHANG)
        if not pid:
            if self._clock.now_s() < slot.began_s + TIMEOUT_S:
                return None
            _kill(slot.pid)
            os.waitpid(slot.pid, 0)
            return _TIMED_OUT
        code = os.waitstatus_to_exitcode(status)
        if code == trials.BROKEN:
            log = (slot.copy.folder / 'trial.log').read_text()
            raise SystemExit(f'A trial did not work:\n{log[-3000:]}')
        if code < 0:
            return f'signal {-code}'
        return '' if code == trials.SURVIVED else _stage(code)

    def _end(self, slot: Slot) -> Mutant:
        mutant, slot.mutant = slot.mutant, None
        assert mutant is not None
        _kill(slot.pid)  # What the tests have left.
        slot.copy.restore(mutant)
        return mutant


def _stage(code: int) -> str:
    return trials.STAGES[code - trials.CAUGHT]


def _kill(pid: int) -> None:
    """Kill a trial with all that it has started."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(pid, signal.SIGKILL)


def _report(mutants: list[Mutant], results: Results) -> int:
    """Print the score and the survivors; return the exit status."""
    excused = read_excused(
        pathlib.Path(__file__).with_name('excused.txt').read_text()
    )
    counts: collections.Counter[str] = collections.Counter()
    unknown_count = 0
    for mutant in mutants:
        outcome = results.get(mutant)
        counts[outcome or 'survived'] += 1
        if not outcome:
            reason = excused.get((mutant.path, *_changed_lines(mutant)))
            unknown_count += reason is None
            print(f'\n{mutant.diff()}')
            print(f'excused: {reason}' if reason else 'SURVIVED')
    caught = (len(mutants) - counts['survived']) / len(mutants)
    print('\n' + ', '.join(f'{how}: {n}' for how, n in counts.most_common()))
    print(f'{len(mutants)} mutants, {caught:.1%} caught')
    return 1 if unknown_count or caught < GOAL else 0


def _left(
    mutants: list[Mutant], results: Results, survivors: bool
) -> Iterator[Mutant]:
    for mutant in mutants:
        outcome = results.get(mutant)
        if outcome is None or (survivors and not outcome):
            yield mutant


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog='python -m tests.mutation',
        description=TEACH,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = parser.add_argument
    add('--count', type=int, default=160, metavar='N', help='how many')
    add('--seed', type=int, default=1, metavar='K', help='of the sample')
    add('--lives', type=int, default=200, metavar='L', help='simulated each')
    add('--jobs', type=int, default=os.cpu_count(), metavar='J')
    add('--survivors', action='store_true', help='try these again')
    return parser.parse_args()


def _try(
    mutants: list[Mutant], results: Results, jobs: int, lives: int
) -> None:
    """Try mutants, after a proof that the tests pass without a change.

    :raises SystemExit: they do not
    """
    trials.warm_up()
    run = Run(jobs)
    code = [Mutant(path, (ROOT / path).read_text()) for path in UNCHANGED]
    for unchanged, outcome in run.outcomes(code, UNCHANGED_LIVES):
        if outcome:
            raise SystemExit(f'{unchanged.path} fails unchanged: {outcome}')
    for left, (mutant, outcome) in zip(
        reversed(range(len(mutants))),
        run.outcomes(mutants, lives),
        strict=True,
    ):
        results.add(mutant, outcome)
        change = ' '.join(_changed_lines(mutant)[-1:])
        print(
            f'{left:4} left, {outcome or "SURVIVED"}: {mutant.path}: {change}',
            flush=True,
        )


def main() -> int:
    """Do what the arguments ask for."""
    # A run that is ended kills its trials, also if it is in the background.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    options = _arguments()
    BUILD.mkdir(parents=True, exist_ok=True)
    results = Results(BUILD / 'results.jsonl')
    mutants = sample(options.seed, options.count)
    left = [*_left(mutants, results, options.survivors)]
    print(f'{len(mutants)} mutants, {len(left)} to try', flush=True)
    if left:
        _try(left, results, options.jobs, options.lives)
    return _report(mutants, results)


if __name__ == '__main__':
    with contextlib.suppress(KeyboardInterrupt):
        sys.exit(main())
    sys.exit(130)

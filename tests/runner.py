# SPDX-License-Identifier: Apache-2.0
"""Run the tests of ``make test`` and ``make test-all``, in several processes.

A set is a list of jobs, and each job is one process: pytest on some files, a
linter, or simulated lives. Many tests wait for most of their time, therefore
more jobs run at once than there are processors. The output of a job goes to a
file in ``build/tests``; the runner prints its last line, the failures of a job
that failed, and the ten slowest tests of all jobs. A job that does not end is
aborted; Python then prints what each thread does.

  python -m tests.runner fast        the tests that every change must pass
  python -m tests.runner rest        all other tests on Nova 34
  python -m tests.runner nova33      unit tests, and the functional tests of
                                     what a worker does with Nova, on Nova 33
  python -m tests.runner nova33rest  the other functional tests on Nova 33
  python -m tests.runner lint        format, types, layers, spelling

The exit status is 1 if a job failed.
"""

import argparse
import contextlib
import dataclasses
import os
import pathlib
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence

ROOT = pathlib.Path(__file__).parents[1]
SLOWEST_COUNT = 10
_POLL_S = 0.2
_TAIL_LINES = 80
# Twice the longest job on a busy machine with two processors.
_JOB_LIMIT_S = 2400.0

# A functional test that fails has often waited in vain for a minute and a
# half. If one breaks its process, so do all that come after it.
_FEW_FAILURES = ('--maxfail', '5')
# A functional test waits for the rest of its time.
_FUNCTIONAL_LOAD = 0.7
# The sum of the loads of the jobs that run at once, for each processor.
_LOAD_A_PROCESSOR = 1.2
# The coordination backends whose contracts are jobs of their own, and those
# of the slow ones.
_BACKENDS = ('etcd', 'memcached')
_CLUSTERS = ('ensemble', 'sentinel')

_EVENTLET = {'IRONIC_COMPUTE_TEST_CONCURRENCY': 'eventlet'}
# A job that is aborted prints the stacks of its threads, even at its exit.
_PYTHON = (sys.executable, '-X', 'faulthandler')
# With -v pytest names each test before it runs it, so also the one that does
# not end.
_PYTEST = (*_PYTHON, '-m', 'pytest', '-v')
# Python prints this before the stacks.
_ABORTED = 'Fatal Python error: '
_LIVES = (
    *(*_PYTHON, '-W', 'ignore', '-m', 'tests.simulation'),
    '--fixed',
)

# ``fast`` lives the first of the fixed seeds, ``rest`` all others.
_FIRST_LIVES = 300
_ALL_LIVES = 500

# The functional tests of ``fast``. Each thing that a worker does in a cloud is
# in one of them: start, hold nodes, report them, build, delete, hand back
# nodes, stop. The others test variants and rare states.
_CORE = ('harness', 'process', 'scheduling', 'stopping', 'workers')
# Those of ``nova33``: what differs between two series of Nova is found here.
_WITH_NOVA = (*_CORE, 'forwarding', 'operations', 'refusals', 'unfinished')
# Run on eventlet too: these start and stop workers, and move nodes.
_ON_EVENTLET = ('process', 'stopping', 'workers')
# Agents never run on eventlet.
_NOT_ON_EVENTLET = (
    *('--ignore', 'tests/unit/ironic_compute/agent'),
    *('--ignore', 'tests/unit/ironic_compute/agent_port'),
)

_ON_MARIADB = 'tests/contract/placement/test_double_allocation.py'

_SHELL_FILES = (
    'devstack/plugin.sh',
    'devstack/settings',
    'devstack/lib/ironic-compute',
    'devstack/tools/ensure-venv',
    'devstack/upgrade/settings',
    'devstack/upgrade/shutdown.sh',
    'devstack/upgrade/upgrade.sh',
    *(
        f'tests/unit/devstack/machine/{name}'
        for name in (
            'call',
            'command',
            'grenade/functions',
            'grenade/grenaderc',
            'ironic-library',
            'prelude',
            'stack',
            'stubs',
            'unstack',
        )
    ),
    '.ci/run',
)
_NOT_SPELLED = (
    '.git,.tox,.venv,.*_cache,.hypothesis,*.egg-info,build,AUTHORS,ChangeLog,'
    '*.sample,constraints-*,LICENSE'
)


@dataclasses.dataclass(frozen=True, slots=True)
class Job:
    """One process.

    :param name: printed; the name of its output file is made from it
    :param environ: environment variables besides those of this process
    :param load: the part of one processor that it uses while it runs
    """

    name: str
    command: tuple[str, ...]
    environ: tuple[tuple[str, str], ...] = ()
    load: float = 1.0


@dataclasses.dataclass(slots=True)
class Running:
    """A job that was started; its output goes to ``path``."""

    job: Job
    process: subprocess.Popen[bytes]
    path: pathlib.Path
    began_s: float
    is_aborted: bool = False


def _pytest(
    name: str, *arguments: str, eventlet: bool = False, load: float = 1.0
) -> Job:
    environ = tuple(_EVENTLET.items()) if eventlet else ()
    return Job(name, (*_PYTEST, *arguments), environ, load)


def _functional_files(names: Sequence[str] | None = None) -> list[str]:
    """Return the files of functional tests, the largest first."""
    files = sorted(
        (ROOT / 'tests/functional').glob('test_*.py'),
        key=lambda file: (-file.stat().st_size, file.name),
    )
    return [
        str(file.relative_to(ROOT))
        for file in files
        if names is None or file.stem.removeprefix('test_') in names
    ]


def _functional(
    what: str, files: list[str], count: int, *, eventlet: bool = False
) -> list[Job]:
    """Return ``count`` jobs that share the files; each imports Nova once."""
    return [
        _pytest(
            f'{what} {at + 1}',
            *_FEW_FAILURES,
            *files[at::count],
            eventlet=eventlet,
            load=_FUNCTIONAL_LOAD,
        )
        for at in range(count)
    ]


def _coordination(marker: str) -> list[Job]:
    """Return the jobs of the contracts with coordination backends.

    These tests wait until leases and sessions expire, and use little of a
    processor.
    """
    folder = 'tests/contract/coordination'
    apart = _BACKENDS if marker == 'not slow' else (*_BACKENDS, *_CLUSTERS)
    other = ' and '.join(f'not {name}' for name in apart)
    return [
        _pytest(
            f'contracts of coordination, {marker}, {which}',
            *('-m', marker, '-k', which, folder),
            load=0.2,
        )
        for which in (*apart, other)
    ]


def _lint() -> list[Job]:
    """Return the jobs that check format, types, layers and spelling."""
    tool = str(pathlib.Path(sys.executable).parent) + '/'
    return [
        Job('mypy', (f'{tool}mypy',)),
        Job('ruff check', (f'{tool}ruff', 'check', '.')),
        Job('ruff format', (f'{tool}ruff', 'format', '--check', '.')),
        Job('lint-imports', (f'{tool}lint-imports',)),
        Job(
            'bashate',
            (f'{tool}bashate', '-i', 'E005,E006,E042', *_SHELL_FILES),
        ),
        Job('codespell', (f'{tool}codespell', '--skip', _NOT_SPELLED, '.')),
    ]


def _fast() -> list[Job]:
    """Return the jobs that every change must pass."""
    core = _functional_files(_CORE)
    units, others = 'tests/unit/ironic_compute', 'tests/unit'
    commands = f'{units}/cmd'
    quick = ('-m', 'not slow')
    return [
        *_coordination('not slow'),
        # The longest come first, because a job that runs alone at the end
        # leaves the other processors without work.
        _pytest('simulation, kept seeds', *quick, 'tests/simulation'),
        _pytest('units of ironic_compute.cmd', *quick, commands),
        _pytest(
            'units of ironic_compute, others',
            *(*quick, units, '--ignore', commands),
        ),
        *_functional('functional core', core, 2),
        _pytest(
            'contracts of Ironic and Placement',
            *(*quick, 'tests/contract'),
            *('--ignore', 'tests/contract/coordination'),
            *('--ignore', 'tests/contract/rabbitmq'),
        ),
        _pytest(
            'other units, tidy, transcripts, mutants',
            *(*quick, others, '--ignore', units),
            *('tests/tidy', 'tests/transcripts', 'tests/mutation'),
        ),
        *_lint(),
        Job(
            'simulation, first seeds',
            (*_LIVES, '--skip', '0', '--seeds', f'{_FIRST_LIVES}'),
        ),
    ]


def _rest() -> list[Job]:
    """Return the jobs on Nova 34 that ``fast`` leaves out.

    ``fast`` has the planted defects of the simulation, too.
    """
    core = set(_functional_files(_CORE))
    others = [file for file in _functional_files() if file not in core]
    units = 'tests/unit/ironic_compute'
    middle = (_FIRST_LIVES + _ALL_LIVES) // 2
    return [
        *_coordination('slow'),
        _pytest('contract of RabbitMQ', 'tests/contract/rabbitmq', load=0.3),
        _pytest('contract of Placement on MariaDB', _ON_MARIADB, load=0.5),
        _pytest('status page in Chromium', 'tests/browser', load=0.5),
        *_functional('functional rest', others, 3),
        _pytest(
            'units of ironic_compute on eventlet',
            '-m',
            'not slow',
            units,
            *_NOT_ON_EVENTLET,
            eventlet=True,
        ),
        _pytest(
            'units of resource_tracker on eventlet',
            'tests/unit/resource_tracker',
            eventlet=True,
        ),
        *_functional(
            'functional on eventlet',
            _functional_files(_ON_EVENTLET),
            1,
            eventlet=True,
        ),
        *(
            Job(
                f'simulation, other seeds to {end}',
                (*_LIVES, '--skip', f'{start}', '--seeds', f'{end}'),
            )
            for start, end in (
                (_FIRST_LIVES, middle),
                (middle, _ALL_LIVES),
            )
        ),
    ]


def _nova33() -> list[Job]:
    """Return the jobs of unit and functional tests on Nova 33."""
    units = 'tests/unit/ironic_compute'
    return [
        _pytest(
            'contract of RabbitMQ on Nova 33',
            'tests/contract/rabbitmq',
            load=0.3,
        ),
        _pytest(
            'contract of Placement on MariaDB, Nova 33',
            _ON_MARIADB,
            load=0.5,
        ),
        *_functional_on_nova33(_functional_files(_WITH_NOVA)),
        _pytest('units of ironic_compute on Nova 33', units),
        _pytest(
            'other units on Nova 33',
            '-m',
            'not slow',
            'tests/unit',
            'tests/contract/placement',
            '--ignore',
            units,
        ),
    ]


def _nova33_rest() -> list[Job]:
    """Return the functional tests that ``nova33`` leaves out."""
    with_nova = set(_functional_files(_WITH_NOVA))
    return _functional_on_nova33(
        [file for file in _functional_files() if file not in with_nova]
    )


def _functional_on_nova33(files: list[str]) -> list[Job]:
    """Return the jobs of functional tests on Nova 33.

    They run on eventlet, because the databases of Nova 33's fixtures are in
    memory, where threads cannot share them.
    """
    return _functional('functional on Nova 33', files, 3, eventlet=True)


SETS = {
    'fast': _fast,
    'rest': _rest,
    'nova33': _nova33,
    'nova33rest': _nova33_rest,
    'functional': lambda: _functional('functional', _functional_files(), 3),
    'lint': _lint,
}


class Runner:
    """Starts jobs in their order, several at once, and prints results.

    :param folder: for the output of the jobs; emptied first
    :param load_max: no job is started while the loads of the running jobs
        add up to this
    :param job_limit_s: a job that runs longer is aborted
    """

    def __init__(
        self,
        folder: pathlib.Path,
        load_max: float,
        job_limit_s: float = _JOB_LIMIT_S,
    ) -> None:
        self._folder = folder
        self._load_max = load_max
        self._job_limit_s = job_limit_s
        self._times = folder / 'times'
        self._began_s = time.monotonic()
        self._running: list[Running] = []
        self._failed: list[str] = []

    def run(self, jobs: list[Job]) -> int:
        """Run all jobs; return the exit status: 1 if a job failed."""
        self._folder.mkdir(parents=True, exist_ok=True)
        for old in self._folder.iterdir():
            old.unlink()
        self._log(f'output of each job: {self._folder}')
        waiting = list(jobs)
        try:
            while waiting or self._running:
                while waiting and self._has_room():
                    self._running.append(self._start(waiting.pop(0)))
                self._reap()
                time.sleep(_POLL_S)
        finally:
            for each in self._running:
                each.process.terminate()
        self._print_slowest()
        if self._failed:
            self._log(f'failed: {", ".join(self._failed)}')
        return 1 if self._failed else 0

    def _has_room(self) -> bool:
        return sum(each.job.load for each in self._running) < self._load_max

    def _log(self, text: str) -> None:
        print(
            f'[{time.monotonic() - self._began_s:4.0f} s] {text}', flush=True
        )

    def _start(self, job: Job) -> Running:
        name = re.sub('[^a-z0-9]+', '-', job.name.lower())
        path = self._folder / f'{name}.log'
        environ = {
            **os.environ,
            'PYTHONPATH': str(ROOT),
            'IRONIC_COMPUTE_TEST_TIMES': str(self._times),
            **dict(job.environ),
        }
        with path.open('wb') as output:
            process = subprocess.Popen(
                job.command,
                cwd=ROOT,
                env=environ,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
            )
        return Running(job, process, path, time.monotonic())

    def _reap(self) -> None:
        for each in [*self._running]:
            pid, status, used = os.wait4(each.process.pid, os.WNOHANG)
            if pid:
                each.process.returncode = os.waitstatus_to_exitcode(status)
                self._running.remove(each)
                self._report(each, used.ru_utime + used.ru_stime)
            elif time.monotonic() - each.began_s > self._job_limit_s:
                self._abort(each)

    def _abort(self, late: Running) -> None:
        """Abort a job that does not end; the next turns reap it."""
        if not late.is_aborted:
            late.is_aborted = True
            self._log(f'{late.job.name}: aborted, it does not end')
            os.kill(late.process.pid, signal.SIGABRT)

    def _report(self, ended: Running, cpu_s: float) -> None:
        """Print how a job ended, after how long, and what it has cost."""
        status = ended.process.returncode
        spent_s = time.monotonic() - ended.began_s
        how = 'ok' if status == 0 else f'FAILED ({status})'
        lines = ended.path.read_text(errors='replace').splitlines()
        self._log(
            f'{ended.job.name}: {how} in {spent_s:.0f} s, '
            f'{cpu_s:.0f} s of a processor'
        )
        if status:
            self._failed.append(ended.job.name)
            print('\n'.join(_failure_lines(lines)))
        elif lines:
            print(f'         {lines[-1]}', flush=True)

    def _print_slowest(self) -> None:
        slowest = sorted(_read_times(self._times), reverse=True)
        if slowest:
            print(f'The {SLOWEST_COUNT} slowest tests:')
        for seconds, test in slowest[:SLOWEST_COUNT]:
            print(f'{seconds:8.1f} s  {test}')


def _failure_lines(lines: list[str]) -> list[str]:
    """Return the failures that pytest printed, or the end of the output.

    A process that was aborted printed the stacks of its threads instead.
    """
    failed = []
    for at, line in enumerate(lines):
        if re.match('=+ (FAILURES|ERRORS) =+$', line):
            return _without_warnings(lines[at:])
        if re.search(' (FAILED|ERROR) +\\[', line):
            failed.append(line)
        if _ABORTED in line:
            return [*failed, line, *_main_thread_first(lines[at + 1 :])]
    return lines[-_TAIL_LINES:]


def _main_thread_first(lines: list[str]) -> list[str]:
    """Return the stacks of all threads, that of the main thread first.

    Python prints the newest thread first, and some tests have a hundred. It
    ends with the names of all extension modules, which say nothing here.
    """
    blocks = '\n'.join(lines).strip().split('\n\n')
    stacks = [block for block in blocks if 'most recent call first' in block]
    return '\n\n'.join(reversed(stacks)).splitlines()


def _without_warnings(lines: list[str]) -> list[str]:
    """Return the lines without pytest's summary of warnings."""
    kept, is_warning = [], False
    for line in lines:
        if line.startswith('===='):
            is_warning = ' warnings summary ' in line
        if not is_warning:
            kept.append(line)
    return kept


def _read_times(path: pathlib.Path) -> Iterator[tuple[float, str]]:
    """Yield the seconds and the name of each test from conftest's file."""
    with contextlib.suppress(FileNotFoundError):
        for line in path.read_text().splitlines():
            seconds, _, test = line.partition(' ')
            yield float(seconds), test


def main() -> int:
    """Run the set that the command line names; return the exit status."""
    parser = argparse.ArgumentParser(
        prog='python -m tests.runner',
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument('set', choices=SETS)
    parser.add_argument(
        '--load',
        type=float,
        default=_LOAD_A_PROCESSOR * (os.cpu_count() or 1),
        metavar='N',
        help="processors' worth of jobs at once (default: %(default).1f)",
    )
    options = parser.parse_args()
    folder = ROOT / 'build' / 'tests' / options.set
    return Runner(folder, options.load).run(SETS[options.set]())


if __name__ == '__main__':
    with contextlib.suppress(KeyboardInterrupt):
        sys.exit(main())
    sys.exit(130)

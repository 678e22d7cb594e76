# SPDX-License-Identifier: Apache-2.0
"""Trials: the tests of one mutant, in a fork of a process that is warm.

The imports of Nova take longer than most tests. Therefore this process
imports everything that the tests import, except the project itself, and each
trial is a fork of it. A trial works in a copy of the repository.
"""

import contextlib
import os
import pathlib
import shutil
import subprocess
import sys
import traceback
from collections.abc import Iterator, Sequence

import pytest

# Chooses threads before anything of Nova is imported.
from tests import conftest  # noqa: F401  # isort: skip
from tests.mutation.mutants import Mutant

ROOT = pathlib.Path(__file__).resolve().parents[2]
SEEDS_START = 900_000
# The exit statuses of a trial. A stage that fails adds its number to CAUGHT.
SURVIVED, BROKEN, CAUGHT = 0, 1, 10
STAGES = (
    'tests of the module',
    'tests of the rooms',
    'contracts',
    'simulation',
)

_OURS = ('hashring', 'ironic_compute', 'resource_tracker', 'tests')
_UNITS = pathlib.PurePosixPath('tests/unit')
_ROOMS = {
    'hashring': ('tests/unit/hashring', 'tests/transcripts'),
    'ironic_compute': (
        'tests/unit/ironic_compute/test_gate.py',
        'tests/unit/ironic_compute/test_old_bugs.py',
        'tests/unit/ironic_compute/ownership',
        'tests/unit/ironic_compute/recovery',
        'tests/unit/ironic_compute/worker',
        'tests/unit/ironic_compute/nodes',
        'tests/unit/ironic_compute/manager',
    ),
}
# Modules of which the units see little: they call a backend.
_ON_BACKENDS = (
    'hashring/etcd.py',
    'hashring/membership.py',
    'hashring/zookeeper.py',
)
_CONTRACTS = ('tests/contract/coordination',)
_OPTIONS = ('-x', '-q', '-m', 'not slow', '-p', 'no:cacheprovider')
_LIST_MODULES = """
import pytest, sys
pytest.main(['-q', '--collect-only', *sys.argv[1:]])
print('modules:', *sys.modules)
"""


def warm_up() -> None:
    """Import what the tests import, except the project itself."""
    folders = [folder for room in _ROOMS.values() for folder in room]
    done = subprocess.run(
        [sys.executable, '-c', _LIST_MODULES, *folders, 'tests/simulation'],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    for name in done.stdout.splitlines()[-1].split()[1:]:
        if name.partition('.')[0] not in _OURS:
            # Some are made at run time, or only for another concurrency.
            with contextlib.suppress(Exception):
                __import__(name)


class Copy:
    """A copy of the repository, in which one file at a time is changed."""

    def __init__(self, folder: pathlib.Path) -> None:
        self.folder = folder
        self._changes_count = 0
        self._times_ns = (0, 0)

    def create(self) -> None:
        """Copy all files that git lists, and those not yet added."""
        shutil.rmtree(self.folder, ignore_errors=True)
        command = ['git', 'ls-files', '-z', '-co', '--exclude-standard']
        listed = subprocess.run(
            command, cwd=ROOT, stdout=subprocess.PIPE, text=True, check=True
        )
        for name in filter(None, listed.stdout.split('\0')):
            target = self.folder / name
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, target)

    def change(self, mutant: Mutant) -> None:
        """Write a mutant in place of its file."""
        file = self.folder / mutant.path
        stat = file.stat()
        self._times_ns = (stat.st_atime_ns, stat.st_mtime_ns)
        file.write_text(mutant.apply())
        # Python compiles a file again if its size or its second is another.
        # Two mutants of one second may have the same size.
        self._changes_count += 1
        os.utime(file, (self._changes_count, self._changes_count))

    def restore(self, mutant: Mutant) -> None:
        """Undo the change."""
        file = self.folder / mutant.path
        file.write_text(mutant.source)
        os.utime(file, ns=self._times_ns)


def start(folder: pathlib.Path, path: str, seeds_count: int) -> int:
    """Start a trial of a file's tests in a copy; return the process id."""
    pid = os.fork()
    if pid:
        return pid
    status = BROKEN
    try:
        _become(folder)
        status = _try(path, seeds_count)
    except BaseException:
        traceback.print_exc()
    finally:
        # Threads of a test must not hold the process up.
        os._exit(status)


def _become(folder: pathlib.Path) -> None:
    """Work in the copy, without anything imported from the work tree."""
    os.setsid()
    os.chdir(folder)
    log = os.open('trial.log', os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    os.dup2(log, 1)
    os.dup2(log, 2)
    os.environ['PYTHONPATH'] = str(folder)
    sys.path[:] = [str(folder), *(p for p in sys.path if p != str(ROOT))]
    sys.path_importer_cache.clear()
    for name in [*sys.modules]:
        if name.partition('.')[0] in _OURS:
            del sys.modules[name]


def _try(path: str, seeds_count: int) -> int:
    for number, is_failed in enumerate(_stages(path, seeds_count)):
        if is_failed:
            return CAUGHT + number
    return SURVIVED


def _stages(path: str, seeds_count: int) -> Iterator[bool]:
    """Run one stage after the other; yield of each whether it failed."""
    yield _fails(own_tests(path))
    yield _fails(_ROOMS[path.partition('/')[0]])
    yield _fails(_CONTRACTS if path in _ON_BACKENDS else ())
    yield _fails(['tests/simulation/test_small_cases.py']) or any(
        _fails_in_life(SEEDS_START + n) for n in range(seeds_count)
    )


def own_tests(path: str) -> list[str]:
    """Return the test files of a module; none if it has none."""
    module = pathlib.PurePosixPath(path)
    pattern = str(_UNITS / module.parent / f'test_{module.stem}*.py')
    return sorted(map(str, pathlib.Path().glob(pattern)))


def _fails(tests: Sequence[str]) -> bool:
    """Return whether a test fails, or a file cannot be imported.

    :raises ValueError: pytest did not get as far as a test
    """
    if not tests:
        return False
    status = pytest.main([*_OPTIONS, *tests])
    if status == pytest.ExitCode.USAGE_ERROR:
        raise ValueError(f'pytest refuses {tests}')
    return status not in (
        pytest.ExitCode.OK,
        pytest.ExitCode.NO_TESTS_COLLECTED,
    )


def _fails_in_life(seed: int) -> bool:
    """Return whether a life of the simulation ends in an error."""
    from tests.simulation import lives

    try:
        lives.run(seed)
    except Exception:
        traceback.print_exc()
        return True
    return False

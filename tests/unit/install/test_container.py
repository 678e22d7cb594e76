# SPDX-License-Identifier: Apache-2.0
"""The image: its steps in a virtual environment, its processes, its health."""

import contextlib
import importlib.metadata
import os
import pathlib
import re
import shutil
import subprocess
import sys
import sysconfig
import threading
import time
from collections.abc import Iterator

import pytest

from hashring.clock import SystemClock
from ironic_compute.agent.systemd import Watchdog
from tests.unit.install.files import CONTRIB, ROOT, containerfile

FILE = CONTRIB / 'container' / 'Containerfile'
ALIVE = CONTRIB / 'container' / 'alive.py'
_PERIOD_S = 0.6


def _stages() -> list[list[tuple[str, str]]]:
    """Return the instructions of each stage, without its first ARGs."""
    stages: list[list[tuple[str, str]]] = []
    for instruction, rest in containerfile(FILE):
        if instruction == 'FROM':
            stages.append([])
        if stages:
            stages[-1].append((instruction, rest))
    return stages


def _variables() -> dict[str, str]:
    """Return the ARG and ENV of all stages with their values."""
    found: dict[str, str] = {}
    for instruction, rest in containerfile(FILE):
        if instruction in ('ARG', 'ENV'):
            pairs = (word.partition('=') for word in rest.split())
            found |= {name: value for name, _, value in pairs}
    return found


@pytest.fixture(scope='module')
def built(tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    """Run the steps of the first stage; return its virtual environment.

    The packages that the registry would send come from the environment of the
    tests, and pip checks their versions against the constraints.
    """
    folder = tmp_path_factory.mktemp('image')
    source, target = folder / 'src', folder / 'venv'
    tracked = ('ls-files', '-z', '--cached', '--others', '--exclude-standard')
    listed = subprocess.run(
        ['git', *tracked], cwd=ROOT, capture_output=True, check=True
    ).stdout.decode()
    for name in filter(None, listed.split('\0')):
        if (ROOT / name).is_file():
            (source / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / name, source / name)
    for instruction, rest in _stages()[0]:
        if instruction == 'RUN':
            _run(rest, source, target)
            # Python 3.11 puts an old setuptools into the environment.
            _add_packages(target, 'import sys; sys.path.insert(1, {0!r})')
    # From now on what was installed comes before what the tests have.
    _add_packages(target, '{0}')
    return target


def _run(step: str, source: pathlib.Path, target: pathlib.Path) -> None:
    step = step.replace('/opt/ironic-compute', str(target))
    step = step.replace('/src', str(source))
    step = re.sub('^python3 ', f'{sys.executable} ', step)
    # Without the git of the repository, as in the image.
    environ = {
        **os.environ,
        'NOVA': importlib.metadata.version('nova').split('.')[0],
        'PBR_VERSION': '1.2.3',
        'PIP_NO_INDEX': '1',
        'PIP_NO_COMPILE': '1',
        # pip reads this one the wrong way round.
        'PIP_NO_BUILD_ISOLATION': '0',
        'GIT_DIR': '/nowhere',
    }
    environ.pop('PYTHONPATH', None)
    done = subprocess.run(
        ['sh', '-c', step], env=environ, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stdout + done.stderr


def _add_packages(target: pathlib.Path, line: str) -> None:
    (site,) = (target / 'lib').glob('python*/site-packages')
    packages = sysconfig.get_path('purelib')
    (site / 'tests.pth').write_text(line.format(packages))


def test_steps_install_the_programs(built: pathlib.Path) -> None:
    """pip finds all requirements, and the entry points run."""
    programs = ('ironic-compute', 'ironic-computectl', 'ironic-compute-status')
    for program in (*programs, 'ironic-compute-worker'):
        assert os.access(built / 'bin' / program, os.X_OK)
    environ = {k: v for k, v in os.environ.items() if k != 'PYTHONPATH'}
    for program, argument, expected in (
        ('ironic-compute', '--version', '1.2.3'),
        ('ironic-compute-worker', '--help', '--report-fd'),
    ):
        done = subprocess.run(
            [built / 'bin' / program, argument],
            cwd=built,
            env=environ,
            capture_output=True,
            text=True,
        )
        assert done.returncode == 0, done.stderr
        assert expected in done.stdout


def test_environment_has_the_files_of_the_guide(built: pathlib.Path) -> None:
    """Unit, tmpfiles.d, logrotate.d and sample are where the guide says."""
    share = built / 'share' / 'ironic-compute'
    for name in (
        'systemd/ironic-compute.service',
        'tmpfiles.d/ironic-compute.conf',
        'logrotate.d/ironic-compute',
    ):
        assert (share / name).is_file()
    sample = built / 'etc' / 'ironic-compute' / 'ironic-compute.conf.sample'
    assert sample.is_file()


def test_wheel_has_types_and_a_licence(built: pathlib.Path) -> None:
    """A checker reads our types, and the licence is named and there."""
    (site,) = (built / 'lib').glob('python*/site-packages')
    (info,) = site.glob('ironic_compute-1.2.3.dist-info')
    metadata = (info / 'METADATA').read_text()
    assert re.search('^License(-Expression)?: Apache-2.0$', metadata, re.M)
    assert [path for path in info.rglob('LICENSE') if path.is_file()]
    for package in ('hashring', 'resource_tracker', 'ironic_compute'):
        assert (site / package / 'py.typed').is_file()


def test_image_runs_as_a_user_below_an_init() -> None:
    """The last USER is not root, and tini starts the daemon."""
    last = dict(_stages()[-1])
    assert last['USER'] == 'nova'
    assert last['ENTRYPOINT'] == '["/usr/bin/tini", "--"]'
    assert last['CMD'] == '["ironic-compute"]'
    assert 'install --yes --no-install-recommends tini' in FILE.read_text()
    assert (
        'COPY',
        'contrib/container/alive.py /usr/local/bin/ironic-compute-alive',
    ) in _stages()[-1]
    assert last['HEALTHCHECK'].endswith('CMD ["ironic-compute-alive"]')


def test_check_waits_for_a_whole_period() -> None:
    """The engine gives the check more time than the check takes."""
    health = dict(_stages()[-1])['HEALTHCHECK']
    timeout_s = float(re.findall(r'--timeout=(\d+)s', health)[0])
    assert timeout_s > float(_variables()['WATCHDOG_USEC']) / 1e6


def _environ(path: pathlib.Path) -> dict[str, str]:
    usec = str(int(_PERIOD_S * 1e6))
    return {'NOTIFY_SOCKET': str(path), 'WATCHDOG_USEC': usec}


@contextlib.contextmanager
def _agent(environ: dict[str, str]) -> Iterator[None]:
    """Turn as the agent's loop does, with its own watchdog."""
    ended = threading.Event()
    watchdog = Watchdog(environ, SystemClock())

    def loop() -> None:
        while not ended.wait(0.05):
            watchdog.notify_if_due()

    thread = threading.Thread(target=loop)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()


def _check(environ: dict[str, str]) -> int:
    command = [sys.executable, '-S', str(ALIVE)]
    done = subprocess.run(command, env=environ, capture_output=True)
    return done.returncode


def test_agent_whose_loop_turns_is_alive(tmp_path: pathlib.Path) -> None:
    """The check succeeds, also a second time and after one that was killed."""
    environ = _environ(tmp_path / 'notify')
    (tmp_path / 'notify').touch()
    with _agent(environ):
        assert [_check(environ), _check(environ)] == [0, 0]


def test_agent_whose_loop_stands_still_is_not_alive(
    tmp_path: pathlib.Path,
) -> None:
    """The check fails after one period without a sign of life."""
    began_s = time.monotonic()
    assert _check(_environ(tmp_path / 'notify')) == 1
    assert time.monotonic() - began_s >= _PERIOD_S


def test_ready_of_a_worker_is_no_sign_of_life(tmp_path: pathlib.Path) -> None:
    """Only WATCHDOG=1 counts, which the agent's loop sends."""
    environ = _environ(tmp_path / 'notify')
    # A watchdog that is new at each turn sends READY=1 and nothing else.
    ended = threading.Event()

    def loop() -> None:
        while not ended.wait(0.3):
            Watchdog(environ, SystemClock()).notify_if_due()
            if len(seen) > 5:
                return
            seen.append(1)

    seen: list[int] = []
    thread = threading.Thread(target=loop)
    thread.start()
    try:
        assert _check(environ) == 1
    finally:
        ended.set()
        thread.join()
    assert seen


_PROCESSES = """
import pathlib, sys, time
from ironic_compute.agent.child import Child
# A worker that leaves a process behind, which ends a little later.
child = Child.spawn(['sh', '-c', 'sleep 0.3 & exit 3', 'worker'])
until = time.monotonic() + 20
while not child.has_ended() and time.monotonic() < until:
    time.sleep(0.05)
time.sleep(1)
states = [p.read_text().rpartition(')')[2].split()[0]
          for p in pathlib.Path('/proc').glob('[0-9]*/stat')]
print(child.process.returncode, states.count('Z'))
"""


def _as_first_process(*init: str) -> list[str]:
    """Run the agent's child handling in a pid namespace of its own."""
    namespace = ('unshare', '--pid', '--fork', '--mount-proc')
    if (
        shutil.which('unshare') is None
        or subprocess.run([*namespace, 'true'], capture_output=True).returncode
    ):
        pytest.skip('this machine permits no pid namespace')
    done = subprocess.run(
        [*namespace, *init, sys.executable, '-W', 'ignore', '-c', _PROCESSES],
        cwd=ROOT,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.split()


def test_agent_reaps_its_workers_only() -> None:
    """As process 1 it leaves the process of a worker as a zombie.

    Therefore the image has an init. If this fails, it needs none any more.
    """
    assert _as_first_process() == ['3', '1']


def test_init_reaps_what_a_worker_left() -> None:
    """Below tini no zombie stays."""
    if shutil.which('tini') is None:
        pytest.skip('tini is not installed')
    assert _as_first_process('tini', '--') == ['3', '0']

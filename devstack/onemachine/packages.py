# SPDX-License-Identifier: Apache-2.0
"""Installs the Debian packages and the virtual environment."""

import os
import pathlib
import shutil
import subprocess
import sys
from collections.abc import Iterable, Mapping, Sequence

from onemachine.layout import REPOSITORY, REQUIREMENTS, Layout
from onemachine.progress import CloudError, print_line, step

# Program -> the Debian package that has it.
_ALWAYS = {
    '/usr/lib/rabbitmq/bin/rabbitmq-server': 'rabbitmq-server',
    '/usr/sbin/mariadbd': 'mariadb-server',
    '/usr/bin/memcached': 'memcached',
    'gcc': 'gcc',
}
_BACKENDS = {
    'etcd': {'/usr/bin/etcd': 'etcd-server'},
    'redis': {
        '/usr/bin/redis-server': 'redis-server',
        '/usr/bin/redis-sentinel': 'redis-sentinel',
    },
    'zookeeper': {'/usr/share/zookeeper/bin/zkServer.sh': 'zookeeper'},
}
_POLICY = pathlib.Path('/usr/sbin/policy-rc.d')


def ensure_debian(
    backend: str | None = None, programs: Mapping[str, str] | None = None
) -> None:
    """Install the Debian packages that are missing.

    :param programs: further programs, with their packages
    """
    wanted = {
        **_ALWAYS,
        **_BACKENDS.get(backend or '', {}),
        **(programs or {}),
    }
    missing = [p for name, p in wanted.items() if shutil.which(name) is None]
    if not _has_venv_and_headers():
        missing += ['python3-venv', 'python3-dev']
    if not missing:
        return
    with step(f'Installing Debian packages {" ".join(missing)}'):
        _apt(missing)


def _has_venv_and_headers() -> bool:
    import sysconfig

    headers = pathlib.Path(sysconfig.get_paths()['include'], 'Python.h')
    try:
        import ensurepip  # noqa: F401
    except ImportError:
        return False
    return headers.exists()


def _apt(names: Iterable[str]) -> None:
    root = [] if os.geteuid() == 0 else ['sudo']
    quiet = [*root, 'env', 'DEBIAN_FRONTEND=noninteractive', 'apt-get', '-q']
    # Keep the Debian packages from starting servers of their own.
    ours = not _POLICY.exists()
    if ours:
        sh([*root, 'sh', '-c', f'echo "exit 101" > {_POLICY}'])
        sh([*root, 'sh', '-c', f'sed -i "1i #!/bin/sh" {_POLICY}'])
        sh([*root, 'chmod', '755', str(_POLICY)])
    try:
        sh([*quiet, 'update'])
        sh([*quiet, 'install', '-y', '--no-install-recommends', *names])
    finally:
        if ours:
            sh([*root, 'rm', '-f', str(_POLICY)])


def ensure_venv(layout: Layout) -> None:
    """Create the virtual environment, with our package from here."""
    done = layout.venv / 'installed'
    if not done.exists():
        _make_venv(layout)
        done.touch()
    source = f'{REPOSITORY} {(REPOSITORY / "setup.cfg").stat().st_mtime}'
    marker = layout.venv / 'source'
    if not marker.exists() or marker.read_text() != source:
        with step('Installing ironic-compute from this checkout'):
            _pip(layout, ['--no-deps', '-e', str(REPOSITORY)])
        marker.write_text(source)


def _make_venv(layout: Layout) -> None:
    print_line(f'The virtual environment is {layout.venv}')
    with step('Installing OpenStack from packages (some minutes)'):
        shutil.rmtree(layout.venv, ignore_errors=True)
        sh([sys.executable, '-m', 'venv', str(layout.venv)])
        _pip(layout, ['-U', 'pip'])
        _pip(layout, ['-r', str(REQUIREMENTS)])


def add(layout: Layout, requirements: pathlib.Path) -> None:
    """Install further packages in the virtual environment."""
    _pip(layout, ['-r', str(requirements)])


def _pip(layout: Layout, what: Sequence[str]) -> None:
    sh([layout.bin('python'), '-m', 'pip', 'install', '-q', *what])


def sh(command: Sequence[str]) -> None:
    """Run a program to its end.

    :raises CloudError: it failed; the message has the end of its output
    """
    done = subprocess.run(
        command, stdin=subprocess.DEVNULL, capture_output=True, text=True
    )
    if done.returncode != 0:
        raise CloudError(
            f'{" ".join(command)} failed with {done.returncode}: '
            f'{(done.stderr or done.stdout).strip()[-800:]}'
        )


def run(
    layout: Layout, command: Sequence[str], good: Sequence[int] = (0,)
) -> str:
    """Run a program of the cloud to its end; return its output.

    :param good: the exit statuses that are no failure
    :raises CloudError: it failed; the message has the end of its output
    """
    done = subprocess.run(
        command,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        env=layout.environment(),
    )
    if done.returncode not in good:
        output = (done.stdout + done.stderr).strip()[-1500:]
        raise CloudError(f'{" ".join(command)} failed: {output}')
    return done.stdout

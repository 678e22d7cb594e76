# SPDX-License-Identifier: Apache-2.0
"""Installs tempest apart from the cloud, and runs it."""

import contextlib
import hashlib
import json
import os
import pathlib
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from typing import Any

from onemachine import config, packages
from onemachine.layout import REPOSITORY, TEMPEST_REQUIREMENTS, Layout
from onemachine.progress import CloudError, print_line, step
from onemachine.tempest.selection import CANDIDATES

_LINES = REPOSITORY / 'devstack' / 'tools' / 'subunit-lines'


class Tempest:
    """Tempest in a virtual environment and a folder of its own."""

    def __init__(self, layout: Layout) -> None:
        self._layout = layout
        digest = hashlib.sha256(TEMPEST_REQUIREMENTS.read_bytes())
        # The command "reset" does not delete this folder.
        self.venv = layout.state / f'venv-tempest-{digest.hexdigest()[:12]}'
        self.folder = layout.folder('tempest')

    def install(self) -> None:
        """Install the requirements, once."""
        done = self.venv / 'installed'
        if done.exists():
            return
        print_line(f'The virtual environment of tempest is {self.venv}')
        with step('Installing tempest from packages'):
            shutil.rmtree(self.venv, ignore_errors=True)
            pip = [self._bin('python'), '-m', 'pip', 'install', '-q']
            packages.sh([sys.executable, '-m', 'venv', str(self.venv)])
            packages.sh([*pip, '-r', str(TEMPEST_REQUIREMENTS)])
        done.touch()

    def configure(self, sections: config.Sections) -> None:
        """Write tempest.conf, and .stestr.conf with the tests' folder."""
        config.write(self._conf, sections)
        where = self._output(
            'python', '-c', 'import tempest; print(*tempest.__path__)'
        )
        top = pathlib.Path(where.strip())
        config.write(
            self.folder / '.stestr.conf',
            {
                'DEFAULT': {
                    'test_path': top / 'test_discover',
                    'top_dir': top,
                    # Tests of a class run in one worker, because they share
                    # its set-up.
                    'group_regex': r'([^\.]*\.)*',
                }
            },
        )
        if not (self.folder / '.stestr').exists():
            self._output('stestr', 'init')

    @property
    def version(self) -> str:
        """The version of tempest."""
        code = 'import importlib.metadata as m; print(m.version("tempest"))'
        return self._output('python', '-c', code).strip()

    def list(self) -> list[str]:
        """Return the ids of all tests that can be selected."""
        listed = self._output(
            'tempest', 'run', '--list-tests', '--regex', CANDIDATES
        )
        return [x for x in listed.splitlines() if x.startswith('tempest.')]

    def run(
        self, chosen: Sequence[str], workers_count: int
    ) -> Iterator[dict[str, Any]]:
        """Run tests; yield each that ended, as ``subunit-lines`` prints it.

        :raises CloudError: tempest itself failed
        """
        wanted = self.folder / 'chosen.txt'
        wanted.write_text('\n'.join([*chosen, '']))
        command = [
            *('nice', self._bin('tempest'), 'run', '--subunit'),
            *('--load-list', str(wanted)),
            *('--concurrency', str(workers_count)),
        ]
        with (
            open(self._layout.log('tempest'), 'ab') as log,
            self._popen(command, log) as tempest,
            self._popen(
                [self._bin('python'), str(_LINES)], log, tempest.stdout
            ) as lines,
        ):
            try:
                for line in lines.stdout or ():
                    yield json.loads(line)
            finally:
                # Stop also its workers, which would disturb the next run.
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(tempest.pid, signal.SIGTERM)
        if lines.returncode != 0:
            raise CloudError(
                f'the results of tempest could not be read: see {log.name}'
            )

    def _popen(
        self, command: Sequence[str], log: Any, source: Any = None
    ) -> Any:
        return subprocess.Popen(
            command,
            stdin=source or subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=log,
            cwd=self.folder,
            env=self._environment(),
            process_group=0,
        )

    @property
    def _conf(self) -> pathlib.Path:
        return self.folder / 'etc' / 'tempest.conf'

    def _bin(self, name: str) -> str:
        return str(self.venv / 'bin' / name)

    def _environment(self) -> dict[str, str]:
        own = self._layout.environment(
            TEMPEST_CONFIG_DIR=str(self._conf.parent),
            TEMPEST_CONFIG=self._conf.name,
        )
        return {**own, 'PATH': f'{self.venv}/bin:{own["PATH"]}'}

    def _output(self, program: str, *words: str) -> str:
        done = subprocess.run(
            [self._bin(program), *words],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            cwd=self.folder,
            env=self._environment(),
        )
        if done.returncode != 0:
            output = (done.stdout + done.stderr).strip()[-1500:]
            raise CloudError(f'{program} {" ".join(words)} failed: {output}')
        return done.stdout

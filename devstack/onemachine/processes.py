# SPDX-License-Identifier: Apache-2.0
"""Processes of the cloud: started, recorded, stopped by pid.

A pid is believed only together with the start time the kernel gives it, so a
number that another program got meanwhile is never signalled.
"""

import json
import os
import pathlib
import signal
import subprocess
import time
from collections.abc import Mapping, Sequence

from onemachine.layout import Layout
from onemachine.progress import CloudError


def _stat(pid: int) -> list[str] | None:
    """Return the fields of /proc/PID/stat behind the name."""
    try:
        text = pathlib.Path(f'/proc/{pid}/stat').read_text()
    except OSError:
        return None
    return text.rpartition(')')[2].split()


def born(pid: int) -> str | None:
    """Return when a process started; None if there is no such process."""
    fields = _stat(pid)
    return None if fields is None or fields[0] == 'Z' else fields[19]


def children(pid: int) -> list[int]:
    """Return the child processes of a process."""
    found = []
    for entry in os.listdir('/proc'):
        fields = _stat(int(entry)) if entry.isdigit() else None
        if fields is not None and int(fields[1]) == pid and fields[0] != 'Z':
            found.append(int(entry))
    return found


def arguments(pid: int) -> list[str]:
    """Return the command line of a process."""
    try:
        raw = pathlib.Path(f'/proc/{pid}/cmdline').read_bytes()
    except OSError:
        return []
    return raw.decode(errors='replace').split('\0')


class Processes:
    """The recorded processes of one cloud."""

    def __init__(self, layout: Layout) -> None:
        self._layout = layout
        self._folder = layout.folder('run')

    def start(
        self,
        name: str,
        command: Sequence[str],
        environment: Mapping[str, str] | None = None,
    ) -> int:
        """Start a process unless it runs; return its pid."""
        running = self.pid(name)
        if running is not None:
            return running
        with open(self._layout.log(name), 'ab') as log:
            process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                env=dict(environment or self._layout.environment()),
                cwd=self._layout.folder('home'),
                start_new_session=True,
            )
        record = {'pid': process.pid, 'born': born(process.pid)}
        self._path(name).write_text(json.dumps(record))
        return process.pid

    def pid(self, name: str) -> int | None:
        """Return the pid of a recorded process that runs."""
        try:
            record = json.loads(self._path(name).read_text())
        except (OSError, ValueError):
            return None
        pid = int(record['pid'])
        if record['born'] is None or born(pid) != record['born']:
            return None
        return pid

    def names(self) -> list[str]:
        """Return the names of all recorded processes."""
        return sorted(p.stem for p in self._folder.glob('*.json'))

    def stop(self, name: str, timeout_s: float = 30.0) -> None:
        """End a process with SIGTERM, and with SIGKILL if it does not."""
        pid = self.pid(name)
        if pid is not None:
            self.signal(name, signal.SIGTERM)
            if not self.await_end(name, timeout_s):
                self.signal(name, signal.SIGKILL)
                self.await_end(name, 10.0)
        self._path(name).unlink(missing_ok=True)

    def signal(self, name: str, number: signal.Signals) -> None:
        """Send a signal to a recorded process, if it runs."""
        pid = self.pid(name)
        if pid is not None:
            os.kill(pid, number)

    def await_end(self, name: str, timeout_s: float) -> bool:
        """Wait until a process has ended."""
        deadline_s = time.monotonic() + timeout_s
        while self.pid(name) is not None:
            _reap()
            if time.monotonic() > deadline_s:
                return False
            time.sleep(0.1)
        return True

    def require(self, name: str) -> int:
        """Return the pid of a process that must be running."""
        pid = self.pid(name)
        if pid is None:
            raise CloudError(
                f'{name} is not running; see {self._layout.log(name)}'
            )
        return pid

    def _path(self, name: str) -> pathlib.Path:
        return self._folder / f'{name}.json'


def _reap() -> None:
    """Take the exit status of our own children that have ended."""
    try:
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass
    except ChildProcessError:
        pass

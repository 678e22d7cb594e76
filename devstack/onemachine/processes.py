# SPDX-License-Identifier: Apache-2.0
"""Processes of the cloud: started, recorded, stopped by pid.

A pid counts only together with the start time that the kernel has for it, so
another program that got the same pid later is never signalled.
"""

import contextlib
import dataclasses
import json
import os
import pathlib
import signal
import socket
import subprocess
import time
from collections.abc import Iterator, Mapping, Sequence

from onemachine.layout import ADDRESS, Layout
from onemachine.progress import CloudError, wait_until

# The option that a daemon gets from the one that it replaces.
_SUCCESSOR = '--predecessor-fd'


def answers(port: int, address: str = ADDRESS) -> bool:
    """Return whether a process listens on a port."""
    with socket.socket() as probe:
        probe.settimeout(1.0)
        return probe.connect_ex((address, port)) == 0


def _stat(pid: int) -> list[str] | None:
    """Return the fields of /proc/PID/stat after the name."""
    try:
        text = pathlib.Path(f'/proc/{pid}/stat').read_text()
    except OSError:
        return None
    return text.rpartition(')')[2].split()


def born(pid: int) -> str | None:
    """Return the start time of a process, or None if it does not exist."""
    fields = _stat(pid)
    return None if fields is None or fields[0] == 'Z' else fields[19]


def _all_alive() -> Iterator[tuple[int, list[str]]]:
    for entry in os.listdir('/proc'):
        fields = _stat(int(entry)) if entry.isdigit() else None
        if fields is not None and fields[0] != 'Z':
            yield int(entry), fields


def children(pid: int) -> list[int]:
    """Return the child processes of a process."""
    return [one for one, fields in _all_alive() if int(fields[1]) == pid]


def session(leader: int) -> list[int]:
    """Return the processes of a session, with its leader if it lives."""
    return [one for one, fields in _all_alive() if int(fields[3]) == leader]


def arguments(pid: int) -> list[str]:
    """Return the command line of a process."""
    try:
        raw = pathlib.Path(f'/proc/{pid}/cmdline').read_bytes()
    except OSError:
        return []
    return raw.decode(errors='replace').split('\0')


@dataclasses.dataclass(frozen=True, slots=True)
class Record:
    """A started process: pid, start time and command line."""

    pid: int
    born: str | None
    command: Sequence[str] = ()

    @property
    def alive(self) -> bool:
        """Whether this process still runs."""
        return self.born is not None and born(self.pid) == self.born

    def leftovers(self) -> list[int]:
        """The processes of its session that outlived it.

        The kernel does not reuse the pid of a session that exists. If another
        process has the pid, no process of the session is left.
        """
        if born(self.pid) not in (None, self.born):
            return []
        return [pid for pid in session(self.pid) if pid != self.pid]

    @classmethod
    def read(cls, path: pathlib.Path) -> 'Record | None':
        """Read a record; return None if it is absent or incomplete."""
        try:
            return cls(**json.loads(path.read_text()))
        except (OSError, ValueError, TypeError):
            return None


class Processes:
    """The recorded processes of one cloud.

    :param port_wait_s: seconds to wait for a free port. A process whose first
        thread has ended looks dead, but listens until its last thread ends
    """

    def __init__(self, layout: Layout, port_wait_s: float = 5.0) -> None:
        self._layout = layout
        self._port_wait_s = port_wait_s
        self._folder = layout.folder('run')

    def start(
        self,
        name: str,
        command: Sequence[str],
        environment: Mapping[str, str] | None = None,
        *,
        port: int | None = None,
    ) -> int:
        """Start a process unless it runs with this command line.

        :param port: the port where it will listen
        :returns: its pid
        :raises CloudError: another program listens there
        """
        record = Record.read(self._path(name))
        if record is not None and record.alive:
            if list(record.command) in ([], list(command)):
                return record.pid
            self.stop(name)
        if port is not None and answers(port):
            self._await_free(name, port)
        return self._spawn(name, command, environment)

    def _await_free(self, name: str, port: int) -> None:
        try:
            wait_until(
                f'port {port} free',
                lambda: not answers(port),
                self._port_wait_s,
                interval_s=0.1,
            )
        except CloudError as exc:
            raise CloudError(
                f'another program listens on {ADDRESS}:{port}, which is '
                f"{name}'s: stop it, or choose another --port-base"
            ) from exc

    def _spawn(
        self,
        name: str,
        command: Sequence[str],
        environment: Mapping[str, str] | None,
    ) -> int:
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
        self._write(
            name, Record(process.pid, born(process.pid), list(command))
        )
        return process.pid

    def pid(self, name: str) -> int | None:
        """Return the pid of a recorded process that runs."""
        record = Record.read(self._path(name))
        return record.pid if record is not None and record.alive else None

    def names(self) -> list[str]:
        """Return the names of all recorded processes."""
        return sorted(p.stem for p in self._folder.glob('*.json'))

    def running(self) -> list[str]:
        """Return the names of the recorded processes that run."""
        return [name for name in self.names() if self.pid(name) is not None]

    def stop(self, name: str, timeout_s: float = 30.0) -> None:
        """End a process with SIGTERM, and with SIGKILL if that fails.

        The remaining processes of its session are killed.
        """
        record = Record.read(self._path(name))
        if record is not None:
            self.signal(name, signal.SIGTERM)
            # A halted process receives no other signal.
            self.signal(name, signal.SIGCONT)
            if not self.await_end(name, timeout_s):
                self.signal(name, signal.SIGKILL)
                self.await_end(name, 10.0)
            self._kill_leftovers(record, 10.0)
        self._path(name).unlink(missing_ok=True)

    def _kill_leftovers(self, record: Record, timeout_s: float) -> None:
        """Kill the rest of a session, which may hold a port."""
        deadline_s = time.monotonic() + timeout_s
        while pids := record.leftovers():
            for pid in pids:
                _kill(pid)
            if time.monotonic() > deadline_s:
                return
            time.sleep(0.05)

    def replace(self, name: str, timeout_s: float = 120.0) -> None:
        """Have a daemon replaced by the one that it starts; record that.

        :raises CloudError: it was not replaced in time
        """
        record, pid = Record.read(self._path(name)), self.require(name)
        self.signal(name, signal.SIGURG)
        (successor,) = wait_until(
            f'a successor of {name}',
            # A child of the daemon is the parent of its successor.
            lambda: [
                successor
                for holder in children(pid)
                if _SUCCESSOR in arguments(holder)
                for successor in children(holder)
            ],
            timeout_s,
            interval_s=0.1,
        )
        if not self.await_end(name, timeout_s):
            raise CloudError(
                f'{name} was not replaced; the end of its log:\n'
                + _tail(self._layout.log(name))
            )
        command = record.command if record else ()
        self._write(name, Record(successor, born(successor), command))

    def _write(self, name: str, record: Record) -> None:
        self._path(name).write_text(json.dumps(dataclasses.asdict(record)))

    def signal(self, name: str, number: signal.Signals) -> None:
        """Send a signal to a recorded process, if it runs."""
        pid = self.pid(name)
        if pid is not None:
            os.kill(pid, number)

    def await_end(self, name: str, timeout_s: float) -> bool:
        """Wait until a process has ended."""
        deadline_s = time.monotonic() + timeout_s
        while self.pid(name) is not None:
            if time.monotonic() > deadline_s:
                return False
            time.sleep(0.1)
        return True

    def require(self, name: str) -> int:
        """Return the pid of a process that must be running."""
        pid = self.pid(name)
        if pid is None:
            log = self._layout.log(name)
            raise CloudError(
                f'{name} is not running; the end of {log}:\n' + _tail(log)
            )
        return pid

    def _path(self, name: str) -> pathlib.Path:
        return self._folder / f'{name}.json'


def _kill(pid: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)


def _tail(path: pathlib.Path, lines_count: int = 8) -> str:
    try:
        lines = path.read_text(errors='replace').splitlines()
    except OSError:
        return ''
    return '\n'.join(lines[-lines_count:])

# SPDX-License-Identifier: Apache-2.0
"""The agent's state directory: its lock, known hosts, home lock token.

`agent.lock` is locked while the agent runs: one agent for one directory.
`home_lock.json` has the last token of the home lock, with which the next
    agent process breaks that lock at once after a kill -9.
`deaths.json` has how many agent processes in a row have died.
`known.json` has the known hosts of the pool, so that all of them are served
    again after a loss of power on all machines.
`vouched.json` has the hosts whose mapping to a cell operators have confirmed.
`forgotten.json` has the marks of the hosts that operators have forgotten.
`longest_term.json` has the longest lease term of the pool in seconds, of which
    the holder of a known host may still act.
`group.json` has the name of the group whose pool the last four files describe;
    those of any other group are ignored. Without it an older release has
    written those files.

The agent's main thread alone uses it. Files are replaced, never written in
place. A file that cannot be read counts as absent, because other agents or
the next turn of the main loop supply its content again.
"""

import fcntl
import json
import os
import pathlib
from collections.abc import Iterable
from typing import Any, Protocol

from oslo_log import log as logging

from hashring import errors
from hashring.group import LockToken, Marks, parse_marks
from hashring.ring import Host

LOG = logging.getLogger(__name__)

OPTION = '[ironic_compute] state_path'


class SavedState(Protocol):
    """The open state directory, as the agent uses it; the tests have a fake.

    Methods block on the disk and never raise; a ``write_*`` returns whether
    it succeeded.
    """

    def close(self) -> None: ...

    def read_home_lock(self, home: Host) -> LockToken | None: ...

    def write_home_lock(self, home: Host, token: LockToken) -> None: ...

    def read_known(self) -> frozenset[Host]: ...

    def write_known(self, hosts: Iterable[Host]) -> bool: ...

    def read_confirmed_mappings(self) -> frozenset[Host]: ...

    def write_confirmed_mappings(self, hosts: Iterable[Host]) -> bool: ...

    def read_marks(self) -> Marks: ...

    def write_marks(self, marks: Marks) -> bool: ...

    def read_longest_term_s(self) -> float: ...

    def write_longest_term(self, term_s: float) -> bool: ...

    def read_deaths_count(self) -> int: ...

    def write_deaths_count(self, count: int) -> bool: ...


class StateDir:
    """The state directory, and the lock on it.

    The lock is a flock on a close-on-exec descriptor, so that workers do not
    inherit it and the kernel releases it when the agent dies.

    :param path: ``[ironic_compute] state_path``
    :param group: the name of the group whose hosts are read and written
    """

    def __init__(self, path: str | os.PathLike[str], group: str) -> None:
        self._path = pathlib.Path(path)
        self._group = group
        # Files whose last write failed; that failure is logged already.
        self._failed: set[str] = set()
        self._lock_fd = -1

    def open(self) -> None:
        """Create the directory if necessary, and lock it for this process.

        Files of an older release get this group's name; the hosts of another
        group are deleted.

        :raises StateDirRefused: the directory cannot be written or locked,
            or another agent has locked it.
        """
        fd = self._open_lock_file()
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as exc:
            os.close(fd)
            raise errors.StateDirRefused(self._why_unlocked(exc)) from exc
        self._lock_fd = fd
        # If this fails, the next write of hosts repeats it.
        self._empty_files()

    def check(self) -> None:
        """Create the directory if necessary, and see that it can be written.

        Another process may have locked it.

        :raises StateDirRefused: it cannot be written
        """
        os.close(self._open_lock_file())

    def _open_lock_file(self) -> int:
        """Return a descriptor of the file that is locked.

        :raises StateDirRefused: the directory cannot be written
        """
        try:
            self._path.mkdir(parents=True, exist_ok=True)
            return os.open(
                self._path / 'agent.lock', os.O_RDWR | os.O_CREAT, 0o600
            )
        except OSError as exc:
            raise errors.StateDirRefused(
                f'{OPTION} is {self._path}, which cannot be written '
                f'({exc.strerror}): create it for the user of this service '
                'or name another folder.'
            ) from exc

    def _why_unlocked(self, exc: OSError) -> str:
        if isinstance(exc, BlockingIOError):
            return (
                f'Another agent runs on {OPTION} {self._path}: stop it, or '
                'give this one a folder of its own.'
            )
        return (
            f'{OPTION} is {self._path}, which cannot be locked '
            f'({exc.strerror}): name a folder on a local disk.'
        )

    def close(self) -> None:
        """Unlock the directory."""
        if self._lock_fd >= 0:
            os.close(self._lock_fd)
            self._lock_fd = -1

    def read_home_lock(self, home: Host) -> LockToken | None:
        """Return the token of the home lock that was saved last, or None.

        After `open` the process that saved it is certainly dead, unless the
        directory is a copy. The lock may have been lost or released since.
        """
        raw = self._read('home_lock.json')
        if not isinstance(raw, dict) or raw.get('home') != home:
            return None
        return LockToken(str(raw['token'])) if 'token' in raw else None

    def write_home_lock(self, home: Host, token: LockToken) -> None:
        """Save the token of the home lock."""
        self._write('home_lock.json', {'home': home, 'token': token})

    def read_known(self) -> frozenset[Host]:
        """Return the saved known hosts."""
        return self._read_hosts('known.json')

    def write_known(self, hosts: Iterable[Host]) -> bool:
        """Save the known hosts; return whether it succeeded."""
        return self._empty_files() and self._write('known.json', sorted(hosts))

    def read_confirmed_mappings(self) -> frozenset[Host]:
        """Return the saved hosts with a confirmed mapping."""
        return self._read_hosts('vouched.json')

    def write_confirmed_mappings(self, hosts: Iterable[Host]) -> bool:
        """Save the hosts with a confirmed mapping; return if it succeeded."""
        return self._empty_files() and self._write(
            'vouched.json', sorted(hosts)
        )

    def read_marks(self) -> Marks:
        """Return the saved marks of forgotten hosts."""
        raw = self._read('forgotten.json')
        is_ours = self._read('group.json') in (None, self._group)
        try:
            return parse_marks(raw) if is_ours else ()
        except (AttributeError, TypeError, ValueError):
            return ()

    def write_marks(self, marks: Marks) -> bool:
        """Save the marks of forgotten hosts; return if it succeeded."""
        return self._empty_files() and self._write(
            'forgotten.json', dict(marks)
        )

    def read_longest_term_s(self) -> float:
        """Return the saved longest lease term; 0.0 if there is none."""
        raw = self._read('longest_term.json')
        is_ours = self._read('group.json') in (None, self._group)
        return float(raw) if is_ours and isinstance(raw, float) else 0.0

    def write_longest_term(self, term_s: float) -> bool:
        """Save the longest lease term in seconds; return if it succeeded."""
        return self._empty_files() and self._write(
            'longest_term.json', float(term_s)
        )

    def read_deaths_count(self) -> int:
        """Return the saved number of agents that have died; 0 if none is."""
        raw = self._read('deaths.json')
        return raw if isinstance(raw, int) else 0

    def write_deaths_count(self, count: int) -> bool:
        """Save how many agents have died; return if it succeeded.

        A full disk must not keep a count that is over, so the file is removed.
        """
        if count:
            return self._write('deaths.json', count)
        try:
            (self._path / 'deaths.json').unlink(missing_ok=True)
        except OSError:
            return False
        return True

    def _empty_files(self) -> bool:
        """Empty the files of another group, then save this group's name.

        In this order, because the process may be killed in between and start
        again in the former group.

        :returns: whether the files belong to this group now
        """
        group = self._read('group.json')
        if group == self._group:
            return True
        is_empty = group is None or (
            self._write('known.json', [])
            and self._write('vouched.json', [])
            and self._write('forgotten.json', {})
            and self._write('longest_term.json', 0.0)
        )
        return is_empty and self._write('group.json', self._group)

    def _read_hosts(self, name: str) -> frozenset[Host]:
        raw = self._read(name)
        is_ours = self._read('group.json') in (None, self._group)
        if not is_ours or not isinstance(raw, list):
            return frozenset()
        return frozenset(Host(str(host)) for host in raw)

    def _read(self, name: str) -> Any:
        try:
            return json.loads((self._path / name).read_text())
        except (OSError, ValueError):
            return None

    def _write(self, name: str, value: Any) -> bool:
        """Replace a file; log the first of consecutive failures as a warning.

        :returns: whether it succeeded
        """
        new = self._path / f'{name}.new'
        try:
            with new.open('w') as file:
                # The token of a lock must not be readable by others.
                os.fchmod(file.fileno(), 0o600)
                json.dump(value, file)
                file.flush()
                os.fsync(file.fileno())
            new.replace(self._path / name)
        except OSError as exc:
            level = logging.DEBUG if name in self._failed else logging.WARNING
            LOG.log(
                level,
                'Could not write %(file)s: %(why)s',
                {'file': self._path / name, 'why': exc},
            )
            self._failed.add(name)
            return False
        self._failed.discard(name)
        return True

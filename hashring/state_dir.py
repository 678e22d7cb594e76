# SPDX-License-Identifier: Apache-2.0
"""What an agent keeps on its own disk, under one folder.

`agent.lock`  held for the life of the agent: one agent a folder.
`home_lock.json`  our last acquisition of our home's lock: lets the next
              process, after a kill -9, free that very one at once.
`known.json`  the hosts of this pool ever seen: a pool that comes back from
              a total loss of power still knows whom to serve.
`vouched.json`  those of them that operators have said to be mapped.

Files are replaced, never written in place; one that cannot be read counts
as absent, because a peer or the next turn brings it back.
"""

import fcntl
import json
import os
import pathlib
from collections.abc import Iterable
from typing import Any, Protocol

from oslo_log import log as logging

from hashring import errors
from hashring.group import LockToken
from hashring.ring import Host

LOG = logging.getLogger(__name__)

OPTION = '[ironic_compute] state_path'


class SavedState(Protocol):
    """What the agent needs of its folder once it is open."""

    def close(self) -> None: ...

    def read_home_lock(self, home: Host) -> LockToken | None: ...

    def write_home_lock(self, home: Host, token: LockToken) -> None: ...

    def read_known(self) -> frozenset[Host]: ...

    def write_known(self, hosts: Iterable[Host]) -> bool: ...

    def read_confirmed_mappings(self) -> frozenset[Host]: ...

    def write_confirmed_mappings(self, hosts: Iterable[Host]) -> bool: ...


class StateDir:
    """The folder, and the right to it.

    The lock is a flock on a close-on-exec descriptor: workers started by
    exec do not inherit it, and the kernel frees it when the agent dies.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self._path = pathlib.Path(path)
        self._failed: set[str] = set()  # Files the operator knows of.
        self._lock_fd = -1

    def open(self) -> None:
        """Take the folder for this process.

        :raises StateDirRefused: unwritable, or another agent has it.
        """
        try:
            self._path.mkdir(parents=True, exist_ok=True)
            fd = os.open(
                self._path / 'agent.lock', os.O_RDWR | os.O_CREAT, 0o600
            )
        except OSError as exc:
            raise errors.StateDirRefused(
                f'{OPTION} is {self._path}, which cannot be written '
                f'({exc.strerror}): create it for the user of this service '
                'or name another folder.'
            ) from exc
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as exc:
            os.close(fd)
            raise errors.StateDirRefused(
                f'Another agent runs on {OPTION} {self._path}: stop it, or '
                'give this one a folder of its own.'
            ) from exc
        self._lock_fd = fd

    def close(self) -> None:
        if self._lock_fd >= 0:
            os.close(self._lock_fd)
            self._lock_fd = -1

    def read_home_lock(self, home: Host) -> LockToken | None:
        """The last acquisition of this home's lock by a life on this folder.

        After `open` no living process has it: that we could take the folder
        proves that those before us are gone, unless the folder is a copy. It
        may be lost or given back since.
        """
        raw = self._read('home_lock.json')
        if not isinstance(raw, dict) or raw.get('home') != home:
            return None
        return LockToken(str(raw['token'])) if 'token' in raw else None

    def write_home_lock(self, home: Host, token: LockToken) -> None:
        self._write('home_lock.json', {'home': home, 'token': token})

    def read_known(self) -> frozenset[Host]:
        return self._read_hosts('known.json')

    def write_known(self, hosts: Iterable[Host]) -> bool:
        return self._write('known.json', sorted(hosts))

    def read_confirmed_mappings(self) -> frozenset[Host]:
        return self._read_hosts('vouched.json')

    def write_confirmed_mappings(self, hosts: Iterable[Host]) -> bool:
        return self._write('vouched.json', sorted(hosts))

    def _read_hosts(self, name: str) -> frozenset[Host]:
        raw = self._read(name)
        if not isinstance(raw, list):
            return frozenset()
        return frozenset(Host(str(host)) for host in raw)

    def _read(self, name: str) -> Any:
        try:
            return json.loads((self._path / name).read_text())
        except (OSError, ValueError):
            return None

    def _write(self, name: str, value: Any) -> bool:
        """Replace a file; a full disk is said, once, and survived.

        :returns: whether it was done
        """
        new = self._path / f'{name}.new'
        try:
            with new.open('w') as file:
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

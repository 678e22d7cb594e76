# SPDX-License-Identifier: Apache-2.0
"""What an agent keeps on its own disk, under one folder.

`agent.lock`  held for the life of the agent: one agent a folder.
`boot.json`   who we are, and whether we hold our home's lock: lets the next
              process, after a kill -9, free that lock at once.
`known.json`  the hosts of this pool ever seen: a pool that comes back from
              a total loss of power still knows whom to serve.
`vouched.json`  those of them that operators have said to be mapped.

Files are replaced, never written in place; one that cannot be read counts
as absent, because a peer or the next turn brings it back.
"""

import dataclasses
import fcntl
import json
import os
import pathlib
from collections.abc import Iterable
from typing import Any, Protocol

from oslo_log import log as logging

from hashring import errors
from hashring.group import Boot
from hashring.ring import Host

LOG = logging.getLogger(__name__)

OPTION = '[ironic_compute] state_path'


@dataclasses.dataclass(frozen=True, slots=True)
class BootRecord:
    """One life of an agent."""

    home: Host
    boot: Boot
    pid: int
    holds_home: bool
    """True only while its home's lock was certainly held: written after
    the grant, cleared before a release and at each lapse of the lease."""


class Folder(Protocol):
    """What the agent needs of its folder once it is open."""

    def close(self) -> None: ...

    def read_boot(self) -> BootRecord | None: ...

    def write_boot(self, record: BootRecord) -> None: ...

    def read_known(self) -> frozenset[Host]: ...

    def write_known(self, hosts: Iterable[Host]) -> None: ...

    def read_vouched(self) -> frozenset[Host]: ...

    def write_vouched(self, hosts: Iterable[Host]) -> None: ...


class StateFolder:
    """The folder, and the right to it.

    The lock is a flock on a close-on-exec descriptor: workers started by
    exec do not inherit it, and the kernel frees it when the agent dies.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self._path = pathlib.Path(path)
        self._lock_fd = -1

    def open(self) -> None:
        """Take the folder for this process.

        :raises StateFolderRefused: unwritable, or another agent has it.
        """
        try:
            self._path.mkdir(parents=True, exist_ok=True)
            fd = os.open(
                self._path / 'agent.lock', os.O_RDWR | os.O_CREAT, 0o600
            )
        except OSError as exc:
            raise errors.StateFolderRefused(
                f'{OPTION} is {self._path}, which cannot be written '
                f'({exc.strerror}): create it for the user of this service '
                'or name another folder.'
            ) from exc
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as exc:
            os.close(fd)
            raise errors.StateFolderRefused(
                f'Another agent runs on {OPTION} {self._path}: stop it, or '
                'give this one a folder of its own.'
            ) from exc
        self._lock_fd = fd

    def close(self) -> None:
        if self._lock_fd >= 0:
            os.close(self._lock_fd)
            self._lock_fd = -1

    def read_boot(self) -> BootRecord | None:
        """The last life on this folder, if it left a readable record."""
        raw = self._read('boot.json')
        try:
            return BootRecord(
                home=Host(str(raw['home'])),
                boot=Boot(str(raw['boot'])),
                pid=int(raw['pid']),
                holds_home=bool(raw['holds_home']),
            )
        except (KeyError, TypeError, ValueError):
            return None

    def write_boot(self, record: BootRecord) -> None:
        if not self._write('boot.json', dataclasses.asdict(record)):
            # Rather none than one that still claims the lock.
            (self._path / 'boot.json').unlink(missing_ok=True)

    def read_known(self) -> frozenset[Host]:
        return self._read_hosts('known.json')

    def write_known(self, hosts: Iterable[Host]) -> None:
        self._write('known.json', sorted(hosts))

    def read_vouched(self) -> frozenset[Host]:
        return self._read_hosts('vouched.json')

    def write_vouched(self, hosts: Iterable[Host]) -> None:
        self._write('vouched.json', sorted(hosts))

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
        """Replace a file; a full disk is said and survived."""
        new = self._path / f'{name}.new'
        try:
            with new.open('w') as file:
                json.dump(value, file)
                file.flush()
                os.fsync(file.fileno())
            new.replace(self._path / name)
        except OSError as exc:
            LOG.warning(
                'Could not write %(file)s: %(why)s',
                {'file': self._path / name, 'why': exc},
            )
            return False
        return True


def previous_life(folder: Folder, home: Host) -> BootRecord | None:
    """The life before ours, when it certainly ended and held our home.

    Call it after `open`: that we could take the folder proves that the
    process before us is gone, whatever its pid means today.
    """
    record = folder.read_boot()
    if record is None or record.home != home or not record.holds_home:
        return None
    return record

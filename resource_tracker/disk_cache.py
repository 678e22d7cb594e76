# SPDX-License-Identifier: Apache-2.0
"""Disk cache of acknowledged provider states, for a fast worker restart.

After a restart the worker uses a saved state if Placement's list of all
providers shows the same generation. One request then proves that no provider
has changed. Without the file each provider is read once; therefore a failing
disk is logged once, and no write waits until the disk has synced. A disk that
hangs keeps the thread that has written to it; all others go on without. A
record that could not be followed by a newer one is made unreadable: by it, a
trait that somebody else has set since would seem to be ours, and would be
removed.

File format: one JSON record on each line, with a checksum. The last line of a
node counts. A line that cannot be read is skipped, so the process may be
killed between any two bytes. When many lines are outdated, the file is
replaced by a shorter one.

A provider that was deleted and created again can have the saved generation.
The node then has a new row in Nova, and the saved state of the old row is not
used. One case is not detected: an operator deleted only the provider, and it
was created again.
"""

import contextlib
import errno
import json
import os
import pathlib
import sys
import threading
import zlib
from collections.abc import Iterator, Mapping
from typing import Any, Protocol

import attrs
from oslo_log import log as logging

from resource_tracker import interning
from resource_tracker.delta import KnownProvider
from resource_tracker.node import NodeId
from resource_tracker.provider_state import ProviderState

LOG = logging.getLogger(__name__)

FORMAT = 2
# The file is replaced by a shorter one when it has more outdated lines than
# this number and than nodes.
_SPARE_LINES_COUNT = 1000
# Seconds to wait for the write of another thread. The disk hangs if it takes
# longer: to replace the file of thousands of nodes takes a second.
_PATIENCE_S = 5.0


class DiskCache(Protocol):
    """Storage for provider states that survives the worker process.

    Any thread may call; a call lasts as long as one write to the local disk.
    The caller must hold no lock that others need: the disk may hang.
    """

    def take(self, node: NodeId) -> ProviderState | None:
        """Remove and return the state that an earlier process saved."""

    def save(self, node: NodeId, state: ProviderState) -> None:
        """Save the acknowledged state of a node's provider."""

    def discard(self, node: NodeId) -> None:
        """Discard the saved state of a node that is not held any more."""


class NoDiskCache:
    """A cache that stores nothing."""

    def take(self, node: NodeId) -> ProviderState | None:
        """Return None."""
        return None

    def save(self, node: NodeId, state: ProviderState) -> None:
        """Do nothing."""

    def discard(self, node: NodeId) -> None:
        """Do nothing."""


@attrs.define(eq=False, repr=False, slots=False)
class FileDiskCache:
    """A disk cache in one file.

    The constructor reads the file: milliseconds for thousands of nodes.

    :param path: the file; its folder is created if it does not exist
    :param host: the host that holds the nodes; a file of another host is not
        read
    :param spare_lines_count: number of outdated lines at which the file is
        replaced by a shorter one
    :param format_number: a file of another format is not read
    :param patience_s: seconds to wait for the write of another thread
    """

    _path: pathlib.Path = attrs.field(converter=pathlib.Path)
    _host: str
    _spare_lines_count: int = _SPARE_LINES_COUNT
    _format_number: int = FORMAT
    _patience_s: float = _PATIENCE_S

    def __attrs_post_init__(self) -> None:
        self._header = {'format': self._format_number, 'host': self._host}
        self._lock = threading.Lock()
        self._earlier: dict[NodeId, ProviderState] = {}
        self._nodes: set[NodeId] = set()
        self._lines_count = 0
        self._fd: int | None = None
        # A write has hung, so records are missing in the file.
        self._has_hung = False
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            self._earlier = self._read()
            self._nodes = set(self._earlier)
            self._replace(self._earlier)
        except OSError as exc:
            self._stop_saving(exc)

    def take(self, node: NodeId) -> ProviderState | None:
        """Remove and return the state that an earlier process saved."""
        return self._earlier.pop(node, None)

    def save(self, node: NodeId, state: ProviderState) -> None:
        """Save the acknowledged state of a node's provider."""
        if state.known is not None:
            self._append(_record(node, state))

    def discard(self, node: NodeId) -> None:
        """Discard the saved state of a node that is not held any more."""
        self._earlier.pop(node, None)
        if node in self._nodes:
            self._append({'node': node})

    def close(self) -> None:
        """Close the file; later calls save nothing."""
        with self._lock:
            self._close()
            self._nodes.clear()

    def _append(self, record: Mapping[str, Any]) -> None:
        wait_s = 0.0 if self._has_hung else self._patience_s
        if not self._lock.acquire(timeout=wait_s):
            self._note_hang()
            return
        try:
            self._append_line(record)
            if self._has_hung:
                self._abandon()
        finally:
            self._lock.release()

    def _append_line(self, record: Mapping[str, Any]) -> None:
        try:
            if self._fd is not None:
                _write_whole(self._fd, _line(record))
                self._count(record)
                if self._is_too_long():
                    self._replace(self._read())
        except OSError as exc:
            self._stop_saving(exc)
        if self._fd is None:
            self._spoil(record['node'])

    def _note_hang(self) -> None:
        """Note that a record is missing; the thread that writes may hang."""
        if not self._has_hung:
            self._has_hung = True
            self._warn(TimeoutError(errno.ETIMEDOUT, 'the disk hangs'))

    def _abandon(self) -> None:
        """Delete the file, because records are missing; save nothing more."""
        self._close()
        self._nodes.clear()
        with contextlib.suppress(OSError):
            self._path.unlink()

    def _spoil(self, node: NodeId) -> None:
        """Make the lines of a node in the file unreadable.

        They are changed in place, because the disk may be full. If that
        fails, the file is deleted.
        """
        if node not in self._nodes:
            return
        self._nodes.discard(node)
        try:
            _spoil_lines(self._path, node)
        except OSError:
            with contextlib.suppress(OSError):
                self._path.unlink()

    def _count(self, record: Mapping[str, Any]) -> None:
        self._lines_count += 1
        if 'uuid' in record:
            self._nodes.add(record['node'])
        else:
            self._nodes.discard(record['node'])

    def _is_too_long(self) -> bool:
        spare_count = max(self._spare_lines_count, len(self._nodes))
        return self._lines_count > len(self._nodes) + spare_count

    def _read(self) -> dict[NodeId, ProviderState]:
        return _states(_lines(self._path, self._header))

    def _replace(self, states: Mapping[NodeId, ProviderState]) -> None:
        """Write the states to a new file and rename it over the old one."""
        beside = self._path.with_name(f'{self._path.name}.new')
        flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_APPEND
        fd = os.open(beside, flags, 0o600)
        try:
            _write_all(fd, self._header, states)
            os.replace(beside, self._path)
        except BaseException:
            os.close(fd)
            beside.unlink(missing_ok=True)  # It takes room on a full disk.
            raise
        self._close()
        self._fd = fd
        self._nodes = set(states)
        self._lines_count = len(states)

    def _close(self) -> None:
        if self._fd is not None:
            os.close(self._fd)
            self._fd = None

    def _stop_saving(self, exc: OSError) -> None:
        """Log a disk error and save nothing more in this process."""
        self._close()
        self._warn(exc)

    def _warn(self, exc: OSError) -> None:
        LOG.warning(
            'Could not save to %(path)s what Placement acknowledged; the '
            'next start reads each provider: %(error)s',
            {'path': self._path, 'error': exc},
        )


def _write_whole(fd: int, line: bytes) -> None:
    """Write a line at once.

    :raises OSError: a part of it was not written, as on a nearly full disk;
        the next line would continue this one
    """
    if os.write(fd, line) < len(line):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def _spoil_lines(path: pathlib.Path, node: NodeId) -> None:
    """Overwrite the first byte of each line of a node."""
    key = json.dumps({'node': node}, separators=(',', ':'))[1:-1].encode()
    with path.open('r+b', buffering=0) as file:
        offset = 0
        for line in file.read().splitlines(keepends=True):
            if key in line:
                os.pwrite(file.fileno(), b'-', offset)
            offset += len(line)


def _write_all(
    fd: int, header: Mapping[str, Any], states: Mapping[NodeId, ProviderState]
) -> None:
    """Write the header and all states."""
    with open(fd, 'wb', closefd=False) as file:
        file.write(_line(header))
        file.writelines(_line(_record(n, m)) for n, m in states.items())


def _line(record: Mapping[str, Any]) -> bytes:
    body = json.dumps(record, separators=(',', ':')).encode()
    return b'%08x %s\n' % (zlib.crc32(body), body)


def _lines(
    path: pathlib.Path, header: Mapping[str, Any]
) -> Iterator[Mapping[str, Any]]:
    """Yield the readable records; none if the file has another header."""
    try:
        file = path.open('rb')
    except FileNotFoundError:
        return
    with file:
        if _parsed(file.readline()) != header:
            LOG.info(
                'Did not use %(path)s: it was written for another host '
                'or version',
                {'path': path},
            )
            return
        yield from filter(None, map(_parsed, file))


def _parsed(line: bytes) -> Mapping[str, Any] | None:
    checksum, _, body = line.rstrip(b'\n').partition(b' ')
    if not body or checksum != b'%08x' % zlib.crc32(body):
        return None
    record: Mapping[str, Any] = json.loads(body)
    return record


def _states(
    records: Iterator[Mapping[str, Any]],
) -> dict[NodeId, ProviderState]:
    states: dict[NodeId, ProviderState] = {}
    for record in records:
        node = NodeId(sys.intern(record['node']))
        states.pop(node, None)
        if 'uuid' in record:
            states[node] = _state(record)
    return states


def _record(node: NodeId, state: ProviderState) -> dict[str, Any]:
    known = state.known
    assert known is not None  # noqa: S101 - `save` has checked it
    aggregates = known.aggregates
    return {
        'node': node,
        'uuid': known.uuid,
        'generation': known.generation,
        'inventories': {k: dict(v) for k, v in known.inventories.items()},
        'traits': sorted(known.traits),
        'aggregates': None if aggregates is None else sorted(aggregates),
        'ours': sorted(state.our_traits),
        'inferred': state.is_inferred,
        'record': state.row_id,
    }


def _state(record: Mapping[str, Any]) -> ProviderState:
    aggregates = record['aggregates']
    return ProviderState(
        known=KnownProvider(
            uuid=sys.intern(record['uuid']),
            generation=record['generation'],
            inventories=interning.record(record['inventories']),
            traits=interning.names(frozenset(record['traits'])),
            aggregates=None
            if aggregates is None
            else interning.names(frozenset(aggregates)),
        ),
        our_traits=interning.names(frozenset(record['ours'])),
        # Files of older releases do not have the field ``inferred``.
        is_inferred=record.get('inferred', False),
        row_id=record['record'],
    )

# SPDX-License-Identifier: Apache-2.0
"""The journal of one process on its local disk, and the reader of them all.

The agent and the worker of each host have a file of their own in one folder
below ``[ironic_compute] state_path``, so that any process of the machine can
read all of them, and each file has one writer. An entry is one line: a
checksum, and a move as JSON. A line that cannot be read is skipped, so a
process may be killed between any two bytes, and a disk may be full.

A file that has grown to its limit is renamed, in place of the one that was
renamed before. Nothing is ever written again or copied. A thread writes, so
that a move waits for no disk; it writes an entry as soon as it was added.
What cannot be written is lost, which is logged once.
"""

import collections
import contextlib
import errno
import itertools
import json
import os
import pathlib
import urllib.parse
import zlib
from collections.abc import Iterator
from typing import BinaryIO

import attrs
from oslo_log import log as logging

from ironic_compute.journal.moves import Move, Query, parse_move
from ironic_compute.loop_thread import LoopThread

LOG = logging.getLogger(__name__)

_Path = str | os.PathLike[str]

# The two files of a process have so many entries and bytes at most, each.
ENTRIES_MAX = 10_000
BYTES_MAX = 4 << 20
# Entries that wait for a disk that hangs.
_PENDING_MAX = 1000
_SUFFIX, _OLDER = '.log', '.log.1'
_CHUNK_BYTES = 64 << 10
# The thread writes when it is woken.
_IDLE_S = 3600.0


def journal_folder(state_path: _Path) -> pathlib.Path:
    """Return the folder with the journals of a machine."""
    return pathlib.Path(state_path, 'moves')


def worker_path(state_path: _Path, host: str) -> pathlib.Path:
    """Return the path of the journal of the worker of a host."""
    name = urllib.parse.quote(host, safe='')
    return journal_folder(state_path) / f'host-{name}{_SUFFIX}'


def agent_path(state_path: _Path) -> pathlib.Path:
    """Return the path of the journal of an agent."""
    return journal_folder(state_path) / f'agent{_SUFFIX}'


@attrs.define(eq=False, repr=False, slots=False)
class MoveFile:
    """The journal of one process.

    Any thread may call ``add``; one thread calls ``write_pending``, which
    blocks on the disk.

    :param path: the file; its folder is created if it does not exist
    """

    _path: pathlib.Path
    _entries_max: int = ENTRIES_MAX
    _bytes_max: int = BYTES_MAX

    def __attrs_post_init__(self) -> None:
        self._pending: collections.deque[Move] = collections.deque(
            maxlen=_PENDING_MAX
        )
        self._fd: int | None = None
        self._entries_count = 0
        self._has_failed = False
        self._thread = LoopThread('journal', self.write_pending, _IDLE_S)

    def start(self) -> None:
        """Start the thread that writes."""
        self._thread.start()

    def stop(self) -> None:
        """Write no more than what is being written."""
        self._thread.stop()

    def add(self, move: Move) -> None:
        """Have an entry written soon; does not block and raises no error."""
        self._pending.append(move)
        self._thread.wake()

    def read_all(self, query: Query) -> list[Move]:
        """Return the wanted moves of all processes of this machine; blocks."""
        return read_moves(self._path.parent, query)

    def write_pending(self) -> float:
        """Write all entries that were added; return the seconds to wait."""
        while self._pending:
            self._write(self._pending.popleft())
        return _IDLE_S

    def _write(self, move: Move) -> None:
        try:
            self._append(_line(move))
        except OSError as exc:
            with contextlib.suppress(OSError):
                self._close()
            # It is the same disk or folder each time.
            level = logging.DEBUG if self._has_failed else logging.WARNING
            self._has_failed = True
            LOG.log(
                level,
                'Could not write a move to %(file)s, so it is missing in '
                '"ironic-computectl history": %(why)s',
                {'file': self._path, 'why': exc},
            )
            return
        self._has_failed = False

    def _append(self, line: bytes) -> None:
        if self._fd is not None and not os.fstat(self._fd).st_nlink:
            self._close()  # Somebody has deleted the file.
        if self._fd is None:
            self._fd = self._open()
        size = os.fstat(self._fd).st_size
        is_full = size + len(line) > self._bytes_max
        if size and (is_full or self._entries_count >= self._entries_max):
            self._rotate()
            self._fd = self._open()
        if os.write(self._fd, line) < len(line):
            # The file is closed, and ended with a whole line when it is
            # opened again.
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        self._entries_count += 1

    def _open(self) -> int:
        """Open the file, behind a line end, and count its lines."""
        self._path.parent.mkdir(parents=True, exist_ok=True)
        flags = os.O_RDWR | os.O_CREAT | os.O_APPEND
        fd = os.open(self._path, flags, 0o600)
        try:
            self._entries_count = _count_lines(fd)
            size = os.fstat(fd).st_size
            if size and os.pread(fd, 1, size - 1) != b'\n':
                os.write(fd, b'\n')
        except BaseException:
            os.close(fd)
            raise
        return fd

    def _rotate(self) -> None:
        self._close()
        os.replace(self._path, self._path.with_suffix(_OLDER))

    def _close(self) -> None:
        # A close that fails, as on a network disk, has closed the file, too.
        fd, self._fd = self._fd, None
        if fd is not None:
            os.close(fd)


def _count_lines(fd: int) -> int:
    count, offset = 0, 0
    while chunk := os.pread(fd, _CHUNK_BYTES, offset):
        count += chunk.count(b'\n')
        offset += len(chunk)
    return count


def _line(move: Move) -> bytes:
    body = json.dumps(move.as_json(), separators=(',', ':')).encode()
    return b'%08x %s\n' % (zlib.crc32(body), body)


def _parsed(line: bytes) -> Move | None:
    checksum, _, body = line.partition(b' ')
    if not body or checksum != b'%08x' % zlib.crc32(body):
        return None
    try:
        return parse_move(json.loads(body))
    except ValueError:  # Of a later release, which has other fields.
        return None


def read_moves(folder: pathlib.Path, query: Query) -> list[Move]:
    """Return the wanted moves of all journals, the newest first; blocks.

    A file is read from its end, so a short answer needs a small part of it.
    """
    found: list[Move] = []
    # A file that was just renamed has no successor yet.
    older = (p.with_suffix('') for p in folder.glob(f'*{_OLDER}'))
    for path in sorted({*folder.glob(f'*{_SUFFIX}'), *older}):
        try:
            found += _read_journal(path, query)
        except OSError as exc:
            LOG.debug(
                'Could not read %(file)s: %(why)s', {'file': path, 'why': exc}
            )
    return query.newest(found)


def _read_journal(path: pathlib.Path, query: Query) -> list[Move]:
    """Return the newest of the wanted moves in the two files of a process."""
    with contextlib.ExitStack() as files:
        newer = _opened(path, files)
        older = _opened(path.with_suffix(_OLDER), files)
        if newer and older and _is_same(newer, older):
            # It was renamed between these two lines.
            newer = _opened(path, files)
        both = filter(None, (newer, older))
        lines = itertools.chain.from_iterable(map(_lines_from_end, both))
        moves = filter(None, map(_parsed, lines))
        wanted = filter(query.matches, moves)
        return list(itertools.islice(wanted, query.limit))


def _opened(
    path: pathlib.Path, files: contextlib.ExitStack
) -> BinaryIO | None:
    try:
        return files.enter_context(path.open('rb'))
    except FileNotFoundError:
        return None


def _is_same(one: BinaryIO, other: BinaryIO) -> bool:
    return os.path.samestat(os.fstat(one.fileno()), os.fstat(other.fileno()))


def _lines_from_end(file: BinaryIO) -> Iterator[bytes]:
    """Yield the lines of a file, the last one first."""
    offset, rest = file.seek(0, os.SEEK_END), b''
    while offset:
        start = max(offset - _CHUNK_BYTES, 0)
        file.seek(start)
        first, *lines = (file.read(offset - start) + rest).split(b'\n')
        yield from reversed(lines)
        offset, rest = start, first
    yield rest

# SPDX-License-Identifier: Apache-2.0
"""The journal on the disk: torn, full, rotated, and read while written."""

import contextlib
import errno
import os
import pathlib
import random
import signal
import subprocess
import sys
import textwrap
import time

import pytest

from ironic_compute.journal import move_file
from ironic_compute.journal.move_file import MoveFile, read_moves
from ironic_compute.journal.moves import Move, Query
from tests.unit.ironic_compute.journal.made_up import (
    any_moves,
    move,
    newest_first,
)

ALL = Query(limit=10_000)


@pytest.fixture
def path(tmp_path: pathlib.Path) -> pathlib.Path:
    """The journal of host c1, in a folder that is not there yet."""
    return move_file.worker_path(tmp_path, 'c1')


def _write(path: pathlib.Path, moves: list[Move], **limits: int) -> None:
    """Write some moves as a new process would."""
    file = MoveFile(path, **limits)
    for each in moves:
        file.add(each)
        file.write_pending()


def _size(path: pathlib.Path) -> int:
    return sum(each.stat().st_size for each in path.parent.iterdir())


def test_moves_of_all_journals_are_read(tmp_path: pathlib.Path) -> None:
    """Those of the agent and of each host, the newest first."""
    folder = move_file.journal_folder(tmp_path)
    assert read_moves(folder, ALL) == []
    _write(move_file.agent_path(tmp_path), [move(2, node='')])
    _write(move_file.worker_path(tmp_path, 'c1'), [move(1), move(3)])
    _write(move_file.worker_path(tmp_path, 'a/../b'), [move(4)])
    assert [m.at_s for m in read_moves(folder, ALL)] == [4, 3, 2, 1]
    assert [m.at_s for m in read_moves(folder, Query(limit=2))] == [4, 3]
    assert {each.parent for each in folder.rglob('*.log')} == {folder}


@pytest.mark.parametrize('seed', range(20))
def test_any_moves_are_read_as_they_were_written(
    path: pathlib.Path, seed: int
) -> None:
    """By any number of processes, one after the other, in small chunks."""
    rng = random.Random(seed)
    moves = any_moves(rng, rng.randrange(1, 60))
    cut = rng.randrange(len(moves))
    _write(path, moves[:cut])
    _write(path, moves[cut:])
    assert read_moves(path.parent, ALL) == newest_first(moves)
    query = Query(host='c1', node='n3', since_s=5.0, limit=4)
    assert read_moves(path.parent, query) == query.newest(moves)


@pytest.mark.parametrize('seed', range(20))
def test_torn_or_damaged_line_costs_itself_only(
    path: pathlib.Path, seed: int
) -> None:
    """The power went off, or the disk has damaged some bytes."""
    rng = random.Random(seed)
    moves = any_moves(rng, 30)
    _write(path, moves)
    lines = path.read_bytes().splitlines(keepends=True)
    bad = rng.randrange(len(lines))
    damaged = bytearray(lines[bad])
    damaged[rng.randrange(len(damaged) - 1)] ^= rng.randrange(1, 256)
    lines[bad] = bytes(damaged)
    last = lines.pop()
    torn = last[: rng.randrange(len(last))]
    path.write_bytes(b''.join(lines) + torn)
    more = [move(100)]
    _write(path, more)
    left = {m.at_s for m in moves} - {moves[bad].at_s, moves[-1].at_s}
    found = {m.at_s for m in read_moves(path.parent, ALL)}
    # A byte that became a line end cuts a line in two, and no other.
    assert left | {100.0} <= found
    assert set(read_moves(path.parent, ALL)) <= {*moves, *more}


@pytest.mark.parametrize(
    'limits', [{'entries_max': 7}, {'bytes_max': 1000}, {'bytes_max': 1}]
)
def test_journal_is_bounded(
    path: pathlib.Path, limits: dict[str, int]
) -> None:
    """The newest moves stay; also if each one has a process of its own."""
    moves = any_moves(random.Random(1), 50)
    for each in moves:
        _write(path, [each], **limits)
    found = read_moves(path.parent, ALL)
    assert found == newest_first(moves)[: len(found)]
    assert 2 <= len(found) <= 2 * limits.get('entries_max', 10)
    line_max = 700
    assert _size(path) <= 2 * max(limits.get('bytes_max', 10_000), line_max)


class _FullDisk:
    """A disk with room for so many bytes, as `os.write` shows it."""

    def __init__(self, patch: pytest.MonkeyPatch, free: int) -> None:
        self.free = free
        self._write = os.write
        patch.setattr(os, 'write', self.write)

    def write(self, fd: int, text: bytes) -> int:
        """Write what there is room for."""
        if not self.free:
            raise OSError(errno.ENOSPC, 'No space left on device')
        written = self._write(fd, text[: self.free])
        self.free -= written
        return written


@pytest.mark.parametrize('free', [0, 1, 200, 250, 451])
def test_full_disk_is_a_warning_once(
    path: pathlib.Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    free: int,
) -> None:
    """No caller notices; with room again, entries are kept again."""
    disk, file = _FullDisk(monkeypatch, free), MoveFile(path)
    for number in range(8):
        file.add(move(number))
        file.write_pending()
    assert [r.levelname for r in caplog.records] == ['WARNING']
    assert 'Could not write a move to' in caplog.text
    disk.free = 10_000
    for number in (8, 9):
        file.add(move(number))
        file.write_pending()
    numbers = [m.at_s for m in read_moves(path.parent, ALL)]
    assert numbers[:2] == [9, 8]
    assert len(numbers) < 10


def _fail_to_close(patch: pytest.MonkeyPatch) -> None:
    """Close each file, but with an error, as NFS may."""
    close = os.close

    def close_and_fail(fd: int) -> None:
        close(fd)
        raise OSError(errno.EDQUOT, 'Disk quota exceeded')

    patch.setattr(os, 'close', close_and_fail)


@pytest.mark.parametrize('free', [250, 10_000])
def test_close_that_fails_is_a_warning_once(
    path: pathlib.Path, caplog: pytest.LogCaptureFixture, free: int
) -> None:
    """A network disk may tell only then that a write has failed."""
    file = MoveFile(path, entries_max=2)
    with pytest.MonkeyPatch.context() as patch:
        _FullDisk(patch, free)
        _fail_to_close(patch)
        for number in range(5):
            file.add(move(number))
            file.write_pending()
    assert [r.levelname for r in caplog.records] == ['WARNING']
    assert 'Could not write a move to' in caplog.text
    for number in (5, 6):
        file.add(move(number))
        file.write_pending()
    numbers = [m.at_s for m in read_moves(path.parent, ALL)]
    assert numbers[:2] == [6, 5]


def test_folder_that_cannot_be_written_is_a_warning_once(
    tmp_path: pathlib.Path, caplog: pytest.LogCaptureFixture
) -> None:
    """A file is in the place of the folder."""
    (tmp_path / 'moves').write_text('')
    path = move_file.agent_path(tmp_path)
    _write(path, [move(1), move(2)])
    assert [r.levelname for r in caplog.records] == ['WARNING']
    assert read_moves(path.parent, ALL) == []


def test_disk_that_hangs_delays_no_move(path: pathlib.Path) -> None:
    """Nobody writes; the newest entries wait, and the others are lost."""
    file = MoveFile(path)
    for number in range(1500):
        file.add(move(number))
    file.write_pending()
    numbers = [m.at_s for m in read_moves(path.parent, ALL)]
    assert numbers == list(range(1499, 499, -1))


def test_entry_is_written_by_a_thread_at_once(path: pathlib.Path) -> None:
    """And nothing is written after the stop."""
    file = MoveFile(path)
    file.start()
    file.add(move(1))
    for _ in range(1000):
        if read_moves(path.parent, ALL):
            break
        time.sleep(0.01)
    assert read_moves(path.parent, ALL) == [move(1)]
    file.stop()


def test_journal_that_somebody_has_deleted_is_begun_anew(
    path: pathlib.Path,
) -> None:
    """The process may run for a year."""
    file = MoveFile(path)
    for number in range(3):
        file.add(move(number))
        file.write_pending()
        if number == 1:
            path.unlink()
            path.parent.rmdir()
    assert read_moves(path.parent, ALL) == [move(2)]


_WRITER = """
    import itertools, pathlib, sys
    from ironic_compute.journal.move_file import MoveFile
    from tests.unit.ironic_compute.journal.made_up import move
    file = MoveFile(pathlib.Path(sys.argv[1]), entries_max=50)
    for number in itertools.count():
        file.add(move(number))
        file.write_pending()
        if number == 99:
            print(flush=True)
"""


def test_killed_writer_leaves_all_that_it_has_written(
    path: pathlib.Path,
) -> None:
    """The journal is read while it is written and rotated, and afterwards."""
    command = [sys.executable, '-c', textwrap.dedent(_WRITER), str(path)]
    with (
        subprocess.Popen(command, stdout=subprocess.PIPE) as writer,
        contextlib.ExitStack() as undo,
    ):
        undo.callback(writer.send_signal, signal.SIGKILL)
        assert writer.stdout is not None
        assert writer.stdout.readline()
        for _ in range(20):
            found = [m.at_s for m in read_moves(path.parent, Query(limit=30))]
            assert found == list(range(int(found[0]), int(found[-1]) - 1, -1))
    before = [m.at_s for m in read_moves(path.parent, ALL)]
    assert before[0] >= 99
    assert 50 <= len(before) <= 100
    _write(path, [move(1_000_000)], entries_max=50)
    after = [m.at_s for m in read_moves(path.parent, ALL)]
    assert after[:2] == [1_000_000, before[0]]

# SPDX-License-Identifier: Apache-2.0
"""Worker processes: their environment, pipes and end."""

import os
import pathlib
import sys

import pytest

from ironic_compute.agent.child import Child

_TELL = """
import os, sys
said = os.environ.get(sys.argv[1], 'nothing')
os.write(int(sys.argv[-1]), said.encode() + b'\\n')
"""


def _told(name: str) -> str:
    """Return what a child finds in its environment."""
    child = Child.spawn([sys.executable, '-c', _TELL, name])
    try:
        return child.up.next_line().decode().strip()
    finally:
        child.kill()


def test_a_worker_gives_memory_back(monkeypatch: pytest.MonkeyPatch) -> None:
    """Memory options are set unless the operator has set them."""
    monkeypatch.delenv('MALLOC_ARENA_MAX', raising=False)
    monkeypatch.setenv('MALLOC_TRIM_THRESHOLD_', '4096')
    monkeypatch.setenv('OF_THE_OPERATOR', 'kept')
    assert _told('MALLOC_ARENA_MAX') == '2'
    assert _told('MALLOC_TRIM_THRESHOLD_') == '4096'
    assert _told('OF_THE_OPERATOR') == 'kept'


def test_no_pipe_stays_open_if_a_process_cannot_be_started(
    tmp_path: pathlib.Path,
) -> None:
    """A failed start leaves no file descriptor open."""
    before = len(os.listdir('/proc/self/fd'))
    for _ in range(3):
        with pytest.raises(OSError, match='nothing'):
            Child.spawn([str(tmp_path / 'nothing')])
    assert len(os.listdir('/proc/self/fd')) == before

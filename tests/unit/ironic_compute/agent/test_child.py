# SPDX-License-Identifier: Apache-2.0
"""The environment that a worker process is started with."""

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

# SPDX-License-Identifier: Apache-2.0
"""What a test run starts is not left behind."""

import os
import pathlib
import subprocess
import sys

from hashring.clock import SystemClock

ROOT = pathlib.Path(__file__).parents[2]
# A test run that starts a child, says which, and waits to be killed.
RUN = """
import sys
from tests.contract import children
child = children.start([sys.executable, '-c', 'input()'])
print(child.pid, flush=True)
input()
"""
PATIENCE_S = 60.0


def _runs(pid: int) -> bool:
    """Say whether a process does; one that nobody has waited for does not."""
    try:
        stat = pathlib.Path(f'/proc/{pid}/stat').read_text()
    except FileNotFoundError:
        return False
    return stat.rpartition(')')[2].split()[0] != 'Z'


def test_child_ends_with_a_test_run_that_is_killed() -> None:
    """No fixture is finished then, and nothing is left to the machine.

    We hold the other end of the child's stdin, so that it does not end
    because that was closed.
    """
    clock, (read_fd, write_fd) = SystemClock(), os.pipe()
    run = subprocess.Popen(
        [sys.executable, '-W', 'ignore', '-c', RUN],
        cwd=ROOT,
        stdin=read_fd,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert run.stdout is not None
    child = int(run.stdout.readline())
    assert _runs(child)
    run.kill()
    run.wait()
    ends_s = clock.now_s() + PATIENCE_S
    try:
        while _runs(child):
            assert clock.now_s() < ends_s, 'the child has outlived the run'
            clock.sleep(0.05)
    finally:
        os.close(write_fd)
        os.close(read_fd)

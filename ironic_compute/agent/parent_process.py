# SPDX-License-Identifier: Apache-2.0
"""Which process is the parent of a worker, and that a worker ends with it.

The kernel kills a worker when the thread of the agent that is its parent
ends. A worker that another process of the agent has forked becomes a child of
the agent when that process ends, if the agent adopts orphans at that moment.

This module imports nothing else of the project, because a worker calls it
before it chooses threads or eventlet.
"""

import contextlib
import ctypes
import os
import pathlib
import signal

_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36


def kill_with_parent(parent_pid: int) -> None:
    """Make the kernel kill this process when its parent ends."""
    _prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent_pid:
        # The parent ended before the call of prctl.
        os.kill(os.getpid(), signal.SIGKILL)


def adopt_orphans(adopts: bool) -> None:
    """Become the parent of each descendant whose own parent ends, or do not.

    An agent adopts for the moment of a fork only. The processes that a killed
    worker leaves behind are none of its own, and it would never reap them.

    :raises OSError: the kernel refuses it
    """
    _prctl(_PR_SET_CHILD_SUBREAPER, int(adopts))


def read_children() -> set[int]:
    """Return the processes that this one has started or adopted.

    They include those that have ended and were not reaped. It is empty if the
    kernel does not tell.
    """
    with contextlib.suppress(OSError):
        children = pathlib.Path(f'/proc/self/task/{os.getpid()}/children')
        return {int(pid) for pid in children.read_text().split()}
    return set()


def reap_if_ended(pid: int) -> None:
    """Remove a child that has ended from the kernel's table of processes."""
    with contextlib.suppress(ChildProcessError):
        os.waitpid(pid, os.WNOHANG)


def _prctl(option: int, value: int) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(option, value, 0, 0, 0) != 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))

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
# Added to the number of the signal that has ended a process, as shells do.
_BY_SIGNAL = 128


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


def continue_in_child(fd: int) -> None:
    """Go on in a child of this process, which ends as the child does.

    When this process is killed, the child is one of the service manager. Of a
    process that is no child of it, systemd does not wait for the end: a stop
    would kill the daemon at once.

    :param fd: the socket on which the child sends its number; this process
        must not keep it open
    """
    pid = os.fork()
    if pid == 0:
        with contextlib.suppress(OSError):  # Nobody may listen any more.
            os.write(fd, b'%d' % os.getpid())
        return
    os.close(fd)
    signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
    _, status = os.waitpid(pid, 0)
    code = os.waitstatus_to_exitcode(status)
    os._exit(code if code >= 0 else _BY_SIGNAL - code)


def read_children() -> set[int]:
    """Return the processes that this one has started or adopted.

    They include those that have ended and were not reaped. It is empty if the
    kernel does not tell.
    """
    with contextlib.suppress(OSError):
        children = pathlib.Path(f'/proc/self/task/{os.getpid()}/children')
        return {int(pid) for pid in children.read_text().split()}
    return set()


def reap_if_ended(pid: int) -> bool:
    """Remove a child that has ended from the kernel's table of processes.

    :returns: whether this process has no such child any more
    """
    try:
        return os.waitpid(pid, os.WNOHANG)[0] == pid
    except ChildProcessError:
        return True


def _prctl(option: int, value: int) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(option, value, 0, 0, 0) != 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))

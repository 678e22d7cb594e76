# SPDX-License-Identifier: Apache-2.0
"""Tells a process that cannot go on from one that waits for the cpu or disk.

A worker that sends nothing may be *stuck* (stopped by a signal, in a deadlock,
in a read from a failing disk) or *starved* (the machine is overloaded). The
kernel's counters tell the two apart: a starved process has a thread that runs,
waits for the cpu, or reads its memory back from the swap disk.
"""

import dataclasses
import os
import pathlib
from collections.abc import Iterator

_TICKS_PER_S = os.sysconf('SC_CLK_TCK')
# A process that uses, or waits for, less of the time than this goes on with
# nothing. It is above 0, because the threads that wait for Python's
# interpreter lock wake up again and again.
_BUSY_SHARE = 0.1
# One look counts for at most so many seconds: if this process was frozen or
# starved itself, the other one may have been, too.
_LOOK_COUNTS_S = 1.0


@dataclasses.dataclass(frozen=True, slots=True)
class Activity:
    """What all threads of a process have done so far."""

    busy_s: float
    """Time for which they ran, or could run and had no cpu."""
    page_ins_count: int
    """How often they waited for memory that is read from a disk."""
    is_runnable: bool
    """Whether a thread runs, or waits for the cpu, at this moment."""


def read_activity(pid: int) -> Activity | None:
    """Read the activity of a process; None if it cannot be read."""
    try:
        threads = list(_read_threads(pathlib.Path(f'/proc/{pid}/task')))
    except (OSError, ValueError, IndexError):
        return None  # A thread has ended meanwhile, or there is no /proc.
    return Activity(
        sum(thread.busy_s for thread in threads),
        sum(thread.page_ins_count for thread in threads),
        any(thread.is_runnable for thread in threads),
    )


def _read_threads(folder: pathlib.Path) -> Iterator[Activity]:
    for thread in folder.iterdir():
        # The name of the program, in parentheses, may contain spaces.
        stat = (thread / 'stat').read_text().rpartition(')')[2].split()
        ran_s = (int(stat[11]) + int(stat[12])) / _TICKS_PER_S
        try:
            waited_ns = int((thread / 'schedstat').read_text().split()[1])
        except FileNotFoundError:
            waited_ns = 0  # A kernel without these statistics.
        yield Activity(ran_s + waited_ns / 1e9, int(stat[9]), stat[0] == 'R')


class Standstill:
    """For how long a process has done nothing; from looks at its activity."""

    def __init__(self) -> None:
        self._last: Activity | None = None
        self._looked_at_s = 0.0
        self.lasts_s = 0.0

    def update(
        self, activity: Activity | None, now_s: float, *, is_importing: bool
    ) -> None:
        """Add a look at the process.

        :param activity: None, if it could not be read, counts as activity
        :param is_importing: any activity counts, because a process that reads
            its program from a slow disk has little
        """
        spent_s = min(now_s - self._looked_at_s, _LOOK_COUNTS_S)
        share = 0.0 if is_importing else _BUSY_SHARE
        if self._stands(activity, share * (now_s - self._looked_at_s)):
            self.lasts_s += spent_s
        else:
            self.lasts_s = 0.0
        self._last, self._looked_at_s = activity, now_s

    def _stands(self, activity: Activity | None, least_s: float) -> bool:
        if activity is None or self._last is None or activity.is_runnable:
            return False
        # The sum is smaller if a thread has ended.
        moved_s = abs(activity.busy_s - self._last.busy_s)
        same_page_ins = activity.page_ins_count == self._last.page_ins_count
        return moved_s <= least_s and same_page_ins

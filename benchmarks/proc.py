# SPDX-License-Identifier: Apache-2.0
"""CPU and memory of processes and all their descendants, from /proc."""

import dataclasses
import os
import pathlib
from collections.abc import Iterable, Mapping

_TICKS_PER_S = os.sysconf('SC_CLK_TCK')


@dataclasses.dataclass(frozen=True, slots=True)
class Process:
    """One process at one moment.

    :param cpu_s: its own, and that of children it has waited for
    """

    pid: int
    parent: int
    cpu_s: float
    rss_kib: int


def parse(pid: int, stat: str, status: str) -> Process:
    """Read /proc/PID/stat and /proc/PID/status."""
    # The name, in parentheses, may hold anything.
    fields = stat.rpartition(')')[2].split()
    ticks = sum(int(field) for field in fields[11:15])
    sizes = (line for line in status.splitlines() if line[:6] == 'VmRSS:')
    rss_kib = next((int(line.split()[1]) for line in sizes), 0)
    return Process(pid, int(fields[1]), ticks / _TICKS_PER_S, rss_kib)


def all_processes(
    root: pathlib.Path = pathlib.Path('/proc'),
) -> dict[int, Process]:
    """Return all processes; one that ends meanwhile is left out."""
    found = {}
    for folder in root.iterdir():
        if folder.name.isdigit():
            pid = int(folder.name)
            try:
                stat = (folder / 'stat').read_text()
                status = (folder / 'status').read_text()
            except OSError:
                continue
            found[pid] = parse(pid, stat, status)
    return found


def family(
    processes: Mapping[int, Process], roots: Iterable[int]
) -> list[Process]:
    """Return these processes and all their descendants."""
    wanted = {pid for pid in roots if pid in processes}
    while True:
        more = {
            one.pid
            for one in processes.values()
            if one.parent in wanted and one.pid not in wanted
        }
        if not more:
            return [processes[pid] for pid in sorted(wanted)]
        wanted |= more


def cpu_s(processes: Iterable[Process]) -> float:
    """Return the CPU time that processes have used."""
    return sum(process.cpu_s for process in processes)


def rss_mib(processes: Iterable[Process]) -> float:
    """Return the memory that processes hold."""
    return sum(process.rss_kib for process in processes) / 1024

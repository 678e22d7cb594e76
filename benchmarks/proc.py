# SPDX-License-Identifier: Apache-2.0
"""CPU and memory of processes and of the machine, from /proc."""

import dataclasses
import os
import pathlib
from collections.abc import Iterable, Mapping

_PROC = pathlib.Path('/proc')
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


@dataclasses.dataclass(frozen=True, slots=True)
class Processors:
    """What the machine's processors had done until one moment, in ticks.

    :param stolen: what they would have done, but ran other machines
    """

    total: int
    stolen: int

    def stolen_percent(self, until: 'Processors') -> float:
        """Return which share of the processors was lost from here on."""
        ticks = until.total - self.total
        return 100.0 * (until.stolen - self.stolen) / ticks if ticks else 0.0


def processors(stat: str) -> Processors:
    """Read /proc/stat: of its first line, the eighth number is steal.

    The ninth and tenth, time of guests, are in the first two as well.
    """
    ticks = [int(field) for field in stat.split('\n', 1)[0].split()[1:9]]
    return Processors(sum(ticks), ticks[7])


def processors_now() -> Processors:
    """Return what the processors of this machine have done."""
    return processors((_PROC / 'stat').read_text())


def all_processes(
    root: pathlib.Path = _PROC,
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

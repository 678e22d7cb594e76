# SPDX-License-Identifier: Apache-2.0
"""CPU and memory of processes and of the machine, from /proc."""

import contextlib
import dataclasses
import os
import pathlib
from collections.abc import Iterable, Mapping

_PROC = pathlib.Path('/proc')
_TICKS_PER_S = os.sysconf('SC_CLK_TCK')


@dataclasses.dataclass(frozen=True, slots=True)
class Process:
    """One process at one moment.

    :param cpu_s: CPU seconds of the process and of children that it has reaped
    """

    pid: int
    parent: int
    cpu_s: float
    rss_kib: int


def parse(pid: int, stat: str, status: str) -> Process:
    """Parse /proc/PID/stat and /proc/PID/status."""
    # The name, in parentheses, may contain any character.
    fields = stat.rpartition(')')[2].split()
    ticks = sum(int(field) for field in fields[11:15])
    sizes = (line for line in status.splitlines() if line[:6] == 'VmRSS:')
    rss_kib = next((int(line.split()[1]) for line in sizes), 0)
    return Process(pid, int(fields[1]), ticks / _TICKS_PER_S, rss_kib)


@dataclasses.dataclass(frozen=True, slots=True)
class Processors:
    """The CPU time of all processors of the machine so far, in ticks.

    :param stolen: ticks that the hypervisor gave to other machines
    """

    total: int
    stolen: int

    def stolen_percent(self, until: 'Processors') -> float:
        """Return the stolen share of the CPU time between two moments."""
        ticks = until.total - self.total
        return 100.0 * (until.stolen - self.stolen) / ticks if ticks else 0.0


def processors(stat: str) -> Processors:
    """Parse /proc/stat; the eighth number of its first line is steal.

    The first two numbers include the ninth and tenth, the time of guests.
    """
    ticks = [int(field) for field in stat.split('\n', 1)[0].split()[1:9]]
    return Processors(sum(ticks), ticks[7])


def processors_now() -> Processors:
    """Return the present values for this machine."""
    return processors((_PROC / 'stat').read_text())


def all_processes(
    root: pathlib.Path = _PROC,
) -> dict[int, Process]:
    """Return all processes that do not end during the call."""
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
    """Return the CPU time of some processes in seconds."""
    return sum(process.cpu_s for process in processes)


def rss_mib(processes: Iterable[Process]) -> float:
    """Return the memory of some processes in MiB."""
    return sum(process.rss_kib for process in processes) / 1024


def pss_mib(processes: Iterable[Process], root: pathlib.Path = _PROC) -> float:
    """Return their memory in MiB, that which several share counted once.

    What a process shares is divided among all that share it. A process that
    has ended counts nothing.
    """
    kib = 0
    for process in processes:
        with contextlib.suppress(OSError):
            path = root / str(process.pid) / 'smaps_rollup'
            kib += parse_pss_kib(path.read_text())
    return kib / 1024


def parse_pss_kib(smaps_rollup: str) -> int:
    """Parse /proc/PID/smaps_rollup."""
    lines = map(str.split, smaps_rollup.splitlines())
    return next((int(line[1]) for line in lines if line[0] == 'Pss:'), 0)

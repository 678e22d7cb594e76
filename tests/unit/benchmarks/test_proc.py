# SPDX-License-Identifier: Apache-2.0
"""CPU and memory as read from /proc."""

import os
import subprocess
import sys

import pytest

from benchmarks import proc

# Fields 14 to 17 are utime, stime, cutime and cstime, in ticks.
STAT = '7 (a (b) c) S 5 7 7 0 -1 0 0 0 0 0 100 50 30 20 20 0 4 0 99 1 2'
STATUS = 'Name:\ta\nVmHWM:\t  9999 kB\nVmRSS:\t  2048 kB\n'


def test_process_with_any_name_is_read():
    """All CPU time counts, with that of reaped children."""
    found = proc.parse(7, STAT, STATUS)
    assert (found.parent, found.rss_kib) == (5, 2048)
    assert found.cpu_s == pytest.approx(200 / os.sysconf('SC_CLK_TCK'))


def test_kernel_thread_has_no_memory():
    """A kernel thread, without the line of its memory, has 0 MiB."""
    assert proc.parse(7, STAT, 'Name:\tkthread\n').rss_kib == 0


def test_family_is_all_descendants():
    """A family has all descendants and no other process."""
    tree = {1: 0, 5: 1, 7: 5, 8: 7, 9: 1}
    processes = {
        pid: proc.Process(pid, parent, 1.0, 512)
        for pid, parent in tree.items()
    }
    family = proc.family(processes, [5, 4711])
    assert [one.pid for one in family] == [5, 7, 8]
    assert proc.cpu_s(family) == 3.0
    assert proc.rss_mib(family) == 1.5


def test_stolen_share_is_that_of_all_cpu_time():
    """The stolen share is that of all CPU time; guest time counts once."""
    before = proc.processors('cpu  10 0 10 70 5 0 0 5 10 0\ncpu0 1 2 3\n')
    after = proc.processors('cpu  30 0 20 110 5 0 5 30 20 0\ncpu0 1 2 3\n')
    assert before == proc.Processors(100, 5)
    assert before.stolen_percent(after) == 25.0
    assert before.stolen_percent(before) == 0.0


def test_real_processors_do_not_go_back():
    """The kernel's own numbers of this machine can be read."""
    before = proc.processors_now()
    assert 0.0 <= before.stolen_percent(proc.processors_now()) <= 100.0
    assert before.total > 0


def test_real_process_has_cpu_time_and_memory():
    """A child that computes has CPU time and memory."""
    code = 'sum(range(3 * 10**6)); print(1, flush=True); input()'
    child = subprocess.Popen(
        [sys.executable, '-c', code],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    child.stdout.readline()
    (found,) = proc.family(proc.all_processes(), [child.pid])
    child.communicate(b'\n')
    assert found.parent == os.getpid()
    assert found.cpu_s > 0
    assert found.rss_kib > 1000


SMAPS_ROLLUP = """55d0-7ffd ---p 00000000 00:00 0    [rollup]
Rss:              4096 kB
Pss:              3072 kB
Pss_Anon:         2048 kB
"""


def test_shared_memory_is_counted_once(tmp_path):
    """A forked worker and its fork server are not counted twice."""
    processes = [proc.Process(pid, 1, 0.0, 4096) for pid in (7, 8, 9)]
    for one in processes[:2]:
        folder = tmp_path / str(one.pid)
        folder.mkdir()
        (folder / 'smaps_rollup').write_text(SMAPS_ROLLUP)
    assert proc.pss_mib(processes, tmp_path) == 6.0


def test_own_memory_is_read():
    """The kernel's own file has the line."""
    mine = [proc.all_processes()[os.getpid()]]
    assert 1.0 < proc.pss_mib(mine) <= proc.rss_mib(mine)

# SPDX-License-Identifier: Apache-2.0
"""The activity of real processes: stopped, busy, starved, gone."""

import os
import signal
import subprocess
import sys
import time

import pytest

from ironic_compute.agent.process_activity import (
    Activity,
    Standstill,
    read_activity,
)

IDLE = Activity(busy_s=1.0, page_ins_count=3, is_runnable=False)


@pytest.fixture
def start():
    """Start a process with this program; it ends with the test."""
    processes = []

    def start(program):
        process = subprocess.Popen(
            [sys.executable, '-c', f'print(flush=True)\n{program}'],
            stdout=subprocess.PIPE,
        )
        processes.append(process)
        process.stdout.readline()
        return process

    yield start
    for process in processes:
        process.kill()
        process.stdout.close()
        process.wait()


def stood_s(looks, *, is_importing=False):
    """Return how long a process stood still, from a look each half second."""
    standstill = Standstill()
    for number, activity in enumerate(looks):
        standstill.update(
            activity, 100.0 + number / 2, is_importing=is_importing
        )
    return standstill.lasts_s


def watch(pid):
    """Return how long a process stands still within a second."""
    standstill = Standstill()
    for _ in range(11):
        standstill.update(
            read_activity(pid), time.monotonic(), is_importing=False
        )
        time.sleep(0.1)
    return standstill.lasts_s


def test_stopped_process_stands_still(start):
    """A process that was stopped by a signal stands still."""
    process = start('while True: pass')
    process.send_signal(signal.SIGSTOP)
    os.waitid(os.P_PID, process.pid, os.WSTOPPED)
    assert watch(process.pid) >= 0.9


def test_busy_process_does_not_stand_still(start):
    """A process that computes is not stuck, though it may send nothing."""
    assert watch(start('while True: pass').pid) == 0.0


def test_process_with_a_busy_thread_does_not_stand_still(start):
    """All threads count, because the silent one waits for another."""
    process = start(
        'import threading, time\n'
        'def work():\n'
        '    while True: pass\n'
        'threading.Thread(target=work).start()\n'
        'time.sleep(60)'
    )
    assert watch(process.pid) == 0.0


def test_starved_process_does_not_stand_still(start):
    """A process that is ready to run and has no cpu is not stuck."""
    cpus = os.sched_getaffinity(0)
    rivals = [start('while True: pass') for _ in range(4)]
    starved = start('while True: pass')
    for process in (*rivals, starved):
        os.sched_setaffinity(process.pid, {min(cpus)})
    os.setpriority(os.PRIO_PROCESS, starved.pid, 19)
    assert watch(starved.pid) == 0.0


def test_process_that_has_gone_has_no_activity(start):
    """A process that has ended cannot be read, and that is no standstill."""
    process = start('')
    process.wait()
    assert read_activity(process.pid) is None
    assert stood_s([IDLE, None, IDLE, None, IDLE]) == 0.0


def test_standstill_is_counted_until_something_happens():
    """The time begins anew when the process ran or read memory from disk."""
    ran = Activity(busy_s=1.1, page_ins_count=3, is_runnable=False)
    read = Activity(busy_s=1.1, page_ins_count=4, is_runnable=False)
    assert stood_s([IDLE] * 5) == 2.0
    assert stood_s([*[IDLE] * 5, ran, ran]) == 0.5
    assert stood_s([*[ran] * 5, read]) == 0.0


def test_ready_process_is_not_stuck_though_its_counters_stand():
    """The kernel adds a wait for the cpu only when it is over."""
    ready = Activity(busy_s=1.0, page_ins_count=3, is_runnable=True)
    assert stood_s([ready] * 20) == 0.0


def test_little_activity_counts_only_during_an_import():
    """Threads that wait for the interpreter lock use the cpu a little."""
    looks = [
        Activity(busy_s=1.0 + 0.01 * n, page_ins_count=3, is_runnable=False)
        for n in range(5)
    ]
    assert stood_s(looks) == 2.0
    assert stood_s(looks, is_importing=True) == 0.0


def test_late_look_counts_little():
    """A look after a pause of this process proves a second at most."""
    standstill = Standstill()
    standstill.update(IDLE, 100.0, is_importing=False)
    standstill.update(IDLE, 160.0, is_importing=False)
    assert standstill.lasts_s == 1.0

# SPDX-License-Identifier: Apache-2.0
"""The agent reads its workers' metrics; no worker can make it wait for long.

The worker is a thread here, and a process where it is stopped or killed.
"""

import gc
import os
import signal
import socket
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Callable, Iterator

import pytest

from hashring.clock import SystemClock
from hashring.ring import Host
from ironic_compute.agent_port.worker_metrics import (
    MetricsChannel,
    answer_requests,
    make_channel,
    merge,
    read_all,
)

C1, C2 = Host('c1'), Host('c2')
CLOCK = SystemClock()
TIMEOUT_S = 5.0

_WORKER = textwrap.dedent(
    """
    import sys
    from hashring.clock import SystemClock
    from ironic_compute.agent_port.worker_metrics import answer_requests
    answer_requests(int(sys.argv[1]), lambda: b'a 1\\n', SystemClock())
    print('answers', flush=True)
    sys.stdin.read()
    """
)


def answered_by(read_metrics: Callable[[], bytes]) -> MetricsChannel:
    """Return the channel to a worker whose metrics are these."""
    channel, end = make_channel()
    answer_requests(end.detach(), read_metrics, CLOCK)
    return channel


@pytest.fixture
def worker() -> Iterator[tuple[MetricsChannel, subprocess.Popen[str]]]:
    """A worker in a process of its own, and the channel to it."""
    channel, end = make_channel()
    process = subprocess.Popen(
        [sys.executable, '-c', _WORKER, str(end.fileno())],
        pass_fds=[end.fileno()],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env={**os.environ, 'PYTHONPATH': os.getcwd()},
        text=True,
    )
    end.close()
    assert process.stdout is not None
    process.stdout.readline()
    yield channel, process
    process.kill()
    process.communicate()


def test_metrics_of_all_workers_are_read() -> None:
    """A text that is longer than a pipe takes comes whole."""
    long = b'# HELP a b\n' + b'a 1\n' * 100_000
    channels = {C1: answered_by(lambda: long), C2: answered_by(lambda: b'')}
    texts = read_all(channels, CLOCK, TIMEOUT_S)
    assert texts == {C1: long.decode() + '# EOF\n', C2: '# EOF\n'}


def test_each_request_has_its_own_answer() -> None:
    """A late answer to one request is not read as that to the next."""
    count = iter(range(10))

    def read_metrics() -> bytes:
        number = next(count)
        time.sleep(0.5 if number == 0 else 0.0)
        return f'a {number}\n'.encode()

    channels = {C1: answered_by(read_metrics)}
    assert read_all(channels, CLOCK, 0.1) == {}
    assert read_all(channels, CLOCK, TIMEOUT_S) == {C1: 'a 1\n# EOF\n'}


def test_a_failure_costs_one_answer() -> None:
    """The worker's thread goes on after an error."""
    answers = iter((ZeroDivisionError(), b'a 1\n'))

    def read_metrics() -> bytes:
        answer = next(answers)
        if isinstance(answer, Exception):
            raise answer
        return answer

    channels = {C1: answered_by(read_metrics)}
    assert read_all(channels, CLOCK, TIMEOUT_S) == {}
    assert C1 in read_all(channels, CLOCK, TIMEOUT_S)


def test_a_killed_worker_has_no_metrics(
    worker: tuple[MetricsChannel, subprocess.Popen[str]],
) -> None:
    """It is noticed at once."""
    channel, process = worker
    assert read_all({C1: channel}, CLOCK, TIMEOUT_S)
    process.kill()
    process.wait()
    began_s = CLOCK.now_s()
    assert read_all({C1: channel}, CLOCK, TIMEOUT_S) == {}
    assert CLOCK.now_s() - began_s < 1.0


def test_a_worker_that_is_killed_while_it_answers_has_no_metrics() -> None:
    """Half of a text is not shown, as its counters would jump."""
    channel, end = make_channel()

    def answer_half() -> None:
        _, (pipe_fd,), _, _ = socket.recv_fds(end, 1, 1)
        os.write(pipe_fd, b'a 1\n')
        os.close(pipe_fd)

    worker = threading.Thread(target=answer_half)
    worker.start()
    assert read_all({C1: channel}, CLOCK, TIMEOUT_S) == {}
    worker.join()
    end.close()


def freeze(process: subprocess.Popen[str]) -> None:
    """Stop a process, and wait until it is: the signal may come late."""
    process.send_signal(signal.SIGSTOP)
    os.waitid(os.P_PID, process.pid, os.WSTOPPED)


def test_a_stopped_worker_makes_nobody_wait_for_long(
    worker: tuple[MetricsChannel, subprocess.Popen[str]],
) -> None:
    """The metrics of the others come, and its own when it goes on."""
    channel, process = worker
    channels = {C1: channel, C2: answered_by(lambda: b'b 1\n')}
    freeze(process)
    began_s = CLOCK.now_s()
    assert read_all(channels, CLOCK, 0.3) == {C2: 'b 1\n# EOF\n'}
    assert CLOCK.now_s() - began_s < 1.0
    process.send_signal(signal.SIGCONT)
    assert read_all(channels, CLOCK, TIMEOUT_S).keys() == {C1, C2}


def test_requests_to_a_stopped_worker_do_not_pile_up(
    worker: tuple[MetricsChannel, subprocess.Popen[str]],
) -> None:
    """A request that is not taken opens nothing for ever, nor blocks."""
    channel, process = worker
    freeze(process)
    before = len(os.listdir('/proc/self/fd'))
    refused = 0
    for _ in range(1000):
        fd = channel.request()
        if fd is None:
            refused += 1
        else:
            os.close(fd)
    assert refused > 0
    assert len(os.listdir('/proc/self/fd')) == before
    process.send_signal(signal.SIGCONT)
    ends_s = CLOCK.now_s() + 20.0
    while not read_all({C1: channel}, CLOCK, TIMEOUT_S):
        assert CLOCK.now_s() < ends_s


def test_a_dropped_channel_ends_the_workers_thread() -> None:
    """The agent closes its end when nobody uses it any more."""
    channel, end = make_channel()
    del channel
    gc.collect()
    assert end.recv(1) == b''
    end.close()


def test_each_family_is_in_one_place() -> None:
    """Prometheus wants all lines of a family together, and its help once."""
    agent = '# HELP a of the agent\n# TYPE a gauge\na 1\n'
    one, two = (
        f'# HELP b both\n# TYPE b counter\nb{{host="{host}"}} 1\n'
        f'# HELP c # HELP in it\n# TYPE c gauge\nc{{host="{host}"}} 2\n# EOF\n'
        for host in ('c1', 'c2')
    )
    assert merge([agent, one, two]) == (
        '# HELP a of the agent\n# TYPE a gauge\na 1\n'
        '# HELP b both\n# TYPE b counter\n'
        'b{host="c1"} 1\nb{host="c2"} 1\n'
        '# HELP c # HELP in it\n# TYPE c gauge\n'
        'c{host="c1"} 2\nc{host="c2"} 2\n'
    )


@pytest.mark.parametrize('texts', [[], ['# EOF\n'], ['', '# EOF\n']])
def test_nothing_makes_nothing(texts: list[str]) -> None:
    """A worker without metrics adds no line."""
    assert merge(texts) == ''

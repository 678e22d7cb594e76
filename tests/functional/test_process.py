# SPDX-License-Identifier: Apache-2.0
"""A real worker in a process of its own: its start, its gate and its end."""

import json
import os
import pathlib
import re
import select
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Sequence

import pytest

from hashring.clock import SystemClock
from hashring.workers import NO_HOST
from ironic_compute.agent.child import Child
from ironic_compute.agent.fork_server import ForkServer
from ironic_compute.agent_port.worker_metrics import (
    MetricsChannel,
    make_channel,
    read_all,
)
from tests.free_ports import find_free_ports

_ROOT = pathlib.Path(__file__).parents[2]
_PROGRAM = _ROOT / 'tests/functional/lone_worker.py'
# Nova 33 by itself would sleep for 45 s; a busy machine takes some.
_SOON_S = 40.0
# It takes a busy machine minutes to load Nova.
_HANGS_S = 600.0

pytestmark = pytest.mark.parametrize('backend', ['threads', 'eventlet'])


def _start(
    backend: str, *arguments: str, fds: Sequence[int] = ()
) -> subprocess.Popen[str]:
    environ = {
        **os.environ,
        'PYTHONPATH': str(_ROOT),
        'OS_NOVA_DISABLE_EVENTLET_PATCHING': str(backend == 'threads'),
    }
    return subprocess.Popen(
        [sys.executable, '-W', 'ignore', str(_PROGRAM), *arguments],
        env=environ,
        pass_fds=fds,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )


def _start_with_metrics(
    backend: str, work: str, *options: str
) -> tuple[MetricsChannel, subprocess.Popen[str]]:
    """Start a worker; return the way to its metrics, too."""
    channel, end = make_channel()
    with end:
        fd = end.fileno()
        return channel, _start(backend, work, str(fd), *options, fds=[fd])


def _end(worker: subprocess.Popen[str]) -> float:
    """Stop a worker; return how long it took."""
    began_s = time.monotonic()
    worker.terminate()
    try:
        worker.wait(60.0)
    finally:
        worker.kill()
    return time.monotonic() - began_s


# What a worker sees before its lease begins, and afterwards.
_SEEN = {
    'shut': {
        'receives': False,
        'reported': True,
        'wrote': False,
        'reaches': False,
    },
    'open': {
        'receives': True,
        'reported': True,
        'wrote': True,
        'reaches': True,
    },
}


def test_reported_up_then_written_and_received(backend: str) -> None:
    """Before the lease begins, only the Service record is written.

    The paths to RabbitMQ and nova-conductor are proved once it has. Then the
    agent can read its metrics, too.
    """
    channel, worker = _start_with_metrics(backend, 'idle')
    assert worker.stdout is not None
    assert json.loads(worker.stdout.readline()) == _SEEN
    assert json.loads(worker.stdout.readline()) == 'idle'
    texts = read_all({NO_HOST: channel}, SystemClock(), 60.0)
    assert 'ironic_compute_dirty_nodes{host=' in texts[NO_HOST]
    assert _end(worker) < _SOON_S
    assert worker.returncode == 0


def test_switches_of_nova_and_oslo_messaging_trace_messages(
    backend: str,
) -> None:
    """The profiler of Nova traces one message; OpenTelemetry traces each.

    The profiler keeps the trace of a thread, which then gets other messages.
    """
    pytest.importorskip('osprofiler')
    worker = _start(backend, 'traced')
    assert worker.stdout is not None
    assert json.loads(worker.stdout.readline()) == _SEEN
    seen = json.loads(worker.stdout.readline())
    assert seen['points'] == [
        ['rpc-start', True, 'update_available_resource'],
        ['rpc-stop', True, ''],
    ]
    assert len(seen['sent']) > 1
    assert seen['parents'] == seen['sent']
    _end(worker)
    assert worker.returncode == 0


def test_forked_workers_work_and_end_as_others_do(
    backend: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two workers of one fork server do not disturb each other."""
    monkeypatch.setenv('PYTHONPATH', str(_ROOT))
    monkeypatch.setenv(
        'OS_NOVA_DISABLE_EVENTLET_PATCHING', str(backend == 'threads')
    )
    server = ForkServer(
        [sys.executable, '-W', 'ignore', str(_PROGRAM), 'busy'],
        SystemClock(),
        start_s=_HANGS_S,
        standstill_s=60.0,
        has_metrics=False,
    )
    try:
        workers = [_fork(server) for _ in range(2)]
        for worker in workers:
            assert json.loads(worker.up.next_line()) == _SEEN
            assert json.loads(worker.up.next_line()) == 'busy'
            worker.process.send_signal(signal.SIGTERM)
        for worker in workers:
            assert json.loads(worker.up.next_line()) == 'done'
            assert select.select([worker.pid_fd], [], [], 60.0)[0]
            assert worker.process.poll() == 0
            worker.close()
    finally:
        server.close()


def _fork(server: ForkServer) -> Child:
    """Return a worker that the fork server has forked."""
    ends_s = time.monotonic() + _HANGS_S
    while time.monotonic() < ends_s:
        assert server.request()
        select.select(server.fds(), [], [], 0.5)
        server.check()
        if (worker := server.take()) is not None:
            return worker
    raise AssertionError('no worker was forked')


@pytest.mark.parametrize('work', ['busy', 'waiting'])
def test_work_comes_to_its_end_unless_it_waits_for_ironic(
    backend: str, work: str
) -> None:
    """A stopping worker finishes its tasks but awaits no deploy."""
    worker = _start(backend, work)
    assert worker.stdout is not None
    worker.stdout.readline()
    assert json.loads(worker.stdout.readline()) == work
    assert _end(worker) < _SOON_S
    end = {'busy': '"done"\n', 'waiting': ''}[work]
    assert worker.stdout.readline() == end
    assert worker.returncode == 0


def _read_port(port: int) -> str:
    """Return the metrics that a worker serves, as soon as it does."""
    ends_s = time.monotonic() + 60.0
    while time.monotonic() < ends_s:
        try:
            url = f'http://127.0.0.1:{port}/metrics'
            with urllib.request.urlopen(url, timeout=60) as answer:
                return str(answer.read().decode())
        except urllib.error.URLError:
            time.sleep(0.1)
    raise AssertionError('no metrics')


def test_worker_without_a_host_tells_what_it_reaches(backend: str) -> None:
    """Its messages to itself come back; Ironic does not know its nodes.

    Its metrics are on a port, and the agent can read them without.
    """
    port = find_free_ports(1)
    channel, worker = _start_with_metrics(
        backend, 'paths', f'--metrics-port={port}'
    )
    assert worker.stdout is not None
    reached: list[str] = []
    while not {'RabbitMQ', 'nova-conductor'} <= set(reached):
        reached = json.loads(worker.stdout.readline())
    gauges = _read_port(port)
    assert re.search(r'path_failing_seconds\{.*"RabbitMQ".*\} 0\.0', gauges)
    for _ in range(2):
        texts = read_all({NO_HOST: channel}, SystemClock(), 60.0)
        assert 'path="RabbitMQ"' in texts[NO_HOST]
    assert _end(worker) < _SOON_S
    assert worker.returncode == 0

# SPDX-License-Identifier: Apache-2.0
"""The port of a real agent, with a toy as its worker."""

import contextlib
import http.client
import json
import os
import pathlib
import re
import signal
import socket
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Iterator

import pytest

from tests.free_ports import find_free_ports
from tests.unit.ironic_compute.agent_port.test_application import PATHS

_AGENT = 'from ironic_compute.cmd.agent import entry\nentry()\n'
# Serves at once, and has the metrics of a real worker.
_WORKER = textwrap.dedent(
    """
    import json, os, sys
    from hashring.clock import SystemClock
    from hashring.paths import PathState
    report_fd = int(sys.argv[sys.argv.index('--report-fd') + 1])
    appointment = json.loads(sys.stdin.readline())
    from ironic_compute.agent_port import worker_metrics
    from ironic_compute.metrics import Metrics
    os.write(report_fd, b'{"is":"serving"}\\n')
    metrics = Metrics(appointment['host'], SystemClock())
    metrics.register_paths(lambda: {'Ironic': PathState()})
    worker_metrics.answer_requests(
        appointment['metrics_fd'], metrics.text, SystemClock()
    )
    for line in sys.stdin:
        os.write(report_fd, b'{"is":"alive"}\\n')
    """
)
_SOON_S = 60.0
# The same for what takes many steps of two agents.
_LATE_S = 240.0
_SECRET = 'hunter2'


class _Agent:
    """A real agent in a folder.

    :param home: its home host
    :param options: lines of nova.conf, which begin in ``[DEFAULT]``
    """

    def __init__(
        self,
        folder: pathlib.Path,
        backend_url: str,
        home: str = 'c1',
        options: str = '',
    ) -> None:
        self.port = find_free_ports(1)
        self._folder = folder
        for name, text in (('', _AGENT), ('-worker', _WORKER)):
            path = folder / f'ironic-compute{name}'
            path.write_text(f'#!{sys.executable}\n{text}')
            path.chmod(0o755)
        folder.joinpath('nova.conf').write_text(
            f'[DEFAULT]\nhost = {home}\n'
            f'transport_url = rabbit://nova:{_SECRET}@127.0.0.1:1/\n{options}'
            f'[ironic]\npassword = {_SECRET}\n'
            f'[placement]\npassword = {_SECRET}\n'
            f'[coordination]\nbackend_url = {backend_url}\n'
            f'[ironic_compute]\nstate_path = {folder}/state\n'
            f'agent_port = {self.port}\n'
        )

    def start(self) -> subprocess.Popen[bytes]:
        """Start the process; its log goes to a file."""
        return subprocess.Popen(
            [
                *(sys.executable, '-W', 'ignore'),
                str(self._folder / 'ironic-compute'),
                *('--config-file', str(self._folder / 'nova.conf')),
            ],
            env={**os.environ, 'PYTHONPATH': os.getcwd()},
            stdout=self._folder.joinpath('log').open('wb'),
            stderr=subprocess.STDOUT,
        )

    def get(self, path: str) -> tuple[int, str]:
        """Return status and body of a page."""
        connection = http.client.HTTPConnection(
            '127.0.0.1', self.port, timeout=10
        )
        try:
            connection.request('GET', path)
            answer = connection.getresponse()
            return answer.status, answer.read().decode()
        finally:
            connection.close()

    def wait_for(self, path: str, pattern: str, max_s: float = _SOON_S) -> str:
        """Return a page as soon as this is in it."""
        ends_s, page = time.monotonic() + max_s, ''
        while time.monotonic() < ends_s:
            try:
                page = self.get(path)[1]
            except OSError:
                page = 'no answer'
            if re.search(pattern, page, re.MULTILINE):
                return page
            time.sleep(0.1)
        raise AssertionError(f'no {pattern} in {page}')

    def wait_for_log(self, text: str, max_s: float = _SOON_S) -> str:
        """Return the line of the log with this text as soon as it is there."""
        ends_s = time.monotonic() + max_s
        while time.monotonic() < ends_s:
            log = self._folder.joinpath('log').read_text()
            for line in log.splitlines():
                if text in line:
                    return line
            time.sleep(0.1)
        raise AssertionError(f'no {text} in {log}')

    def kill_worker(self) -> None:
        """Kill the first worker of c1."""
        os.kill(self._worker_pids()[0], signal.SIGKILL)

    @contextlib.contextmanager
    def frozen_workers(self) -> Iterator[None]:
        """Stop each worker of c1, as a machine that swaps does.

        The agent replaces one after some ten seconds, in which a busy machine
        has not even loaded a command.
        """
        over = threading.Event()

        def freeze() -> None:
            while not over.wait(0.05):
                self._signal_last_worker(signal.SIGSTOP)

        thread = threading.Thread(target=freeze)
        thread.start()
        try:
            yield
        finally:
            over.set()
            thread.join()
            self._signal_last_worker(signal.SIGCONT)

    def _signal_last_worker(self, number: signal.Signals) -> None:
        pid = self._worker_pids()[-1]
        # It may have ended, and another process may have its number.
        with contextlib.suppress(OSError):
            command = pathlib.Path(f'/proc/{pid}/cmdline').read_bytes()
            if bytes(self._folder) in command:
                os.kill(pid, number)

    def _worker_pids(self) -> list[int]:
        log = self._folder.joinpath('log').read_text()
        found = re.findall(r'worker of host c1, process (\d+)', log)
        return [int(pid) for pid in found]

    def show(self, *command: str) -> str:
        """Return what a command prints about the pool of this agent."""
        done = subprocess.run(
            [
                *(sys.executable, '-W', 'ignore'),
                *('-m', 'ironic_compute.cmd.ctl'),
                *('--config-file', str(self._folder / 'nova.conf')),
                *command,
            ],
            check=True,
            capture_output=True,
            text=True,
            timeout=2 * _SOON_S,
        )
        return done.stdout


@pytest.fixture(scope='module')
def agent(tmp_path_factory: pytest.TempPathFactory) -> Iterator[_Agent]:
    """An agent that has its lease and serves its home host."""
    folder = tmp_path_factory.mktemp('agent')
    made = _Agent(folder, f'file://{folder}/backend')
    process = made.start()
    try:
        made.wait_for('/readyz', '^Ready')
        yield made
    finally:
        process.send_signal(signal.SIGTERM)
        assert process.wait(_SOON_S) == 0


def _gauge(name: str, value: str) -> str:
    return rf'^ironic_compute_{name} {value}'


def test_one_port_has_the_agent_and_its_worker(agent: _Agent) -> None:
    """Health, state and all metrics are behind one target."""
    assert agent.get('/healthz')[0] == 200
    assert json.loads(agent.get('/api/v1/hosts')[1])[0]['served_here'] is True
    path = _gauge(r'path_failing_seconds\{host="c1",path="Ironic"\}', '0')
    metrics = agent.wait_for('/metrics', path)
    assert re.search(_gauge('agent_lease_in_force', '1'), metrics, re.M)
    assert re.search(_gauge('agent_hosts_served_here', '1'), metrics, re.M)
    count = r'agent_backend_request_seconds_count\{request="heartbeat"\}'
    assert re.search(_gauge(count, '[1-9]'), metrics, re.M)


def test_a_killed_worker_is_seen_and_the_next_one_answers(
    agent: _Agent,
) -> None:
    """The counters of the dead one are gone, and its end is counted."""
    state = json.loads(agent.get('/api/v1/agent')[1])
    assert state['counts']['worker_exits'] == []
    agent.kill_worker()
    exits = r'agent_worker_exits_total\{host="c1",status="-9"\}'
    agent.wait_for('/metrics', _gauge(exits, '1'))
    agent.wait_for('/readyz', '^Ready')
    read = r'agent_worker_metrics_read\{host="c1"\}'
    metrics = agent.wait_for('/metrics', _gauge(read, '1'))
    starts = r'agent_worker_starts_total\{host="c1"\}'
    assert re.search(_gauge(starts, '2'), metrics, re.M)


def test_a_command_says_what_the_port_says(agent: _Agent) -> None:
    """The toy never reads Nova's Services; then its workers are frozen."""
    agent.wait_for('/readyz', '^Ready')
    shown = agent.show('host', 'list', '-f', 'value', '-c', 'State')
    assert shown == 'home; its Service in Nova is not read yet\n'
    with agent.frozen_workers():
        # The answer of the port may be too late on a busy machine.
        for _ in range(3):
            shown = agent.show('host', 'list')
            if 'its worker ' in shown:
                break
    assert 'its worker ' in shown


@pytest.mark.parametrize('path', PATHS)
def test_no_page_has_a_password(agent: _Agent, path: str) -> None:
    """nova.conf has three."""
    assert _SECRET not in agent.get(path)[1]


def test_a_port_in_use_costs_the_daemon_its_port_only(
    tmp_path: pathlib.Path,
) -> None:
    """It serves its host, and says once which option is wrong."""
    agent = _Agent(tmp_path, f'file://{tmp_path}/backend')
    with socket.create_server(('127.0.0.1', agent.port)):
        process = agent.start()
        try:
            agent.wait_for_log('Started the worker of host c1')
            log = agent.wait_for_log('Could not open')
            assert f'[ironic_compute] agent_port {agent.port}' in log
            assert process.poll() is None
        finally:
            process.kill()
            process.wait()


def test_an_agent_without_its_backend_is_healthy_and_not_ready(
    tmp_path: pathlib.Path,
) -> None:
    """It tells so without the backend's URL, which has a password."""
    url = f'etcd3+http://root:{_SECRET}@127.0.0.1:1'
    agent = _Agent(tmp_path, url)
    process = agent.start()
    try:
        errors = r'agent_backend_errors_total\{request="connect"\}'
        agent.wait_for('/metrics', _gauge(errors, '[1-9]'))
        assert agent.get('/healthz')[0] == 200
        status, page = agent.get('/readyz')
        assert (status, page.splitlines()[0]) == (
            503,
            'The lease is not in force.',
        )
        assert not json.loads(agent.get('/api/v1/agent')[1])['lease'][
            'backend_answers'
        ]
        for path in PATHS:
            assert _SECRET not in agent.get(path)[1]
    finally:
        process.kill()
        process.wait()


# What the first of two agents shows of the other one.
_PUBLISHED = (
    r'"home": "c2"[^}]*"serving": \[\s*"c2"\s*\],\s*'
    r'"known": \[\s*"c1",\s*"c2"\s*\][^}]*"port_answers": '
)


def test_a_killed_agent_is_in_the_log_of_the_next_one_and_on_its_port(
    tmp_path: pathlib.Path,
) -> None:
    """As long as it is in the group, which is very long here.

    It is killed when it has published everything, because it leaves the group
    for a moment to publish: the backend is a folder.
    """
    first, second = (_make_member(tmp_path, home) for home in ('c1', 'c2'))
    processes = [first.start(), second.start()]
    try:
        first.wait_for_log('The port of the daemon of c2 answers', _LATE_S)
        first.wait_for('/api/v1/ring', f'{_PUBLISHED}true', _LATE_S)
        processes[1].kill()
        first.wait_for('/api/v1/ring', f'{_PUBLISHED}false', _LATE_S)
        line = first.wait_for_log('The port of the daemon of c2 has', _LATE_S)
        assert 'another one serves c2 when its lease has ended' in line
    finally:
        for process in processes:
            process.kill()
            process.wait()


def _make_member(folder: pathlib.Path, home: str) -> _Agent:
    folder.joinpath(home).mkdir()
    return _Agent(
        folder / home,
        f'file://{folder}/backend?timeout=900',
        home,
        'debug = true\nservice_down_time = 200\n'
        '[coordination]\nlease_term_s = 40\n',
    )

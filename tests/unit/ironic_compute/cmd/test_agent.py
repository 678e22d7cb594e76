# SPDX-License-Identifier: Apache-2.0
"""The command of the agent, as a real process with a toy as its worker."""

import contextlib
import json
import os
import pathlib
import re
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Iterator

import pytest

from ironic_compute.agent import exit_codes

_AGENT = textwrap.dedent(
    """
    from ironic_compute.cmd.agent import entry
    entry()
    """
)
# Writes down its arguments, then what it gets from the agent. As fork server
# it ends when it should fork a worker, or at once if it cannot load Nova.
_WORKER = textwrap.dedent(
    """
    import json, os, pathlib, socket, sys
    folder = pathlib.Path(__file__).parent
    with (folder / 'started').open('a') as started:
        started.write(json.dumps(sys.argv[1:]) + '\\n')
    if '--fork-fd' in sys.argv and not (folder / 'no-nova').exists():
        agent = socket.socket(fileno=int(sys.argv[-1]))
        agent.send(b'ready')
        agent.recv(1)
    for line in sys.stdin:
        (folder / 'view.new').write_text(line)
        os.rename(folder / 'view.new', folder / 'view')
    """
)
_SOON_S = 60.0


def _write_program(path: pathlib.Path, text: str) -> None:
    path.write_text(f'#!{sys.executable}\n{text}')
    path.chmod(0o755)


def _options(folder: pathlib.Path) -> list[str]:
    """Return the agent's options; half of them are in a folder."""
    folder.joinpath('nova.conf').write_text('[DEFAULT]\nhost = c1\n')
    directory = folder / 'conf.d'
    directory.mkdir()
    directory.joinpath('pool.conf').write_text(
        f'[coordination]\nbackend_url = file://{folder}/backend\n'
        f'[ironic_compute]\nstate_path = {folder}/state\n'
        f'[oslo_reports]\nlog_dir = {folder}\n'
    )
    files = ['--config-file', str(folder / 'nova.conf')]
    return [*files, '--config-dir', str(directory), '--debug']


@pytest.fixture
def folder(tmp_path: pathlib.Path) -> pathlib.Path:
    """A folder with the two programs."""
    _write_program(tmp_path / 'ironic-compute', _AGENT)
    _write_program(tmp_path / 'ironic-compute-worker', _WORKER)
    return tmp_path


@pytest.fixture
def agent(folder: pathlib.Path) -> Iterator[subprocess.Popen[str]]:
    """An agent that runs, and has started a worker."""
    program = [sys.executable, '-W', 'ignore', str(folder / 'ironic-compute')]
    process = subprocess.Popen(
        [*program, *_options(folder)],
        env={
            **os.environ,
            'PYTHONPATH': os.getcwd(),
            'NOTIFY_SOCKET': '/nowhere/notify',
        },
        stdout=folder.joinpath('log').open('w'),
        stderr=subprocess.STDOUT,
        start_new_session=True,
        text=True,
    )
    try:
        _read(folder / 'view')
        yield process
    finally:
        _kill_session(process.pid)
        process.wait()


def _kill_session(leader: int) -> None:
    """Kill the agent, and the daemon that has replaced it."""
    for stat in pathlib.Path('/proc').glob('[0-9]*/stat'):
        with contextlib.suppress(OSError):
            session = stat.read_text().rpartition(')')[2].split()[3]
            if int(session) == leader:
                os.kill(int(stat.parent.name), signal.SIGKILL)


def _read(path: pathlib.Path) -> str:
    """Return the contents of a file as soon as it is there."""
    ends_s = time.monotonic() + _SOON_S
    while time.monotonic() < ends_s:
        if path.exists():
            return path.read_text()
        time.sleep(0.1)
    raise AssertionError(f'no {path}')


def _wait_for_instructions(folder: pathlib.Path, **counts: int) -> None:
    """Wait until the worker has got these instructions."""
    ends_s = time.monotonic() + _SOON_S
    while time.monotonic() < ends_s:
        if json.loads(_read(folder / 'view')).get('instructions') == counts:
            return
        time.sleep(0.1)
    raise AssertionError(f'no {counts}')


def test_worker_gets_all_options_of_the_agent(
    agent: subprocess.Popen[str], folder: pathlib.Path
) -> None:
    """Credentials may be in a folder that only an option names."""
    started = _read(folder / 'started').splitlines()
    for arguments in map(json.loads, started):
        assert arguments[:5] == [
            '--config-file',
            f'{folder}/nova.conf',
            '--config-dir',
            f'{folder}/conf.d',
            '--debug',
        ]


def test_fork_server_is_tried_first(
    agent: subprocess.Popen[str], folder: pathlib.Path
) -> None:
    """Without an option; the worker is a program because it has ended."""
    server, worker = _read(folder / 'started').splitlines()[:2]
    assert '--fork-fd' in json.loads(server)
    assert '--report-fd' in json.loads(worker)


def test_no_signal_ends_the_agent_unless_it_is_told_to_stop(
    agent: subprocess.Popen[str], folder: pathlib.Path
) -> None:
    """SIGHUP reloads, SIGUSR2 reports, SIGTERM stops."""
    _wait_for_instructions(folder, reloads=0, reports=0)
    agent.send_signal(signal.SIGHUP)
    _wait_for_instructions(folder, reloads=1, reports=0)
    agent.send_signal(signal.SIGUSR2)
    _wait_for_instructions(folder, reloads=1, reports=1)
    (report,) = folder.glob('ironic-compute_gurumeditation_*')
    assert 'Threads' in report.read_text()
    agent.send_signal(signal.SIGTERM)
    assert agent.wait(_SOON_S) == 0


def _wait_for_line(folder: pathlib.Path, pattern: str) -> re.Match[str]:
    """Wait until the agents have logged something."""
    ends_s = time.monotonic() + _SOON_S
    while time.monotonic() < ends_s:
        if found := re.search(pattern, folder.joinpath('log').read_text()):
            return found
        time.sleep(0.1)
    raise AssertionError(f'no {pattern} in the log')


def _agents(folder: pathlib.Path) -> list[str]:
    """Return the processes whose workers have been started, in turn."""
    started = map(json.loads, _read(folder / 'started').splitlines())
    pids = [words[words.index('--agent-pid') + 1] for words in started]
    return list(dict.fromkeys(pids))


def test_daemon_is_replaced_by_one_that_has_its_state(
    agent: subprocess.Popen[str], folder: pathlib.Path
) -> None:
    """SIGURG: the next one serves the host, with the same options."""
    agent.send_signal(signal.SIGURG)
    pid = _wait_for_line(folder, r'Started the next daemon, process (\d+)')[1]
    # systemd was not told, so it must not take this for an ordinary end.
    assert agent.wait(_SOON_S) == exit_codes.EX_OSERR
    _wait_for_line(folder, f' {pid} INFO .*Started the worker of host c1')
    assert _agents(folder) == [str(agent.pid), pid]


def test_next_daemon_gets_the_signals_that_came_too_early(
    agent: subprocess.Popen[str], folder: pathlib.Path
) -> None:
    """The log is rotated while the daemon is replaced."""
    agent.send_signal(signal.SIGURG)
    pid = _wait_for_line(folder, r'Started the next daemon, process (\d+)')[1]
    os.kill(int(pid), signal.SIGHUP)
    agent.wait(_SOON_S)
    _wait_for_line(folder, f' {pid} INFO .*Read the configuration again')


@pytest.mark.parametrize(
    'mistake',
    [
        '[coordination]\nlease_term_s = x\n',
        '[ironic_compute]\nstate_path = /dev/null/state_path\n',
    ],
)
def test_daemon_serves_on_if_the_next_one_cannot(
    agent: subprocess.Popen[str], folder: pathlib.Path, mistake: str
) -> None:
    """Somebody has made a mistake in the file."""
    pool = folder / 'conf.d' / 'pool.conf'
    pool.write_text(pool.read_text() + mistake)
    agent.send_signal(signal.SIGURG)
    _wait_for_line(folder, 'does not replace this one: it ended with .* 78')
    _wait_for_line(folder, 'ironic-compute: .*(lease_term_s|state_path)')
    agent.send_signal(signal.SIGHUP)
    _wait_for_instructions(folder, reloads=1, reports=0)


def test_daemon_serves_on_if_the_next_one_cannot_load_nova(
    agent: subprocess.Popen[str], folder: pathlib.Path
) -> None:
    """An upgrade of a library that Nova imports went wrong."""
    folder.joinpath('no-nova').touch()
    agent.send_signal(signal.SIGURG)
    _wait_for_line(folder, 'does not replace this one: it ended with .* 71')
    agent.send_signal(signal.SIGHUP)
    _wait_for_instructions(folder, reloads=1, reports=0)


@pytest.mark.parametrize('option', ['--version', '--help'])
def test_agent_says_what_it_is(folder: pathlib.Path, option: str) -> None:
    """Neither needs a configuration."""
    done = subprocess.run(
        [sys.executable, '-W', 'ignore', folder / 'ironic-compute', option],
        env={**os.environ, 'PYTHONPATH': os.getcwd()},
        capture_output=True,
        check=True,
        text=True,
        timeout=_SOON_S,
    )
    expected = {'--version': '.', '--help': 'the daemon of one controller'}
    assert expected[option] in ' '.join(done.stdout.split())

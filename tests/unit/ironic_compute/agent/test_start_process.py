# SPDX-License-Identifier: Apache-2.0
"""What an agent starts, and with which options."""

import os
import pathlib
import subprocess
import sys

import pytest

from ironic_compute.agent import start_process


@pytest.fixture
def worker(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A program in the place of ironic-compute-worker, which says its name."""
    program = tmp_path / 'ironic-compute-worker'
    program.write_text(
        f'#!{sys.executable}\n'
        'import socket, sys\n'
        'end = socket.socket(fileno=int(sys.argv[-1]))\n'
        "end.send(' '.join(sys.argv[1:-1]).encode())\n"
        'end.recv(1)\n'
    )
    program.chmod(0o755)
    monkeypatch.setattr(sys, 'argv', [str(tmp_path / 'ironic-compute')])


@pytest.mark.usefixtures('worker')
def test_fork_server_is_started_with_the_options_of_its_agent() -> None:
    """It is a child of the agent, and both have an end of a socket."""
    started = start_process.start_fork_server_early(['--debug'])
    assert started is not None
    assert not started.socket.getblocking()
    started.socket.setblocking(True)
    assert started.socket.recv(100).decode() == (
        f'--debug --agent-pid {os.getpid()} --fork-fd'
    )
    started.kill()
    assert started.process.returncode is not None


@pytest.mark.usefixtures('worker')
@pytest.mark.parametrize('option', ['-h', '--help', '--version'])
def test_agent_that_only_prints_starts_nothing(option: str) -> None:
    """Loading Nova would take longer than the agent."""
    assert start_process.start_fork_server_early([option]) is None


def test_agent_starts_without_a_program_of_a_worker(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It tries again later, and logs why it cannot."""
    monkeypatch.setattr(sys, 'argv', [str(tmp_path / 'ironic-compute')])
    monkeypatch.setattr(sys, 'executable', '/nowhere/python')
    assert start_process.start_fork_server_early([]) is None


def test_only_the_option_of_a_successor_is_taken_off() -> None:
    """All other options are those of its predecessor."""
    options = ['--config-file', 'a', '--predecessor-fd', '7', '--debug']
    others = ['--config-file', 'a', '--debug']
    take = start_process.take_predecessor_fd
    assert take(options) == (7, others)
    assert take(others) == (None, others)


def test_module_imports_no_library() -> None:
    """Else the fork server would wait until the agent has loaded."""
    program = (
        'import sys; before = set(sys.modules)\n'
        'import ironic_compute.agent.start_process\n'
        'new = {n.split(".")[0] for n in set(sys.modules) - before}\n'
        'print(*sorted(new - set(sys.stdlib_module_names)))\n'
    )
    done = subprocess.run(
        [sys.executable, '-S', '-c', program],
        env={**os.environ, 'PYTHONPATH': os.getcwd()},
        capture_output=True,
        check=True,
        text=True,
    )
    assert done.stdout.split() == ['ironic_compute']

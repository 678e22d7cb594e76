# SPDX-License-Identifier: Apache-2.0
"""A wrong configuration or backend gives one sentence and an exit status."""

import contextlib
import inspect
import pathlib
import signal
import socket
import subprocess
import sys
import types
from collections.abc import Iterator
from typing import Any

import pytest
from oslo_messaging._drivers import amqpdriver

from hashring.ring import Host
from ironic_compute.cmd.ctl import ControlApp
from ironic_compute.cmd.drain import HostDrain
from ironic_compute.cmd.rebalance import PoolRebalanceCommand
from ironic_compute.ownership import peer_rpc


@pytest.mark.parametrize(
    ('command', 'arguments', 'status'),
    [
        ('agent', [], 78),
        ('ctl', ['host', 'list'], 78),
        ('status', ['upgrade', 'check'], 2),
    ],
)
def test_a_configuration_that_is_not_there(
    command: str, arguments: list[str], status: int
) -> None:
    """The file is named, and no traceback is shown."""
    program = [sys.executable, '-W', 'ignore', '-m']
    file = ['--config-file', '/nowhere/nova.conf']
    done = subprocess.run(
        [*program, f'ironic_compute.cmd.{command}', *file, *arguments],
        check=False,
        capture_output=True,
        text=True,
        timeout=120.0,
    )
    assert done.returncode == status
    assert 'Traceback' not in done.stderr
    assert '/nowhere/nova.conf' in done.stderr


def _list_hosts(
    folder: pathlib.Path, url: str, *command: str
) -> subprocess.CompletedProcess[str]:
    """List the hosts of the pool on a backend, with Python's warnings.

    :param command: another command to run
    """
    file = folder / 'nova.conf'
    file.write_text(f'[coordination]\nbackend_url = {url}\n')
    program = [sys.executable, '-m', 'ironic_compute.cmd.ctl']
    arguments = command or ('host', 'list')
    return subprocess.run(
        [*program, '--config-file', str(file), *arguments],
        check=False,
        capture_output=True,
        text=True,
        timeout=120.0,
    )


@pytest.mark.parametrize(
    ('url', 'named'),
    [
        ('nosuch://c1', 'nosuch'),
        ('redis://c1?timeout=abc', 'timeout=abc'),
        ('file:///nowhere/mistyped', 'file:///nowhere/mistyped'),
    ],
)
def test_a_backend_that_cannot_be_used(
    tmp_path: pathlib.Path, url: str, named: str
) -> None:
    """It is a wrong option, so the exit status is 78."""
    done = _list_hosts(tmp_path, url)
    assert done.returncode == 78
    assert named in done.stderr
    assert done.stderr.count('\n') == 1


@pytest.mark.parametrize(
    'command',
    [
        'host list',
        'host adopt c1',
        'host mapped c1',
        'host forget c1',
        'pool rebalance --dry-run',
    ],
)
def test_a_pool_without_daemons(tmp_path: pathlib.Path, command: str) -> None:
    """The sentence names the backend; no library warns beside it."""
    done = _list_hosts(tmp_path, f'file://{tmp_path}', *command.split())
    assert done.returncode == 1
    assert f'file://{tmp_path} there are daemons of: no pool' in done.stderr
    assert done.stderr.count('\n') == 1


@pytest.mark.parametrize(
    ('command', 'status'),
    [
        ('ctl host list', 78),
        ('ctl pool list', 78),
        ('status upgrade check', 2),
    ],
)
def test_option_of_nova_with_a_wrong_value(
    tmp_path: pathlib.Path, command: str, status: int
) -> None:
    """The programs ended with a traceback and status 255, or with status 1.

    oslo.config checks such a value only when it is read.
    """
    module, *arguments = command.split()
    file = tmp_path / 'nova.conf'
    file.write_text(
        '[ironic]\nshard = a b\n'
        f'[coordination]\nbackend_url = file://{tmp_path}\n'
    )
    program = [sys.executable, '-W', 'ignore', '-m']
    done = subprocess.run(
        [
            *(*program, f'ironic_compute.cmd.{module}'),
            *('--config-file', str(file), *arguments),
        ],
        check=False,
        capture_output=True,
        text=True,
        timeout=120.0,
    )
    assert done.returncode == status
    assert f'Option shard in {file} is not valid' in done.stderr
    assert done.stderr.count('\n') == 1


def test_options_without_a_command_are_no_commands(
    tmp_path: pathlib.Path,
) -> None:
    """The program printed that --config-file and the file are no commands."""
    file = tmp_path / 'nova.conf'
    file.write_text(f'[coordination]\nbackend_url = file://{tmp_path}\n')
    program = [sys.executable, '-W', 'ignore', '-m', 'ironic_compute.cmd.ctl']
    done = subprocess.run(
        [*program, '--config-file', str(file)],
        input='host list\n',
        check=False,
        capture_output=True,
        text=True,
        timeout=120.0,
    )
    assert f'file://{tmp_path} there are daemons of: no pool' in done.stderr
    assert 'is not a' not in done.stdout + done.stderr
    assert done.stderr.count('\n') == 1


def test_a_backend_that_is_away(tmp_path: pathlib.Path) -> None:
    """Redis is tried for a minute by its driver, but not by the command."""
    with socket.socket() as closed:
        closed.bind(('127.0.0.1', 0))
        place = f'127.0.0.1:{closed.getsockname()[1]}'
        done = _list_hosts(tmp_path, f'redis://{place}')
    assert done.returncode == 1
    assert f'{place}, and it does not answer (connect: ' in done.stderr
    assert 'Connection refused' in done.stderr
    assert done.stderr.count('\n') == 1


@contextlib.contextmanager
def _sigint_at_work() -> Iterator[None]:
    """A shell has the programs that it runs in the background ignore it."""
    former = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, former)


@pytest.mark.parametrize('command', ['ctl host list', 'status upgrade check'])
def test_ctrl_c_shows_no_traceback(
    tmp_path: pathlib.Path, command: str
) -> None:
    """The backend has accepted the connection, and does not answer."""
    module, *arguments = command.split()
    with socket.create_server(('127.0.0.1', 0)) as silent:
        silent.settimeout(100.0)
        file = tmp_path / 'nova.conf'
        place = f'127.0.0.1:{silent.getsockname()[1]}'
        file.write_text(f'[coordination]\nbackend_url = redis://{place}\n')
        program = [sys.executable, '-m', f'ironic_compute.cmd.{module}']
        with (
            _sigint_at_work(),
            subprocess.Popen(
                [*program, '--config-file', str(file), *arguments],
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
            ) as running,
            silent.accept()[0],
        ):
            running.send_signal(signal.SIGINT)
            said = running.communicate(timeout=100.0)
    assert running.returncode == 130
    assert 'Traceback' not in said[0] + said[1]


def test_help_does_not_wait_for_the_objects_of_nova() -> None:
    """They take as long to import as all the rest of ironic-computectl."""
    program = (
        'import sys, ironic_compute.cmd.ctl\n'
        "print('nova.conf' in sys.modules, *sorted({'nova.objects.fields', "
        "'nova.utils', 'nova.rpc'} & sys.modules.keys()))"
    )
    done = subprocess.run(
        [sys.executable, '-W', 'ignore', '-c', program],
        check=True,
        capture_output=True,
        text=True,
        timeout=120.0,
    )
    assert done.stdout.split() == ['True']


def test_help_shows_each_example_in_a_line_of_its_own() -> None:
    """All examples were one line, which is wrong usage if it is copied."""
    app = ControlApp()
    commands = _list_commands(app)
    assert len(commands) > 15
    for name, make in commands:
        shown = make(app, None).get_parser(name).format_help()
        described = inspect.cleandoc(make.__doc__)
        indented = [x for x in described.splitlines() if x.startswith('  ')]
        assert set(indented) <= set(shown.splitlines()), name


def _list_commands(app: ControlApp) -> list[tuple[str, Any]]:
    find = app.command_manager.find_command
    names = [name for name, _ in app.command_manager]
    commands = [(name, find(name.split())[0]) for name in names]
    return [x for x in commands if x[1].__module__.startswith('ironic_')]


def test_name_that_is_empty_is_wrong_usage(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """RabbitMQ gave the request to the worker of any host, which obeyed."""
    app, tried = ControlApp(), set[str]()
    for command, make in _list_commands(app):
        parser = make(app, None).get_parser(command)
        names = [x.dest for x in parser._actions if not x.option_strings]
        for name in names:
            words = ['' if each == name else 'c1' for each in names]
            with pytest.raises(SystemExit) as ended:
                parser.parse_args(words)
            assert ended.value.code == 2
            said = capsys.readouterr().err
            assert f'argument {name}: the name is empty' in said
            tried.add(command)
    assert {'host drain', 'host undrain', 'node move'} <= tried


def test_option_with_an_empty_name_is_wrong_usage(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """The nodes of all hosts were listed, as if no host were named."""
    app, tried = ControlApp(), set[str]()
    names = {'--host', '--node', '--with', '--without'}
    for command, make in _list_commands(app):
        parser = make(app, None).get_parser(command)
        for name in names.intersection(parser._option_string_actions):
            with pytest.raises(SystemExit) as ended:
                parser.parse_args([name, ''])
            assert ended.value.code == 2
            said = capsys.readouterr().err
            assert f'argument {name}: the name is empty' in said
            tried.add(f'{command} {name}')
    assert tried == {
        *('history --host', 'history --node', 'node list --host'),
        *('ring show --with', 'ring show --without'),
    }


def test_request_without_a_host_goes_to_any_host() -> None:
    """So no command may send one."""
    sent: list[str] = []

    class Driver(amqpdriver.AMQPDriverBase):  # type: ignore[misc]
        """oslo.messaging's driver for RabbitMQ, without a connection."""

        def __init__(self) -> None:
            self._default_exchange = 'nova'

        @contextlib.contextmanager
        def _get_connection(self, *arguments: Any) -> Iterator[Any]:
            yield types.SimpleNamespace(
                topic_send=lambda topic, **rest: sent.append(topic)
            )

    for host in ('c1', ''):
        Driver()._send(peer_rpc.queue_of(Host(host)), {}, {})
    assert sent == ['compute.c1', 'compute']


def _interrupted() -> Iterator[str]:
    yield 'Host c1 has 1 nodes left'
    raise KeyboardInterrupt


class _Drain(HostDrain):
    """Wait for a host, and be stopped."""

    def take_action(self, parsed_args: Any) -> tuple[Any, Any]:
        """Wait as the command does."""
        self._show(_interrupted(), Host(parsed_args.host))
        return (), []


class _Rebalance(PoolRebalanceCommand):
    """Move servers, and be stopped."""

    def take_action(self, parsed_args: Any) -> tuple[Any, Any]:
        """Move as the command does."""
        self._show(_interrupted())
        return (), []


class _App(ControlApp):
    """The application, without a configuration file."""

    def configure_logging(self) -> None:
        """Leave the log of this process as it is, for the tests after it."""

    def initialize_app(self, argv: Any) -> None:
        """Replace the commands that wait."""
        self.command_manager.add_command('host drain', _Drain)
        self.command_manager.add_command('pool rebalance', _Rebalance)


@pytest.mark.parametrize(
    ('command', 'said'),
    [
        ('host drain c1', 'It goes on; "ironic-computectl host undrain c1"'),
        ('pool rebalance', 'Stopped. What has moved stays'),
    ],
)
def test_ctrl_c_is_no_success(
    capfd: pytest.CaptureFixture[str], command: str, said: str
) -> None:
    """A script would go on as if the host were empty."""
    assert _App().run(command.split()) == 130
    assert said in capfd.readouterr().err

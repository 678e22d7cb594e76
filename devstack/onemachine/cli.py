# SPDX-License-Identifier: Apache-2.0
"""The command line of the cloud."""

import argparse
import os
import pathlib
import subprocess
import sys
from collections.abc import Callable, Sequence

from onemachine import packages
from onemachine.backends import COORDINATION
from onemachine.config import Dials
from onemachine.control import Cloud
from onemachine.layout import Layout, default_state
from onemachine.progress import CloudError, fail, say

_EXAMPLES = """\
examples:
  devstack/cloud up                     install, make and start everything
  devstack/cloud enroll 30              have 30 free nodes
  devstack/cloud agent c1 c2 c3         start three of our daemons
  devstack/cloud boot 6                 six servers, waiting for ACTIVE
  devstack/cloud hosts                  who holds what, who serves whom
  devstack/cloud kill c1                kill -9 an agent and its workers
  devstack/cloud demo                   all of it as a story, with timings
  devstack/cloud logs agent-c1 -f       follow a log
  devstack/cloud shell                  a shell for the openstack command
  devstack/cloud down                   stop all; "reset" forgets all state
"""
_IN_VENV = 'IRONIC_COMPUTE_CLOUD_IN_VENV'
# These need nothing of OpenStack, so they work before anything is installed.
_PLAIN = frozenset({'status', 'logs', 'down', 'reset'})
_MAKES_VENV = frozenset({'up', 'demo', 'scenario'})


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; the exit status."""
    given = list(sys.argv[1:] if argv is None else argv)
    arguments = _parser().parse_args(given)
    layout = Layout(
        pathlib.Path(arguments.state).resolve(), arguments.port_base
    )
    try:
        if arguments.command not in _PLAIN:
            _enter_venv(layout, arguments.command, given)
        status: int | None = _COMMANDS[arguments.command](layout, arguments)
    except CloudError as exc:
        return fail(exc)
    except KeyboardInterrupt:
        return fail(CloudError('interrupted'))
    return status or 0


def _enter_venv(layout: Layout, command: str, given: list[str]) -> None:
    """Go on in the cloud's own Python, which has OpenStack's clients."""
    if os.environ.get(_IN_VENV) == str(layout.venv):
        return
    if command in _MAKES_VENV:
        packages.ensure_debian()
        packages.ensure_venv(layout)
    elif not (layout.venv / 'installed').exists():
        raise CloudError('there is no cloud yet; run: devstack/cloud up')
    os.environ[_IN_VENV] = str(layout.venv)
    python = layout.bin('python')
    os.execv(python, [python, os.path.abspath(sys.argv[0]), *given])  # noqa: S606


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog='devstack/cloud',
        description='A real bare metal cloud on this machine, from packages: '
        'Nova, Ironic with fake hardware, Placement, Keystone, Glance, '
        'Neutron, RabbitMQ, MariaDB. It listens on 127.0.0.1 only and keeps '
        'everything in one folder.',
        epilog=_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        '--state',
        default=str(default_state()),
        help='the folder of this cloud (default: %(default)s, or '
        '$IRONIC_COMPUTE_CLOUD)',
    )
    parser.add_argument(
        '--port-base',
        type=int,
        default=int(os.environ.get('IRONIC_COMPUTE_CLOUD_PORT', '26000')),
        help='first of 16 ports (default: %(default)s)',
    )
    commands = parser.add_subparsers(
        dest='command', required=True, metavar='COMMAND'
    )
    _add_cloud_commands(commands)
    _add_content_commands(commands)
    _add_host_commands(commands)
    _add_stories(commands)
    return parser


def _add_cloud_commands(commands: argparse._SubParsersAction) -> None:  # type: ignore[type-arg]
    commands.add_parser('up', help='install, make and start what is missing')
    commands.add_parser('down', help='stop everything that was started')
    commands.add_parser('reset', help='stop everything and forget all state')
    commands.add_parser('status', help='which processes run')
    logs = commands.add_parser('logs', help='show the log of a process')
    logs.add_argument('name', help='a name that "status" shows')
    logs.add_argument('-f', '--follow', action='store_true')
    logs.add_argument('-n', '--lines', default='100')
    commands.add_parser('shell', help='a shell with OS_* and PATH set')
    dial = commands.add_parser(
        'dial', help='turn a dial of Ironic and restart it'
    )
    dial.add_argument('name', choices=sorted(Dials.DEFAULTS))
    dial.add_argument('value', help='on or off; seconds for the delay')
    backend = commands.add_parser(
        'coordination', help='the backend of agents started from now on'
    )
    backend.add_argument('kind', choices=COORDINATION)


def _add_content_commands(commands: argparse._SubParsersAction) -> None:  # type: ignore[type-arg]
    enroll = commands.add_parser('enroll', help='have so many nodes')
    enroll.add_argument('count', type=int)
    boot = commands.add_parser('boot', help='boot servers, wait for ACTIVE')
    boot.add_argument('count', type=int)
    boot.add_argument('--timeout', type=float, default=180)
    delete = commands.add_parser('delete', help='delete servers, wait')
    delete.add_argument('names', nargs='*', help='all of them if none named')
    commands.add_parser('servers', help='list the servers')
    commands.add_parser('nodes', help='list the nodes')
    commands.add_parser('hosts', help='who holds what, who serves whom')


def _add_host_commands(commands: argparse._SubParsersAction) -> None:  # type: ignore[type-arg]
    agent = commands.add_parser('agent', help='start our daemons')
    agent.add_argument('hosts', nargs='+')
    agent.add_argument(
        '--eventlet',
        action='store_true',
        help='with [DEFAULT] concurrency_backend = eventlet',
    )
    peer = commands.add_parser('peer', help='start stock nova-computes')
    peer.add_argument('hosts', nargs='+')
    for name, text in (
        ('stop', 'SIGTERM and wait'),
        ('kill', 'kill -9, the workers too'),
        ('pause', 'SIGSTOP, the workers too'),
        ('resume', 'SIGCONT, the workers too'),
    ):
        one = commands.add_parser(name, help=f'{text}: agents or peers')
        one.add_argument('hosts', nargs='+')


def _add_stories(commands: argparse._SubParsersAction) -> None:  # type: ignore[type-arg]
    demo = commands.add_parser('demo', help='the whole story, with timings')
    demo.add_argument('--eventlet', action='store_true')
    commands.add_parser(
        'check', help='does everything look as with nova-compute?'
    )
    commands.add_parser('swap', help='to stock nova-compute and back')
    commands.add_parser('scenario', help='demo, check and swap: for CI')


# Commands; each imports what it needs, so that the plain ones need nothing.


def _up(layout: Layout, arguments: argparse.Namespace) -> None:
    Cloud(layout).up()


def _down(layout: Layout, arguments: argparse.Namespace) -> None:
    Cloud(layout).down()


def _reset(layout: Layout, arguments: argparse.Namespace) -> None:
    Cloud(layout).reset()


def _status(layout: Layout, arguments: argparse.Namespace) -> int:
    processes = Cloud(layout).processes
    running = {name: processes.pid(name) for name in processes.names()}
    for name, pid in running.items():
        print(f'{name:24} {f"process {pid}" if pid else "not running"}')
    return 0 if running and all(running.values()) else 3


def _logs(layout: Layout, arguments: argparse.Namespace) -> int:
    path = layout.log(arguments.name)
    if not path.exists():
        raise CloudError(f'{arguments.name} has no log; see "status"')
    follow = ['-F'] if arguments.follow else []
    return subprocess.call(['tail', '-n', arguments.lines, *follow, str(path)])


def _shell(layout: Layout, arguments: argparse.Namespace) -> int:
    from onemachine import registry

    shell = os.environ.get('SHELL', '/bin/bash')
    environment = {**os.environ, **registry.environment(layout)}
    environment['PATH'] = f'{layout.venv}/bin:{environment["PATH"]}'
    say('Try: openstack compute service list; leave with exit')
    return subprocess.call([shell], env=environment)


def _dial(layout: Layout, arguments: argparse.Namespace) -> None:
    Dials(layout).turn(arguments.name, arguments.value)
    Cloud(layout).restart_ironic()


def _coordination(layout: Layout, arguments: argparse.Namespace) -> None:
    coordination = Cloud(layout).coordination
    coordination.choose(arguments.kind)
    say(f'Agents started from now on use {coordination.url}')


def _enroll(layout: Layout, arguments: argparse.Namespace) -> None:
    from onemachine import content

    content.Content(layout).enroll(arguments.count)


def _boot(layout: Layout, arguments: argparse.Namespace) -> None:
    from onemachine import content

    content.Content(layout).boot(arguments.count, arguments.timeout)


def _delete(layout: Layout, arguments: argparse.Namespace) -> None:
    from onemachine import content

    content.Content(layout).delete(arguments.names)


def _show(what: str) -> Callable[[Layout, argparse.Namespace], None]:
    def show(layout: Layout, arguments: argparse.Namespace) -> None:
        from onemachine import content

        print(getattr(content.Content(layout), f'{what}_table')())

    return show


def _agent(layout: Layout, arguments: argparse.Namespace) -> None:
    from onemachine import computes

    computes.Computes(Cloud(layout)).start_agents(
        arguments.hosts, eventlet=arguments.eventlet
    )


def _peer(layout: Layout, arguments: argparse.Namespace) -> None:
    from onemachine import computes

    computes.Computes(Cloud(layout)).start_peers(arguments.hosts)


def _signal(how: str) -> Callable[[Layout, argparse.Namespace], None]:
    def send(layout: Layout, arguments: argparse.Namespace) -> None:
        from onemachine import computes

        getattr(computes.Computes(Cloud(layout)), how)(arguments.hosts)

    return send


def _demo(layout: Layout, arguments: argparse.Namespace) -> None:
    from onemachine import story

    story.Story(Cloud(layout), eventlet=arguments.eventlet).tell()


def _check(layout: Layout, arguments: argparse.Namespace) -> None:
    from onemachine import checks

    checks.Checks(Cloud(layout)).look()


def _swap(layout: Layout, arguments: argparse.Namespace) -> None:
    from onemachine import checks

    checks.Checks(Cloud(layout)).swap()


def _scenario(layout: Layout, arguments: argparse.Namespace) -> None:
    from onemachine import checks, story

    cloud = Cloud(layout)
    story.Story(cloud, eventlet=False).tell()
    checks.Checks(cloud).look()
    checks.Checks(cloud).swap()


_COMMANDS: dict[str, Callable[[Layout, argparse.Namespace], int | None]] = {
    'up': _up,
    'down': _down,
    'reset': _reset,
    'status': _status,
    'logs': _logs,
    'shell': _shell,
    'dial': _dial,
    'coordination': _coordination,
    'enroll': _enroll,
    'boot': _boot,
    'delete': _delete,
    'servers': _show('servers'),
    'nodes': _show('nodes'),
    'hosts': _show('hosts'),
    'agent': _agent,
    'peer': _peer,
    'stop': _signal('stop'),
    'kill': _signal('kill'),
    'pause': _signal('pause'),
    'resume': _signal('resume'),
    'demo': _demo,
    'check': _check,
    'swap': _swap,
    'scenario': _scenario,
}

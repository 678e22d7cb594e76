# SPDX-License-Identifier: Apache-2.0
"""The actions of the commands of ``devstack/cloud``.

Each action imports its modules itself, so that plain commands need no package.
"""

import os
import subprocess
from argparse import Namespace
from collections.abc import Callable

from onemachine import naming, running
from onemachine.control import Cloud
from onemachine.dials import Dials
from onemachine.layout import Layout
from onemachine.progress import CloudError, print_line


def _up(layout: Layout, arguments: Namespace) -> None:
    Cloud(layout).up()


def _down(layout: Layout, arguments: Namespace) -> None:
    Cloud(layout).down()


def _reset(layout: Layout, arguments: Namespace) -> None:
    Cloud(layout).reset()


def _status(layout: Layout, arguments: Namespace) -> int:
    processes = Cloud(layout).processes
    running = {name: processes.pid(name) for name in processes.names()}
    for name, pid in running.items():
        print(f'{name:24} {f"process {pid}" if pid else "not running"}')
    for service in layout.apis:
        print(f'{service:24} {layout.url(service)}')
    return 0 if running and all(running.values()) else 3


def _logs(layout: Layout, arguments: Namespace) -> int:
    path = layout.log(arguments.name or '')
    if not path.exists():
        names = sorted(p.stem for p in path.parent.glob('*.log'))
        raise CloudError(f'there are logs of: {" ".join(names)}')
    follow = ['-F'] if arguments.follow else []
    return subprocess.call(['tail', '-n', arguments.lines, *follow, str(path)])


def _shell(layout: Layout, arguments: Namespace) -> int:
    from onemachine import registry

    own = {k: v for k, v in os.environ.items() if not k.startswith('OS_')}
    environment = {**own, **registry.environment(layout)}
    environment['PATH'] = f'{layout.venv}/bin:{environment["PATH"]}'
    words = arguments.words
    if not words:
        print_line('Try: openstack compute service list; leave with exit')
        words = [os.environ.get('SHELL', '/bin/bash')]
    try:
        return subprocess.call(words, env=environment)
    except OSError as exc:
        raise CloudError(f'{words[0]}: {exc.strerror}') from exc


def _dial(layout: Layout, arguments: Namespace) -> None:
    dials = Dials(layout)
    if arguments.value is None:
        for name, value in dials.read().items():
            print(f'{name:24} {value}')
    elif arguments.name == 'nodes':
        _dial_nodes(layout, arguments.value)
    elif arguments.name == 'queues':
        Cloud(layout).choose_queues(arguments.value)
    elif dials.turn(arguments.name, arguments.value):
        _apply_dial(Cloud(layout), arguments.name)


def _apply_dial(cloud: Cloud, name: str) -> None:
    if name in Dials.CONCERNS:
        cloud.restart_ironic(*Dials.CONCERNS[name])
    else:
        cloud.up()


def _dial_nodes(layout: Layout, value: str) -> None:
    from onemachine import content

    if not value.isdecimal():
        raise CloudError(f'nodes is a number, not {value}')
    contents = content.Content(layout)
    contents.enroll(int(value))
    contents.withdraw(int(value))


def _coordination(layout: Layout, arguments: Namespace) -> None:
    coordination = Cloud(layout).coordination
    coordination.choose(arguments.kind)
    print_line(f'Agents started from now on meet in {coordination.url}')


def _enroll(layout: Layout, arguments: Namespace) -> None:
    from onemachine import content

    content.Content(layout).enroll(arguments.count)


def _boot(layout: Layout, arguments: Namespace) -> None:
    from onemachine import content

    contents = content.Content(layout)
    names = naming.server_names(arguments.what)
    if arguments.no_wait:
        contents.create_servers(names)
    else:
        contents.boot_all(names, arguments.timeout)


def _reboot(layout: Layout, arguments: Namespace) -> None:
    from onemachine import content

    contents = content.Content(layout)
    contents.reboot(contents.named(arguments.names))


def _delete(layout: Layout, arguments: Namespace) -> None:
    from onemachine import content

    contents = content.Content(layout)
    if not arguments.names and not arguments.all:
        raise CloudError('name the servers, or say --all')
    if arguments.names:
        contents.named(arguments.names)
    contents.delete(() if arguments.all else arguments.names)


def _show(what: str) -> Callable[[Layout, Namespace], None]:
    def show(layout: Layout, arguments: Namespace) -> None:
        from onemachine import content

        print(getattr(content.Content(layout), f'{what}_table')())

    return show


def _agent(layout: Layout, arguments: Namespace) -> None:
    from onemachine import computes

    computes.Computes(Cloud(layout)).start_agents(
        arguments.hosts, eventlet=arguments.eventlet
    )


def _peer(layout: Layout, arguments: Namespace) -> None:
    from onemachine import computes

    computes.Computes(Cloud(layout)).start_peers(arguments.hosts)


def _signal(how: str) -> Callable[[Layout, Namespace], None]:
    def send(layout: Layout, arguments: Namespace) -> None:
        getattr(running.Running(layout), how)(arguments.hosts)

    return send


def _map(layout: Layout, arguments: Namespace) -> None:
    from onemachine import computes

    computes.Computes(Cloud(layout)).map_hosts()


def _demo(layout: Layout, arguments: Namespace) -> None:
    from onemachine import story

    story.Story(Cloud(layout), eventlet=arguments.eventlet).run()


def _check(layout: Layout, arguments: Namespace) -> None:
    from onemachine import checks

    checks.Checks(Cloud(layout), eventlet=arguments.eventlet).run()


def _swap(layout: Layout, arguments: Namespace) -> None:
    from onemachine import checks

    checks.Checks(Cloud(layout), eventlet=arguments.eventlet).swap()


def _migrate(layout: Layout, arguments: Namespace) -> None:
    from onemachine import migration

    migration.Migration(
        Cloud(layout), arguments.nodes, arguments.servers
    ).run()


def _bugs(layout: Layout, arguments: Namespace) -> int:
    from onemachine import bugs

    one = bugs.Bugs(
        Cloud(layout), stock=arguments.stock, eventlet=arguments.eventlet
    )
    return 0 if one.run() else 1


def _options(layout: Layout, arguments: Namespace) -> None:
    from onemachine import options

    options.Options(Cloud(layout)).run()


def _scenario(layout: Layout, arguments: Namespace) -> None:
    dials = Dials(layout)
    before = dials.read()['rights']
    if arguments.least_privilege:
        dials.turn('rights', 'least')
    try:
        _demo(layout, arguments)
        _check(layout, arguments)
        _swap(layout, arguments)
    finally:
        if dials.turn('rights', before):
            Cloud(layout).apply_rights()


_ROUNDS_COUNT = 20


def _chaos(layout: Layout, arguments: Namespace) -> int:
    from onemachine.chaos import cells, play, stage

    wanted = cells.Wanted(
        arguments.services,
        cells.choose_ways(arguments.ways, tls=arguments.tls),
        arguments.parts,
        arguments.cut,
        arguments.rounds or 1,
        arguments.tls,
    )
    plan = stage.Plan(
        arguments.seed,
        arguments.nodes,
        arguments.rounds or _ROUNDS_COUNT,
        arguments.coordination,
        arguments.stock,
        arguments.queues,
        wanted,
        arguments.servers,
        arguments.rules,
    )
    names = arguments.scenarios or list(play.USUAL)
    unknown = set(names) - set(play.SCENARIOS)
    if unknown:
        raise CloudError(
            f'there is no scenario {", ".join(sorted(unknown))}; there are: '
            f'{" ".join(play.SCENARIOS)}'
        )
    return 0 if play.perform(Cloud(layout), plan, names) else 1


def _night(layout: Layout, arguments: Namespace) -> None:
    from onemachine.night import play

    play.COMMANDS[arguments.act](Cloud(layout), arguments.words)


def _tempest(layout: Layout, arguments: Namespace) -> int:
    from onemachine.tempest import session

    cloud = Cloud(layout)
    good = True
    for stock in [True, False] if arguments.both else [arguments.stock]:
        wanted = session.Wanted(
            stock,
            arguments.eventlet,
            arguments.only,
            arguments.missing,
            arguments.workers,
            arguments.copy_to,
        )
        good = session.Session(cloud, wanted).hold()
    # If both kinds were run, stock came first, so the second result is the
    # comparison.
    return 0 if good else 1


ACTIONS: dict[str, Callable[[Layout, Namespace], int | None]] = {
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
    'reboot': _reboot,
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
    'map': _map,
    'demo': _demo,
    'check': _check,
    'swap': _swap,
    'migrate': _migrate,
    'bugs': _bugs,
    'options': _options,
    'scenario': _scenario,
    'chaos': _chaos,
    'night': _night,
    'tempest': _tempest,
}

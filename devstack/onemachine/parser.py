# SPDX-License-Identifier: Apache-2.0
"""The command line of ``devstack/cloud``, with its help texts."""

import argparse
import os

from onemachine.backends import COORDINATION
from onemachine.chaos import arguments
from onemachine.commands import Commands, count
from onemachine.dials import Dials
from onemachine.layout import PORT_BASE, PORT_BASE_MAX, default_state

_EXAMPLES = """\
examples:
  devstack/cloud up                     install and start the cloud
  devstack/cloud enroll 30              create 30 nodes
  devstack/cloud agent c1 c2 c3         start three of our daemons
  devstack/cloud boot 6                 boot six servers and wait for ACTIVE
  devstack/cloud hosts                  list hosts, nodes and processes
  devstack/cloud kill c1                kill -9 an agent and its workers
  devstack/cloud hosts                  ... now another agent serves its host
  devstack/cloud demo                   all of it as a demonstration
  devstack/cloud logs agent-c1 -f       follow a log
  devstack/cloud shell                  a shell for the openstack command
  devstack/cloud down                   stop all; "reset" deletes the state

"devstack/cloud COMMAND --help" describes a command.
"""


def parser() -> argparse.ArgumentParser:
    """Return the parser of the whole command line."""
    top = argparse.ArgumentParser(
        prog='devstack/cloud',
        description='A real bare metal cloud on this machine, from packages:\n'
        'Nova, Ironic with fake hardware, Placement, Keystone, Glance,\n'
        'Neutron, RabbitMQ, MariaDB. It listens on 127.0.0.1 only and keeps\n'
        'everything in one folder.',
        epilog=_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    top.add_argument(
        '--state',
        default=str(default_state()),
        help='the folder of this cloud (default: %(default)s, or '
        '$IRONIC_COMPUTE_CLOUD)',
    )
    top.add_argument(
        '--port-base',
        type=int,
        default=os.environ.get('IRONIC_COMPUTE_CLOUD_PORT'),
        help=f'first of the 17 ports of a new cloud, at most '
        f'{PORT_BASE_MAX} (default: {PORT_BASE}, or '
        '$IRONIC_COMPUTE_CLOUD_PORT); saved for later commands',
    )
    commands = Commands(top)
    for add in (
        _add_cloud,
        _add_content,
        _add_hosts,
        _add_dials,
        _add_story,
        _add_migrate,
        _add_bugs,
        arguments.add_chaos,
        _add_night,
        _add_tempest,
    ):
        add(commands)
    return top


def _add_cloud(commands: Commands) -> None:
    commands.add(
        'up',
        'install and start the cloud',
        'Can be repeated.\nInstalls Debian packages as root or with sudo, '
        'and OpenStack into a virtual\nenvironment in the state folder.',
        'up',
        '--state /tmp/other --port-base 28000 up     a second cloud',
    )
    commands.add('down', 'stop all processes', 'The state is kept.')
    commands.add(
        'reset',
        'stop all processes and delete all state',
        'The installation is kept.',
    )
    commands.add(
        'status', 'list the processes', 'Exit status 0 if all run, or else 3.'
    )
    logs = commands.add(
        'logs',
        'show the log of a process',
        'Without a name: list the logs.',
        'logs nova-scheduler',
        'logs agent-c1 -f',
    )
    logs.add_argument('name', nargs='?', help='a name that "status" shows')
    logs.add_argument('-f', '--follow', action='store_true')
    logs.add_argument('-n', '--lines', default='100')
    shell = commands.add(
        'shell',
        'a shell, or one command, with OS_* and PATH set',
        'The user is the\nadministrator. Ironic shows all nodes only to '
        'system scope: OS_CLOUD=system.',
        'shell',
        'shell openstack compute service list',
        'shell openstack --os-cloud system baremetal node list',
        'shell env | grep OS_',
    )
    shell.add_argument('words', nargs=argparse.REMAINDER, metavar='COMMAND')


def _add_content(commands: Commands) -> None:
    enroll = commands.add(
        'enroll',
        'create nodes until there are so many',
        "Up to 50 are created through\nIronic's API; more are copies of a "
        "node's row in its database. They are\nfake-hardware, class "
        'baremetal, powered on, available.',
        'enroll 30',
        'enroll 1000',
    )
    enroll.add_argument('count', type=count)
    boot = commands.add(
        'boot',
        'boot servers and wait for ACTIVE',
        'A number of them, or one by its name.',
        'boot 6',
        'boot web --no-wait',
    )
    boot.add_argument('what', metavar='COUNT|NAME')
    boot.add_argument('--timeout', type=float, default=180, help='seconds')
    boot.add_argument('--no-wait', action='store_true')
    reboot = commands.add('reboot', 'reboot servers (hard) and wait')
    reboot.add_argument('names', nargs='+', metavar='NAME')
    delete = commands.add(
        'delete', 'delete servers and wait', '', 'delete web', 'delete --all'
    )
    delete.add_argument('names', nargs='*', metavar='NAME')
    delete.add_argument('--all', action='store_true')
    commands.add('servers', 'list the servers')
    commands.add('nodes', 'list the nodes with their hosts')
    commands.add(
        'hosts',
        'list the hosts with their nodes and processes',
        'For each host of Nova:\nits Service, how many free nodes and nodes '
        'with a server (pinned) it holds,\nand the process that serves it.',
    )


def _add_hosts(commands: Commands) -> None:
    agent = commands.add(
        'agent',
        'start our daemons',
        'As an operator would: with the sample\nconfiguration filled in and '
        "the systemd unit's command line. Each has its own\nstate folder and "
        'log; waits until Nova sees them up, and maps the hosts.',
        'agent c1',
        'agent c1 c2 c3 --eventlet',
    )
    agent.add_argument('hosts', nargs='+', metavar='HOST')
    agent.add_argument(
        '--eventlet',
        action='store_true',
        help='with [DEFAULT] concurrency_backend = eventlet',
    )
    peer = commands.add(
        'peer',
        'start stock nova-computes',
        'In the same cloud, for comparison.',
    )
    peer.add_argument('hosts', nargs='+', metavar='HOST')
    for name, text, more in (
        ('stop', 'end agents or peers', 'With SIGTERM, and wait for them.'),
        ('kill', 'kill agents or peers', 'With SIGKILL, also their workers.'),
        ('pause', 'freeze agents or peers', 'SIGSTOP, also to workers.'),
        ('resume', 'thaw frozen agents or peers', 'With SIGCONT.'),
    ):
        one = commands.add(name, text, more, f'{name} c1')
        one.add_argument('hosts', nargs='+', metavar='HOST')
    commands.add('map', 'map new hosts to their cell')


def _add_dials(commands: Commands) -> None:
    dial = commands.add(
        'dial',
        'change a setting of the cloud, and restart its processes',
        'Without arguments:\nlist the settings. "nodes" creates or deletes '
        'nodes. "queues" stops the cloud and\ndeletes all messages.',
        'dial deploy-delay 10     seconds, twice in each deploy',
        'dial cleaning on',
        'dial cleaning-delay 20   seconds, if cleaning is on',
        'dial notifications off',
        'dial placement-retries off   no node for two servers, on MariaDB',
        'dial spread off          equal nodes in the order of the defaults',
        'dial nodes 12',
        'dial queues quorum       durable queues of Nova in RabbitMQ',
        'dial queues kolla        queues as Kolla Ansible sets them',
        'dial volumes on          Cinder, from whose volumes servers boot',
        'dial rights least        daemons with the rights of the manual only',
    )
    names = [*sorted(Dials.DEFAULTS), 'nodes']
    dial.add_argument('name', nargs='?', choices=names)
    dial.add_argument('value', nargs='?')
    backend = commands.add(
        'coordination',
        'choose the backend of agents that are started later',
        'Installs\nand starts its server. "file" needs no server and is the '
        'default. Stop all\nrunning agents first.',
        'coordination etcd',
    )
    backend.add_argument('kind', choices=COORDINATION)


def _add_story(commands: Commands) -> None:
    for name, text, more in (
        (
            'demo',
            'demonstrate the daemons, with timings',
            'Three daemons share 30\nnodes, servers are booted, a daemon is '
            'killed, another serves its host, and\nthe first comes back. '
            'Exit status 0 only if every check succeeds.',
        ),
        ('scenario', 'run demo, check and swap, for CI', ''),
        (
            'check',
            'compare the APIs with those of nova-compute',
            'Runs the\nopenstack command, nova-status and nova-manage.',
        ),
        (
            'swap',
            'change to stock nova-compute and back',
            'On the same hosts, with the\nsame servers.',
        ),
    ):
        one = commands.add(name, text, more, name)
        one.add_argument(
            '--eventlet', action='store_true', help='our daemons on eventlet'
        )
        if name == 'scenario':
            one.add_argument(
                '--least-privilege',
                action='store_true',
                help='our daemons with a user that has the rights of the '
                "manual's page about security, and no others",
            )


def _add_migrate(commands: Commands) -> None:
    migrate = commands.add(
        'migrate',
        'go from stock nova-computes to a pool, and back',
        'The steps are those\nthat "ironic-computectl migrate plan" lists: '
        'three stock nova-computes, a pool\nof three, of two, two stock '
        'nova-computes, a pool again, one stock nova-compute.\nServers are '
        'rebooted at each step. All servers there are deleted before.',
        'migrate',
        'migrate --nodes 30 --servers 8',
    )
    for name, default in (('nodes', 60), ('servers', 20)):
        migrate.add_argument(
            f'--{name}',
            type=count,
            default=default,
            help=f'how many {name} (default: %(default)s)',
        )


def _add_bugs(commands: Commands) -> None:
    bugs = commands.add(
        'bugs',
        "replay bugs of Nova's own driver",
        'Rebuilds at API\nversions around 2.93, a power sync with an outdated '
        'state, deletes in provision\nstates that once left a node deployed. '
        'There must be no servers; running\ncompute hosts are ended. Exit '
        'status 0 only if no bug occurs.',
        'bugs',
        'bugs --stock             with stock nova-compute',
    )
    who = bugs.add_mutually_exclusive_group()
    who.add_argument('--stock', action='store_true')
    who.add_argument(
        '--eventlet', action='store_true', help='our daemons on eventlet'
    )
    commands.add(
        'options',
        'run our daemon on the nova.conf of stock nova-compute',
        'Unchanged,\nand with every option of [ironic] set: each works, or '
        'one notice names it.\nThere must be no servers; running compute '
        'hosts are ended.',
        'options',
    )


def _add_night(commands: Commands) -> None:
    night = commands.add(
        'night',
        'a night on call: break a pool of three daemons, and mend it',
        'One person\nprepares a case, and another one, who does not know it, '
        'finds its cause and\nmends the pool, with the status pages, '
        'ironic-computectl, the manual, and what\nan operator of OpenStack '
        'has besides.\n\n'
        '  start       start the cloud on etcd, three daemons with their '
        'ports, 12 nodes\n              and 5 servers, and print where to '
        'look\n'
        '  prepare N   break the pool in way N; print what a user or an alert '
        'says, when\n              it can be seen. The time of the operator '
        'begins\n'
        '  restart X   restart the daemons c1, c2, c3, with the files that '
        'they have, or a\n              process that "devstack/cloud status" '
        'lists, as with systemctl\n'
        '  answers N   print cause and cure; not for the operator before the '
        'end\n'
        '  mend N      undo case N and whatever the operator did, and wait '
        'until the\n              pool is well\n\n'
        'N is 1 to 10. devstack/onemachine/night has the causes, so that the '
        'operator does\nnot read it.',
        'night start',
        'night prepare 1',
        'night restart c1 c2',
        'night answers 1',
        'night mend 1',
    )
    acts = ('start', 'prepare', 'mend', 'answers', 'restart')
    night.add_argument('act', choices=acts)
    night.add_argument('words', nargs='*', metavar='N|X')


def _add_tempest(commands: Commands) -> None:
    tempest = commands.add(
        'tempest',
        "run OpenStack's own tests, and write a report",
        'Starts our daemons\non c1, c2 and c3 and runs the compute API and '
        'scenario tests that make sense\nfor bare metal; '
        'the others, with reasons, are in devstack/tempest-left-out.txt.\n'
        'The report is '
        'tempest/report.rst in the state folder. Exit status 0 only if\n'
        'no test fails that stock nova-compute passes; without its results, '
        'if no test\nfails.',
        'tempest',
        'tempest --stock                  the same tests with stock',
        'tempest --only ServerRescue      some tests only',
        'tempest --both --copy-to doc/source/contributor/tempest.rst',
    )
    whose = tempest.add_mutually_exclusive_group()
    whose.add_argument(
        '--stock', action='store_true', help='against stock nova-computes'
    )
    whose.add_argument(
        '--both', action='store_true', help='against stock, then against ours'
    )
    tempest.add_argument(
        '--eventlet', action='store_true', help='our daemons on eventlet'
    )
    tempest.add_argument(
        '--only',
        default='',
        metavar='REGEX',
        help='run the tests that match; the results are not kept',
    )
    tempest.add_argument(
        '--missing',
        action='store_true',
        help='run the tests without a kept result, and keep theirs',
    )
    tempest.add_argument(
        '--workers', type=count, default=2, help='tests at once'
    )
    tempest.add_argument(
        '--copy-to',
        default='',
        metavar='FILE',
        help='write the report also to this file',
    )

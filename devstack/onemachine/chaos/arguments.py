# SPDX-License-Identifier: Apache-2.0
"""The command line of ``devstack/cloud chaos``, with its help texts."""

import argparse
import re
import time

from onemachine.backends import COORDINATION
from onemachine.chaos import cells
from onemachine.commands import Commands, count
from onemachine.dials import Dials

_DESCRIPTION = (
    'All scenarios\nbut moves, paths, seen, planted, rights and volumes '
    'unless some are named: kills (kill\n-9), '
    'deploys (kill -9 with twenty deploys, then twenty deletes, in\n'
    'flight), freeze (SIGSTOP), coordination, rabbit,\nmariadb, ironic '
    '(each unavailable for a while), rolling (restarts), idle, join, '
    'scaling (from\ntwo daemons to five and back, as an autoscaler does), '
    'bursts (40\nboots at once on 120 nodes, no fault), storm (two faults '
    'at once), cuts (a worker is killed\nbefore and after each request of '
    'a build), moves (nodes go to other hosts and another\npool with '
    'their servers, and daemons are killed meanwhile: some forty '
    'minutes),\npaths (TCP proxies cut one service from one\ndaemon, '
    'later from all, later again and again: some four hours),\nseen '
    '(each fault has to show on the page, in the metrics, as an alert of a '
    'Prometheus, in ctl,\nfsck and log),\nplanted (fsck has to find what was '
    'written into the databases, and mend its\npart),\nrights (each right of '
    'the manual is taken away, and has to be named),\nvolumes (servers boot '
    'from volumes of Cinder, and daemons are killed).\n'
    'Users boot, reboot and delete servers meanwhile. Writes a report. '
    'Exit status 0\nonly if all demands hold.'
)
_EXAMPLES = (
    'chaos kills --rounds 20 --seed 7',
    'chaos kills --stock        with stock nova-computes',
    'chaos bursts --nodes 120 --rounds 25',
    'chaos storm --nodes 200 --rounds 20 --seed 3 --queues quorum',
    'chaos cuts --nodes 30',
    'chaos moves --nodes 300 --servers 100 --rounds 10',
    'chaos paths --nodes 100 --seed 3',
    'chaos seen --nodes 30',
    'chaos planted --nodes 300',
    'chaos rights --nodes 8 --coordination file',
    'chaos volumes --nodes 20',
    'chaos paths --nodes 100 --services rabbit,ironic --ways refused '
    '--parts one',
)


def add_chaos(commands: Commands) -> None:
    """Add the command and its options."""
    chaos = commands.add(
        'chaos',
        'cause faults under load, and check the results',
        _DESCRIPTION,
        *_EXAMPLES,
    )
    chaos.add_argument('scenarios', nargs='*', metavar='SCENARIO')
    chaos.add_argument('--seed', type=int, default=int(time.time()) % 10**6)
    chaos.add_argument('--nodes', type=count, default=300)
    chaos.add_argument(
        '--servers', type=count, default=100, help='only of moves'
    )
    chaos.add_argument(
        '--rounds',
        type=count,
        help='of kills, bursts or storm (default: 20), of paths (1), or the '
        'kills of moves (10 at most)',
    )
    chaos.add_argument('--coordination', choices=COORDINATION, default='etcd')
    chaos.add_argument(
        '--queues',
        choices=Dials.VALUES['queues'],
        default='classic',
        help="Nova's queues in RabbitMQ",
    )
    chaos.add_argument('--stock', action='store_true')
    chaos.add_argument(
        '--rules',
        type=re.compile,
        default=re.compile(''),
        metavar='REGEX',
        help='of rights: the policy rules that match (default: all)',
    )
    _add_paths(chaos)


def _add_paths(chaos: argparse.ArgumentParser) -> None:
    paths = chaos.add_argument_group('of the scenario paths')
    for name, known, text in (
        ('services', tuple(cells.Service), 'services to cut'),
        ('parts', tuple(cells.Part), 'whom to cut them from'),
    ):
        paths.add_argument(
            f'--{name}',
            type=cells.names_of(known),
            default=known,
            metavar='NAME,...',
            help=f'{text} (default: {", ".join(known)})',
        )
    paths.add_argument(
        '--ways',
        type=cells.names_of(cells.WAYS),
        metavar='NAME,...',
        help=f'ways to cut them (default: {", ".join(cells.PLAIN_WAYS)}; '
        f'with --tls {cells.Way.EXPIRED}, too)',
    )
    paths.add_argument(
        '--tls',
        action='store_true',
        help='let daemons reach all services by TLS',
    )
    paths.add_argument(
        '--cut',
        type=count,
        default=100,
        metavar='SECONDS',
        help='how long a service is cut from one daemon (default: '
        '%(default)s); from all: 45 s at most',
    )

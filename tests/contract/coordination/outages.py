# SPDX-License-Identifier: Apache-2.0
"""Measure how long heartbeats pause when a cluster loses a server.

The table in ``doc/source/admin/coordination.rst`` comes from this program. It
starts each installed kind of cluster on this machine, and three agents.

  python -m tests.contract.coordination.outages [--rounds N] [KIND …]
"""

import argparse
import os
import pathlib
import sys
import tempfile
from collections.abc import Sequence

from tests.contract.coordination.clusters import (
    KINDS,
    LEASE_S,
    Agent,
    Cluster,
    Faults,
    Watch,
    agents_of,
    followers,
)
from tests.contract.coordination.partitions import Partitions

RESTART = 'rolling restart'
FAULTS = (*Faults.NAMES, *Faults.PARTITIONS, RESTART)


def _measure(
    cluster: Cluster, network: Partitions, agents: list[Agent], name: str
) -> float:
    """Return the longest pause of heartbeats during one fault."""
    cluster.await_whole()
    faults, watch = Faults(cluster, network), Watch(agents)
    watch.run(3.5)
    faults.begin(name)
    watch.run(2 * LEASE_S)
    faults.end()
    cluster.await_whole()
    return watch.longest_pause_s


def _restart(cluster: Cluster, agents: list[Agent]) -> float:
    """Return the longest pause while the servers are restarted in turn."""
    cluster.await_whole()
    watch = Watch(agents)
    for server in (*followers(cluster), cluster.leader()):
        server.stop()
        watch.run(1.0)
        server.start()
        cluster.await_whole()
        watch.run(3.5)
    return watch.longest_pause_s


def _run(
    kind: str, names: Sequence[str], rounds_count: int, folder: pathlib.Path
) -> None:
    network = Partitions()
    cluster = KINDS[kind][1](folder, network)
    cluster.start()
    try:
        for name in names:
            pauses_s = [
                _measure_one(cluster, network, name)
                for _ in range(rounds_count)
            ]
            shown = ' '.join(f'{pause_s:.1f}' for pause_s in pauses_s)
            print(f'{kind:10} {name:17} {shown}', flush=True)
    finally:
        cluster.stop()


def _measure_one(cluster: Cluster, network: Partitions, name: str) -> float:
    """Return the longest pause of new agents.

    Each agent is connected to another server then.
    """
    cluster.await_whole()
    with agents_of(cluster) as agents:
        if name == RESTART:
            return _restart(cluster, agents)
        return _measure(cluster, network, agents, name)


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument('kinds', nargs='*', metavar='KIND', default=[*KINDS])
    parser.add_argument('--rounds', type=int, default=3)
    parser.add_argument(
        '--fault',
        choices=FAULTS,
        action='append',
        dest='faults',
        help='one fault to measure; may be given several times',
    )
    options = parser.parse_args()
    for kind in options.kinds:
        with tempfile.TemporaryDirectory() as folder:
            _run(
                kind,
                options.faults or FAULTS,
                options.rounds,
                pathlib.Path(folder),
            )
    return 0


if __name__ == '__main__':
    result = main()
    sys.stdout.flush()
    # The threads of the agents wait for servers that have ended.
    os._exit(result)

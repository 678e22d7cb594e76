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

from tests.contract.coordination.clusters import (
    KINDS,
    LEASE_S,
    Agent,
    Cluster,
    Faults,
    Watch,
    followers,
    wait_for,
)


def _measure(cluster: Cluster, agents: list[Agent], name: str) -> float:
    """Return the longest pause of heartbeats during one fault."""
    cluster.await_whole()
    faults, watch = Faults(cluster), Watch(agents)
    watch.run(3.5)
    faults.begin(name)
    watch.run(2 * LEASE_S)
    faults.end()
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


def _run(kind: str, rounds_count: int, folder: pathlib.Path) -> None:
    cluster = KINDS[kind][1](folder)
    cluster.start()
    try:
        agents = [Agent(cluster, number) for number in range(3)]
        wait_for(lambda: all(agent.is_held() for agent in agents))
        for name in (*Faults.NAMES, 'rolling restart'):
            pauses_s = [
                _restart(cluster, agents)
                if name == 'rolling restart'
                else _measure(cluster, agents, name)
                for _ in range(rounds_count)
            ]
            shown = ' '.join(f'{pause_s:.1f}' for pause_s in pauses_s)
            print(f'{kind:10} {name:16} {shown}', flush=True)
    finally:
        cluster.stop()


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument('kinds', nargs='*', metavar='KIND', default=[*KINDS])
    parser.add_argument('--rounds', type=int, default=3)
    options = parser.parse_args()
    for kind in options.kinds:
        with tempfile.TemporaryDirectory() as folder:
            _run(kind, options.rounds, pathlib.Path(folder))
    return 0


if __name__ == '__main__':
    result = main()
    sys.stdout.flush()
    # The threads of the agents wait for servers that have ended.
    os._exit(result)

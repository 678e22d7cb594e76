# SPDX-License-Identifier: Apache-2.0
"""Runs the chosen scenarios in turn, and writes one report."""

import os
from collections.abc import Callable, Mapping, Sequence

from keystoneauth1.exceptions import ClientException
from openstack.exceptions import SDKException

from onemachine.chaos import (
    cuts,
    growth,
    moves,
    outages,
    paths,
    planted,
    rights,
    scaling,
    scenarios,
    seen,
    storm,
    volumes,
)
from onemachine.chaos.stage import Plan, Stage
from onemachine.control import Cloud
from onemachine.progress import CloudError, print_line

SCENARIOS: Mapping[str, Callable[[Stage], None]] = {
    'kills': scenarios.kills,
    'deploys': scenarios.deploys,
    'freeze': scenarios.freeze,
    'coordination': outages.coordination,
    'rabbit': outages.rabbit,
    'mariadb': outages.mariadb,
    'ironic': outages.ironic,
    'rolling': scenarios.rolling,
    'idle': growth.idle,
    'join': growth.join,
    'scaling': scaling.scaling,
    'moves': moves.moves,
    'bursts': storm.bursts,
    'storm': storm.storm,
    'cuts': cuts.cuts,
    'paths': paths.paths,
    'seen': seen.seen,
    'planted': planted.planted,
    'rights': rights.rights,
    'volumes': volumes.volumes,
}
# These take hours, or leave a broken pool, so they run only if they are named.
_ONLY_NAMED = frozenset(
    {'moves', 'paths', 'seen', 'planted', 'rights', 'volumes'}
)
USUAL = tuple(name for name in SCENARIOS if name not in _ONLY_NAMED)


def perform(cloud: Cloud, plan: Plan, names: Sequence[str]) -> bool:
    """Run scenarios and write the report; return whether all demands hold.

    A scenario that fails with an error is a finding; the next one follows.
    """
    stage = Stage(cloud, plan)
    print_line(
        f'Seed {plan.seed}: --seed {plan.seed} chooses the same victims'
    )
    stage.prepare()
    for name in names:
        try:
            SCENARIOS[name](stage)
        except (CloudError, SDKException, ClientException) as exc:
            stage.report.demand(False, 'broken off', exc)
    print('\n' + stage.report.table())
    daemons = 'stock nova-compute' if plan.stock else 'ironic-compute'
    path = stage.folder / f'report-{plan.seed}-{os.getpid()}.md'
    heading = (
        f'Chaos: {daemons}, {plan.nodes_count} nodes, '
        f'{plan.coordination}, {plan.queues} queues, seed {plan.seed}'
    )
    stage.report.write(path, heading)
    print_line(f'The report is in {path}')
    return stage.report.all_hold

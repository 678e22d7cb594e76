# SPDX-License-Identifier: Apache-2.0
"""Scenarios in which a service that the hosts need is unavailable."""

import math
import time
from collections.abc import Callable

from onemachine.chaos.proxy import Trouble
from onemachine.chaos.scenarios import HOSTS
from onemachine.chaos.stage import TERM_S, Stage
from onemachine.progress import step

OUTAGE_S = 120.0


def coordination(stage: Stage) -> None:
    """The coordination backend is down for two minutes."""

    def outage() -> None:
        name = f'coordination-{stage.cloud.coordination.kind}'
        stage.cloud.processes.stop(name)
        with step(f'{name} is down for {OUTAGE_S:.0f} s'):
            time.sleep(OUTAGE_S)
        stage.cloud.coordination.start()

    # If a lock cannot be proven after the outage, its worker ends, and with it
    # the builds that Ironic has not received.
    _during(stage, 'coordination', outage, cut_until_s=math.inf)


def rabbit(stage: Stage) -> None:
    """RabbitMQ is restarted."""
    _during(stage, 'rabbit', lambda: _restart(stage, 'rabbitmq'))


def mariadb(stage: Stage) -> None:
    """MariaDB is restarted."""
    _during(stage, 'mariadb', lambda: _restart(stage, 'mariadb'))


def _restart(stage: Stage, name: str) -> None:
    with step(f'Restarting {name}'):
        stage.cloud.processes.stop(name, 60)
        stage.cloud.backends.start()


def ironic(stage: Stage) -> None:
    """Ironic answers 500, nothing, empty lists, short lists: two minutes."""

    def outage() -> None:
        kinds = [t for t in Trouble if t is not Trouble.NONE]
        for trouble in kinds:
            with step(f'Ironic: {trouble.value}'):
                stage.set_trouble(trouble)
                time.sleep(OUTAGE_S / len(kinds))
        stage.set_trouble(Trouble.NONE)

    try:
        _during(stage, 'ironic', outage)
    finally:
        stage.set_trouble(Trouble.NONE)


def _during(
    stage: Stage,
    name: str,
    outage: Callable[[], None],
    *,
    cut_until_s: float = -math.inf,
) -> None:
    """Send user requests before, during and after an outage."""
    with stage.act(name, HOSTS) as pings, stage.under_load() as load:
        before = stage.evidence.snapshot()
        outage()
        over_s = time.time()
        for host in HOSTS:
            took_s = pings.await_answer(host, over_s, 120)
            stage.report.figure(
                f'{host} served after the end', f'{took_s:.1f} s'
            )
        time.sleep(2 * TERM_S)
        after = stage.evidence.snapshot()
        stage.report.none('nodes lost', before.lost_nodes(after))
        stage.report.none(
            'nodes or servers that changed their host', before.moved(after)
        )
    stage.report_requests(load, cut_until_s=cut_until_s)

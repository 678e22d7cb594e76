# SPDX-License-Identifier: Apache-2.0
"""The path worker: what the answers to its probes say about a path."""

import pytest

from hashring.paths import Path
from ironic_compute.gate import LeaseGate
from ironic_compute.paths import probes
from ironic_compute.paths.path_health import IRONIC, PLACEMENT, PathHealth
from ironic_compute.paths.probes import Probe
from ironic_compute.worker import path_worker
from tests.fakes.clock import ManualClock
from tests.unit.ironic_compute.paths.test_new_connections import (
    configured,
    serving,
)


@pytest.mark.parametrize('path', [IRONIC, PLACEMENT])
@pytest.mark.parametrize(
    ('status', 'fails'),
    [(403, False), (500, False), (401, True), (503, True)],
)
def test_error_is_an_answer_as_in_other_workers(
    path: Path, status: int, fails: bool
) -> None:
    """A daemon that is half alive would else not come back."""
    clock = ManualClock()
    health = PathHealth(clock)
    with (
        serving() as service,
        configured('ironic', service.url),
        configured('placement', service.url),
    ):
        ironic, placement = path_worker.make_clients(
            LeaseGate(clock), clock, health
        )
        service.status = status
        client = ironic if path is IRONIC else placement
        probe = Probe(
            path,
            10.0,
            lambda: client.check_access(probes.TIMEOUT_S),
            health,
            clock,
        )
        probe.try_probe()
    assert health.is_failing(path) is fails
    assert service.paths

# SPDX-License-Identifier: Apache-2.0
"""Nobody's node is taken on a hunch."""

import types
from typing import Any

from hashring.clock import ManualClock
from hashring.ring import Host
from hashring.workers import WorkerView
from ironic_compute.foreign import ForeignHosts
from ironic_compute.gate import LeaseGate
from ironic_compute.handover import Handover, Pace
from ironic_compute.holdings import HostStatus, Moment
from ironic_compute.services import ServiceDirectory
from ironic_compute.view import Pool
from resource_tracker.node import NodeFacts, NodeId

C1, C2, N1 = Host('c1'), Host('c2'), NodeId('n1')


class _Rows:
    """One row, of c2; who gives it away is remembered."""

    def __init__(self) -> None:
        self.given: list[Host] = []
        self.row = types.SimpleNamespace(hypervisor_hostname=N1, host=C2)

    def of_nodes(self, nodes: Any) -> dict[NodeId, Any]:
        return {N1: self.row}

    def give(self, row: Any, host: Host, service_id: int) -> bool:
        self.given.append(host)
        return True


def _handover(rows: _Rows, services: Any) -> Handover:
    clock = ManualClock(start_s=0.0)
    pool = Pool(clock)
    pool.update(WorkerView(100.0, ring=(C1,), ring_agreed=True, known=(C1,)))
    holdings: Any = types.SimpleNamespace(
        host=C1,
        status=HostStatus(service_id=1),
        rows=dict,
        unconfirmed=frozenset,
        confirm=lambda node: None,
        moment=lambda: Moment(0),
        hold=lambda row, facts, read_at: None,
    )
    return Handover(
        holdings,
        rows,  # type: ignore[arg-type]
        services,
        ForeignHosts(services, pool, lambda host: True),
        pool,
        LeaseGate(clock, 100.0),
        clock,
        Pace(settle_s=1.0, confirm_s=1.0, push_budget=1, parallelism=1),
        lambda host, nodes: None,
    )


def test_no_node_is_taken_before_the_services_were_read() -> None:
    """A directory that was never read knows no host at all."""
    rows, services = _Rows(), ServiceDirectory()
    handover = _handover(rows, services)
    handover.meet(NodeFacts(N1))
    handover.round()
    assert not rows.given
    services.is_read = True  # And c2 was not in it.
    handover.round()
    assert rows.given == [C1]

# SPDX-License-Identifier: Apache-2.0
"""A worker's components start and stop without an answer from Ironic."""

import math
import threading
import types
from typing import Any

import nova.conf
import pytest
from nova import objects

from hashring.clock import SystemClock
from hashring.ring import Host
from hashring.workers import WorkerView
from ironic_compute import errors
from ironic_compute.agent import exit_codes, pipe
from ironic_compute.config import register_opts
from ironic_compute.gate import LeaseGate
from ironic_compute.ironic_api.node_pool import NodePool
from ironic_compute.nodes import records
from ironic_compute.paths.path_health import PathHealth
from ironic_compute.pool.view import PoolView
from ironic_compute.worker.components import Components, Tenure, WorkerHooks
from resource_tracker.node import NodeId
from tests.fakes.ironic import FakeIronic

RECORD = types.SimpleNamespace(id=1)


class _Ironic:
    """An Ironic that cannot filter the nodes of the pool."""

    pool = NodePool()

    def __init__(self) -> None:
        self._fake = FakeIronic()
        self.checked_by: list[threading.Thread] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(self._fake, name)

    def set_meter(self, meter: Any) -> None:
        """See IronicClient."""

    def check_pool(self) -> None:
        """See IronicClient."""
        self.checked_by.append(threading.current_thread())
        raise errors.ConfigError('no shards')


class _Process:
    """The process around the components: its hooks and what they did."""

    def __init__(self, ironic: _Ironic, *, is_home: bool = True) -> None:
        register_opts(nova.conf.CONF)
        clock = SystemClock()
        self.pool = pool = PoolView(clock)
        self.sent: list[pipe.Message] = []
        self.exits: list[int] = []
        self.has_exited = threading.Event()
        tenure = Tenure(
            Host('c1'),
            is_home,
            LeaseGate(clock, math.inf),
            pool,
            clock,
        )
        hooks = WorkerHooks(self.sent.append, self._note_start, self._exit)
        client: Any = ironic
        placement: Any = object()
        self.events: list[str] = []
        health = PathHealth(clock)
        self.components = Components(tenure, hooks, health, client, placement)
        server: Any = types.SimpleNamespace(
            begin=lambda: self.events.append('receives'),
            stop=lambda: self.events.append('stopped'),
            listener=object(),
        )
        self.components.rpc_gating.servers.append(server)

    def _note_start(self) -> None:
        self.events.append('prepared')

    def _exit(self, status: int) -> None:
        self.exits.append(status)
        self.has_exited.set()


def test_the_check_at_start_sends_no_request_to_ironic() -> None:
    """An Ironic that does not answer does not delay the first report."""
    ironic = _Ironic()
    _Process(ironic).components.check_service_record(RECORD)
    assert ironic.checked_by == []


def test_a_pool_that_ironic_cannot_filter_ends_the_worker() -> None:
    """Another thread finds it out; the agent gets the reason and exit 78."""
    ironic = _Ironic()
    process = _Process(ironic)
    process.components.services.refresh = lambda: None  # type: ignore[method-assign]
    process.components.start()
    assert process.has_exited.wait(60.0)
    process.components.stop()
    assert pipe.CannotStart('no shards') in process.sent
    assert process.exits == [exit_codes.EX_CONFIG]
    assert threading.main_thread() not in ironic.checked_by


@pytest.mark.parametrize('is_home', [True, False])
def test_only_an_adopted_host_has_its_own_agent_elsewhere(
    *, is_home: bool
) -> None:
    """If that agent is in the group at all."""
    process = _Process(_Ironic(), is_home=is_home)
    assert not process.components.is_own_agent_away()
    for homes, is_away in ((('c1', 'c2'), not is_home), (('c2',), False)):
        process.pool.update(
            WorkerView(
                deadline_s=math.inf,
                ring=(),
                agreed_since_s=None,
                known=(),
                member_homes=tuple(map(Host, homes)),
            )
        )
        assert process.components.is_own_agent_away() == is_away


def test_leaving_stops_rpc_and_ends_the_process() -> None:
    """The agent sees an ordinary end of the worker."""
    process = _Process(_Ironic())
    process.components.leave()
    assert (process.events, process.exits) == (['stopped'], [0])


def test_a_row_is_new_although_the_clocks_are_minutes_apart() -> None:
    """Another machine, whose clock is behind, has just created the row."""
    objects.register_all()
    unconfirmed_rows = _Process(
        _Ironic()
    ).components.held_nodes.unconfirmed_rows
    created_s = SystemClock().wall_s() - 240.0
    row = objects.ComputeNode(
        hypervisor_hostname='n1', stats={records.NEW: f'{created_s:.0f}'}
    )
    unconfirmed_rows.add_if_new(row)
    assert NodeId('n1') in unconfirmed_rows

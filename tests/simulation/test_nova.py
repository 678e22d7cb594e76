# SPDX-License-Identifier: Apache-2.0
"""The simulated Nova: a Service is made once; what is lost with it."""

import types

import pytest
from nova import exception as nova_exception

from hashring.ring import Host
from ironic_compute.ownership.drain_order import DrainOrder
from resource_tracker.node import NodeId
from tests.simulation.broker import Message
from tests.simulation.faults import Faults
from tests.simulation.kernel import Kernel, Process
from tests.simulation.nova import Nova, ServerRecord, ServiceRecord
from tests.simulation.paths import MachinePaths

C1, C2 = Host('c1'), Host('c2')


class _World:
    """What the simulated Nova needs of a world: server s1 is built by c1."""

    def __init__(self) -> None:
        self.kernel = Kernel(0)
        self.rng = self.kernel.rng
        self.faults = Faults(self.kernel)
        self.faults.disarm()
        self.placement = types.SimpleNamespace(
            allocations={'s1': NodeId('n1')}, drop_unused=lambda node: None
        )
        self.excused: set[str] = set()
        self.tasks = types.SimpleNamespace(excuse=self.excuse)
        self.nova = Nova(self)
        self.nova.servers['s1'] = ServerRecord('s1', 0.0)
        self.nova.services[C1] = ServiceRecord(1, C1)

    def log(self, what: str) -> None:
        """Do nothing."""

    def excuse(self, server: str, why: str) -> None:
        self.excused.add(server)

    def deliver(self, host: Host, message: Message) -> None:
        """Send a message; a worker takes those that are for c1."""
        worker = Process('worker')
        worker.machine = Process('machine')  # type: ignore[attr-defined]
        worker.machine.paths = MachinePaths(self.kernel)  # type: ignore[attr-defined]
        self.connection = self.nova.broker.connect(C1, worker, lambda: None)
        self.nova.broker.cast(host, message)
        self.kernel.step()


@pytest.mark.parametrize('name', ['build', 'unshelve'])
def test_build_that_a_worker_has_is_lost_with_the_service(name: str) -> None:
    """Its node is of another host by now: only the queue tells of it."""
    world = _World()
    world.deliver(C1, Message(name, 's1', 'n1'))
    world.nova.delete_service(C1)
    assert world.excused == {'s1'}


@pytest.mark.parametrize('host', [C1, C2])
def test_other_builds_are_not_lost_with_the_service(host: Host) -> None:
    """One is done, or the queue of another host has it."""
    world = _World()
    world.deliver(host, Message('build', 's1', 'n1'))
    if host == C1:
        received = world.connection.receive()
        assert received is not None
        world.connection.acknowledge(received.tag)
    world.nova.delete_service(C1)
    assert world.excused == set()


def test_late_creation_of_a_service_leaves_the_order_in_it() -> None:
    """Nova refuses a second Service of a host, as its database does."""
    world = _World()
    order = DrainOrder(retires=True).reason()
    present = ServiceRecord(1, C1, disabled=True, disabled_reason=order)
    world.nova.services[C1] = present
    with pytest.raises(nova_exception.ServiceBinaryExists):
        world.nova.insert_service(ServiceRecord(2, C1))
    assert world.nova.services[C1] is present


def test_service_that_was_deleted_can_be_made_again() -> None:
    """Its daemon is started as that of a new host."""
    world = _World()
    world.nova.delete_service(C1)
    again = ServiceRecord(2, C1)
    world.nova.insert_service(again)
    assert world.nova.services == {C1: again}

# SPDX-License-Identifier: Apache-2.0
"""One face for our fake Ironic and a real one, with an operator's powers."""

import uuid
from typing import Any, Protocol

import nova.conf
from ironicclient import client as ironicclient

from hashring.clock import SystemClock
from ironic_compute.gate import LeaseGate
from ironic_compute.ironic_api.client import IronicClient
from tests.contract.ironic.server import RealIronic
from tests.fakes.ironic import FakeIronic

# What Ironic is on its way to in a state; others have no target.
_STABLE = ('active', 'available', 'enroll', 'error', 'manageable', 'rescue')
_REACH_S = 20.0
# As Ironic writes it: SQLite sorts texts.
_MOVED_AT = '2026-01-01 00:00:00.000000'


class World(Protocol):
    """An Ironic, and what the world does to it."""

    ironic: Any

    def enroll(self) -> str:
        """Add a node that is available and runs; return its uuid."""

    def put(self, node: str, state: str) -> None:
        """Have a node in a provision state, whatever led there."""

    def give_trait(self, node: str, trait: str) -> None:
        """Give a node a trait."""

    def lock(self, node: str) -> None:
        """Let some conductor work on a node."""

    def reach(self, node: str, **wanted: object) -> None:
        """Wait until fields of a node are as wanted."""


class FakeWorld:
    """Our own fake."""

    def __init__(self) -> None:
        self.ironic = FakeIronic()

    def enroll(self) -> str:
        """See World."""
        node = str(uuid.uuid4())
        self.ironic.add(uuid=node, properties={'cpu_arch': 'x86_64'})
        return node

    def put(self, node: str, state: str) -> None:
        """See World."""
        self.ironic.change(node, provision_state=state)

    def give_trait(self, node: str, trait: str) -> None:
        """See World."""
        self.ironic.change(node, traits=frozenset({trait}))

    def lock(self, node: str) -> None:
        """See World."""
        self.ironic.change(node, reservation='other')

    def reach(self, node: str, **wanted: object) -> None:
        """See World."""
        self.ironic.settle(node)
        if self.ironic.nodes[node].provision_state == 'cleaning':
            self.ironic.change(node, provision_state='available')
        facts = self.ironic.read_node(node)
        assert {name: getattr(facts, name) for name in wanted} == wanted


class RealWorld:
    """A real Ironic."""

    def __init__(self, real: RealIronic) -> None:
        self._real = real
        self.ironic = IronicClient(
            nova.conf.CONF, LeaseGate(SystemClock(), float('inf'))
        )
        self._operator = ironicclient.get_client(
            '1',
            endpoint=real.url,
            auth_type='none',
            os_ironic_api_version='1.95',
        )

    def enroll(self) -> str:
        """See World."""
        made = self._operator.node.create(
            driver='fake-hardware',
            resource_class='gold',
            properties={'cpu_arch': 'x86_64'},
        )
        self.put(made.uuid, 'available')
        return str(made.uuid)

    def put(self, node: str, state: str) -> None:
        """See World."""
        self._real.write(
            node,
            provision_state=state,
            target_provision_state=None if state in _STABLE else 'active',
            power_state='power on',
            reservation=None,
        )

    def move(self, node: str, **pool: str) -> None:
        """Have a node in another conductor group or shard."""
        self._real.write(node, updated_at=_MOVED_AT, **pool)

    def give_trait(self, node: str, trait: str) -> None:
        """See World."""
        self._real.give_trait(node, trait)

    def lock(self, node: str) -> None:
        """See World."""
        self._real.write(node, reservation='other')

    def reach(self, node: str, **wanted: object) -> None:
        """See World."""
        clock = SystemClock()
        ends_s = clock.now_s() + _REACH_S
        while True:
            facts = self.ironic.read_node(node)
            found = {name: getattr(facts, name) for name in wanted}
            if found == wanted and facts.reservation is None:
                return
            assert clock.now_s() < ends_s, facts
            clock.sleep(0.05)

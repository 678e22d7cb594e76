# SPDX-License-Identifier: Apache-2.0
"""Rescue: a ramdisk with a password instead of the server's own system."""

from typing import Any

from ironic_compute import errors
from ironic_compute.driver.node_waiter import NodeWaiter
from ironic_compute.ironic_api.states import ProvisionState
from resource_tracker.node import NodeFacts

# Ironic boots a ramdisk and waits for it; it says itself when that fails.
_RESCUE_S = 3600.0

_FAILED = frozenset(
    {
        ProvisionState.RESCUEFAIL,
        ProvisionState.UNRESCUEFAIL,
        ProvisionState.ERROR,
    }
)


class Rescue:
    """Take servers into and out of rescue."""

    def __init__(self, waiter: NodeWaiter) -> None:
        self._waiter = waiter

    def why_not(self, instance: Any) -> str | None:
        """Return why a server cannot be rescued; None: it can."""
        try:
            node = self._waiter.node_of(instance).uuid
            raw = self._waiter.asked(
                lambda: self._waiter.client.raw(
                    node, ['uuid', 'rescue_interface']
                )
            )
        except errors.IronicComputeError as exc:
            return str(exc)
        if raw.get('rescue_interface') in (None, 'no-rescue'):
            return (
                f'Node {node} has no rescue interface in Ironic; rebuild the '
                f'server, or ask the operator to set one'
            )
        return None

    def rescue(self, instance: Any, password: str) -> None:
        """Boot the rescue ramdisk.

        :raises errors.IronicRefused: Ironic could not, and says why
        """
        self._go(instance, 'rescue', ProvisionState.RESCUE, password)

    def unrescue(self, instance: Any) -> None:
        """Boot the server's own system.

        :raises errors.IronicRefused: Ironic could not, and says why
        """
        self._go(instance, 'unrescue', ProvisionState.ACTIVE, None)

    def _go(
        self,
        instance: Any,
        verb: str,
        wanted: ProvisionState,
        password: str | None,
    ) -> None:
        facts = self._waiter.node_of(instance)
        if ProvisionState.parse(facts.provision_state) is wanted:
            return
        self._waiter.patiently(
            lambda: self._waiter.client.set_provision_state(
                facts.uuid, verb, rescue_password=password
            )
        )
        self._waiter.glance(facts.uuid)
        facts = self._waiter.until(
            facts.uuid, lambda facts: _ended(facts, wanted), _RESCUE_S
        )
        if ProvisionState.parse(facts.provision_state) is not wanted:
            raise errors.IronicRefused(
                f'Ironic could not {verb} node {facts.uuid}: '
                f'{facts.last_error}'
            )


def _ended(facts: NodeFacts, wanted: ProvisionState) -> NodeFacts | None:
    state = ProvisionState.parse(facts.provision_state)
    return facts if state is wanted or state in _FAILED else None

# SPDX-License-Identifier: Apache-2.0
"""Rescue and unrescue of servers: boot a rescue ramdisk, and leave it."""

from typing import Any

from ironic_compute import errors
from ironic_compute.driver.node_waiter import NodeWaiter
from ironic_compute.ironic_api.states import ProvisionState
from resource_tracker.node import NodeFacts, NodeId

# Longer than Ironic itself waits for the ramdisk before it reports a failure.
_TIMEOUT_S = 3600.0

# In these states Ironic carries the request out already.
_UNDER_WAY = {
    ProvisionState.RESCUE: frozenset(
        {ProvisionState.RESCUING, ProvisionState.RESCUEWAIT}
    ),
    ProvisionState.ACTIVE: frozenset({ProvisionState.UNRESCUING}),
}

_FAILED = frozenset(
    {
        ProvisionState.RESCUEFAIL,
        ProvisionState.UNRESCUEFAIL,
        ProvisionState.ERROR,
    }
)


class Rescue:
    """Rescues and unrescues servers; any thread may call."""

    def __init__(self, waiter: NodeWaiter) -> None:
        self._waiter = waiter

    def find_obstacle(self, instance: Any) -> str | None:
        """Return why a server cannot be rescued; None if it can."""
        try:
            node = self._waiter.read_node_of(instance).uuid
            fields = self._waiter.retry(
                lambda: self._waiter.client.read_fields(
                    node, ['uuid', 'rescue_interface']
                )
            )
        except errors.IronicComputeError as exc:
            return str(exc)
        if fields.get('rescue_interface') in (None, 'no-rescue'):
            return (
                f'Node {node} has no rescue interface in Ironic; rebuild the '
                f'server, or ask the operator to set one'
            )
        return None

    def is_begun(self, instance: Any) -> bool:
        """Return whether Ironic rescues, or has rescued, a server's node."""
        facts = self._waiter.read_node_of(instance)
        return _is_begun(facts, ProvisionState.RESCUE)

    def rescue(self, instance: Any, password: str) -> None:
        """Boot the rescue ramdisk; block until it runs.

        :param password: for the user ``rescue`` of the ramdisk
        :raises errors.IronicRefused: Ironic could not, with the reason
        """
        self._change_mode(instance, 'rescue', ProvisionState.RESCUE, password)

    def unrescue(self, instance: Any) -> None:
        """Boot the server's own system; block until it runs.

        :raises errors.IronicRefused: Ironic could not, with the reason
        """
        self._change_mode(instance, 'unrescue', ProvisionState.ACTIVE, None)

    def _change_mode(
        self,
        instance: Any,
        verb: str,
        wanted: ProvisionState,
        password: str | None,
    ) -> None:
        facts = self._waiter.read_node_of(instance)
        if ProvisionState.parse(facts.provision_state) is wanted:
            return
        self._waiter.retry(
            lambda: self._request_once(facts.uuid, verb, wanted, password)
        )
        self._waiter.try_read_node(facts.uuid)
        facts = self._waiter.wait_until(
            facts.uuid,
            lambda facts: _facts_when_ended(facts, wanted),
            _TIMEOUT_S,
        )
        if ProvisionState.parse(facts.provision_state) is not wanted:
            raise errors.IronicRefused(
                f'Ironic could not {verb} node {facts.uuid}: '
                f'{facts.last_error}'
            )

    def _request_once(
        self,
        node: NodeId,
        verb: str,
        wanted: ProvisionState,
        password: str | None,
    ) -> None:
        """Request a change of mode, unless Ironic has begun it already.

        An earlier worker may have sent the request, and so may an earlier try
        whose answer was lost.
        """
        if _is_begun(self._waiter.read_node_once(node), wanted):
            return
        try:
            self._waiter.client.set_provision_state(
                node, verb, rescue_password=password
            )
        except errors.IronicComputeError:
            if not _is_begun(self._waiter.read_node_once(node), wanted):
                raise


def _is_begun(facts: NodeFacts, wanted: ProvisionState) -> bool:
    """Return whether a change of mode is under way or has ended well."""
    state = ProvisionState.parse(facts.provision_state)
    return state is wanted or state in _UNDER_WAY[wanted]


def _facts_when_ended(
    facts: NodeFacts, wanted: ProvisionState
) -> NodeFacts | None:
    """Return the facts when the node is as wanted or has failed, else None."""
    state = ProvisionState.parse(facts.provision_state)
    return facts if state is wanted or state in _FAILED else None

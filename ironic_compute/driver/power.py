# SPDX-License-Identifier: Apache-2.0
"""Power: on, off, reboot.

What to do is decided from Ironic's state of now, and nothing is sent for a
state that is reached. An action has ended when Ironic has no power target
and holds no lock any more; then the state decides whether it succeeded.
"""

from typing import Any

from nova.compute import power_state, task_states, vm_states
from nova.objects import external_event
from oslo_log import log as logging

from ironic_compute import errors
from ironic_compute.driver import nova_errors
from ironic_compute.driver.node_waiter import NodeWaiter
from ironic_compute.ironic_api.states import PowerState, ProvisionState
from resource_tracker.node import NodeFacts, NodeId

LOG = logging.getLogger(__name__)

# More than Ironic's own time-outs for power actions (1 and 10 minutes).
_POWER_S = 1200.0
_REFRESH_S = 3.0

_SOFT_FAILED = (
    errors.IronicRefused,
    errors.WaitTimeout,
    nova_errors.PowerFailed,
)


class Power:
    """Power actions on servers."""

    def __init__(self, waiter: NodeWaiter) -> None:
        self._waiter = waiter
        self._client = waiter.client

    def reboot(self, instance: Any, reboot_type: str) -> None:
        """Reboot; a soft one that does not work becomes a hard one.

        :raises faults.PowerFailed: the machine does not run afterwards
        """
        node = self._waiter.node_of(instance).uuid
        if reboot_type == 'SOFT' and self._try_soft(
            node, 'reboot', PowerState.ON, None
        ):
            return
        self._act(node, 'reboot', PowerState.ON)

    def power_on(self, instance: Any) -> None:
        """Switch a machine on.

        :raises faults.PowerFailed: it is not on afterwards
        """
        facts = self._waiter.node_of(instance)
        if not _has_reached(facts, PowerState.ON):
            self._act(facts.uuid, 'on', PowerState.ON)

    def power_off(self, instance: Any, timeout_s: int = 0) -> None:
        """Switch a machine off.

        :param timeout_s: how long its system may take to shut down before
            the power is cut; 0 cuts it at once
        :raises faults.PowerFailed: it is not off afterwards
        """
        facts = self._waiter.node_of(instance)
        if _has_reached(facts, PowerState.OFF):
            return
        if timeout_s and self._try_soft(
            facts.uuid, 'off', PowerState.OFF, int(timeout_s)
        ):
            return
        self._act(facts.uuid, 'off', PowerState.OFF)

    def off(self, node: NodeId) -> None:
        """Switch a node off that has nothing running.

        :raises faults.PowerFailed: it is not off afterwards
        """
        if not _has_reached(self._waiter.read(node), PowerState.OFF):
            self._act(node, 'off', PowerState.OFF)

    def _try_soft(
        self, node: NodeId, target: str, wanted: PowerState, timeout_s: Any
    ) -> bool:
        """Ask the machine's own system; say whether that worked."""
        try:
            self._act(node, target, wanted, soft=True, timeout_s=timeout_s)
        except _SOFT_FAILED as exc:
            LOG.info(
                'Node %(node)s did not go to %(target)s by itself; using its '
                'power control: %(error)s',
                {'node': node, 'target': target, 'error': exc},
            )
            return False
        return True

    def _act(
        self,
        node: NodeId,
        target: str,
        wanted: PowerState,
        *,
        soft: bool = False,
        timeout_s: int | None = None,
    ) -> None:
        is_harmless_twice = target != 'reboot' and not soft
        self._waiter.patiently(
            lambda: self._client.set_power_state(
                node, target, soft=soft, timeout_s=timeout_s
            ),
            errors.Retriable if is_harmless_twice else errors.Untouched,
        )
        self._waiter.glance(node)
        facts = self._waiter.until(
            node, _settled, _POWER_S + (timeout_s or 0), _REFRESH_S
        )
        # A reboot that failed may well leave the machine on.
        has_failed = target == 'reboot' and _has_error(facts)
        if PowerState.parse(facts.power_state) is not wanted or has_failed:
            raise nova_errors.PowerFailed(
                f'Node {node} was told to go to power {target}, and is '
                f'{facts.power_state}: {facts.last_error}'
            )


def update(instance: Any, target: str) -> None:
    """Write down a power state that Ironic reports through Nova's API.

    Nova has put the server in a task for it (``power_update`` of its
    compute manager), which ends here.
    """
    is_on = target == external_event.POWER_ON
    instance.power_state = (
        power_state.RUNNING if is_on else power_state.SHUTDOWN
    )
    instance.vm_state = vm_states.ACTIVE if is_on else vm_states.STOPPED
    instance.task_state = None
    instance.save(
        expected_task_state=(
            task_states.POWERING_ON if is_on else task_states.POWERING_OFF
        )
    )


def _settled(facts: NodeFacts) -> NodeFacts | None:
    is_busy = facts.target_power_state is not None or facts.reservation
    return None if is_busy else facts


def _has_error(facts: NodeFacts) -> bool:
    """Say whether the last error is the power action's own.

    Ironic clears it when an action begins, but not in its failure states.
    """
    state = ProvisionState.parse(facts.provision_state)
    return state is ProvisionState.ACTIVE and facts.last_error is not None


def _has_reached(facts: NodeFacts, wanted: PowerState) -> bool:
    return (
        facts.target_power_state is None
        and PowerState.parse(facts.power_state) is wanted
    )

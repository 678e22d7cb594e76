# SPDX-License-Identifier: Apache-2.0
"""Power actions on servers: power on, power off, reboot, NMI.

Power on and power off first read the node from Ironic, and send nothing if its
power state is right already. An action has ended when the node has neither a
power target nor a lock; its power state then shows whether the action
succeeded. All methods run in Nova's threads and block until the action ends.
"""

import dataclasses
from typing import Any

from nova.compute import power_state, task_states, vm_states
from nova.objects import external_event
from oslo_log import log as logging

from ironic_compute import errors
from ironic_compute.driver import nova_errors
from ironic_compute.driver.node_waiter import NodeWaiter, wait_until_shown
from ironic_compute.gate import without_waiting
from ironic_compute.ironic_api import rights
from ironic_compute.ironic_api.states import PowerState, ProvisionState
from resource_tracker.node import NodeFacts, NodeId

LOG = logging.getLogger(__name__)

# Longer than Ironic's own timeouts for power actions (1 and 10 minutes).
_TIMEOUT_S = 1200.0
# Seconds between two reads of a node during a power action. A power action
# takes seconds, so the delta lists of the feed would come too late.
_REFRESH_S = 3.0

# Errors of a soft power action, after which the hard one is used.
_SOFT_FAILURES = (
    errors.IronicRefused,
    errors.WaitTimeout,
    nova_errors.PowerFailed,
)


class Power:
    """Changes the power state of nodes; any thread may call."""

    def __init__(self, waiter: NodeWaiter) -> None:
        self._waiter = waiter
        self._client = waiter.client

    def reboot(self, instance: Any, reboot_type: str) -> None:
        """Reboot a server; if a soft reboot fails, reboot hard.

        :param reboot_type: Nova's ``SOFT`` or ``HARD``
        :raises nova_errors.PowerFailed: the machine is not on afterwards
        """
        facts = self._waiter.read_node_of(instance)
        if reboot_type == 'SOFT':
            if self._try_soft_change(facts, 'reboot'):
                return
            facts = self._waiter.read_node(facts.uuid)
        self._change_power(facts, 'reboot')

    def power_on(self, instance: Any) -> None:
        """Switch the node of a server on.

        :raises nova_errors.PowerFailed: the node is not on afterwards
        """
        facts = self._waiter.read_node_of(instance)
        if not _has_reached(facts, PowerState.ON):
            self._change_power(facts, 'on')

    def power_off(self, instance: Any, timeout_s: int = 0) -> None:
        """Switch the node of a server off.

        :param timeout_s: how long the operating system may take to shut down
            before the power is cut; 0 cuts the power at once
        :raises nova_errors.PowerFailed: the node is not off afterwards
        """
        facts = self._waiter.read_node_of(instance)
        if _has_reached(facts, PowerState.OFF):
            return
        if timeout_s and self._try_soft_change(facts, 'off', int(timeout_s)):
            return
        self._change_power(facts, 'off')

    def power_off_node(self, node: NodeId) -> None:
        """Switch off a node on which no operating system needs a shutdown.

        :raises nova_errors.PowerFailed: the node is not off afterwards
        """
        facts = self._waiter.read_node(node)
        if not _has_reached(facts, PowerState.OFF):
            self._change_power(facts, 'off')

    def inject_nmi(self, instance: Any) -> None:
        """Send a non-maskable interrupt to the node of a server."""
        node = self._waiter.read_node_of(instance).uuid
        self._waiter.retry(
            lambda: self._client.inject_nmi(node), on=errors.Untouched
        )

    def _try_soft_change(
        self, before: NodeFacts, target: str, timeout_s: int | None = None
    ) -> bool:
        """Try a soft power action; return whether it succeeded.

        The operating system of the server carries it out.
        """
        try:
            self._change_power(before, target, soft=True, timeout_s=timeout_s)
        except _SOFT_FAILURES as exc:
            LOG.info(
                'Node %(node)s did not go to %(target)s by itself; using its '
                'power control: %(error)s',
                {'node': before.uuid, 'target': target, 'error': exc},
            )
            return False
        return True

    def _change_power(
        self,
        before: NodeFacts,
        target: str,
        *,
        soft: bool = False,
        timeout_s: int | None = None,
    ) -> None:
        """Request a power action and block until it has ended.

        :param before: the node, read before the action
        :param target: Ironic's power target: ``on``, ``off`` or ``reboot``
        :raises nova_errors.PowerFailed: the action ended in another state
        """
        node = before.uuid
        request = _Request(self._waiter, before, target, soft, timeout_s)
        request.send()
        self._waiter.try_read_node(node)
        facts = wait_until_shown(
            self._waiter,
            node,
            facts_when_idle,
            _TIMEOUT_S + (timeout_s or 0),
            refresh_s=_REFRESH_S,
        )
        # A failed reboot can leave the machine on, so the power state alone
        # does not show success.
        has_failed = target == 'reboot' and _has_power_error(facts)
        is_wanted = PowerState.parse(facts.power_state) is request.wanted
        if not is_wanted or has_failed:
            raise nova_errors.PowerFailed(
                f'Node {node} is {facts.power_state} after the power action '
                f'"{target}": {facts.last_error}'
            )


@dataclasses.dataclass
class _Request:
    """A request for a power action, which is sent until Ironic begins it.

    If it had no answer, the node is read before it is sent again: Ironic may
    have begun the action, and a machine must not be rebooted twice.

    :param before: the node, read before the request
    :param may_be_begun: an earlier try had no answer
    :param is_repeated: there was an earlier try
    """

    waiter: NodeWaiter
    before: NodeFacts
    target: str
    soft: bool
    timeout_s: int | None
    may_be_begun: bool = False
    is_repeated: bool = False

    @property
    def wanted(self) -> PowerState:
        """The power state at the end of the action."""
        return PowerState.OFF if self.target == 'off' else PowerState.ON

    def send(self) -> None:
        """Send the request until Ironic has begun it; blocks.

        :raises errors.IronicComputeError: Ironic has not begun it
        """
        self.waiter.retry(self._send_once)

    def _send_once(self) -> None:
        while True:
            try:
                return self._send_now()
            except errors.GateShut:
                # What was read of the node is old after the wait.
                self.waiter.client.wait_for_lease()

    def _send_now(self) -> None:
        """Send the request once, unless it is begun.

        :raises errors.GateShut: the lease is not in force
        """
        if self.may_be_begun:
            if self._is_begun():
                return
        elif self.is_repeated and self.target == 'reboot':
            # Whoever had the lock of the node has changed it.
            self.before = self.waiter.client.read_node(self.before.uuid)
        self.is_repeated = True
        try:
            with without_waiting():
                self.waiter.client.set_power_state(
                    self.before.uuid,
                    self.target,
                    soft=self.soft,
                    timeout_s=self.timeout_s,
                )
        except errors.IronicUnavailable as exc:
            self.may_be_begun |= not isinstance(exc, errors.Untouched)
            raise

    def _is_begun(self) -> bool:
        """Read whether Ironic carries the action out, or has rebooted.

        It changes the node when it begins. A machine that is switched on or
        off already takes the request once more.
        """
        facts = self.waiter.read_node_once(self.before.uuid)
        if facts.target_power_state == self.wanted.value:
            return True
        has_changed = facts.updated_at != self.before.updated_at
        return self.target == 'reboot' and has_changed


def save_power_state(instance: Any, target: str) -> None:
    """Save the power state from a power-update event of Ironic.

    nova-api receives the event, and Nova's ComputeManager sets a task state
    before it calls the driver; the task state is cleared here.

    :param target: ``POWER_ON`` or ``POWER_OFF``
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


def facts_when_idle(facts: NodeFacts) -> NodeFacts | None:
    """Return the facts if Ironic does not work on the node, else None."""
    lock = facts.reservation
    is_locked = bool(lock) and not rights.is_redacted(lock)
    is_busy = facts.target_power_state is not None or is_locked
    return None if is_busy else facts


def _has_power_error(facts: NodeFacts) -> bool:
    """Return whether the power action has left an error on the node.

    Ironic clears ``last_error`` when a power action begins, except in its
    failure states. Only the error of an active node is therefore new.
    """
    state = ProvisionState.parse(facts.provision_state)
    return state is ProvisionState.ACTIVE and facts.last_error is not None


def _has_reached(facts: NodeFacts, wanted: PowerState) -> bool:
    """Return whether a node is, and stays, in the wanted power state."""
    return (
        facts.target_power_state is None
        and PowerState.parse(facts.power_state) is wanted
    )

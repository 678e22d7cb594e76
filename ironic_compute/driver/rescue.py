# SPDX-License-Identifier: Apache-2.0
"""Rescue and unrescue of servers: boot a rescue ramdisk, and leave it.

Both wait as long as Ironic does not answer. Nova would put the server to ERROR
otherwise, with its machine off, and its user would have to ask again.
"""

import dataclasses
import functools
from collections.abc import Callable
from typing import Any, TypeVar

from nova import exception as nova_exception
from oslo_log import log as logging

from hashring.clock import Clock
from ironic_compute import errors
from ironic_compute.driver.node_waiter import NodeWaiter, wait_until_shown
from ironic_compute.ironic_api.states import ProvisionState
from ironic_compute.retry import retry
from resource_tracker.node import NodeFacts, NodeId

LOG = logging.getLogger(__name__)

_Result = TypeVar('_Result')

# Longer than Ironic itself waits for the ramdisk before it reports a failure.
_TIMEOUT_S = 3600.0

# In these states Ironic carries the request out already.
_UNDER_WAY = {
    ProvisionState.RESCUE: frozenset(
        {ProvisionState.RESCUING, ProvisionState.RESCUEWAIT}
    ),
    ProvisionState.ACTIVE: frozenset({ProvisionState.UNRESCUING}),
}


class Rescue:
    """Rescues and unrescues servers; any thread may call."""

    def __init__(self, waiter: NodeWaiter) -> None:
        self._waiter = waiter

    def find_obstacle(self, instance: Any) -> str | None:
        """Return why a server cannot be rescued; None if it can."""
        try:
            node, interface = self._outlast(
                instance, lambda: self._read_interface(instance)
            )
        except errors.IronicComputeError as exc:
            return str(exc)
        if interface in (None, 'no-rescue'):
            return (
                f'Node {node} has no rescue interface in Ironic; rebuild the '
                f'server, or ask the operator to set one'
            )
        return None

    def _read_interface(self, instance: Any) -> tuple[NodeId, str | None]:
        node = self._waiter.read_node_of(instance).uuid
        fields = self._waiter.retry(
            lambda: self._waiter.client.read_fields(
                node, ['uuid', 'rescue_interface']
            )
        )
        return node, fields.get('rescue_interface')

    def _outlast(self, instance: Any, act: Callable[[], _Result]) -> _Result:
        return until_answered(act, instance, self._waiter.clock)

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
        read = functools.partial(self._waiter.read_node_of, instance)
        facts = self._outlast(instance, read)
        if ProvisionState.parse(facts.provision_state) is wanted:
            return
        # An earlier worker may have had the message, and sent the request.
        if not _is_begun(facts, wanted):
            request = _Request(
                self._waiter, facts.uuid, verb, wanted, password
            )
            self._outlast(instance, request.send)
        self._waiter.try_read_node(facts.uuid)
        wait = functools.partial(
            wait_until_shown,
            self._waiter,
            facts.uuid,
            lambda facts: _facts_when_ended(facts, wanted, instance.uuid),
            _TIMEOUT_S,
        )
        facts = self._outlast(instance, wait)
        if not _has_mode(facts, wanted, instance.uuid):
            # Ironic has no error if an operator has ended it.
            reason = f': {facts.last_error}' if facts.last_error else ''
            raise errors.IronicRefused(
                f'Ironic could not {verb} node {facts.uuid}, which is '
                f'{facts.provision_state}{reason}'
            )


@dataclasses.dataclass
class _Request:
    """A request for a change of mode, which Ironic must begin only once.

    The request is repeated without a read of the node while Ironic certainly
    does nothing for it, for instance while the node is locked. The node is
    read after any other error: Ironic may have begun the request although its
    answer was lost, and may refuse it because it has begun an earlier one.

    :param may_be_begun: an earlier try had such an error
    """

    waiter: NodeWaiter
    node: NodeId
    verb: str
    wanted: ProvisionState
    password: str | None
    may_be_begun: bool = False

    def send(self) -> None:
        """Send the request until Ironic has begun it; block until then.

        :raises errors.IronicUnavailable: Ironic may begin it later
        :raises errors.IronicComputeError: Ironic has not begun it
        """
        try:
            self.waiter.retry(self._send_once)
        except errors.NodeLocked as exc:
            # Ironic may hold the lock for the request of an earlier worker,
            # if it began that one after this worker had read the node.
            if self._is_begun():
                return
            if self.may_be_begun:
                # Or for an earlier try, whose answer was lost.
                raise errors.IronicUnavailable(str(exc)) from exc
            raise

    def _send_once(self) -> None:
        if self.may_be_begun and self._is_begun():
            return
        try:
            self.waiter.client.set_provision_state(
                self.node, self.verb, rescue_password=self.password
            )
        except errors.IronicComputeError as exc:
            if isinstance(exc, errors.Untouched):
                raise
            # It stays set, because Ironic may begin the request after a read,
            # and would begin a second rescue when the first has ended.
            self.may_be_begun = True
            if not self._is_begun():
                raise

    def _is_begun(self) -> bool:
        return _is_begun(self.waiter.read_node_once(self.node), self.wanted)


def until_answered(
    act: Callable[[], _Result], instance: Any, clock: Clock
) -> _Result:
    """Do a part of a rescue, again while Ironic does not answer; blocks.

    The error is raised if the server has another task by then: an operator
    may have reset its state, or its user may have deleted it.
    """
    task = instance.task_state
    return retry(
        act,
        clock,
        lambda exc: errors.is_ironic_away(exc) and _has_task(instance, task),
        lambda exc: LOG.warning(
            'The rescue or unrescue of server %(server)s goes on when '
            'Ironic answers: %(error)s',
            {'server': instance.uuid, 'error': exc},
        ),
    )


def _has_task(instance: Any, task: str | None) -> bool:
    """Read whether a server still has a task; True if Nova is away."""
    try:
        instance.refresh()
    except nova_exception.InstanceNotFound:
        return False
    except Exception as exc:
        LOG.debug('%(error)s', {'error': exc})
    return bool(instance.task_state == task)


def _is_begun(facts: NodeFacts, wanted: ProvisionState) -> bool:
    """Return whether a change of mode is under way or has ended well."""
    state = ProvisionState.parse(facts.provision_state)
    return state is wanted or state in _UNDER_WAY[wanted]


def _facts_when_ended(
    facts: NodeFacts, wanted: ProvisionState, server: str
) -> NodeFacts | None:
    """Return the facts unless Ironic still changes the mode of the server.

    An operator may have undeployed the node meanwhile, or ended its rescue.
    """
    state = ProvisionState.parse(facts.provision_state)
    is_under_way = (
        state in _UNDER_WAY[wanted] or state is ProvisionState.UNKNOWN
    )
    is_ours = facts.instance_uuid == server
    return None if is_ours and is_under_way else facts


def _has_mode(facts: NodeFacts, wanted: ProvisionState, server: str) -> bool:
    is_wanted = ProvisionState.parse(facts.provision_state) is wanted
    return is_wanted and facts.instance_uuid == server

# SPDX-License-Identifier: Apache-2.0
"""Getting a server off its node, from whatever state the node is in.

Safe to repeat, safe to run after a crash at any point, and never touches a
node whose ``instance_uuid`` is another's. Ends when Ironic has let go of
the server; cleaning goes on without us.
"""

import enum
from typing import Any

from oslo_log import log as logging

from ironic_compute import errors
from ironic_compute.driver import instance_info
from ironic_compute.driver.network import Network
from ironic_compute.driver.node_waiter import NodeWaiter
from ironic_compute.driver.volumes import Volumes
from ironic_compute.ironic_api.states import ProvisionState
from resource_tracker.node import NodeFacts, NodeId

LOG = logging.getLogger(__name__)

# Ironic powers the machine off and cleans its networks in this time, or
# says that it failed.
_TEARDOWN_S = 1800.0

# Ironic has removed the server, or is about to wipe what it left.
_LET_GO = frozenset(
    {
        ProvisionState.CLEANING,
        ProvisionState.CLEANWAIT,
        ProvisionState.CLEANFAIL,
        ProvisionState.CLEANHOLD,
    }
)
# Ironic never had a server here: only our reservation is to be removed.
_NEVER_DEPLOYED = frozenset(
    {
        ProvisionState.ENROLL,
        ProvisionState.VERIFYING,
        ProvisionState.MANAGEABLE,
        ProvisionState.AVAILABLE,
        ProvisionState.INSPECTING,
        ProvisionState.INSPECTWAIT,
        ProvisionState.INSPECTFAIL,
        ProvisionState.ADOPTING,
        ProvisionState.ADOPTFAIL,
    }
)
_ON_ITS_WAY = frozenset(
    {
        ProvisionState.DELETING,
        ProvisionState.DELETED,
        ProvisionState.UNDEPLOY,
    }
)
# Ironic accepts no teardown while it works in these; each ends by itself.
_BUSY = frozenset(
    {
        ProvisionState.DEPLOYING,
        ProvisionState.DEPLOYDONE,
        ProvisionState.REBUILD,
        ProvisionState.RESCUING,
        ProvisionState.UNRESCUING,
        ProvisionState.SERVICING,
        ProvisionState.VERIFYING,
        ProvisionState.INSPECTING,
        ProvisionState.ADOPTING,
    }
)
# An operator holds the node: only ``abort`` leads on, to a failed state.
_HELD = frozenset({ProvisionState.DEPLOYHOLD, ProvisionState.SERVICEHOLD})


class _Asked(enum.Enum):
    """What came of asking for the teardown."""

    ACCEPTED = enum.auto()
    BUSY = enum.auto()
    """Ask again: what Ironic does now ends by itself."""
    ABORTED = enum.auto()
    """Ask again: an operator's hold is broken."""


class Teardown:
    """Free nodes."""

    def __init__(
        self, waiter: NodeWaiter, network: Network, volumes: Volumes
    ) -> None:
        self._waiter = waiter
        self._client = waiter.client
        self._network = network
        self._volumes = volumes

    def destroy(self, instance: Any) -> None:
        """Get a server off its node; none in Ironic is success.

        :raises errors.IronicComputeError: the node still has the server
        """
        facts = self._waiter.asked(lambda: self._waiter.find(instance))
        if facts is None:
            LOG.info(
                'Ironic has no node with server %(server)s on it; nothing '
                'to free',
                {'server': instance.uuid},
            )
            return
        self.free(facts.uuid, instance.uuid, facts)

    def free(
        self, node: NodeId, instance_uuid: str, seen: NodeFacts | None = None
    ) -> None:
        """Free one node of one server, from any state.

        :param seen: the node as it was read just now
        """
        try:
            self._free(node, instance_uuid, seen or self._waiter.look(node))
        except (errors.NodeNotFound, errors.NodeGone):
            LOG.info(
                'Node %(node)s is gone from Ironic, and server %(server)s '
                'with it',
                {'node': node, 'server': instance_uuid},
            )

    def clean_up(self, node: NodeId, instance_uuid: str) -> None:
        """Take back all that was prepared for a deploy that never began."""
        if not self._is_ours(self._waiter.look(node), instance_uuid):
            return
        self._network.detach_all(node)
        self._volumes.detach_all(node)
        self.clear(node, instance_uuid)
        self.release(node, instance_uuid)

    def clear(self, node: NodeId, instance_uuid: str) -> None:
        """Remove our description of the server."""

        def clear() -> None:
            if self._is_ours(self._waiter.read(node), instance_uuid):
                self._client.patch(node, [instance_info.CLEAR])

        self._waiter.patiently(clear, errors.Retriable)

    def release(self, node: NodeId, instance_uuid: str) -> None:
        """Remove our reservation."""
        self._waiter.patiently(
            lambda: self._release(node, instance_uuid), errors.Retriable
        )

    def _release(self, node: NodeId, instance_uuid: str) -> None:
        if self._is_ours(self._waiter.read(node), instance_uuid):
            self._client.release(node, instance_uuid)
            self._waiter.glance(node)

    def _free(
        self, node: NodeId, instance_uuid: str, facts: NodeFacts
    ) -> None:
        if not self._is_ours(facts, instance_uuid):
            return
        state = ProvisionState.parse(facts.provision_state)
        if state in _LET_GO:
            self._try_release(node, instance_uuid)
        elif state in _NEVER_DEPLOYED & _BUSY:
            self._waiter.until(node, _is_not_busy, _TEARDOWN_S)
            self._free(node, instance_uuid, self._waiter.look(node))
        elif state in _NEVER_DEPLOYED:
            self.clean_up(node, instance_uuid)
        else:
            self._unprovision(node, instance_uuid)

    def _unprovision(self, node: NodeId, instance_uuid: str) -> None:
        """Have Ironic tear the node down; that includes VIFs and info."""
        targets = self._volumes.targets(node)
        was_held = self._ask_until_accepted(node, instance_uuid)
        seen = self._waiter.glance(node)
        facts = self._waiter.until(
            node,
            lambda facts: _ended(facts, instance_uuid),
            _TEARDOWN_S,
            seen=seen,
        )
        if self._is_ours(facts, instance_uuid) and _is_error(facts):
            raise errors.TeardownFailed(
                f'Ironic could not remove server {instance_uuid} from node '
                f'{node}: {facts.last_error}'
            )
        if was_held:
            self._send_on(node)
        self._volumes.forget(node, targets)
        LOG.info(
            'Removed server %(server)s from node %(node)s',
            {'server': instance_uuid, 'node': node},
        )

    def _ask_until_accepted(self, node: NodeId, instance_uuid: str) -> bool:
        """Ask for the teardown; say whether a hold had to be broken."""
        was_held = False
        while True:
            asked = self._waiter.patiently(
                lambda: self._ask(node, instance_uuid), errors.Retriable
            )
            if asked is _Asked.ACCEPTED:
                return was_held
            was_held = was_held or asked is _Asked.ABORTED
            self._waiter.until(node, _is_not_busy, _TEARDOWN_S)

    def _send_on(self, node: NodeId) -> None:
        """Send a node on to its cleaning that Ironic has left on its way.

        Told to abort a deploy that was on hold, Ironic 39 takes the server
        off by itself, and leaves the node in "deploy failed" for good.
        """

        def send() -> None:
            facts = self._waiter.read(node)
            state = ProvisionState.parse(facts.provision_state)
            if facts.instance_uuid is None and (
                state is ProvisionState.DEPLOYFAIL
            ):
                self._client.set_provision_state(node, 'deleted')

        try:
            self._waiter.patiently(send, errors.Retriable)
        except errors.IronicComputeError as exc:
            LOG.warning(
                'Node %(node)s is free of its server and was left in deploy '
                'failed: tell Ironic to undeploy it; %(error)s',
                {'node': node, 'error': exc},
            )

    def _ask(self, node: NodeId, instance_uuid: str) -> _Asked:
        facts = self._waiter.read(node)
        state = ProvisionState.parse(facts.provision_state)
        if not self._is_ours(facts, instance_uuid):
            return _Asked.ACCEPTED
        if state in _LET_GO or state in _ON_ITS_WAY:
            return _Asked.ACCEPTED
        if state in _HELD:
            self._client.set_provision_state(node, 'abort')
            self._waiter.glance(node)
            return _Asked.ABORTED
        try:
            self._client.set_provision_state(node, 'deleted')
        except (errors.IronicRefused, errors.NodeLocked):
            if state not in _BUSY:
                raise
            return _Asked.BUSY
        return _Asked.ACCEPTED

    def _try_release(self, node: NodeId, instance_uuid: str) -> None:
        """Remove a stale reservation of a node that is being cleaned."""
        try:
            self._release(node, instance_uuid)
        except errors.IronicComputeError as exc:
            LOG.info(
                'Node %(node)s is being cleaned and keeps the name of server '
                '%(server)s until that ends: %(error)s',
                {'node': node, 'server': instance_uuid, 'error': exc},
            )

    @staticmethod
    def _is_ours(facts: NodeFacts, instance_uuid: str) -> bool:
        return facts.instance_uuid == instance_uuid


def _is_error(facts: NodeFacts) -> bool:
    return ProvisionState.parse(facts.provision_state) is ProvisionState.ERROR


def _is_not_busy(facts: NodeFacts) -> bool | None:
    state = ProvisionState.parse(facts.provision_state)
    return None if state in _BUSY else True


def _ended(facts: NodeFacts, instance_uuid: str) -> NodeFacts | None:
    """Return the facts when Ironic has let go of the server, or failed."""
    state = ProvisionState.parse(facts.provision_state)
    if facts.instance_uuid != instance_uuid:
        return facts
    ended = state in _LET_GO or state in _NEVER_DEPLOYED
    return facts if ended or _is_error(facts) else None

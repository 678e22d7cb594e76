# SPDX-License-Identifier: Apache-2.0
"""Teardown (destroy): remove a server from its node, in any provision state.

A teardown may be repeated, also after a crash at any point. It never changes
a node whose ``instance_uuid`` is not the server's. It ends when Ironic has
removed the server from the node; Ironic then cleans the node on its own.
"""

import enum
from typing import Any

from nova.compute import vm_states
from oslo_log import log as logging

from ironic_compute import errors
from ironic_compute.driver import instance_info
from ironic_compute.driver.network import Network
from ironic_compute.driver.node_waiter import NodeWaiter, wait_until_shown
from ironic_compute.driver.power import facts_when_idle
from ironic_compute.driver.volumes import Volumes
from ironic_compute.ironic_api.descriptions import is_described
from ironic_compute.ironic_api.states import Meaning, ProvisionState
from ironic_compute.retry import retry
from resource_tracker.node import NodeFacts, NodeId

LOG = logging.getLogger(__name__)

# Within this time Ironic has powered the machine off and removed its networks,
# or has reported a failure.
_TIMEOUT_S = 1800.0
# Seconds between two reads of a node whose hold is aborted, or whose teardown
# has failed. The feed may not show that its lock was released.
_LOCK_REFRESH_S = 10.0

# States of a node whose server is removed: its cleaning runs, has failed or is
# on hold.
_INSTANCE_REMOVED = frozenset(
    {
        ProvisionState.CLEANING,
        ProvisionState.CLEANWAIT,
        ProvisionState.CLEANFAIL,
        ProvisionState.CLEANHOLD,
    }
)
# In these states Ironic has not deployed the server, so only the preparation
# of the build is removed.
_NEVER_DEPLOYED = (Meaning.CAN_TAKE_A_BUILD, Meaning.OUT_OF_REACH)
# Ironic refuses a teardown in these states, which end by themselves.
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
# In these states an operator holds the node. Only the provision target
# ``abort`` ends a hold; the node is then in a failed state, in which Ironic
# accepts a teardown.
_ON_HOLD = frozenset({ProvisionState.DEPLOYHOLD, ProvisionState.SERVICEHOLD})


class _Answer(enum.Enum):
    """Ironic's answer to a request for a teardown."""

    ACCEPTED = enum.auto()
    BUSY = enum.auto()
    """Request it again when Ironic's present work on the node has ended."""
    ABORTED = enum.auto()
    """Request it again when the hold has ended, whose abort is requested."""


class _DeployBegun(errors.IronicComputeError):
    """Ironic has begun to deploy a node whose build was given up.

    A request whose answer was lost may be carried out late.
    """


class Teardown:
    """Removes servers from nodes; any thread may call; all methods block."""

    def __init__(
        self, waiter: NodeWaiter, network: Network, volumes: Volumes
    ) -> None:
        self._waiter = waiter
        self._client = waiter.client
        self._network = network
        self._volumes = volumes

    def free_node_of(self, instance: Any) -> None:
        """Remove a server from its node; success if no node has the server.

        :raises errors.IronicComputeError: the node still has the server
        """
        facts = self._waiter.retry(
            lambda: self._waiter.client.read_node_of_instance(instance.uuid)
        )
        if facts is None:
            LOG.info(
                'Ironic has no node with server %(server)s on it; nothing '
                'to free',
                {'server': instance.uuid},
            )
            return
        self.free_node(
            facts.uuid,
            instance.uuid,
            facts,
            is_launched=_is_launched(instance),
        )

    def free_node(
        self,
        node: NodeId,
        instance_uuid: str,
        fresh: NodeFacts | None = None,
        *,
        is_launched: bool = False,
    ) -> None:
        """Remove a server from a node; success if the node lacks the server.

        What another user of Ironic has deployed on the node stays. A build
        that reserves such a node gives it back at once
        (``Deploy.reserve_node``), unless its worker ends before.

        :param fresh: the node as Ironic has just returned it, which saves a
            read
        :param is_launched: whether the server has run on the node; then the
            deploy is Nova's, and no read is needed to find that out
        :raises errors.IronicComputeError: the node still has the server
        """
        try:
            facts = fresh or self._waiter.read_node(node)
            if is_launched or not self._is_foreign(facts, instance_uuid):
                self._free(node, instance_uuid, facts)
            else:
                self._give_back(node, instance_uuid)
        except (errors.NodeNotFound, errors.NodeGone):
            LOG.info(
                'Node %(node)s is gone from Ironic, and server %(server)s '
                'with it',
                {'node': node, 'server': instance_uuid},
            )

    def _is_foreign(self, facts: NodeFacts, instance_uuid: str) -> bool:
        """Return whether a node has the server's uuid, but not its deploy.

        A failed deploy counts as the server's: nothing is lost with it. A node
        in cleaning has no deploy, and Ironic has removed its description.
        """
        state = ProvisionState.parse(facts.provision_state)
        return (
            _has_instance(facts, instance_uuid)
            and state.meaning not in _NEVER_DEPLOYED
            and state is not ProvisionState.DEPLOYFAIL
            and state not in _INSTANCE_REMOVED
            and not self._waiter.retry(
                lambda: is_described(self._client, facts.uuid)
            )
        )

    def _give_back(self, node: NodeId, instance_uuid: str) -> None:
        """Remove only the server's uuid, as soon as Ironic allows it."""
        fresh = self._waiter.try_read_node(node)
        wait_until_shown(
            self._waiter, node, _is_settled, _TIMEOUT_S, fresh=fresh
        )
        self._waiter.retry(lambda: self._release_once(node, instance_uuid))
        LOG.warning(
            'Node %(node)s had the uuid of server %(server)s, but Nova has '
            'not deployed it: only the uuid was removed',
            {'node': node, 'server': instance_uuid},
        )

    def undo_build(self, node: NodeId, instance_uuid: str) -> None:
        """Remove what a build has left on a node that was not deployed.

        Does nothing if the node lacks the server, or Ironic deploys it or has
        deployed it. Nothing is lost with a deploy that has failed.
        """
        facts = self._waiter.read_node(node)
        state = ProvisionState.parse(facts.provision_state)
        if not _has_instance(facts, instance_uuid):
            return
        if state.meaning in _NEVER_DEPLOYED:
            try:
                self._remove_preparation(node, instance_uuid)
            except _DeployBegun:
                self.undo_build(node, instance_uuid)
        elif state is ProvisionState.DEPLOYFAIL:
            self._tear_down(node, instance_uuid)

    def _remove_preparation(self, node: NodeId, instance_uuid: str) -> None:
        """Remove all that a build writes before its deploy.

        :raises _DeployBegun: Ironic deploys the node, or has done so
        """
        vifs = self._network.list_vifs(node)
        targets = self._volumes.list_targets(node)
        # They are this server's, if the node has it still: the worker of
        # another host may have freed the node since it was read.
        if not self._waiter.retry(
            lambda: self._is_prepared(node, instance_uuid)
        ):
            return
        self._network.detach_listed(node, vifs)
        self._volumes.detach_targets(node, targets)
        self._waiter.retry(lambda: self._clear_once(node, instance_uuid))
        self._waiter.retry(lambda: self._finish_once(node, instance_uuid))

    def _is_prepared(self, node: NodeId, instance_uuid: str) -> bool:
        """Read whether a node has the server, which is not deployed.

        :raises _DeployBegun: Ironic deploys the node, or has done so
        """
        facts = self._waiter.read_node_once(node)
        state = ProvisionState.parse(facts.provision_state)
        has_instance = _has_instance(facts, instance_uuid)
        if has_instance and state.meaning not in _NEVER_DEPLOYED:
            raise _DeployBegun(
                f'Ironic has begun to deploy server {instance_uuid} on node '
                f'{node}'
            )
        return has_instance

    def _clear_once(self, node: NodeId, instance_uuid: str) -> None:
        """Remove the description of the server from its node."""
        if self._is_prepared(node, instance_uuid):
            self._client.patch_node(node, [instance_info.CLEAR_PATCH])

    def _finish_once(self, node: NodeId, instance_uuid: str) -> None:
        """Remove the uuid of the server from its node."""
        if self._is_prepared(node, instance_uuid):
            self._release(node, instance_uuid)

    def _release_once(self, node: NodeId, instance_uuid: str) -> None:
        if _has_instance(self._waiter.read_node_once(node), instance_uuid):
            self._release(node, instance_uuid)

    def _release(self, node: NodeId, instance_uuid: str) -> None:
        self._client.release_node(node, instance_uuid)
        self._waiter.try_read_node(node)

    def _free(
        self, node: NodeId, instance_uuid: str, facts: NodeFacts
    ) -> None:
        """Remove a server from a node, as the node's state requires."""
        if not _has_instance(facts, instance_uuid):
            return
        state = ProvisionState.parse(facts.provision_state)
        if state in _INSTANCE_REMOVED:
            self._try_release(node, instance_uuid)
        elif state.meaning not in _NEVER_DEPLOYED:
            self._tear_down(node, instance_uuid)
        elif state in _BUSY:
            wait_until_shown(self._waiter, node, _is_not_busy, _TIMEOUT_S)
            self._free(node, instance_uuid, self._waiter.read_node(node))
        else:
            try:
                self._remove_preparation(node, instance_uuid)
            except _DeployBegun:
                facts = self._waiter.read_node(node)
                self._free(node, instance_uuid, facts)

    def _tear_down(self, node: NodeId, instance_uuid: str) -> None:
        """Let Ironic tear the node down, with its VIFs and instance_info."""
        targets = self._volumes.list_targets(node)
        self._request_until_accepted(node, instance_uuid)
        fresh = self._waiter.try_read_node(node)
        facts = wait_until_shown(
            self._waiter,
            node,
            lambda facts: _facts_when_ended(facts, instance_uuid),
            _TIMEOUT_S,
            fresh=fresh,
        )
        if _has_failed(facts, instance_uuid):
            facts = self._wait_until_given_up(node, instance_uuid, facts)
        if _has_failed(facts, instance_uuid):
            raise errors.TeardownFailed(
                f'Ironic could not remove server {instance_uuid} from node '
                f'{node}: {facts.last_error}'
            )
        if _is_left_in(ProvisionState.DEPLOYFAIL, facts):
            self._undeploy_after_abort(node)
        if _is_left_in(ProvisionState.ERROR, facts):
            _warn_of_running(facts, instance_uuid)
        self._volumes.try_delete_targets(node, targets)
        LOG.info(
            'Removed server %(server)s from node %(node)s',
            {'server': instance_uuid, 'node': node},
        )

    def _wait_until_given_up(
        self, node: NodeId, instance_uuid: str, failed: NodeFacts
    ) -> NodeFacts:
        """Return a node in "error" when Ironic does not work on it any more.

        Ironic 39 shows the error first, then unbinds the networks, and removes
        the server's uuid last. Before that, the teardown has not failed yet.
        """
        return wait_until_shown(
            self._waiter,
            node,
            lambda facts: (
                facts_when_idle(facts)
                if _has_failed(facts, instance_uuid)
                else facts
            ),
            _TIMEOUT_S,
            fresh=failed,
            refresh_s=_LOCK_REFRESH_S,
        )

    def _request_until_accepted(
        self, node: NodeId, instance_uuid: str
    ) -> None:
        """Request the teardown until Ironic has begun it, or is done.

        :raises errors.NodeLocked: it was locked for half an hour
        """
        while True:
            answer = self._request_until_unlocked(node, instance_uuid)
            if answer is _Answer.ACCEPTED:
                return
            # Ironic may accept an abort, and end the hold later or never.
            is_ready, refresh_s = (
                (_is_aborted, _LOCK_REFRESH_S)
                if answer is _Answer.ABORTED
                else (_is_not_busy, None)
            )
            wait_until_shown(
                self._waiter, node, is_ready, _TIMEOUT_S, refresh_s=refresh_s
            )

    def _request_until_unlocked(
        self, node: NodeId, instance_uuid: str
    ) -> _Answer:
        """Request the teardown until the node is not locked any more.

        A node may be locked for longer than requests are repeated: if its BMC
        does not answer, Ironic tries to reach it for minutes after the deploy
        has failed. The half-hour counts from the first answer that names the
        lock, because the deploy before it may have taken long.

        :raises errors.NodeLocked: it was locked for half an hour
        """

        def request() -> _Answer:
            return self._waiter.retry(
                lambda: self._request_teardown(node, instance_uuid)
            )

        return retry(
            request,
            self._waiter.clock,
            lambda exc: isinstance(exc, errors.NodeLocked),
            lambda exc: LOG.info(
                'Server %(server)s is removed when node %(node)s is not '
                'locked any more: %(error)s',
                {'server': instance_uuid, 'node': node, 'error': exc},
            ),
            limit_s=_TIMEOUT_S,
        )

    def _undeploy_after_abort(self, node: NodeId) -> None:
        """Request the cleaning of a node that is left in "deploy failed".

        When a deploy on hold is aborted, Ironic 39 removes the server by
        itself, but leaves the node in "deploy failed" and does not clean it.
        """

        def undeploy() -> None:
            facts = self._waiter.read_node_once(node)
            if _is_left_in(ProvisionState.DEPLOYFAIL, facts):
                self._client.set_provision_state(node, 'deleted')

        try:
            self._waiter.retry(undeploy)
        except errors.IronicComputeError as exc:
            LOG.warning(
                'Node %(node)s is free of its server and was left in deploy '
                'failed: tell Ironic to undeploy it; %(error)s',
                {'node': node, 'error': exc},
            )

    def _request_teardown(self, node: NodeId, instance_uuid: str) -> _Answer:
        """Request the teardown once, if the node still needs it."""
        facts = self._waiter.read_node_once(node)
        state = ProvisionState.parse(facts.provision_state)
        if not _has_instance(facts, instance_uuid):
            return _Answer.ACCEPTED
        if state.meaning is Meaning.LEAVING:
            return _Answer.ACCEPTED
        if state in _ON_HOLD:
            self._client.set_provision_state(node, 'abort')
            self._waiter.try_read_node(node)
            return _Answer.ABORTED
        try:
            self._client.set_provision_state(node, 'deleted')
        except (errors.IronicRefused, errors.NodeLocked):
            if state not in _BUSY:
                raise
            return _Answer.BUSY
        return _Answer.ACCEPTED

    def _try_release(self, node: NodeId, instance_uuid: str) -> None:
        """Remove the server's uuid from a node in cleaning, if possible."""
        try:
            self._release_once(node, instance_uuid)
        except errors.IronicComputeError as exc:
            LOG.info(
                'Node %(node)s is being cleaned and keeps the name of server '
                '%(server)s until that ends: %(error)s',
                {'node': node, 'server': instance_uuid, 'error': exc},
            )


def _is_launched(instance: Any) -> bool:
    """Return whether a server has run on its node, not only on another one."""
    is_shelved = instance.vm_state == vm_states.SHELVED_OFFLOADED
    return bool(instance.launched_at) and not is_shelved


def _has_instance(facts: NodeFacts, instance_uuid: str) -> bool:
    return facts.instance_uuid == instance_uuid


def _is_error(facts: NodeFacts) -> bool:
    return ProvisionState.parse(facts.provision_state) is ProvisionState.ERROR


def _has_failed(facts: NodeFacts, instance_uuid: str) -> bool:
    """Return whether a teardown has failed, and the node has the server."""
    return _has_instance(facts, instance_uuid) and _is_error(facts)


def _is_left_in(state: ProvisionState, facts: NodeFacts) -> bool:
    """Return whether a node without a server is in this state."""
    found = ProvisionState.parse(facts.provision_state)
    return facts.instance_uuid is None and found is state


def _warn_of_running(facts: NodeFacts, instance_uuid: str) -> None:
    """Warn of a failed teardown, because its delete succeeds all the same."""
    LOG.warning(
        'Ironic removed server %(server)s from node %(node)s, but could not '
        'tear the node down, so its machine may still run: %(error)s',
        {
            'server': instance_uuid,
            'node': facts.uuid,
            'error': facts.last_error,
        },
    )


def _is_not_busy(facts: NodeFacts) -> bool | None:
    """Return True if Ironic has ended its work on the node, else None."""
    state = ProvisionState.parse(facts.provision_state)
    return None if state in _BUSY else True


def _is_settled(facts: NodeFacts) -> bool | None:
    """Return True if Ironic does not deploy the node any more, else None."""
    state = ProvisionState.parse(facts.provision_state)
    return None if state.meaning is Meaning.ON_ITS_WAY else True


def _is_aborted(facts: NodeFacts) -> bool | None:
    """Return True if a hold, and all that its abort does, has ended.

    Ironic 39 removes the server of a deploy on hold after the node is in
    "deploy failed", and holds its lock meanwhile.
    """
    state = ProvisionState.parse(facts.provision_state)
    is_aborting = state in _ON_HOLD or facts_when_idle(facts) is None
    return None if is_aborting else True


def _facts_when_ended(
    facts: NodeFacts, instance_uuid: str
) -> NodeFacts | None:
    """Return the facts if the teardown has ended or failed, else None."""
    state = ProvisionState.parse(facts.provision_state)
    if facts.instance_uuid != instance_uuid:
        return facts
    ended = state in _INSTANCE_REMOVED or state.meaning in _NEVER_DEPLOYED
    return facts if ended or _is_error(facts) else None

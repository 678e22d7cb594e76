# SPDX-License-Identifier: Apache-2.0
"""VIFs: attach Neutron ports to a node in Ironic, and detach them.

Ironic itself binds the ports. A VIF may be attached or detached again; that is
a success. After an error the VIFs of the node are therefore read from Ironic:
the status code alone does not show the cause, because a conflict (409) can
have several.

The port of a running server is bound as soon as its VIF is attached. If
Neutron refuses that, or does not answer Ironic, Ironic answers 500, and keeps
the VIF on a card that has no network. A proxy may give up before Ironic does,
and answer 504.
"""

from collections.abc import Iterable
from typing import Any

import nova.conf
from nova import exception as nova_exception

from ironic_compute import errors
from ironic_compute.driver.node_waiter import NodeWaiter
from ironic_compute.retry import retry
from resource_tracker.node import NodeId

CONF = nova.conf.CONF

# Nova lets these exceptions pass at any step of a build.
_DELETED = (
    nova_exception.InstanceNotFound,
    nova_exception.UnexpectedDeletingTaskStateError,
)


class Network:
    """Attaches and detaches VIFs; any thread may call; all methods block."""

    def __init__(self, waiter: NodeWaiter) -> None:
        self._waiter = waiter
        self._client = waiter.client

    def attach_vifs(self, node: NodeId, network_info: Iterable[Any]) -> None:
        """Attach these VIFs to a node, one after the other.

        :raises errors.IronicRefused: Ironic refuses, with the reason
        """
        for vif in network_info:
            self._attach_vif(node, str(vif['id']))

    def attach_soon(self, instance: Any, vif: Any) -> None:
        """Attach a VIF to a running server, or fail while nova-api waits.

        Neutron has been asked before, for at most half of the time that
        nova-api waits; see ``manager.attachments``.
        """
        longest_s = CONF.rpc_response_timeout / 4
        node = self._waiter.read_node_of(instance, longest_s=longest_s).uuid
        self._attach_and_bind(node, str(vif['id']), longest_s)

    def attach_missing_vifs(
        self, node: NodeId, network_info: Iterable[Any]
    ) -> None:
        """Attach these VIFs, except those that the node has already."""
        attached = set(self.list_vifs(node))
        self.attach_vifs(
            node, [vif for vif in network_info if vif['id'] not in attached]
        )

    def detach_vifs(self, node: NodeId, network_info: Iterable[Any]) -> None:
        """Detach these VIFs, except those that the node does not have."""
        attached = set(self.list_vifs(node))
        for vif in network_info:
            if str(vif['id']) in attached:
                self._detach_vif(node, str(vif['id']))

    def detach_listed(self, node: NodeId, vifs: Iterable[str]) -> None:
        """Detach VIFs that :meth:`list_vifs` has returned."""
        for vif in vifs:
            self._detach_vif(node, vif)

    def list_vifs(self, node: NodeId) -> list[str]:
        """Return the ids of the VIFs of a node."""
        return self._waiter.retry(lambda: self._client.list_vifs(node))

    def _attach_vif(self, node: NodeId, vif: str) -> None:
        self._waiter.retry(lambda: self._attach_once(node, vif))

    def _attach_once(self, node: NodeId, vif: str) -> None:
        try:
            self._client.attach_vif(node, vif)
        except errors.IronicComputeError:
            if vif not in self._client.list_vifs(node):
                raise

    def _attach_and_bind(
        self, node: NodeId, vif: str, longest_s: float
    ) -> None:
        """Attach a VIF, or detach it again if its port cannot be bound."""
        may_be_unbound = False

        def attach() -> None:
            nonlocal may_be_unbound
            if may_be_unbound:
                # Ironic would take another request for one that is done.
                self._undo_attach(node, vif)
                may_be_unbound = False
            try:
                self._client.attach_vif(node, vif)
            except errors.IronicComputeError as exc:
                may_be_unbound = _is_failure(exc)
                if may_be_unbound or vif not in self._client.list_vifs(node):
                    raise

        try:
            self._waiter.retry(attach, longest_s=longest_s)
        except errors.IronicComputeError:
            if may_be_unbound:
                # Nova takes the port back, and nobody would detach it later.
                retry(
                    lambda: self._waiter.retry(
                        lambda: self._undo_attach(node, vif)
                    ),
                    self._waiter.clock,
                    errors.is_ironic_away,
                )
            raise

    def _undo_attach(self, node: NodeId, vif: str) -> None:
        """Detach a VIF, which Ironic may just be attaching.

        :raises errors.NodeLocked: it may do so; its list may lack the VIF yet
        """
        try:
            self._client.detach_vif(node, vif)
        except errors.IronicRefused:
            if vif in self._client.list_vifs(node):
                raise

    def _detach_vif(self, node: NodeId, vif: str) -> None:
        def detach() -> None:
            try:
                self._client.detach_vif(node, vif)
            except errors.IronicComputeError:
                if vif in self._client.list_vifs(node):
                    raise

        self._waiter.retry(detach)


def _is_failure(exc: errors.IronicComputeError) -> bool:
    """Return whether a request has failed, or may fail yet, in Ironic."""
    return isinstance(exc, errors.IronicUnavailable) and not isinstance(
        exc, errors.Untouched
    )


def read_networks(network_info: Any) -> list[Any]:
    """Return the VIFs of a build; block until Neutron has allocated them.

    Nova shows the text of InvalidBDM to the user, and hides that of Neutron's
    errors behind "Failure prepping block device".
    """
    try:
        return list(network_info or ())
    except _DELETED:
        raise
    except nova_exception.NovaException as exc:
        raise nova_exception.InvalidBDM(str(exc)) from exc
    except Exception as exc:
        raise errors.DeployFailed(
            f'Neutron could not allocate the networks: {exc}'
        ) from exc

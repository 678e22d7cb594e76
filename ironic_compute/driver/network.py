# SPDX-License-Identifier: Apache-2.0
"""Networks: Ironic binds ports, so here is only which VIFs a node has.

Attaching what is attached and detaching what is not are successes. That is
found out by asking Ironic for the node's VIFs, never by guessing what a
conflict means.
"""

from collections.abc import Iterable
from typing import Any

from oslo_log import log as logging

from ironic_compute import errors
from ironic_compute.driver.node_waiter import NodeWaiter
from resource_tracker.node import NodeId

LOG = logging.getLogger(__name__)


class Network:
    """Attach and detach VIFs."""

    def __init__(self, waiter: NodeWaiter) -> None:
        self._waiter = waiter
        self._client = waiter.client

    def attach(self, node: NodeId, network_info: Iterable[Any]) -> None:
        """Attach all VIFs of a server.

        :raises errors.IronicRefused: Ironic will not, and says why
        """
        for vif in network_info:
            self._attach(node, str(vif['id']))

    def detach(self, node: NodeId, network_info: Iterable[Any]) -> None:
        """Detach those of the VIFs that the node has."""
        attached = set(self._vifs(node))
        for vif in network_info:
            if str(vif['id']) in attached:
                self._detach(node, str(vif['id']))

    def detach_all(self, node: NodeId) -> None:
        """Detach whatever the node has; only for a node that is ours."""
        for vif in self._vifs(node):
            self._detach(node, vif)

    def _vifs(self, node: NodeId) -> list[str]:
        return self._waiter.asked(lambda: self._client.vifs(node))

    def _attach(self, node: NodeId, vif: str) -> None:
        def attach() -> None:
            try:
                self._client.vif_attach(node, vif)
            except errors.IronicComputeError:
                if vif not in self._client.vifs(node):
                    raise

        self._waiter.patiently(attach, errors.Retriable)

    def _detach(self, node: NodeId, vif: str) -> None:
        def detach() -> None:
            try:
                self._client.vif_detach(node, vif)
            except errors.IronicComputeError:
                if vif in self._client.vifs(node):
                    raise

        self._waiter.patiently(detach, errors.Retriable)

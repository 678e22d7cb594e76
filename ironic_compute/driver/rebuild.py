# SPDX-License-Identifier: Apache-2.0
"""Deploying a server's node anew, with the same or another image.

Works for servers whose root disk is an image's at any API version: since
2.93 Nova sets ``reimage_boot_volume`` for all of them (bug 2127017).
"""

from typing import Any

from nova.compute import task_states
from nova.compute import utils as compute_utils

from ironic_compute import errors
from ironic_compute.driver.deploy import Deploy, Order
from ironic_compute.driver.node_waiter import NodeWaiter


class Rebuild:
    """Rebuild servers."""

    def __init__(self, waiter: NodeWaiter, deploy: Deploy) -> None:
        self._waiter = waiter
        self._deploy = deploy

    def rebuild(
        self, order: Order, bdms: Any, preserve_ephemeral: bool
    ) -> None:
        """Rebuild; returns when the node is active again.

        :raises errors.IronicRefused: the root disk is a volume
        :raises errors.DeployFailed: Ironic could not
        """
        instance = order.instance
        if compute_utils.is_volume_backed_instance(
            order.context, instance, bdms
        ):
            raise errors.IronicRefused(
                f'The root disk of server {instance.uuid} is a volume, which '
                f'cannot be written anew on bare metal; create a new server '
                f'instead'
            )
        node = self._waiter.node_of(instance).uuid
        self._deploy.describe(order, preserve_ephemeral)
        seen = self._deploy.ask(order, 'rebuild', lambda: _say_asked(instance))
        self._deploy.wait(instance, node, seen)


def _say_asked(instance: Any) -> None:
    """Write down that from now on Ironic may be at it."""
    instance.task_state = task_states.REBUILD_SPAWNING
    instance.save(expected_task_state=[task_states.REBUILDING])

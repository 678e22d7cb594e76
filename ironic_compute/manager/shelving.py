# SPDX-License-Identifier: Apache-2.0
"""Shelving of servers: it goes on until the services answer.

Nova frees the node of a server before it deletes the allocation and saves the
new state. If a service does not answer in between, or the worker ends, Nova
leaves an ACTIVE server without a node; the same message, delivered again,
would fail because there is no node to switch off. Each step may be carried out
twice, so the shelving is done again, and without the node if it is free.

Importing this module imports Nova's manager; see ``compute_manager``.
"""

from typing import Any

from nova.compute import manager as nova_manager

from hashring.clock import Clock
from ironic_compute import errors
from ironic_compute.manager.late_saves import expecting_offloaded
from ironic_compute.manager.reservations import reserve
from ironic_compute.manager.retries import (
    after,
    has_no_answer,
    retried,
    retried_in_cinder,
)
from ironic_compute.manager.stale_messages import SHELVING, drop, is_due

_has_no_answer_of_ironic = after(errors.IronicUnavailable)


class RepeatedShelving(nova_manager.ComputeManager):
    """Nova's ComputeManager, with a shelving that outlasts an outage.

    The record is read again before each try: another message may have shelved
    the server while this one waited for the lock, and the server may be in use
    again.
    """

    clock: Clock
    volume_api: Any

    def has_active_node(self, instance: Any) -> bool:
        """Return whether the node of a server is active; reads Ironic."""
        raise NotImplementedError

    def finish_shelving(self, context: Any, instance: Any) -> None:
        """Free all that a server has, and save it as shelved."""
        raise NotImplementedError

    @retried(
        'The shelving of server %(server)s waits until all services answer: '
        '%(error)s',
        lambda exc: has_no_answer(exc) or _has_no_answer_of_ironic(exc),
    )
    @retried_in_cinder
    def _shelve_offload_instance(
        self, context: Any, instance: Any, *args: Any, **kwargs: Any
    ) -> None:
        """Shelve a server; blocks until each service has answered."""
        if not is_due(instance, SHELVING, self.clock):
            drop('shelve_offload_instance', instance)
        elif self.has_active_node(instance):
            with expecting_offloaded(instance):
                super()._shelve_offload_instance(
                    context, instance, *args, **kwargs
                )
        else:
            self.finish_shelving(context, instance)

    def _terminate_volume_connections(
        self, context: Any, instance: Any, bdms: Any
    ) -> None:
        """Replace the attachments of a server's volumes by reservations.

        Nova's method would leave one reservation behind for each try after
        which Cinder could not delete the attachment.
        """
        for bdm in bdms:
            if bdm.is_volume and bdm.attachment_id:
                self._replace_attachment(context, instance.uuid, bdm)
            else:
                super()._terminate_volume_connections(context, instance, [bdm])

    def _replace_attachment(self, context: Any, server: str, bdm: Any) -> None:
        reserved = reserve(self.volume_api, context, server, bdm)
        self.volume_api.attachment_delete(context, bdm.attachment_id)
        bdm.attachment_id = reserved
        bdm.save()

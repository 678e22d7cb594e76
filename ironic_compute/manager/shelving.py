# SPDX-License-Identifier: Apache-2.0
"""Shelving of servers: it goes on until the services answer.

Nova frees the node of a server before it deletes the allocation and saves the
new state. If a service does not answer in between, or the worker ends, Nova
leaves an ACTIVE server without a node; the same message, delivered again,
would fail because there is no node to switch off. Each step may be carried out
twice, so the shelving is done again, and without the node if it is free.

nova-scheduler finds a node for an unshelve by the flavor in the request spec
of the server. When a resize was refused here, nova-conductor has saved the new
flavor there, and Nova restores the former one only when a resize that was done
is reverted. The server would be unshelved on a node of the wrong kind.

Importing this module imports Nova's manager; see ``compute_manager``.
"""

from typing import Any

from nova import context as nova_context
from nova import exception as nova_exception
from nova import objects
from nova.compute import manager as nova_manager
from oslo_log import log as logging

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

LOG = logging.getLogger(__name__)


def _has_no_answer(exc: Exception) -> bool:
    """Repeat if a service did not answer."""
    return errors.is_ironic_away(exc) or has_no_answer(exc)


def _has_failed_in_ironic(exc: Exception) -> bool:
    """Repeat after a status 500 of Ironic."""
    is_unavailable = after(errors.IronicUnavailable)(exc)
    return is_unavailable and not errors.is_ironic_away(exc)


_retried_in_ironic = retried(
    'Ironic has failed at the shelving of server %(server)s, which is '
    'repeated for ten minutes: %(error)s',
    _has_failed_in_ironic,
    limit_s=600.0,
)
"""Repeat a method, but not for ever.

Ironic's database may be away for a while, but there are refusals with this
status, and a delete of the server waits meanwhile.
"""


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
        _has_no_answer,
    )
    @_retried_in_ironic
    @retried_in_cinder
    def _shelve_offload_instance(
        self, context: Any, instance: Any, *args: Any, **kwargs: Any
    ) -> None:
        """Shelve a server; blocks until each service has answered."""
        if not is_due(instance, SHELVING, self.clock):
            drop('shelve_offload_instance', instance)
            return
        restore_flavor(instance)
        if self.has_active_node(instance):
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


def restore_flavor(instance: Any) -> None:
    """Have an unshelve look for nodes of the server's own flavor.

    Blocks for two RPCs. A conductor that has no API database, which answers
    like one that is away, does not stop the shelving.
    """
    try:
        spec = objects.RequestSpec.get_by_instance_uuid(
            nova_context.get_admin_context(), instance.uuid
        )
        if spec.flavor.flavorid != instance.flavor.flavorid:
            spec.flavor = instance.flavor
            spec.save()
    except nova_exception.RequestSpecNotFound:
        LOG.debug('Server %(id)s has no request spec', {'id': instance.uuid})
    except Exception as exc:
        LOG.warning(
            'Could not read or save the flavor in the request spec of server '
            '%(server)s: %(error)s',
            {'server': instance.uuid, 'error': exc},
        )

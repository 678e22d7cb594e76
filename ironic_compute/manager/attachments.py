# SPDX-License-Identifier: Apache-2.0
"""Attachments of ports and volumes: how long a request waits for a service.

nova-api waits for the answer of a request to attach a port. It does not wait
for that of a request to attach, detach or replace a volume, which begins only
when Cinder answers: it would end half-way. The volume would stay "reserved" or
"detaching" for ever, and its user could neither repeat nor undo the request.
If Cinder goes away in the middle, a detach or a refusal is done again, and a
volume that could not be attached is freed, because Nova has deleted the only
record of it.

``nova-manage volume_attachment refresh`` would export a volume to a controller
in place of the node, and have the volume target of the node deleted: the
server could not boot any more. It is refused.

A reboot does not wait for Cinder, which it does not need.

Neutron tells Nova once that a port was deleted. If Ironic did not answer then,
the node would keep the port, and might have no card left for another one. So
it would if Nova ended a message of several events at the first that fails, for
instance because Neutron does not show the ports of another server.

Importing this module imports Nova's manager; see ``compute_manager``.
"""

import contextlib
import functools
from typing import Any

import nova.conf
import oslo_messaging
from cinderclient import exceptions as cinder_exceptions
from nova import exception as nova_exception
from nova import objects, safe_utils
from nova import utils as nova_utils
from nova.compute import manager as nova_manager
from oslo_log import log as logging
from oslo_utils import excutils

from hashring.clock import Clock
from ironic_compute import errors
from ironic_compute.manager.reservations import find_reservation
from ironic_compute.manager.retries import (
    has_no_answer,
    retried,
    retried_in_cinder,
)
from ironic_compute.manager.stale_messages import (
    drop,
    read_until_answered,
    refresh,
)
from ironic_compute.paths.repeated_requests import waiting_at_most
from ironic_compute.recovery.in_progress import InProgress

CONF = nova.conf.CONF
LOG = logging.getLogger(__name__)

_BINDINGS = frozenset({'network-vif-plugged', 'network-vif-unplugged'})
_NO_REFRESH = (
    'A volume of a bare metal server is exported to its node, and to no '
    'compute host; to connect it anew, detach and attach it, or shelve and '
    'unshelve a server whose root disk is a volume'
)

# Nova's method without its decorators, which save each of its errors as a
# fault and in the server's action.
_save_size = safe_utils.get_wrapped_function(
    nova_manager.ComputeManager.extend_volume
)


def _has_no_answer(exc: Exception) -> bool:
    """Repeat if a service did not answer, also to a refusal.

    The decorator of a refusal puts each error of Nova into another one.
    """
    if isinstance(exc, oslo_messaging.ExpectedException):
        return has_no_answer(exc.exc_info[1])
    return has_no_answer(exc)


_retried_when_answered = retried(
    'A volume of server %(server)s is attached or detached when Cinder '
    'answers: %(error)s',
    _has_no_answer,
)


class WaitingAttachments(nova_manager.ComputeManager):
    """Nova's ComputeManager; it attaches and detaches when services answer."""

    clock: Clock
    driver: Any
    in_progress: InProgress
    volume_api: Any

    def attach_interface(self, context: Any, **request: Any) -> Any:
        """Attach a port while nova-api waits for the answer of this call.

        Otherwise the port might be attached after nova-api has told its user
        that it is not.
        """
        with waiting_at_most(CONF.rpc_response_timeout / 2):
            return super().attach_interface(context, **request)

    def external_instance_event(
        self, context: Any, instances: Any, events: Any
    ) -> None:
        """Handle each event of a message, also after one that has failed."""
        for event in events:
            try:
                super().external_instance_event(context, instances, [event])
            except Exception:
                LOG.exception(
                    'Could not handle event %(event)s of server %(server)s',
                    {'event': event.key, 'server': event.instance_uuid},
                )

    @nova_manager.wrap_instance_event(prefix='compute')  # type: ignore[untyped-decorator]
    @nova_manager.wrap_instance_fault  # type: ignore[untyped-decorator]
    def extend_volume(
        self, context: Any, instance: Any, extended_volume_id: Any
    ) -> None:
        """Save the new size of a volume that Cinder has extended.

        Nova then has the driver pass the size on to the server, which no
        driver for bare metal can. That is no error here: the user would see it
        in the server's action, and as a fault.
        """
        try:
            _save_size(self, context, instance, extended_volume_id)
        except nova_exception.ExtendVolumeNotSupported:
            LOG.info(
                'Volume %(volume)s was extended; the system on server '
                '%(server)s has to look for the new size',
                {'volume': extended_volume_id, 'server': instance.uuid},
            )

    def _process_instance_event(self, instance: Any, event: Any) -> None:
        """Handle an event for which a thread may wait.

        Neutron reports each port that Ironic binds or unbinds. No thread waits
        for that on bare metal, so Nova would warn of an unexpected event for
        each port of each deploy.
        """
        if event.name in _BINDINGS and event.status != 'failed':
            LOG.debug(
                'Ironic has bound or unbound a port: event %(event)s of '
                'server %(server)s',
                {'event': event.key, 'server': instance.uuid},
            )
        else:
            super()._process_instance_event(instance, event)

    def _process_instance_vif_deleted_event(
        self, context: Any, instance: Any, deleted_vif_id: Any
    ) -> None:
        """Detach a port that Neutron has deleted, when Ironic answers.

        Nova then saves the ports that the server has left.
        """
        self._wait_to_detach(context, instance)
        one_by_one = nova_utils.synchronized(f'vif-deleted-{instance.uuid}')
        one_by_one(self._detach_deleted)(context, instance, deleted_vif_id)

    def _detach_deleted(
        self, context: Any, instance: Any, deleted_vif_id: Any
    ) -> None:
        """Detach a deleted port; read the ports of the server again first.

        Another port may have been attached or deleted during the wait.
        """
        cache = instance.info_cache
        read_until_answered(cache.refresh, instance.uuid, self.clock)
        super()._process_instance_vif_deleted_event(
            context, instance, deleted_vif_id
        )

    @retried(
        'A deleted port of server %(server)s is detached from its node when '
        'Ironic answers: %(error)s',
        errors.is_ironic_away,
    )
    def _wait_to_detach(self, context: Any, instance: Any) -> None:
        """Read the node of a server; block until Ironic answers."""
        try:
            self.driver.instance_exists(instance)
        except Exception as exc:
            # Any other error is an answer, and left to the driver.
            if errors.is_ironic_away(exc):
                raise

    def attach_volume(self, context: Any, instance: Any, bdm: Any) -> Any:
        """Attach a volume when Cinder answers."""
        self._wait_for_cinder(context, instance, bdm.volume_id)
        try:
            return super().attach_volume(context, instance, bdm)
        except Exception:
            with excutils.save_and_reraise_exception():
                self._free_unattached(context, instance, bdm)

    def _attach_volume(self, context: Any, instance: Any, device: Any) -> Any:
        """Attach a volume, unless its server was shelved meanwhile.

        Nova calls this with the lock of the server. Shelving has given the
        volume another attachment, which an unshelve uses. Nova would fail at
        the former one, and delete the only record of the volume.
        """
        if self._has_other_attachment(context, instance, device):
            drop('attach_volume', instance)
            return None
        return super()._attach_volume(context, instance, device)

    def _has_other_attachment(
        self, context: Any, instance: Any, device: Any
    ) -> bool:
        """Read whether a volume has another attachment than in a message."""
        read = functools.partial(
            objects.BlockDeviceMapping.get_by_volume_and_instance,
            context,
            device.volume_id,
            instance.uuid,
        )
        try:
            found = read_until_answered(read, instance.uuid, self.clock)
        except nova_exception.VolumeBDMNotFound:
            return False
        is_other = bool(found.attachment_id != device['attachment_id'])
        return is_other or self._is_half_replaced(context, instance, found)

    def _is_half_replaced(self, context: Any, instance: Any, bdm: Any) -> bool:
        """Return whether a reservation has replaced a volume's attachment.

        Shelving saves that after it has deleted the former one. A worker that
        was killed in between is followed by one that shelves the server again.
        """
        try:
            self.volume_api.attachment_get(context, bdm.attachment_id)
        except nova_exception.VolumeAttachmentNotFound:
            reserved = find_reservation(
                self.volume_api, context, instance.uuid, bdm
            )
            return reserved is not None
        return False

    @_retried_when_answered
    @retried_in_cinder
    def _free_unattached(self, context: Any, instance: Any, bdm: Any) -> None:
        """Delete an attachment in Cinder that no record of Nova names.

        Nova deletes it, too, but Cinder may have been away just then.
        """
        try:
            found = objects.BlockDeviceMapping.get_by_volume_and_instance(
                context, bdm.volume_id, instance.uuid
            )
        except nova_exception.VolumeBDMNotFound:
            found = None
        if found is None or found.attachment_id != bdm.attachment_id:
            with contextlib.suppress(nova_exception.VolumeAttachmentNotFound):
                self.volume_api.attachment_delete(context, bdm.attachment_id)

    def detach_volume(
        self, context: Any, volume_id: Any, instance: Any, attachment_id: Any
    ) -> Any:
        """Detach a volume, or refuse that, when Cinder answers."""
        return self._detach_when_answered(
            context, instance, volume_id, attachment_id
        )

    @_retried_when_answered
    def _detach_when_answered(
        self, context: Any, instance: Any, volume_id: Any, attachment_id: Any
    ) -> Any:
        """Detach a volume; again, if Cinder goes away in the middle.

        The record is read again: a message that was sent to a former host of
        the server names that one, and Nova then leaves the driver out, so that
        the node would keep its volume target.
        """
        self._wait_for_cinder(context, instance, volume_id)
        refresh(instance, self.clock)
        return self._detach_in_cinder(
            context, instance, volume_id, attachment_id
        )

    @retried_in_cinder
    def _detach_in_cinder(
        self, context: Any, instance: Any, volume_id: Any, attachment_id: Any
    ) -> Any:
        """Detach a volume; its ten minutes begin when Cinder has answered."""
        return super().detach_volume(
            context, volume_id, instance, attachment_id
        )

    def swap_volume(
        self,
        context: Any,
        old_volume_id: Any,
        new_volume_id: Any,
        instance: Any,
        new_attachment_id: Any,
    ) -> Any:
        """Refuse to replace a volume when Cinder answers."""
        return self._refuse_swap_when_answered(
            context, instance, old_volume_id, new_volume_id, new_attachment_id
        )

    @_retried_when_answered
    def _refuse_swap_when_answered(
        self, context: Any, instance: Any, old_volume_id: Any, *args: Any
    ) -> Any:
        """Refuse to replace a volume; again, if Cinder goes away meanwhile."""
        self._wait_for_cinder(context, instance, old_volume_id)
        return self._refuse_swap(context, instance, old_volume_id, *args)

    @retried_in_cinder
    def _refuse_swap(
        self,
        context: Any,
        instance: Any,
        old_volume_id: Any,
        new_volume_id: Any,
        new_attachment_id: Any,
    ) -> Any:
        return super().swap_volume(
            context,
            old_volume_id,
            new_volume_id,
            instance,
            new_attachment_id,
        )

    def _delete_dangling_bdms(
        self, context: Any, instance: Any, bdms: Any
    ) -> None:
        """Forget the volumes that Cinder does not attach to a server.

        Nova does so before each reboot, and means to leave it out if Cinder
        does not answer. But it catches only some of those errors. The others
        would end the reboot, also of a server without volumes.
        """
        try:
            super()._delete_dangling_bdms(context, instance, bdms)
        except Exception as exc:
            is_of_cinder = isinstance(exc, cinder_exceptions.ClientException)
            if not is_of_cinder and not has_no_answer(exc):
                raise
            LOG.info(
                'Server %(server)s is rebooted without a look at its volumes, '
                'because Cinder does not answer: %(error)s',
                {'server': instance.uuid, 'error': exc},
            )

    @oslo_messaging.expected_exceptions(  # type: ignore[untyped-decorator]
        nova_exception.InvalidInput
    )
    def remove_volume_connection(self, *args: Any, **kwargs: Any) -> None:
        """Refuse a new connection; nova-manage waits, and undoes its part."""
        raise nova_exception.InvalidInput(reason=_NO_REFRESH)

    def _wait_for_cinder(
        self, context: Any, instance: Any, volume: str
    ) -> None:
        """Read a volume; block until Cinder answers.

        The thread has no lock meanwhile, so the server can be used, and
        recovery may continue another request for it.
        """
        with self.in_progress.without_message(instance.uuid):
            self._read_until_answered(context, instance, volume)

    @_retried_when_answered
    def _read_until_answered(
        self, context: Any, instance: Any, volume: str
    ) -> None:
        try:
            self.volume_api.get(context, volume)
        except Exception as exc:
            # An answer, such as that there is no volume, is left to Nova.
            if has_no_answer(exc):
                raise

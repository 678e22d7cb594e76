# SPDX-License-Identifier: Apache-2.0
"""Refuses operations that bare metal does not support, with a reason.

Nova's API offers the operations of every hypervisor, and its compute manager
notices late that a driver does not support one: it powers a node off before it
finds that no snapshot can be made. The methods here refuse such an operation
at once. The server stays as it was; objects that the API prepared (an image,
an allocation, a reserved volume) are removed. See ``refusals`` for how, and
``refused_moves`` for what would move a server.

Only ``compute_manager`` imports this module, because importing Nova's manager
freezes the intervals of its periodic tasks.
"""

import contextlib
import inspect
from collections.abc import Mapping, Sequence
from typing import Any

import oslo_messaging
from nova import exception as nova_exception
from nova.compute import manager as nova_manager
from nova.compute import task_states
from nova.compute import utils as compute_utils

from ironic_compute.manager import stale_messages
from ironic_compute.manager.questions import AnswersQuestions
from ironic_compute.manager.refusals import (
    REASONS,
    Method,
    refusal_of,
    refusing,
    refusing_image,
    reported,
    reported_and_idle,
)
from ironic_compute.manager.refused_moves import (
    RefusedMoves,
    refuse_evacuation,
)
from ironic_compute.manager.refused_rebuilds import restore_image
from ironic_compute.manager.retries import after, retried

# The names of the arguments of ``rebuild_instance`` after the instance. The
# manager's own method has lost them to a decorator of oslo.messaging.
_REBUILD_ARGS = tuple(
    inspect.signature(nova_manager._ComputeV5Proxy.rebuild_instance).parameters
)[3:]


def rebuild_request(
    args: Sequence[Any], kwargs: Mapping[str, Any]
) -> dict[str, Any]:
    """Return the arguments of ``rebuild_instance`` after the instance.

    Nova's RPC proxy for older callers passes arguments by position.
    """
    return {**dict(zip(_REBUILD_ARGS, args, strict=False)), **kwargs}


_REBUILDING = frozenset({task_states.REBUILDING})
_RESCUING = frozenset({task_states.RESCUING})


class UnsupportedOperations(AnswersQuestions, RefusedMoves):
    """Mixin for Nova's ``ComputeManager``; the signatures are Nova's."""

    image_api: Any
    volume_api: Any
    driver: Any
    _check_trusted_certs: Method

    pause_instance = refusing('pause_instance')
    suspend_instance = refusing('suspend_instance')

    snapshot_instance = refusing_image('snapshot_instance')
    backup_instance = refusing_image('backup_instance')
    # For a server whose root disk is a volume, nova-api sends
    # ``shelve_offload_instance`` instead.
    shelve_instance = refusing_image('shelve_instance')

    def rebuild_instance(
        self, context: Any, instance: Any, *args: Any, **kwargs: Any
    ) -> Any:
        """Refuse an evacuation, and any rebuild of a boot volume.

        Before API 2.93, nova-api accepts a rebuild of a boot volume with the
        same image, and Nova keeps the volume. On bare metal such a rebuild
        would be a deploy as well, so it is refused, too.
        """
        parent: Method = super().rebuild_instance  # type: ignore[misc]
        request = rebuild_request(args, kwargs)
        if request['recreate']:
            return refuse_evacuation(self, context, instance, request)
        if compute_utils.is_volume_backed_instance(
            context, instance, request['bdms']
        ):
            return _refuse_reimage(self, context, instance, request)
        image = request['image_ref']
        error = image and self._find_image_error(context, instance, image)
        if error:
            return _refuse_image(self, context, instance, request, error)
        return parent(context, instance, *args, **kwargs)

    def _find_image_error(
        self, context: Any, instance: Any, image: str
    ) -> Exception | None:
        """Return why a rebuild cannot use its image; None if it can.

        Nova finds it out, too, but leaves a server whose disk is as it was in
        ERROR, with the new image in its record. None if it is not due.
        """
        try:
            self._check_trusted_certs(instance)
            self._read_image(context, instance, image)
        except Exception as exc:
            is_due = stale_messages.is_due(instance, _REBUILDING, self.clock)
            return exc if is_due and instance.image_ref == image else None
        return None

    @retried(
        'The rebuild of server %(server)s begins when Glance answers: '
        '%(error)s',
        after(nova_exception.GlanceConnectionFailed),
    )
    def _read_image(self, context: Any, instance: Any, image: str) -> None:
        self.image_api.get(context, image)

    # Volumes and shares of a running server

    @oslo_messaging.expected_exceptions(  # type: ignore[untyped-decorator]
        nova_exception.InvalidInput
    )
    def reserve_block_device_name(
        self, context: Any, instance: Any, *args: Any, **kwargs: Any
    ) -> Any:
        """Refuse to attach a volume to a node that takes none.

        nova-api waits and returns the reason.
        """
        parent: Method = super().reserve_block_device_name  # type: ignore[misc]
        reason = self.driver.why_no_attach(instance)
        if reason is not None:
            raise nova_exception.InvalidInput(reason=reason)
        return parent(context, instance, *args, **kwargs)

    def detach_volume(
        self, context: Any, volume_id: Any, instance: Any, attachment_id: Any
    ) -> Any:
        """Refuse to detach a volume that Ironic would not let go of."""
        parent: Method = super().detach_volume  # type: ignore[misc]
        reason = self.driver.why_no_detach(instance, volume_id)
        if reason is None:
            return parent(context, volume_id, instance, attachment_id)
        return _refuse_detach(self, context, instance, volume_id, reason)

    @reported
    def swap_volume(
        self,
        context: Any,
        old_volume_id: Any,
        new_volume_id: Any,
        instance: Any,
        new_attachment_id: Any,
    ) -> None:
        """Refuse to swap volumes, and restore the states of both.

        Cinder asks for it when a volume in use is to be retyped or migrated,
        and waits until it is told of the end. It then deletes the new volume.
        """
        old = self.volume_api.get(context, old_volume_id)
        self.volume_api.roll_detaching(context, old_volume_id)
        if new_attachment_id is None:
            self.volume_api.unreserve_volume(context, new_volume_id)
        else:
            # It is gone if the message has come twice.
            with contextlib.suppress(nova_exception.VolumeAttachmentNotFound):
                self.volume_api.attachment_delete(context, new_attachment_id)
        if old.get('migration_status') == 'migrating':
            self.volume_api.migrate_volume_completion(
                context, old_volume_id, new_volume_id, error=True
            )
        raise nova_exception.NovaException(REASONS['swap_volume'])

    @reported
    def allow_share(
        self, context: Any, instance: Any, share_mapping: Any
    ) -> None:
        """Refuse to attach a share, and delete the API's record of it."""
        share_mapping.delete()
        raise nova_exception.NovaException(REASONS['allow_share'])

    # The system on the server

    @reported_and_idle
    def set_admin_password(
        self, context: Any, instance: Any, new_pass: Any
    ) -> None:
        """Refuse a password change; nova-api waits and returns the reason."""
        raise nova_exception.InstancePasswordSetFailed(
            instance=instance.uuid, reason=REASONS['set_admin_password']
        )

    def rescue_instance(
        self, context: Any, instance: Any, *args: Any, **kwargs: Any
    ) -> Any:
        """Refuse a rescue that the node does not support, before power-off.

        A refusal would clear the task that the server may have got meanwhile.
        """
        parent: Method = super().rescue_instance  # type: ignore[misc]
        reason = self.driver.why_no_rescue(instance)
        if reason and stale_messages.is_due(instance, _RESCUING, self.clock):
            return _refuse_rescue(self, context, instance, reason)
        return parent(context, instance, *args, **kwargs)


@refusal_of('rebuild_instance')
def _refuse_reimage(
    self: Any, context: Any, instance: Any, request: Mapping[str, Any]
) -> None:
    """Refuse a rebuild, and restore the metadata of the present image."""
    _restore_metadata(instance, request)
    raise nova_exception.NovaException(REASONS['rebuild_instance'])


@refusal_of('rebuild_instance')
def _refuse_image(
    self: Any,
    context: Any,
    instance: Any,
    request: Mapping[str, Any],
    reason: Exception,
) -> None:
    """Refuse a rebuild without an image, and restore the present image.

    It may have been deleted since nova-api has read it.
    """
    restore_image(
        instance, request['orig_image_ref'], request['orig_sys_metadata']
    )
    instance.save(expected_task_state=[task_states.REBUILDING])
    raise reason


def _restore_metadata(instance: Any, request: Mapping[str, Any]) -> None:
    """Save the metadata that a server had before the request of a rebuild.

    The metadata of a later rebuild would be lost if nova-conductor carried
    this save out late.
    """
    instance.system_metadata = request['orig_sys_metadata']
    instance.save(expected_task_state=[task_states.REBUILDING])


@refusal_of('rescue_instance')
def _refuse_rescue(
    self: Any, context: Any, instance: Any, reason: str
) -> None:
    raise nova_exception.NovaException(reason)


@refusal_of('detach_volume', reported)
def _refuse_detach(
    self: Any, context: Any, instance: Any, volume_id: str, reason: str
) -> None:
    """Refuse to detach a volume, and set the volume to in-use again."""
    self.volume_api.roll_detaching(context, volume_id)
    raise nova_exception.NovaException(reason)

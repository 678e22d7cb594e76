# SPDX-License-Identifier: Apache-2.0
"""New volumes: those that a build makes from an image, a snapshot or blank.

Cinder may copy an image for minutes, and Nova saves the id of a volume only
when the volume is attached. If the worker ended before, the build was done
again with a second volume, and no record of Nova named the first one, which
stayed in its user's project. The id is therefore saved as soon as Cinder has
answered. A build that is done again attaches that volume, and a delete of the
server deletes it.

Nova takes a volume without an attachment for one that was attached before its
Queens series, and detaches it with a request that would make it "available"
while Cinder still copies the image. A volume that is new is never detached.

Importing this module imports Nova's manager; see ``compute_manager``.
"""

import contextlib
import contextvars
import functools
from collections.abc import Callable, Iterator
from typing import Any

from nova import exception as nova_exception
from nova import objects
from nova.compute import manager as nova_manager
from nova.objects import fields
from nova.virt import block_device as driver_block_device
from oslo_log import log as logging

from hashring.clock import Clock
from ironic_compute.manager.reservations import RESERVED, list_attachments
from ironic_compute.manager.retries import (
    NO_ANSWER_OF_NOVA,
    after,
    retry_in_cinder,
)
from ironic_compute.retry import retry

LOG = logging.getLogger(__name__)

# The states of a volume that Cinder has not made yet.
_MAKING = ('creating', 'downloading')
# Why a volume of an earlier build cannot be used: Cinder could not make it, it
# is gone or in use elsewhere, or it is in another availability zone.
_UNUSABLE = (
    nova_exception.VolumeNotCreated,
    nova_exception.VolumeNotFound,
    nova_exception.InvalidVolume,
)
# The block devices of the build of this thread, as Nova attaches them.
_devices: contextvars.ContextVar[tuple[Any, ...]] = contextvars.ContextVar(
    'devices', default=()
)


def name_volumes(client: Any, clock: Clock) -> None:
    """Make a Cinder client of Nova save the id of each volume of a build.

    The client is changed in place. Without an answer of nova-conductor, its
    ``create`` blocks.
    """
    create = client.create

    @functools.wraps(create)
    def create_and_name(context: Any, *args: Any, **kwargs: Any) -> Any:
        volume = create(context, *args, **kwargs)
        # Nova attaches one volume after the other.
        unmade = [bdm for bdm in _devices.get() if not bdm.volume_id]
        for bdm in unmade[:1]:
            bdm.volume_id = volume['id']
            _save_name(bdm, clock)
        return volume

    client.create = create_and_name


def _save_name(bdm: Any, clock: Clock) -> None:
    try:
        retry(
            bdm.save,
            clock,
            after(*NO_ANSWER_OF_NOVA),
            lambda exc: LOG.warning(
                'New volume %(volume)s of server %(server)s is named in '
                'Nova when it answers: %(error)s',
                {
                    'volume': bdm.volume_id,
                    'server': bdm.instance_uuid,
                    'error': exc,
                },
            ),
        )
    except nova_exception.BDMNotFound:
        # The server was deleted meanwhile. Nova finds that out, too, and
        # deletes the volume when Cinder has made it.
        LOG.debug('Server %s has no block devices', bdm.instance_uuid)


@contextlib.contextmanager
def _naming(bdms: Any) -> Iterator[None]:
    """Save the ids of the volumes that this thread creates in the body."""
    devices = driver_block_device.convert_all_volumes(*bdms)
    token = _devices.set(tuple(device._bdm_obj for device in devices))
    try:
        yield
    finally:
        _devices.reset(token)


def is_new(bdm: Any) -> bool:
    """Return whether a build has made this volume and not attached it yet."""
    return bool(
        bdm.is_volume
        and bdm.source_type != fields.BlockDeviceSourceType.VOLUME
        and bdm.volume_id
        and not bdm.attachment_id
        and bdm.connection_info in (None, '{}')
    )


class NamesNewVolumes(nova_manager.ComputeManager):
    """Nova's ComputeManager, which loses no volume that a build makes."""

    clock: Clock
    volume_api: Any

    def _prep_block_device(
        self, context: Any, instance: Any, bdms: Any
    ) -> Any:
        """Attach the volumes of a server, also those of an earlier build."""
        try:
            self._find_attachments(context, instance.uuid, bdms)
            for bdm in filter(is_new, bdms):
                self._take_up(context, instance, bdm)
            self._disconnect(context, instance, bdms)
        except Exception as exc:
            # Nova shows its message to the user, as of any volume.
            raise nova_exception.InvalidBDM(str(exc)) from exc
        with _naming(bdms):
            return super()._prep_block_device(context, instance, bdms)

    def _find_attachments(self, context: Any, server: str, bdms: Any) -> None:
        """Put attachments that no worker has saved into the block devices.

        A worker may have ended between the two.
        """
        if any(is_new(bdm) for bdm in bdms):
            found = {
                each.get('volume_id'): each['id']
                for each in list_attachments(self.volume_api, context, server)
            }
            for bdm in filter(is_new, bdms):
                bdm.attachment_id = found.get(bdm.volume_id)

    def _disconnect(self, context: Any, instance: Any, bdms: Any) -> None:
        """Replace attachments of an earlier node by reservations.

        Cinder was away when the build there had failed. If it updated such an
        attachment, it would export the volume to that node for ever, and the
        next server there could read it.
        """
        attached = [bdm for bdm in bdms if bdm.is_volume and bdm.attachment_id]
        if not attached:
            return
        status_of = {
            each['id']: each.get('status', RESERVED)
            for each in list_attachments(
                self.volume_api, context, instance.uuid
            )
        }
        for bdm in attached:
            if status_of.get(bdm.attachment_id, RESERVED) != RESERVED:
                self._terminate_volume_connections(context, instance, [bdm])

    def _take_up(self, context: Any, instance: Any, bdm: Any) -> None:
        """Reserve the volume of an earlier build, or have a new one made.

        Blocks while Cinder makes it, as long as Nova waits for a volume.
        """
        try:
            self._await_block_device_map_created(context, bdm.volume_id)
            volume = self.volume_api.get(context, bdm.volume_id)
            self.volume_api.check_availability_zone(
                context, volume, instance=instance
            )
        except _UNUSABLE as exc:
            if exc.kwargs.get('volume_status') in _MAKING:
                raise
            self._replace(context, instance, bdm, exc)
            return
        made = self.volume_api.attachment_create(
            context, bdm.volume_id, instance.uuid
        )
        bdm.attachment_id = made['id']
        bdm.save()

    def _replace(
        self, context: Any, instance: Any, bdm: Any, why: Exception
    ) -> None:
        """Delete a volume that no server ever had; Nova makes another one."""
        LOG.warning(
            'Server %(server)s gets another volume than %(volume)s, which an '
            'earlier build has made: %(error)s',
            {'server': instance.uuid, 'volume': bdm.volume_id, 'error': why},
        )
        # It may be gone, or in use by another server.
        with contextlib.suppress(
            nova_exception.VolumeNotFound, nova_exception.InvalidInput
        ):
            self.volume_api.delete(context, bdm.volume_id)
        bdm.volume_id = None
        bdm.save()

    def _delete_instance(self, context: Any, instance: Any, bdms: Any) -> None:
        """Delete a server, with what a build has made and not attached.

        Since nova-api has read the block devices, the build may have attached
        the volume, or have put another one in its place, and a shelving may
        have replaced each attachment by a reservation. If nova-api has deleted
        the block devices, too, only the message has them.
        """
        if any(bdm.is_volume for bdm in bdms):
            bdms = (
                objects.BlockDeviceMappingList.get_by_instance_uuid(
                    context, instance.uuid
                )
                or bdms
            )
        self._ask_cinder(
            instance.uuid,
            lambda: self._find_attachments(context, instance.uuid, bdms),
        )
        super()._delete_instance(context, instance, bdms)

    def _shutdown_instance(
        self, context: Any, instance: Any, bdms: Any, *args: Any, **kwargs: Any
    ) -> None:
        """Shut a server down; volumes that are new need no detaching."""
        attached = [bdm for bdm in bdms if not is_new(bdm)]
        super()._shutdown_instance(
            context, instance, attached, *args, **kwargs
        )

    def _cleanup_volumes(
        self,
        context: Any,
        instance: Any,
        bdms: Any,
        raise_exc: bool = True,
        detach: bool = True,
    ) -> None:
        """Delete the volumes that are deleted with their server.

        :param detach: false for a delete, which waits while Cinder makes a
            volume: Cinder would refuse to delete it
        """
        attached = [bdm for bdm in bdms if not is_new(bdm)]
        new = [bdm for bdm in bdms if is_new(bdm)]
        if not detach:
            self._wait_until_made(context, instance.uuid, new)
            self._free_unnamed(context, instance.uuid, bdms)
        super()._cleanup_volumes(
            context, instance, new, raise_exc=raise_exc, detach=False
        )
        super()._cleanup_volumes(
            context, instance, attached, raise_exc=raise_exc, detach=detach
        )

    def _free_unnamed(self, context: Any, server: str, bdms: Any) -> None:
        """Delete the attachments of a server that no record of Nova names.

        The worker may have ended before it saved one, for instance while it
        shelved the server. Blocks until Cinder answers.
        """
        named = {bdm.attachment_id for bdm in bdms if bdm.is_volume}
        delete = self.volume_api.attachment_delete

        def free() -> None:
            for each in list_attachments(self.volume_api, context, server):
                if each['id'] not in named:
                    # One that Cinder refuses to delete keeps no other.
                    self._ask_cinder(
                        server, functools.partial(delete, context, each['id'])
                    )

        if named:
            self._ask_cinder(server, free)

    def _wait_until_made(
        self, context: Any, server: str, bdms: list[Any]
    ) -> None:
        """Block while Cinder makes volumes, as long as Nova waits for them."""
        wait = self._await_block_device_map_created
        for bdm in bdms:
            if bdm.delete_on_termination:
                self._ask_cinder(
                    server, functools.partial(wait, context, bdm.volume_id)
                )

    def _ask_cinder(self, server: str, request: Callable[[], Any]) -> None:
        """Send a request for a delete until Cinder answers.

        Any other error than that it does not answer is ignored, as Nova does
        in a delete.
        """
        try:
            retry_in_cinder(
                request,
                self.clock,
                lambda exc: LOG.warning(
                    'The new volumes of deleted server %(server)s are freed '
                    'when Cinder answers: %(error)s',
                    {'server': server, 'error': exc},
                ),
            )
        except Exception as exc:
            LOG.info(
                'Deleting server %(server)s although one of its new volumes '
                'is not usable: %(error)s',
                {'server': server, 'error': exc},
            )

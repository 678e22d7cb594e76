# SPDX-License-Identifier: Apache-2.0
"""Reservations: attachments in Cinder of volumes that are on no node.

A server keeps each of its volumes while it has no node. Cinder frees a volume
when its last attachment is deleted, and no record of Nova names a reservation
whose answer was lost, or whose worker ended before it saved the answer. Each
request for a reservation therefore looks for that of an earlier try first.
"""

from typing import Any

from nova import exception as nova_exception
from nova import objects
from nova.volume import cinder

# The state of an attachment to no node.
RESERVED = 'reserved'


def reserve(volume_api: Any, context: Any, server: str, bdm: Any) -> str:
    """Return the id of a reservation, of an earlier try or a new one.

    It takes the place of the attachment in the block device, which is neither
    deleted nor saved here. Any error of Cinder is raised.
    """
    found = find_reservation(volume_api, context, server, bdm)
    if found is not None:
        return found
    made = volume_api.attachment_create(context, bdm.volume_id, server)
    return str(made['id'])


def find_reservation(
    volume_api: Any, context: Any, server: str, bdm: Any
) -> str | None:
    """Return the id of a reservation that the block device does not name."""
    for each in list_attachments(volume_api, context, server):
        is_other = each['id'] != bdm.attachment_id
        is_of_volume = each.get('volume_id') == bdm.volume_id
        if is_other and is_of_volume and each.get('status') == RESERVED:
            return str(each['id'])
    return None


def renew_all(volume_api: Any, context: Any, server: str) -> Any:
    """Return the block devices of a server as an earlier build left them.

    That build may have created volumes, which its message does not name. The
    attachments that it has deleted in Cinder are replaced by reservations. Any
    error of Cinder is raised.
    """
    bdms = objects.BlockDeviceMappingList.get_by_instance_uuid(context, server)
    for bdm in bdms:
        if not bdm.is_volume or not bdm.attachment_id:
            continue
        try:
            volume_api.attachment_get(context, bdm.attachment_id)
        except nova_exception.VolumeAttachmentNotFound:
            bdm.attachment_id = reserve(volume_api, context, server, bdm)
            bdm.save()
    return bdms


def list_attachments(volume_api: Any, context: Any, server: str) -> list[Any]:
    """Return the attachments of a server's volumes.

    Cinder lists those of the caller's project only, unless an administrator
    asks for all. Recovery is one of another project, and so may be the user
    who shelves or deletes the server.
    """
    if not context.is_admin:
        return list(volume_api.attachment_get_all(context, instance_id=server))
    client = cinder.cinderclient(context, '3.44', skip_version_check=True)
    found = client.attachments.list(
        search_opts={'all_tenants': '1', 'instance_id': server}
    )
    return [each.to_dict() for each in found]

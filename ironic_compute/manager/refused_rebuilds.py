# SPDX-License-Identifier: Apache-2.0
"""Refused rebuilds: the server keeps its image and its state in Nova.

nova-api saves the new image in the Instance before it sends the request. If
the driver reports that the disk was not touched, Nova puts the server back to
its former state, but leaves the new image in its record. The class here
restores the image, which has no certificates: no node can check them, so no
server is built with any. What else the user changed with the rebuild (name,
key, user data, …) stays, because no message has the former values; these
values take effect when the server is rebuilt the next time.
"""

from collections.abc import Mapping
from typing import Any

from nova import exception as nova_exception
from nova import utils as nova_utils
from nova.compute import task_states

from ironic_compute.nodes import records

_PREFIX: str = nova_utils.SM_IMAGE_PROP_PREFIX
# Fields of the Instance that nova-api copies from properties of the image, and
# their values if the image lacks the property.
_COPIED: Mapping[str, str | None] = {
    'kernel_id': '',
    'ramdisk_id': '',
    'os_type': None,
    'architecture': None,
    'vm_mode': None,
}


class RefusedRebuilds:
    """Mixin for Nova's ``ComputeManager``; the signature is Nova's."""

    def _do_rebuild_instance_with_claim(
        self,
        context: Any,
        instance: Any,
        orig_image_ref: Any,
        image_meta: Any,
        injected_files: Any,
        new_pass: Any,
        orig_sys_metadata: Any,
        *args: Any,
        **kwargs: Any,
    ) -> None:
        """Rebuild a server; restore its image if the rebuild is refused.

        :raises nova.exception.InstanceFaultRollback: it was refused; Nova
            puts the server back to its former state
        """
        parent: Any = super()
        try:
            parent._do_rebuild_instance_with_claim(
                context,
                instance,
                orig_image_ref,
                image_meta,
                injected_files,
                new_pass,
                orig_sys_metadata,
                *args,
                **kwargs,
            )
        except nova_exception.InstanceFaultRollback:
            # Saved before Nova clears the task: recovery would take a server
            # without a task, and with the new image, for a rebuilt one.
            restore_image(instance, orig_image_ref, orig_sys_metadata)
            instance.save(
                expected_task_state=[
                    task_states.REBUILDING,
                    task_states.REBUILD_SPAWNING,
                ]
            )
            # Nova saves it when it clears the task; recovery needs it before.
            records.clear_before_rebuild(instance)
            raise


def restore_image(
    instance: Any, image_ref: str, system_metadata: Mapping[str, str]
) -> None:
    """Restore the image in an Instance, which is not saved.

    :param image_ref: the former image
    :param system_metadata: the metadata of the former Instance
    """
    image = {
        key: value
        for key, value in system_metadata.items()
        if key.startswith(_PREFIX)
    }
    others = {
        key: value
        for key, value in instance.system_metadata.items()
        if not key.startswith(_PREFIX)
    }
    instance.image_ref, instance.trusted_certs = image_ref, None
    instance.system_metadata = {**others, **image}
    for field, default in _COPIED.items():
        setattr(instance, field, image.get(f'{_PREFIX}{field}', default))

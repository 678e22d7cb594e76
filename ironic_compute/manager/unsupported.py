# SPDX-License-Identifier: Apache-2.0
"""What bare metal cannot do, refused before anything is touched.

Nova's API offers every operation of every hypervisor, and its compute
manager finds out late that a driver cannot do one: it powers a node off
before it learns that no image can be made of it. Here each such operation
ends at once. The server is left exactly as it was, whatever the API prepared
(an image, an allocation, a reserved volume) is taken back, and the action's
event says in one sentence why, and what to do instead.

Imported by the manager alone, for the same reason: importing Nova's manager
freezes the intervals of its periodic tasks.
"""

from collections.abc import Callable, Mapping
from typing import Any

import oslo_messaging
from nova import exception as nova_exception
from nova.compute import manager as nova_manager
from nova.compute import utils as compute_utils

# By the method of Nova's manager. The manual repeats each.
REASONS: Mapping[str, str] = {
    'pause_instance': (
        'A bare metal server cannot be paused; stop it instead'
    ),
    'suspend_instance': (
        'A bare metal server cannot be suspended; stop it instead'
    ),
    'snapshot_instance': (
        'No image can be made of the disks of a bare metal server; copy them '
        'from within the server'
    ),
    'backup_instance': (
        'No backup can be made of the disks of a bare metal server; copy '
        'them from within the server'
    ),
    'shelve_instance': (
        'A bare metal server can be shelved only if its root disk is a '
        'volume; stop it instead'
    ),
    'prep_resize': (
        'A bare metal server cannot be resized or migrated, because it is '
        'its machine; create another server instead'
    ),
    'check_can_live_migrate_destination': (
        'A bare metal server cannot be migrated, because it is its machine; '
        'create another server instead'
    ),
    'rebuild_instance': (
        'The root disk of this server is a volume, which cannot be written '
        'anew on bare metal; create another server instead'
    ),
    'evacuate': (
        'A bare metal server cannot be evacuated, because its disks are in '
        'its machine; it is served again as soon as a compute daemon of its '
        'pool runs'
    ),
    'reserve_block_device_name': (
        'Volumes can be attached to a bare metal server only when it is '
        'created; create another server with the volume instead'
    ),
    'detach_volume': (
        'Volumes cannot be detached from a bare metal server; deleting the '
        'server detaches them'
    ),
    'swap_volume': (
        'A volume of a bare metal server cannot be replaced; create another '
        'server with the other volume instead'
    ),
    'allow_share': (
        'Shares cannot be attached to a bare metal server; mount them from '
        'within the server'
    ),
    'set_admin_password': (
        'only the system on a bare metal server can change its passwords; '
        'log in and change it there, or use rescue'
    ),
}

# What ``rebuild_instance`` takes by position after the instance; only Nova's
# door for older callers uses positions.
_REBUILD = (
    'orig_image_ref',
    'image_ref',
    'injected_files',
    'new_pass',
    'orig_sys_metadata',
    'bdms',
    'recreate',
    'on_shared_storage',
    'preserve_ephemeral',
    'migration',
    'scheduled_node',
    'limits',
    'request_spec',
    'accel_uuids',
    'reimage_boot_volume',
    'target_state',
)

Method = Callable[..., Any]


def _told(function: Method, *ends: Callable[[Method], Method]) -> Method:
    """Let a refusal be told the way Nova tells what its methods raise.

    The server's action has an event with the sentence, and the log has a
    line instead of a traceback. The order of the wraps is Nova's.
    """
    for wrap in (
        nova_manager.wrap_instance_fault,
        nova_manager.wrap_instance_event(prefix='compute'),
        *ends,
        nova_manager.wrap_exception(),
        oslo_messaging.expected_exceptions(nova_exception.NovaException),
    ):
        function = wrap(function)
    return function


def _told_and_idle(function: Method) -> Method:
    """Let a refusal be told, and end the task that Nova's API began.

    For those only that begin with a task; the others would end somebody
    else's.
    """
    return _told(function, nova_manager.reverts_task_state)


def _refusing(name: str) -> Method:
    """Return a method of the manager that refuses, and does nothing else."""

    def refuse(
        self: Any, context: Any, instance: Any, *args: Any, **kwargs: Any
    ) -> None:
        raise nova_exception.NovaException(REASONS[name])

    refuse.__name__ = name  # Nova names the action's event after it.
    return _told_and_idle(refuse)


def _refusing_image(name: str) -> Method:
    """Return such a method that deletes the image Nova's API has made."""

    def refuse(
        self: Any,
        context: Any,
        instance: Any,
        image_id: Any,
        *args: Any,
        **kwargs: Any,
    ) -> None:
        compute_utils.delete_image(context, instance, self.image_api, image_id)
        raise nova_exception.NovaException(REASONS[name])

    refuse.__name__ = name
    return _told_and_idle(refuse)


class UnsupportedOperations:
    """Mixin before Nova's ``ComputeManager``; signatures are Nova's."""

    image_api: Any
    volume_api: Any
    reportclient: Any
    driver: Any
    _revert_allocation: Method
    _instance_update: Method

    pause_instance = _refusing('pause_instance')
    suspend_instance = _refusing('suspend_instance')

    snapshot_instance = _refusing_image('snapshot_instance')
    backup_instance = _refusing_image('backup_instance')
    # Nova's API shelves servers whose root disk is a volume another way.
    shelve_instance = _refusing_image('shelve_instance')

    # Moves

    @_told_and_idle
    def prep_resize(
        self,
        context: Any,
        image: Any,
        instance: Any,
        flavor: Any,
        request_spec: Any,
        filter_properties: Any,
        node: Any,
        clean_shutdown: Any,
        migration: Any,
        host_list: Any,
    ) -> None:
        """Refuse a resize or a cold migration on its destination.

        The conductor has given the server's allocation to the migration and
        one of another node to the server; both go back.
        """
        with nova_manager.errors_out_migration_ctxt(migration):
            self._revert_allocation(context, instance, migration)
            raise nova_exception.NovaException(REASONS['prep_resize'])

    @_told
    def check_can_live_migrate_destination(
        self, ctxt: Any, instance: Any, *args: Any, **kwargs: Any
    ) -> None:
        """Refuse a live migration; the conductor takes back what it did."""
        raise nova_exception.MigrationPreCheckError(
            reason=REASONS['check_can_live_migrate_destination']
        )

    def rebuild_instance(
        self, context: Any, instance: Any, *args: Any, **kwargs: Any
    ) -> Any:
        """Refuse an evacuation, and any rebuild of a boot volume.

        Before API 2.93 nova-api lets one pass that has the same image: Nova
        rebuilds around the volume then. Here that is a deploy as well.
        """
        parent: Method = super().rebuild_instance  # type: ignore[misc]
        asked = {**dict(zip(_REBUILD, args, strict=False)), **kwargs}
        if asked['recreate']:
            return _refuse_evacuation(self, context, instance, asked)
        if compute_utils.is_volume_backed_instance(
            context, instance, asked['bdms']
        ):
            return _refuse_reimage(self, context, instance, asked)
        return parent(context, instance, *args, **kwargs)

    # Volumes and shares of a server that has its machine

    @oslo_messaging.expected_exceptions(  # type: ignore[untyped-decorator]
        nova_exception.InvalidInput
    )
    def reserve_block_device_name(
        self, context: Any, instance: Any, *args: Any, **kwargs: Any
    ) -> None:
        """Refuse a volume while nova-api waits: its user reads why."""
        raise nova_exception.InvalidInput(
            reason=REASONS['reserve_block_device_name']
        )

    @_told
    def detach_volume(
        self, context: Any, volume_id: Any, instance: Any, attachment_id: Any
    ) -> None:
        """Refuse; the volume is in use again, no more being detached."""
        self.volume_api.roll_detaching(context, volume_id)
        raise nova_exception.NovaException(REASONS['detach_volume'])

    @_told
    def swap_volume(
        self,
        context: Any,
        old_volume_id: Any,
        new_volume_id: Any,
        instance: Any,
        new_attachment_id: Any,
    ) -> None:
        """Refuse; both volumes are what they were before the request."""
        self.volume_api.roll_detaching(context, old_volume_id)
        if new_attachment_id is None:
            self.volume_api.unreserve_volume(context, new_volume_id)
        else:
            self.volume_api.attachment_delete(context, new_attachment_id)
        raise nova_exception.NovaException(REASONS['swap_volume'])

    @_told
    def allow_share(
        self, context: Any, instance: Any, share_mapping: Any
    ) -> None:
        """Refuse; the API's record of the share goes."""
        share_mapping.delete()
        raise nova_exception.NovaException(REASONS['allow_share'])

    # The system on the server

    @_told_and_idle
    def set_admin_password(
        self, context: Any, instance: Any, new_pass: Any
    ) -> None:
        """Refuse while nova-api waits: its user reads why."""
        raise nova_exception.InstancePasswordSetFailed(
            instance=instance.uuid, reason=REASONS['set_admin_password']
        )

    def rescue_instance(
        self, context: Any, instance: Any, *args: Any, **kwargs: Any
    ) -> Any:
        """Refuse before the node is powered off, if it has no rescue."""
        parent: Method = super().rescue_instance  # type: ignore[misc]
        reason = self.driver.why_no_rescue(instance)
        if reason is None:
            return parent(context, instance, *args, **kwargs)
        return _refuse_rescue(self, context, instance, reason)


def _named(name: str) -> Callable[[Method], Method]:
    """Make a refusal that depends on the request look like its method."""

    def rename(function: Method) -> Method:
        function.__name__ = name
        return _told_and_idle(function)

    return rename


@_named('rebuild_instance')
def _refuse_evacuation(
    self: Any, context: Any, instance: Any, asked: Mapping[str, Any]
) -> None:
    """Refuse, and give back what was allocated for it elsewhere."""
    with nova_manager.errors_out_migration_ctxt(asked['migration']):
        found = self.reportclient.get_allocs_for_consumer(
            context, instance.uuid
        )
        for provider in set(found['allocations']) - {instance.node}:
            self.reportclient.remove_provider_tree_from_instance_allocation(
                context, instance.uuid, provider
            )
        raise nova_exception.NovaException(REASONS['evacuate'])


@_named('rebuild_instance')
def _refuse_reimage(
    self: Any, context: Any, instance: Any, asked: Mapping[str, Any]
) -> None:
    """Refuse, and describe the server by its present image again."""
    instance.system_metadata = asked['orig_sys_metadata']
    instance.save()
    raise nova_exception.NovaException(REASONS['rebuild_instance'])


@_named('rescue_instance')
def _refuse_rescue(
    self: Any, context: Any, instance: Any, reason: str
) -> None:
    raise nova_exception.NovaException(reason)

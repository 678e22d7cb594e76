# SPDX-License-Identifier: Apache-2.0
"""Refuses operations that bare metal does not support, with a reason.

Nova's API offers the operations of every hypervisor, and its compute manager
notices late that a driver does not support one: it powers a node off before it
finds that no snapshot can be made. The methods here refuse such an operation
at once. The server stays as it was; objects that the API prepared (an image,
an allocation, a reserved volume) are removed; and the action's event gives the
user the reason and an alternative in one sentence.

Only ``compute_manager`` imports this module, because importing Nova's manager
freezes the intervals of its periodic tasks.
"""

import functools
import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import oslo_messaging
from keystoneauth1 import exceptions as ksa_exceptions
from nova import exception as nova_exception
from nova import safe_utils
from nova.compute import manager as nova_manager
from nova.compute import task_states
from nova.compute import utils as compute_utils

from hashring.clock import Clock
from ironic_compute.manager import stale_messages
from ironic_compute.manager.newer_tasks import keeping_newer_tasks
from ironic_compute.manager.refused_rebuilds import restore_image
from ironic_compute.manager.retries import after, retried

# The reasons by the method of Nova's manager. The manual repeats each one.
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

Method = Callable[..., Any]


def _reported(function: Method, *ends: Callable[[Method], Method]) -> Method:
    """Wrap a method in Nova's decorators that report an error to the user.

    The server's action gets an event with the reason, and the log gets a line
    instead of a traceback. The order of the decorators is Nova's.
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


def _reported_and_idle(function: Method) -> Method:
    """Wrap a method like ``_reported``, and clear the server's task.

    Use it only for operations for which nova-api sets a task state; otherwise
    the task of another operation would be cleared.
    """
    return _reported(
        function, nova_manager.reverts_task_state, _keeping_newer_task
    )


def _keeping_newer_task(function: Method) -> Method:
    """Let a refusal clear no task but its own.

    nova-api accepts a hard reboot of a server that is to be paused or
    suspended, and any request if the refusal's message comes twice.
    """
    bare = safe_utils.get_wrapped_function(function)

    @functools.wraps(function)
    def refuse(self: Any, context: Any, *args: Any, **kwargs: Any) -> Any:
        call = inspect.getcallargs(bare, self, context, *args, **kwargs)
        server = call['instance']
        with keeping_newer_tasks(server, frozenset({server.task_state})):
            return function(self, context, *args, **kwargs)

    return refuse


def _refusing(name: str) -> Method:
    """Return a manager method that only refuses an operation."""

    def refuse(
        self: Any, context: Any, instance: Any, *args: Any, **kwargs: Any
    ) -> None:
        raise nova_exception.NovaException(REASONS[name])

    # Nova uses the function's name as the name of the action's event.
    refuse.__name__ = name
    return _reported_and_idle(refuse)


def _refusing_image(name: str) -> Method:
    """Return a manager method that refuses, and deletes nova-api's image."""

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
    return _reported_and_idle(refuse)


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
_retried_in_placement = retried(
    'What was allocated for a refused move of server %(server)s is freed when '
    'Placement answers: %(error)s',
    after(
        ksa_exceptions.ClientException,
        nova_exception.AllocationMoveFailed,
        nova_exception.ConsumerAllocationRetrievalFailed,
        nova_exception.ResourceProviderRetrievalFailed,
    ),
)


class UnsupportedOperations:
    """Mixin for Nova's ``ComputeManager``; the signatures are Nova's."""

    clock: Clock
    image_api: Any
    volume_api: Any
    reportclient: Any
    driver: Any
    _check_trusted_certs: Method

    pause_instance = _refusing('pause_instance')
    suspend_instance = _refusing('suspend_instance')

    snapshot_instance = _refusing_image('snapshot_instance')
    backup_instance = _refusing_image('backup_instance')
    # For a server whose root disk is a volume, nova-api sends
    # ``shelve_offload_instance`` instead.
    shelve_instance = _refusing_image('shelve_instance')

    # Moves

    @_reported_and_idle
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

        The conductor has moved the server's allocation to the migration and
        allocated another node to the server; both changes are undone.
        """
        with nova_manager.errors_out_migration_ctxt(migration):
            self._take_back_allocation(context, instance, migration)
            raise nova_exception.NovaException(REASONS['prep_resize'])

    @_retried_in_placement
    def _take_back_allocation(
        self, context: Any, instance: Any, migration: Any
    ) -> None:
        """Give a server the allocation that the conductor gave a migration.

        Otherwise nobody could use either node, the first one not even after
        the delete of the server. Blocks until Placement answers.
        """
        client, holder = self.reportclient, migration.uuid
        if not stale_messages.refresh(instance, self.clock):
            client.delete_allocation_for_instance(
                context, holder, consumer_type='migration', force=True
            )
            return
        found = client.get_allocs_for_consumer(context, holder)
        if not found['allocations']:
            return
        _check_done(_move_allocations(client, context, holder, instance.uuid))

    @_reported
    def check_can_live_migrate_destination(
        self, ctxt: Any, instance: Any, *args: Any, **kwargs: Any
    ) -> None:
        """Refuse a live migration; the conductor undoes its changes."""
        raise nova_exception.MigrationPreCheckError(
            reason=REASONS['check_can_live_migrate_destination']
        )

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
            return _refuse_evacuation(self, context, instance, request)
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

    @_reported
    def swap_volume(
        self,
        context: Any,
        old_volume_id: Any,
        new_volume_id: Any,
        instance: Any,
        new_attachment_id: Any,
    ) -> None:
        """Refuse to swap volumes, and restore the states of both."""
        self.volume_api.roll_detaching(context, old_volume_id)
        if new_attachment_id is None:
            self.volume_api.unreserve_volume(context, new_volume_id)
        else:
            self.volume_api.attachment_delete(context, new_attachment_id)
        raise nova_exception.NovaException(REASONS['swap_volume'])

    @_reported
    def allow_share(
        self, context: Any, instance: Any, share_mapping: Any
    ) -> None:
        """Refuse to attach a share, and delete the API's record of it."""
        share_mapping.delete()
        raise nova_exception.NovaException(REASONS['allow_share'])

    # The system on the server

    @_reported_and_idle
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
        """Refuse a rescue that the node does not support, before power-off."""
        parent: Method = super().rescue_instance  # type: ignore[misc]
        reason = self.driver.why_no_rescue(instance)
        if reason is None:
            return parent(context, instance, *args, **kwargs)
        return _refuse_rescue(self, context, instance, reason)


def _refusal_of(
    name: str, report: Callable[[Method], Method] = _reported_and_idle
) -> Callable[[Method], Method]:
    """Decorate a refusal; Nova gives the action's event the name ``name``.

    :param report: ``_reported`` for an operation without a task state
    """

    def rename(function: Method) -> Method:
        function.__name__ = name
        return report(function)

    return rename


@_refusal_of('rebuild_instance')
def _refuse_evacuation(
    self: Any, context: Any, instance: Any, request: Mapping[str, Any]
) -> None:
    """Refuse an evacuation, and delete its allocations on other nodes."""
    with nova_manager.errors_out_migration_ctxt(request['migration']):
        _free_other_nodes(self, context, instance)
        raise nova_exception.NovaException(REASONS['evacuate'])


@_retried_in_placement
def _free_other_nodes(self: Any, context: Any, instance: Any) -> None:
    client, server = self.reportclient, instance.uuid
    found = client.get_allocs_for_consumer(context, server)
    for provider in set(found['allocations']) - {instance.node}:
        _check_done(
            client.remove_provider_tree_from_instance_allocation(
                context, server, provider
            )
        )


def _move_allocations(
    client: Any, context: Any, holder: str, server: str
) -> bool | None:
    """Give the allocations of a migration to its server.

    :returns: whether that is done; None if Placement cannot be reached
    """
    try:
        done: bool | None = client.move_allocations(context, holder, server)
    except (LookupError, ValueError):
        # A proxy has answered, and Nova has looked for Placement's own error.
        return False
    return done


def _check_done(is_done: bool | None) -> None:
    """Raise the error that Nova's client of Placement has hidden, if any."""
    if not is_done:
        raise ksa_exceptions.ClientException('it did not do what was asked')


@_refusal_of('rebuild_instance')
def _refuse_reimage(
    self: Any, context: Any, instance: Any, request: Mapping[str, Any]
) -> None:
    """Refuse a rebuild, and restore the metadata of the present image."""
    _restore_metadata(instance, request)
    raise nova_exception.NovaException(REASONS['rebuild_instance'])


@_refusal_of('rebuild_instance')
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


@_refusal_of('rescue_instance')
def _refuse_rescue(
    self: Any, context: Any, instance: Any, reason: str
) -> None:
    raise nova_exception.NovaException(reason)


@_refusal_of('detach_volume', _reported)
def _refuse_detach(
    self: Any, context: Any, instance: Any, volume_id: str, reason: str
) -> None:
    """Refuse to detach a volume, and set the volume to in-use again."""
    self.volume_api.roll_detaching(context, volume_id)
    raise nova_exception.NovaException(reason)

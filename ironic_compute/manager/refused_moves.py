# SPDX-License-Identifier: Apache-2.0
"""Refuses resizes, migrations and evacuations, and frees what they allocated.

nova-conductor allocates another node to the server before it asks this host.
Without the refusal here nobody could use that node, or either. The message has
the availability zone of that node as that of the server, unsaved; the server
keeps its own.

Importing this module imports Nova's manager; see ``compute_manager``.
"""

from collections.abc import Mapping
from typing import Any

from keystoneauth1 import exceptions as ksa_exceptions
from nova import exception as nova_exception
from nova.compute import manager as nova_manager

from hashring.clock import Clock
from ironic_compute.manager import forwarding, stale_messages
from ironic_compute.manager.refusals import (
    REASONS,
    refusal_of,
    reported,
    reported_and_idle,
)
from ironic_compute.manager.retries import after, retried

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


class RefusedMoves:
    """Mixin for Nova's ``ComputeManager``; the signatures are Nova's."""

    clock: Clock
    reportclient: Any

    @reported_and_idle
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
        _keep_zone(instance)
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

    @reported
    def check_can_live_migrate_destination(
        self, ctxt: Any, instance: Any, *args: Any, **kwargs: Any
    ) -> None:
        """Refuse a live migration; the conductor undoes its changes."""
        raise nova_exception.MigrationPreCheckError(
            reason=REASONS['check_can_live_migrate_destination']
        )


@refusal_of('rebuild_instance')
def refuse_evacuation(
    self: Any, context: Any, instance: Any, request: Mapping[str, Any]
) -> None:
    """Refuse an evacuation, and delete its allocations on other nodes."""
    _keep_zone(instance)
    with nova_manager.errors_out_migration_ctxt(request['migration']):
        _free_other_nodes(self, context, instance)
        raise nova_exception.NovaException(REASONS['evacuate'])


def _keep_zone(instance: Any) -> None:
    """Leave out the zone of another node when the Instance is saved."""
    instance.obj_reset_changes(['availability_zone'])


@_retried_in_placement
def _free_other_nodes(self: Any, context: Any, instance: Any) -> None:
    client, server = self.reportclient, instance.uuid
    found = set(client.get_allocs_for_consumer(context, server)['allocations'])
    own = instance.node
    if found and own not in found:
        own = forwarding.read_provider(context, own)
    for provider in found - {own}:
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

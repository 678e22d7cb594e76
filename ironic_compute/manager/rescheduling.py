# SPDX-License-Identifier: Apache-2.0
"""Rescheduling: the loser of a node is scheduled anew, with fresh candidates.

Placement can give one node to two servers (doc/source/admin/operations.rst),
and many servers that are built at once have the same alternates. Nova would
try the old alternates of the loser, which others have by now, and end the
build in ERROR. The worker therefore asks the scheduler for other hosts.

The conductor itself would ask the scheduler if it got no list of hosts, but
Nova 33 and 34 fail then: the scheduler gets a request whose
``requested_resources`` are None.
"""

from typing import Any

from nova import exception as nova_exception
from nova.conductor import api
from nova.scheduler.client import query
from oslo_log import log as logging

LOG = logging.getLogger(__name__)

# A build may lose so many nodes before each further loss counts as one of
# ``[scheduler] max_attempts``.
LOSSES_MAX = 20
_LOSSES = 'ironic_compute_losses'
# The error of a refused claim and of a node that could not be reserved.
_LOST = 'ComputeResourcesUnavailable'


class FreshCandidates(api.ComputeTaskAPI):
    """Nova's client of the conductor, for builds that a worker gives up.

    :param reportclient: Nova's client of Placement
    """

    def __init__(self, reportclient: Any) -> None:
        super().__init__()
        self._reportclient = reportclient
        self._scheduler = query.SchedulerQueryClient()

    def build_instances(
        self,
        context: Any,
        instances: Any,
        image: Any,
        filter_properties: dict[str, Any],
        *args: Any,
        **kwargs: Any,
    ) -> None:
        """Reschedule a build; anew, if it has lost its node to another one.

        Without a list of hosts it is scheduled anew as well.
        """
        has_lost = has_lost_node(filter_properties)
        alternates = kwargs.get('host_lists')
        if has_lost:
            exclude_from_attempts(filter_properties)
        if has_lost or alternates is None:
            spec = kwargs.get('request_spec')
            kwargs['host_lists'] = self._select_hosts(
                context, instances[0], spec, alternates
            )
        super().build_instances(
            context, instances, image, filter_properties, *args, **kwargs
        )

    def _select_hosts(
        self, context: Any, instance: Any, spec: Any, alternates: Any
    ) -> Any:
        """Return fresh hosts for a server; the alternates if there are none.

        Blocks for one RPC to the scheduler and one request to Placement.

        :raises oslo_messaging.MessagingTimeout: the scheduler does not answer,
            and there are no alternates
        """
        try:
            found = self._ask_scheduler(context, instance, spec)
        except nova_exception.NoValidHost:
            # The conductor ends the build: no host is left.
            return alternates or [[]]
        except Exception as exc:
            if alternates is None:
                raise
            LOG.warning(
                'Could not schedule server %(server)s anew, so its alternate '
                'nodes are tried: %(error)s',
                {'server': instance.uuid, 'error': exc},
            )
            return alternates
        return found

    def _ask_scheduler(self, context: Any, instance: Any, spec: Any) -> Any:
        spec = spec.obj_clone()
        if not getattr(spec, 'requested_resources', None):
            spec.requested_resources = []
        found = self._scheduler.select_destinations(
            context,
            spec,
            [instance.uuid],
            return_objects=True,
            return_alternates=True,
        )
        # The conductor makes the allocation, and refuses a second one.
        self._reportclient.delete_allocation_for_instance(
            context, instance.uuid, force=True
        )
        return found


def has_lost_node(filter_properties: dict[str, Any]) -> bool:
    """Return whether a build failed because its node was not free."""
    retry = filter_properties.get('retry') or {}
    return any(_LOST in line for line in retry.get('exc') or ())


def exclude_from_attempts(filter_properties: dict[str, Any]) -> None:
    """Do not count a lost node as an attempt, up to a limit.

    The first attempt always counts, because the conductor takes a build with
    fewer for one that no cell has yet, and deletes the server's mapping.
    """
    losses_count = filter_properties.get(_LOSSES, 0)
    if losses_count < LOSSES_MAX:
        filter_properties[_LOSSES] = losses_count + 1
        retry = filter_properties['retry']
        retry['num_attempts'] = max(1, retry['num_attempts'] - 1)

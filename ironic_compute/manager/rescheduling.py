# SPDX-License-Identifier: Apache-2.0
"""Rescheduling: the loser of a node is scheduled anew, with fresh candidates.

Placement can give one node to two servers (doc/source/admin/operations.rst),
and many servers that are built at once have the same alternates. Nova would
try the old alternates of the loser, which others have by now, and end the
build in ERROR. The conductor chooses among all nodes again if it gets no list
of hosts.
"""

from typing import Any

from nova.conductor import api

# A build may lose so many nodes before each further loss counts as one of
# ``[scheduler] max_attempts``.
LOSSES_MAX = 20
_LOSSES = 'ironic_compute_losses'
# The error of a refused claim and of a node that could not be reserved.
_LOST = 'ComputeResourcesUnavailable'


class FreshCandidates(api.ComputeTaskAPI):
    """Nova's client of the conductor, for builds that a worker gives up."""

    def build_instances(
        self,
        context: Any,
        instances: Any,
        image: Any,
        filter_properties: dict[str, Any],
        *args: Any,
        **kwargs: Any,
    ) -> None:
        """Reschedule a build; anew, if it has lost its node to another one."""
        if has_lost_node(filter_properties):
            kwargs['host_lists'] = None
            exclude_from_attempts(filter_properties)
        super().build_instances(
            context, instances, image, filter_properties, *args, **kwargs
        )


def has_lost_node(filter_properties: dict[str, Any]) -> bool:
    """Return whether a build failed because its node was not free."""
    retry = filter_properties.get('retry') or {}
    return any(_LOST in line for line in retry.get('exc') or ())


def exclude_from_attempts(filter_properties: dict[str, Any]) -> None:
    """Do not count a lost node as an attempt, up to a limit."""
    losses_count = filter_properties.get(_LOSSES, 0)
    if losses_count < LOSSES_MAX:
        filter_properties[_LOSSES] = losses_count + 1
        filter_properties['retry']['num_attempts'] -= 1

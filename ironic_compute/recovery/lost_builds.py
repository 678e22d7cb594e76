# SPDX-License-Identifier: Apache-2.0
"""Ends builds whose message was lost, for the recovery loop."""

import functools
import re
import threading
from collections.abc import Callable, Mapping
from typing import Any

from nova import context as nova_context
from nova import objects
from nova.compute import vm_states
from oslo_log import log as logging
from oslo_utils import timeutils

from ironic_compute.nodes.held_nodes import HeldNodes
from ironic_compute.recovery.decisions import UNSHELVING
from ironic_compute.recovery.failures import TaskFailures
from ironic_compute.recovery.in_progress import (
    InProgress,
    StartThread,
    run_exclusive,
    start_thread,
)
from resource_tracker.node import NodeId

LOG = logging.getLogger(__name__)


# As Nova reads it: resources:CUSTOM_X, resources1:CUSTOM_X, resources_A:….
_CUSTOM_CLASS = re.compile(r'resources[\w-]*:CUSTOM_')

LOST_STATES = (vm_states.BUILDING, vm_states.ERROR, vm_states.DELETED)
"""Of a server that has no host, and may have an allocation."""


class LostBuilds:
    """End builds whose message was lost; ``look`` is called now and then.

    To unshelve a server is a build, too, but if it is lost the server is
    shelved as before.

    A build that has failed, and whose worker was killed before it gave the
    allocation back, is one of them, and so is one that was deleted while it
    was built. Without its allocation nobody would find the first kind, so the
    row is always the first to change.

    :param node_of_row: returns the nodes a server has an allocation on
    :param lost_s: a build that nobody began for so long is lost
    :param begin: does something beside everything else
    """

    def __init__(
        self,
        held_nodes: HeldNodes,
        failures: TaskFailures,
        node_of_row: Callable[[Any, str], list[NodeId]],
        in_progress: InProgress,
        lost_s: float,
        begin: StartThread = start_thread,
    ) -> None:
        self._held_nodes = held_nodes
        self._failures = failures
        self._node_of = node_of_row
        self._in_progress = in_progress
        self._lost_s = lost_s
        self._begin = begin
        self._looking = threading.Lock()
        self._without_node: set[str] = set()

    def check(self) -> None:
        """Begin to end the lost builds with an allocation on a held node.

        To be called by a worker that has received messages for a while:
        otherwise a build may wait in its own queue. Placement is asked about
        each build of the cell that has no host, so that has its own time.
        """
        self._begin('lost-builds', self._look)

    def _look(self) -> None:
        if not self._looking.acquire(blocking=False):
            return  # The look before still waits for answers.
        try:
            context = nova_context.get_admin_context()
            for instance in self._waiting(context):
                self._look_at(context, instance)
        except Exception as exc:
            LOG.warning(
                'Could not look for lost builds and will try again: %(error)s',
                {'error': exc},
            )
        finally:
            self._looking.release()

    def _look_at(self, context: Any, instance: Any) -> None:
        try:
            if self._is_ours(context, instance):
                self._begin(
                    f'lost-{instance.uuid}',
                    functools.partial(self._one, context, instance),
                )
        except Exception as exc:
            LOG.warning(
                'Could not find out whether the build of server %(server)s '
                'was lost here and will try again: %(error)s',
                {'server': instance.uuid, 'error': exc},
            )

    def _waiting(self, context: Any) -> list[Any]:
        """Return the builds that nobody has begun for long; two RPC.

        Those of the cell's hypervisors are no concern of ours.
        """
        unshelving = {
            'vm_state': [vm_states.SHELVED_OFFLOADED],
            'task_state': list(UNSHELVING),
        }
        return [
            instance
            for wanted in ({'vm_state': list(LOST_STATES)}, unshelving)
            for instance in objects.InstanceList.get_by_filters(
                context,
                {'host': None, 'deleted': False, **wanted},
                expected_attrs=['info_cache', 'system_metadata', 'flavor'],
            )
            if asks_for_a_node(instance.flavor.extra_specs)
            and timeutils.is_older_than(
                instance.updated_at or instance.created_at, self._lost_s
            )
        ]

    def _is_ours(self, context: Any, instance: Any) -> bool:
        """Say whether it falls to this host to end a build.

        A delete that lacks no more than the row's end is anybody's.
        """
        if instance.uuid in self._without_node:
            return False
        nodes = self._node_of(context, instance.uuid)
        if not nodes and instance.vm_state == vm_states.ERROR:
            self._without_node.add(instance.uuid)  # And will never have one.
        if not nodes:
            return bool(instance.vm_state == vm_states.DELETED)
        held = self._held_nodes.rows()
        return any(node in held for node in nodes)

    def _one(self, context: Any, instance: Any) -> None:
        run_exclusive(
            self._in_progress,
            instance.uuid,
            functools.partial(self._end, context, instance),
            'Could not end the lost build of server %(server)s; trying again '
            'later',
        )

    def _end(self, context: Any, instance: Any) -> None:
        instance.refresh()
        if instance.host is not None:
            return
        if instance.vm_state in LOST_STATES:
            self._failures.end_lost_build(context, instance)
        elif _is_unshelving(instance):
            self._failures.end_lost_unshelve(context, instance)


def _is_unshelving(instance: Any) -> bool:
    is_off = instance.vm_state == vm_states.SHELVED_OFFLOADED
    return is_off and instance.task_state in UNSHELVING


def asks_for_a_node(extra_specs: Mapping[str, str]) -> bool:
    """Say whether a flavor may be one of bare metal.

    A node offers one unit of a custom resource class and nothing else, so its
    flavor names one, maybe in a numbered group.
    """
    return any(map(_CUSTOM_CLASS.match, extra_specs))

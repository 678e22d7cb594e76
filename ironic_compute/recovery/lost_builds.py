# SPDX-License-Identifier: Apache-2.0
"""Ends lost builds: builds and unshelves whose RPC message was lost.

A worker that is killed after it took a build's message from the queue and
before it claimed a node leaves a server in BUILD without a host, and with an
allocation on a node. The recovery loop calls ``LostBuilds.check``.
"""

import functools
import re
import threading
from collections.abc import Callable, Mapping
from typing import Any

import attrs
from nova import context as nova_context
from nova import objects
from nova.compute import task_states, vm_states
from oslo_log import log as logging

from hashring.clock import Clock
from ironic_compute.nodes.held_nodes import HeldNodes
from ironic_compute.recovery import in_progress
from ironic_compute.recovery.decisions import UNSHELVING
from ironic_compute.recovery.failures import TaskFailures
from resource_tracker.node import NodeId

LOG = logging.getLogger(__name__)


# Nova's syntax: resources:CUSTOM_X, resources1:CUSTOM_X, resources_A:….
_CUSTOM_CLASS = re.compile(r'resources[\w-]*:CUSTOM_')

LOST_STATES = (vm_states.BUILDING, vm_states.ERROR, vm_states.DELETED)
"""The VM states of servers that have no host but may have an allocation."""


@attrs.define(eq=False, repr=False, slots=False)
class LostBuilds:
    """Ends lost builds with an allocation on a node that this host holds.

    Two other kinds count as lost: a failed build whose worker was killed
    before it deleted the allocation, and a server that was deleted during its
    build, whose delete is finished. A failed build is found by its allocation;
    therefore its Instance is saved before the allocation is deleted. A server
    whose unshelve was lost is shelved as before. A build or unshelve that has
    no allocation is ended by any host, and so is a build whose node no host
    holds: the node is gone from Ironic, or an operator has deleted the Service
    of its host.

    :param list_allocated_nodes: returns the nodes on which a server has an
        allocation; one request to Placement
    :param finish_delete: deletes a server whose delete was accepted
    :param lost_s: seconds without a host or a change after which a build is
        lost
    :param begin: runs a function in a thread of its own
    :param count_lost: called for each build that has gone to ERROR
    """

    _held_nodes: HeldNodes
    _failures: TaskFailures
    _list_allocated_nodes: Callable[[Any, str], list[NodeId]]
    _finish_delete: Callable[[Any, Any], None]
    _in_progress: in_progress.InProgress
    _clock: Clock
    _lost_s: float
    _begin: in_progress.StartThread = in_progress.start_thread
    _count_lost: Callable[[], None] = lambda: None

    def __attrs_post_init__(self) -> None:
        self._is_checking = threading.Lock()
        self._without_node: set[str] = set()
        self._first_seen_s: dict[tuple[str, Any], float] = {}

    def check(self) -> None:
        """Start a thread that ends the lost builds; returns at once.

        The worker must have served RPC for a while, because until then the
        message of a build may wait in the worker's own queue. The check costs
        one Placement request for each build in the cell without a host, so it
        runs less often than the other checks.
        """
        self._begin('lost-builds', self._check_all)

    def wait_anew(self) -> None:
        """Have each build unchanged for ``lost_s`` from now on.

        nova-conductor could send no message while RabbitMQ was away, and may
        still have many to send.
        """
        self._first_seen_s = {}

    def _check_all(self) -> None:
        if not self._is_checking.acquire(blocking=False):
            return  # The previous check still runs.
        try:
            context = nova_context.get_admin_context()
            for instance in self._select_old(self._list_without_host(context)):
                self._check_one(context, instance)
        except Exception as exc:
            LOG.warning(
                'Could not search for lost builds and will try again: '
                '%(error)s',
                {'error': exc},
            )
        finally:
            self._is_checking.release()

    def _check_one(self, context: Any, instance: Any) -> None:
        is_deleting = instance.task_state == task_states.DELETING
        if instance.uuid in self._without_node and not is_deleting:
            return
        try:
            nodes = self._list_allocated_nodes(context, instance.uuid)
            if self._is_ours(context, instance, nodes):
                end = functools.partial(self._end, context, instance, nodes)
                self._begin(
                    f'lost-{instance.uuid}',
                    functools.partial(self._run, instance.uuid, end),
                )
        except Exception as exc:
            LOG.warning(
                'Could not find out whether the build of server %(server)s '
                'was lost here and will try again: %(error)s',
                {'server': instance.uuid, 'error': exc},
            )

    def _list_without_host(self, context: Any) -> list[Any]:
        """Return the cell's bare metal builds without a host; two RPCs."""
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
            if requests_node(instance.flavor.extra_specs)
        ]

    def _list_rows(self, context: Any, nodes: list[NodeId]) -> list[Any]:
        """Return the ComputeNode records of these nodes; one RPC."""
        return list(objects.ComputeNodeList.get_all_by_uuids(context, nodes))

    def _select_old(self, instances: list[Any]) -> list[Any]:
        """Return the Instances that have not changed for ``lost_s``.

        The time since a check of this worker has found them so counts, on its
        own clock, because the clock of Nova's database may be another one.
        """
        now_s = self._clock.now_s()
        found = {(i.uuid, i.updated_at): i for i in instances}
        self._first_seen_s = {
            state: self._first_seen_s.get(state, now_s) for state in found
        }
        return [i for state, i in found.items() if self._is_old(state)]

    def _is_old(self, state: tuple[str, Any]) -> bool:
        now_s = self._clock.now_s()
        return now_s - self._first_seen_s.get(state, now_s) >= self._lost_s

    def _is_ours(
        self, context: Any, instance: Any, nodes: list[NodeId]
    ) -> bool:
        """Return whether this host has to end a lost build.

        Any host may end the build or unshelve of a server without an
        allocation: nova-conductor has not scheduled it for ``lost_s``, or it
        has failed, and its worker has ended before it cleared the task.
        """
        if not nodes and instance.task_state == task_states.DELETING:
            return True
        if not nodes and instance.vm_state == vm_states.ERROR:
            # A server in ERROR never gets an allocation again.
            self._without_node.add(instance.uuid)
        if not nodes:
            return _is_unshelving(instance) or instance.vm_state in (
                vm_states.BUILDING,
                vm_states.DELETED,
            )
        held = self._held_nodes.rows()
        if any(node in held for node in nodes):
            return True
        # A user may repeat an unshelve, and a slow host would delete the new
        # allocation. A build that has failed gets no new one.
        return not _is_unshelving(instance) and not self._list_rows(
            context, nodes
        )

    def _run(self, server: str, end: Callable[[], None]) -> None:
        in_progress.run_exclusive(
            self._in_progress,
            server,
            end,
            'Could not end the lost build of server %(server)s; trying again '
            'later',
        )

    def _end(self, context: Any, instance: Any, nodes: list[NodeId]) -> None:
        checked_at = instance.updated_at
        instance.refresh()
        if instance.host is not None or instance.updated_at != checked_at:
            # Another host may have ended the unshelve since, and the user may
            # have begun a new one, whose allocation must stay.
            return
        if not self._is_old((instance.uuid, checked_at)):
            return  # RabbitMQ or the lease was away since the check.
        if instance.task_state == task_states.DELETING:
            self._finish_delete(context, instance)
        elif instance.vm_state in LOST_STATES:
            is_lost = instance.vm_state == vm_states.BUILDING
            self._failures.end_lost_build(context, instance)
            if is_lost:
                self._count_lost()
        elif _is_unshelving(instance):
            self._end_unshelve(context, instance, nodes)

    def _end_unshelve(
        self, context: Any, instance: Any, nodes: list[NodeId]
    ) -> None:
        """End an unshelve; free what was allocated to it at the check.

        Of several hosts that end one without an allocation, a slow one may
        meet the next unshelve, and would free its node and allocation.
        """
        if nodes:
            self._failures.end_lost_unshelve(context, instance)
        else:
            self._failures.end_unallocated_unshelve(instance)


def _is_unshelving(instance: Any) -> bool:
    is_off = instance.vm_state == vm_states.SHELVED_OFFLOADED
    return is_off and instance.task_state in UNSHELVING


def requests_node(extra_specs: Mapping[str, str]) -> bool:
    """Return whether a flavor may be a bare metal flavor.

    A bare metal node has one unit of a custom resource class and no other
    resource, so its flavor requests a custom class, maybe in a numbered group.
    """
    return any(map(_CUSTOM_CLASS.match, extra_specs))

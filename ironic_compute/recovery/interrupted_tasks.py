# SPDX-License-Identifier: Apache-2.0
"""Resumes or ends the interrupted tasks of the servers of one host.

A task is interrupted when the worker that ran it ended. The recovery loop
calls ``InterruptedTasks.check`` soon after the worker's start and at each
interval. The check lists the servers of this host whose Instance record has a
task state while no thread of this worker works on them, and handles each
server in a thread of its own. ``decisions`` derives the action from that
record and from Ironic's present state; a handler of Nova carries it out where
Nova has one. A server that cannot be handled never delays the others.
"""

import functools
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

import attrs
from nova import context as nova_context
from nova import exception as nova_exception
from nova import objects
from nova.compute import (
    instance_actions,
    power_state,
    task_states,
    vm_states,
)
from nova.compute import utils as compute_utils
from oslo_log import log as logging

from hashring.clock import Clock
from hashring.ring import Host
from ironic_compute.ironic_api.client import IronicClient
from ironic_compute.recovery import decisions, in_progress
from ironic_compute.recovery.decisions import InterruptedTask, RescueState
from ironic_compute.recovery.failures import TaskFailures, clear_task
from ironic_compute.recovery.interrupted_deploys import InterruptedDeploys
from resource_tracker.node import NodeId

LOG = logging.getLogger(__name__)

WITHOUT_TASK_EVERY = 6
# Tasks that may not have begun: the Instance record of the server looks the
# same while the message that begins the task waits in the queue.
_MAY_BE_QUEUED = frozenset(
    {
        InterruptedTask.CLEAR_TASK,
        InterruptedTask.REBUILD,
        InterruptedTask.RESCUE,
        InterruptedTask.UNRESCUE,
        InterruptedTask.SHELVE,
        InterruptedTask.UNSHELVE,
        InterruptedTask.CLEAR_HOST,
    }
)
# Tasks of a deployed server that are lost if they have not begun.
_LOST_UNLESS_BEGUN = frozenset(
    {
        InterruptedTask.REBUILD,
        InterruptedTask.RESCUE,
        InterruptedTask.UNRESCUE,
    }
)
_KEPT_WITHOUT_RESCUE = (vm_states.ERROR, vm_states.STOPPED)
# The uuid, task state and time of the last change of a server.
_State = tuple[str, str | None, Any]
_ATTRIBUTES = ['info_cache', 'metadata', 'system_metadata', 'flavor']


class Driver(Protocol):
    """The driver's method that this module calls."""

    def get_info(self, instance: Any, use_cache: bool = True) -> Any:
        """Return the power state of a server."""


@attrs.define(eq=False, repr=False, slots=False)
class InterruptedTasks:
    """Resumes or ends the interrupted tasks of one host's servers.

    :param manager: the compute manager, whose RPC handlers are called
    :param deploys: continues builds, rebuilds and unshelves
    :param find_holder: returns the other host of the pool that holds a node;
        None if this host or no host of the pool holds it
    :param idle_s: seconds for which an Instance record must be unchanged
        before its task counts as interrupted, because the message of the task
        may be in the queue
    :param begin: runs a function in a thread of its own
    """

    _host: str
    _manager: Any
    _client: IronicClient
    _driver: Driver
    _deploys: InterruptedDeploys
    _failures: TaskFailures
    _find_holder: Callable[[NodeId], Host | None]
    _in_progress: in_progress.InProgress
    _clock: Clock
    _idle_s: float
    _begin: in_progress.StartThread = in_progress.start_thread

    def __attrs_post_init__(self) -> None:
        self._first_seen_s: dict[_State, float] = {}
        # When this host got the node of a server from another host; infinite
        # while that host holds it.
        self._node_came_s: dict[_State, float] = {}
        self._rounds_count = 0

    def check(self) -> None:
        """Start a thread for each server with an interrupted task.

        Blocks for one or two RPCs. Most tasks that the first round finds are
        resumed at once, because an earlier worker left them.
        """
        is_first = self._rounds_count == 0
        lists_all = self._rounds_count % WITHOUT_TASK_EVERY == 0
        self._rounds_count += 1
        found = {_state_of(i): i for i in self._list_unfinished(lists_all)}
        now_s = self._clock.now_s()
        self._first_seen_s = {
            state: self._first_seen_s.get(state, now_s)
            for state in {*found, *self._states_not_listed(lists_all)}
        }
        for state in self._node_came_s.keys() - self._first_seen_s.keys():
            self._node_came_s.pop(state, None)
        for state, instance in found.items():
            is_idle = now_s - self._first_seen_s[state] >= self._idle_s
            if is_idle or (is_first and not _may_be_queued(instance)):
                self._begin(
                    f'resume-{instance.uuid}',
                    functools.partial(self._run, instance, is_idle),
                )

    def wait_anew(self) -> None:
        """Wait for ``idle_s`` anew: messages may have waited in the queue."""
        self._first_seen_s.clear()

    def _states_not_listed(self, lists_all: bool) -> list[_State]:
        """Return the recorded states that this round does not list.

        A server without a task is listed only in each sixth round. Until then
        the time at which its state was first found is kept.
        """
        return [s for s in self._first_seen_s if not lists_all and not s[1]]

    def _list_unfinished(self, lists_all: bool) -> list[Any]:
        """List this host's servers with unfinished work; one RPC or two.

        Unfinished servers without a task are rare, so they are listed only
        in each sixth round.
        """
        found = self._list_servers({'task_state': list(decisions.TASK_STATES)})
        if lists_all:
            without_task = {'vm_state': list(decisions.VM_STATES_WITHOUT_TASK)}
            found += self._list_servers(without_task)
        return list({instance.uuid: instance for instance in found}.values())

    def _list_servers(self, filters: dict[str, Any]) -> list[Any]:
        # Nova leaves out servers that may be restored, unless it is asked.
        kept = {'deleted': False, 'soft_deleted': True}
        return list(
            objects.InstanceList.get_by_filters(
                nova_context.get_admin_context(),
                {'host': self._host, **kept, **filters},
                expected_attrs=_ATTRIBUTES,
            )
        )

    def _run(self, instance: Any, is_idle: bool) -> None:
        in_progress.run_exclusive(
            self._in_progress,
            instance.uuid,
            functools.partial(self._resume_or_leave, instance, is_idle),
            'Could not continue the interrupted task of server %(server)s; '
            'trying again later',
        )

    def _resume_or_leave(self, instance: Any, is_idle: bool) -> None:
        try:
            self._resume(instance, is_idle)
        except nova_exception.InstanceUpdateConflict:
            self._failures.log_new_task(instance)

    def _resume(self, instance: Any, is_idle: bool) -> None:
        seen = _state_of(instance)
        instance.refresh()
        if _state_of(instance) != seen:
            return  # It may have a new task, whose message is on its way.
        task = decisions.find_task(instance.vm_state, instance.task_state)
        if instance.host != self._host or task is None:
            return
        if task in _LOST_UNLESS_BEGUN and self._may_come_back(instance, seen):
            return
        is_build = task is InterruptedTask.BUILD
        if is_build and not is_idle and not self._deploys.is_started(instance):
            return  # RabbitMQ may deliver its message again.
        context = self._context_of(instance)
        # The log lines of this thread and its requests to Ironic then have
        # the id of the request that is continued.
        context.update_store()
        LOG.info(
            'Continuing the interrupted task of server %(server)s: %(state)s',
            {'server': instance.uuid, 'state': instance.task_state},
        )
        self._methods()[task](context, instance)

    def _may_come_back(self, instance: Any, state: _State) -> bool:
        """Return whether a message about a server may be with another host.

        If that host holds the server's node, an eviction was interrupted, and
        messages about the server are forwarded to it, also while it is down.
        It gives the node to this host before it sends them back: until they
        have arrived, ``idle_s`` begins anew.
        """
        if self._is_held_elsewhere(instance):
            if state not in self._node_came_s:
                LOG.info(
                    'Server %(server)s keeps its task %(state)s: its message '
                    'may be with the host that holds node %(node)s',
                    {
                        'server': instance.uuid,
                        'state': instance.task_state,
                        'node': instance.node,
                    },
                )
            self._node_came_s[state] = math.inf
            return True
        came_s = self._node_came_s.get(state)
        if came_s is None:
            return False
        now_s = self._clock.now_s()
        if came_s == math.inf:
            self._node_came_s[state] = came_s = now_s
        return now_s - came_s < self._idle_s

    def _is_held_elsewhere(self, instance: Any) -> bool:
        """Return whether the holder of a server's node has to give it here.

        It does not if the server has left the node in Ironic.
        """
        node = instance.node
        if not node or self._find_holder(NodeId(node)) is None:
            return False
        facts = self._client.read_node_of_instance(instance.uuid)
        return facts is not None and facts.uuid == node

    def _context_of(self, instance: Any) -> Any:
        """Return a context with the request id of a server's last action.

        Nova's handlers write the end of the InstanceAction that has the
        context's request id. Without a request id they would take the newest
        action, which may be a power event of Ironic's, and raise
        InstanceActionEventNotFound.
        """
        context = nova_context.get_admin_context()
        last = decisions.find_last_request(self._list_actions(instance))
        if last is not None and last.request_id:
            context.request_id = last.request_id
        return context

    def _list_actions(self, instance: Any) -> Sequence[Any]:
        """Return Nova's InstanceActions of a server, newest first; one RPC."""
        return list(
            objects.InstanceActionList.get_by_instance_uuid(
                nova_context.get_admin_context(), instance.uuid
            )
        )

    def _methods(self) -> Mapping[InterruptedTask, Callable[[Any, Any], None]]:
        manager, deploys = self._manager, self._deploys
        return {
            InterruptedTask.BUILD: deploys.continue_build,
            InterruptedTask.REBUILD: self._rebuild,
            InterruptedTask.DELETE: manager.finish_delete,
            InterruptedTask.SOFT_DELETE: manager.soft_delete_instance,
            InterruptedTask.RESTORE: manager.restore_instance,
            InterruptedTask.REBOOT_SOFT: self._reboot_soft,
            InterruptedTask.REBOOT_HARD: self._reboot_hard,
            InterruptedTask.REBOOT_STARTED: self._end_reboot,
            InterruptedTask.STOP: self._stop,
            InterruptedTask.START: manager.start_instance,
            InterruptedTask.RESCUE: self._rescue,
            InterruptedTask.UNRESCUE: self._unrescue,
            InterruptedTask.SHELVE: self._shelve,
            InterruptedTask.UNSHELVE: deploys.continue_unshelve,
            InterruptedTask.CLEAR_HOST: self._clear_host,
            InterruptedTask.CLEAR_TASK: lambda _, server: clear_task(server),
        }

    def _rebuild(self, context: Any, instance: Any) -> None:
        newest = {a.action: a for a in reversed(self._list_actions(instance))}
        rebuild = newest.get(instance_actions.REBUILD)
        evacuation = newest.get(instance_actions.EVACUATE)
        requested_at = rebuild and rebuild.start_time
        self._deploys.continue_rebuild(
            context,
            instance,
            requested_at,
            is_evacuation=evacuation is not None
            and (requested_at is None or evacuation.start_time > requested_at),
        )

    def _shelve(self, context: Any, instance: Any) -> None:
        """Finish the shelving of a server: free its node if needed.

        A server whose root disk is no volume keeps its node; only its task
        state is cleared.
        """
        if not compute_utils.is_volume_backed_instance(context, instance):
            # Nova cannot shelve a bare metal server without a root volume.
            clear_task(instance)
            return
        facts = self._client.read_node_of_instance(instance.uuid)
        if decisions.is_active(facts):
            self._manager.shelve_offload_instance(context, instance, True, [])
            return
        self._failures.shelve_again(
            context,
            instance,
            'its shelving was interrupted, and is finished now',
        )

    def _clear_host(self, context: Any, instance: Any) -> None:
        """Remove the host from an Instance whose node was freed already.

        An ACTIVE server has no task, either. It would lose its host if
        nova-conductor carried this save out late, after an unshelve.
        """
        instance.host = instance.node = instance.compute_id = None
        instance.save(
            expected_vm_state=[instance.vm_state],
            expected_task_state=[instance.task_state],
        )

    # Tasks for which Nova has a handler

    def _stop(self, context: Any, instance: Any) -> None:
        self._manager.stop_instance(context, instance, True)

    def _reboot_soft(self, context: Any, instance: Any) -> None:
        self._manager.reboot_instance(context, instance, None, 'SOFT')

    def _reboot_hard(self, context: Any, instance: Any) -> None:
        self._manager.reboot_instance(context, instance, None, 'HARD')

    def _end_reboot(self, context: Any, instance: Any) -> None:
        """End a reboot that had started; reboot again if the node is off.

        Nova accepts only the type of reboot that fits the task state.
        """
        try:
            state = self._driver.get_info(instance, use_cache=False).state
        except nova_exception.InstanceNotFound:  # In Ironic; Nova has it.
            self._failures.fail_task(
                context,
                instance,
                f'The reboot of server {instance.uuid} was interrupted, and '
                f'no node in Ironic has the server any more',
            )
            return
        if state != power_state.RUNNING:
            is_soft = instance.task_state in task_states.soft_reboot_states
            repeat = self._reboot_soft if is_soft else self._reboot_hard
            repeat(context, instance)
            return
        instance.power_state = state
        instance.vm_state = vm_states.ACTIVE
        clear_task(instance)

    # Rescue and unrescue

    def _rescue(self, context: Any, instance: Any) -> None:
        self._end_rescue(context, instance, vm_states.RESCUED)

    def _unrescue(self, context: Any, instance: Any) -> None:
        self._end_rescue(context, instance, vm_states.ACTIVE)

    def _end_rescue(self, context: Any, instance: Any, wanted: str) -> None:
        """Save the VM state that fits the node: RESCUED, ACTIVE or ERROR.

        While Ironic still changes the node, the task is left to a later round.
        A server in ERROR, or a stopped one, that was not rescued stays so.
        """
        facts = self._client.read_node_of_instance(instance.uuid)
        match decisions.rescue_state(facts):
            case RescueState.IN_PROGRESS:
                return
            case RescueState.RESCUED:
                instance.vm_state = vm_states.RESCUED
            case RescueState.NOT_RESCUED:
                if instance.vm_state not in _KEPT_WITHOUT_RESCUE:
                    instance.vm_state = vm_states.ACTIVE
            case RescueState.FAILED:
                self._failures.fail_task(
                    context,
                    instance,
                    f'The rescue of server {instance.uuid} was interrupted '
                    f'and did not end well in Ironic: '
                    f'{facts.last_error if facts else "it has no node"}',
                )
                return
        if instance.vm_state != wanted:
            LOG.warning(
                'A change of the rescue of server %(server)s was lost; it is '
                '%(state)s as before',
                {'server': instance.uuid, 'state': instance.vm_state},
            )
        clear_task(instance)


def _may_be_queued(instance: Any) -> bool:
    """Return whether the message of a task may still be in the queue.

    A task that may be cleared or ended has to wait for its message, which
    would find the task gone.
    """
    task = decisions.find_task(instance.vm_state, instance.task_state)
    return task in _MAY_BE_QUEUED


def _state_of(instance: Any) -> _State:
    """Return the fields of an Instance that change while a task runs."""
    return instance.uuid, instance.task_state, instance.updated_at

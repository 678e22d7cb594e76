# SPDX-License-Identifier: Apache-2.0
"""What was left half done for a server of this host goes on.

Level-triggered: soon after the worker's start and at every round, each server
whose row names a task, and that nobody here is at work on, is looked at. What
is to be done is decided in ``decisions`` from the row and from Ironic as
they are now; it is done by Nova's own handlers where there is one. Nova's own
start would put every server in BUILD or REBUILD to ERROR although Ironic goes
on with the deploy. One server that cannot be brought in order never stops the
others.
"""

import functools
from collections.abc import Callable, Mapping
from typing import Any, Protocol

from nova import context as nova_context
from nova import exception as nova_exception
from nova import objects
from nova.compute import power_state, vm_states
from nova.compute import utils as compute_utils
from oslo_log import log as logging
from oslo_utils import timeutils

from hashring.clock import Clock
from ironic_compute import errors
from ironic_compute.ironic_api.client import IronicClient
from ironic_compute.recovery import decisions, instance_actions, neutron_ports
from ironic_compute.recovery.decisions import (
    DeployState,
    InterruptedTask,
    RescueState,
)
from ironic_compute.recovery.failures import TaskFailures, clear_task
from ironic_compute.recovery.in_progress import (
    InProgress,
    StartThread,
    run_exclusive,
    start_thread,
)

LOG = logging.getLogger(__name__)

WITHOUT_TASK_EVERY = 6
_CHANGED_AT = 'provision_updated_at'
# What the row alone does not tell from a request that is on its way.
_MAY_END = frozenset(
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
_WITHOUT_PORTS = (
    'The build had been given up, and its ports deleted, when its daemon '
    'ended; delete the server and create it again'
)
# What says that a deploy has come to a bad end.
_ENDS = (errors.DeployFailed, errors.NodeNotFound, errors.NodeGone)
_ATTRIBUTES = ['info_cache', 'metadata', 'system_metadata', 'flavor']


class Driver(Protocol):
    """What of the driver is needed."""

    def wait_for_deploy(self, instance: Any, node: str) -> None:
        """Block until the node is active; raise if the deploy failed."""

    def get_info(self, instance: Any, use_cache: bool = True) -> Any:
        """Return the power state of a server."""


class InterruptedTasks:
    """Take up the servers of one host where they were left.

    :param manager: Nova's handlers
    :param idle_s: a task is left alone unless its row has been the same for
        so long: its message may be on its way
    :param begin: does something beside everything else
    """

    def __init__(
        self,
        host: str,
        manager: Any,
        client: IronicClient,
        driver: Driver,
        failures: TaskFailures,
        in_progress: InProgress,
        clock: Clock,
        idle_s: float,
        begin: StartThread = start_thread,
    ) -> None:
        self._host = host
        self._manager = manager
        self._client = client
        self._driver = driver
        self._failures = failures
        self._in_progress = in_progress
        self._clock = clock
        self._idle_s = idle_s
        self._begin = begin
        self._first_seen_s: dict[tuple[str, Any, Any], float] = {}
        self._rounds_count = 0

    def check(self) -> None:
        """Look at all servers with a task; begin what nobody is at.

        What the first round finds was left by an earlier worker.
        """
        is_first = self._rounds_count == 0
        found = {_state_of(i): i for i in self._unfinished()}
        now_s = self._clock.now_s()
        self._first_seen_s = {
            state: self._first_seen_s.get(state, now_s) for state in found
        }
        for state, instance in found.items():
            idle_s = now_s - self._first_seen_s[state]
            if idle_s >= self._patience_s(instance, is_first=is_first):
                self._begin(
                    f'resume-{instance.uuid}',
                    functools.partial(self._one, instance),
                )

    def _patience_s(self, instance: Any, *, is_first: bool) -> float:
        """How long a task must have been idle to be taken up.

        One that may be forgotten or given up always waits: its message may
        be coming in just now, and would find its task gone.
        """
        task = decisions.interrupted_task(
            instance.vm_state, instance.task_state
        )
        return 0.0 if is_first and task not in _MAY_END else self._idle_s

    def _unfinished(self) -> list[Any]:
        """Return the servers of this host with work left; one RPC or two.

        Those without a task are rare, and looked for less often.
        """
        found = self._servers({'task_state': list(decisions.TASK_STATES)})
        if self._rounds_count % WITHOUT_TASK_EVERY == 0:
            without_task = {'vm_state': list(decisions.VM_STATES_WITHOUT_TASK)}
            found += self._servers(without_task)
        self._rounds_count += 1
        return list({instance.uuid: instance for instance in found}.values())

    def _servers(self, filters: dict[str, Any]) -> list[Any]:
        return list(
            objects.InstanceList.get_by_filters(
                nova_context.get_admin_context(),
                {'host': self._host, 'deleted': False, **filters},
                expected_attrs=_ATTRIBUTES,
            )
        )

    def _one(self, instance: Any) -> None:
        run_exclusive(
            self._in_progress,
            instance.uuid,
            functools.partial(self._take_up_or_leave, instance),
            'Could not take up server %(server)s where it was left; trying '
            'again later',
        )

    def _take_up_or_leave(self, instance: Any) -> None:
        try:
            self._take_up(instance)
        except nova_exception.UnexpectedTaskStateError:
            _tell_left(instance)

    def _take_up(self, instance: Any) -> None:
        instance.refresh()
        task = decisions.interrupted_task(
            instance.vm_state, instance.task_state
        )
        if instance.host != self._host or task is None:
            return
        LOG.info(
            'Taking up server %(server)s where it was left: %(state)s',
            {'server': instance.uuid, 'state': instance.task_state},
        )
        context = self._context_of(instance)
        self._acts()[task](context, instance)

    def _context_of(self, instance: Any) -> Any:
        return instance_actions.context_of(self._actions(instance))

    def _actions(self, instance: Any) -> list[Any]:
        return instance_actions.actions_of(instance)

    def _acts(self) -> Mapping[InterruptedTask, Callable[[Any, Any], None]]:
        manager = self._manager
        return {
            InterruptedTask.BUILD: self._build,
            InterruptedTask.REBUILD: self._rebuild,
            InterruptedTask.DELETE: self._delete,
            InterruptedTask.SOFT_DELETE: manager.soft_delete_instance,
            InterruptedTask.RESTORE: manager.restore_instance,
            InterruptedTask.REBOOT_SOFT: self._reboot_soft,
            InterruptedTask.REBOOT_HARD: self._reboot_hard,
            InterruptedTask.REBOOT_STARTED: self._rebooted,
            InterruptedTask.STOP: self._stop,
            InterruptedTask.START: manager.start_instance,
            InterruptedTask.RESCUE: self._rescue,
            InterruptedTask.UNRESCUE: self._unrescue,
            InterruptedTask.SHELVE: self._shelve,
            InterruptedTask.UNSHELVE: self._unshelve,
            InterruptedTask.CLEAR_HOST: self._offloaded,
            InterruptedTask.CLEAR_TASK: self._clear,
        }

    # Deploys

    def _build(self, context: Any, instance: Any) -> None:
        facts = self._client.read_node_of_instance(instance.uuid)
        if decisions.deploy_state(facts) is DeployState.STARTED:
            assert facts is not None  # noqa: S101 - see deploy_state
            self._wait_for_deploy(context, instance, facts.uuid)
        else:
            self._failures.fail_build(
                context,
                instance,
                f'The build of server {instance.uuid} was interrupted before '
                f'Ironic had taken it over; delete the server and create it '
                f'again',
            )

    def _rebuild(self, context: Any, instance: Any) -> None:
        facts = self._client.read_node_of_instance(instance.uuid)
        stands = decisions.rebuild_state(
            facts,
            instance.task_state,
            has_changed=facts is not None
            and self._has_changed(facts.uuid, instance),
        )
        if stands is DeployState.STARTED:
            assert facts is not None  # noqa: S101 - see rebuild_state
            self._wait_for_deploy(context, instance, facts.uuid)
        else:
            self._failures.fail_task(
                context,
                instance,
                f'The rebuild of server {instance.uuid} was interrupted '
                f'before Ironic had taken it over; its disk is as it was; '
                f'rebuild it again',
            )

    def _has_changed(self, node: str, instance: Any) -> bool:
        """Say whether a node's state did since its rebuild was asked for."""
        changed_at = self._client.read_fields(node, [_CHANGED_AT])[_CHANGED_AT]
        return instance_actions.is_later(
            changed_at, instance_actions.rebuild_at(self._actions(instance))
        )

    def _wait_for_deploy(self, context: Any, instance: Any, node: str) -> None:
        ends = {
            vm_states.BUILDING: self._failures.fail_build,
            vm_states.SHELVED_OFFLOADED: self._failures.leave_shelved,
        }
        end = ends.get(instance.vm_state, self._failures.fail_task)
        seen = instance.task_state
        try:
            self._driver.wait_for_deploy(instance, node)
        except errors.IronicComputeError as exc:
            if instance.task_state != seen:
                _tell_left(instance)
                return
            if not isinstance(exc, _ENDS):
                raise  # Nothing is known of the deploy: the next round asks.
            end(context, instance, str(exc))
            return
        is_new = instance.vm_state == vm_states.BUILDING
        if is_new and neutron_ports.are_gone(
            self._manager.network_api, instance
        ):
            end(context, instance, _WITHOUT_PORTS)
            return
        instance.vm_state = vm_states.ACTIVE
        instance.power_state = power_state.RUNNING
        instance.launched_at = instance.launched_at or timeutils.utcnow()
        clear_task(instance)
        LOG.info(
            'Finished the interrupted deploy of server %(server)s on node '
            '%(node)s',
            {'server': instance.uuid, 'node': node},
        )

    # Shelved servers, whose root disk is a volume

    def _shelve(self, context: Any, instance: Any) -> None:
        """Get a server off its node, or end what had got it off already."""
        if not compute_utils.is_volume_backed_instance(context, instance):
            self._clear(context, instance)  # Refused: it has only this disk.
            return
        if decisions.is_active(
            self._client.read_node_of_instance(instance.uuid)
        ):
            self._manager.shelve_offload_instance(context, instance, True, [])
            return
        self._failures.leave_shelved(
            context,
            instance,
            'its shelving was interrupted, and is finished now',
        )

    def _unshelve(self, context: Any, instance: Any) -> None:
        _restore_key(instance)
        facts = self._client.read_node_of_instance(instance.uuid)
        if decisions.deploy_state(facts) is DeployState.STARTED:
            assert facts is not None  # noqa: S101 - see deploy_state
            self._wait_for_deploy(context, instance, facts.uuid)
            return
        self._failures.leave_shelved(
            context,
            instance,
            'its unshelving was interrupted before Ironic had taken it over',
        )

    def _offloaded(self, context: Any, instance: Any) -> None:
        """Its node and its allocation were given up before."""
        instance.host = instance.node = instance.compute_id = None
        instance.save(expected_task_state=[instance.task_state])

    # What Nova has a handler for

    def _delete(self, context: Any, instance: Any) -> None:
        bdms = objects.BlockDeviceMappingList.get_by_instance_uuid(
            context, instance.uuid
        )
        self._manager.terminate_instance(context, instance, bdms)

    def _stop(self, context: Any, instance: Any) -> None:
        self._manager.stop_instance(context, instance, True)

    def _reboot_soft(self, context: Any, instance: Any) -> None:
        self._manager.reboot_instance(context, instance, None, 'SOFT')

    def _reboot_hard(self, context: Any, instance: Any) -> None:
        self._manager.reboot_instance(context, instance, None, 'HARD')

    def _rebooted(self, context: Any, instance: Any) -> None:
        """A reboot that had begun: is the machine on?"""
        state = self._driver.get_info(instance, use_cache=False).state
        if state != power_state.RUNNING:
            self._reboot_hard(context, instance)
            return
        instance.power_state = state
        instance.vm_state = vm_states.ACTIVE
        self._clear(context, instance)

    # What is seen in Ironic

    def _rescue(self, context: Any, instance: Any) -> None:
        self._end_rescue(context, instance, vm_states.RESCUED)

    def _unrescue(self, context: Any, instance: Any) -> None:
        self._end_rescue(context, instance, vm_states.ACTIVE)

    def _end_rescue(self, context: Any, instance: Any, wanted: str) -> None:
        """Say in the row where the node is; wait for one on its way."""
        facts = self._client.read_node_of_instance(instance.uuid)
        match decisions.rescue_state(facts):
            case RescueState.IN_PROGRESS:
                return
            case RescueState.RESCUED:
                instance.vm_state = vm_states.RESCUED
            case RescueState.NOT_RESCUED:
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
        self._clear(context, instance)

    def _clear(self, context: Any, instance: Any) -> None:
        clear_task(instance)


def _tell_left(instance: Any) -> None:
    LOG.info(
        'Left server %(server)s as it is: it has got another task meanwhile',
        {'server': instance.uuid},
    )


def _restore_key(instance: Any) -> None:
    """Write down a server's key anew.

    Nova takes it out of the row for as long as it unshelves a server.
    """
    if instance.key_name and not instance.key_data:
        for pair in instance.keypairs:
            if pair.name == instance.key_name:
                instance.key_data = pair.public_key


def _state_of(instance: Any) -> tuple[str, Any, Any]:
    """Return what changes when somebody is at work on a server."""
    return instance.uuid, instance.task_state, instance.updated_at

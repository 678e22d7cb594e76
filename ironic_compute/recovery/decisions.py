# SPDX-License-Identifier: Apache-2.0
"""What to do with work that nobody is at any more; pure decisions.

A server whose row names a task, and a node that has a server, were left so by
a worker that ended, by a message that was lost, or by a delete that nova-api
did alone while nobody served the host. Each function takes what is found and
returns what to do; ``interrupted_tasks`` and ``stray_instances`` do it. All
of it is safe to repeat, because it is decided anew from what is found then.
"""

import enum
from collections.abc import Mapping

from nova.compute import task_states, vm_states

from ironic_compute.ironic_api.states import ProvisionState
from ironic_compute.nodes.records import ServerRow
from resource_tracker.node import NodeFacts


class InterruptedTask(enum.Enum):
    """What is to be done for a server."""

    BUILD = enum.auto()
    """End its build as Ironic says."""
    REBUILD = enum.auto()
    """End its rebuild as Ironic says."""
    DELETE = enum.auto()
    SOFT_DELETE = enum.auto()
    RESTORE = enum.auto()
    REBOOT_SOFT = enum.auto()
    REBOOT_HARD = enum.auto()
    REBOOT_STARTED = enum.auto()
    """Reboot it if it is off; it was rebooted if it is on."""
    STOP = enum.auto()
    START = enum.auto()
    RESCUE = enum.auto()
    """End its rescue as Ironic says."""
    UNRESCUE = enum.auto()
    """End the end of its rescue as Ironic says."""
    SHELVE = enum.auto()
    """Get it off its node; its root disk is a volume."""
    UNSHELVE = enum.auto()
    """End its new build as Ironic says; it stays shelved if that failed."""
    CLEAR_HOST = enum.auto()
    """It is off its node: say that this host has it no more."""
    CLEAR_TASK = enum.auto()
    """Nothing was done that lasts: forget the task."""


_BY_TASK_STATE: Mapping[str, InterruptedTask] = {
    task_states.SCHEDULING: InterruptedTask.BUILD,
    task_states.BLOCK_DEVICE_MAPPING: InterruptedTask.BUILD,
    task_states.NETWORKING: InterruptedTask.BUILD,
    task_states.SPAWNING: InterruptedTask.BUILD,
    task_states.REBUILDING: InterruptedTask.REBUILD,
    task_states.REBUILD_BLOCK_DEVICE_MAPPING: InterruptedTask.REBUILD,
    task_states.REBUILD_SPAWNING: InterruptedTask.REBUILD,
    task_states.DELETING: InterruptedTask.DELETE,
    task_states.SOFT_DELETING: InterruptedTask.SOFT_DELETE,
    task_states.RESTORING: InterruptedTask.RESTORE,
    # Asked for and not begun: a reboot more than asked for harms nobody,
    # one less leaves the user waiting for nothing.
    task_states.REBOOTING: InterruptedTask.REBOOT_SOFT,
    task_states.REBOOT_PENDING: InterruptedTask.REBOOT_SOFT,
    task_states.REBOOTING_HARD: InterruptedTask.REBOOT_HARD,
    task_states.REBOOT_PENDING_HARD: InterruptedTask.REBOOT_HARD,
    task_states.REBOOT_STARTED: InterruptedTask.REBOOT_STARTED,
    task_states.REBOOT_STARTED_HARD: InterruptedTask.REBOOT_STARTED,
    task_states.POWERING_OFF: InterruptedTask.STOP,
    task_states.POWERING_ON: InterruptedTask.START,
    task_states.RESCUING: InterruptedTask.RESCUE,
    task_states.UNRESCUING: InterruptedTask.UNRESCUE,
    task_states.UPDATING_PASSWORD: InterruptedTask.CLEAR_TASK,
    task_states.PAUSING: InterruptedTask.CLEAR_TASK,
    task_states.UNPAUSING: InterruptedTask.CLEAR_TASK,
    task_states.SUSPENDING: InterruptedTask.CLEAR_TASK,
    task_states.RESUMING: InterruptedTask.CLEAR_TASK,
    task_states.IMAGE_SNAPSHOT: InterruptedTask.CLEAR_TASK,
    task_states.IMAGE_SNAPSHOT_PENDING: InterruptedTask.CLEAR_TASK,
    task_states.IMAGE_PENDING_UPLOAD: InterruptedTask.CLEAR_TASK,
    task_states.IMAGE_UPLOADING: InterruptedTask.CLEAR_TASK,
    task_states.IMAGE_BACKUP: InterruptedTask.CLEAR_TASK,
    task_states.RESIZE_PREP: InterruptedTask.CLEAR_TASK,
    task_states.SHELVING: InterruptedTask.SHELVE,
    task_states.SHELVING_OFFLOADING: InterruptedTask.SHELVE,
    task_states.UNSHELVING: InterruptedTask.CLEAR_TASK,
}

# Of a server that is shelved and off its node.
_BY_TASK_STATE_OFFLOADED: Mapping[str | None, InterruptedTask] = {
    task_states.SPAWNING: InterruptedTask.UNSHELVE,
    task_states.UNSHELVING: InterruptedTask.CLEAR_HOST,
    None: InterruptedTask.CLEAR_HOST,
}

UNSHELVING = (task_states.UNSHELVING, task_states.SPAWNING)
"""What a shelved server says from the request to its end."""

TASK_STATES = tuple(sorted(_BY_TASK_STATE))
"""The states of a row that something can be done about."""

VM_STATES_WITHOUT_TASK = (
    vm_states.BUILDING,
    vm_states.DELETED,
    vm_states.SHELVED_OFFLOADED,
)
"""Likewise, of a row without a task.

A build has none for a moment after it was claimed. A delete has none when the
node is free already, and the allocation and the row are not. A shelved server
keeps its host for a moment after it lost its node.
"""


def interrupted_task(
    vm_state: str, task_state: str | None
) -> InterruptedTask | None:
    """Return what is left to do for a server that nobody is at work on."""
    if vm_state == vm_states.SHELVED_OFFLOADED:
        task = _BY_TASK_STATE_OFFLOADED.get(task_state)
        if task is not None:
            return task
    if task_state is not None and task_state in _BY_TASK_STATE:
        task = _BY_TASK_STATE[task_state]
        given_up = (
            vm_state == vm_states.ERROR and task is not InterruptedTask.DELETE
        )
        no_build = (
            task is InterruptedTask.BUILD and vm_state != vm_states.BUILDING
        )
        return InterruptedTask.CLEAR_TASK if given_up or no_build else task
    if vm_state == vm_states.DELETED:
        return InterruptedTask.DELETE
    return InterruptedTask.BUILD if vm_state == vm_states.BUILDING else None


class DeployState(enum.Enum):
    """How an interrupted deploy stands."""

    STARTED = enum.auto()
    """Ironic will bring it to an end, or has: wait for that."""
    NOT_STARTED = enum.auto()
    """Ironic was not asked for it."""


_WITH_IRONIC = frozenset(
    {
        ProvisionState.DEPLOYING,
        ProvisionState.DEPLOYWAIT,
        ProvisionState.DEPLOYDONE,
        ProvisionState.DEPLOYHOLD,
        ProvisionState.DEPLOYFAIL,
        ProvisionState.ERROR,
        ProvisionState.ACTIVE,
        ProvisionState.REBUILD,
    }
)


def deploy_state(facts: NodeFacts | None) -> DeployState:
    """Say how the deploy of a server stands.

    :param facts: of the node that is reserved for this server, if any
    """
    if facts is None:
        return DeployState.NOT_STARTED
    state = ProvisionState.parse(facts.provision_state)
    return (
        DeployState.STARTED
        if state in _WITH_IRONIC
        else DeployState.NOT_STARTED
    )


def rebuild_state(
    facts: NodeFacts | None, task_state: str, *, has_changed: bool
) -> DeployState:
    """Say how the rebuild of a server stands.

    An active node says nothing by itself, it was active before. The row says
    ``rebuild_spawning`` just before Ironic is asked, and the worker may have
    ended in between: a node that was rebuilt has been in other states.

    :param facts: of the node that is reserved for this server, if any
    :param has_changed: the node's state did, after the rebuild was asked for
    """
    if is_active(facts):
        may_be_done = task_state == task_states.REBUILD_SPAWNING
        return (
            DeployState.STARTED
            if may_be_done and has_changed
            else DeployState.NOT_STARTED
        )
    return deploy_state(facts)


def is_active(facts: NodeFacts | None) -> bool:
    """Say whether a server has its node yet, and Ironic leaves it alone.

    :param facts: of the node that is reserved for this server, if any
    """
    if facts is None:
        return False
    state = ProvisionState.parse(facts.provision_state)
    return state is ProvisionState.ACTIVE


class RescueState(enum.Enum):
    """How an interrupted rescue stands, in or out of it."""

    RESCUED = enum.auto()
    NOT_RESCUED = enum.auto()
    FAILED = enum.auto()
    IN_PROGRESS = enum.auto()


_RESCUES = {
    ProvisionState.RESCUE: RescueState.RESCUED,
    ProvisionState.ACTIVE: RescueState.NOT_RESCUED,
    ProvisionState.RESCUING: RescueState.IN_PROGRESS,
    ProvisionState.RESCUEWAIT: RescueState.IN_PROGRESS,
    ProvisionState.UNRESCUING: RescueState.IN_PROGRESS,
}


def rescue_state(facts: NodeFacts | None) -> RescueState:
    """Say whether the node of a server is in rescue now."""
    if facts is None:
        return RescueState.FAILED
    state = ProvisionState.parse(facts.provision_state)
    return _RESCUES.get(state, RescueState.FAILED)


class StrayState(enum.Enum):
    """What a server on a node is to Nova, and what follows."""

    HERE = enum.auto()
    """Nova has it on this host."""
    DELETED = enum.auto()
    """Nova deleted it while nobody served the host: tear it down."""
    NOT_IN_NOVA = enum.auto()
    """Nova never had it: somebody else's, to be left alone."""
    BUILD_FAILED = enum.auto()
    """Nova gave its build up and has it nowhere: free the node."""
    ON_OTHER_HOST = enum.auto()
    """Nova has it on another host: the row follows it."""
    MAY_BE_BUILDING = enum.auto()
    """Its build may be on its way: look again."""


def stray_state(row: ServerRow | None, here: str) -> StrayState:
    """Say what the server of a node is.

    :param row: None: Nova never had it
    :param here: the host that holds the node
    """
    if row is None:
        return StrayState.NOT_IN_NOVA
    if row.deleted:
        return StrayState.DELETED
    if row.host is not None:
        return (
            StrayState.HERE if row.host == here else StrayState.ON_OTHER_HOST
        )
    # One that was shelved before stays so if it could not be unshelved.
    is_shelved = row.vm_state == vm_states.SHELVED_OFFLOADED
    given_up = row.vm_state == vm_states.ERROR or (
        is_shelved and row.task_state is None
    )
    return StrayState.BUILD_FAILED if given_up else StrayState.MAY_BE_BUILDING

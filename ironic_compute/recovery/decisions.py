# SPDX-License-Identifier: Apache-2.0
"""Decides how to handle interrupted tasks and stray instances; pure functions.

A worker that ended, or a lost message, leaves a server whose Instance record
has a task state. A delete that nova-api did alone while no worker served the
host leaves a node with a deleted server. Each function takes the state that a
caller has read from Nova and Ironic, and returns the action;
``interrupted_tasks``, ``interrupted_deploys`` and ``stray_instances`` carry it
out. Every action may be repeated, because each round decides again from the
state read then.
"""

import dataclasses
import enum
from collections.abc import Iterable, Mapping
from typing import Any, Protocol, TypeGuard

from nova.compute import instance_actions, task_states, vm_states

from ironic_compute.ironic_api.states import (
    Meaning,
    ProvisionState,
    meaning,
)
from ironic_compute.nodes.records import MOVE_ACTION, ServerRow
from resource_tracker.node import NodeFacts


class InterruptedTask(enum.Enum):
    """The action that ends an interrupted task of a server."""

    BUILD = enum.auto()
    """Wait for the build if Ironic has started it; otherwise end it."""
    REBUILD = enum.auto()
    """Wait for the rebuild if Ironic has started it; otherwise end it."""
    DELETE = enum.auto()
    SOFT_DELETE = enum.auto()
    RESTORE = enum.auto()
    REBOOT_SOFT = enum.auto()
    REBOOT_HARD = enum.auto()
    REBOOT_STARTED = enum.auto()
    """Reboot the server if it is off; if it is on, the reboot is done."""
    STOP = enum.auto()
    START = enum.auto()
    RESCUE = enum.auto()
    """Save in the Instance whether the node is in rescue."""
    UNRESCUE = enum.auto()
    """Save in the Instance whether the node has left rescue."""
    SHELVE = enum.auto()
    """Free the node; the root disk of the server is a volume."""
    UNSHELVE = enum.auto()
    """Wait for the deploy if Ironic has started it; otherwise stay shelved."""
    CLEAR_HOST = enum.auto()
    """The server has left its node: remove the host from the Instance."""
    CLEAR_TASK = enum.auto()
    """The task changed nothing that lasts: clear the task state."""


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
    # The reboot may not have started. A second reboot does no harm, but
    # without a reboot the user would wait in vain.
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
    # Of a live migration, which is refused before a host begins it.
    task_states.MIGRATING: InterruptedTask.CLEAR_TASK,
    task_states.SHELVING: InterruptedTask.SHELVE,
    task_states.SHELVING_OFFLOADING: InterruptedTask.SHELVE,
    task_states.UNSHELVING: InterruptedTask.CLEAR_TASK,
}

# Users also request these for a server in ERROR. Ironic may have taken its
# rebuild over, and then only the record is left of the request.
_ALSO_IN_ERROR = frozenset(
    {
        InterruptedTask.DELETE,
        InterruptedTask.SOFT_DELETE,
        InterruptedTask.REBUILD,
        InterruptedTask.REBOOT_HARD,
        InterruptedTask.REBOOT_STARTED,
        InterruptedTask.STOP,
        InterruptedTask.RESCUE,
    }
)

# The actions for a server in the VM state SHELVED_OFFLOADED, by task state.
_BY_TASK_STATE_OFFLOADED: Mapping[str | None, InterruptedTask] = {
    task_states.SPAWNING: InterruptedTask.UNSHELVE,
    task_states.UNSHELVING: InterruptedTask.CLEAR_HOST,
    None: InterruptedTask.CLEAR_HOST,
}

UNSHELVING = (task_states.UNSHELVING, task_states.SPAWNING)
"""The task states of a shelved server while it is unshelved."""

TASK_STATES = tuple(sorted(_BY_TASK_STATE))
"""The task states of an Instance that :func:`find_task` handles."""

VM_STATES_WITHOUT_TASK = (
    vm_states.BUILDING,
    vm_states.DELETED,
    vm_states.SHELVED_OFFLOADED,
)
"""The VM states that :func:`find_task` handles without a task state.

A build has no task for a moment after its claim. A delete has no task after
its node was freed and before the allocation and the Instance record are
deleted. A shelved server keeps its host for a moment after it lost its node.
"""


def find_task(vm_state: str, task_state: str | None) -> InterruptedTask | None:
    """Return the action that ends an interrupted task; None if none is needed.

    The caller has checked that no thread works on the server.
    """
    if vm_state == vm_states.SHELVED_OFFLOADED:
        task = _BY_TASK_STATE_OFFLOADED.get(task_state)
        if task is not None:
            return task
    if task_state is not None and task_state in _BY_TASK_STATE:
        task = _BY_TASK_STATE[task_state]
        given_up = vm_state == vm_states.ERROR and task not in _ALSO_IN_ERROR
        no_build = (
            task is InterruptedTask.BUILD and vm_state != vm_states.BUILDING
        )
        return InterruptedTask.CLEAR_TASK if given_up or no_build else task
    if vm_state == vm_states.DELETED:
        return InterruptedTask.DELETE
    return InterruptedTask.BUILD if vm_state == vm_states.BUILDING else None


# A node may also be in use, or have failed, before a rebuild.
_NO_PROOF_OF_REBUILD = frozenset({Meaning.IN_USE, Meaning.FAILED})
_STARTED = _NO_PROOF_OF_REBUILD | {Meaning.ON_ITS_WAY}


def is_deploy_started(
    facts: NodeFacts | None, node: str | None
) -> TypeGuard[NodeFacts]:
    """Return whether Ironic has started, or ended, the deploy of a server.

    An operator may have the node serviced or rescued as soon as the deploy
    has ended. The deploy of another node than the one in Nova is left of an
    earlier attempt, which could not be undone. Nova saves the node before the
    driver is called, so a server without one has only such a deploy.

    :param facts: the facts of the server's node; None if the server has none
    :param node: the server's node in Nova; None if it has none
    """
    if facts is None or facts.uuid != node:
        return False
    return meaning(facts.provision_state) in _STARTED


def is_rebuild_started(
    facts: NodeFacts | None, task_state: str, *, has_changed: bool
) -> TypeGuard[NodeFacts]:
    """Return whether Ironic has started, or ended, the rebuild of a server.

    An active node alone is no proof, because it was active before the rebuild,
    and neither is one whose former rebuild has failed. An operator may have
    an active node serviced or rescued, before the rebuild or after. Nova saves
    ``rebuild_spawning`` just before it calls Ironic, and the worker may have
    ended in between. Therefore such a node counts as rebuilt only if its
    provision state has also changed since the request.

    :param facts: the facts of the server's node; None if the server has none
    :param has_changed: whether the node's provision state has changed since
        the user requested the rebuild
    """
    if facts is None:
        return False
    found = meaning(facts.provision_state)
    if found in _NO_PROOF_OF_REBUILD:
        return task_state == task_states.REBUILD_SPAWNING and has_changed
    return found in _STARTED


def is_active(facts: NodeFacts | None) -> bool:
    """Return whether a server's node is active in Ironic.

    :param facts: the facts of the server's node; None if the server has none
    """
    if facts is None:
        return False
    state = ProvisionState.parse(facts.provision_state)
    return state is ProvisionState.ACTIVE


def is_deployed(facts: NodeFacts) -> bool:
    """Return whether a server runs on a node, or is in rescue there."""
    return is_active(facts) or rescue_state(facts) is RescueState.RESCUED


class RescueState(enum.Enum):
    """How far Ironic has come with an interrupted rescue or unrescue."""

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
    """Return how far Ironic has come with a rescue or unrescue.

    :param facts: the facts of the server's node; None if the server has none
    """
    if facts is None:
        return RescueState.FAILED
    state = ProvisionState.parse(facts.provision_state)
    return _RESCUES.get(state, RescueState.FAILED)


class StrayState(enum.Enum):
    """Where Nova has a server that Ironic has on a held node.

    The text of each value names the action that follows.
    """

    HERE = enum.auto()
    """Nova has the server on this host: no action."""
    DELETED = enum.auto()
    """Nova deleted the server while the host had no worker: free the node."""
    NOT_IN_NOVA = enum.auto()
    """Nova never had the server, which belongs to another user of Ironic: the
    server is left alone, and its node may go to another host.
    """
    BUILD_FAILED = enum.auto()
    """The build failed and the server has no host: free the node."""
    ON_OTHER_HOST = enum.auto()
    """Nova has the server on another host: transfer the node's row there."""
    HOST_LOST = enum.auto()
    """The server is in use and Nova has no host for it: restore the host."""
    MAY_BE_BUILDING = enum.auto()
    """The server may be about to be built: check again in the next round."""


class Hosted(Protocol):
    """The fields of Nova's Instance that :func:`has_lost_host` reads."""

    @property
    def deleted(self) -> bool: ...
    @property
    def host(self) -> str | None: ...
    @property
    def vm_state(self) -> str: ...


def has_lost_host(server: Hosted) -> bool:
    """Return whether a server is in use although Nova has no host for it.

    No request of Nova leaves a server so.
    """
    is_placed = not server.deleted and server.vm_state in ON_NODE
    return is_placed and server.host is None


def stray_state(row: ServerRow | None, here: str) -> StrayState:
    """Return where Nova has a server that Ironic has on a held node.

    :param row: the server's Instance record; None if Nova never had the server
    :param here: the host that holds the node
    """
    if row is None:
        return StrayState.NOT_IN_NOVA
    if row.deleted:
        return StrayState.DELETED
    if row.host is not None:
        is_here = row.host == here
        return StrayState.HERE if is_here else StrayState.ON_OTHER_HOST
    if has_lost_host(row):
        return StrayState.HOST_LOST
    # A build also counts as failed if it was an unshelve: after its failure
    # the server is shelved again and has no task state.
    is_shelved = row.vm_state == vm_states.SHELVED_OFFLOADED
    given_up = row.vm_state == vm_states.ERROR or (
        is_shelved and row.task_state is None
    )
    return StrayState.BUILD_FAILED if given_up else StrayState.MAY_BE_BUILDING


class Action(Protocol):
    """The fields of Nova's InstanceAction that are used here."""

    id: int
    action: str
    request_id: str | None


class ActionEvent(Protocol):
    """The fields of Nova's InstanceActionEvent that are used here."""

    finish_time: Any


class Neglect(enum.Enum):
    """What is left undone of a server that has no task.

    Only a delete is carried out, because a user has requested it. The other
    two are reported: the server works, or can be used by its owner.
    """

    DELETE = enum.auto()
    """Nova has accepted a delete, which was never done: it is done now."""
    NO_ALLOCATION = enum.auto()
    """Placement has no allocation of a server that is on its node."""
    NO_PORTS = enum.auto()
    """Neutron has none of the ports that Nova knows of the server."""


@dataclasses.dataclass(frozen=True, slots=True)
class RestingServer:
    """A server of this host without a task, which no thread works on.

    A value of None means that it was not read, or could not be read.

    :param is_delete_unfinished: see :func:`is_delete_unfinished`
    """

    vm_state: str
    task_state: str | None
    is_delete_unfinished: bool | None = None
    has_allocation: bool | None = None
    has_ports: bool | None = None


ON_NODE = frozenset(
    {vm_states.ACTIVE, vm_states.STOPPED, vm_states.RESCUED, vm_states.PAUSED}
)
"""The VM states of a server that is on a node."""


class Resting(Protocol):
    """The fields of Nova's Instance that are used here."""

    @property
    def deleted(self) -> bool: ...
    @property
    def vm_state(self) -> str: ...
    @property
    def task_state(self) -> str | None: ...
    @property
    def node(self) -> str | None: ...


def is_resting(server: Resting) -> bool:
    """Return whether a server is on a node and nothing is done to it."""
    is_at_rest = not server.deleted and server.task_state is None
    is_placed = server.vm_state in ON_NODE and server.node is not None
    return is_at_rest and is_placed


def is_idle(facts: NodeFacts) -> bool:
    """Return whether a node is available and Ironic has no server on it."""
    state = ProvisionState.parse(facts.provision_state)
    return facts.instance_uuid is None and state is ProvisionState.AVAILABLE


_NEVER_DELETED_AGAIN = frozenset({vm_states.DELETED, vm_states.SOFT_DELETED})


def find_neglect(server: RestingServer) -> Neglect | None:
    """Return what is left undone of a server; None if nothing is."""
    if server.task_state is not None:
        return None
    if server.is_delete_unfinished:
        is_deleted = server.vm_state in _NEVER_DELETED_AGAIN
        return None if is_deleted else Neglect.DELETE
    if server.vm_state not in ON_NODE:
        return None
    if server.has_allocation is False:
        return Neglect.NO_ALLOCATION
    return Neglect.NO_PORTS if server.has_ports is False else None


# Actions that Nova records without a user.
_NO_REQUESTS = frozenset({'power-update', MOVE_ACTION})


def find_last_request(actions: Iterable[Action]) -> Action | None:
    """Return the newest action of a server that a user has requested.

    :param actions: the server's actions, newest first
    """
    return next((a for a in actions if a.action not in _NO_REQUESTS), None)


def is_delete_unfinished(
    last: Action | None, events: Iterable[ActionEvent]
) -> bool:
    """Return whether a delete was accepted and has never ended.

    Nova records the action when it accepts the delete. A build that ends at
    the same moment may overwrite the task state ``deleting`` of the server,
    and nothing but the action is left of the delete if its message is lost. A
    delete that has failed is no such delete: its user has seen it.

    :param last: the last request for the server
    :param events: the events of that action
    """
    if last is None or last.action != instance_actions.DELETE:
        return False
    return all(event.finish_time is None for event in events)

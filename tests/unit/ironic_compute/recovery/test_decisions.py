# SPDX-License-Identifier: Apache-2.0
"""Decisions about interrupted tasks, from the states of a row."""

import types
from typing import Any

import pytest
from nova.compute import task_states as tasks
from nova.compute import vm_states

from ironic_compute.recovery import decisions
from ironic_compute.recovery.decisions import (
    InterruptedTask,
    Neglect,
    RestingServer,
)

from .interrupted import SHELVED


@pytest.mark.parametrize(
    ('vm_state', 'task_state', 'task'),
    [
        (vm_states.BUILDING, tasks.SPAWNING, InterruptedTask.BUILD),
        (vm_states.ACTIVE, tasks.SPAWNING, InterruptedTask.CLEAR_TASK),
        (vm_states.ERROR, tasks.SPAWNING, InterruptedTask.CLEAR_TASK),
        (vm_states.ERROR, tasks.REBUILD_SPAWNING, InterruptedTask.REBUILD),
        (SHELVED, tasks.SPAWNING, InterruptedTask.UNSHELVE),
        (SHELVED, tasks.UNSHELVING, InterruptedTask.CLEAR_HOST),
        (SHELVED, None, InterruptedTask.CLEAR_HOST),
        (SHELVED, tasks.DELETING, InterruptedTask.DELETE),
        (vm_states.SHELVED, tasks.UNSHELVING, InterruptedTask.CLEAR_TASK),
        (vm_states.SHELVED, tasks.SHELVING_OFFLOADING, InterruptedTask.SHELVE),
        (vm_states.ACTIVE, tasks.SHELVING, InterruptedTask.SHELVE),
    ],
)
def test_only_a_server_that_was_never_built_is_a_build(
    vm_state: str, task_state: str | None, task: InterruptedTask
) -> None:
    """A server that was built before is never ended as a failed build.

    Ending it as a build would free its node and destroy its data.
    """
    assert decisions.find_task(vm_state, task_state) is task
    is_found = (
        task_state in decisions.TASK_STATES
        or vm_state in decisions.VM_STATES_WITHOUT_TASK
    )
    assert is_found


@pytest.mark.parametrize(
    ('vm_state', 'task'),
    [
        (vm_states.BUILDING, InterruptedTask.BUILD),
        (vm_states.DELETED, InterruptedTask.DELETE),
        (vm_states.SHELVED_OFFLOADED, InterruptedTask.CLEAR_HOST),
        (vm_states.ACTIVE, None),
    ],
)
def test_a_row_without_a_task_may_be_unfinished(
    vm_state: str, task: InterruptedTask | None
) -> None:
    """Without a task, only unbuilt, deleted and shelved rows are handled."""
    assert decisions.find_task(vm_state, None) is task
    assert (vm_state in decisions.VM_STATES_WITHOUT_TASK) is (task is not None)


def _action(name: str) -> Any:
    return types.SimpleNamespace(id=1, action=name)


def _events(*finish_times: str | None) -> list[Any]:
    return [types.SimpleNamespace(finish_time=time) for time in finish_times]


@pytest.mark.parametrize(
    ('newest_first', 'finish_times', 'unfinished'),
    [
        (['delete', 'create'], [], True),
        (['delete', 'create'], [None], True),
        (['power-update', 'delete'], [None, None], True),
        # The worker was killed, and the next one has ended the delete.
        (['delete', 'create'], [None, 'ended'], False),
        (['reboot', 'delete'], [], False),
        (['create'], [], False),
        (['ironic-compute: move', 'delete'], [None, None], True),
        (['ironic-compute: move', 'power-update'], [], False),
        ([], [], False),
    ],
)
def test_delete_without_an_end_is_the_last_request(
    newest_first: list[str],
    finish_times: list[str | None],
    unfinished: bool,
) -> None:
    """A server that was used after its delete was accepted is kept."""
    last = decisions.find_last_request(map(_action, newest_first))
    assert unfinished is decisions.is_delete_unfinished(
        last, _events(*finish_times)
    )


@pytest.mark.parametrize('vm_state', [vm_states.ACTIVE, vm_states.ERROR])
def test_only_an_accepted_delete_is_done(vm_state: str) -> None:
    """Neither a missing allocation nor missing ports delete a server."""
    server = RestingServer(vm_state, None, has_allocation=False)
    assert decisions.find_neglect(server) is not Neglect.DELETE
    server = RestingServer(vm_state, None, has_ports=False)
    assert decisions.find_neglect(server) is not Neglect.DELETE
    server = RestingServer(vm_state, None, is_delete_unfinished=True)
    assert decisions.find_neglect(server) is Neglect.DELETE


@pytest.mark.parametrize(
    ('server', 'neglect'),
    [
        (RestingServer(vm_states.ACTIVE, None), None),
        (RestingServer(vm_states.ACTIVE, None, False, True, True), None),
        (
            RestingServer(vm_states.ACTIVE, None, False, False, False),
            Neglect.NO_ALLOCATION,
        ),
        (
            RestingServer(vm_states.STOPPED, None, False, True, False),
            Neglect.NO_PORTS,
        ),
        # Such a server has given its node back.
        (RestingServer(vm_states.ERROR, None, False, False, False), None),
        (RestingServer(vm_states.SOFT_DELETED, None, True), None),
        # Its task is continued by itself.
        (RestingServer(vm_states.ACTIVE, tasks.DELETING, True), None),
    ],
)
def test_neglect_is_what_was_read_to_be_missing(
    server: RestingServer, neglect: Neglect | None
) -> None:
    """What was not read is not missing."""
    assert decisions.find_neglect(server) is neglect

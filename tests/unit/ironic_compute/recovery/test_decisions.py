# SPDX-License-Identifier: Apache-2.0
"""Decisions about interrupted tasks, from the states of a row."""

import pytest
from nova.compute import task_states as tasks
from nova.compute import vm_states

from ironic_compute.recovery import decisions
from ironic_compute.recovery.decisions import InterruptedTask

from .interrupted import SHELVED


@pytest.mark.parametrize(
    ('vm_state', 'task_state', 'task'),
    [
        (vm_states.BUILDING, tasks.SPAWNING, InterruptedTask.BUILD),
        (vm_states.ACTIVE, tasks.SPAWNING, InterruptedTask.CLEAR_TASK),
        (vm_states.ERROR, tasks.SPAWNING, InterruptedTask.CLEAR_TASK),
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

# SPDX-License-Identifier: Apache-2.0
"""A failed task ends with a fault, ERROR and freed resources."""

import contextlib
import types
from typing import Any

import pytest
from nova import exception as nova_exception
from nova.compute import vm_states

from ironic_compute import errors
from ironic_compute.driver.nova_errors import as_nova_errors
from ironic_compute.recovery.failures import TaskFailures


@pytest.fixture
def done(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Return a list to which faults are added, without a database."""
    faults: list[Any] = []
    monkeypatch.setattr(
        'nova.compute.utils.add_instance_fault_from_exc',
        lambda context, instance, fault: faults.append(str(fault)),
    )
    return faults


def test_resources_of_a_build_are_freed_before_its_row_is_saved(
    done: list[Any],
) -> None:
    """A failed build is freed, gets a fault, and is saved last."""
    server = types.SimpleNamespace(
        uuid='s1', vm_state=vm_states.BUILDING, task_state='spawning'
    )
    server.save = lambda **expected: done.append(
        (server.vm_state, server.task_state, expected)
    )
    failures = TaskFailures(
        lambda context, instance: done.append('build freed'), pytest.fail
    )
    failures.fail_build(None, server, 'the reason')
    saved = (vm_states.ERROR, None, {'expected_task_state': ['spawning']})
    assert done == ['build freed', 'the reason', saved]


@pytest.mark.parametrize(
    ('error', 'vm_state'),
    [
        (errors.TeardownFailed('the BMC is dead'), vm_states.ERROR),
        (errors.IronicRefused('the node is protected'), vm_states.ERROR),
        (errors.IronicNotReached('refused'), vm_states.BUILDING),
    ],
)
def test_build_ends_although_its_node_cannot_be_freed(
    error: Exception, vm_state: str, done: list[Any]
) -> None:
    """The machine may be broken for months; without Ironic, it waits."""
    server = types.SimpleNamespace(
        uuid='s1', vm_state=vm_states.BUILDING, task_state='spawning'
    )
    server.save = lambda **expected: None

    def free(context: Any, instance: Any) -> None:
        with as_nova_errors(instance):
            raise error

    failures = TaskFailures(free, pytest.fail)
    with contextlib.suppress(nova_exception.InstanceDeployFailure):
        failures.fail_build(None, server, 'the reason')
    assert server.vm_state == vm_state
    assert [str(error) in fault for fault in done] == [True] * len(done)

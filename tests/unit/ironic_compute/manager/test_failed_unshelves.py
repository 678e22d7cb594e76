# SPDX-License-Identifier: Apache-2.0
"""A failed unshelve leaves no allocation."""

import types
from typing import Any

import oslo_messaging
import pytest
from nova import exception as nova_exception
from nova import objects
from nova.compute import manager as nova_manager
from nova.compute import task_states, vm_states

from ironic_compute.delivery import Delivery
from ironic_compute.manager.failed_unshelves import FreesFailedUnshelves
from resource_tracker.node import NodeId
from tests.fakes.clock import ManualClock

NO_ANSWER = oslo_messaging.MessagingTimeout('no answer')


class _Manager(FreesFailedUnshelves):
    """The manager of host c1; the server has no volumes."""

    def __init__(self, node: str) -> None:
        self._node = NodeId(node)
        self.host: Any = 'c1'
        self.clock = ManualClock()
        self.freed: list[str] = []
        self.released: list[Any] = []
        self.server: Any = None
        self.reportclient = types.SimpleNamespace(
            delete_allocation_for_instance=lambda context, server, force: (
                self.freed.append(server)
            )
        )

    def list_allocated_nodes(self, context: Any, server: str) -> list[NodeId]:
        return [self._node]

    def _list_attached(self, context: Any, instance: Any) -> list[Any]:
        return []

    def release_node(self, node: str | None, server: str) -> None:
        self.released.append((node, server, list(self.freed)))


@pytest.fixture(autouse=True)
def fails(monkeypatch: pytest.MonkeyPatch) -> None:
    """A save of Nova's unshelve has no answer; the key is removed then."""

    def fail(self: Any, context: Any, instance: Any, *_: Any) -> None:
        instance.key_data, instance.auto_disk_config = None, False
        raise NO_ANSWER

    monkeypatch.setattr(
        nova_manager.ComputeManager, '_unshelve_instance', fail
    )


def _unshelve(
    monkeypatch: pytest.MonkeyPatch,
    *answers: dict[str, Any] | Exception,
    **how: str,
) -> list[str]:
    """Unshelve a server on n1; return the allocations that are deleted."""
    return _manager_of(monkeypatch, *answers, **how).freed


def _manager_of(
    monkeypatch: pytest.MonkeyPatch,
    *answers: dict[str, Any] | Exception,
    allocated: str = 'n1',
    vm_state: str = vm_states.SHELVED_OFFLOADED,
) -> _Manager:
    """Unshelve a server on n1; return the manager, which has the server.

    :param answers: the fields of its record, each time when it is read, and
        the last one from then on
    :param vm_state: what Nova has set in its Instance, and not saved
    """
    left = list(answers)

    def read(context: Any, server: str) -> Any:
        answer = left.pop(0) if len(left) > 1 else left[0]
        if isinstance(answer, Exception):
            raise answer
        return types.SimpleNamespace(**_shelved(**answer))

    monkeypatch.setattr(objects.Instance, 'get_by_uuid', read)
    manager = _Manager(allocated)
    with (
        Delivery(lambda: None, False).handled(),
        pytest.raises(oslo_messaging.MessagingTimeout) as raised,
    ):
        server = types.SimpleNamespace(
            uuid='s1',
            vm_state=vm_state,
            key_data='ssh-rsa',
            auto_disk_config=True,
        )
        manager.server = server
        manager._unshelve_instance('ctx', server, 'image', {}, 'n1')
    assert raised.value is NO_ANSWER
    return manager


def _shelved(**fields: Any) -> dict[str, Any]:
    return {
        'vm_state': vm_states.SHELVED_OFFLOADED,
        'task_state': task_states.SPAWNING,
        'host': None,
        **fields,
    }


@pytest.mark.parametrize(
    'fields',
    [{}, {'host': 'c1'}, {'task_state': task_states.UNSHELVING}],
)
def test_allocation_of_a_failed_unshelve_is_deleted(
    fields: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nova deletes it only if the claim or the deploy has failed."""
    assert _unshelve(monkeypatch, fields) == ['s1']


def test_failed_unshelve_waits_until_the_record_is_read(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """nova-conductor, which has not answered before, may still be away."""
    assert _unshelve(monkeypatch, NO_ANSWER, NO_ANSWER, {}) == ['s1']


@pytest.mark.parametrize(
    'answer',
    [
        {'host': 'c2'},
        {'task_state': None},
        {'task_state': task_states.DELETING},
        {'vm_state': vm_states.ACTIVE, 'host': 'c1'},
        nova_exception.InstanceNotFound(instance_id='s1'),
    ],
)
def test_allocation_of_another_request_is_left_alone(
    answer: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The server was unshelved or deleted by it."""
    assert _unshelve(monkeypatch, answer) == []


def test_deployed_server_keeps_its_allocation(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The save that had no answer is repeated when the request ends."""
    freed = _unshelve(monkeypatch, {}, vm_state=vm_states.ACTIVE)
    assert freed == []


def test_node_of_a_newer_unshelve_stays_allocated(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The message that failed was an older one."""
    assert _unshelve(monkeypatch, {}, allocated='n2') == []


@pytest.mark.parametrize(
    'answer', [{}, nova_exception.InstanceNotFound(instance_id='s1')]
)
def test_node_of_a_failed_unshelve_is_released_before_its_allocation(
    answer: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """nova-api may have deleted the server alone, with its allocation.

    Placement offered the node, and its host refused all others on it until the
    next round of recovery: their unshelves failed.
    """
    manager = _manager_of(monkeypatch, answer)
    assert manager.released == [('n1', 's1', [])]


def test_deployed_server_keeps_its_node(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Only its last save had no answer."""
    manager = _manager_of(monkeypatch, {}, vm_state=vm_states.ACTIVE)
    assert manager.released == []


@pytest.mark.parametrize(
    'vm_state', [vm_states.SHELVED_OFFLOADED, vm_states.ACTIVE]
)
def test_server_keeps_its_key(
    vm_state: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nova puts it back only after a success, and saves it as removed."""
    server = _manager_of(monkeypatch, {}, vm_state=vm_state).server
    assert (server.key_data, server.auto_disk_config) == ('ssh-rsa', True)

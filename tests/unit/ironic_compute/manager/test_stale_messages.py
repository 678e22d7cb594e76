# SPDX-License-Identifier: Apache-2.0
"""Stale RPC messages are dropped: each task runs once."""

import types
from typing import Any

import pytest
from nova import exception as nova_exception
from nova.compute import build_results, task_states, vm_states
from nova.compute import manager as nova_manager

from ironic_compute.delivery import Delivery
from ironic_compute.manager import stale_messages
from ironic_compute.manager.stale_messages import DropsStaleMessages
from ironic_compute.recovery.in_progress import InProgress

UNBUILT = (vm_states.BUILDING, None)


class _Server(types.SimpleNamespace):
    """A server whose row changes while the message waits."""

    def obj_get_changes(self) -> dict[str, Any]:
        return {'availability_zone': 'z2', 'task_state': 'stale'}

    def refresh(self) -> None:
        if self.then is None:
            raise nova_exception.InstanceNotFound(instance_id=self.uuid)
        self.vm_state, self.host = self.then


@pytest.mark.parametrize(
    ('then', 'result'),
    [
        (UNBUILT, build_results.ACTIVE),
        ((vm_states.ACTIVE, 'c1'), build_results.RESCHEDULED_BY_POLICY),
        ((vm_states.BUILDING, 'c1'), build_results.RESCHEDULED_BY_POLICY),
        (None, build_results.ACTIVE),
    ],
)
def test_a_build_that_waited_for_the_lock_reads_the_row_again(
    then: Any, result: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of two messages of one build, the second is dropped."""
    manager: Any = object.__new__(DropsStaleMessages)
    manager.in_progress = InProgress()
    monkeypatch.setattr(
        nova_manager.ComputeManager,
        '_do_build_and_run_instance',
        lambda *args: build_results.ACTIVE,
    )
    server = _Server(
        uuid='s1', vm_state=UNBUILT[0], host=UNBUILT[1], then=then
    )
    assert manager._do_build_and_run_instance(None, server) == result


class _Task(_Server):
    """A server whose task has changed when its row is read."""

    def refresh(self) -> None:
        self.task_state, self.availability_zone = self.then, 'z1'


def _serve(
    name: str, row: str | None, monkeypatch: pytest.MonkeyPatch
) -> tuple[list[str], _Task]:
    manager: Any = object.__new__(DropsStaleMessages)
    manager.in_progress = InProgress()
    served: list[str] = []

    def handle(self: Any, context: Any, server: _Task) -> None:
        assert not _is_idle(self.in_progress, server.uuid)
        served.append(server.availability_zone)

    monkeypatch.setattr(nova_manager.ComputeManager, name, handle)
    server = _Task(uuid='s1', then=row)
    stale_messages._drops_stale(name)(manager, None, server)
    return served, server


def _is_idle(in_progress: InProgress, server: str) -> bool:
    with in_progress.exclusive(server) as free:
        return free


_SHELVES = [
    ('shelve_offload_instance', task_states.SHELVING),
    ('shelve_offload_instance', task_states.SHELVING_OFFLOADING),
    ('unshelve_instance', task_states.UNSHELVING),
]


@pytest.mark.parametrize(('name', 'row'), _SHELVES)
def test_a_server_is_in_progress_while_it_is_shelved_or_unshelved(
    name: str, row: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A server is in progress during its message, and keeps its zone."""
    served, server = _serve(name, row, monkeypatch)
    assert served == ['z2']
    assert server.task_state == row
    assert name in vars(DropsStaleMessages)


@pytest.mark.parametrize(('name', 'row'), _SHELVES)
def test_stale_shelving_and_unshelving_are_dropped(
    name: str, row: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A message is dropped if the row no longer has its task."""
    served, _ = _serve(name, None, monkeypatch)
    assert not served


# The arguments of Nova after the instance; the sixth one are the networks.
_ARGUMENTS = (*'12345', 'networks', *'789')


class _Redelivered(DropsStaleMessages):
    """A manager of host c1 with an interrupted build."""

    def __init__(self, *, is_taken_over: bool) -> None:
        self.host = 'c1'
        self.in_progress = InProgress()
        self.undone: list[Any] = []
        self.acks: list[str] = []
        self._is_taken_over = is_taken_over

    def undo_interrupted_build(
        self, context: Any, instance: Any, requested_networks: Any
    ) -> bool:
        self.undone.append(requested_networks)
        return not self._is_taken_over


def _build_again(
    manager: Any, then: tuple[str, str | None], monkeypatch: pytest.MonkeyPatch
) -> list[str]:
    """Deliver the message of a build; return what was built."""
    built: list[str] = []

    def do_build(*args: Any) -> str:
        assert not manager.acks
        built.append(args[2].uuid)
        return build_results.ACTIVE

    def begin(self: Any, context: Any, instance: Any, *args: Any) -> None:
        threads.append(
            lambda: manager._do_build_and_run_instance(
                context, instance, *args
            )
        )

    threads: list[Any] = []
    nova = nova_manager.ComputeManager
    monkeypatch.setattr(nova, '_do_build_and_run_instance', do_build)
    monkeypatch.setattr(nova, 'build_and_run_instance', begin)
    server = _Server(uuid='s1', vm_state='', host='', then=then)
    message = Delivery(lambda: manager.acks.append('ack'))
    with message.handled():
        manager.build_and_run_instance(
            types.SimpleNamespace(), server, *_ARGUMENTS
        )
    for run in threads:
        assert not manager.acks
        run()
    return built


def test_interrupted_build_of_this_host_is_undone_and_built_anew(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Its message is acknowledged when the second build has ended."""
    manager = _Redelivered(is_taken_over=False)
    then = (vm_states.BUILDING, 'c1')
    assert _build_again(manager, then, monkeypatch) == ['s1']
    assert manager.undone == ['networks']
    assert manager.acks


@pytest.mark.parametrize(
    ('then', 'is_taken_over'),
    [
        ((vm_states.BUILDING, 'c1'), True),
        ((vm_states.BUILDING, 'c2'), False),
        ((vm_states.ACTIVE, 'c1'), False),
        ((vm_states.ERROR, 'c1'), False),
    ],
)
def test_build_that_ironic_or_another_host_has_is_dropped(
    then: tuple[str, str], is_taken_over: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Recovery, or the other host, brings such a build to its end."""
    manager = _Redelivered(is_taken_over=is_taken_over)
    assert not _build_again(manager, then, monkeypatch)
    assert manager.acks


def test_first_delivery_of_a_build_undoes_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """No host has begun the build."""
    manager = _Redelivered(is_taken_over=False)
    assert _build_again(manager, UNBUILT, monkeypatch) == ['s1']
    assert not manager.undone
    assert manager.acks

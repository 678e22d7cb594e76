# SPDX-License-Identifier: Apache-2.0
"""Each build is done once, also if its message comes again."""

import types
from typing import Any

import oslo_messaging
import pytest
from cinderclient import exceptions as cinder_exceptions
from nova import exception as nova_exception
from nova.compute import build_results, task_states, vm_states
from nova.compute import manager as nova_manager

from ironic_compute.delivery import Delivery
from ironic_compute.manager.build_messages import BuildMessages
from ironic_compute.manager.forwarding import HOPS
from ironic_compute.recovery.in_progress import InProgress
from resource_tracker.node import NodeId
from tests.fakes.clock import ManualClock

UNBUILT = (vm_states.BUILDING, None)
# The arguments of Nova after the instance: the third ones are the filter
# properties, the sixth ones the networks, the ninth one is the node.
_ARGUMENTS = ('1', '2', {}, '4', '5', 'networks', *'78', 'n1')


class _Server(types.SimpleNamespace):
    """A server whose row changes while the message waits."""

    def obj_get_changes(self) -> dict[str, Any]:
        return {'availability_zone': 'z2', 'task_state': 'stale'}

    task_state: str | None = None

    def save(self, **expected: Any) -> None:
        """Do nothing."""

    def refresh(self) -> None:
        if self.then is None:
            raise nova_exception.InstanceNotFound(instance_id=self.uuid)
        self.vm_state, self.host, *task = self.then
        self.task_state = task[0] if task else None


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
    manager: Any = object.__new__(_HoldsEachNode)
    manager.in_progress = InProgress()
    monkeypatch.setattr(
        nova_manager.ComputeManager,
        '_do_build_and_run_instance',
        lambda *args: build_results.ACTIVE,
    )
    server = _Server(
        uuid='s1', vm_state=UNBUILT[0], host=UNBUILT[1], then=then
    )
    assert (
        manager._do_build_and_run_instance(None, server, *_ARGUMENTS) == result
    )


def test_trace_of_a_build_ends_with_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The thread builds other servers later, whose builds have no trace."""
    profiler = pytest.importorskip('osprofiler.profiler')
    manager: Any = object.__new__(_HoldsEachNode)
    manager.in_progress = InProgress()
    traced: list[bool] = []

    def build(*args: Any) -> str:
        traced.append(profiler.get() is not None)
        return build_results.ACTIVE

    monkeypatch.setattr(
        nova_manager.ComputeManager, '_do_build_and_run_instance', build
    )
    server = _Server(uuid='s1', vm_state=UNBUILT[0], host=None, then=UNBUILT)
    profiler.init('key')
    for _ in range(2):
        manager._do_build_and_run_instance(None, server, *_ARGUMENTS)
    assert traced == [True, False]


class _HoldsEachNode(BuildMessages):
    """A manager of a host that holds the nodes of all builds."""

    clock = ManualClock()

    def forward_late(self, *args: Any) -> bool:
        return False


class _Redelivered(_HoldsEachNode):
    """A manager of host c1 with an interrupted build."""

    def __init__(
        self, *, is_taken_over: bool = False, nodes: tuple[str, ...] = ('n1',)
    ) -> None:
        self.host = 'c1'
        self.clock = ManualClock()
        self.compute_task_api = self
        self.scheduled: list[Any] = []
        self.forwarded: list[Any] = []
        self._answers: list[Any] = [nodes]
        self.in_progress = InProgress()
        self.undone: list[Any] = []
        self.acks: list[str] = []
        self._is_taken_over = is_taken_over

    def undo_interrupted_build(
        self, context: Any, instance: Any, requested_networks: Any
    ) -> bool:
        self.undone.append(requested_networks)
        return not self._is_taken_over

    def list_allocated_nodes(self, context: Any, server: str) -> list[NodeId]:
        answer = self._answers[0]
        if isinstance(answer, Exception):
            raise self._answers.pop(0)
        return [NodeId(node) for node in answer]

    def forward_to_node(
        self, context: Any, instance: Any, request: Any, node: NodeId
    ) -> None:
        self.forwarded.append((instance.uuid, request['node'], node))

    def renew_volumes(self, context: Any, server: str) -> str:
        return f'volumes of {server}'

    def build_instances(
        self, context: Any, servers: Any, *args: Any, **rest: Any
    ) -> None:
        self.scheduled.append((servers[0].uuid, rest['host_lists']))


def _build_again(
    manager: Any,
    then: tuple[str | None, ...],
    monkeypatch: pytest.MonkeyPatch,
    *,
    is_redelivered: bool = True,
    arguments: tuple[Any, ...] = _ARGUMENTS,
    result: str = build_results.ACTIVE,
) -> list[str]:
    """Deliver the message of a build; return what was built."""
    built: list[str] = []

    def do_build(*args: Any) -> str:
        assert not manager.acks
        built.append(args[2].uuid)
        return result

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
    message = Delivery(lambda: manager.acks.append('ack'), is_redelivered)
    with message.handled():
        manager.build_and_run_instance(
            types.SimpleNamespace(), server, *arguments
        )
    for run in threads:
        assert not manager.acks
        run()
    return built


@pytest.mark.parametrize(
    ('error', 'tries_count'),
    [
        (nova_exception.VolumeNotFound(volume_id='v1'), 1),
        (nova_exception.InvalidInput(reason='it is in use'), 1),
        (cinder_exceptions.Unauthorized(401), 1),
        (nova_exception.CinderConnectionFailed(reason='refused'), 3),
        (cinder_exceptions.ClientException(503), 3),
    ],
)
def test_build_whose_volume_cinder_refuses_does_not_wait(
    error: Exception, tries_count: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its user may have deleted the volume; Nova's build says so then.

    A wait without an end would keep one of the worker's few build slots.
    """
    tries: list[str] = []

    class _Manager(_Redelivered):
        def renew_volumes(self, context: Any, server: str) -> str:
            tries.append(server)
            if len(tries) < 3:
                raise error
            return 'volumes'

    manager = _Manager()
    arguments = ('1', '2', {'retry': {'num_attempts': 2}}, *_ARGUMENTS[3:])
    assert _build_again(
        manager,
        UNBUILT,
        monkeypatch,
        is_redelivered=False,
        arguments=arguments,
    ) == ['s1']
    assert len(tries) == tries_count


@pytest.mark.parametrize(
    ('is_redelivered', 'host', 'properties', 'volumes'),
    [
        (True, None, {}, 'volumes of s1'),
        (False, None, {'retry': {'num_attempts': 2}}, 'volumes of s1'),
        # Its sender has sent it twice, and the first one was begun.
        (False, 'c1', {}, 'volumes of s1'),
        (False, None, {}, '8'),
    ],
)
def test_repeated_build_has_the_volumes_of_the_first_one(
    is_redelivered: bool,
    host: str | None,
    properties: dict[str, Any],
    volumes: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Its message lacks those that were made from an image.

    They would be made a second time, and the first ones would stay attached
    to the server for ever.
    """
    used: list[Any] = []

    class _Manager(_Redelivered):
        def forward_late(self, context: Any, server: Any, request: Any) -> Any:
            used.append(request['block_device_mapping'])
            return False

    arguments = ('1', '2', properties, *_ARGUMENTS[3:])
    manager = _Manager()
    assert _build_again(
        manager,
        (vm_states.BUILDING, host, task_states.SCHEDULING),
        monkeypatch,
        is_redelivered=is_redelivered,
        arguments=arguments,
    )
    assert used == [volumes]


@pytest.mark.parametrize(
    'error',
    [
        nova_exception.CinderConnectionFailed(reason='refused'),
        oslo_messaging.MessagingTimeout(),
    ],
)
def test_build_that_was_sent_twice_waits_for_the_volumes_of_the_first_one(
    error: Exception, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Once that one is undone, only this thread knows that it was begun."""
    used: list[Any] = []
    failures = [error, error]

    class _Manager(_Redelivered):
        def undo_interrupted_build(
            self, context: Any, instance: Any, networks: Any
        ) -> bool:
            instance.then = (*UNBUILT, task_states.SCHEDULING)
            return True

        def renew_volumes(self, context: Any, server: str) -> str:
            if failures:
                raise failures.pop()
            return super().renew_volumes(context, server)

        def forward_late(self, context: Any, server: Any, request: Any) -> Any:
            used.append(request['block_device_mapping'])
            return False

    then = vm_states.BUILDING, 'c1', task_states.SPAWNING
    manager = _Manager()
    assert _build_again(manager, then, monkeypatch, is_redelivered=False)
    assert used == ['volumes of s1']


@pytest.mark.parametrize(
    'then',
    [
        (vm_states.BUILDING, 'c1'),
        # The worker ended between the end of its claim and the reschedule.
        (vm_states.BUILDING, None, task_states.NETWORKING),
        (vm_states.BUILDING, None, task_states.SPAWNING),
    ],
)
def test_interrupted_build_of_this_host_is_undone_and_built_anew(
    then: tuple[str | None, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its message is acknowledged when the second build has ended."""
    manager = _Redelivered()
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
        ((vm_states.BUILDING, 'c1', task_states.DELETING), False),
    ],
)
def test_build_that_ironic_or_another_host_has_is_dropped(
    then: tuple[str, ...], is_taken_over: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Recovery, or the other host, brings such a build to its end."""
    manager = _Redelivered(is_taken_over=is_taken_over)
    assert not _build_again(manager, then, monkeypatch)
    assert manager.acks


def test_first_delivery_of_a_build_undoes_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """No host has begun the build."""
    manager = _Redelivered()
    built = _build_again(manager, UNBUILT, monkeypatch, is_redelivered=False)
    assert built == ['s1']
    assert not manager.undone
    assert manager.acks


def test_redelivered_build_without_an_allocation_is_scheduled_anew(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A worker ended when it had deleted the allocation of a failed build."""
    manager = _Redelivered(nodes=())
    assert not _build_again(manager, UNBUILT, monkeypatch)
    assert manager.scheduled == [('s1', None)]
    assert manager.acks


@pytest.mark.parametrize(
    'properties', [{}, {HOPS: 1}, {'retry': {'num_attempts': 2}}]
)
@pytest.mark.parametrize(
    ('nodes', 'built'), [((), []), (('n1',), ['s1']), (('n2',), [])]
)
def test_build_that_was_sent_twice_is_done_on_the_allocated_node(
    nodes: tuple[str, ...],
    built: list[str],
    properties: Any,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A host may have given the allocation up before it ended.

    The sender of a message may have lost its connection and sent it again, or
    the host that has sent the build on had got its message twice.
    """
    manager = _Redelivered(nodes=nodes)
    arguments = (*_ARGUMENTS[:2], properties, *_ARGUMENTS[3:])
    assert built == _build_again(
        manager,
        UNBUILT,
        monkeypatch,
        is_redelivered=False,
        arguments=arguments,
    )
    assert manager.scheduled == ([] if nodes else [('s1', None)])


def test_redelivered_build_is_sent_to_the_node_that_was_allocated_since(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A worker may have ended between the scheduler's answer and its cast."""
    manager = _Redelivered(nodes=('n2',))
    assert not _build_again(manager, UNBUILT, monkeypatch)
    assert not manager.scheduled
    assert manager.forwarded == [('s1', 'n1', 'n2')]
    assert manager.acks


def test_build_waits_until_placement_answers(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The message is not acknowledged meanwhile."""
    manager = _Redelivered()
    manager._answers.insert(0, OSError('Placement is away'))
    assert _build_again(manager, UNBUILT, monkeypatch) == ['s1']
    assert manager._answers == [('n1',)]


def test_failed_build_frees_its_allocation_before_its_message_is_done(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A worker that ended in between would leave the allocation for ever."""
    manager: Any = _Redelivered()
    freed: list[tuple[str, bool]] = []
    manager.reportclient = types.SimpleNamespace(
        delete_allocation_for_instance=lambda context, server, force: (
            freed.append((server, bool(manager.acks)))
        )
    )
    result = build_results.FAILED
    _build_again(manager, UNBUILT, monkeypatch, result=result)
    assert freed == [('s1', False)]
    assert manager.acks


@pytest.mark.parametrize('then', [None, (vm_states.ERROR, None)])
def test_build_of_a_server_that_is_not_built_any_more_frees_its_allocation(
    then: Any,
) -> None:
    """It was deleted, or counted as lost, while it was scheduled."""
    freed: list[str] = []
    manager: Any = object.__new__(_HoldsEachNode)
    manager.in_progress = InProgress()
    manager.reportclient = types.SimpleNamespace(
        delete_allocation_for_instance=lambda context, server, force: (
            freed.append(server)
        )
    )
    manager.build_and_run_instance(None, _Server(uuid='s1', then=then))
    assert freed == ['s1']


@pytest.mark.parametrize('is_begun', [True, False])
def test_build_that_waits_for_a_thread_is_in_progress(
    is_begun: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """[DEFAULT] max_concurrent_builds may be lower than the builds of a host.

    The build that waits has no host yet, and would count as lost.
    """
    begun: list[bool] = []

    def begin(
        self: Any, context: Any, server: Any, *args: Any, **_: Any
    ) -> None:
        if not is_begun:
            raise RuntimeError('cannot schedule new futures after shutdown')
        begun.append(True)

    monkeypatch.setattr(
        nova_manager.ComputeManager, 'build_and_run_instance', begin
    )
    monkeypatch.setattr(
        nova_manager.ComputeManager,
        '_do_build_and_run_instance',
        lambda *args: build_results.ACTIVE,
    )
    manager: Any = object.__new__(_HoldsEachNode)
    manager.in_progress = InProgress()
    manager.host = 'c1'
    server = _Server(uuid='s1', vm_state=UNBUILT[0], host=None, then=UNBUILT)
    context: Any = types.SimpleNamespace()
    try:
        manager.build_and_run_instance(context, server)
    except RuntimeError:
        assert not is_begun
    assert _is_idle(manager.in_progress) is not is_begun
    if is_begun:
        manager._do_build_and_run_instance(context, server, *_ARGUMENTS)
    assert _is_idle(manager.in_progress)


def _is_idle(in_progress: InProgress) -> bool:
    with in_progress.exclusive('s1') as free:
        return free

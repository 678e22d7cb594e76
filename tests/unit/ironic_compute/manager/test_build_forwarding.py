# SPDX-License-Identifier: Apache-2.0
"""A build that reached the former holder of a node is forwarded."""

import contextlib
import inspect
import threading
import types
from collections.abc import Iterator
from typing import Any

import oslo_messaging
import pytest
from nova import exception as nova_exception
from nova import objects
from nova.compute import build_results, task_states, vm_states
from nova.compute import manager as nova_manager

from ironic_compute import delivery
from ironic_compute.manager import forwarding
from ironic_compute.manager.build_messages import BuildMessages
from ironic_compute.manager.compute_manager import IronicComputeManager
from ironic_compute.manager.retries import while_kept
from ironic_compute.manager.stale_messages import DropsStaleMessages
from ironic_compute.recovery.in_progress import InProgress
from resource_tracker.node import NodeId
from tests.fakes.clock import ManualClock


class _Rpc:
    """Records each cast and its host."""

    def __init__(self) -> None:
        self.casts: list[tuple[Any, ...]] = []
        self.has_queue = True

    def unshelve_instance(
        self, context: Any, instance: Any, host: str, spec: Any, **rest: Any
    ) -> None:
        if not self.has_queue:
            raise oslo_messaging.MessageUndeliverable(None, None, None, None)
        self.casts.append((instance, host, spec, rest))

    def build_and_run_instance(
        self, context: Any, instance: Any, host: str, **rest: Any
    ) -> None:
        if not self.has_queue:
            raise oslo_messaging.MessageUndeliverable(None, None, None, None)
        self.casts.append((instance, host, rest))


class _HandledHere(DropsStaleMessages):
    """Records each message that is handled here."""

    handled: list[Any]

    def unshelve_instance(self, context: Any, *message: Any) -> None:
        self.handled.append(message)

    def build_and_run_instance(
        self, context: Any, instance: Any, *args: Any, **kwargs: Any
    ) -> None:
        self.handled.append(instance)


class _Manager(IronicComputeManager, _HandledHere):
    """The real manager with a recorded handler."""

    def list_allocated_nodes(self, context: Any, server: str) -> list[Any]:
        return [NodeId('n')]


def _manager(monkeypatch: pytest.MonkeyPatch, holder: str) -> Any:
    """Return a manager of host c1 that holds no node."""
    manager: Any = object.__new__(_Manager)
    manager.host, manager.compute_rpcapi = 'c1', _Rpc()
    manager.handled, manager.clock = [], ManualClock()
    manager.in_progress = InProgress()
    manager._components = types.SimpleNamespace(
        held_nodes=types.SimpleNamespace(
            locked_row=lambda node: contextlib.nullcontext(None)
        ),
        new_nodes=types.SimpleNamespace(hold_if_ours=manager.handled.append),
    )
    monkeypatch.setattr(
        objects.ComputeNode,
        'get_by_nodename',
        lambda context, node: types.SimpleNamespace(host=holder, uuid=node),
    )
    return manager


@pytest.mark.parametrize('properties', [None, {'limits': {}}])
def test_unshelving_is_forwarded_unchanged(
    properties: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An unshelve is cast to the holder with all of its arguments."""
    manager = _manager(monkeypatch, 'c2')
    server = types.SimpleNamespace(uuid='s')
    manager.unshelve_instance(
        'ctx', server, 'image', properties, 'n', 'spec', []
    )
    rest = {
        'image': 'image',
        'filter_properties': {**(properties or {}), forwarding.HOPS: 1},
        'node': 'n',
        'accel_uuids': [],
    }
    assert manager.compute_rpcapi.casts == [(server, 'c2', 'spec', rest)]
    assert not manager.handled


def test_unshelving_for_a_host_without_a_queue_is_handled_here(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It fails here, and its node is free again; it would be lost."""
    manager = _manager(monkeypatch, 'c2')
    manager.compute_rpcapi.has_queue = False
    server = types.SimpleNamespace(
        uuid='s',
        task_state=task_states.UNSHELVING,
        obj_get_changes=dict,
        refresh=lambda: None,
    )
    manager.unshelve_instance('ctx', server, 'image', {}, 'n', 'spec', [])
    assert [message[0] for message in manager.handled] == [server]


@pytest.mark.parametrize(
    ('holder', 'hops_count'), [('c1', 0), ('c2', forwarding.HOPS_MAX), ('', 0)]
)
def test_unshelving_is_handled_here_if_it_may_not_be_forwarded(
    holder: str, hops_count: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without another holder, or after three hops, Nova's handler runs."""
    manager = _manager(monkeypatch, holder)
    server = types.SimpleNamespace(
        uuid='s',
        task_state=task_states.UNSHELVING,
        obj_get_changes=dict,
        refresh=lambda: None,
    )
    rest = 'image', {forwarding.HOPS: hops_count}, 'n', 'spec', []
    message = (server, *rest)
    manager.unshelve_instance('ctx', *message)
    assert manager.handled == ['n', message]
    assert not manager.compute_rpcapi.casts


def test_unshelving_has_the_parameters_of_nova() -> None:
    """The parameters are Nova's, because Nova passes them by position."""
    ours, novas = (
        list(inspect.signature(cls.unshelve_instance).parameters)
        for cls in (IronicComputeManager, nova_manager.ComputeManager)
    )
    assert ours == novas


def test_message_for_a_node_that_is_being_pushed_follows_the_node(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The push has the node's lock; the message waits and is forwarded."""
    manager = _manager(monkeypatch, 'c2')
    has_asked, is_pushed = threading.Event(), threading.Event()

    @contextlib.contextmanager
    def locked_row(node: Any) -> Iterator[None]:
        has_asked.set()
        assert is_pushed.wait(20)
        yield None

    manager._components.held_nodes.locked_row = locked_row
    server = types.SimpleNamespace(uuid='s')
    message = ('ctx', server, 'image', {}, 'n', 'spec', [])
    thread = threading.Thread(target=manager.unshelve_instance, args=message)
    thread.start()
    assert has_asked.wait(20)
    assert not manager.compute_rpcapi.casts
    with manager.in_progress.exclusive('s') as is_free:
        assert not is_free, 'recovery would end the unshelve'
    is_pushed.set()
    thread.join(20)
    assert [cast[1] for cast in manager.compute_rpcapi.casts] == ['c2']


class _Tracker:
    """Keeps a node, or says that the host does not hold it."""

    def __init__(self, is_held: bool) -> None:
        self._is_held = is_held
        self.kept: list[Any] = []
        self.released: list[Any] = []

    def keep_node(self, node: str, consumer: str) -> bool:
        self.kept.append((node, consumer))
        return self._is_held

    def release_node(self, node: str, consumer: str) -> None:
        self.released.append((node, consumer))


def _shelved() -> Any:
    return types.SimpleNamespace(
        uuid='s', save=None, key_data=None, auto_disk_config=False
    )


@pytest.mark.parametrize('is_held', [True, False])
def test_unshelving_that_waited_for_its_lock_follows_a_pushed_node(
    is_held: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The node is kept for the claim, or the message goes on once more."""
    manager = _manager(monkeypatch, 'c2')
    manager.rt = _Tracker(is_held)
    manager.driver = types.SimpleNamespace(
        assume_node=lambda *args: contextlib.nullcontext()
    )
    unshelved: list[Any] = []
    monkeypatch.setattr(
        nova_manager.ComputeManager,
        '_unshelve_instance',
        lambda self, context, *args: unshelved.append(args),
    )
    message = (_shelved(), 'image', {}, 'n', 'spec', [])
    manager._unshelve_instance('ctx', *message)
    assert manager.rt.kept == [('n', 's')]
    assert bool(unshelved) == is_held
    assert [c[1] for c in manager.compute_rpcapi.casts] == (
        [] if is_held else ['c2']
    )


@pytest.mark.parametrize('is_kept', [True, False])
def test_unshelving_waits_until_its_holder_can_be_read(
    is_kept: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It failed, and its user had to ask again.

    A message that RabbitMQ does not keep is handled at once.
    """
    manager = _manager(monkeypatch, 'c2')
    answers_s = manager.clock.now_s() + 20.0
    read_row = objects.ComputeNode.get_by_nodename

    def read(context: Any, node: str) -> Any:
        if manager.clock.now_s() < answers_s:
            raise oslo_messaging.MessagingTimeout
        return read_row(context, node)

    monkeypatch.setattr(objects.ComputeNode, 'get_by_nodename', read)
    message = delivery.Delivery(lambda: None)
    with message.handled() if is_kept else contextlib.nullcontext():
        host = manager._forward_to('ctx', 'n', {}, while_kept)
        assert host == ('c2' if is_kept else None)
        manager.clock = ManualClock()
        assert manager._forward_to('ctx', 'n', {}) is None


def test_unshelving_waits_until_the_row_of_its_node_is_confirmed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It failed if Nova did not answer for long, and was to be asked again."""
    manager = _manager(monkeypatch, 'c1')
    manager.rt = _Tracker(is_held=True)
    steps: list[str] = []
    manager.rt.wait_confirmed = steps.append
    manager.driver = types.SimpleNamespace(
        assume_node=lambda *args: contextlib.nullcontext()
    )
    monkeypatch.setattr(
        nova_manager.ComputeManager,
        '_unshelve_instance',
        lambda *args: steps.append('unshelved'),
    )
    message = (_shelved(), 'image', {}, 'n', 'spec', [])
    with delivery.Delivery(lambda: None).handled():
        manager._unshelve_instance('ctx', *message)
    assert steps == ['n', 'unshelved']


@pytest.mark.parametrize(
    ('result', 'released'),
    [
        (build_results.FAILED, [('n', 's')]),
        (RuntimeError('no answer'), [('n', 's')]),
        (build_results.ACTIVE, []),
        (build_results.RESCHEDULED_BY_POLICY, []),
    ],
)
def test_build_that_fails_before_its_claim_releases_its_node(
    result: Any, released: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its server was deleted while the build was scheduled anew.

    Placement offered the node, and each build on it was refused until the
    next round of recovery: builds used up their attempts.
    """

    def build(*args: Any, **kwargs: Any) -> Any:
        if isinstance(result, Exception):
            raise result
        return result

    manager = _manager(monkeypatch, 'c1')
    manager.rt = _Tracker(is_held=True)
    # The arguments from the image to the block device mapping, then the node.
    arguments = ('image', 'spec', {}, None, [], None, [], [], 'n')
    monkeypatch.setattr(BuildMessages, '_do_build_and_run_instance', build)
    with contextlib.suppress(RuntimeError):
        manager._do_build_and_run_instance('ctx', SERVER, *arguments)
    assert manager.rt.released == released


SERVER = types.SimpleNamespace(uuid='s')


def _server(vm_state: str, host: str | None, task: str | None) -> Any:
    """Return a server whose record does not change any more."""
    return types.SimpleNamespace(
        uuid='s',
        vm_state=vm_state,
        host=host,
        task_state=task,
        obj_get_changes=dict,
        refresh=lambda: None,
    )


@pytest.mark.parametrize(
    ('host', 'task', 'is_redelivered', 'is_begun'),
    [
        ('c1', task_states.SPAWNING, True, True),
        # The message may have been sent on, and the holder may be at it.
        (None, task_states.SPAWNING, True, False),
        (None, task_states.SCHEDULING, True, False),
        ('c2', task_states.SPAWNING, True, False),
        ('c1', task_states.DELETING, True, False),
        (None, task_states.SCHEDULING, False, False),
    ],
)
def test_build_that_began_here_is_not_forwarded_before_it_is_undone(
    host: str | None,
    task: str,
    is_redelivered: bool,
    is_begun: bool,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The node was pushed meanwhile, and its holder dropped the message.

    Nobody freed the node, and the server ended in ERROR as a lost build.
    """
    manager = _manager(monkeypatch, 'c2')
    server = _server(vm_states.BUILDING, host, task)
    message = delivery.Delivery(lambda: None, is_redelivered)
    with message.handled():
        manager.build_and_run_instance(
            types.SimpleNamespace(), server, node='n', filter_properties={}
        )
    hosts = [cast[1] for cast in manager.compute_rpcapi.casts]
    assert hosts == ([] if is_begun else ['c2'])
    assert manager.handled == ([server] if is_begun else [])


@pytest.mark.parametrize(
    ('host', 'task', 'is_redelivered', 'is_begun'),
    [
        ('c1', task_states.SPAWNING, True, True),
        # The message may have been sent on, and the holder may be at it.
        (None, task_states.SPAWNING, True, False),
        (None, task_states.UNSHELVING, True, False),
        ('c2', task_states.SPAWNING, True, False),
        (None, task_states.UNSHELVING, False, False),
    ],
)
def test_unshelving_that_began_here_is_not_forwarded_before_it_is_undone(
    host: str | None,
    task: str,
    is_redelivered: bool,
    is_begun: bool,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The node was pushed meanwhile; its holder would drop the message."""
    manager = _manager(monkeypatch, 'c2')
    manager.in_progress = InProgress()
    manager.list_allocated_nodes = lambda context, server: ['n']
    # Ironic has taken the deploy over.
    manager.undo_interrupted_unshelve = lambda context, server: False
    server = _server(vm_states.SHELVED_OFFLOADED, host, task)
    arguments = ('image', {}, 'n', 'spec', [])
    with delivery.Delivery(lambda: None, is_redelivered).handled():
        manager.unshelve_instance('ctx', server, *arguments)
    hosts = [cast[1] for cast in manager.compute_rpcapi.casts]
    assert hosts == ([] if is_begun else ['c2'])
    assert bool(manager.handled) == is_begun


@pytest.mark.parametrize('holder', ['c1', 'c2'])
def test_build_of_another_node_is_sent_to_its_holder(
    holder: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also to this host, where the message counts as forwarded."""
    manager = _manager(monkeypatch, holder)
    request = {
        'self': manager,
        'context': 'ctx',
        'instance': SERVER,
        'node': 'n1',
        'image': 'image',
        'filter_properties': {'limits': {}},
    }
    manager.forward_to_node('ctx', SERVER, request, 'n2')
    rest = {
        'node': 'n2',
        'image': 'image',
        'filter_properties': {'limits': {}, forwarding.HOPS: 1},
    }
    assert manager.compute_rpcapi.casts == [(SERVER, holder, rest)]


def test_build_of_a_pushed_node_with_a_row_before_nova_18_is_forwarded(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Its allocation is on the row's uuid, which no node has.

    The build was dropped, and its server ended in ERROR as lost.
    """
    manager = _manager(monkeypatch, 'c2')

    def read(context: Any, node: str) -> Any:
        if node != 'n1':
            raise nova_exception.ComputeHostNotFound(host=node)
        return types.SimpleNamespace(host='c2', uuid='row-uuid')

    monkeypatch.setattr(objects.ComputeNode, 'get_by_nodename', read)
    request = {'node': 'n1', 'filter_properties': {}}
    manager.forward_to_node('ctx', SERVER, request, NodeId('row-uuid'))
    (cast,) = manager.compute_rpcapi.casts
    assert (cast[1], cast[2]['node']) == ('c2', 'n1')


@pytest.mark.parametrize(
    ('holder', 'hops_count'), [('', 0), ('c2', forwarding.HOPS_MAX)]
)
def test_build_of_another_node_is_left_if_it_cannot_be_sent(
    holder: str, hops_count: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Recovery then finds that nobody builds the server."""
    manager = _manager(monkeypatch, holder)
    properties = {forwarding.HOPS: hops_count}
    request = {'node': 'n1', 'filter_properties': properties}
    manager.forward_to_node('ctx', SERVER, request, 'n2')
    assert not manager.compute_rpcapi.casts


@pytest.mark.parametrize('has_queue', [True, False])
def test_build_is_done_here_if_the_holder_has_no_queue(
    has_queue: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its claim fails here, and the server is scheduled anew."""
    manager = _manager(monkeypatch, 'c2')
    manager.rt = _Tracker(is_held=False)
    manager.compute_rpcapi.has_queue = has_queue
    request = {'node': 'n', 'filter_properties': None}
    assert manager.forward_late('ctx', SERVER, request) == has_queue
    casts = manager.compute_rpcapi.casts
    assert [host for _, host, _ in casts] == (['c2'] if has_queue else [])

# SPDX-License-Identifier: Apache-2.0
"""Rebuilds and unshelves begin anew if their worker has ended too early."""

import threading
import types
from typing import Any

import oslo_messaging
import pytest
from keystoneauth1 import exceptions as ksa_exceptions
from nova import exception as nova_exception
from nova.compute import manager as nova_manager
from nova.compute import task_states, vm_states

from ironic_compute import errors
from ironic_compute.delivery import Delivery
from ironic_compute.manager.allocation_deletes import repeat_deletes
from ironic_compute.manager.forwarding import HOPS
from ironic_compute.manager.repeated_deploys import RepeatedDeploys
from ironic_compute.nodes import records
from ironic_compute.recovery.in_progress import InProgress
from resource_tracker.node import NodeId
from tests.fakes.clock import ManualClock
from tests.fakes.ironic import NODE, FakeIronic


class _Server(types.SimpleNamespace):
    """A server; ``is_gone``: Nova has deleted it."""

    def obj_get_changes(self) -> dict[str, Any]:
        return {}

    def refresh(self) -> None:
        if self.is_gone:
            raise nova_exception.InstanceNotFound(instance_id=self.uuid)

    def save(self, expected_task_state: list[str]) -> None:
        self.saved.append((*expected_task_state, self.task_state))


class _Manager(RepeatedDeploys):
    """The manager of host c1, whose former worker has ended."""

    def __init__(self, *, is_begun: bool = False) -> None:
        self.host: Any = 'c1'
        self.clock = ManualClock()
        self.in_progress = InProgress()
        self.is_begun = is_begun
        self.nodes = ['n1']
        self.failures: list[Exception] = []
        self._components: Any = types.SimpleNamespace(client=self)
        self.done: list[str] = []
        self.reportclient = types.SimpleNamespace(
            delete_allocation_for_instance=lambda context, server, force: (
                self.done.append('released')
            )
        )

    def read_node_of_instance(self, server: str) -> None:
        """Read the node of a server, as the client of Ironic does."""
        if self.failures:
            raise self.failures.pop(0)

    def is_rebuild_begun(self, instance: Any) -> bool:
        return self.is_begun

    def undo_interrupted_unshelve(self, context: Any, instance: Any) -> bool:
        if not self.is_begun:
            self.done.append('undone')
            instance.task_state = task_states.UNSHELVING
        return not self.is_begun

    def list_allocated_nodes(self, context: Any, server: str) -> list[NodeId]:
        return [NodeId(node) for node in self.nodes]


@pytest.fixture(autouse=True)
def nova(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have Nova's handlers only note that they were called.

    The handlers that drop stale messages have Nova's own ones in them.
    """
    for name in ('rebuild_instance', 'unshelve_instance'):
        drop = vars(nova_manager.ComputeManager).get(name)
        assert drop is not None

        def handle(self: Any, context: Any, instance: Any, *_: Any) -> None:
            self.done.append(f'served {instance.task_state}')

        monkeypatch.setattr(RepeatedDeploys.__mro__[2], name, handle)


def _rebuilding(**fields: Any) -> _Server:
    server = _Server(
        uuid='s1',
        host='c1',
        image_ref='new',
        vm_state=vm_states.ACTIVE,
        task_state=task_states.REBUILD_SPAWNING,
        system_metadata={},
        is_gone=False,
        saved=[],
    )
    records.note_before_rebuild(server, '')
    vars(server).update(fields)
    return server


def _rebuild(
    manager: _Manager, server: _Server, *, is_redelivered: bool = True
) -> list[str]:
    delivery = Delivery(lambda: None, is_redelivered)
    with delivery.handled():
        manager.rebuild_instance(None, server, 'old', 'new')
    return manager.done


def test_rebuild_begins_when_ironic_answers() -> None:
    """A refusal is an answer, and left to the driver."""
    manager = _Manager()
    away = errors.IronicUnavailable('no answer')
    manager.failures = [away, away, errors.IronicForbidden('no right')]
    begun_s = manager.clock.now_s()
    server = _rebuilding(task_state=task_states.REBUILDING)
    assert _rebuild(manager, server) == ['served rebuilding']
    assert manager.failures == []
    assert manager.clock.now_s() - begun_s == 20.0


def test_redelivered_rebuild_begins_anew() -> None:
    """Its worker ended between its last save and the request to Ironic."""
    server = _rebuilding()
    assert _rebuild(_Manager(), server) == ['served rebuilding']
    assert server.saved == [('rebuild_spawning', 'rebuilding')]
    assert records.before_rebuild(server) is None


@pytest.mark.parametrize(
    ('state', 'is_changed', 'is_begun'),
    [
        ('active', False, False),
        ('active', True, True),
        # The former rebuild had failed, and so the user rebuilds again.
        ('deploy failed', False, False),
        ('deploy failed', True, True),
        ('error', False, False),
        ('deploying', True, True),
    ],
)
def test_node_shows_whether_ironic_has_begun_a_rebuild(
    state: str, is_changed: bool, is_begun: bool
) -> None:
    """Its state alone does not, if Ironic accepts a rebuild in it."""
    before, after = '2026-11-02T07:04:00+00:00', '2026-11-02T07:05:00+00:00'
    server, ironic = _rebuilding(), FakeIronic()
    records.note_before_rebuild(server, before)
    ironic.add(instance_uuid='s1', provision_state=state)
    ironic.changed_at[NODE] = after if is_changed else before
    manager = _Manager()
    manager._components = types.SimpleNamespace(client=ironic)  # type: ignore[assignment]
    assert RepeatedDeploys.is_rebuild_begun(manager, server) is is_begun


def test_redelivered_rebuild_that_ironic_has_begun_is_left_alone() -> None:
    """Recovery waits for it; a second deploy would wipe the disk again."""
    server = _rebuilding()
    assert _rebuild(_Manager(is_begun=True), server) == [
        'served rebuild_spawning'
    ]
    assert server.saved == []


@pytest.mark.parametrize(
    'fields',
    [
        {'host': 'c2'},
        {'task_state': task_states.REBUILDING},
        {'system_metadata': {}},
    ],
)
def test_other_rebuilds_are_left_alone(fields: Any) -> None:
    """They have another host, were not begun, or stock Nova has begun them."""
    server = _rebuilding(**fields)
    _rebuild(_Manager(), server)
    assert server.saved == []


def test_first_delivery_of_a_rebuild_puts_nothing_back() -> None:
    """Another message has begun the rebuild that the record shows."""
    server = _rebuilding()
    _rebuild(_Manager(), server, is_redelivered=False)
    assert server.saved == []


def test_first_delivery_waits_until_nova_can_read_the_record() -> None:
    """An error would lose the message while Nova's database is away."""
    server, manager = _rebuilding(), _Manager()
    errors = [oslo_messaging.RemoteError('DBConnectionError')]

    def refresh() -> None:
        if errors:
            raise errors.pop()

    server.refresh = refresh
    begun_s = manager.clock.now_s()
    assert _rebuild(manager, server, is_redelivered=False)
    assert manager.clock.now_s() - begun_s == 10.0


def _rebuild_in_thread(manager: _Manager, server: _Server) -> threading.Thread:
    """Begin a rebuild; return its thread when it has read the record once."""
    has_read, refresh = threading.Event(), server.refresh

    def read() -> None:
        refresh()
        has_read.set()

    server.refresh = read
    thread = threading.Thread(target=_rebuild, args=(manager, server))
    thread.start()
    assert has_read.wait(60.0)
    return thread


def test_rebuild_waits_for_another_message_of_its_server() -> None:
    """Both were delivered again; else the rebuild would count as stale."""
    server, manager = _rebuilding(), _Manager()
    with manager.in_progress.shared('s1'):
        rebuild = _rebuild_in_thread(manager, server)
        rebuild.join(0.1)
        assert server.saved == manager.done == []
    rebuild.join(60.0)
    assert manager.done == ['served rebuilding']


def test_rebuild_that_a_thread_has_ended_meanwhile_is_left_alone() -> None:
    """A message of an older rebuild must not disturb the newer one."""
    server, manager = _rebuilding(), _Manager()
    with manager.in_progress.shared('s1'):
        rebuild = _rebuild_in_thread(manager, server)
        server.task_state = None
    rebuild.join(60.0)
    assert server.saved == []


def test_rebuild_with_another_image_than_the_record_is_dropped() -> None:
    """It is older than the rebuild that the record shows.

    It would deploy the older image, and the newer message would be dropped.
    """
    server = _rebuilding(task_state=task_states.REBUILDING, image_ref='newest')
    assert _rebuild(_Manager(), server, is_redelivered=False) == []


def test_restart_waits_until_the_services_answer() -> None:
    """The message stays with RabbitMQ meanwhile."""
    manager, answers = _Manager(), [OSError('no answer'), False]

    def is_begun(instance: Any) -> bool:
        answer = answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return bool(answer)

    manager.is_rebuild_begun = is_begun  # type: ignore[method-assign]
    assert _rebuild(manager, _rebuilding()) == ['served rebuilding']
    assert not answers


def _unshelve(
    manager: _Manager,
    *,
    is_redelivered: bool = True,
    hops_count: int = 0,
    **fields: Any,
) -> list[str]:
    server = _rebuilding(
        vm_state=vm_states.SHELVED_OFFLOADED,
        task_state=task_states.SPAWNING,
    )
    vars(server).update(fields)
    with Delivery(lambda: None, is_redelivered).handled():
        manager.unshelve_instance(
            None, server, None, {HOPS: hops_count}, 'n1', None, []
        )
    return manager.done


@pytest.mark.parametrize('host', [None, 'c1'])
def test_redelivered_unshelve_begins_anew(host: str | None) -> None:
    """Its worker ended before or after the claim."""
    assert _unshelve(_Manager(), host=host) == ['undone', 'served unshelving']


def test_unshelve_that_its_former_holder_had_begun_begins_anew() -> None:
    """It has sent the message on, which RabbitMQ had delivered to it again."""
    sent_on: Any = {'is_redelivered': False, 'hops_count': 1, 'host': None}
    assert _unshelve(_Manager(), **sent_on) == ['undone', 'served unshelving']


def test_unshelve_that_was_sent_on_twice_waits_for_the_first_one() -> None:
    """The first one is at work before its claim, so the server has no host."""
    manager, done = _Manager(), []
    sent_on: Any = {'is_redelivered': False, 'hops_count': 1, 'host': None}
    thread = threading.Thread(
        target=lambda: done.extend(_unshelve(manager, **sent_on))
    )
    with manager.in_progress.shared('s1'):
        thread.start()
        thread.join(0.1)
        assert thread.is_alive()
        assert not manager.done
    thread.join(60.0)
    assert done == ['undone', 'served unshelving']


def test_redelivered_unshelve_that_ironic_has_begun_is_left_alone() -> None:
    """Recovery waits for the deploy."""
    assert _unshelve(_Manager(is_begun=True)) == ['served spawning']


def test_recovery_leaves_an_unshelve_whose_message_waits() -> None:
    """Placement is away for longer than a task may stand still.

    Recovery would save the server as shelved, and the message would be stale.
    """
    manager, was_free = _Manager(), []
    sleep, answers = manager.clock.sleep, [OSError('no answer')]

    def list_allocated_nodes(context: Any, server: str) -> list[NodeId]:
        if answers:
            raise answers.pop()
        return [NodeId('n1')]

    def sleep_and_look(seconds: float) -> None:
        with manager.in_progress.exclusive('s1') as is_free:
            was_free.append(is_free)
        sleep(seconds)

    manager.list_allocated_nodes = list_allocated_nodes  # type: ignore[method-assign]
    manager.clock.sleep = sleep_and_look  # type: ignore[method-assign]
    assert _unshelve(manager) == ['undone', 'served unshelving']
    assert was_free == [False]


def test_recovery_leaves_a_rebuild_until_nova_handles_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It would end the rebuild just before, and its message be stale."""
    manager, was_free = _Manager(), []

    def handle(self: Any, context: Any, instance: Any, *_: Any) -> None:
        with self.in_progress.exclusive(instance.uuid) as is_free:
            was_free.append(is_free)

    monkeypatch.setattr(RepeatedDeploys.__mro__[2], 'rebuild_instance', handle)
    _rebuild(manager, _rebuilding(task_state=task_states.REBUILDING))
    assert was_free == [False]
    with manager.in_progress.exclusive('s1') as is_free:
        assert is_free


@pytest.mark.parametrize('nodes', [[], ['n2']])
@pytest.mark.parametrize(
    ('is_redelivered', 'task_state'),
    [
        (True, task_states.SPAWNING),
        (True, task_states.UNSHELVING),
        (False, task_states.UNSHELVING),
    ],
)
def test_unshelve_that_has_lost_its_node_is_dropped(
    nodes: list[str], is_redelivered: bool, task_state: str
) -> None:
    """Another server may have the node, or this one another node.

    The task state may be that of a newer unshelve, which has allocated it or
    waits for its allocation. A message that its sender has sent twice is not
    marked as delivered again.
    """
    manager = _Manager()
    manager.nodes = nodes
    served = _unshelve(
        manager, is_redelivered=is_redelivered, task_state=task_state
    )
    assert served == []


def test_unshelve_waits_until_its_allocation_is_known() -> None:
    """The message stays with RabbitMQ while Placement is away."""
    manager, answers = _Manager(), [OSError('no answer'), [NodeId('n1')]]

    def list_nodes(context: Any, server: str) -> list[NodeId]:
        answer = answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer

    manager.list_allocated_nodes = list_nodes  # type: ignore[method-assign]
    served = _unshelve(manager, task_state=task_states.UNSHELVING)
    assert served == ['served unshelving']


def test_unshelve_of_a_deleted_server_frees_its_allocation() -> None:
    """The conductor allocated a node after the server was deleted."""
    assert _unshelve(_Manager(), is_gone=True) == ['released']


def test_unshelve_that_has_ended_as_a_lost_one_frees_its_allocation() -> None:
    """The scheduler took longer than that; the next unshelve needs a node."""
    ended: dict[str, Any] = {'host': None, 'task_state': None}
    done = _unshelve(_Manager(), is_redelivered=False, **ended)
    assert done == ['released']
    done = _unshelve(_Manager(), vm_state=vm_states.ACTIVE, task_state=None)
    assert 'released' not in done


class _Placement:
    """Placement, and Nova's client of it: first away, then it answers."""

    def __init__(self) -> None:
        self.nodes, self.is_away = ['n1'], True

    def get_allocs_for_consumer(self, context: Any, server: str) -> Any:
        if self.is_away:
            raise ksa_exceptions.ConnectFailure('away')
        return {'allocations': {node: {} for node in self.nodes}}

    def delete_allocation_for_instance(
        self, context: Any, server: str, force: bool
    ) -> bool:
        self.get_allocs_for_consumer(context, server)
        self.nodes = []
        return True


def test_allocation_of_a_newer_unshelve_stays_when_placement_answers() -> None:
    """The newer one was dropped, and its user had to ask a third time."""
    manager, placement, sleep = _Manager(), _Placement(), ManualClock.sleep
    server = _rebuilding(
        vm_state=vm_states.SHELVED_OFFLOADED, task_state=None, host=None
    )

    def unshelve_again(seconds: float) -> None:
        sleep(manager.clock, seconds)
        placement.nodes, placement.is_away = ['n2'], False
        server.task_state = task_states.UNSHELVING

    manager.clock.sleep = unshelve_again  # type: ignore[method-assign]
    repeat_deletes(placement, manager.clock)
    manager.reportclient = placement  # type: ignore[assignment]
    manager.list_allocated_nodes = (  # type: ignore[method-assign]
        lambda context, uuid: list(
            placement.get_allocs_for_consumer(context, uuid)['allocations']
        )
    )
    with Delivery(lambda: None, is_redelivered=False).handled():
        manager.unshelve_instance(None, server, None, {}, 'n1', None, [])
    assert placement.nodes == ['n2']
    assert manager.done == []

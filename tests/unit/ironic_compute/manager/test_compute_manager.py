# SPDX-License-Identifier: Apache-2.0
"""For what the compute manager waits: at its shutdown, and for Neutron."""

import contextlib
import math
import threading
import types
from collections.abc import Callable, Iterator
from typing import Any

import nova.conf
import pytest
from keystoneauth1 import exceptions as ksa_exceptions
from nova.compute import manager as nova_manager

from ironic_compute.delivery import Delivery
from ironic_compute.driver.cancellations import Cancellations
from ironic_compute.gate import LeaseGate
from ironic_compute.manager.compute_manager import IronicComputeManager
from ironic_compute.paths.repeated_requests import RepeatedRequests
from ironic_compute.recovery.in_progress import InProgress
from ironic_compute.waiting_threads import WaitingThreads
from resource_tracker.node import NodeId
from tests.fakes.clock import ManualClock

from ..driver import fake

CONF = nova.conf.CONF


class _Clock(ManualClock):
    """A clock that calls ``then`` in its third sleep."""

    def __init__(self) -> None:
        super().__init__()
        self.then: Callable[[], None] = lambda: None
        self._sleeps_count = 0

    def sleep(self, seconds: float) -> None:
        """Advance the clock."""
        super().sleep(seconds)
        self._sleeps_count += 1
        if self._sleeps_count == 3:
            self.then()


class _Manager(IronicComputeManager):  # type: ignore[misc]
    """A manager that was never started, with the real shutdown."""

    def __init__(self) -> None:
        self.clock, self.in_progress, self.waiting_threads = (
            _Clock(),
            InProgress(),
            WaitingThreads(),
        )
        self.did: list[str] = []
        self.recovers = self.drains = True
        self._recovery_loop: Any = types.SimpleNamespace(
            stop=lambda: setattr(self, 'recovers', False)
        )
        self.server_moves: Any = types.SimpleNamespace(
            stop=lambda: setattr(self, 'drains', False)
        )
        self.driver = types.SimpleNamespace(
            list_waiting_threads=self.waiting_threads.idents
        )
        self.rt = types.SimpleNamespace(list_waiting_threads=frozenset)
        self._in_progress_tasks: dict[int, Any] = {}
        self._components: Any = types.SimpleNamespace(
            clock=self.clock,
            gate=LeaseGate(self.clock, math.inf),
            leave=lambda: self.did.append('left'),
        )

    def cleanup_host(self) -> None:
        """Record the cleanup."""
        self.did.append('cleaned up')

    def stop(self, *timeout: float) -> float:
        """Shut down as Nova does; return the seconds it took."""
        began_s = self.clock.now_s()
        self.graceful_shutdown(*timeout)
        return self.clock.now_s() - began_s


@contextlib.contextmanager
def _in_other_thread(work: Any) -> Iterator[Callable[[], None]]:
    """Hold a context in another thread; yields a function that ends it."""
    begun, end = threading.Event(), threading.Event()

    def act() -> None:
        with work():
            begun.set()
            assert end.wait(60.0)

    thread = threading.Thread(target=act)
    thread.start()
    assert begun.wait(60.0)

    def stop() -> None:
        end.set()
        thread.join()

    yield stop
    stop()


@pytest.mark.parametrize('timeout', [(), (45.0,)])
def test_an_idle_worker_stops_at_once(timeout: tuple[float, ...]) -> None:
    """An idle worker stops at once, with and without Nova's timeout."""
    manager = _Manager()
    assert manager.stop(*timeout) < 1.0
    assert manager.did == ['cleaned up']


@pytest.mark.parametrize('how', ['shared', 'exclusive'])
def test_shutdown_waits_for_threads_that_work(how: str) -> None:
    """The shutdown waits for RPC handlers and for recovery threads."""
    manager = _Manager()
    with _in_other_thread(
        lambda: getattr(manager.in_progress, how)('s1')
    ) as end:
        manager.clock.then = end
        assert 0.5 < manager.stop(45.0) < 2.0
    assert manager.did == ['cleaned up']


def test_shutdown_waits_no_longer_than_its_timeout() -> None:
    """After the timeout, the manager cleans up although a thread works."""
    manager = _Manager()
    with _in_other_thread(lambda: manager.in_progress.shared('s1')):
        assert 39.0 < manager.stop(45.0) < 41.0
    assert manager.did == ['cleaned up']


def test_recovery_begins_nothing_while_the_worker_drains() -> None:
    """A build whose message waits for the next worker is not ended as lost.

    A worker that stops receives no messages, but its recovery took the build
    of a message in the queue for a lost one: the server went to ERROR.
    """
    manager, seen = _Manager(), []
    with _in_other_thread(lambda: manager.in_progress.shared('s1')) as end:

        def look() -> None:
            seen.append(manager.recovers or manager.drains)
            end()

        manager.clock.then = look
        manager.stop(45.0)
    assert seen == [False]


def test_threads_at_a_shut_gate_are_left_after_the_timeout() -> None:
    """A thread that waits for the lease is left after the timeout."""
    manager = _Manager()
    manager._components.gate = LeaseGate(manager.clock)
    with _in_other_thread(lambda: manager.in_progress.shared('s1')):
        assert 39.0 < manager.stop(45.0) < 41.0
    assert manager.did == ['left', 'cleaned up']


def test_threads_that_wait_for_ironic_are_left_to_the_next_worker() -> None:
    """The shutdown does not wait for a deploy, which may take an hour."""
    _assert_is_left(_Manager())


def test_builds_that_wait_for_a_new_row_are_left_to_the_next_worker() -> None:
    """The shutdown does not wait until the row of a new node is confirmed."""
    manager = _Manager()
    manager.driver, manager.rt = manager.rt, manager.driver
    _assert_is_left(manager)


def _assert_is_left(manager: _Manager) -> None:
    """Stop a manager while a thread only waits."""

    @contextlib.contextmanager
    def build() -> Iterator[None]:
        with (
            manager.in_progress.shared('s1'),
            manager.waiting_threads.include_current(),
        ):
            yield

    manager._in_progress_tasks[1] = {'instance_uuid': 's1'}
    with _in_other_thread(build):
        assert manager.stop(45.0) < 1.0
    assert manager.did == ['left', 'cleaned up']


def test_shutdown_waits_for_all_messages_that_nova_counts() -> None:
    """The shutdown waits for a message that only Nova's list counts."""
    manager = _Manager()
    manager._in_progress_tasks[1] = {'instance_uuid': None}
    manager.clock.then = manager._in_progress_tasks.clear
    assert 0.5 < manager.stop(45.0) < 2.0


def test_driver_lists_a_thread_while_it_waits() -> None:
    """The driver lists a thread while it waits for Ironic, and no longer."""
    bench = fake.bench()
    waiting, seen = bench.driver.list_waiting_threads, []

    def verdict(facts: Any) -> bool:
        seen.append(waiting())
        return True

    bench.driver._waiter.wait_until(fake.NODE, verdict, 10.0)
    assert seen[0] == frozenset({threading.get_ident()})
    assert waiting() == frozenset()


@pytest.mark.parametrize(('arrived', 'host'), [(True, 'c1'), (False, None)])
def test_a_build_that_ends_for_a_delete_keeps_its_host(
    arrived: bool, host: str | None
) -> None:
    """Recovery finds an interrupted delete by the host of the server.

    The worker was killed between the end of the build and the delete, whose
    message was lost with RabbitMQ; the server stayed without a host.
    """
    manager = _Manager()
    cancellations = Cancellations()
    manager.driver.is_build_cancelled = cancellations.is_cancelled
    server = types.SimpleNamespace(
        uuid='s1', host='c1', node='n1', compute_id=1, launched_on='c1'
    )
    with cancellations.cancel('s1' if arrived else 's2'):
        manager._nil_out_instance_obj_host_and_node(server)
    assert server.host == host


def test_build_on_a_node_whose_row_is_older_than_nova_18_is_begun() -> None:
    """Placement has the row's uuid, and the message that of the node.

    Each build on such a node was dropped as one of another node, and its
    server was in BUILD for ever.
    """
    manager = _Manager()
    row = types.SimpleNamespace(uuid='row-uuid')
    manager._components.held_nodes = types.SimpleNamespace(
        rows=lambda: {'n1': row}
    )
    manager.reportclient = types.SimpleNamespace(
        get_allocs_for_consumer=lambda context, server: {
            'allocations': {'row-uuid': {}}
        }
    )
    server = types.SimpleNamespace(uuid='s1')
    request = {'context': None, 'node': 'n1'}
    assert manager._has_allocation(server, request)


class _Undoes(_Manager):
    """A manager that undoes builds, with the driver of a bench."""

    def __init__(self, bench: fake.Bench) -> None:
        super().__init__()
        self.driver = bench.driver
        self._components.client = bench.ironic

    def _cleanup_allocated_networks(self, *args: Any) -> None:
        """Note that the ports are deleted."""
        self.did.append('ports deleted')


@pytest.mark.parametrize(
    ('node', 'is_undone'),
    [(fake.NODE, False), ('another', True), (None, True)],
)
def test_only_a_deploy_of_the_node_that_nova_knows_is_continued(
    node: str | None, is_undone: bool
) -> None:
    """A former attempt deploys a node that could not be freed.

    The build is on another node by now, or on none, and is begun anew.
    """
    bench = fake.bench_with_server()
    server = fake.unsaved_server(node=node, task_state='networking')
    manager = _Undoes(bench)
    assert manager.undo_interrupted_build(None, server, None) is is_undone
    assert (bench.ironic.names() == ['deleted']) is is_undone
    assert (manager.did == ['ports deleted']) is is_undone


def test_deploy_of_another_user_of_ironic_is_not_continued() -> None:
    """The worker was killed when it had just reserved the node.

    The server was ACTIVE on a machine that runs something else.
    """
    bench = fake.bench_with_server()
    bench.ironic.infos[fake.NODE] = {'image_source': 'theirs'}
    server = fake.unsaved_server(vm_state='building', task_state='networking')
    assert _Undoes(bench).undo_interrupted_build(None, server, None)
    assert bench.ironic.names() == ['release']


class _WithOtherNode(_Undoes):
    """A manager whose build has been sent on to another node, of host c2.

    While Neutron is slow, c2 gives its node up as well, and c3 gets it.
    """

    def list_allocated_nodes(self, context: Any, server: str) -> list[Any]:
        return [NodeId('n2')]

    def forward_to_node(self, context: Any, *args: Any) -> None:
        self.did.append(f'sent to {args[-1]}')

    def _cleanup_allocated_networks(self, *args: Any) -> None:
        super()._cleanup_allocated_networks(*args)
        self._components.client.change(
            fake.NODE, instance_uuid=fake.SERVER, provision_state='active'
        )

    def renew_volumes(self, *args: Any) -> None:
        """Return no volumes."""


def test_build_that_another_host_is_about_to_send_on_is_not_torn_down() -> (
    None
):
    """Its message comes again, as its worker ended just after it was sent on.

    The worker took the build for one of its own, and deleted the ports and
    the server on the third host, which was deployed by then.
    """
    bench = fake.bench()
    server = fake.unsaved_server(
        vm_state='building', task_state='spawning', host=None, node=None
    )
    manager: Any = _WithOtherNode(bench)
    manager.host, manager.compute_task_api = 'c1', manager
    request = {
        'context': None,
        'requested_networks': None,
        'node': 'n1',
        'filter_properties': {},
    }
    with Delivery(lambda: None, is_redelivered=True).handled():
        assert not manager._must_build(None, server, request)
    assert manager.did == ['sent to n2']
    assert not bench.ironic.names()


def test_port_is_not_attached_after_the_caller_has_given_up(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Nova-api waits 60 s for the answer, and tells its user then."""
    monkeypatch.setattr(CONF, 'rpc_response_timeout', 60, raising=False)
    clock = ManualClock()

    def refuse() -> None:
        raise ksa_exceptions.ConnectTimeout

    def attach(self: Any, context: Any, **request: Any) -> None:
        assert request == {'port_id': 'p'}
        RepeatedRequests(clock, 75.0).call('GET', refuse)

    monkeypatch.setattr(
        nova_manager.ComputeManager, 'attach_interface', attach
    )
    began_s = clock.now_s()
    with pytest.raises(ksa_exceptions.ConnectTimeout):
        _Manager().attach_interface(None, port_id='p')
    assert clock.now_s() - began_s == 30.0

# SPDX-License-Identifier: Apache-2.0
"""The resource tracker claims nodes, waits for rows and counts failures."""

import contextlib
import dataclasses
import threading
import types
from collections.abc import Callable, Sequence
from concurrent import futures
from typing import Any

import pytest
from nova import exception as nova_exception
from nova.compute import task_states, vm_states

from hashring.ring import Host
from ironic_compute import delivery, errors
from ironic_compute.manager.tracker import BareMetalTracker
from ironic_compute.nodes.records import NEW
from resource_tracker.claims import Claim
from resource_tracker.node import NodeFacts, NodeId
from tests.fakes.clock import ManualClock
from tests.simulation.nova import NodeRecord
from tests.unit.ironic_compute.driver import fake
from tests.unit.ironic_compute.hosts import Cloud, One

FIT = NodeFacts(
    NodeId('node-0'),
    resource_class='metal',
    provision_state='available',
    power_state='power off',
)
N, C1 = NodeId('node-0'), Host('c1')


def _just_started() -> tuple[Cloud, One]:
    """Return a host that has read its rows and no node of Ironic yet."""
    cloud = Cloud([N])
    cloud.nodes[N] = FIT
    cloud.nova.rows[N] = NodeRecord(cloud.nova.new_id(), N, C1, 1)
    return cloud, cloud.add(C1)


def _tracker(
    cloud: Any, one: One, rows: Any, **options: Any
) -> BareMetalTracker:
    return BareMetalTracker(
        one.host,
        one.held_nodes,
        one.claims,
        rows,
        cloud,
        None,
        one.reads_requested.append,
        **options,
    )


class _Server(types.SimpleNamespace):
    """An Instance object, and the states of its record in Nova's database."""

    uuid = 'server'
    vm_state = vm_states.BUILDING
    task_state: str | None = None
    current_task: str | None = None
    current_vm_state = vm_states.BUILDING

    def save(
        self,
        expected_vm_state: Sequence[str] | None = None,
        expected_task_state: Sequence[str | None] = (),
    ) -> None:
        """Save the changes if the record has the expected states."""
        if self.current_task in expected_task_state:
            expected = expected_vm_state or (self.current_vm_state,)
            if self.current_vm_state not in expected:
                raise nova_exception.InstanceUpdateConflict(
                    instance_uuid=self.uuid, expected={}, actual={}
                )
            self.saved = self.host
            return
        is_deleting = self.current_task == task_states.DELETING
        raise (
            nova_exception.UnexpectedDeletingTaskStateError
            if is_deleting
            else nova_exception.UnexpectedTaskStateError
        )(instance_uuid=self.uuid, expected={}, actual={})


def _claim(
    cloud: Cloud,
    one: One,
    save: Callable[[], object],
    allocations: Any = None,
) -> Any:
    instance = _Server(save=lambda **expected: save())
    tracker = _tracker(cloud, one, one.rows)
    return tracker.instance_claim(None, instance, N, allocations)


def _refusal(reason: str) -> Any:
    """Expect that a build is refused for a reason."""
    return pytest.raises(
        nova_exception.ComputeResourcesUnavailable, match=reason
    )


def test_build_that_waited_is_claimed_before_the_first_list() -> None:
    """A build that waited in the queue is claimed without a node list."""
    cloud, one = _just_started()
    assert one.held_nodes.facts(N) is None
    _claim(cloud, one, save=lambda: None)
    assert one.claims.consumer(N) == 'server'
    assert one.held_nodes.facts(N) == cloud.nodes[N]


@pytest.mark.parametrize(
    ('allocations', 'generation'),
    [
        ({N: {'generation': 7, 'resources': {'CUSTOM_METAL': 1}}}, 7),
        ({NodeId('node-1'): {'generation': 7, 'resources': {}}}, None),
        ({}, None),
        (None, None),
    ],
    ids=['this node', 'another', 'refused', 'no answer'],
)
def test_claim_has_the_generation_of_the_allocations(
    allocations: Any, generation: int | None
) -> None:
    """A claim has the provider generation that Nova read, if any."""
    cloud, one = _just_started()
    _claim(cloud, one, lambda: None, allocations)
    assert one.claims.claim_of(N) == Claim('server', generation)


@pytest.mark.parametrize(
    ('trouble', 'sentence'),
    [
        (errors.IronicUnavailable('Ironic does not answer'), 'not answer'),
        (None, 'maintenance'),
    ],
)
def test_build_goes_elsewhere_if_the_node_is_not_fit(
    trouble: Exception | None, sentence: str
) -> None:
    """A node in maintenance, or that cannot be read, refuses a build."""
    cloud, one = _just_started()
    cloud.nodes[N] = dataclasses.replace(FIT, maintenance=True)
    if trouble is not None:
        cloud.hidden[N] = trouble
    with _refusal(sentence):
        _claim(cloud, one, save=pytest.fail)
    assert one.claims.consumer(N) is None


class _Outage(ManualClock):
    """An outage of Ironic, just after the start of a worker.

    :param end: called during each pause between two reads
    """

    def __init__(self, end: Callable[['_Outage'], object]) -> None:
        super().__init__()
        self.cloud, self.one = _just_started()
        self.cloud.hidden[N] = errors.IronicUnavailable('Ironic is away')
        self._end = end
        bench = fake.bench()
        self.driver = bench.driver
        feed = fake.FakeFeed(bench.ironic, bench.node_cache)
        self.driver.set_up(bench.ironic, bench.node_cache, feed, self)

    def sleep(self, seconds: float) -> None:
        """Advance the clock, and let something happen."""
        super().sleep(seconds)
        self._end(self)

    def claim(self) -> None:
        """Claim the node for a build, as the manager does."""
        instance = _Server()
        tracker = _tracker(
            self.cloud,
            self.one,
            self.one.rows,
            repeat_read=self.driver.repeat_read,
        )
        tracker.instance_claim(None, instance, N, {})


@pytest.mark.parametrize(
    'end',
    [
        lambda outage: outage.cloud.hidden.clear(),
        lambda outage: outage.one.held_nodes.accept_facts(FIT),
    ],
    ids=['Ironic answers', 'the feed delivers the node'],
)
def test_build_waits_for_ironic_before_the_first_list(
    end: Callable[[_Outage], object],
) -> None:
    """Refused, a build would lose its nodes one after another.

    A worker that has just taken its host over has read no node yet.
    """
    outage = _Outage(end)
    outage.claim()
    assert outage.one.claims.consumer(N) == 'server'
    assert outage.now_s() < 1010.0


def test_build_goes_elsewhere_if_ironic_stays_away() -> None:
    """A build waits no longer than any request of the driver."""
    outage = _Outage(lambda outage: None)
    with _refusal('Ironic is away'):
        outage.claim()
    assert 1090.0 < outage.now_s() <= 1120.0
    assert outage.one.claims.consumer(N) is None


def test_build_goes_elsewhere_if_ironic_lost_its_node() -> None:
    """An answer of Ironic ends the wait, whatever the answer."""
    outage = _Outage(
        lambda outage: outage.cloud.hidden.update(
            {N: errors.NodeNotFound('404')}
        )
    )
    with _refusal('404'):
        outage.claim()
    assert outage.now_s() < 1010.0


def test_build_is_not_done_on_a_node_that_was_dropped_meanwhile() -> None:
    """The row may name another host after the wait."""

    def drop(outage: _Outage) -> None:
        outage.one.held_nodes.drop_node(N)
        outage.cloud.hidden.clear()

    outage = _Outage(drop)
    with _refusal('not held'):
        outage.claim()
    assert outage.one.claims.consumer(N) is None


def test_delete_ends_the_wait_for_ironic() -> None:
    """The delete waits for the lock of the server, which the build holds."""
    with contextlib.ExitStack() as stack:
        outage = _Outage(
            lambda outage: stack.enter_context(
                outage.driver.cancel_build('server')
            )
        )
        with pytest.raises(nova_exception.UnexpectedDeletingTaskStateError):
            outage.claim()
        assert outage.one.claims.consumer(N) is None
    assert outage.now_s() < 1010.0


def test_node_that_a_claim_did_not_find_is_read_again() -> None:
    """A wrong 404 would else keep builds off the node until the audit."""
    cloud, one = _just_started()
    facts = cloud.nodes.pop(N)
    with _refusal('cannot take a build'):
        _claim(cloud, one, save=pytest.fail)
    assert one.held_nodes.is_missing(N)
    assert one.reads_requested == [N]
    cloud.nodes[N] = facts
    cloud.hidden[N] = errors.IronicUnavailable('500')
    with _refusal('cannot take a build'):
        _claim(cloud, one, save=pytest.fail)
    assert one.reads_requested == [N], 'an error says nothing of the node'


def test_node_is_read_before_a_build_is_refused() -> None:
    """The feed has not delivered the end of its maintenance yet.

    An unshelve that is refused is not scheduled again, so it would be lost.
    """
    cloud, one = _just_started()
    one.held_nodes.accept_facts(dataclasses.replace(FIT, maintenance=True))
    cloud.nodes[N] = dataclasses.replace(FIT, read_at_s=2000.0)
    _claim(cloud, one, save=lambda: None)
    assert one.claims.consumer(N) == 'server'
    assert one.held_nodes.facts(N) == cloud.nodes[N]


def test_reservation_for_the_same_server_is_no_obstacle() -> None:
    """A killed worker made it, and the driver goes on with it."""
    cloud, one = _just_started()
    cloud.nodes[N] = dataclasses.replace(cloud.nodes[N], instance_uuid='other')
    one.held_nodes.accept_facts(cloud.nodes[N])
    with _refusal('it has instance other'):
        _claim(cloud, one, save=pytest.fail)
    own = dataclasses.replace(cloud.nodes[N], instance_uuid='server')
    cloud.nodes[N] = dataclasses.replace(own, read_at_s=2000.0)
    _claim(cloud, one, save=lambda: None)
    assert one.claims.consumer(N) == 'server'


def test_node_is_reported_again_after_its_claim_failed() -> None:
    """A node that was reported with a claim is reported without it."""
    cloud, one = _just_started()
    seen: list[Claim | None] = []
    one.submit = lambda facts, situation: seen.append(situation.claim)  # type: ignore[method-assign]

    def save() -> None:
        one.held_nodes.accept_facts(dataclasses.replace(FIT, name='new'))
        raise nova_exception.InstanceNotFound(instance_id='server')

    with pytest.raises(nova_exception.InstanceNotFound):
        _claim(cloud, one, save)
    assert seen[-2:] == [Claim('server'), None]


@pytest.mark.parametrize('task', [task_states.DELETING, task_states.SPAWNING])
def test_server_with_another_task_is_not_claimed(task: str) -> None:
    """The claim of a late request would overwrite the host of a new build."""
    cloud, one = _just_started()
    instance = _Server(current_task=task)
    with pytest.raises(nova_exception.UnexpectedTaskStateError):
        _tracker(cloud, one, one.rows).instance_claim(None, instance, N, {})
    assert one.claims.consumer(N) is None


def test_server_that_is_built_is_not_claimed() -> None:
    """An ACTIVE server has no task either, and may be on another node."""
    cloud, one = _just_started()
    instance = _Server(current_vm_state=vm_states.ACTIVE)
    with pytest.raises(nova_exception.InstanceUpdateConflict):
        _tracker(cloud, one, one.rows).instance_claim(None, instance, N, {})
    assert one.claims.consumer(N) is None


@pytest.mark.parametrize(
    ('task', 'error', 'saved'),
    [
        (None, nova_exception.InstanceDeployFailure, None),
        (
            task_states.DELETING,
            nova_exception.UnexpectedDeletingTaskStateError,
            C1,
        ),
        (task_states.NETWORKING, nova_exception.InstanceDeployFailure, C1),
    ],
)
def test_failed_build_clears_the_host_of_its_own_server_only(
    task: str | None, error: type[Exception], saved: Host | None
) -> None:
    """Recovery finds a delete by the host, and another build needs it."""
    cloud, one = _just_started()
    instance = _Server()
    claim = _tracker(cloud, one, one.rows).instance_claim(
        None, instance, N, {}
    )
    instance.current_task = task
    with pytest.raises(error), claim:
        raise nova_exception.InstanceDeployFailure('it is broken')
    assert instance.saved == saved
    assert one.claims.consumer(N) is None


@pytest.mark.parametrize(
    ('error', 'host'),
    [
        (
            nova_exception.UnexpectedDeletingTaskStateError(
                instance_uuid='server', expected={}, actual={}
            ),
            C1,
        ),
        (nova_exception.InstanceDeployFailure('it is broken'), None),
    ],
)
def test_build_that_its_delete_has_ended_keeps_its_host(
    error: Exception, host: Host | None
) -> None:
    """Recovery finds an interrupted delete by the host of the server."""
    cloud, one = _just_started()
    instance = _Server()
    claim = _tracker(cloud, one, one.rows).instance_claim(
        None, instance, N, {}
    )
    with pytest.raises(type(error)), claim:
        raise error
    assert instance.host == host
    assert (instance.node is None) == (host is None)
    assert one.claims.consumer(N) is None


@pytest.mark.parametrize(
    ('vm_state', 'task_state', 'is_kept'),
    [
        ('active', None, True),
        ('shelved_offloaded', 'spawning', True),
        ('shelved_offloaded', None, False),
        ('deleted', None, False),
    ],
)
def test_claim_ends_when_nova_frees_the_node(
    vm_state: str, task_state: str | None, *, is_kept: bool
) -> None:
    """The claim of a deleted or shelved server is released."""
    cloud, one = _just_started()
    _claim(cloud, one, save=lambda: None)
    instance = types.SimpleNamespace(
        uuid='server', host=C1, vm_state=vm_state, task_state=task_state
    )
    tracker: Any = _tracker(cloud, one, one.rows)
    tracker.update_usage(None, instance, N)
    assert (one.claims.consumer(N) == 'server') is is_kept


@pytest.fixture
def renewed() -> tuple[Cloud, One]:
    """Return a worker whose node's row is new and unconfirmed."""
    cloud, one = _just_started()
    cloud.nova.rows[N].stats = {NEW: f'{cloud.clock.wall_s():.0f}'}
    one.held_nodes.drop_node(N)
    one.held_nodes.load_rows()
    assert one.held_nodes.unconfirmed_rows.nodes() == {N}
    return cloud, one


def _claim_meanwhile(
    renewed: tuple[Cloud, One], event: Callable[[], None]
) -> None:
    """Call a function while a build waits for its node's row."""
    cloud, one = renewed
    instance = _Server()
    tracker = _tracker(cloud, one, one.rows, confirm_timeout_s=30.0)
    with futures.ThreadPoolExecutor(1) as executor:
        claiming = executor.submit(
            tracker.instance_claim, None, instance, N, {}
        )
        with pytest.raises(futures.TimeoutError):
            claiming.result(0.2)
        event()
        claiming.result(10.0)


def test_build_waits_for_the_record_of_a_node_offered_before_a_restart(
    renewed: tuple[Cloud, One],
) -> None:
    """A build waits until the new row of its node is confirmed."""
    _, one = renewed
    row = one.held_nodes.row(N)
    _claim_meanwhile(renewed, lambda: one.held_nodes.confirm_row(N, row))
    assert one.claims.consumer(N) == 'server'


def test_build_waits_no_longer_for_a_node_that_turns_out_not_ours(
    renewed: tuple[Cloud, One],
) -> None:
    """A build is refused when its node's row names another host."""
    _, one = renewed
    with _refusal('not held'):
        _claim_meanwhile(renewed, lambda: one.held_nodes.confirm_row(N, None))
    assert one.claims.consumer(N) is None


def test_unshelve_waits_for_the_record_of_its_node(
    renewed: tuple[Cloud, One],
) -> None:
    """It waits until the row is confirmed, and for no other row."""
    cloud, one = renewed
    tracker = _tracker(cloud, one, one.rows)
    tracker.wait_confirmed(NodeId('another'))
    with futures.ThreadPoolExecutor(1) as executor:
        waiting = executor.submit(tracker.wait_confirmed, N)
        with pytest.raises(futures.TimeoutError):
            waiting.result(0.2)
        one.held_nodes.confirm_row(N, one.held_nodes.row(N))
        waiting.result(10.0)


def _wait_with_message(
    renewed: tuple[Cloud, One], message: delivery.Delivery | None
) -> frozenset[int]:
    """Return the threads that wait for a row, while one does."""
    cloud, one = renewed
    tracker = _tracker(cloud, one, one.rows)
    handled = message.handled() if message else contextlib.nullcontext()

    def wait() -> int:
        with handled:
            tracker.wait_confirmed(N)
        return threading.get_ident()

    with futures.ThreadPoolExecutor(1) as executor:
        waiting = executor.submit(wait)
        with pytest.raises(futures.TimeoutError):
            waiting.result(0.2)
        idents = tracker.list_waiting_threads()
        one.held_nodes.confirm_row(N, one.held_nodes.row(N))
        assert idents <= {waiting.result(10.0)}
    assert tracker.list_waiting_threads() == frozenset()
    return idents


def test_build_that_waits_for_a_record_is_left_to_the_next_worker(
    renewed: tuple[Cloud, One],
) -> None:
    """A worker that stops does not wait for it, as RabbitMQ has its message.

    A stop lasted 40 s while a build waited, and the next worker made the build
    wait again.
    """
    message = delivery.Delivery(lambda: None)
    assert len(_wait_with_message(renewed, message)) == 1


def test_build_whose_message_is_acknowledged_is_not_left(
    renewed: tuple[Cloud, One],
) -> None:
    """A worker that stops waits for it, as no other worker would get it."""
    assert _wait_with_message(renewed, None) == frozenset()


def test_build_goes_elsewhere_if_the_record_stays_unconfirmed(
    renewed: tuple[Cloud, One],
) -> None:
    """A build is refused if its node's row is not confirmed in time."""
    cloud, one = renewed
    with _refusal('not confirmed'):
        _claim(cloud, one, save=pytest.fail)
    assert one.claims.consumer(N) is None


def test_failed_builds_are_counted_under_the_lock_of_the_node() -> None:
    """Failed builds are counted with the node's lock held.

    Another thread may report the same row, or push it to another host.
    """
    cloud, one = _just_started()
    counted: list[tuple[int, bool]] = []

    def count(row: Any, count: int) -> None:
        lock: Any = one.held_nodes._held[N].lock
        counted.append((count, lock.locked()))

    rows = types.SimpleNamespace(write_failed_builds=count)
    tracker = _tracker(cloud, one, rows)
    tracker.build_failed(N)
    tracker.build_succeeded(N)
    assert counted == [(1, True), (0, True)]
    one.held_nodes.drop_node(N)
    tracker.build_failed(N)
    assert len(counted) == 2


def test_kept_node_is_not_free_until_its_build_claims_it() -> None:
    """No push takes it; the claim of the same build replaces the mark."""
    cloud, one = _just_started()
    one.held_nodes.accept_facts(FIT)
    tracker = _tracker(cloud, one, one.rows)
    assert one.held_nodes.is_free(N)
    assert tracker.keep_node(N, 'server')
    with one.held_nodes.locked_free_row(N) as row:
        assert row is None
    _claim(cloud, one, save=lambda: None)
    assert one.claims.consumer(N) == 'server'


def test_claim_ends_when_ironic_shows_the_server() -> None:
    """Also that of an unshelve, which Nova does not report.

    If the node came back later with another server, that one could not be
    moved: the former one would seem to be built there, for ever.
    """
    cloud, one = _just_started()
    one.held_nodes.accept_facts(FIT)
    with _claim(cloud, one, save=lambda: None):
        assert one.claims.consumer(N) == 'server'
        deployed = dataclasses.replace(
            FIT, instance_uuid='server', provision_state='active'
        )
        one.held_nodes.accept_facts(deployed)
    assert one.claims.consumer(N) is None


def test_kept_node_is_free_again_after_its_build_has_failed() -> None:
    """Only the claim of the same build is released."""
    cloud, one = _just_started()
    one.held_nodes.accept_facts(FIT)
    tracker = _tracker(cloud, one, one.rows)
    assert tracker.keep_node(N, 'server')
    tracker.release_node(N, 'other')
    assert not one.held_nodes.is_free(N)
    tracker.release_node(N, 'server')
    assert one.held_nodes.is_free(N)


def test_node_of_another_build_is_not_taken_from_it() -> None:
    """The claim refuses the second build then."""
    cloud, one = _just_started()
    one.held_nodes.accept_facts(FIT)
    tracker = _tracker(cloud, one, one.rows)
    assert tracker.keep_node(N, 'first')
    assert tracker.keep_node(N, 'server')
    with _refusal('in use by first'):
        _claim(cloud, one, save=lambda: None)


def test_node_of_another_host_is_not_kept() -> None:
    """The build has to go to the other host."""
    cloud, one = _just_started()
    tracker = _tracker(cloud, one, one.rows)
    one.held_nodes.drop_node(N)
    assert not tracker.keep_node(N, 'server')
    assert one.claims.consumer(N) is None


@pytest.mark.parametrize('is_moved', [False, True])
def test_rebuild_in_place_needs_no_further_save(is_moved: bool) -> None:
    """Nova would put a rebuilt server to ERROR if it failed."""
    cloud, one = _just_started()
    row, saved = one.held_nodes.row(N), []
    server = types.SimpleNamespace(
        host='c2' if is_moved else 'c1', node=N, compute_id=row.id
    )
    server.update = vars(server).update
    server.save = lambda: saved.append(server.host)
    _tracker(cloud, one, one.rows).finish_evacuation(server, N, None)
    assert saved == (['c1'] if is_moved else [])

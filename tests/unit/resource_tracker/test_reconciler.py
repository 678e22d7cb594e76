# SPDX-License-Identifier: Apache-2.0
"""Reports of many nodes: threads, order, retries, and the lease gate."""

import contextlib
import dataclasses
import logging
import threading
import time
from collections import defaultdict

import pytest

from hashring.clock import SystemClock
from resource_tracker import errors
from resource_tracker.claims import Claim
from resource_tracker.disk_cache import FileDiskCache, NoDiskCache
from resource_tracker.outage import Outage
from resource_tracker.provider import Situation
from resource_tracker.reconciler import Reconciler
from tests.fakes.clock import ManualClock
from tests.fakes.placement import FakePlacement
from tests.unit.resource_tracker.nodes import (
    GOLD,
    NODE,
    READY,
    changed,
    numbered,
)

# A test that waits so long has failed.
TIMEOUT_S = 60.0
DOWN = errors.PlacementUnavailable('no answer')


class Gate:
    """A lease gate that a test opens and shuts."""

    def __init__(self):
        self._open = threading.Event()
        self._open.set()

    def is_open(self):
        """Return whether the gate is open."""
        return self._open.is_set()

    def wait(self):
        """Wait until the gate is open."""
        assert self._open.wait(TIMEOUT_S)

    def shut(self):
        """Shut the gate."""
        self._open.clear()

    def open(self):
        """Open the gate."""
        self._open.set()


class Turnstile:
    """Stops requests of one kind until the test lets them continue."""

    def __init__(self, placement, kind):
        self._kind = kind
        self.arrived = threading.Event()
        self.let_go = threading.Event()
        placement.on_request = self._request

    def _request(self, kind, uuid):
        if kind == self._kind:
            self.arrived.set()
            assert self.let_go.wait(TIMEOUT_S)

    def wait(self):
        """Wait until such a request has arrived."""
        assert self.arrived.wait(TIMEOUT_S)


@pytest.fixture
def placement():
    """Return a Placement without providers."""
    return FakePlacement()


@pytest.fixture
def gate():
    """Return an open gate."""
    return Gate()


def _reconciler(placement, gate, **changes):
    arguments = {
        'clock': SystemClock(),
        'parallelism': 4,
        'retry_first_s': 0.01,
        'retry_max_s': 0.05,
        'deferral_s': 0.01,
        'outage': Outage(0.01, 0.05),
    }
    return Reconciler(placement, gate, **{**arguments, **changes})


@pytest.fixture
def reconciler(placement, gate):
    """Return a reconciler with four threads and short waits."""
    made = _reconciler(placement, gate)
    yield made
    made.stop(0)


def report(reconciler, facts, **situation):
    """Submit a node and wait until it is written."""
    reconciler.submit(facts, Situation(**situation))
    assert reconciler.drain(TIMEOUT_S)


def reserved(placement, facts=READY):
    """Return how many units of a node are reserved in Placement."""
    return placement.providers[facts.uuid].inventories[GOLD]['reserved']


def test_node_is_reported(placement, reconciler):
    """A submitted node gets a provider, whose answer is kept."""
    report(reconciler, READY)
    assert reserved(placement) == 0
    placement.requests.clear()
    traits = READY.traits | {'CUSTOM_NEW'}
    report(reconciler, dataclasses.replace(READY, traits=traits))
    assert placement.requests == ['PutTraits']
    assert traits <= placement.providers[NODE].traits


def test_no_change_costs_no_request(placement, reconciler):
    """A node submitted again without a change causes no request."""
    report(reconciler, READY)
    placement.requests.clear()
    for _ in range(100):
        report(reconciler, READY)
    assert placement.requests == []


def test_claimed_node_is_read_before_it_is_written(placement, reconciler):
    """The node of a build is read first, so its write has no conflict."""
    report(reconciler, READY)
    placement.allocate(NODE, 'server', GOLD)
    placement.requests.clear()
    taken = changed(instance_uuid='server', provision_state='deploying')
    report(reconciler, taken, claim=Claim('server'))
    assert placement.requests == ['read', 'PutInventories']
    placement.requests.clear()
    report(reconciler, changed(instance_uuid=None))
    assert placement.requests == ['PutInventories']


def test_node_of_a_build_costs_one_request(placement, reconciler):
    """A claim with the new generation makes a read needless."""
    report(reconciler, READY)
    placement.allocate(NODE, 'server', GOLD)
    placement.requests.clear()
    seen = placement.providers[NODE].generation
    report(reconciler, READY, claim=Claim('server', seen))
    assert placement.requests == ['PutInventories']
    assert reserved(placement) == 1


def test_builds_leave_room_for_a_node_that_comes_free(placement, reconciler):
    """A free node is written while all requests for builds hang."""
    built = [numbered(number) for number in range(2, 12)]
    for facts in [*built, READY]:
        reconciler.submit(facts, Situation())
    assert reconciler.drain(TIMEOUT_S)
    turnstile = Turnstile(placement, 'read')
    for facts in built:
        placement.allocate(facts.uuid, 'server', GOLD)
        reconciler.submit(facts, Situation(claim=Claim('server')))
    turnstile.wait()
    reconciler.submit(changed(maintenance=True), Situation())
    deadline_s = time.monotonic() + TIMEOUT_S
    while not reserved(placement) and time.monotonic() < deadline_s:
        time.sleep(0.01)
    assert reserved(placement)
    assert {reserved(placement, facts) for facts in built} == {0}
    turnstile.let_go.set()
    assert reconciler.drain(TIMEOUT_S)
    assert {reserved(placement, facts) for facts in built} == {1}


def test_burst_is_written_once(placement, reconciler):
    """Of many changes during one write only the last is written."""
    turnstile = Turnstile(placement, 'Create')
    reconciler.submit(READY, Situation())
    turnstile.wait()
    for n in range(50):
        reconciler.submit(changed(maintenance=bool(n % 2)), Situation())
    turnstile.let_go.set()
    assert reconciler.drain(TIMEOUT_S)
    assert reserved(placement) == 1
    assert placement.requests.count('PutInventories') <= 2


def test_writes_of_one_node_never_overlap(placement, reconciler):
    """Four threads write many nodes, but each node in one thread at once."""
    present, most = defaultdict(int), defaultdict(int)
    guard, pause = threading.Lock(), threading.Event()

    def request(kind, uuid):
        with guard:
            present[uuid] += 1
            most[uuid] = max(most[uuid], present[uuid])
            most['all'] = max(most['all'], sum(present.values()))
        pause.wait(0.002)
        with guard:
            present[uuid] -= 1

    placement.on_request = request
    for maintenance in (False, True, False, True):
        for number in range(2, 22):
            facts = numbered(number)
            reconciler.submit(
                dataclasses.replace(facts, maintenance=maintenance),
                Situation(),
            )
        pause.wait(0.01)
    assert reconciler.drain(TIMEOUT_S)
    assert {most[numbered(n).uuid] for n in range(2, 22)} == {1}
    assert 1 < most['all'] <= 4
    assert all(reserved(placement, numbered(n)) for n in range(2, 22))


def test_slow_node_does_not_hold_up_others(placement, reconciler):
    """A node is written while the request of another node hangs."""
    report(reconciler, numbered(2))
    turnstile = Turnstile(placement, 'Create')
    reconciler.submit(READY, Situation())
    turnstile.wait()
    busy = dataclasses.replace(numbered(2), instance_uuid='i')
    reconciler.submit(busy, Situation())
    for _ in range(1000):
        if reserved(placement, busy):
            break
        threading.Event().wait(0.01)
    assert reserved(placement, busy)
    turnstile.let_go.set()


def test_failure_is_tried_again_until_it_works(placement, reconciler):
    """A failed write is repeated without another submit."""
    placement.fail_next = [('before', DOWN)] * 3
    report(reconciler, READY)
    assert reserved(placement) == 0


def test_newer_state_is_not_undone_by_an_older_retry(placement, reconciler):
    """The retry of a failed write does not undo a newer state."""
    placement.fail_next = [('before', DOWN)] * 2
    reconciler.submit(READY, Situation())
    report(reconciler, changed(maintenance=True))
    for _ in range(10):
        assert reconciler.drain(TIMEOUT_S)
        assert reserved(placement) == 1
        threading.Event().wait(0.01)


def test_first_success_after_an_outage_makes_all_retries_due(placement, gate):
    """The first success after an outage makes all retries due."""
    an_hour_s = 3600.0
    slow = _reconciler(
        placement, gate, retry_first_s=an_hour_s, retry_max_s=an_hour_s
    )
    with contextlib.closing(_Stopped(slow)):
        placement.on_request = _raise_down
        for number in range(2, 12):
            slow.submit(numbered(number), Situation())
        assert not slow.drain(0.2)
        placement.on_request = lambda kind, uuid: None
        changed_node = dataclasses.replace(numbered(2), maintenance=True)
        slow.submit(changed_node, Situation())
        assert slow.drain(TIMEOUT_S)


def test_outage_of_placement_has_one_pause_for_all_nodes(placement, gate):
    """Each new node would read the list of all providers again."""
    reconciler = _reconciler(placement, gate, outage=Outage(0.5, 0.5))
    requests = []

    def fail(kind, uuid):
        requests.append(kind)
        raise DOWN

    with contextlib.closing(_Stopped(reconciler)):
        placement.on_request = fail
        for number in range(2, 1000):
            reconciler.submit(numbered(number), Situation())
        assert not reconciler.drain(0.8)
        # Two tries, and at first one more for each thread, if the list
        # failed before that thread had asked for it.
        assert set(requests) == {'list'}
        assert 2 <= len(requests) <= 6
        with pytest.raises(errors.PlacementUnavailable):
            reconciler.delete_provider(numbered(2).uuid)
        assert len(requests) <= 6
        placement.on_request = lambda kind, uuid: None
        assert reconciler.drain(TIMEOUT_S)
    assert len(placement.providers) == 998


def _raise_down(kind, uuid):
    raise DOWN


class _Stopped:
    """Stops a reconciler at the end of a with block."""

    def __init__(self, reconciler):
        self._reconciler = reconciler

    def close(self):
        self._reconciler.stop(0)


def test_refused_node_ends_and_others_go_on(placement, reconciler):
    """A refused write is not repeated until the node is submitted again."""
    placement.fail_next = [('before', errors.PlacementRefused('no'))]
    report(reconciler, READY)
    assert NODE not in placement.providers
    report(reconciler, numbered(2))
    assert not reserved(placement, numbered(2))
    report(reconciler, READY)
    assert not reserved(placement)


def test_unforeseen_error_ends_no_thread(placement, gate):
    """An unexpected error delays one node and ends no thread."""
    single = _reconciler(placement, gate, parallelism=1)
    with contextlib.closing(_Stopped(single)):
        faults = [ZeroDivisionError(), ZeroDivisionError()]

        def fail(kind, uuid):
            if faults:
                raise faults.pop()

        placement.on_request = fail
        report(single, READY)
        assert not reserved(placement)


def test_nothing_is_written_while_the_gate_is_shut(placement, gate):
    """Nodes wait while the gate is shut, and are written afterwards."""
    reconciler = _reconciler(placement, gate)
    with contextlib.closing(_Stopped(reconciler)):
        gate.shut()
        reconciler.submit(READY, Situation())
        assert not reconciler.drain(0.1)
        assert placement.requests == []
        gate.open()
        assert reconciler.drain(TIMEOUT_S)


def test_gate_that_shuts_stops_before_the_next_write(
    placement, gate, reconciler
):
    """A gate that shuts between two writes prevents the second."""
    turnstile = Turnstile(placement, 'Create')
    reconciler.submit(READY, Situation())
    turnstile.wait()
    gate.shut()
    turnstile.let_go.set()
    assert not reconciler.drain(0.1)
    ((node, age_s),) = reconciler.dirty_nodes().items()
    assert node == NODE
    assert age_s >= 0.0
    assert placement.requests == ['list', 'Create']
    gate.open()
    assert reconciler.drain(TIMEOUT_S)
    assert placement.requests.count('Create') == 1


def test_forgotten_node_is_not_written(placement, reconciler):
    """A node given away between two writes gets no second write."""
    turnstile = Turnstile(placement, 'Create')
    reconciler.submit(READY, Situation())
    turnstile.wait()
    reconciler.forget_node(NODE)
    turnstile.let_go.set()
    assert reconciler.drain(TIMEOUT_S)
    assert placement.requests == ['list', 'Create']
    assert reconciler.backlog() == (0, 0.0)
    assert reconciler.dirty_nodes() == {}


def test_forgotten_node_does_not_come_back_from_a_wait(placement, reconciler):
    """The retry of a node that was given away is dropped."""
    placement.fail_next = [('before', DOWN)] * 2
    reconciler.submit(READY, Situation())
    reconciler.forget_node(NODE)
    placement.fail_next = []
    assert reconciler.drain(TIMEOUT_S)
    threading.Event().wait(0.1)
    assert NODE not in placement.providers


def test_forgotten_node_does_not_prolong_an_outage(
    placement, reconciler, caplog
):
    """A node given away during its failing request prolongs no outage."""
    caplog.set_level(logging.INFO, 'resource_tracker')
    turnstile = Turnstile(placement, 'list')
    placement.fail_next = [('before', DOWN)]
    reconciler.submit(READY, Situation())
    turnstile.wait()
    reconciler.forget_node(NODE)
    turnstile.let_go.set()
    assert reconciler.drain(TIMEOUT_S)
    placement.fail_next = [('before', DOWN)]
    report(reconciler, numbered(2))
    assert caplog.messages[-1].startswith('Placement answers again')


class HungDisk(NoDiskCache):
    """A disk that hangs with the records of one node."""

    def __init__(self):
        self.arrived = threading.Semaphore(0)
        self.let_go = threading.Event()
        self.node = None

    def discard(self, node):
        """Wait until the test lets the caller continue."""
        if node == self.node:
            self.arrived.release()
            assert self.let_go.wait(TIMEOUT_S)


def test_disk_that_hangs_delays_no_other_node(placement, gate):
    """A node is given away during its write, and then the disk hangs."""
    disk = HungDisk()
    reconciler = _reconciler(placement, gate, disk_cache=disk)
    turnstile = Turnstile(placement, 'Create')
    reconciler.submit(READY, Situation())
    turnstile.wait()
    disk.node, placement.on_request = NODE, lambda kind, uuid: None
    hung = [_started(reconciler.forget_node, NODE)]
    disk.arrived.acquire(timeout=TIMEOUT_S)
    turnstile.let_go.set()
    disk.arrived.acquire(timeout=TIMEOUT_S)
    hung.append(_started(reconciler.submit, numbered(2), Situation()))
    hung[-1].join(10.0)
    is_hung = hung[-1].is_alive()
    disk.let_go.set()
    for thread in hung:
        thread.join()
    assert reconciler.stop(TIMEOUT_S)
    assert not is_hung


def _started(function, *args):
    thread = threading.Thread(target=function, args=args, daemon=True)
    thread.start()
    return thread


def test_given_away_and_taken_back_is_read_again(placement, reconciler):
    """A node held again is read, as another host may have written it."""
    report(reconciler, READY)
    reconciler.forget_node(NODE)
    placement.add_trait(NODE, 'CUSTOM_FOREIGN')
    placement.requests.clear()
    report(reconciler, changed(maintenance=True))
    assert placement.requests == ['read', 'PutInventories']
    assert 'CUSTOM_FOREIGN' in placement.providers[NODE].traits


def test_class_in_use_comes_when_the_node_changes(placement, reconciler):
    """Bug 1751472: a new class is offered once the old one is free."""
    report(reconciler, READY)
    placement.allocate(NODE, 'server', GOLD)
    silver = changed(resource_class='silver', instance_uuid='i')
    report(reconciler, silver)
    assert reserved(placement) == 1
    placement.requests.clear()
    report(reconciler, silver)
    assert placement.requests == []
    placement.deallocate(NODE, 'server')
    report(reconciler, changed(resource_class='silver'))
    assert set(placement.providers[NODE].inventories) == {'CUSTOM_SILVER'}


def test_kept_class_is_looked_at_again_without_a_change(placement, gate):
    """Nothing else shows that the allocation has ended."""
    clock = ManualClock()
    reconciler = _reconciler(placement, gate, clock=clock)
    with contextlib.closing(_Stopped(reconciler)):
        report(reconciler, READY)
        placement.allocate(NODE, 'server', GOLD)
        report(reconciler, changed(resource_class='silver'))
        placement.deallocate(NODE, 'server')
        assert set(placement.providers[NODE].inventories) == {GOLD}
        clock.advance(61.0)
        deadline_s = time.monotonic() + TIMEOUT_S
        while GOLD in placement.providers[NODE].inventories:
            assert time.monotonic() < deadline_s
            time.sleep(0.01)
    assert set(placement.providers[NODE].inventories) == {'CUSTOM_SILVER'}


def test_deleted_node_loses_its_provider(placement, reconciler):
    """A deleted provider is not created again."""
    report(reconciler, READY)
    assert reconciler.delete_provider(NODE)
    assert NODE not in placement.providers
    assert reconciler.delete_provider(NODE)
    assert reconciler.drain(TIMEOUT_S)
    assert NODE not in placement.providers


def test_provider_in_use_is_not_removed(placement, reconciler):
    """A provider with an allocation is not deleted."""
    report(reconciler, READY)
    placement.allocate(NODE, 'server', GOLD)
    assert not reconciler.delete_provider(NODE)
    assert NODE in placement.providers
    assert placement.requests.count('delete') == 1


def test_removal_waits_for_the_write_under_way(placement, reconciler):
    """The deletion of a provider waits for the present write of its node."""
    turnstile = Turnstile(placement, 'PutTraits')
    reconciler.submit(READY, Situation())
    turnstile.wait()
    removed = threading.Event()
    remover = threading.Thread(
        target=lambda: reconciler.delete_provider(NODE) and removed.set()
    )
    remover.start()
    assert not removed.wait(0.05)
    turnstile.let_go.set()
    assert removed.wait(TIMEOUT_S)
    remover.join()
    assert reconciler.drain(TIMEOUT_S)
    assert NODE not in placement.providers
    assert 'PutInventories' not in placement.requests


def test_stop_ends_the_threads(placement, gate):
    """After the stop a submitted node causes no request."""
    reconciler = _reconciler(placement, gate)
    report(reconciler, READY)
    assert reconciler.stop(TIMEOUT_S)
    placement.requests.clear()
    reconciler.submit(changed(maintenance=True), Situation())
    assert placement.requests == []


def test_threads_that_could_not_start_start_later(
    placement, reconciler, monkeypatch
):
    """Threads that the system refused are started with the next submit."""
    with monkeypatch.context() as patched:
        patched.setattr(threading.Thread, 'start', _no_thread_left)
        for number in range(1, 6):
            with pytest.raises(RuntimeError):
                reconciler.submit(numbered(number), Situation())
    reconciler.submit(numbered(6), Situation())
    assert reconciler.drain(TIMEOUT_S)
    assert len(placement.providers) == 6


def _no_thread_left(thread):
    raise RuntimeError("can't start new thread")


def test_stop_does_not_wait_for_an_answer_that_never_comes(placement, gate):
    """The stop returns False if a request is still unanswered.

    After the answer the thread sends no other request.
    """
    reconciler = _reconciler(placement, gate)
    turnstile = Turnstile(placement, 'Create')
    reconciler.submit(READY, Situation())
    turnstile.wait()
    assert not reconciler.stop(0.05)
    turnstile.let_go.set()
    assert reconciler.stop(TIMEOUT_S)
    assert placement.requests == ['list', 'Create']


def test_stop_does_not_wait_for_the_gate(placement, gate):
    """The stop does not wait for a gate that is shut."""
    reconciler = _reconciler(placement, gate)
    gate.shut()
    reconciler.submit(READY, Situation())
    assert reconciler.stop(TIMEOUT_S)


def test_audit_counts_nothing_that_we_write_meanwhile(placement, reconciler):
    """An audit ignores providers that we write while the list is read."""
    report(reconciler, READY)
    now = [changed(maintenance=True)]

    def write(kind, uuid):
        if kind == 'list' and now:
            report(reconciler, now.pop())

    placement.on_request = write
    assert reconciler.audit_providers() == 0
    assert reserved(placement) == 1
    placement.providers[NODE].generation += 1
    assert reconciler.audit_providers() == 1


class ListsLate(FakePlacement):
    """A Placement whose list arrives after ``meanwhile`` was called."""

    meanwhile = staticmethod(lambda: None)

    def list_providers(self):
        """Return the providers from before ``meanwhile``."""
        found = super().list_providers()
        self.meanwhile()
        return found


def test_audit_counts_no_node_that_was_written_after_the_list(gate):
    """The list has an older generation of it."""
    placement = ListsLate()
    reconciler = _reconciler(placement, gate)
    with contextlib.closing(_Stopped(reconciler)):
        report(reconciler, READY)
        placement.meanwhile = lambda: report(
            reconciler, changed(maintenance=True)
        )
        assert reconciler.audit_providers() == 0
        placement.meanwhile = lambda: None
        placement.providers[NODE].generation += 1
        assert reconciler.audit_providers() == 1


def test_capability_that_is_too_long_for_a_trait_is_left_out(
    placement, reconciler, caplog
):
    """Placement would refuse all traits, and the node were never offered."""
    long = {'capabilities': f'cpu:x86,model:{"m" * 300}'}
    keys = {'traits_of_capabilities': frozenset({'cpu', 'model'})}
    for power_state in ('power on', 'power off'):
        facts = changed(properties=long, power_state=power_state)
        report(reconciler, facts, **keys)
    provider = placement.providers[NODE]
    assert provider.inventories[GOLD]['reserved'] == 0
    assert 'CUSTOM_CPU_X86' in provider.traits
    assert caplog.text.count(f'Left out model of node {NODE}') == 1
    report(reconciler, READY, **keys)
    report(reconciler, facts, **keys)
    assert caplog.text.count(f'Left out model of node {NODE}') == 2


@pytest.mark.parametrize('is_restarted', [False, True])
def test_node_whose_provider_stays_keeps_what_is_ours(
    placement, gate, tmp_path, is_restarted
):
    """Something is allocated; a trait that goes later is still ours."""

    def start():
        cache = FileDiskCache(tmp_path / 'cache', 'c1')
        return _reconciler(placement, gate, disk_cache=cache)

    first = start()
    old = changed(traits=frozenset({'CUSTOM_OLD'}))
    report(first, old)
    placement.allocate(NODE, 'server', GOLD)
    assert not first.delete_provider(NODE)
    if is_restarted:
        first.stop()
    second = start() if is_restarted else first
    report(second, READY)
    second.stop()
    assert 'CUSTOM_OLD' not in placement.providers[NODE].traits


def test_change_of_a_node_whose_provider_stays_is_written(
    placement, reconciler, gate
):
    """It waited for the lease when the provider was to be deleted."""
    report(reconciler, READY)
    placement.allocate(NODE, 'server', GOLD)
    gate.shut()
    reconciler.submit(changed(maintenance=True), Situation())
    deleting = threading.Thread(target=reconciler.delete_provider, args=[NODE])
    deleting.start()
    time.sleep(0.1)
    gate.open()
    deleting.join()
    assert reconciler.drain(TIMEOUT_S)
    assert reserved(placement) == 1

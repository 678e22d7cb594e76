# SPDX-License-Identifier: Apache-2.0
"""Many nodes, several threads, a gate, failures: who writes what when."""

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
from resource_tracker.provider import Situation
from resource_tracker.reconciler import Reconciler
from tests.fakes.placement import FakePlacement
from tests.unit.resource_tracker.nodes import (
    GOLD,
    NODE,
    READY,
    changed,
    numbered,
)

# More than any of this takes; a test that waits that long has failed.
TIMEOUT_S = 60.0
DOWN = errors.PlacementUnavailable('no answer')


class Gate:
    """A gate that a test opens and shuts."""

    def __init__(self):
        self._open = threading.Event()
        self._open.set()

    def is_open(self):
        """Say whether it is open."""
        return self._open.is_set()

    def wait(self):
        """Wait until it is."""
        assert self._open.wait(TIMEOUT_S)

    def shut(self):
        """Shut it."""
        self._open.clear()

    def open(self):
        """Open it."""
        self._open.set()


class Turnstile:
    """Holds a request of one kind until it is let go."""

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
        """Wait until a request stands before it."""
        assert self.arrived.wait(TIMEOUT_S)


@pytest.fixture
def placement():
    """An empty Placement."""
    return FakePlacement()


@pytest.fixture
def gate():
    """An open gate."""
    return Gate()


def _reconciler(placement, gate, **changes):
    arguments = {
        'parallelism': 4,
        'retry_first_s': 0.01,
        'retry_max_s': 0.05,
        'deferral_s': 0.01,
    }
    return Reconciler(
        placement, gate, SystemClock(), **{**arguments, **changes}
    )


@pytest.fixture
def reconciler(placement, gate):
    """A reconciler of four impatient threads."""
    made = _reconciler(placement, gate)
    yield made
    made.stop(0)


def report(reconciler, facts, **situation):
    """Submit and wait until it is said."""
    reconciler.submit(facts, Situation(**situation))
    assert reconciler.drain(TIMEOUT_S)


def reserved(placement, facts=READY):
    """Whether Placement says that a node is reserved."""
    return placement.providers[facts.uuid].inventories[GOLD]['reserved']


def test_node_is_reported(placement, reconciler):
    """A submitted node gets a provider, which is not read before a change."""
    report(reconciler, READY)
    assert reserved(placement) == 0
    placement.requests.clear()
    traits = READY.traits | {'CUSTOM_NEW'}
    report(reconciler, dataclasses.replace(READY, traits=traits))
    assert placement.requests == ['PutTraits']
    assert traits <= placement.providers[NODE].traits


def test_no_change_costs_no_request(placement, reconciler):
    """However often a node is submitted."""
    report(reconciler, READY)
    placement.requests.clear()
    for _ in range(100):
        report(reconciler, READY)
    assert placement.requests == []


def test_claimed_node_is_read_before_it_is_written(placement, reconciler):
    """The allocation of its build raised the generation: no conflict."""
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
    """Nova has seen the generation with the allocation; nothing is read."""
    report(reconciler, READY)
    placement.allocate(NODE, 'server', GOLD)
    placement.requests.clear()
    seen = placement.providers[NODE].generation
    report(reconciler, READY, claim=Claim('server', seen))
    assert placement.requests == ['PutInventories']
    assert reserved(placement) == 1


def test_builds_leave_room_for_a_node_that_comes_free(placement, reconciler):
    """Placement hangs with all that is asked for builds, and is not full."""
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


def test_burst_is_said_once(placement, reconciler):
    """What was wanted meanwhile and is not any more is not said."""
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
    """Many nodes at once, each in its own order."""
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
    """A claim or a report of one node never waits for another's request."""
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
    """Nobody has to submit the node again."""
    placement.fail_next = [('before', DOWN)] * 3
    report(reconciler, READY)
    assert reserved(placement) == 0


def test_newer_wish_is_not_undone_by_an_older_retry(placement, reconciler):
    """What failed is not brought back when something else is wanted."""
    placement.fail_next = [('before', DOWN)] * 2
    reconciler.submit(READY, Situation())
    report(reconciler, changed(maintenance=True))
    for _ in range(10):
        assert reconciler.drain(TIMEOUT_S)
        assert reserved(placement) == 1
        threading.Event().wait(0.01)


def test_failing_nodes_come_back_together(placement, gate):
    """When Placement is back nobody sits out a long wait."""
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


def _raise_down(kind, uuid):
    raise DOWN


class _Stopped:
    """Stops a reconciler at the end of a with block."""

    def __init__(self, reconciler):
        self._reconciler = reconciler

    def close(self):
        self._reconciler.stop(0)


def test_refused_node_ends_and_others_go_on(placement, reconciler):
    """What can never work is not tried for ever."""
    placement.fail_next = [('before', errors.PlacementRefused('no'))]
    report(reconciler, READY)
    assert NODE not in placement.providers
    report(reconciler, numbered(2))
    assert not reserved(placement, numbered(2))
    report(reconciler, READY)
    assert not reserved(placement)


def test_unforeseen_error_ends_no_thread(placement, gate):
    """A fault of ours costs its node a while, and nobody else anything."""
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
    """What waits is said when the lease is in force again."""
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
    """A lease that is lost between two writes ends the pass there."""
    turnstile = Turnstile(placement, 'Create')
    reconciler.submit(READY, Situation())
    turnstile.wait()
    gate.shut()
    turnstile.let_go.set()
    assert not reconciler.drain(0.1)
    assert placement.requests == ['list', 'Create']
    gate.open()
    assert reconciler.drain(TIMEOUT_S)
    assert placement.requests.count('Create') == 1


def test_forgotten_node_is_not_written(placement, reconciler):
    """Given away between two writes: the rest is for the new holder."""
    turnstile = Turnstile(placement, 'Create')
    reconciler.submit(READY, Situation())
    turnstile.wait()
    reconciler.forget_node(NODE)
    turnstile.let_go.set()
    assert reconciler.drain(TIMEOUT_S)
    assert placement.requests == ['list', 'Create']
    assert reconciler.backlog() == (0, 0.0)


def test_forgotten_node_does_not_come_back_from_a_wait(placement, reconciler):
    """A retry that is due later is struck out as well."""
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
    """Given away while its request fails: the end of the outage is seen."""
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


def test_given_away_and_taken_back_is_read_again(placement, reconciler):
    """What another holder wrote meanwhile is neither lost nor doubled."""
    report(reconciler, READY)
    reconciler.forget_node(NODE)
    placement.add_trait(NODE, 'CUSTOM_FOREIGN')
    placement.requests.clear()
    report(reconciler, changed(maintenance=True))
    assert placement.requests == ['read', 'PutInventories']
    assert 'CUSTOM_FOREIGN' in placement.providers[NODE].traits


def test_class_in_use_comes_when_the_node_changes(placement, reconciler):
    """Bug 1751472: kept while allocated, new as soon as it can be."""
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


def test_deleted_node_loses_its_provider(placement, reconciler):
    """By explicit call, and it stays away."""
    report(reconciler, READY)
    assert reconciler.delete_provider(NODE)
    assert NODE not in placement.providers
    assert reconciler.delete_provider(NODE)
    assert reconciler.drain(TIMEOUT_S)
    assert NODE not in placement.providers


def test_provider_in_use_is_not_removed(placement, reconciler):
    """What is allocated stays, whatever Ironic said."""
    report(reconciler, READY)
    placement.allocate(NODE, 'server', GOLD)
    assert not reconciler.delete_provider(NODE)
    assert NODE in placement.providers
    assert placement.requests.count('delete') == 1


def test_removal_waits_for_the_write_under_way(placement, reconciler):
    """No late write brings a removed provider back."""
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
    """After it nothing is begun, whatever is submitted."""
    reconciler = _reconciler(placement, gate)
    report(reconciler, READY)
    assert reconciler.stop(TIMEOUT_S)
    placement.requests.clear()
    reconciler.submit(changed(maintenance=True), Situation())
    assert placement.requests == []


def test_threads_that_could_not_start_start_later(
    placement, reconciler, monkeypatch
):
    """The machine has none left for a moment."""
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
    """A request is out: stop says so, and the thread writes no other."""
    reconciler = _reconciler(placement, gate)
    turnstile = Turnstile(placement, 'Create')
    reconciler.submit(READY, Situation())
    turnstile.wait()
    assert not reconciler.stop(0.05)
    turnstile.let_go.set()
    assert reconciler.stop(TIMEOUT_S)
    assert placement.requests == ['list', 'Create']


def test_stop_does_not_wait_for_the_gate(placement, gate):
    """A worker whose lease is gone stops all the same."""
    reconciler = _reconciler(placement, gate)
    gate.shut()
    reconciler.submit(READY, Situation())
    assert reconciler.stop(TIMEOUT_S)


def test_audit_counts_nothing_that_we_write_meanwhile(placement, reconciler):
    """The list shows it, and nobody else wrote the node."""
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

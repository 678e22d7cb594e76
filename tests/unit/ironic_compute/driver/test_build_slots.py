# SPDX-License-Identifier: Apache-2.0
"""Build slots: a limited number of builds send requests at once."""

import dataclasses
import functools
import threading

from hashring.clock import SystemClock
from ironic_compute.driver.build_slots import BuildSlots
from ironic_compute.nodes.node_cache import NodeCache
from ironic_compute.waiting_threads import WaitingThreads
from resource_tracker.node import NodeId
from tests.fakes.ironic import NODE
from tests.unit.ironic_compute.driver import fake

WAIT_S = 60.0


class _Idle(fake.FakeFeed):
    """A feed that leaves the end of Ironic's work to the test."""

    def request_read(self, node: str) -> None:
        """Do nothing."""


def test_slot_is_free_after_one_release() -> None:
    """A second build waits for the release; a second release has no effect."""
    slots, began = BuildSlots(1), threading.Event()
    mine, theirs, last = slots.new_slot(), slots.new_slot(), slots.new_slot()
    mine.acquire()

    def acquire() -> None:
        theirs.acquire()
        began.set()

    other = threading.Thread(target=acquire)
    other.start()
    assert not began.wait(0.1)
    mine.release()
    assert began.wait(WAIT_S)
    other.join()
    mine.release()
    began.clear()
    third = threading.Thread(target=lambda: (last.acquire(), began.set()))
    third.start()
    assert not began.wait(0.1)
    theirs.release()
    assert began.wait(WAIT_S)
    third.join()


def test_stop_of_the_worker_does_not_wait_for_slots() -> None:
    """Each slot may be that of a build that waits for other deploys."""
    waiting = WaitingThreads()
    slots = BuildSlots(1, waiting_threads=waiting)
    mine, theirs = slots.new_slot(), slots.new_slot()
    mine.acquire()
    assert not waiting.idents()
    other = threading.Thread(target=theirs.acquire)
    other.start()
    other.join(0.1)
    assert waiting.idents() == {other.ident}
    mine.release()
    other.join(WAIT_S)
    assert not waiting.idents()


def test_release_of_a_slot_that_was_not_acquired_does_nothing() -> None:
    """A build may fail before it has acquired its slot."""
    slots = BuildSlots(1)
    slots.new_slot().release()
    first = slots.new_slot()
    first.acquire()
    blocked = threading.Thread(target=slots.new_slot().acquire)
    blocked.start()
    blocked.join(0.1)
    assert blocked.is_alive()
    first.release()
    blocked.join(WAIT_S)
    assert not blocked.is_alive()


def test_build_that_waits_for_its_machine_has_no_slot() -> None:
    """With one slot, two deploys run at the same time."""
    bench = dataclasses.replace(
        fake.bench(), node_cache=NodeCache(SystemClock())
    )
    other = NodeId('55555555-5555-5555-5555-555555555555')
    bench.ironic.add(uuid=other)
    for facts in bench.ironic.nodes.values():
        bench.node_cache.update_facts(facts)
    feed = _Idle(bench.ironic, bench.node_cache)
    bench.driver.set_up(bench.ironic, bench.node_cache, feed, SystemClock())
    bench.driver._deploy._build_slots = BuildSlots(1)
    servers = (fake.server(), fake.server(uuid=fake.OTHER, node=other))
    builds = [
        threading.Thread(target=bench.spawn, args=(server,), daemon=True)
        for server in servers
    ]
    for build in builds:
        build.start()
    deploying = [
        bench.node_cache.wait_for(
            node,
            lambda facts: facts.provision_state == 'deploying',
            WAIT_S,
            functools.partial(bench.ironic.read_node, node),
            refresh_s=WAIT_S,
        )
        for node in (NODE, other)
    ]
    assert all(deploying)
    for facts in deploying:
        bench.ironic.settle(facts.uuid)
        bench.node_cache.update_facts(bench.ironic.nodes[facts.uuid])
    for build in builds:
        build.join(WAIT_S)
    assert not any(build.is_alive() for build in builds)

# SPDX-License-Identifier: Apache-2.0
"""A delete ends the build of its server at once."""

import contextlib
import dataclasses
import threading
import time
from typing import Any

import pytest
from nova import exception as nova_exception

from hashring.clock import SystemClock
from ironic_compute import errors
from ironic_compute.driver import build_slots
from ironic_compute.nodes.node_cache import NodeCache
from tests.fakes.ironic import NODE
from tests.unit.ironic_compute.driver import fake

LIMIT_S = 2.0
WAIT_S = 60.0


class _Idle(fake.FakeFeed):
    """A feed that leaves the end of Ironic's work to the test."""

    def request_read(self, node: str) -> None:
        """Do nothing."""


def _bench() -> fake.Bench:
    """Return a driver on the clock of this machine, whose deploys go on."""
    bench = dataclasses.replace(
        fake.bench(), node_cache=NodeCache(SystemClock())
    )
    bench.node_cache.update_facts(bench.ironic.nodes[NODE])
    feed = _Idle(bench.ironic, bench.node_cache)
    bench.driver.set_up(bench.ironic, bench.node_cache, feed, SystemClock())
    return bench


class _Build(threading.Thread):
    """The thread of a build, which keeps the exception that ended it."""

    error: Exception | None = None

    def __init__(self, bench: fake.Bench) -> None:
        super().__init__(daemon=True)
        self._bench = bench

    def run(self) -> None:
        """Build the server."""
        try:
            self._bench.spawn(fake.server())
        except Exception as exc:
            self.error = exc


def _wait_for_request(bench: fake.Bench, name: str) -> None:
    deadline_s = time.monotonic() + WAIT_S
    while name not in bench.ironic.names():
        assert time.monotonic() < deadline_s
        time.sleep(0.01)


def _assert_cancelled_soon(bench: fake.Bench, build: _Build) -> None:
    began_s = time.monotonic()
    with bench.driver.cancel_build(fake.SERVER):
        build.join(LIMIT_S)
    assert not build.is_alive()
    assert time.monotonic() - began_s < LIMIT_S
    assert isinstance(
        build.error, nova_exception.UnexpectedDeletingTaskStateError
    )
    assert bench.is_free()


def test_delete_ends_the_wait_for_a_deploy() -> None:
    """A server that is being deployed is torn down within two seconds.

    Before, the build read its Instance every 30 seconds only.
    """
    bench = _bench()
    build = _Build(bench)
    build.start()
    _wait_for_request(bench, 'active')
    bench.ironic.change(NODE, provision_state='wait call-back')
    bench.node_cache.update_facts(bench.ironic.nodes[NODE])
    settler = threading.Thread(target=_settle_when_deleted, args=(bench,))
    settler.start()
    _assert_cancelled_soon(bench, build)
    settler.join(WAIT_S)
    assert 'deleted' in bench.ironic.names()


def _settle_when_deleted(bench: fake.Bench) -> None:
    _wait_for_request(bench, 'deleted')
    bench.ironic.settle(NODE)
    bench.node_cache.update_facts(bench.ironic.nodes[NODE])


def test_delete_ends_the_wait_for_a_build_slot() -> None:
    """A build that waits for its slot frees its node and sends no deploy."""
    bench = _bench()
    slots = bench.driver._deploy._build_slots = build_slots.BuildSlots(
        1, bench.driver._cancellations
    )
    slots.new_slot(fake.OTHER).acquire()
    build = _Build(bench)
    build.start()
    _wait_for_request(bench, 'reserve')
    _assert_cancelled_soon(bench, build)
    assert 'active' not in bench.ironic.names()


def test_delete_ends_the_wait_for_other_deploys() -> None:
    """A build for which Ironic has no room yet sends no deploy any more."""
    bench = fake.bench()

    def refuse(*args: Any, **arguments: Any) -> None:
        cancelled.enter_context(bench.driver.cancel_build(fake.SERVER))
        raise errors.AtLimit('concurrent action limit', 503)

    ironic: Any = bench.ironic
    ironic.set_provision_state = refuse
    with (
        contextlib.ExitStack() as cancelled,
        pytest.raises(nova_exception.UnexpectedDeletingTaskStateError),
    ):
        bench.spawn(fake.server())
    assert bench.clock.now_s() - fake.bench().clock.now_s() < 60.0
    assert bench.is_free()


def test_build_after_a_failed_delete_is_not_cancelled() -> None:
    """The cancellation ends with the delete, so a later rebuild goes on."""
    bench = fake.bench()
    with bench.driver.cancel_build(fake.SERVER):
        pass
    bench.spawn(fake.server())
    with (
        pytest.raises(nova_exception.UnexpectedDeletingTaskStateError),
        bench.driver.cancel_build(fake.SERVER),
    ):
        bench.rebuild(fake.unsaved_server(task_state='rebuilding'))


def test_delete_of_one_server_leaves_other_builds_alone() -> None:
    """A build goes on while another server is deleted."""
    bench = fake.bench()
    with bench.driver.cancel_build(fake.OTHER):
        bench.spawn(fake.server())
    assert bench.ironic.nodes[NODE].provision_state == 'active'

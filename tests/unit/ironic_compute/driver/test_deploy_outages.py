# SPDX-License-Identifier: Apache-2.0
"""A deploy continues during outages of Ironic's API and nova-conductor."""

import dataclasses
from collections.abc import Callable
from typing import Any

import oslo_messaging
import pytest
from nova import exception as nova_exception

from ironic_compute import errors
from resource_tracker.node import NodeFacts
from tests.fakes.clock import ManualClock
from tests.fakes.ironic import FakeIronic

from . import fake, timed

_CHECK_S = 30.0
# More than ten checks, and longer than the 300 s after which a node without a
# change is read.
_DEPLOY_S = 700.0


class _Ironic(FakeIronic):
    """An Ironic with a long deploy, and with an outage in the middle."""

    def __init__(self, clock: ManualClock) -> None:
        super().__init__()
        self._clock = clock
        self._began_s = clock.now_s()
        self.error: errors.IronicComputeError | None = None

    def read_node(self, node: str) -> NodeFacts:
        """Read the node, unless there is an outage now."""
        took_s = self._clock.now_s() - self._began_s
        if self.error is not None and 290.0 <= took_s < 600.0:
            raise self.error
        if took_s >= _DEPLOY_S:
            self.change(node, provision_state='active')
        return super().read_node(node)


def _deploying() -> tuple[fake.Bench, _Ironic]:
    """Return a driver whose node is being deployed."""
    clock = ManualClock(start_s=0.0)
    ironic = _Ironic(clock)
    ironic.add(instance_uuid=fake.SERVER, provision_state='deploying')
    bench = fake.bench()
    node_cache = timed.AdvancingCache(clock)
    node_cache.update_facts(ironic.nodes[fake.NODE])
    # This feed must not end the deploy, so it gets an Ironic without nodes.
    feed: Any = fake.FakeFeed(FakeIronic(), node_cache)
    bench.driver.set_up(ironic, node_cache, feed, clock)  # type: ignore[arg-type]
    made = dataclasses.replace(
        bench, ironic=ironic, node_cache=node_cache, clock=clock
    )
    return made, ironic


def _wait(bench: fake.Bench, refresh: Callable[[], None]) -> None:
    """Wait for the deploy; ``refresh`` reads the server's record."""
    server = fake.server()
    object.__setattr__(server, 'refresh', refresh)
    bench.driver.wait_for_deploy(server, fake.NODE)


@pytest.mark.parametrize(
    'error',
    [
        errors.IronicNotReached('connection refused'),
        errors.IronicUnavailable('no answer'),
        errors.NodeLocked('409'),
        errors.IronicRefused('403'),
    ],
)
def test_deploy_continues_during_an_outage_of_ironic(
    error: errors.IronicComputeError,
) -> None:
    """An outage longer than all retries of a request does not end a deploy."""
    bench, ironic = _deploying()
    ironic.error = error
    _wait(bench, lambda: None)
    assert bench.clock.now_s() >= _DEPLOY_S
    assert not ironic.calls


def test_deploy_continues_during_an_outage_of_nova_conductor() -> None:
    """Failed reads of the server's record do not end a deploy."""
    bench, ironic = _deploying()
    checks_s: list[float] = []

    def fail() -> None:
        checks_s.append(bench.clock.now_s())
        raise oslo_messaging.MessagingTimeout

    _wait(bench, fail)
    assert len(checks_s) > _DEPLOY_S / _CHECK_S / 2
    assert not ironic.calls


def test_deploy_ends_if_nova_has_no_such_server() -> None:
    """A record that does not exist ends the wait, unlike an outage."""
    bench, _ = _deploying()

    def gone() -> None:
        raise nova_exception.InstanceNotFound(instance_id=fake.SERVER)

    with pytest.raises(nova_exception.InstanceNotFound):
        _wait(bench, gone)


def test_deploy_ends_if_ironic_has_no_such_node() -> None:
    """A node that does not exist ends the wait, unlike an outage."""
    bench, ironic = _deploying()
    ironic.error = errors.NodeNotFound('404')
    with pytest.raises(errors.NodeNotFound):
        _wait(bench, lambda: None)

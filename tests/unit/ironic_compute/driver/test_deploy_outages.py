# SPDX-License-Identifier: Apache-2.0
"""Nothing but Ironic's own word ends a deploy: no outage, of whomever."""

import dataclasses
from collections.abc import Callable
from typing import Any

import oslo_messaging
import pytest
from nova import exception as nova_exception

from hashring.clock import ManualClock
from ironic_compute import errors
from ironic_compute.nodes.node_cache import NodeCache
from resource_tracker.node import NodeFacts, NodeId
from tests.fakes.ironic import FakeIronic

from . import fake

_LOOK_S = 30.0
# More than ten looks; Ironic is asked for a node that is silent for 300 s.
_DEPLOY_S = 700.0


class _Book(NodeCache):
    """Lets the time pass that somebody waits."""

    def __init__(self, clock: ManualClock) -> None:
        super().__init__(clock)
        self._now = clock

    def _await_news(self, node: NodeId, timeout_s: float) -> None:
        self._now.advance(timeout_s)


class _Ironic(FakeIronic):
    """Deploys for a long while, and is not always there."""

    def __init__(self, clock: ManualClock) -> None:
        super().__init__()
        self._clock = clock
        self._began_s = clock.now_s()
        self.error: errors.IronicComputeError | None = None

    def node(self, node: str) -> NodeFacts:
        """See IronicClient."""
        took_s = self._clock.now_s() - self._began_s
        if self.error is not None and 290.0 <= took_s < 600.0:
            raise self.error
        if took_s >= _DEPLOY_S:
            self.change(node, provision_state='active')
        return super().node(node)


def _deploying() -> tuple[fake.Bench, _Ironic]:
    clock = ManualClock(start_s=0.0)
    ironic = _Ironic(clock)
    ironic.add(instance_uuid=fake.SERVER, provision_state='deploying')
    bench = fake.bench()
    node_cache = _Book(clock)
    node_cache.hold(ironic.nodes[fake.NODE])
    # Its own work is done when the time has come, not when it was asked for.
    feed: Any = fake.FakeFeed(FakeIronic(), node_cache)
    bench.driver.set_up(ironic, node_cache, feed, clock)  # type: ignore[arg-type]
    made = dataclasses.replace(
        bench, ironic=ironic, node_cache=node_cache, clock=clock
    )
    return made, ironic


def _wait(bench: fake.Bench, refresh: Callable[[], None]) -> None:
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
def test_a_deploy_outlives_ironics_api(
    error: errors.IronicComputeError,
) -> None:
    """It may be away for longer than one request is repeated."""
    bench, ironic = _deploying()
    ironic.error = error
    _wait(bench, lambda: None)
    assert bench.clock.now_s() >= _DEPLOY_S
    assert not ironic.calls


def test_a_deploy_outlives_novas_conductor() -> None:
    """Each look at the row may fail for minutes."""
    bench, ironic = _deploying()
    looks_s: list[float] = []

    def fail() -> None:
        looks_s.append(bench.clock.now_s())
        raise oslo_messaging.MessagingTimeout

    _wait(bench, fail)
    assert len(looks_s) > _DEPLOY_S / _LOOK_S / 2
    assert not ironic.calls


def test_a_deploy_ends_if_nova_has_its_server_no_more() -> None:
    """That is an answer, and no outage."""
    bench, _ = _deploying()

    def gone() -> None:
        raise nova_exception.InstanceNotFound(instance_id=fake.SERVER)

    with pytest.raises(nova_exception.InstanceNotFound):
        _wait(bench, gone)


def test_a_deploy_ends_if_ironic_has_its_node_no_more() -> None:
    """Likewise."""
    bench, ironic = _deploying()
    ironic.error = errors.NodeNotFound('404')
    with pytest.raises(errors.NodeNotFound):
        _wait(bench, lambda: None)

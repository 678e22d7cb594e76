# SPDX-License-Identifier: Apache-2.0
"""Claims of a worker that has just started, before Ironic's first list."""

import dataclasses
import types
from collections.abc import Callable
from concurrent import futures
from typing import Any

import pytest
from nova import exception as nova_exception

from hashring.ring import Host
from ironic_compute import errors
from ironic_compute.manager.tracker import BareMetalTracker
from ironic_compute.nodes.records import NEW
from resource_tracker.claims import Claim
from resource_tracker.node import NodeFacts, NodeId
from tests.simulation.nova import NodeRecord
from tests.unit.ironic_compute.hosts import Cloud, One

FIT = NodeFacts(
    NodeId('node-0'),
    resource_class='metal',
    provision_state='available',
    power_state='power off',
)
N, C1 = NodeId('node-0'), Host('c1')


def _just_started() -> tuple[Cloud, One]:
    """A host that has read its rows, and nothing of Ironic yet."""
    cloud = Cloud([N])
    cloud.nodes[N] = FIT
    cloud.nova.rows[N] = NodeRecord(cloud.nova.new_id(), N, C1, 1)
    return cloud, cloud.add(C1)


def _tracker(
    cloud: Any, one: One, rows: Any, confirm_timeout_s: float = 0.0
) -> BareMetalTracker:
    return BareMetalTracker(
        one.host,
        one.held_nodes,
        one.claims,
        rows,
        cloud,
        None,
        confirm_timeout_s,
    )


def _claim(cloud: Cloud, one: One, save: Any, allocations: Any = None) -> Any:
    instance = types.SimpleNamespace(uuid='server', save=save)
    tracker = _tracker(cloud, one, one.rows)
    return tracker.instance_claim(None, instance, N, allocations)


def test_build_that_waited_is_claimed_before_the_first_list() -> None:
    """It does not burn one of its few alternates for that."""
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
def test_claim_knows_what_nova_saw_of_the_provider(
    allocations: Any, generation: int | None
) -> None:
    """And makes do without what Nova could not find out."""
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
    """What Ironic says then is what is gone by, and an error is no answer."""
    cloud, one = _just_started()
    cloud.nodes[N] = dataclasses.replace(FIT, maintenance=True)
    if trouble is not None:
        cloud.hidden[N] = trouble
    with pytest.raises(
        nova_exception.ComputeResourcesUnavailable, match=sentence
    ):
        _claim(cloud, one, save=pytest.fail)
    assert one.claims.consumer(N) is None


def test_claim_that_fails_is_reported_once_it_is_gone() -> None:
    """News of the node came while the record was saved, and told of it."""
    cloud, one = _just_started()
    seen: list[Claim | None] = []
    one.submit = lambda facts, situation: seen.append(situation.claim)  # type: ignore[method-assign]

    def save() -> None:
        one.held_nodes.accept_facts(dataclasses.replace(FIT, name='new'))
        raise nova_exception.InstanceNotFound(instance_id='server')

    with pytest.raises(nova_exception.InstanceNotFound):
        _claim(cloud, one, save)
    assert seen[-2:] == [Claim('server'), None]


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
    """A server that was shelved has its host and node still, then."""
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
    """A worker after one that created and offered the node a moment ago."""
    cloud, one = _just_started()
    cloud.nova.rows[N].stats = {NEW: f'{cloud.clock.wall_s():.0f}'}
    one.held_nodes.drop_node(N)
    one.held_nodes.load_rows()
    assert one.held_nodes.unconfirmed_rows.nodes() == {N}
    return cloud, one


def _claim_meanwhile(
    renewed: tuple[Cloud, One], event: Callable[[], None]
) -> None:
    """Have something happen while a build waits for its node's record."""
    cloud, one = renewed
    instance = types.SimpleNamespace(uuid='server', save=lambda: None)
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
    """To be sent on would burn an alternate; three of those are an error."""
    _, one = renewed
    row = one.held_nodes.row(N)
    _claim_meanwhile(renewed, lambda: one.held_nodes.confirm_row(N, row))
    assert one.claims.consumer(N) == 'server'


def test_build_waits_no_longer_for_a_node_that_turns_out_not_ours(
    renewed: tuple[Cloud, One],
) -> None:
    """Its record was read again, and names another host."""
    _, one = renewed
    with pytest.raises(
        nova_exception.ComputeResourcesUnavailable, match='not held'
    ):
        _claim_meanwhile(renewed, lambda: one.held_nodes.confirm_row(N, None))
    assert one.claims.consumer(N) is None


def test_build_goes_elsewhere_if_the_record_stays_unconfirmed(
    renewed: tuple[Cloud, One],
) -> None:
    """As when nova-conductor does not answer us."""
    cloud, one = renewed
    with pytest.raises(
        nova_exception.ComputeResourcesUnavailable, match='not confirmed'
    ):
        _claim(cloud, one, save=pytest.fail)
    assert one.claims.consumer(N) is None


def test_failed_builds_are_counted_under_the_lock_of_the_node() -> None:
    """The same row may be described, or given away, at this moment."""
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

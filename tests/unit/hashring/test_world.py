# SPDX-License-Identifier: Apache-2.0
"""Several agents under seeded faults: safe always, live afterwards."""

import pytest

from tests.unit.hashring import coordination, world

KINDS = {
    'etcd': (coordination.ETCD, False),
    'cache': (coordination.CACHE, True),
    'zookeeper': (coordination.ZOOKEEPER, False),
    # No real service is like this one; only the lease protects an agent on it.
    'reviving': (coordination.ETCD, True),
}
# Each of these seeds once failed, or fails if one rule is removed.
KEPT_SEEDS = (2, 5, 8, 14, 22, 31, 39, 42, 56, 89, 114, 191, 224)
KEPT_MIXED_SEEDS = (1, 2, 3, 4, 62)


@pytest.mark.parametrize('kind', KINDS)
@pytest.mark.parametrize('first', range(0, 50, 10))
def test_one_worker_a_host(kind: str, first: int) -> None:
    """No seed gives a host two open gates, or leaves one unserved."""
    traits, revives = KINDS[kind]
    for seed in range(first, first + 10):
        world.run(seed, traits, revives=revives)


@pytest.mark.parametrize('short_s', [10.0, 15.0])
def test_host_of_an_agent_with_a_longer_term(short_s: float) -> None:
    """A host is adopted after its agent's term, which may be longer."""
    made = world.World(
        1, coordination.CACHE, 2, revives=True, terms_s=(short_s, 40.0)
    )
    made.heal()
    _run(made, 100.0)
    one, two = made.machines
    two.cut_until_s = made.now_s + 90.0
    made.service.forget()
    _run(made, 80.0)
    assert two.home in one.workers.live
    _run(made, 100.0)
    assert made.find_problem() is None


@pytest.mark.parametrize('kind', sorted(KINDS.keys() - {'zookeeper'}))
def test_host_of_an_agent_whose_loop_hangs(kind: str) -> None:
    """Its workers may not act, so its heartbeats must not keep its locks.

    ZooKeeper's client library keeps them for as long as the process lives.
    """
    traits, revives = KINDS[kind]
    made = world.World(1, traits, 2, revives=revives)
    made.heal()
    _run(made, 60.0)
    one, two = made.machines
    one._busy.add('turn')
    _run(made, 60.0)
    assert one.home in two.workers.live
    one._busy.discard('turn')
    _run(made, 90.0)
    assert made.find_problem() is None


@pytest.mark.parametrize('cut_s', [2.0, 20.0, 45.0, 60.0])
def test_agent_that_reads_its_first_list_late(cut_s: float) -> None:
    """It was started without a route; the other one renewed its lease."""
    made = world.World(
        1, coordination.CACHE, 2, revives=True, terms_s=(10.0, 40.0)
    )
    made.heal()
    _run(made, 100.0)
    one, two = made.machines
    one.kill(0.5)
    one.cut_until_s = made.now_s + cut_s
    _run(made, cut_s)
    made.service.forget()
    two.cut_until_s = made.now_s + 90.0
    _run(made, 80.0)
    assert two.home in one.workers.live


def _run(made: world.World, seconds: float) -> None:
    """Let time pass; each step checks safety."""
    for _ in range(int(seconds / world.STEP_S)):
        made.step()


def test_mixed_seeds() -> None:
    """Agents with different terms are safe on a backend that forgets."""
    for seed in KEPT_MIXED_SEEDS:
        world.run(
            seed,
            coordination.CACHE,
            revives=True,
            terms_s=(10.0, 40.0),
            storm_s=300.0,
        )


@pytest.mark.parametrize('kind', KINDS)
def test_kept_seeds(kind: str) -> None:
    """Seeds that once found a bug pass."""
    traits, revives = KINDS[kind]
    for seed in KEPT_SEEDS:
        world.run(seed, traits, revives=revives)


def test_same_seed_same_story() -> None:
    """The same seed gives the same story twice."""
    stories = [world.run(7, coordination.ETCD).story for _ in range(2)]
    assert stories[0] == stories[1]

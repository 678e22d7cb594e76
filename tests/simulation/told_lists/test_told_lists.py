# SPDX-License-Identifier: Apache-2.0
"""Some walks break nothing, and each planted defect is detected."""

import pytest

from tests.simulation.told_lists import defects, walk

SEEDS = range(40)


@pytest.mark.parametrize('seed', SEEDS)
def test_walk(seed: int) -> None:
    """Told lists lose no node, remove none and leave no facts outdated."""
    assert walk.live(seed) == []


@pytest.mark.parametrize('name', defects.SEEDS)
def test_defect_is_seen(name: str) -> None:
    """A walk with the planted defect fails.

    A change of the real modules may have made the recorded seed useless; then
    all others are tried.
    """
    seeds = [defects.SEEDS[name], *SEEDS]
    assert any(walk.live(seed, defects.PARTS[name]) for seed in seeds)

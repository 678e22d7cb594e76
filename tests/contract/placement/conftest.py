# SPDX-License-Identifier: Apache-2.0
"""Fixtures: each test runs on the fake Placement and on the real one."""

import pytest

from tests.contract.placement.services import real_placement
from tests.fakes.placement import FakePlacement


@pytest.fixture(params=['fake', 'real'])
def placement(request):
    """Return the fake Placement, or the real one in this process."""
    if request.param == 'fake':
        yield FakePlacement()
        return
    with real_placement() as placement:
        yield placement


@pytest.fixture
def real():
    """Return the real Placement, for requests that the fake does not have."""
    with real_placement() as placement:
        yield placement

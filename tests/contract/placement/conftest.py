# SPDX-License-Identifier: Apache-2.0
"""Each test runs twice: on our fake Placement and on the real one."""

import pytest

from tests.contract.placement.services import real_placement
from tests.fakes.placement import FakePlacement


@pytest.fixture(params=['fake', 'real'])
def placement(request):
    """Placement: our fake, or the real one in this process."""
    if request.param == 'fake':
        yield FakePlacement()
        return
    with real_placement() as placement:
        yield placement


@pytest.fixture
def real():
    """The real Placement, for what the fake has no part in."""
    with real_placement() as placement:
        yield placement

# SPDX-License-Identifier: Apache-2.0
"""Each test runs twice: on our fake Ironic and on a real one."""

import pathlib
import tempfile

import nova.conf
import pytest

from tests.contract.ironic.server import real_ironic
from tests.contract.ironic.worlds import FakeWorld, RealWorld


@pytest.fixture(scope='package')
def server():
    """Run one real Ironic for all tests."""
    pytest.importorskip('ironic')
    with (
        tempfile.TemporaryDirectory(prefix='ironic-') as folder,
        real_ironic(pathlib.Path(folder)) as running,
    ):
        yield running


@pytest.fixture
def real(server):
    """Offer the real Ironic alone."""
    options = {
        'auth_type': 'none',
        'endpoint_override': server.url,
        'api_max_retries': 0,
        'api_retry_interval': 0,
    }
    for name, value in options.items():
        nova.conf.CONF.set_override(name, value, group='ironic')
    yield RealWorld(server)
    for name in options:
        nova.conf.CONF.clear_override(name, group='ironic')


@pytest.fixture(params=['fake', 'real'])
def world(request):
    """Offer an Ironic: our fake, or the real one."""
    if request.param == 'fake':
        return FakeWorld()
    return request.getfixturevalue('real')

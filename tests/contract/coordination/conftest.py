# SPDX-License-Identifier: Apache-2.0
"""Fixtures: the file backend, the fake, and each installed server."""

import itertools
from collections.abc import Iterator

import pytest

from tests.contract.coordination import backends, servers

NAMES = ('fake', 'file', *servers.KINDS)
_pools = itertools.count(1)


@pytest.fixture(scope='session', params=NAMES)
def shared(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[backends.BackendUnderTest]:
    """Each backend; a server is started once for all tests."""
    name = request.param
    folder = tmp_path_factory.mktemp(name)
    if name == 'fake':
        yield backends.Fake()
        return
    if name == 'file':
        yield backends.over_folder(folder)
        return
    kind = servers.KINDS[name]
    if not kind.installed():
        pytest.skip(f'{name} is not installed')
    server = servers.Server(kind, folder)
    server.start()
    yield backends.Tooz(name, server.url, server)
    server.stop()


@pytest.fixture
def backend(
    shared: backends.BackendUnderTest,
) -> Iterator[backends.BackendUnderTest]:
    """The backend, with a group of its own for each test."""
    if isinstance(shared, backends.Fake):
        yield backends.Fake()
        return
    assert isinstance(shared, backends.Tooz)
    shared.pool = f'group/{next(_pools)} of a test'
    yield shared

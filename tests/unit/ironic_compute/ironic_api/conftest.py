# SPDX-License-Identifier: Apache-2.0
"""Fixtures: the client of an Ironic whose HTTP answers a test scripts."""

import pytest
import requests_mock as requests_mock_lib
from nova import conf as nova_conf
from oslo_config import fixture as config_fixture

from ironic_compute.gate import Gate
from ironic_compute.ironic_api.client import make_client
from tests.unit.ironic_compute.ironic_api.scripted_http import (
    URL,
    ScriptedHttp,
    versions,
)


class CountingGate:
    """An open gate that counts the changes that pass it."""

    def __init__(self) -> None:
        self.passed_count = 0

    def is_open(self) -> bool:
        """Return that the lease is in force."""
        return True

    def wait(self) -> None:
        """Count a change; do not block."""
        self.passed_count += 1


@pytest.fixture
def conf():
    """Return Nova's options, for an Ironic without credentials."""
    with config_fixture.Config(nova_conf.CONF) as fixture:
        fixture.config(
            group='ironic',
            auth_type='none',
            endpoint_override=URL,
            api_max_retries=2,
            api_retry_interval=0,
        )
        yield nova_conf.CONF
    # The fixture leaves the options unparsed, and other tests need them.
    nova_conf.CONF([], default_config_files=[], default_config_dirs=[])


@pytest.fixture
def http():
    """Return a scripted Ironic whose API ends at 1.95."""
    with requests_mock_lib.Mocker() as mocker:
        scripted = ScriptedHttp(mocker)
        versions(scripted, '1.95')
        yield scripted


@pytest.fixture
def gate() -> Gate:
    """Return an open gate that counts the changes."""
    return CountingGate()


@pytest.fixture
def client(conf, http, gate):
    """Return a client of the scripted Ironic."""
    return make_client(conf, gate)

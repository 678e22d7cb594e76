# SPDX-License-Identifier: Apache-2.0
"""Which Placement gives one node to several consumers, on a real MariaDB."""

import contextlib
import pathlib
import sys
import uuid
from collections.abc import Callable, Iterator

import pytest
import requests
from keystoneauth1 import adapter, session, token_endpoint

from hashring.clock import SystemClock
from ironic_compute.cmd import placement_probe
from ironic_compute.cmd.placement_probe import PlacementProbe
from tests.contract import children
from tests.contract.placement import mariadb, server
from tests.free_ports import find_free_ports

pytestmark = pytest.mark.slow
_START_TIMEOUT_S = 60.0
_RUNS_COUNT = 2


def _await(is_ready: Callable[[], bool], log: pathlib.Path) -> None:
    clock = SystemClock()
    ends_s = clock.now_s() + _START_TIMEOUT_S
    while not is_ready():
        assert clock.now_s() < ends_s, log.read_text()
        clock.sleep(0.2)


@pytest.fixture(scope='module')
def database(
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[mariadb.MariaDB]:
    """A MariaDB that answers."""
    if not mariadb.is_installed():
        pytest.skip('MariaDB or PyMySQL is not installed')
    folder = tmp_path_factory.mktemp('mariadb')
    database = mariadb.MariaDB(folder)
    database.start()

    _await(lambda: database.executes('SELECT 1'), folder / 'output.log')
    yield database
    database.stop()


class _Service:
    """A Placement program on a database of its own."""

    def __init__(
        self, database: mariadb.MariaDB, folder: pathlib.Path, options: str
    ) -> None:
        name = f'placement{uuid.uuid4().hex}'
        assert database.executes(
            f'CREATE DATABASE {name} CHARACTER SET utf8mb3'
        )
        self.url = f'http://127.0.0.1:{find_free_ports(1)}'
        config = folder / 'placement.conf'
        config.write_text(
            f'[api]\nauth_strategy = noauth2\n'
            f'[placement_database]\nconnection = {database.url(name)}\n'
            f'sync_on_startup = False\n[placement]\n{options}\n'
        )
        port = self.url.rpartition(':')[2]
        log = folder / 'placement.log'
        with log.open('ab') as output:
            self._process = children.start(
                [sys.executable, '-m', server.__name__, port, config],
                stdout=output,
                stderr=output,
            )
        _await(self._is_ready, log)

    def _is_ready(self) -> bool:
        with contextlib.suppress(requests.ConnectionError):
            return requests.get(self.url, timeout=5).status_code == 200
        return False

    def adapter(self) -> adapter.Adapter:
        """Return a client's adapter."""
        auth = token_endpoint.Token(self.url, 'admin')
        return adapter.Adapter(
            session.Session(auth), service_type='placement', raise_exc=False
        )

    def stop(self) -> None:
        """Kill it."""
        self._process.kill()
        self._process.wait()


@pytest.fixture
def start(
    database: mariadb.MariaDB, tmp_path: pathlib.Path
) -> Iterator[Callable[[str, str], _Service]]:
    """Starts Placement with options, and MariaDB's snapshot isolation."""
    services = []

    def start(options: str, snapshot_isolation: str) -> _Service:
        assert database.executes(
            f'SET GLOBAL innodb_snapshot_isolation = {snapshot_isolation}'
        )
        services.append(_Service(database, tmp_path, options))
        return services[-1]

    yield start
    for service in services:
        service.stop()


def _probe(service: _Service) -> list[int | None]:
    """Return the results of two probes, 20 tries in each."""
    return [
        PlacementProbe(service.adapter()).run() for _ in range(_RUNS_COUNT)
    ]


def test_defaults_give_one_node_to_several_consumers(
    start: Callable[[str, str], _Service],
) -> None:
    """REPEATABLE READ hides the other consumer from Placement's next try."""
    probe = PlacementProbe(start('', 'OFF').adapter())
    assert probe.run() is not None


def test_without_retries_a_node_has_one_consumer(
    start: Callable[[str, str], _Service],
) -> None:
    """The conflict goes back to the scheduler, which takes another node."""
    service = start('allocation_conflict_retry_count = 1', 'OFF')
    assert _probe(service) == [None] * _RUNS_COUNT


def test_with_snapshot_isolation_a_node_has_one_consumer(
    start: Callable[[str, str], _Service],
) -> None:
    """MariaDB itself refuses to build on an outdated snapshot."""
    assert _probe(start('', 'ON')) == [None] * _RUNS_COUNT


def test_probe_leaves_nothing(start: Callable[[str, str], _Service]) -> None:
    """No provider, no resource class, and so no allocation."""
    service = start('', 'OFF')
    PlacementProbe(service.adapter()).run()
    found = service.adapter().get(
        '/resource_providers', microversion=placement_probe.MICROVERSION
    )
    assert found.json()['resource_providers'] == []
    classes = service.adapter().get(
        '/resource_classes', microversion=placement_probe.MICROVERSION
    )
    names = {each['name'] for each in classes.json()['resource_classes']}
    assert 'VCPU' in names
    assert placement_probe.RESOURCE_CLASS not in names

# SPDX-License-Identifier: Apache-2.0
"""What a worker passes on of Nova's Service records and aggregates."""

import types
from typing import Any

import pytest

from hashring.ring import Host
from hashring.workers import ServiceFacts, WorkerView
from ironic_compute.pool.service_watcher import ServiceWatcher
from ironic_compute.pool.view import PoolView
from tests.fakes.clock import ManualClock

C1, C2 = Host('c1'), Host('c2')


class _Services:
    """Nova's Service records: host -> (disabled, mapped)."""

    def __init__(self, **hosts: tuple[bool, bool]) -> None:
        self.hosts = {Host(host): has for host, has in hosts.items()}
        self.error: Exception | None = None

    def read_records(self) -> None:
        """See ServiceDirectory."""
        if self.error is not None:
            raise self.error

    def find_record(self, host: Host) -> Any | None:
        """See ServiceDirectory."""
        found = self.hosts.get(host)
        return found and types.SimpleNamespace(disabled=found[0])

    def facts(self, hosts: Any) -> dict[Host, ServiceFacts]:
        """See ServiceDirectory."""
        return {host: self._facts(host) for host in hosts}

    def _facts(self, host: Host) -> ServiceFacts:
        disabled, mapped = self.hosts.get(host, (False, False))
        return ServiceFacts(mapped, disabled, exists=host in self.hosts)


class _Watched:
    """A watcher on host c1, and all that it has passed on."""

    def __init__(self, services: _Services) -> None:
        clock = ManualClock(start_s=100.0)
        pool = PoolView(clock)
        pool.update(WorkerView(1e9, (C1, C2), 0.0, known=(C1, C2)))
        self.sent: list[dict[Host, ServiceFacts]] = []
        self.status: dict[str, Any] = {}
        nova: Any = services
        self.watcher = ServiceWatcher(
            C1,
            nova,
            pool,
            clock,
            send_facts=self.sent.append,
            has_servers=lambda: True,
            update_host_status=self.status.update,
            interval_s=60.0,
            aggregates_interval_s=0,
        )


def test_facts_of_all_known_hosts_go_to_the_agent() -> None:
    """The providers show that the worker's own host is disabled."""
    watched = _Watched(_Services(c1=(True, True), c2=(False, True)))
    assert watched.watcher.try_read() == 60.0
    (facts,) = watched.sent
    assert facts[C1].disabled
    assert not facts[C2].disabled
    assert (facts[C1].has_servers, facts[C2].has_servers) == (True, None)
    assert watched.status == {'disabled': True}


def test_services_are_read_sooner_while_a_host_is_not_mapped() -> None:
    """A host without a Service record does not count as unmapped."""
    services = _Services(c1=(False, False))
    watched = _Watched(services)
    assert watched.watcher.try_read() == 2.0
    services.hosts[C1] = (False, True)
    assert watched.watcher.try_read() == 60.0


def test_a_nova_that_is_away_is_read_again_later(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Nothing is sent; the error is logged."""
    services = _Services(c1=(False, True))
    services.error = TimeoutError('no conductor')
    watched = _Watched(services)
    assert watched.watcher.try_read() == 60.0
    assert watched.sent == []
    assert 'no conductor' in caplog.text

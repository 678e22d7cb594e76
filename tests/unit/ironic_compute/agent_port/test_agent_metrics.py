# SPDX-License-Identifier: Apache-2.0
"""The agent's metrics say what its status says."""

import dataclasses
import pathlib
import re

import pytest
from prometheus_client import parser

from hashring.heartbeat import HeartbeatState
from hashring.paths import Path
from hashring.ring import Host
from ironic_compute.agent_port.agent_metrics import BackendMetrics, describe
from ironic_compute.metrics import Metrics
from resource_tracker.node import NodeFacts, NodeId
from tests.fakes.clock import ManualClock
from tests.unit.ironic_compute.agent_port import pools
from tests.unit.ironic_compute.agent_port.statuses import (
    C1,
    C3,
    LEASE,
    NOW_S,
    SECRET,
    STATUS,
    changed,
)

ROOT = pathlib.Path(__file__).parents[4]
# No heartbeat has counted since the agent joined.
NOT_YET = HeartbeatState(LEASE.joined(NOW_S))


def samples(text: str) -> dict[str, float]:
    """Return the samples of a text, by name and labels."""
    found = {}
    for family in parser.text_string_to_metric_families(text):
        for sample in family.samples:
            labels = ','.join(
                f'{name}={value}'
                for name, value in sorted(sample.labels.items())
            )
            name = sample.name.removeprefix('ironic_compute_agent_')
            found[f'{name}{{{labels}}}'] = sample.value
    return found


def test_each_metric_has_its_value() -> None:
    """All metrics of one agent, except the buckets."""
    text = describe(STATUS, {C1: True, C3: False}, NOW_S)
    found = samples(text)
    assert {k: v for k, v in found.items() if '_bucket' not in k} == {
        'info{home=c1,version=1.2}': 1,
        'last_turn_seconds{}': 0.5,
        'lease_in_force{}': 1,
        'ready{}': 0,
        'heartbeat_age_seconds{}': 2,
        'half_alive{}': 0,
        'members{}': 2,
        f'ring_info{{digest={STATUS.ring.digest}}}': 1,
        'ring_hosts{}': 2,
        'ring_agreed{}': 1,
        'hosts_known{}': 3,
        'hosts_served_here{}': 1,
        'hosts_served_by_nobody{}': 1,
        'host_served{host=c1}': 1,
        'host_served{host=c2}': 0,
        'host_served{host=c3}': 1,
        'findings{check=host-not-served}': 1,
        'findings{check=rings-differ}': 1,
        'lease_lapses_total{}': 3,
        'adoptions_total{}': 2,
        'hand_backs_total{}': 1,
        'adoption_seconds_count{}': 2,
        'adoption_seconds_sum{}': 212,
        'worker_starts_total{host=c1}': 4,
        'worker_starts_total{host=c3}': 2,
        'worker_exits_total{host=c1,status=-9}': 2,
        'worker_exits_total{host=c3,status=killed}': 1,
        'worker_metrics_read{host=c1}': 1,
        'worker_metrics_read{host=c3}': 0,
    }
    assert found['adoption_seconds_bucket{le=10.0}'] == 0
    assert found['adoption_seconds_bucket{le=15.0}'] == 1
    assert found['adoption_seconds_bucket{le=+Inf}'] == 2
    assert SECRET not in text


@pytest.mark.parametrize(
    ('name', 'value', 'changes'),
    [
        ('lease_in_force{}', 0, {'heartbeat': NOT_YET}),
        ('ready{}', 0, {'heartbeat': NOT_YET}),
        ('ready{}', 0, {'turned_at_s': NOW_S - 6.0}),
        ('ready{}', 1, {'hosts': STATUS.hosts[:1]}),
        ('half_alive{}', 1, {'lost_path': Path('Neutron')}),
        ('ring_agreed{}', 0, {'agreed_since_s': None}),
        ('hosts_served_here{}', 0, {'deadline_s': 0.0}),
    ],
)
def test_trouble_shows(
    name: str, value: float, changes: dict[str, object]
) -> None:
    """Each gauge that an alert watches changes with its cause."""
    assert samples(describe(changed(**changes), {}, NOW_S))[name] == value


def test_findings_have_the_names_of_fsck() -> None:
    """An unserved host, and rings that differ."""
    good = samples(describe(pools.well().status, {}, NOW_S))
    assert good['findings{check=host-not-served}'] == 0
    assert good['findings{check=rings-differ}'] == 0
    bad = samples(describe(pools.troubled().status, {}, NOW_S))
    assert bad['findings{check=host-not-served}'] == 2
    assert bad['findings{check=rings-differ}'] == 1


def test_no_heartbeat_has_no_age() -> None:
    """An alert on the age does not see a false zero."""
    found = samples(describe(changed(heartbeat=NOT_YET), {}, NOW_S))
    assert 'heartbeat_age_seconds{}' not in found


def test_a_strange_name_stays_one_label() -> None:
    """Quotes and line ends in a version or a host are escaped."""
    me = dataclasses.replace(STATUS.me, version='1"\n# HELP x')
    found = samples(describe(changed(me=me), {}, NOW_S))
    assert found['info{home=c1,version=1"\n# HELP x}'] == 1


def test_the_manual_has_each_metric_of_agent_and_worker() -> None:
    """Its list has each name, and no other."""
    manual = (ROOT / 'doc/source/admin/port.rst').read_text()
    titles = re.findall('^``ironic_compute_.*``$', manual, re.MULTILINE)
    listed = {n for title in titles for n in re.findall('``(.+?)``', title)}
    clock = ManualClock()
    backend, worker = BackendMetrics(clock), Metrics('c1', clock)
    worker.register_gauges(Nothing())
    worker.register_paths(dict)
    worker.register_findings(dict)
    text = describe(STATUS, {}, NOW_S) + backend.text()
    text += worker.text().decode()
    names = set(re.findall('^# HELP (\\S+)', text, re.MULTILINE))
    assert listed == {n for n in names if not n.endswith('_created')}


class Nothing:
    """A worker that holds no node."""

    def held_facts(self) -> tuple[NodeFacts, ...]:
        return ()

    def pinned_count(self) -> int:
        return 0

    def waiting(self) -> tuple[int, float]:
        return 0, 0.0

    def misplaced(self) -> dict[NodeId, Host]:
        return {}


def test_backend_requests_are_timed_and_errors_counted() -> None:
    """A request that fails counts in both; the error goes on."""
    clock = ManualClock()
    metrics = BackendMetrics(clock)
    with metrics.time('heartbeat'):
        clock.advance(0.25)
    assert (
        samples(metrics.text())['backend_errors_total{request=heartbeat}'] == 0
    )
    with pytest.raises(OSError), metrics.time('heartbeat'):
        clock.advance(3.0)
        raise OSError
    found = samples(metrics.text())
    assert found['backend_request_seconds_count{request=heartbeat}'] == 2
    assert found['backend_request_seconds_sum{request=heartbeat}'] == 3.25
    assert found['backend_errors_total{request=heartbeat}'] == 1

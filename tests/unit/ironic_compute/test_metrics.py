# SPDX-License-Identifier: Apache-2.0
"""Metrics of a worker, and the address that serves them."""

import logging
import types
import urllib.request

import pytest
from oslo_config import cfg

from hashring.clock import SystemClock
from hashring.paths import Path, PathState
from ironic_compute import catalogue, errors, opts
from ironic_compute.agent_port import worker_metrics
from ironic_compute.metrics import Metrics
from resource_tracker.node import NodeFacts
from tests.fakes.clock import ManualClock
from tests.free_ports import find_free_ports

NODE = '11111111-1111-1111-1111-111111111111'


class Watched:
    """Two nodes, and one change that waits."""

    def held_facts(self):
        """See metrics.Watched."""
        return [
            NodeFacts(
                uuid=NODE,
                provision_state='active',
                resource_class='gold',
                instance_uuid='s1',
            ),
            NodeFacts(uuid='n2', maintenance=True),
        ]

    def pinned_count(self):
        """See metrics.Watched."""
        return 4

    def waiting(self):
        """See metrics.Watched."""
        return 1, 2.5

    def misplaced(self):
        """See metrics.Watched; one node has gone since."""
        return {NODE: 'c2', 'n2': 'c3', 'gone': 'c3'}


@pytest.fixture
def clock():
    """A clock that a test moves."""
    return ManualClock()


@pytest.fixture
def metrics(clock):
    """Those of host c1."""
    return Metrics('c1', clock)


def value(metrics, name, **labels):
    """Return one sample, None if there is none."""
    return metrics.registry.get_sample_value(
        f'ironic_compute_{name}', {'host': 'c1', **labels}
    )


def test_requests_to_placement_are_counted_by_result(metrics):
    """Conflicts and successes are counted separately."""
    metrics.count_request('PUT', 'traits', '200', 0.02)
    metrics.count_request('PUT', 'traits', '409', 0.03)
    labels = {'method': 'PUT', 'what': 'traits', 'status': '409'}
    name = 'placement_request_seconds'
    assert value(metrics, f'{name}_count', **labels) == 1
    assert value(metrics, f'{name}_sum', **labels) == 0.03


def test_requests_to_ironic_are_timed_without_the_nodes_name(metrics, clock):
    """Thousands of nodes must not make thousands of series."""
    with metrics.time_ironic_request(f'read node {NODE}'):
        clock.advance(0.5)
    with (
        pytest.raises(errors.IronicUnavailable),
        metrics.time_ironic_request(f'read node {NODE}'),
    ):
        raise errors.IronicUnavailable('away')
    name = 'ironic_request_seconds'
    labels = {'what': 'read node', 'result': 'ok'}
    assert value(metrics, f'{name}_sum', **labels) == 0.5
    labels = {'what': 'read node', 'result': 'IronicUnavailable'}
    assert value(metrics, f'{name}_count', **labels) == 1


def test_reports_and_drift_are_counted(metrics):
    """A report counts with its duration, drift with its number."""
    metrics.count_report(0.2)
    metrics.count_drift(0)
    metrics.count_drift(3)
    assert value(metrics, 'report_seconds_count') == 1
    assert value(metrics, 'report_seconds_sum') == 0.2
    assert value(metrics, 'audit_drift_total') == 3


def test_lost_builds_are_counted_from_none(metrics):
    """The series exists before the first one, so that its increase shows."""
    assert value(metrics, 'builds_lost_total') == 0
    metrics.count_lost_build()
    assert value(metrics, 'builds_lost_total') == 1


def test_findings_are_counted_by_the_names_of_fsck(metrics):
    """Those that nothing is found of are there, too."""
    metrics.register_findings(
        lambda: {catalogue.DEPLOY_FAILED: 2, catalogue.ROW_WITHOUT_NODE: 0}
    )
    assert value(metrics, 'findings', check='failed-without-server') == 2
    assert value(metrics, 'findings', check='record-without-node') == 0


def test_states_are_looked_at_when_asked(metrics):
    """Gauges of nodes and of waiting changes are computed on read."""
    metrics.register_gauges(Watched())
    gold = {'state': 'active', 'maintenance': 'false'}
    assert value(metrics, 'nodes', resource_class='gold', **gold) == 1
    unknown = {'state': 'unknown', 'maintenance': 'true'}
    assert value(metrics, 'nodes', resource_class='', **unknown) == 1
    assert value(metrics, 'pinned_nodes') == 4
    assert value(metrics, 'dirty_nodes') == 1
    assert value(metrics, 'oldest_dirty_seconds') == 2.5
    assert value(metrics, 'servers') == 1
    name = 'misplaced_nodes'
    assert value(metrics, name, target='c2', server='true') == 1
    assert value(metrics, name, target='c3', server='false') == 1
    assert value(metrics, name, target='c3', server='true') is None


def test_paths_show_for_how_long_they_have_failed(metrics, clock):
    """A path that works shows 0; one that was not used yet is missing."""
    states = {
        Path('RabbitMQ'): PathState(clock.now_s(), 'refused'),
        Path('Ironic'): PathState(),
    }
    metrics.register_paths(lambda: states)
    clock.advance(7)
    assert value(metrics, 'path_failing_seconds', path='RabbitMQ') == 7
    assert value(metrics, 'path_failing_seconds', path='Ironic') == 0
    assert value(metrics, 'path_failing_seconds', path='Placement') is None


def test_off_and_on_loopback_unless_told():
    """No port is open by default; the default address is loopback."""
    conf = cfg.ConfigOpts()
    opts.register_opts(conf)
    conf([])
    for name in ('agent', 'metrics'):
        assert conf.ironic_compute[f'{name}_port'] == 0
        assert conf.ironic_compute[f'{name}_address'] == '127.0.0.1'


def test_second_worker_takes_the_next_port(metrics, clock):
    """Two workers of a machine use two ports and two host labels."""
    port = find_free_ports(2)
    first = metrics.serve_port('127.0.0.1', port)
    second = Metrics('c2', clock).serve_port('127.0.0.1', port)
    assert port <= first < second
    url = f'http://127.0.0.1:{second}/metrics'
    with urllib.request.urlopen(url) as answer:
        assert 'host="c2"' in answer.read().decode()


def test_the_agent_gets_what_the_port_serves(metrics, clock):
    """Neither needs the other; without both nothing is opened."""
    channel, end = worker_metrics.make_channel()
    options = types.SimpleNamespace(metrics_port=0)
    metrics.serve(options, None, is_first=True)
    metrics.serve(options, end.detach(), is_first=True)
    metrics.count_drift(3)
    texts = worker_metrics.read_all({'c1': channel}, SystemClock(), 20.0)
    assert 'audit_drift_total{host="c1"} 3.0' in texts['c1']
    assert texts['c1'].startswith(metrics.text().decode())


@pytest.mark.parametrize(('is_first', 'offset'), [(True, 0), (False, 1)])
def test_an_adopted_host_leaves_the_port_of_the_home_host(
    metrics, is_first, offset
):
    """The home host's worker may start later."""
    port = find_free_ports(2)
    options = types.SimpleNamespace(
        metrics_port=port, metrics_address='127.0.0.1'
    )
    metrics.serve(options, None, is_first=is_first)
    with pytest.raises(OSError):
        urllib.request.urlopen(f'http://127.0.0.1:{port + 1 - offset}/')
    with urllib.request.urlopen(f'http://127.0.0.1:{port + offset}/') as got:
        assert 'host="c1"' in got.read().decode()


def test_address_that_is_not_ours_is_said(metrics, caplog):
    """An address of another machine is logged; the worker goes on."""
    caplog.set_level(logging.WARNING)
    assert metrics.serve_port('192.0.2.1', find_free_ports(2)) is None
    assert len(caplog.messages) == 1

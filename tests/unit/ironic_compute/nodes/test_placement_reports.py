# SPDX-License-Identifier: Apache-2.0
"""Reports to Placement: the file of each host, audits and gauges."""

import logging
import types

import pytest
from oslo_config import cfg

from hashring.ring import Host
from ironic_compute import opts
from ironic_compute.nodes import placement_reports
from ironic_compute.nodes.pins import Pin, set_pin
from resource_tracker.errors import PlacementUnavailable
from resource_tracker.node import NodeFacts


class Reconciler:
    """Gives a scripted result of the audit."""

    def __init__(self, found):
        self._found = found

    def audit_providers(self):
        """Return or raise the scripted result."""
        if isinstance(self._found, Exception):
            raise self._found
        return self._found

    def backlog(self):
        """Return two changes, the oldest 7.5 s old."""
        return 2, 7.5


@pytest.mark.parametrize(
    ('found', 'level'),
    [
        (0, None),
        (3, logging.INFO),
        (PlacementUnavailable('no answer'), logging.WARNING),
    ],
)
def test_audit_logs_what_it_found(caplog, found, level):
    """No difference is not logged, and an error is only logged."""
    caplog.set_level(logging.DEBUG)
    placement_reports.audit_providers(Reconciler(found))
    assert [r.levelno for r in caplog.records] == ([level] if level else [])


def test_each_host_has_a_file_of_its_own():
    """One machine may run the workers of several hosts."""
    conf = cfg.ConfigOpts()
    opts.register_opts(conf)
    conf([])
    paths = {
        placement_reports.disk_cache_path(conf, host) for host in ('c1', 'c2')
    }
    assert len(paths) == 2
    state_path = conf.ironic_compute.state_path
    assert all(str(path).startswith(state_path) for path in paths)


def test_files_of_nova_about_providers_are_named(caplog, tmp_path):
    """They were ignored without a word, unlike by Nova's own tracker."""
    for folder in (tmp_path, tmp_path / 'none', ''):
        placement_reports.warn_of_provider_files(str(folder))
    assert caplog.records == []
    (tmp_path / 'racks.yaml').touch()
    placement_reports.warn_of_provider_files(str(tmp_path))
    assert 'racks.yaml' in caplog.text


def test_gauges_are_the_held_nodes_and_the_backlog():
    """They are computed at the time of the call."""
    pinned, free = (types.SimpleNamespace(stats={}) for _ in range(2))
    set_pin(pinned, Pin(Host('c1'), 'ann'))
    held_nodes = types.SimpleNamespace(
        rows=lambda: {'n1': pinned, 'n2': free},
        facts={'n1': NodeFacts(uuid='n1')}.get,
    )
    watched = placement_reports.WorkerGauges(
        held_nodes, Reconciler(0), lambda: {'n1': 'c2'}
    )
    assert watched.pinned_count() == 1
    assert [facts.uuid for facts in watched.held_facts()] == ['n1']
    assert watched.waiting() == (2, 7.5)
    assert watched.misplaced() == {'n1': 'c2'}

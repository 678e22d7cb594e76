# SPDX-License-Identifier: Apache-2.0
"""How reports are put together, and what an audit says."""

import logging

import pytest
from oslo_config import cfg

from ironic_compute import opts
from ironic_compute.nodes import placement_reports
from ironic_compute.nodes.node_cache import NodeCache
from resource_tracker.errors import PlacementUnavailable
from resource_tracker.node import NodeFacts
from tests.fakes.clock import ManualClock


class Reconciler:
    """Finds what it is told to find."""

    def __init__(self, found):
        self._found = found

    def audit_providers(self):
        """See Reconciler."""
        if isinstance(self._found, Exception):
            raise self._found
        return self._found

    def backlog(self):
        """See Reconciler."""
        return 2, 7.5


@pytest.mark.parametrize(
    ('found', 'level'),
    [
        (0, None),
        (3, logging.INFO),
        (PlacementUnavailable('no answer'), logging.WARNING),
    ],
)
def test_audit_says_what_it_found(caplog, found, level):
    """Silent if all is as it was; an error ends nothing."""
    caplog.set_level(logging.DEBUG)
    placement_reports.audit_providers(Reconciler(found))
    assert [r.levelno for r in caplog.records] == ([level] if level else [])


def test_each_host_has_a_ledger_of_its_own():
    """One machine may serve several hosts."""
    conf = cfg.ConfigOpts()
    opts.register_opts(conf)
    conf([])
    paths = {
        placement_reports.disk_cache_path(conf, host) for host in ('c1', 'c2')
    }
    assert len(paths) == 2
    state_path = conf.ironic_compute.state_path
    assert all(str(path).startswith(state_path) for path in paths)


def test_metrics_see_the_held_nodes_and_what_waits():
    """As they are when asked."""
    node_cache = NodeCache(ManualClock())
    node_cache.update_facts(NodeFacts(uuid='n1'))
    watched = placement_reports.WorkerGauges(node_cache, Reconciler(0))
    assert [facts.uuid for facts in watched.held_facts()] == ['n1']
    assert watched.waiting() == (2, 7.5)

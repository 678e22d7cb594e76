# SPDX-License-Identifier: Apache-2.0
"""Values of ComputeNode rows: the node, the mark of a new row, and its age."""

import pytest
from nova import objects

from ironic_compute.nodes import records
from resource_tracker.node import NodeId

objects.register_all()


def test_node_of_a_row_is_its_hypervisor_hostname() -> None:
    """The uuid of a row made before Nova 18 is not the node's."""
    row = objects.ComputeNode(uuid='row-uuid', hypervisor_hostname='n1')
    assert records.node_of_row(row) == 'n1'


def test_provider_of_a_row_before_nova_18_is_that_of_its_node() -> None:
    """Its uuid is not the node's; one without a row here keeps its own.

    Each build on such a node was dropped as one of another node.
    """
    rows = {
        NodeId(node): objects.ComputeNode(uuid=uuid, hypervisor_hostname=node)
        for node, uuid in (('n1', 'row-uuid'), ('n2', 'n2'))
    }
    for uuids, nodes in (
        (['row-uuid'], ['n1']),
        (['n2', 'row-uuid', 'n3'], ['n2', 'n1', 'n3']),
        (['n2'], ['n2']),
        ([], []),
    ):
        assert records.nodes_of_providers(rows, uuids) == nodes


@pytest.mark.parametrize(
    ('since_s', 'is_new'), [(99.0, True), (100.0, False), (101.0, False)]
)
def test_row_created_after_a_time_is_new(since_s: float, is_new: bool) -> None:
    """A row counts as new until it is as old as the given time."""
    row = objects.ComputeNode(stats={records.NEW: '100'})
    assert records.is_new_row(row, since_s) is is_new


@pytest.mark.parametrize('stats', [None, {}, {'failed_builds': '0'}])
def test_row_of_stock_nova_compute_has_no_marks(
    stats: dict[str, str] | None,
) -> None:
    """Stats without the marks, or no stats, are no error."""
    row = objects.ComputeNode(stats=stats)
    row.obj_reset_changes()
    assert not records.is_new_row(row, 0.0)
    assert records.incarnation_of(row) == ''
    records.clear_new_mark(row)
    assert not row.obj_what_changed()


def test_cleared_row_is_not_new_and_keeps_the_rest() -> None:
    """The next save of the row writes the removal of the mark."""
    row = objects.ComputeNode(
        stats={records.NEW: '100', records.MADE: '100.5', 'cpu_arch': 'x86_64'}
    )
    row.obj_reset_changes()
    records.clear_new_mark(row)
    assert not records.is_new_row(row, 0.0)
    assert records.incarnation_of(row) == '100.5'
    assert row.stats['cpu_arch'] == 'x86_64'
    assert row.obj_what_changed() == {'stats'}


@pytest.mark.parametrize(
    ('changed_at', 'noted'),
    [('2026-11-02T07:04:00+00:00', '2026-11-02T07:04:00+00:00'), (None, '')],
)
def test_time_before_a_rebuild_is_saved_with_the_server(
    changed_at: str | None, noted: str
) -> None:
    """A time that Ironic does not have differs from no note."""
    server = objects.Instance(system_metadata={'image_min_ram': '0'})
    server.obj_reset_changes()
    assert records.before_rebuild(server) is None
    records.note_before_rebuild(server, changed_at)
    assert records.before_rebuild(server) == noted
    assert server.obj_what_changed() == {'system_metadata'}
    records.clear_before_rebuild(server)
    records.clear_before_rebuild(server)
    assert server.system_metadata == {'image_min_ram': '0'}

# SPDX-License-Identifier: Apache-2.0
"""ComputeNode rows: when a row is written, and that its marks are kept."""

import pytest
from nova import exception as nova_exception
from nova import objects

from hashring.ring import Host
from ironic_compute.errors import GateShut
from ironic_compute.gate import LeaseGate, without_waiting
from ironic_compute.nodes import compute_nodes, records
from ironic_compute.nodes.compute_nodes import ComputeNodes
from resource_tracker.node import NodeFacts, NodeId
from tests.fakes.clock import ManualClock

objects.register_all()

FACTS = NodeFacts(NodeId('n1'), properties={'cpu_arch': 'x86_64'})


class _Conductor:
    """Saves the changes of a row, unless it is away."""

    def __init__(self) -> None:
        self.is_away = False
        self.saved: list[dict[str, object]] = []

    def save(self, row: objects.ComputeNode) -> None:
        """Stand in for ComputeNode.save."""
        if self.is_away:
            raise TimeoutError
        self.saved.append(row.obj_get_changes())
        row.obj_reset_changes()


@pytest.fixture
def conductor(monkeypatch: pytest.MonkeyPatch) -> _Conductor:
    """Return the conductor that saves the rows."""
    made = _Conductor()
    monkeypatch.setattr(objects.ComputeNode, 'save', lambda r: made.save(r))
    return made


@pytest.fixture
def rows() -> ComputeNodes:
    """Return the client of the rows, with an open gate."""
    clock = ManualClock(start_s=0.0)
    return ComputeNodes(LeaseGate(clock, 99.0), clock)


@pytest.mark.parametrize('arch', [64, True, ['x86_64'], 'no-such'])
def test_odd_cpu_arch_harms_no_node(
    arch: object,
    conductor: _Conductor,
    rows: ComputeNodes,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """The row is written without it, and one warning names it."""
    row = objects.ComputeNode()
    odd = NodeFacts(NodeId('n1'), properties={'cpu_arch': arch})
    for _ in range(3):
        rows.update_row(row, odd)
    assert conductor.saved
    assert row.supported_hv_specs == []
    assert caplog.text.count('unknown cpu_arch') == 1


def test_a_row_that_could_not_be_written_is_written_next_time(
    conductor: _Conductor, rows: ComputeNodes
) -> None:
    """A change counts until it is saved, also if the save failed."""
    row = objects.ComputeNode()
    rows.update_row(row, FACTS)
    conductor.is_away = True
    other = NodeFacts(NodeId('n1'), properties={'cpu_arch': 'aarch64'})
    with pytest.raises(TimeoutError):
        rows.update_row(row, other)
    conductor.is_away = False
    rows.update_row(row, other)
    rows.update_row(row, other)
    assert len(conductor.saved) == 2
    assert conductor.saved[1].keys() == {'stats', 'supported_hv_specs'}


def test_a_row_that_agreed_is_written_after_a_failed_save_of_its_stats(
    conductor: _Conductor, rows: ComputeNodes
) -> None:
    """The save is repeated, although the facts of the node are the same."""
    row = objects.ComputeNode()
    for _ in range(3):
        rows.update_row(row, FACTS)
    assert len(conductor.saved) == 1
    conductor.is_away = True
    with pytest.raises(TimeoutError):
        rows.write_failed_builds(row, 7)
    conductor.is_away = False
    rows.update_row(row, FACTS)
    assert conductor.saved[-1]['stats']['failed_builds'] == '7'  # type: ignore[index]


def test_a_row_of_stock_nova_compute_is_not_written_needlessly(
    conductor: _Conductor, rows: ComputeNodes
) -> None:
    """Its list of PCI devices always counts as changed."""
    row = objects.ComputeNode()
    rows.update_row(row, FACTS)
    row.pci_device_pools = objects.PciDevicePoolList(objects=[])
    row.obj_reset_changes(['pci_device_pools'])
    assert row.obj_what_changed() == {'pci_device_pools'}
    rows.update_row(row, FACTS)
    assert len(conductor.saved) == 1


def test_changed_host_ip_alone_is_not_written(
    conductor: _Conductor, rows: ComputeNodes
) -> None:
    """Otherwise a host on another machine would write all its rows."""
    row = objects.ComputeNode()
    rows.update_row(row, FACTS)
    row.host_ip = '192.0.2.1'
    row.obj_reset_changes()
    rows.update_row(row, FACTS)
    assert len(conductor.saved) == 1
    rows.update_row(row, NodeFacts(NodeId('n1')))
    assert 'host_ip' in conductor.saved[1]


def test_row_keeps_its_holder_if_no_request_was_sent(
    conductor: _Conductor,
) -> None:
    """The node would be dropped, and read again, for nothing."""
    rows = ComputeNodes(LeaseGate(ManualClock()), ManualClock())
    row = objects.ComputeNode(host='c1', service_id=1)
    with pytest.raises(GateShut), without_waiting():
        rows.write_holder(row, Host('c2'), 2)
    assert (row.host, row.service_id) == ('c1', 1)
    assert conductor.saved == []


def test_row_has_its_new_holder_if_a_request_had_no_answer(
    conductor: _Conductor, rows: ComputeNodes
) -> None:
    """It may be carried out late, so its holder is not certain."""
    row = objects.ComputeNode(host='c1', service_id=1)
    conductor.is_away = True
    with pytest.raises(TimeoutError):
        rows.write_holder(row, Host('c2'), 2)
    assert row.host == 'c2'


def test_facts_of_a_node_keep_its_row_new() -> None:
    """Writing the facts keeps the mark, and adds none after its removal."""
    row = objects.ComputeNode(stats={records.NEW: '100', records.MADE: '100'})
    compute_nodes._set_fields(row, FACTS)
    assert records.is_new_row(row, 99.0)
    assert not records.is_new_row(row, 100.0)
    row.obj_reset_changes()
    compute_nodes._set_fields(row, FACTS)
    assert not row.obj_what_changed()
    records.clear_new_mark(row)
    compute_nodes._set_fields(row, FACTS)
    assert not records.is_new_row(row, 0.0)
    assert records.incarnation_of(row) == '100'


@pytest.mark.parametrize(
    ('error', 'is_gone'),
    [
        (None, True),
        (nova_exception.ComputeHostNotFound(host='1'), True),
        (
            nova_exception.ObjectActionError(
                action='destroy', reason='host changed'
            ),
            False,
        ),
    ],
)
def test_row_that_is_gone_counts_as_deleted(
    monkeypatch: pytest.MonkeyPatch,
    rows: ComputeNodes,
    error: Exception | None,
    is_gone: bool,
) -> None:
    """The first request may have been carried out without an answer."""

    def destroy(row: objects.ComputeNode) -> None:
        if error is not None:
            raise error

    monkeypatch.setattr(objects.ComputeNode, 'destroy', destroy)
    row = objects.ComputeNode(id=1, host='c1')
    assert rows.delete_row(row) is is_gone

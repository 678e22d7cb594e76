# SPDX-License-Identifier: Apache-2.0
"""Rows share what is equal, and say what they said before."""

import gc
import json
import sys
from typing import Any

import pytest
from nova import objects
from nova.objects import base

from ironic_compute.nodes.row_interning import intern_row

objects.register_all()


def _row(node: str, arch: str = 'x86_64') -> Any:
    """Return a row as a reply brings it: nothing in it is shared."""
    row = objects.ComputeNode(
        uuid=node,
        hypervisor_hostname=node,
        host='a-host-of-many',
        host_ip='127.0.0.1',
        cpu_allocation_ratio=1.5,
        stats={'cpu_arch': arch, 'made': node},
        supported_hv_specs=[objects.HVSpec.from_list([arch, 'ironic', 'hvm'])],
        pci_device_pools=objects.PciDevicePoolList(objects=[]),
    )
    row.obj_reset_changes(recursive=True)
    text = json.dumps(row.obj_to_primitive())
    return base.NovaObject.obj_from_primitive(json.loads(text))


def _says(row: Any) -> Any:
    """Return all that a row would tell Nova."""
    return row.obj_to_primitive()


@pytest.mark.parametrize('arch', ['x86_64', 'aarch64'])
def test_a_row_says_what_it_said(arch: str) -> None:
    """Of each kind, whatever was seen before."""
    intern_row(_row('n0'))
    row = _row('n1', arch)
    before = _says(row)
    assert _says(intern_row(row)) == before
    assert row.obj_what_changed() == set()


def test_what_is_equal_is_one_object() -> None:
    """Names, numbers, and the objects of Nova in a row."""
    one, other = intern_row(_row('n1')), intern_row(_row('n2'))
    assert one.host is other.host
    assert one.uuid is one.hypervisor_hostname
    assert one.cpu_allocation_ratio is other.cpu_allocation_ratio
    assert one.stats['cpu_arch'] is other.stats['cpu_arch']
    assert one.supported_hv_specs[0] is other.supported_hv_specs[0]
    assert one.pci_device_pools is other.pci_device_pools


def test_a_change_of_one_row_is_no_change_of_others() -> None:
    """A row is given new values, and its lists and dicts are its own."""
    one, other = intern_row(_row('n1')), intern_row(_row('n2'))
    before = _says(other)
    one.host = 'another-host'
    one.stats = {**one.stats, 'cpu_arch': 'ppc64le'}
    one.supported_hv_specs = []
    assert one.obj_what_changed() == {'host', 'stats', 'supported_hv_specs'}
    assert _says(other) == before


def test_what_counts_as_changed_is_not_shared() -> None:
    """It would be saved for a row that has it as it was."""
    changed, other = _row('n1'), intern_row(_row('n2'))
    changed.pci_device_pools.objects = []
    intern_row(changed)
    assert 'pci_device_pools' in changed.obj_what_changed()
    assert other.obj_what_changed() == set()


# A row refers to its class too, and so to all of Nova.
_DATA = (str, int, float, dict, list, set, base.NovaObject)


def _size_bytes(held: object) -> int:
    """Return what an object and all it refers to take, each counted once."""
    seen: dict[int, Any] = {}
    found = [held]
    while found:
        one = found.pop()
        if id(one) not in seen and isinstance(one, _DATA):
            seen[id(one)] = one
            found.extend(gc.get_referents(one))
    return sum(sys.getsizeof(one) for one in seen.values())


def test_rows_take_less_memory() -> None:
    """That is what it is for."""
    rows = [_row(f'node-{n}') for n in range(200)]
    before_bytes = _size_bytes(rows)
    assert _size_bytes([intern_row(row) for row in rows]) < 0.7 * before_bytes


def test_values_that_nobody_shares_do_not_end_the_sharing() -> None:
    """However many there were: a cloud's rows are all alike but for these."""
    for n in range(5000):
        intern_row(_with_ratio(str(n)))
    one, other = (intern_row(_with_ratio('-1.5')) for _ in range(2))
    assert one.cpu_allocation_ratio is other.cpu_allocation_ratio


def _with_ratio(ratio: str) -> Any:
    return objects.ComputeNode(cpu_allocation_ratio=float(ratio))

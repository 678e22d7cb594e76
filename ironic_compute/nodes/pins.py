# SPDX-License-Identifier: Apache-2.0
"""An operator's pin of a node: the host that should hold it.

A pin is stored in ``stats`` of the node's ComputeNode row, which the holder
writes and each later holder reads. So it survives every daemon, and it ends
with the row. The target of a node is the host of its pin if that host is in
the ring, and otherwise the host that the ring names. Pure.
"""

import dataclasses
from typing import Any

from hashring.ring import Host, Ring
from ironic_compute.nodes.records import node_of_row

_HOST = 'ironic_compute_pinned'
_BY = 'ironic_compute_pinned_by'
# The keys of a pin in the stats of a row; every write of stats keeps them.
KEYS = (_HOST, _BY)


@dataclasses.dataclass(frozen=True, slots=True)
class Pin:
    """The order to keep one node at a host.

    :param by: who gave the order, and when; for people
    """

    host: Host
    by: str


def read_pin(row: Any) -> Pin | None:
    """Return the pin of the node that a row describes."""
    stats = row.stats or {}
    host = stats.get(_HOST)
    return Pin(Host(host), stats.get(_BY) or 'unknown') if host else None


def set_pin(row: Any, pin: Pin | None) -> None:
    """Set or remove the pin in a row; the caller saves the row later."""
    stats = {k: v for k, v in (row.stats or {}).items() if k not in KEYS}
    if pin is not None:
        stats |= {_HOST: str(pin.host), _BY: pin.by}
    row.stats = stats


def target_of(row: Any, ring: Ring) -> Host | None:
    """Return the host that should hold the node that a row describes.

    :returns: None if the ring has no hosts
    """
    pin = read_pin(row)
    if pin is not None and pin.host in ring.hosts:
        return pin.host
    return ring.target(node_of_row(row))

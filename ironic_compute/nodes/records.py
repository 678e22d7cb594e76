# SPDX-License-Identifier: Apache-2.0
"""Values read from Nova: ComputeNode rows, pages of them, and servers.

Pure: nothing here calls a service. Used by whoever reads rows through
``compute_nodes``.
"""

import dataclasses
from typing import Any, NewType

from resource_tracker.node import NodeId

# In the stats of a row that was created: when, in seconds since 1970. It
# outlives the worker that created it, and an answer that never came.
NEW = 'ironic_compute_new'

# The same, for as long as the row is there. Nova gives a row that is made
# for a deleted one's uuid that one's id and times back (bug 1839560).
MADE = 'ironic_compute_made'


def node_of_row(row: Any) -> NodeId:
    """Return the node a row is about.

    Not by the row's uuid: rows made before Nova 18 have one of their own
    (bugs 1771806, 1798172).
    """
    return NodeId(row.hypervisor_hostname)


def is_new_row(row: Any, since_s: float) -> bool:
    """Say whether a row was created by one of us after ``since_s``.

    :param since_s: in seconds since 1970
    """
    return float((row.stats or {}).get(NEW) or 0.0) > since_s


def incarnation_of(row: Any) -> str:
    """Return what tells a row of ours from an earlier one of its uuid."""
    return str((row.stats or {}).get(MADE) or '')


def clear_new_mark(row: Any) -> None:
    """Make a new row an old one: to be saved with its next holder."""
    if NEW in (row.stats or {}):
        row.stats = {k: v for k, v in row.stats.items() if k != NEW}


Marker = NewType('Marker', int)


class MarkerGone(Exception):
    """The row where a page ended is there no more."""


@dataclasses.dataclass(frozen=True, slots=True)
class Page:
    """Some rows of the cell, and where the next page begins.

    ``marker`` is None after the last page.
    """

    rows: list[Any]
    marker: Marker | None


@dataclasses.dataclass(frozen=True, slots=True)
class ServerRow:
    """What Nova's row of a server says; deleted rows speak too."""

    deleted: bool
    host: str | None
    vm_state: str
    task_state: str | None

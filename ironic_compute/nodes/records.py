# SPDX-License-Identifier: Apache-2.0
"""Values read from Nova: ComputeNode rows, pages of them, and servers.

The functions are pure: they call no service. Every module that reads rows
through ``compute_nodes`` uses them.
"""

import dataclasses
from collections.abc import Collection, Mapping
from typing import Any, NewType

from resource_tracker.node import NodeId

# Key in a row's stats: the time when a worker created the row, in seconds
# since 1970. The row itself has it, so that it is known even if that worker
# died or never received the answer.
NEW = 'ironic_compute_new'

# Key in a row's stats: the same time, which stays until the row is deleted.
# The row's id and created_at cannot serve, because Nova gives a row those of
# a deleted row with the same uuid (bug 1839560).
MADE = 'ironic_compute_made'

# The name of the action in Nova's history of a server that was moved with its
# node. No user has requested it.
MOVE_ACTION = 'ironic-compute: move'

# Key in a server's system_metadata: when the provision state of its node had
# changed last, by Ironic's clock, before Ironic was asked for a rebuild.
_BEFORE_REBUILD = 'ironic_compute_before_rebuild'


def node_of_row(row: Any) -> NodeId:
    """Return the node that a row describes.

    The row's uuid is not used, because it is not the node's in rows made
    before Nova 18 (bugs 1771806, 1798172).
    """
    return NodeId(row.hypervisor_hostname)


def nodes_of_providers(
    rows: Mapping[NodeId, Any], providers: Collection[str]
) -> list[NodeId]:
    """Return the nodes of providers, which have the uuids of their rows.

    A provider without a row among these is taken for that of a node with the
    same uuid, as all have whose rows were made since Nova 18.

    :param rows: rows by node
    """
    has_others = any(uuid not in rows for uuid in providers)
    former = (
        {row.uuid: node for node, row in rows.items()} if has_others else {}
    )
    return [former.get(uuid, NodeId(uuid)) for uuid in providers]


def is_new_row(row: Any, since_s: float) -> bool:
    """Return whether a worker created a row after ``since_s``.

    False for a row of stock nova-compute, and for one whose holder changed.

    :param since_s: in seconds since 1970
    """
    return float((row.stats or {}).get(NEW) or 0.0) > since_s


def incarnation_of(row: Any) -> str:
    """Return the mark that differs from an earlier row with the same uuid.

    Empty for a row of stock nova-compute.
    """
    return str((row.stats or {}).get(MADE) or '')


def clear_new_mark(row: Any) -> None:
    """Remove the mark of a new row; the caller saves the row later."""
    if NEW in (row.stats or {}):
        row.stats = {k: v for k, v in row.stats.items() if k != NEW}


def note_before_rebuild(instance: Any, changed_at: str | None) -> None:
    """Note when a server's node had changed; the caller saves the Instance.

    :param changed_at: Ironic's ``provision_updated_at`` of the node
    """
    instance.system_metadata[_BEFORE_REBUILD] = changed_at or ''


def clear_before_rebuild(instance: Any) -> None:
    """Remove the note of a rebuild that ended; the caller saves it later."""
    instance.system_metadata.pop(_BEFORE_REBUILD, None)


def before_rebuild(instance: Any) -> str | None:
    """Return what was noted before a rebuild; None: nothing was noted.

    Empty if Ironic had no time then.
    """
    noted: str | None = instance.system_metadata.get(_BEFORE_REBUILD)
    return noted


Marker = NewType('Marker', int)


class MarkerGone(Exception):
    """The last row of the previous page was deleted, so no page follows it."""


@dataclasses.dataclass(frozen=True, slots=True)
class Page:
    """Some rows of the cell, of all hosts.

    :param marker: argument for reading the next page; None on the last page
    """

    rows: list[Any]
    marker: Marker | None


@dataclasses.dataclass(frozen=True, slots=True)
class ServerRow:
    """Some fields of Nova's row of a server, which may be deleted."""

    deleted: bool
    host: str | None
    vm_state: str
    task_state: str | None
    node: str | None = None

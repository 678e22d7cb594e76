# SPDX-License-Identifier: Apache-2.0
"""Servers deleted while as many are booted, with cleaning of nodes."""

from collections.abc import Collection, Mapping

from onemachine.progress import CloudError

from benchmarks.database import Database
from benchmarks.parts import servers
from benchmarks.parts.changes import POINTS, dials
from benchmarks.seen import NOT_CLEAN, Seen
from benchmarks.stage import Note, Stage
from benchmarks.watch import KINDS, Watcher

# All builds are sent within this time, while nodes are being cleaned.
_CLEANING_S = '30'


class _CleaningErrors:
    """Counts states that a node must not have while it is cleaned.

    :param former: the deleted servers
    """

    def __init__(self, database: Database, former: Collection[str]) -> None:
        self._database = database
        self._former = former
        self.builds: set[tuple[str, str]] = set()
        self.offered: set[str] = set()
        self.cleaned: set[str] = set()

    def check(self, seen: Mapping[str, Seen]) -> None:
        """Check one read of all nodes that are not clean."""
        self.builds |= self._database.on_unclean(self._former)
        for node, one in seen.items():
            if one.state in NOT_CLEAN and not one.is_allocated:
                self.cleaned.add(node)
                if one.is_offered:
                    self.offered.add(node)


def cleaning(stage: Stage, note: Note) -> None:
    """Delete and boot servers at once; check the nodes meanwhile."""
    with dials(stage, {'cleaning': 'on', 'cleaning-delay': _CLEANING_S}):
        stage.have()
        count = min(stage.plan.cleaned_count, stage.nodes_count // 2)
        former = servers.Boots(stage, count)
        former.await_all(Note(), 'former')
        _replace(stage, note, former.ids)
        servers.health(stage, note, 'clean')
        servers.clear(stage.content, stage.plan.boot_max_s)


def _replace(stage: Stage, note: Note, former: list[str]) -> None:
    database = Database(stage.subject.layout)
    errors = _CleaningErrors(database, former)
    nodes = _nodes_of(stage, former)
    with Watcher(database.nodes, errors.check) as watcher:
        for node in nodes:
            watcher.cases.add(node, KINDS['available'])
        servers.delete(stage.content, former)
        boots = servers.Boots(stage, len(former))
        boots.await_all(note, 'clean_boot')
        watcher.wait(stage.plan.change_max_s)
    database.close()
    boots.record(note, 'clean_boot')
    note.spread('clean_offered', watcher.cases.took_s('available'), POINTS)
    note.figure('clean_look_gap_s', watcher.cases.gap_max_s)
    note.figure('clean_nodes', len(errors.cleaned))
    note.figure('clean_early', len(errors.offered))
    note.figure('clean_wrong_builds', len(errors.builds))


def _nodes_of(stage: Stage, former: Collection[str]) -> list[str]:
    found = stage.content.nodes()
    nodes = [n for n, node in found.items() if node.instance_id in former]
    if len(nodes) != len(former):
        raise CloudError(f'{len(nodes)} of {len(former)} servers have a node')
    return nodes

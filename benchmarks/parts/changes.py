# SPDX-License-Identifier: Apache-2.0
"""Times from a change in Ironic to Placement, by kind of change."""

import contextlib
import random
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

from onemachine.content import each
from onemachine.dials import Dials
from onemachine.registry import RESOURCE_CLASS

from benchmarks.database import Database
from benchmarks.parts.audits import Audits
from benchmarks.results import OURS
from benchmarks.seen import TRAIT
from benchmarks.stage import OFTEN, Note, Stage
from benchmarks.watch import KINDS, Watcher

POINTS = {'p50': 0.5, 'p95': 0.95, 'max': 1.0}
_SETTLE_S = 15.0
Act = tuple[str, str, Callable[[], object]]


class Changes:
    """Changes of nodes in Ironic, each with a change that reverts it."""

    def __init__(self, stage: Stage, nodes: Sequence[str]) -> None:
        self._metal = stage.metal
        self._is_ours = stage.subject.kind == OURS
        count = len(nodes) // 4
        self.maintained = nodes[:count]
        self.labelled = nodes[count : 2 * count]
        self.classless = nodes[2 * count : 3 * count]
        self.withdrawn = nodes[3 * count : 4 * count]

    def _provision(self, node: str, verb: str) -> None:
        self._metal.set_node_provision_state(node, verb)

    def _acts(
        self, kind: str, nodes: Sequence[str], act: Callable[[str], object]
    ) -> list[Act]:
        return [(kind, node, lambda node=node: act(node)) for node in nodes]

    def preparing(self) -> list[Act]:
        """Return the changes that prepare nodes."""
        metal = self._metal
        return mixed(
            self._acts(
                'class_removed',
                self.classless if self._is_ours else (),
                lambda node: set_class(metal, node, None),
            ),
            self._acts(
                'withdrawn',
                self.withdrawn,
                lambda node: self._provision(node, 'manage'),
            ),
        )

    def measured(self) -> list[Act]:
        """Return the measured changes, one of each kind in turn."""
        metal = self._metal
        return mixed(
            self._acts(
                'maintenance_set',
                self.maintained,
                lambda node: metal.set_node_maintenance(node, 'benchmark'),
            ),
            self._acts(
                'trait_added',
                self.labelled,
                lambda node: metal.add_node_trait(node, TRAIT),
            ),
            self._acts(
                'class_set',
                self.classless,
                lambda node: set_class(metal, node, RESOURCE_CLASS),
            ),
            self._acts(
                'available',
                self.withdrawn,
                lambda node: self._provision(node, 'provide'),
            ),
        )

    def reverting(self) -> list[Act]:
        """Return the changes that revert the others."""
        metal = self._metal
        return mixed(
            self._acts(
                'maintenance_unset',
                self.maintained,
                metal.unset_node_maintenance,
            ),
            self._acts(
                'trait_removed',
                self.labelled,
                lambda node: metal.remove_node_trait(node, TRAIT),
            ),
        )


def set_class(metal: Any, node: str, name: str | None) -> None:
    """Set the resource class of a node, or remove it."""
    path = '/resource_class'
    change = (
        {'op': 'add', 'path': path, 'value': name}
        if name
        else {'op': 'remove', 'path': path}
    )
    metal.patch_node(node, [change])


def mixed(*acts: Sequence[Act]) -> list[Act]:
    """Return the items of all lists, one of each list in turn."""
    return [
        one
        for number in range(max(map(len, acts), default=0))
        for some in acts
        for one in some[number : number + 1]
    ]


def notified(stage: Stage, note: Note) -> None:
    """Measure changes one by one, with Ironic's notifications."""
    with dials(stage, {'cleaning': 'on', 'notifications': 'on'}):
        _measure(stage, note, 'notified', stage.plan.pace_s)


def quiet(stage: Stage, note: Note) -> None:
    """Measure changes without Ironic's notifications; stock uses none."""
    if stage.subject.kind != OURS:
        return
    with dials(stage, {'cleaning': 'on', 'notifications': 'off'}):
        _measure(stage, note, 'quiet', stage.plan.pace_s)


def burst(stage: Stage, note: Note) -> None:
    """Measure changes during many other changes and frequent audits."""

    @contextlib.contextmanager
    def beside() -> Iterator[None]:
        count = _count(stage)
        others = stage.free_nodes(count + stage.plan.burst_count)[count:]
        audits = Audits(stage)
        with _many_changes(stage, others) as changed:
            yield
        note.figure('burst_audits', audits.count())
        note.figure('burst_changes', len(changed))

    with dials(stage, {'cleaning': 'on', 'notifications': 'on'}):
        _measure(stage, note, 'burst', 0.0, OFTEN, beside)


@contextlib.contextmanager
def dials(stage: Stage, wanted: Mapping[str, str]) -> Iterator[None]:
    """Change settings of Ironic, and restore the defaults at the end."""
    stage.turn(wanted)
    # Wait until clients have recovered from the restart of Ironic.
    time.sleep(_SETTLE_S)
    try:
        yield
    finally:
        stage.turn(Dials.DEFAULTS)


@contextlib.contextmanager
def _many_changes(stage: Stage, nodes: Sequence[str]) -> Iterator[list[str]]:
    """Set and unset maintenance of nodes until the context is left."""
    over, changed = threading.Event(), list[str]()
    metal = stage.metal

    def change(node: str) -> None:
        if not over.is_set():
            metal.set_node_maintenance(node, 'burst')
            changed.append(node)

    def back(node: str) -> None:
        metal.unset_node_maintenance(node)

    def churn() -> None:
        while not over.is_set():
            each(change, nodes)
            each(back, nodes)
            time.sleep(0.1)

    thread = threading.Thread(target=churn, daemon=True)
    thread.start()
    try:
        yield changed
    finally:
        over.set()
        thread.join()
        each(back, nodes)


def _count(stage: Stage) -> int:
    """Return the number of nodes that are changed: at most half of all."""
    return 4 * min(stage.plan.changes_count, stage.nodes_count // 8)


def _measure(
    stage: Stage,
    note: Note,
    mode: str,
    pace_s: float,
    options: Mapping[str, str] | None = None,
    beside: Callable[[], AbstractContextManager[None]] = nullcontext,
) -> None:
    stage.wait_available()
    nodes = stage.free_nodes(_count(stage))
    changes = Changes(stage, nodes)
    database = Database(stage.subject.layout)
    rounds = [changes.preparing(), changes.measured(), changes.reverting()]
    try:
        _make_ready(stage, changes, options)
        with beside(), Watcher(database.nodes) as watcher:
            for acts in rounds:
                pause(stage)
                _change(watcher, acts, pace_s, stage.plan.change_max_s)
    finally:
        _restore(stage, nodes, database)
        database.close()
    for kind in KINDS:
        note.spread(f'{mode}_{kind}', watcher.cases.took_s(kind), POINTS)
    note.figure(f'{mode}_look_gap_s', watcher.cases.gap_max_s)


def pause(stage: Stage) -> None:
    """Wait for a random part of stock's periodic cycle; no wait for ours.

    Without it each round of changes would begin directly after stock's read of
    all nodes, because the previous round ended with that read.
    """
    if stage.subject.kind != OURS:
        chance = random.Random()  # noqa: S311
        time.sleep(chance.uniform(0.0, stage.plan.pause_max_s))


def _make_ready(
    stage: Stage, changes: Changes, options: Mapping[str, str] | None
) -> None:
    """Let the subject run; for stock, with some classless nodes.

    Stock keeps the inventory of a node that loses its class, so stock must
    not have reported the class of these nodes.
    """
    if stage.subject.kind == OURS:
        stage.have(options)
        return
    stage.stop()
    for node in changes.classless:
        set_class(stage.metal, node, None)
        stage.content.cloud.placement.delete(f'/resource_providers/{node}')
    stage.start_again()


def _change(
    watcher: Watcher, acts: Sequence[Act], pace_s: float, max_s: float
) -> None:
    for kind, node, act in acts:
        watcher.cases.add(node, KINDS[kind])
        act()
        time.sleep(pace_s)
    watcher.wait(max_s)


def _restore(stage: Stage, nodes: Sequence[str], database: Database) -> None:
    """Revert the changes of nodes that an interrupted part did not revert."""
    for node, seen in database.nodes(nodes).items():
        if seen.has_maintenance:
            stage.metal.unset_node_maintenance(node)
        if seen.has_trait:
            stage.metal.remove_node_trait(node, TRAIT)
        if not seen.has_class:
            set_class(stage.metal, node, RESOURCE_CLASS)
        if seen.state == 'manageable':
            stage.metal.set_node_provision_state(node, 'provide')

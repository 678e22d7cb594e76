# SPDX-License-Identifier: Apache-2.0
"""The duration of a change from Ironic to Placement."""

import dataclasses
import math

import pytest

from benchmarks.seen import Seen
from benchmarks.watch import KINDS, Cases, Watcher

NODE = 'node-1'
FREE = Seen(
    node=NODE,
    state='available',
    has_maintenance=False,
    has_class=True,
    has_trait=False,
    is_offered=True,
    has_inventory=True,
    shows_trait=False,
    is_allocated=False,
)


def but(**changes):
    """Return a free node with other values in these fields."""
    return dataclasses.replace(FREE, **changes)


# Kind -> before, when Ironic has it, when Placement has it.
COURSES = {
    'maintenance_set': (
        FREE,
        but(has_maintenance=True),
        but(has_maintenance=True, is_offered=False),
    ),
    'maintenance_unset': (
        but(has_maintenance=True, is_offered=False),
        but(is_offered=False),
        FREE,
    ),
    'trait_added': (
        FREE,
        but(has_trait=True),
        but(has_trait=True, shows_trait=True),
    ),
    'trait_removed': (
        but(has_trait=True, shows_trait=True),
        but(shows_trait=True),
        FREE,
    ),
    'class_set': (
        but(has_class=False, is_offered=False, has_inventory=False),
        but(is_offered=False, has_inventory=False),
        FREE,
    ),
    'class_removed': (
        FREE,
        but(has_class=False),
        but(has_class=False, is_offered=False, has_inventory=False),
    ),
    'withdrawn': (
        FREE,
        but(state='manageable'),
        but(state='manageable', is_offered=False),
    ),
    'available': (
        but(state='cleaning', is_offered=False),
        but(is_offered=False),
        FREE,
    ),
}


@pytest.mark.parametrize('kind', KINDS)
def test_each_kind_has_a_begin_and_an_end(kind):
    """Begin and end of each kind of change are recorded when they occur."""
    before, begun, ended = COURSES[kind]
    cases = Cases()
    cases.add(NODE, KINDS[kind])
    for now_s, seen in ((1.0, before), (2.0, begun), (3.0, begun)):
        cases.record({NODE: seen}, now_s)
        assert cases.took_s(kind) == [math.inf]
        assert cases.open_nodes() == {NODE}
    cases.record({NODE: ended}, 5.0)
    assert cases.took_s(kind) == [3.0]
    assert cases.open_nodes() == set()
    assert cases.gap_max_s == 2.0


def test_watcher_waits_for_the_change():
    """The watcher waits until the change is in Placement."""
    course = iter(COURSES['maintenance_set'])
    last = COURSES['maintenance_set'][-1]
    shown = []
    with Watcher(
        lambda nodes: {NODE: next(course, last)} if nodes else {},
        shown.append,
    ) as watcher:
        watcher.cases.add(NODE, KINDS['maintenance_set'])
        assert watcher.wait(60.0)
    (took_s,) = watcher.cases.took_s('maintenance_set')
    assert 0.0 < took_s < 10.0
    assert {NODE: last} in shown


def test_watcher_gives_up_in_time():
    """A change that does not end counts as infinitely long."""
    with Watcher(lambda nodes: dict.fromkeys(nodes, FREE)) as watcher:
        watcher.cases.add(NODE, KINDS['maintenance_set'])
        assert not watcher.wait(0.2)
    assert watcher.cases.took_s('maintenance_set') == [math.inf]


def test_watcher_raises_the_error_of_a_failed_read():
    """A failed read of the databases raises its error."""

    def fail(nodes):
        raise OSError('gone')

    watcher = Watcher(fail)
    watcher.cases.add(NODE, KINDS['maintenance_set'])
    with pytest.raises(OSError, match='gone'), watcher:
        watcher.wait(60.0)

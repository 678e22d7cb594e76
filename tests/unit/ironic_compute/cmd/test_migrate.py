# SPDX-License-Identifier: Apache-2.0
"""The table of the command that plans a migration, and what it notes."""

import argparse
import dataclasses

import pytest

from hashring.ring import Host
from ironic_compute.cmd import migrate
from ironic_compute.cmd.migration_plan import (
    Found,
    HostState,
    ServedBy,
    plan_way_back,
)
from ironic_compute.cmd.migration_plan import plan_pool as plan
from ironic_compute.cmd.migration_words import Tool

A, B = map(Host, 'ab')
STOCK = HostState(served_by=ServedBy.NOVA_COMPUTE, is_mapped=True)
ONE = Found('a pool', {A: STOCK})
TWO = Found('a pool', {A: STOCK, B: STOCK})


def _notes(found: Found, *names: str, is_folder: bool = False) -> list[str]:
    wanted = frozenset(map(Host, names))
    steps = plan(found, wanted)
    return list(migrate.notes(steps, wanted, found, is_folder=is_folder))


def test_steps_are_numbered() -> None:
    """Each row names its hosts and has a cell for each column."""
    rows = list(migrate.rows(plan(TWO), TWO, Tool.SYSTEMD))
    assert [row[:2] for row in rows] == [
        (1, 'a'),
        (2, 'b'),
        (3, 'a'),
        (4, 'b'),
    ]
    assert {len(row) for row in rows} == {len(migrate.COLUMNS)}


def test_steps_of_kolla_are_numbered_without_gaps() -> None:
    """Some are done by one command."""
    rows = list(migrate.rows(plan(TWO), TWO, Tool.KOLLA))
    assert [row[:2] for row in rows] == [(1, 'a'), (2, 'b'), (3, 'a, b')]


def test_pool_of_one_daemon_is_noted() -> None:
    """Nobody adopts its host; the operator may name more."""
    assert ['name more hosts' in note for note in _notes(ONE)] == [True]
    assert not _notes(ONE, 'a', 'b')
    assert not _notes(TWO)


def test_folder_is_no_backend_for_two_machines() -> None:
    """Daemons on other machines would not see each other."""
    (note,) = _notes(TWO, is_folder=True)
    assert 'backend_url is a folder' in note


def test_end_is_said() -> None:
    """An empty table alone could be a mistake."""
    ours = HostState(served_by=ServedBy.DAEMON, is_known=True, machine='m')
    assert _notes(Found('a pool', {A: ours})) == [
        'Nothing is left to do in the pool (a pool)'
    ]


def test_end_of_the_way_back_names_the_queues() -> None:
    """Their step leaves the plan with the last nova-compute, done or not.

    The operator saw "Nothing is left to do", and the queues grew.
    """
    state = dataclasses.replace(STOCK, nodes_count=1)
    found = Found('a pool', {A: state})
    assert not plan_way_back(found)
    said = list(
        migrate.notes((), frozenset(), found, is_folder=False, is_back=True)
    )
    assert said[0] == 'Nothing is left to do in the pool (a pool)'
    assert 'begin with ironic-compute- and have no consumer' in said[1]
    assert 'of another pool' in said[1]


def test_steps_of_the_way_back_have_no_notes() -> None:
    """The other notes are about daemons and their backend, which go."""
    found, steps = ONE, plan(ONE)
    for is_folder in (True, False):
        assert not list(
            migrate.notes(
                steps, frozenset(), found, is_folder=is_folder, is_back=True
            )
        )


@pytest.mark.parametrize('text', ['c1,c2', 'c1, c2', ' c2,c1'])
def test_hosts_are_read(text: str) -> None:
    """Commas separate them."""
    assert migrate.host_names(text) == {'c1', 'c2'}


@pytest.mark.parametrize('text', ['', 'c1,', ',c1'])
def test_empty_name_is_refused(text: str) -> None:
    """It is a mistake, and might stand for a host to keep."""
    with pytest.raises(argparse.ArgumentTypeError):
        migrate.host_names(text)


@pytest.mark.parametrize(
    ('answers', 'found'),
    [
        ([True] * 4, {True}),
        ([False, True, False, True], {True, False}),
        ([None], set()),
        ([False, None], {False}),
    ],
)
def test_host_is_asked_until_nobody_answers(
    answers: list[bool | None], found: set[bool]
) -> None:
    """Each question to a host that is silent takes seconds."""
    left = iter(answers)
    assert migrate.ask(A, lambda _: next(left)) == found
    assert not list(left)

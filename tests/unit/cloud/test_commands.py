# SPDX-License-Identifier: Apache-2.0
"""The command line, and what it says of wrong words."""

import subprocess
import sys

import pytest
from onemachine import actions, content, naming, parser, running
from onemachine.layout import REPOSITORY

PROGRAM = REPOSITORY / 'devstack' / 'cloud'


def cloud(state, *words):
    """Run the program on a cloud of its own."""
    return subprocess.run(
        [sys.executable, str(PROGRAM), '--state', str(state), *words],
        capture_output=True,
        text=True,
    )


def choices():
    """All commands, with their parsers."""
    (action,) = (a for a in parser.parser()._actions if a.dest == 'command')
    return action.choices


def test_each_command_has_an_action():
    """What can be said can be done, and nothing else can."""
    assert set(choices()) == set(actions.ACTIONS)


@pytest.mark.parametrize('name', sorted(choices()))
def test_each_command_explains_itself(name):
    """The help of a command has more than its name."""
    assert len(choices()[name].description) > len(name) + 10


def test_help_teaches_by_examples():
    """Who types --help can go on by copying lines."""
    text = parser.parser().format_help()
    assert 'devstack/cloud agent c1 c2 c3' in text
    assert '127.0.0.1' in text


def test_nothing_is_there_before_up(tmp_path):
    """Without a cloud, a command says what to do first."""
    done = cloud(tmp_path, 'servers')
    assert done.returncode == 1
    assert 'run: devstack/cloud up' in done.stderr


def test_status_of_nothing_is_not_good(tmp_path):
    """The exit status tells whether a cloud runs."""
    assert cloud(tmp_path, 'status').returncode == 3


def test_down_of_nothing_is_fine(tmp_path):
    """Stopping what does not run is no error."""
    assert cloud(tmp_path, 'down').returncode == 0


def test_unknown_host_is_told(tmp_path):
    """A host that nobody serves cannot be stopped."""
    done = cloud(tmp_path, 'stop', 'c9')
    assert done.returncode == 1
    assert 'c9' in done.stderr


@pytest.mark.parametrize(
    ('words', 'host'),
    [
        (['ironic-compute-worker: host c1', ''], 'c1'),
        (['ironic-compute-worker: spare', ''], None),
        (['python', '/v/bin/ironic-compute-worker', '--agent-pid'], None),
        (['python', '/v/bin/ironic-compute', '--config-file', 'y'], None),
    ],
)
def test_worker_is_known_by_its_title(words, host):
    """Who serves a host is read from the process, not asked for."""
    assert running.host_of(words) == host


def test_servers_are_counted_or_named():
    """boot takes a number or a name."""
    assert naming.server_names('web') == ['web']
    assert len(set(naming.server_names('3'))) == 3


def test_a_new_node_takes_the_place_of_one_that_was_deleted():
    """Ironic refuses a second node of a name."""
    names = {'node-00000', 'node-00002', 'web'}
    assert naming.free_numbers(names, 3) == [1, 3, 4]
    assert naming.free_numbers((), 2) == [0, 1]


def test_tables_line_up():
    """Columns are as wide as their widest cell."""
    assert content.table(('A', 'Bee'), [('long', 1), ('x', 22)]) == (
        'A     Bee\n---------\nlong  1\nx     22'
    )

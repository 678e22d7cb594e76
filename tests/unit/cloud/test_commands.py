# SPDX-License-Identifier: Apache-2.0
"""The command line, its help, and its errors."""

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
    """Return all commands, with their parsers."""
    (action,) = (a for a in parser.parser()._actions if a.dest == 'command')
    return action.choices


def test_each_command_has_an_action():
    """Each command has an action, and each action a command."""
    assert set(choices()) == set(actions.ACTIONS)


@pytest.mark.parametrize('name', sorted(choices()))
def test_each_command_explains_itself(name):
    """The help of a command has more than its name."""
    assert len(choices()[name].description) > len(name) + 10


def test_help_teaches_by_examples():
    """The help has examples that can be copied."""
    text = parser.parser().format_help()
    assert 'devstack/cloud agent c1 c2 c3' in text
    assert '127.0.0.1' in text


def test_nothing_is_there_before_up(tmp_path):
    """Without a cloud, a command names the command to run first."""
    done = cloud(tmp_path, 'servers')
    assert done.returncode == 1
    assert 'run: devstack/cloud up' in done.stderr


def test_status_of_nothing_is_not_good(tmp_path):
    """The exit status of ``status`` is 3 without a cloud."""
    assert cloud(tmp_path, 'status').returncode == 3


def test_down_of_nothing_is_fine(tmp_path):
    """``down`` without a cloud succeeds."""
    assert cloud(tmp_path, 'down').returncode == 0


def test_unknown_host_is_refused(tmp_path):
    """``stop`` of a host that is not served fails with its name."""
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
def test_host_of_a_worker_is_in_its_title(words, host):
    """The host of a worker is read from the title of its process."""
    assert running.host_of(words) == host


@pytest.mark.parametrize(
    ('words', 'kind'),
    [
        (['ironic-compute-worker: host c1', ''], 'worker for c1'),
        (['ironic-compute-worker: fork server', ''], 'fork server'),
        (['ironic-compute-worker: spare', ''], 'spare'),
        (['python', '/v/bin/ironic-compute-worker', ''], 'starting worker'),
    ],
)
def test_children_of_an_agent_are_told_apart(words, kind):
    """The CPU of a fork server is not counted as that of a spare worker."""
    assert running.kind_of(words) == kind


def test_servers_are_counted_or_named():
    """``boot`` takes a number or a name."""
    assert naming.server_names('web') == ['web']
    assert len(set(naming.server_names('3'))) == 3


def test_a_new_node_takes_the_place_of_one_that_was_deleted():
    """New nodes take the lowest free numbers.

    Ironic refuses a second node with the same name.
    """
    names = {'node-00000', 'node-00002', 'web'}
    assert naming.free_numbers(names, 3) == [1, 3, 4]
    assert naming.free_numbers((), 2) == [0, 1]


def test_tables_line_up():
    """Columns are as wide as their widest cell."""
    assert content.table(('A', 'Bee'), [('long', 1), ('x', 22)]) == (
        'A     Bee\n---------\nlong  1\nx     22'
    )

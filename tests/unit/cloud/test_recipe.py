# SPDX-License-Identifier: Apache-2.0
"""The steps that the cloud carries out without a look in between."""

from onemachine import recipe

STOP = 'systemctl disable --now nova-compute.service'
START = 'systemctl enable --now ironic-compute.service'
RETIRE = 'ironic-computectl host retire c3 --wait'


def rows(*steps):
    """Return rows of the table, from pairs of host and command."""
    return [{'Host': host, 'Do': do} for host, do in steps]


def test_same_command_is_run_on_all_controllers_at_once():
    """While nobody serves the hosts, each second counts."""
    found = recipe.at_once(
        rows(('c1', STOP), ('c2', STOP), ('c1', START), ('c2', START))
    )
    assert [(row['Host'], row['Do'], row['Count']) for row in found] == [
        ('c1, c2', STOP, 2),
        ('c1, c2', START, 2),
    ]


def test_other_commands_are_run_one_by_one():
    """The plan is read again after each."""
    (first,) = recipe.at_once(rows(('c3', RETIRE), ('c4', RETIRE)))
    assert (first['Host'], first['Count']) == ('c3', 1)
    (first,) = recipe.at_once(rows(('c3', RETIRE), ('c1', STOP)))
    assert first['Do'] == RETIRE


def test_commands_after_the_start_wait_for_a_look():
    """The new plan must be the rest first."""
    found = recipe.at_once(rows(('c1', START), ('c3', RETIRE)))
    assert [row['Do'] for row in found] == [START]

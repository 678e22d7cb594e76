# SPDX-License-Identifier: Apache-2.0
"""A wrong configuration gives one sentence and exit status 78."""

import subprocess
import sys

import pytest


@pytest.mark.parametrize(
    ('command', 'arguments', 'status'),
    [
        ('agent', [], 78),
        ('ctl', ['host', 'list'], 78),
        ('status', ['upgrade', 'check'], 2),
    ],
)
def test_a_configuration_that_is_not_there(
    command: str, arguments: list[str], status: int
) -> None:
    """The file is named, and no traceback is shown."""
    program = [sys.executable, '-W', 'ignore', '-m']
    file = ['--config-file', '/nowhere/nova.conf']
    done = subprocess.run(
        [*program, f'ironic_compute.cmd.{command}', *file, *arguments],
        check=False,
        capture_output=True,
        text=True,
        timeout=120.0,
    )
    assert done.returncode == status
    assert 'Traceback' not in done.stderr
    assert '/nowhere/nova.conf' in done.stderr

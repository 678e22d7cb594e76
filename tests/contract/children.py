# SPDX-License-Identifier: Apache-2.0
"""Processes that end with the test run that started them, however it ends.

A pytest that is killed finishes no fixture. The kernel ends its children
then: those that are started here, and from a thread that stays.
"""

import functools
import os
import subprocess
from collections.abc import Sequence
from typing import Any

from ironic_compute.agent.parent_process import kill_with_parent


def start(
    command: Sequence[str | os.PathLike[str]], **arguments: Any
) -> 'subprocess.Popen[Any]':
    """Start a program that dies with us; arguments are Popen's."""
    return subprocess.Popen(
        command,
        preexec_fn=functools.partial(kill_with_parent, os.getpid()),
        **arguments,
    )

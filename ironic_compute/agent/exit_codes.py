# SPDX-License-Identifier: Apache-2.0
"""Exit statuses of the agent and of its workers."""

import logging as py_logging
import os
import sys
from typing import NoReturn

EX_OSERR = 71
"""A process could not be started (sysexits.h)."""

EX_CONFIG = 78
"""The configuration is wrong (sysexits.h); systemd must not restart."""

EX_AGENT_SILENT = 79
"""A worker ended itself: its agent lives and sends no messages."""

EX_AGENT_GONE = 80
"""A worker ended itself: its agent is gone."""

EX_RPC_FAILED = 81
"""A worker ended itself: it could not receive RPC any more."""

EX_FILES_CHANGED = 82
"""A fork server ended itself: files that it had loaded have changed."""

EX_KEYSTONE_REFUSED = 83
"""A worker ended itself: Keystone refuses a user of nova.conf."""


def print_config_error(sentence: object) -> int:
    """Print a configuration error on stderr; return the exit status."""
    print(f'ironic-compute: {sentence}', file=sys.stderr)
    return EX_CONFIG


def exit_now(status: int) -> NoReturn:
    """End this process without joining threads.

    The interpreter's own exit joins the threads of all pools. An idle one
    notices that within a second only, and another may wait without end for a
    coordination backend that does not answer.
    """
    py_logging.shutdown()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)

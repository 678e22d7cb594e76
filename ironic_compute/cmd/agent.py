# SPDX-License-Identifier: Apache-2.0
"""ironic-compute: command of the agent, the daemon of each controller.

It reads nova.conf, joins the group of its pool and starts a worker for each
host it serves. It sends no request to Nova or Ironic.

The first steps must come before any library is imported. Several of them load
eventlet if they find it; an agent runs on threads always, and without eventlet
it needs 20 MiB less of memory. And the agent's fork server is started first,
because it takes longest to load.
"""

import sys
from collections.abc import Sequence
from typing import NoReturn

from ironic_compute.agent import exit_codes
from ironic_compute.agent.parent_process import continue_in_child
from ironic_compute.agent.start_process import (
    start_fork_server_early,
    take_predecessor_fd,
)


def main(argv: Sequence[str] | None = None) -> int:
    """Run the agent until a signal stops it.

    :returns: 0; or 78 with one sentence on stderr if the configuration is
        wrong
    """
    _forbid_eventlet()
    arguments = list(sys.argv[1:] if argv is None else argv)
    predecessor_fd, arguments = take_predecessor_fd(arguments)
    if predecessor_fd is not None:
        continue_in_child(predecessor_fd)
    fork_server = start_fork_server_early(arguments)

    from ironic_compute.cmd import daemon

    return daemon.run(arguments, fork_server, predecessor_fd)


def _forbid_eventlet() -> None:
    """Make each later import of eventlet fail, as if it were not installed."""
    if not any(name.split('.')[0] == 'eventlet' for name in sys.modules):
        sys.modules['eventlet'] = None  # type: ignore[assignment]


def entry() -> NoReturn:
    """Run the agent, then end this process."""
    exit_codes.exit_now(main())


if __name__ == '__main__':
    entry()

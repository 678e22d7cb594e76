# SPDX-License-Identifier: Apache-2.0
"""ironic-compute-worker: command of a worker, which its agent starts.

The order of the first steps matters. The kernel must first be set to kill this
process when its agent ends; then the agent gets a first sign of life, because
the imports may take a minute on a busy machine; then Nova must choose threads
or eventlet before any other import.

With ``--fork-fd`` it is the agent's fork server and forks workers, which go on
here.
"""

import argparse
import os
import signal
from collections.abc import Sequence
from typing import NoReturn

from hashring.clock import SystemClock
from ironic_compute.agent import exit_codes
from ironic_compute.agent.parent_process import kill_with_parent

_SIGNALS_OF_THE_AGENT = (signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2)
# ``pipe.IsStarting`` as a line; importing ``pipe`` would be too early here.
STARTING = b'{"is":"alive","starting":true}\n'


def main(argv: Sequence[str] | None = None) -> int:
    """Serve one host until SIGTERM or until the agent ends.

    :returns: 0; or 78 with one sentence if the configuration is wrong
    """
    arguments, config_arguments = _parser().parse_known_args(argv)
    # The agent passes these signals on through its pipe. ``systemctl kill``
    # and ``systemctl reload`` may send them to all processes of the unit, and
    # Nova's service would restart itself in the middle of its work.
    signal.pthread_sigmask(signal.SIG_BLOCK, _SIGNALS_OF_THE_AGENT)
    kill_with_parent(arguments.agent_pid)
    began_s = SystemClock().wall_s()
    if arguments.fork_fd is None:
        os.write(arguments.report_fd, STARTING)

    from ironic_compute import compat

    compat.patch_concurrency()
    if arguments.fork_fd is not None:
        arguments.report_fd = _serve_forks(arguments, began_s)
        os.write(arguments.report_fd, STARTING)

    from ironic_compute.worker import process

    return process.run(arguments, config_arguments)


def _serve_forks(arguments: argparse.Namespace, began_s: float) -> int:
    """Be the fork server; return in each worker that it forks.

    :returns: the file descriptor of the worker's pipe that the agent reads
    """
    from ironic_compute.worker import forking

    def load() -> None:
        from ironic_compute.worker import preloading

        preloading.load()

    fd, agent_pid = arguments.fork_fd, arguments.agent_pid
    return forking.serve(fd, agent_pid, began_s, load)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog='ironic-compute-worker',
        description='Serves one Nova host as nova-compute would. The agent, '
        'ironic-compute, starts it and sends it the host; it cannot be '
        'started by hand. All other options (--config-file, --debug …) '
        "are Nova's.",
        allow_abbrev=False,
    )
    parser.add_argument(
        '--agent-pid', type=int, required=True, help='process of the agent'
    )
    ties = parser.add_mutually_exclusive_group(required=True)
    ties.add_argument(
        '--report-fd',
        type=int,
        help='file descriptor of the pipe that the agent reads',
    )
    ties.add_argument(
        '--fork-fd',
        type=int,
        help='file descriptor of the socket on which the agent requests '
        'workers that this process forks',
    )
    return parser


def entry() -> NoReturn:
    """Serve one host, then end this process."""
    exit_codes.exit_now(main())


if __name__ == '__main__':
    entry()

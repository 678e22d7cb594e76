# SPDX-License-Identifier: Apache-2.0
"""ironic-compute-worker: command of a worker, which its agent starts.

The order of the first steps matters. The kernel must first be set to kill this
process when its agent ends; then the agent gets a first sign of life, because
the imports may take a minute on a busy machine; then Nova must choose threads
or eventlet before any other import.
"""

import argparse
import ctypes
import os
import signal
import sys
from collections.abc import Sequence

_PR_SET_PDEATHSIG = 1
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
    os.write(arguments.report_fd, STARTING)

    from ironic_compute import compat

    compat.patch_concurrency()

    from ironic_compute.worker import process

    return process.run(arguments, config_arguments)


def kill_with_parent(parent_pid: int) -> None:
    """Make the kernel kill this process when its parent ends."""
    libc = ctypes.CDLL(None, use_errno=True)
    libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent_pid:
        # The parent ended before the call of prctl.
        os.kill(os.getpid(), signal.SIGKILL)


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
    parser.add_argument(
        '--report-fd',
        type=int,
        required=True,
        help='file descriptor of the pipe that the agent reads',
    )
    return parser


if __name__ == '__main__':
    sys.exit(main())

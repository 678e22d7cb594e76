# SPDX-License-Identifier: Apache-2.0
"""How an agent starts a worker or its fork server.

The command of the agent starts the fork server before it imports anything
else, so that both load at the same time and its host is served sooner.
Therefore this module imports no library.
"""

import os
import socket
import subprocess
import sys
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from ironic_compute.agent import fork_messages

# The C library keeps an arena of memory for every few threads and does not
# return it: 20 MiB stayed in use after each list of thousands of nodes. Two
# arenas suffice, because Python runs one thread at a time. Variables of the
# operator's environment take precedence.
_MALLOC = {'MALLOC_ARENA_MAX': '2', 'MALLOC_TRIM_THRESHOLD_': str(128 * 1024)}

# Only the agent notifies systemd. Nova's service would do so on eventlet, and
# systemd would log that it ignores it.
_OF_SYSTEMD = ('NOTIFY_SOCKET', 'WATCHDOG_PID', 'WATCHDOG_USEC')

PREDECESSOR_OPTION = '--predecessor-fd'
"""An agent passes it to the agent that replaces it."""

# With these options the agent prints something and ends.
_PRINTS = frozenset({'-h', '--help', '--version'})


class StartedForkServer(NamedTuple):
    """A fork server that is loading Nova."""

    process: subprocess.Popen[bytes]
    socket: socket.socket
    """The agent's end; does not block."""

    def kill(self) -> None:
        """End it, because the agent wants none."""
        self.process.kill()
        self.process.wait()
        self.socket.close()


def start_fork_server(command: Sequence[str]) -> StartedForkServer:
    """Start a fork server.

    :param command: the command line of a worker
    :raises OSError: the process cannot be started
    """
    ours, theirs = fork_messages.make_sockets()
    with theirs:
        try:
            process = start_process(
                command,
                ('--fork-fd', str(theirs.fileno())),
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
            )
        except OSError:
            ours.close()
            raise
    ours.setblocking(False)
    return StartedForkServer(process, ours)


def start_fork_server_early(
    arguments: Sequence[str],
) -> StartedForkServer | None:
    """Start the fork server of an agent that has loaded nothing yet.

    :param arguments: the command line of the agent
    :returns: None if the agent only prints something, or the process cannot be
        started: the agent tries again, and says why it cannot
    """
    if not _PRINTS.isdisjoint(arguments):
        return None
    try:
        return start_fork_server(worker_command(arguments))
    except OSError:
        return None


def start_process(
    command: Sequence[str],
    arguments: Sequence[str],
    *,
    pass_fds: Sequence[int],
    stdin: int,
) -> subprocess.Popen[bytes]:
    """Start a process of the agent.

    :param command: the command line of a worker
    :param arguments: appended to it, after ``--agent-pid``
    :param pass_fds: what the process inherits besides ``stdin``
    :raises OSError: the process cannot be started
    """
    return subprocess.Popen(  # noqa: S603 - our own command line
        [*command, '--agent-pid', str(os.getpid()), *arguments],
        stdin=stdin,
        pass_fds=pass_fds,
        # The process gets a process group of its own, so that a Ctrl-C in the
        # terminal reaches the agent alone.
        process_group=0,
        env=make_environment(os.environ),
    )


def make_environment(agents: Mapping[str, str]) -> dict[str, str]:
    """Return the environment of a worker.

    :param agents: the environment of the agent
    """
    kept = {k: v for k, v in agents.items() if k not in _OF_SYSTEMD}
    return {**_MALLOC, **kept}


def worker_command(config_arguments: Sequence[str]) -> list[str]:
    """Return the command line of a worker with the agent's nova.conf.

    :param config_arguments: ``--config-file X --debug …`` as the agent got
        them
    """
    script = os.path.join(
        os.path.dirname(os.path.abspath(sys.argv[0])), 'ironic-compute-worker'
    )
    if os.access(script, os.X_OK):
        start = [script]
    else:
        start = [sys.executable, '-m', 'ironic_compute.cmd.worker']
    return [*start, *config_arguments]


def take_predecessor_fd(
    arguments: Sequence[str],
) -> tuple[int | None, list[str]]:
    """Return the socket of an agent that replaces another, and the options.

    :param arguments: the command line of the agent
    :returns: the number of the socket, None if it replaces no other agent; and
        all options that an operator can give
    """
    options = list(arguments)
    if PREDECESSOR_OPTION not in options:
        return None, options
    place = options.index(PREDECESSOR_OPTION)
    _, fd = options[place : place + 2]
    del options[place : place + 2]
    return int(fd), options

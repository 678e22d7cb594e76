# SPDX-License-Identifier: Apache-2.0
"""ironic-compute: the daemon an operator starts on each controller.

It reads nova.conf, joins the group of its pool and starts a worker for each
host it serves. It never talks to Nova or Ironic itself.
"""

import logging as py_logging
import os
import signal
import sys
from collections.abc import Sequence
from typing import Any, NoReturn

import nova.conf
from oslo_config import cfg
from oslo_log import log as logging

import hashring.errors
import hashring.opts
import resource_tracker.opts
from hashring.agent import Agent
from ironic_compute import agent as agent_process
from ironic_compute import exits, opts

CONF = nova.conf.CONF

PROG = 'ironic-compute'
OWN_CONFIG = '/etc/ironic-compute/ironic-compute.conf'


def register_opts(conf: Any) -> None:
    """Register the options of all three packages."""
    for package in (hashring, resource_tracker):
        package.opts.register_opts(conf)
    opts.register_opts(conf)


def default_config_files() -> list[str]:
    """Return what is read when no --config-file is given."""
    found: list[str] = cfg.find_config_files(project='nova', prog=PROG)
    return [*found, *([OWN_CONFIG] if os.path.exists(OWN_CONFIG) else [])]


def main(argv: Sequence[str] | None = None) -> int:
    """Run the agent until it is told to stop.

    SIGTERM and SIGINT: for a restart, so its hosts are left alone for a
    while. SIGUSR1: for long, so they are adopted at once.

    :returns: 0; or 78 with one sentence on stderr if the configuration is
        wrong
    """
    arguments = list(sys.argv[1:] if argv is None else argv)
    try:
        _configure(arguments)
        files = CONF.config_file or []
        command = agent_process.worker_command(
            [word for path in files for word in ('--config-file', path)]
        )
        agent = agent_process.build_agent(CONF, command)
    except (cfg.Error, hashring.errors.ConfigError) as exc:
        return exits.refuse(exc)
    return _run(agent)


def _configure(arguments: list[str]) -> None:
    logging.register_options(CONF)
    register_opts(CONF)
    CONF(
        arguments,
        project='nova',
        prog=PROG,
        default_config_files=default_config_files(),
    )
    logging.setup(CONF, PROG)


def _run(agent: Agent) -> int:
    signal.signal(signal.SIGTERM, lambda *_: agent.request_stop())
    signal.signal(signal.SIGINT, lambda *_: agent.request_stop())
    signal.signal(signal.SIGUSR1, lambda *_: agent.request_stop(drain=True))
    status = agent.run()
    if agent.sentence is not None:
        exits.refuse(agent.sentence)
    return status


def entry() -> NoReturn:
    """Run the daemon, and end although a thread of a driver still waits.

    What concurrent.futures and tooz's drivers do at the interpreter's exit
    is to join such threads; one may wait for a backend that is away.
    """
    status = main()
    py_logging.shutdown()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)


if __name__ == '__main__':
    entry()

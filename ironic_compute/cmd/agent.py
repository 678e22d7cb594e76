# SPDX-License-Identifier: Apache-2.0
"""ironic-compute: command of the agent, the daemon of each controller.

It reads nova.conf, joins the group of its pool and starts a worker for each
host it serves. It sends no request to Nova or Ironic.
"""

import logging as py_logging
import os
import sys
from collections.abc import Sequence
from typing import NoReturn

import nova.conf
from oslo_log import log as logging

import hashring.errors
import hashring.opts
from hashring.agent import Agent
from ironic_compute import config, errors, instructions
from ironic_compute.agent import build as agent_process
from ironic_compute.agent import exit_codes, worker_processes

CONF = nova.conf.CONF


def main(argv: Sequence[str] | None = None) -> int:
    """Run the agent until a signal stops it.

    :returns: 0; or 78 with one sentence on stderr if the configuration is
        wrong
    """
    arguments = list(sys.argv[1:] if argv is None else argv)
    try:
        with config.translated_errors(arguments):
            _configure(arguments)
            agent, signals = agent_process.build_agent(
                CONF, config.PROG, worker_processes.worker_command(arguments)
            )
    except (errors.ConfigError, hashring.errors.ConfigError) as exc:
        return exit_codes.print_config_error(exc)
    signals.install(agent)
    return _run(agent)


def _configure(arguments: list[str]) -> None:
    logging.register_options(CONF)
    config.register_opts(CONF)
    CONF(
        arguments,
        project='nova',
        prog=config.PROG,
        version=instructions.version(),
        default_config_files=config.default_config_files(),
        description='Serves bare metal nodes of Ironic as compute hosts of '
        'Nova: the daemon of one controller. Several daemons divide the nodes '
        'among them, and take the hosts of a dead one over.',
    )
    config.check_values(CONF)
    config.set_up_logging(CONF, config.PROG)


def _run(agent: Agent) -> int:
    status = agent.run()
    if agent.exit_message is not None:
        exit_codes.print_config_error(agent.exit_message)
    return status


def entry() -> NoReturn:
    """Run the agent, then exit without joining threads.

    concurrent.futures and tooz's drivers join their threads when the
    interpreter exits; a thread may wait without end for a coordination backend
    that does not answer.
    """
    status = main()
    py_logging.shutdown()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)


if __name__ == '__main__':
    entry()

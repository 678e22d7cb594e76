# SPDX-License-Identifier: Apache-2.0
"""The agent's process: it reads nova.conf, then runs until it is stopped."""

from typing import Any

from oslo_config import cfg
from oslo_log import log as logging

import hashring.errors
from ironic_compute import config, errors, instructions
from ironic_compute.agent import (
    build,
    exit_codes,
    start_process,
    successor,
)
from ironic_compute.cmd import nova_options

LOG = logging.getLogger(__name__)

# oslo.reports writes the options of this object.
CONF = cfg.CONF

_DESCRIPTION = (
    'Serves bare metal nodes of Ironic as compute hosts of Nova: the daemon '
    'of one controller. Several daemons divide the nodes among them, and take '
    'the hosts of a dead one over.'
)


def run(
    arguments: list[str],
    fork_server: start_process.StartedForkServer | None = None,
    predecessor_fd: int | None = None,
) -> int:
    """Run the agent until a signal stops it.

    :param arguments: the command line
    :param fork_server: the agent's fork server, if it was started before
    :param predecessor_fd: the socket of the daemon that this one replaces
    :returns: 0; or 78 with one sentence on stderr if the configuration is
        wrong; or 71 if it should replace a daemon and cannot load Nova
    """
    predecessor = successor.Predecessor.of(predecessor_fd)
    commands = build.Commands(
        worker=start_process.worker_command(arguments),
        agent=successor.agent_command(arguments),
    )
    try:
        with config.translated_errors(arguments):
            configure(CONF, arguments)
            daemon = build.build_agent(
                CONF, config.PROG, commands, fork_server, predecessor
            )
    except (errors.ConfigError, hashring.errors.ConfigError) as exc:
        return exit_codes.print_config_error(exc)
    except successor.NovaNotLoaded as exc:
        LOG.error('This daemon replaces no other one: %(why)s', {'why': exc})
        return exit_codes.EX_OSERR
    daemon.signals.install(daemon.agent)
    return _run(daemon)


def configure(conf: Any, arguments: list[str]) -> None:
    """Read nova.conf and open the log.

    :raises errors.ConfigError: the configuration is wrong
    :raises cfg.Error: the same
    """
    nova_options.register_opts(conf, lambda trial: _read(trial, arguments))
    _read(conf, arguments)
    config.check_values(conf)
    config.set_up_logging(conf, config.PROG)
    if unknown := config.find_unknown_options(conf):
        LOG.warning(
            'nova.conf sets options that do not exist, so they have no '
            'effect: %(options)s',
            {'options': ', '.join(unknown)},
        )


def _read(conf: Any, arguments: list[str]) -> None:
    logging.register_options(conf)
    config.register_opts(conf)
    instructions.register_opts(conf)
    conf(
        arguments,
        project='nova',
        prog=config.PROG,
        version=instructions.version(),
        default_config_files=config.default_config_files(),
        description=_DESCRIPTION,
    )


def _run(daemon: build.Daemon) -> int:
    agent = daemon.agent
    status = agent.run()
    if agent.exit_message is not None:
        exit_codes.print_config_error(agent.exit_message)
    leaving = agent.assignment.leaving
    status, next_pid = daemon.successor.settle(
        status, is_restart=leaving is not None and leaving.restarting
    )
    if next_pid and daemon.watchdog.name_main_process(next_pid):
        # systemd ignores the status of a process that is not the main one any
        # more. If it has not heard that, it must start a daemon.
        status = exit_codes.EX_OSERR
    daemon.successor.pass_order_on()
    return status

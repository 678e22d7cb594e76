# SPDX-License-Identifier: Apache-2.0
"""ironic-computectl: what an operator asks and tells the daemons.

It reads the same nova.conf as the daemons and needs no rights but theirs.
"""

import sys
from collections.abc import Sequence
from typing import Any

import nova.conf
from cliff import app, commandmanager, lister
from oslo_config import cfg
from oslo_log import log as logging

import hashring.errors
from hashring import membership
from ironic_compute import exits
from ironic_compute.agent import group_name
from ironic_compute.cmd.agent import default_config_files, register_opts

CONF = nova.conf.CONF


class HostList(lister.Lister):
    """List the hosts of this pool, and which agent serves each now."""

    def take_action(self, parsed_args: Any) -> tuple[Any, Any]:
        """Ask the coordination backend."""
        members = membership.observe(
            CONF.coordination.backend_url,
            group_name(CONF.ironic.conductor_group, CONF.ironic.shard),
            term_s=CONF.coordination.lease_term_s,
        )
        served = {h: m for m in members for h in m.serving}
        known = {h for m in members for h in (m.home, *m.known)}
        columns = ('Host', 'Served by', 'Machine', 'State')
        rows = []
        for host in sorted(known | set(served)):
            by = served.get(host)
            if by is None:
                rows.append((host, '-', '-', 'not served'))
            else:
                how = 'home' if by.home == host else 'adopted'
                rows.append((host, by.home, by.machine, how))
        return columns, rows


class ControlApp(app.App):
    """The command line."""

    def __init__(self) -> None:
        super().__init__(
            description='Ask the bare metal compute daemons of a pool who '
            'serves which host.',
            version='1',
            command_manager=commandmanager.CommandManager('ironic_computectl'),
            deferred_help=True,
        )
        self.command_manager.add_command('host list', HostList)

    def build_option_parser(self, *args: Any, **kwargs: Any) -> Any:
        """Add where the configuration is."""
        parser = super().build_option_parser(*args, **kwargs)
        parser.add_argument(
            '--config-file',
            action='append',
            default=[],
            help='nova.conf and what the daemon reads besides; may be given '
            'several times (default: what the daemon reads by default)',
        )
        return parser

    def initialize_app(self, argv: Any) -> None:
        """Read the configuration."""
        logging.register_options(CONF)
        register_opts(CONF)
        files = self.options.config_file or default_config_files()
        CONF([], project='nova', default_config_files=files)


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command.

    :returns: 0; 78 with one sentence if the configuration is wrong
    """
    try:
        status: int = ControlApp().run(
            list(sys.argv[1:] if argv is None else argv)
        )
    except (cfg.Error, hashring.errors.HashringError) as exc:
        return exits.refuse(exc)
    return status


if __name__ == '__main__':
    sys.exit(main())

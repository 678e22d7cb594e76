# SPDX-License-Identifier: Apache-2.0
"""ironic-computectl: the operator's commands about nodes and hosts.

It reads the same nova.conf as the daemons and needs no other rights.
"""

import dataclasses
import logging as py_logging
import sys
from collections.abc import Sequence
from typing import Any

import nova.conf
from cliff import app, commandmanager, lister
from oslo_log import log as logging

import hashring.errors
from hashring.ring import Host
from ironic_compute import config, errors, instructions
from ironic_compute.agent import exit_codes
from ironic_compute.cmd import nova_hosts
from ironic_compute.cmd.drain import HostDrain, HostRetire, HostUndrain
from ironic_compute.cmd.fsck import Fsck
from ironic_compute.cmd.history import History
from ironic_compute.cmd.host_views import HostList, HostShow
from ironic_compute.cmd.hosts import HostAdopt, HostForget, HostMapped
from ironic_compute.cmd.migrate import MigratePlan
from ironic_compute.cmd.node_moves import (
    NodeArgument,
    NodeMove,
    NodeUnpin,
    find_node,
    no_answer,
    read_holder,
    read_row,
)
from ironic_compute.cmd.node_views import NodeList, NodeOwner
from ironic_compute.cmd.nova_access import (
    NovaRefused,
    ask_worker,
    try_soon,
    use_nova_conductor,
)
from ironic_compute.cmd.nova_hosts import NovaHost
from ironic_compute.cmd.pool_views import PoolDoctor, PoolList, PoolShow
from ironic_compute.cmd.rebalance import PoolRebalanceCommand
from ironic_compute.cmd.ring_views import RingShow
from ironic_compute.gate import NeverOpen
from ironic_compute.ironic_api.client import IronicClient, make_client
from ironic_compute.nodes.pins import Pin, read_pin
from resource_tracker.node import NodeId
from resource_tracker.placement import Placement

CONF = nova.conf.CONF

# They log each attempt, or what an error says too; the command prints the
# error that ends it.
_LIBRARIES = ('kazoo', 'keystoneauth', 'stevedore', 'oslo.messaging')

# The columns of ``node explain``.
COLUMNS = ('Check', 'Finding', 'What to do')
# ``node explain`` waits no longer for nova-conductor.
_NOVA_TIMEOUT_S = 10.0
# An ``explain.Evidence``, whose module imports Nova's objects.
Evidence = Any
_CONFIG_ERRORS = (errors.ConfigError, hashring.errors.ConfigError)


class NodeExplain(NodeArgument, lister.Lister):
    """Show why a node is or is not offered to builds, and its pin."""

    def take_action(self, parsed_args: Any) -> tuple[Any, Any]:
        """Read Ironic and Placement and print the findings."""
        from ironic_compute.cmd.explain import explain, explain_pin
        from ironic_compute.nodes import placement_reports

        evidence = collect(
            parsed_args.node,
            make_client(CONF, NeverOpen()),
            Placement(placement_reports.make_adapter(CONF)),
        )
        row = read_row_soon(evidence.facts.uuid)
        if not isinstance(row, NovaRefused):
            evidence = dataclasses.replace(
                evidence,
                holder=None if row is None else Host(row.host),
                is_holder_read=True,
                row_uuid=None if row is None else row.uuid,
                nova=None if row is None else read_host_soon(row.host),
            )
        findings = [*explain(evidence), *explain_pin(pin_of(row))]
        return COLUMNS, [
            (one.check.name if one.check else '-', one.text, one.remedy)
            for one in findings
        ]


class NodeForget(NodeArgument):
    """Remove the records of a node that was moved to another pool.

    Use it for a node that is still in Ironic, but with another conductor group
    or shard than this pool has, if no daemon of its new pool is up. Otherwise
    the node goes to that pool by itself. Use it also for a node that has a
    parent node in Ironic, such as a smart NIC, which is in no pool. The host
    that holds the node removes its compute node record and its provider, if
    the node has no server and no allocation.
    """

    def take_action(self, parsed_args: Any) -> None:
        """Send the request to the host that holds the node.

        :raises NovaRefused: with the reason
        """
        node = find_node(parsed_args.node)
        use_nova_conductor()
        why_not = forget_node(node)
        if why_not is not None:
            raise NovaRefused(why_not)
        print(f'Removed the records of node {node}.', file=self.app.stdout)


def forget_node(node: NodeId) -> str | None:
    """Make the holder remove a node's records.

    :returns: None, or a sentence with the reason of a refusal
    :raises NovaRefused: the holder does not answer, or has failed
    """
    from ironic_compute.ownership import peer_rpc

    holder = read_holder(node)
    if holder is None:
        return f'Nova has no record of node {node}; there is nothing to do'
    return ask_worker(
        lambda: peer_rpc.request_forget_node(holder, node),
        no_answer=f'{no_answer(node, holder)}. It may still remove them',
        too_old=f'Host {holder} holds node {node}, and no ironic-compute '
        f'serves it',
    )


def pin_of(row: Any | NovaRefused | None) -> Pin | NovaRefused | None:
    """Return the pin in a record, or why the record was not read."""
    return (
        row if row is None or isinstance(row, NovaRefused) else read_pin(row)
    )


def read_row_soon(node: NodeId) -> Any | NovaRefused | None:
    """Read the record of a node, or return why it cannot be read now."""

    def read() -> Any | None:
        use_nova_conductor()
        return read_row(node)

    return try_soon(read, _NOVA_TIMEOUT_S)


def read_host_soon(name: str | None) -> NovaHost | None:
    """Read what Nova has of a host; None if it cannot be read now.

    Call it after `read_row_soon`, which connects to nova-conductor.
    """
    if not name:
        return None
    host = Host(name)
    found = try_soon(lambda: nova_hosts.read_hosts([host]), _NOVA_TIMEOUT_S)
    return None if isinstance(found, NovaRefused) else found[host]


def collect(node: str, client: IronicClient, placement: Placement) -> Evidence:
    """Read the state of a node from Ironic and Placement."""
    from ironic_compute.cmd.explain import Evidence

    facts = client.read_node(node)
    uuid = placement.read_provider_uuid(facts.uuid)
    return Evidence(
        facts=facts,
        in_pool=client.is_in_pool(facts),
        provider=placement.read_provider(uuid) if uuid else None,
        consumers=placement.read_consumers(uuid) if uuid else frozenset(),
    )


class ControlApp(app.App):
    """The cliff application of ironic-computectl."""

    def __init__(self) -> None:
        super().__init__(
            description='Shows the hosts and nodes of a pool of bare metal '
            'compute daemons: which daemon serves each host, and why a node '
            'is not offered to builds. Adds, empties, retires and '
            'forgets hosts, removes the records of a node that left the '
            'pool, moves nodes with their servers, evens the pool out, shows '
            'what has moved, and plans the way from nova-compute to a pool, '
            'and back.',
            version=instructions.version(),
            command_manager=commandmanager.CommandManager('ironic_computectl'),
            deferred_help=True,
        )
        self.command_manager.add_command('fsck', Fsck)
        self.command_manager.add_command('history', History)
        self.command_manager.add_command('host list', HostList)
        self.command_manager.add_command('host show', HostShow)
        self.command_manager.add_command('host adopt', HostAdopt)
        self.command_manager.add_command('host forget', HostForget)
        self.command_manager.add_command('host mapped', HostMapped)
        self.command_manager.add_command('host drain', HostDrain)
        self.command_manager.add_command('host retire', HostRetire)
        self.command_manager.add_command('host undrain', HostUndrain)
        self.command_manager.add_command('migrate plan', MigratePlan)
        self.command_manager.add_command('node explain', NodeExplain)
        self.command_manager.add_command('node forget', NodeForget)
        self.command_manager.add_command('node list', NodeList)
        self.command_manager.add_command('node move', NodeMove)
        self.command_manager.add_command('node owner', NodeOwner)
        self.command_manager.add_command('node unpin', NodeUnpin)
        self.command_manager.add_command('pool doctor', PoolDoctor)
        self.command_manager.add_command('pool list', PoolList)
        self.command_manager.add_command(
            'pool rebalance', PoolRebalanceCommand
        )
        self.command_manager.add_command('pool show', PoolShow)
        self.command_manager.add_command('ring show', RingShow)

    def build_option_parser(self, *args: Any, **kwargs: Any) -> Any:
        """Add the options that name configuration files."""
        parser = super().build_option_parser(*args, **kwargs)
        parser.add_argument(
            '--config-file',
            action='append',
            default=[],
            help='a configuration file of the daemon; may be given several '
            'times (default: the files that the daemon reads by default)',
        )
        parser.add_argument(
            '--config-dir',
            action='append',
            default=[],
            help='a folder with further configuration files of the daemon; '
            'may be given several times',
        )
        return parser

    def initialize_app(self, argv: Any) -> None:
        """Read the configuration.

        :raises SystemExit: 78, if the configuration is wrong; cliff would
            make any other error an exit status of 1
        """
        logging.register_options(CONF)
        config.register_opts(CONF)
        for name in _LIBRARIES:
            py_logging.getLogger(name).setLevel(py_logging.CRITICAL)
        try:
            _read_config(self.options.config_file, self.options.config_dir)
        except errors.ConfigError as exc:
            raise SystemExit(exit_codes.print_config_error(exc)) from exc

    def interact(self) -> None:
        """Read commands from the input; the command line has none.

        cmd2 would run the words of the command line as commands. They are
        options, which were read before: "ironic-computectl --config-file FILE"
        printed that --config-file is no command.
        """
        words, sys.argv = sys.argv, sys.argv[:1]
        try:
            super().interact()
        finally:
            sys.argv = words

    def clean_up(
        self, cmd: Any, result: int, err: BaseException | None
    ) -> None:
        """End with status 78 if a command found the configuration wrong.

        :raises SystemExit: 78; cliff has printed the error, and would make it
            an exit status of 1
        """
        if isinstance(err, _CONFIG_ERRORS):
            raise SystemExit(exit_codes.EX_CONFIG)


def _read_config(files: Sequence[str], folders: Sequence[str]) -> None:
    """Read the configuration as the daemon does.

    :raises errors.ConfigError: it is wrong
    """
    arguments = [
        *(f'--config-file={file}' for file in files),
        *(f'--config-dir={folder}' for folder in folders),
    ]
    with config.translated_errors(arguments):
        CONF(
            arguments,
            project='nova',
            prog=config.PROG,
            default_config_files=config.default_config_files(),
        )
        config.check_values(CONF)


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command.

    :returns: 0; or with one sentence 1 if the command failed, 2 if there is no
        such command, 78 if the configuration is wrong
    """
    status: int = ControlApp().run(
        list(sys.argv[1:] if argv is None else argv)
    )
    return status


if __name__ == '__main__':
    sys.exit(main())

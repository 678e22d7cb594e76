# SPDX-License-Identifier: Apache-2.0
"""Commands of ironic-computectl that choose the host of a node: move, unpin.

They send the request to the worker of the host that holds the node.
"""

import getpass
import os
import socket
import time
from typing import Any

import nova.conf

from hashring.clock import SystemClock
from hashring.ring import Host
from ironic_compute.cmd.explained_command import ExplainedCommand, given_name
from ironic_compute.cmd.nova_access import (
    NovaRefused,
    ask_worker,
    translated_conductor,
    use_nova_conductor,
)
from ironic_compute.gate import NeverOpen
from ironic_compute.ironic_api.client import make_client
from ironic_compute.nodes.pins import Pin
from resource_tracker.node import NodeId

CONF = nova.conf.CONF


class NodeArgument(ExplainedCommand):
    """A command with a node as its argument."""

    def get_parser(self, prog_name: str) -> Any:
        """Add the argument that names the node."""
        parser = super().get_parser(prog_name)
        parser.add_argument(
            'node', type=given_name, help='uuid or name of the node'
        )
        return parser


def find_node(name: str) -> NodeId:
    """Return the uuid of a node in Ironic; blocks.

    :raises errors.NodeNotFound: Ironic has no such node
    """
    return make_client(CONF, NeverOpen()).read_node(name).uuid


def read_row(node: NodeId) -> Any | None:
    """Read the ComputeNode row of a node through nova-conductor; blocks."""
    from ironic_compute.nodes.compute_nodes import ComputeNodes

    compute_nodes = ComputeNodes(NeverOpen(), SystemClock())
    return compute_nodes.list_by_nodes([node]).get(
        node
    ) or compute_nodes.read_by_name(node)


def read_holder(node: NodeId) -> Host | None:
    """Read which host holds a node; None if it has no record in Nova.

    :raises NovaRefused: nova-conductor does not answer, or has failed
    """
    with translated_conductor():
        row = read_row(node)
    return Host(row.host) if row is not None and row.host else None


def no_answer(node: NodeId, holder: Host) -> str:
    """Return a sentence that says which host does not answer."""
    return (
        f'Host {holder} holds node {node} and does not answer; see '
        f'"ironic-computectl host list"'
    )


def describe_caller(wall_s: float) -> str:
    """Return who runs this command, where and when, for other operators."""
    try:
        user = os.environ.get('SUDO_USER') or getpass.getuser()
    except (KeyError, OSError):  # The uid of a container may have no name.
        user = str(os.getuid())
    at = time.strftime('%Y-%m-%d %H:%M UTC', time.gmtime(wall_s))
    return f'{user} on {socket.gethostname()} at {at}'


class NodeMove(NodeArgument):
    """Give a node, with the server on it, to another host, and pin it there.

    The host that holds the node changes the records in Nova; the server runs
    on, and requests of its users are done meanwhile. A node without a server
    moves within seconds. The node stays at the new host, whatever the hash
    ring says, until "node unpin", or while that host is disabled. For a node
    that is at the host already, the command only pins it. Examples:

      ironic-computectl node move bm-17 c2 --dry-run
      ironic-computectl node move bm-17 c2
    """

    def get_parser(self, prog_name: str) -> Any:
        """Add the host, and the options."""
        parser = super().get_parser(prog_name)
        parser.add_argument(
            'host', type=given_name, help='the name of the new host in Nova'
        )
        parser.add_argument(
            '--dry-run',
            action='store_true',
            help='only say whether the node would be moved now',
        )
        parser.add_argument(
            '--replace',
            action='store_true',
            help='also if the node is pinned to another host',
        )
        parser.add_argument(
            '--change-zone',
            action='store_true',
            help='also to a host in another availability zone or in other '
            'host aggregates; the user of the server sees its new zone',
        )
        return parser

    def take_action(self, parsed_args: Any) -> None:
        """Send the request to the host that holds the node.

        :raises NovaRefused: with the reason
        """
        node = find_node(parsed_args.node)
        use_nova_conductor()
        by = describe_caller(SystemClock().wall_s())
        result = move_node(
            node,
            Pin(Host(parsed_args.host), by),
            replaces=parsed_args.replace,
            is_dry_run=parsed_args.dry_run,
            changes_zone=parsed_args.change_zone,
        )
        print(result, file=self.app.stdout)


def move_node(
    node: NodeId,
    pin: Pin,
    *,
    replaces: bool,
    is_dry_run: bool,
    changes_zone: bool = False,
) -> str:
    """Make the holder pin and move a node; return the result as a sentence.

    :raises NovaRefused: with the reason
    """
    from ironic_compute.ownership import peer_rpc

    holder = read_holder(node)
    if holder is None:
        raise NovaRefused(f'Nova has no record of node {node}')
    result = ask_worker(
        lambda: peer_rpc.request_move_node(
            holder,
            node,
            pin,
            replaces=replaces,
            is_dry_run=is_dry_run,
            changes_zone=changes_zone,
        ),
        no_answer=f'{no_answer(node, holder)}. It may still move the node',
        too_old=_too_old(node, holder),
    )
    if result.why_not is not None:
        raise NovaRefused(result.why_not)
    return describe_move(node, pin.host, result, is_dry_run=is_dry_run)


def describe_move(
    node: NodeId, host: Host, result: Any, *, is_dry_run: bool
) -> str:
    """Return what has become of a move that was not refused."""
    would = 'would be' if is_dry_run else 'is'
    if result.server is not None:
        moved = 'would move' if is_dry_run else 'moved'
        return (
            f'Node {node} with server {result.server} {moved} from host '
            f'{result.holder} to host {host}, and {would} pinned there'
        )
    if result.holder == host:
        return f'Node {node} is at host {host}, and {would} pinned there'
    moves = 'would move' if is_dry_run else 'moves'
    return (
        f'Node {node} {would} pinned to host {host}, and {moves} there from '
        f'host {result.holder} within seconds'
    )


def _too_old(node: NodeId, holder: Host) -> str:
    return (
        f'Host {holder} holds node {node}, and its daemon is of an older '
        f'release, which cannot pin a node, or no ironic-compute'
    )


class NodeUnpin(NodeArgument):
    """Let the hash ring decide again which host has a node.

    It ends what "node move" has ordered. A free node goes to the host that the
    ring names. A node with a server stays where it is until the server is
    deleted, or until "pool rebalance --with-servers". Example:

      ironic-computectl node unpin bm-17
    """

    def take_action(self, parsed_args: Any) -> None:
        """Send the request to the host that holds the node.

        :raises NovaRefused: with the reason
        """
        node = find_node(parsed_args.node)
        use_nova_conductor()
        print(unpin_node(node), file=self.app.stdout)


def unpin_node(node: NodeId) -> str:
    """Make the holder unpin a node; return the result as a sentence.

    :raises NovaRefused: with the reason
    """
    from ironic_compute.ownership import peer_rpc

    holder = read_holder(node)
    if holder is None:
        raise NovaRefused(f'Nova has no record of node {node}')
    result = ask_worker(
        lambda: peer_rpc.request_unpin_node(holder, node),
        no_answer=f'{no_answer(node, holder)}. It may still unpin the node',
        too_old=_too_old(node, holder),
    )
    if result.why_not is not None:
        raise NovaRefused(result.why_not)
    if result.former is None:
        return f'Node {node} is not pinned; nothing was changed'
    return (
        f'Node {node} is not pinned to host {result.former} any more; it is '
        f'at host {result.holder}, and the hash ring names '
        f'{result.target or "no host"}'
    )

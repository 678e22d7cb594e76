# SPDX-License-Identifier: Apache-2.0
"""Commands of ironic-computectl that show nodes: list, owner.

Ironic has the nodes and their servers, Nova the host that holds each, and the
coordination backend the daemon that serves the host. Only the worker of a host
knows which of its nodes have changes that are not in Placement.
"""

import dataclasses
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import nova.conf
from cliff import lister, show

from hashring.clock import SystemClock
from hashring.group import Member
from hashring.ring import Host, Ring
from ironic_compute.cmd import agent_ports
from ironic_compute.cmd.explained_command import ExplainedCommand, given_name
from ironic_compute.cmd.host_views import check_known, server_of
from ironic_compute.cmd.hosts import (
    all_hosts,
    own_pool,
    read_members,
    read_pools,
    served_hosts,
)
from ironic_compute.cmd.node_moves import NodeArgument, read_row
from ironic_compute.cmd.nova_access import (
    NovaRefused,
    ask_worker,
    translated_conductor,
    use_nova_conductor,
)
from ironic_compute.cmd.pool_views import unserved_hosts
from ironic_compute.cmd.ring_views import NODES_PER_PAGE, find_ring
from ironic_compute.gate import NeverOpen
from ironic_compute.ironic_api.client import make_client
from ironic_compute.nodes.pins import Pin, read_pin
from ironic_compute.nodes.records import node_of_row
from resource_tracker.node import NodeFacts, NodeId

CONF = nova.conf.CONF

COLUMNS = ('Node', 'Name', 'Host', 'State', 'Server', 'Pinned to')
DIRTY_COLUMNS = (*COLUMNS, 'Seconds')
_NOT_IN_POOL = 'not in this pool in Ironic'

Ages = Mapping[NodeId, float]


@dataclasses.dataclass(frozen=True, slots=True)
class Held:
    """What the record of a node in Nova says."""

    host: Host | None = None
    pin: Pin | None = None


@dataclasses.dataclass(frozen=True, slots=True)
class ListedNode:
    """One node of ``node list``.

    :param facts: None: Ironic does not have it in this pool
    :param dirty_s: the age of its change that is not in Placement; None: it
        has none, or that was not read
    """

    node: NodeId
    facts: NodeFacts | None
    held: Held
    dirty_s: float | None = None

    @property
    def is_free(self) -> bool:
        """Whether it has no server."""
        return self.facts is not None and self.facts.instance_uuid is None

    @property
    def has_server(self) -> bool:
        """Whether it has a server."""
        return self.facts is not None and not self.is_free


def join(
    facts: Iterable[NodeFacts],
    held: Mapping[NodeId, Held],
    hosts: Iterable[Host],
    dirty: Ages,
) -> list[ListedNode]:
    """Return the nodes of a pool, by host and name.

    They are those that Ironic has in the pool, and those that a host of the
    pool still holds.

    :param hosts: the hosts of the pool
    """
    by_node, hosts = {each.uuid: each for each in facts}, frozenset(hosts)
    kept = {node for node, each in held.items() if each.host in hosts}
    found = (
        ListedNode(
            node, by_node.get(node), held.get(node, Held()), dirty.get(node)
        )
        for node in by_node.keys() | kept
    )
    return sorted(found, key=_order)


def _order(listed: ListedNode) -> tuple[str, str, str]:
    name = listed.facts.name if listed.facts is not None else None
    return listed.held.host or '', name or '', listed.node


def row(listed: ListedNode) -> tuple[str, ...]:
    """Return a row of ``node list``."""
    facts, held = listed.facts, listed.held
    return (
        listed.node,
        (facts.name if facts is not None else None) or '-',
        held.host or '-',
        _NOT_IN_POOL if facts is None else _state(facts),
        (facts.instance_uuid if facts is not None else None) or '-',
        held.pin.host if held.pin is not None else '-',
    )


def _state(facts: NodeFacts) -> str:
    state = facts.provision_state or '-'
    return f'{state}, maintenance' if facts.maintenance else state


def read_dirty(
    hosts: Iterable[Host],
    ask: Callable[[Host], Ages],
    note: Callable[[str], None],
) -> dict[NodeId, float]:
    """Return the nodes of these hosts that are dirty, and for how long.

    :param ask: asks the worker of a host
    :param note: shows a sentence about nodes that are missing
    :raises NovaRefused: no host answers
    """
    found: dict[NodeId, float] = {}
    silent: list[str] = []
    hosts = sorted(hosts)
    for host in hosts:
        try:
            found |= ask(host)
        except NovaRefused as exc:
            silent.append(str(exc))
    if silent and len(silent) == len(hosts):
        raise NovaRefused(silent[0])
    for sentence in silent:
        note(sentence)
    return found


def dirty_of(
    members: Sequence[Member],
    host: str,
    ask: Callable[[Host], Ages],
    note: Callable[[str], None],
) -> dict[NodeId, float]:
    """Return the dirty nodes of the hosts that are served; see `read_dirty`.

    :param host: '' for all hosts
    :raises NovaRefused: no wanted host is served, or none answers
    """
    asked = [h for h in served_hosts(members) if host in ('', h)]
    sentences = [
        f'No daemon serves host {each}, so its nodes are missing; see '
        f'"ironic-computectl host list"'
        for each in unserved_hosts(members)
        if host in ('', each)
    ]
    if sentences and not asked:
        raise NovaRefused(sentences[0])
    for sentence in sentences:
        note(sentence)
    return read_dirty(asked, ask, note)


def ask_for_dirty(host: Host) -> Ages:
    """Return the dirty nodes of a host from its worker; blocks.

    :raises NovaRefused: it does not answer, or cannot
    """
    from ironic_compute.ownership import peer_rpc

    return ask_worker(
        lambda: peer_rpc.request_dirty_nodes(host),
        no_answer=f'The worker of host {host} does not answer, so its nodes '
        f'are missing; see "ironic-computectl host list"',
        too_old=f'The daemon that serves host {host} is of an older release, '
        f'so the nodes of the host are missing',
    )


def read_held() -> dict[NodeId, Held]:
    """Read which host holds each node, in one RPC for a thousand nodes.

    :raises NovaRefused: nova-conductor does not answer, or records are deleted
        all the time
    """
    from ironic_compute.fsck import nova_reader
    from ironic_compute.nodes.compute_nodes import ComputeNodes

    clock = SystemClock()
    rows = ComputeNodes(
        NeverOpen(), clock, page_rows=nova_reader.RECORDS_PER_RPC
    )
    reader = nova_reader.NovaReader(rows, clock, lambda sentence: None)
    try:
        with translated_conductor():
            return dict(
                reader.read_records(lambda r: (node_of_row(r), _held(r)))
            )
    except nova_reader.RecordsKeepChanging as exc:
        raise NovaRefused(str(exc)) from exc


def _held(record: Any | None) -> Held:
    if record is None or not record.host:
        return Held()
    return Held(Host(record.host), read_pin(record))


class NodeList(ExplainedCommand, lister.Lister):
    """List the nodes of this pool, the host that holds each, and its server.

    A node that a host of the pool holds although Ironic has it in another
    pool, or not at all, is listed, too. With --dirty, the last column has the
    age of the change that is not in Placement. Examples:

      ironic-computectl node list --host c3 --free
      ironic-computectl node list --dirty
    """

    def get_parser(self, prog_name: str) -> Any:
        """Add the options."""
        parser = super().get_parser(prog_name)
        parser.add_argument(
            '--host',
            type=given_name,
            help='only nodes that this host holds',
        )
        which = parser.add_mutually_exclusive_group()
        which.add_argument(
            '--free', action='store_true', help='only nodes without a server'
        )
        which.add_argument(
            '--with-server',
            action='store_true',
            help='only nodes with a server',
        )
        which.add_argument(
            '--pinned',
            action='store_true',
            help='only nodes that "node move" has pinned to a host',
        )
        which.add_argument(
            '--dirty',
            action='store_true',
            help='only nodes with a change that is not in Placement yet',
        )
        return parser

    def take_action(self, parsed_args: Any) -> tuple[Any, Any]:
        """Read Ironic and Nova, and ask the workers for dirty nodes.

        :raises NovaRefused: the pool has no daemon or no such host, or
            nova-conductor does not answer
        """
        members, host = tuple(read_members()), Host(parsed_args.host or '')
        if host:
            check_known(host, members, own_pool())
        client = make_client(CONF, NeverOpen())
        facts = client.list_nodes(limit=NODES_PER_PAGE)
        use_nova_conductor()
        dirty: Ages = {}
        if parsed_args.dirty:
            dirty = dirty_of(members, host, ask_for_dirty, self._note)
        listed = join(facts, read_held(), all_hosts(members), dirty)
        found = [each for each in listed if is_wanted(each, host, parsed_args)]
        if parsed_args.dirty:
            return DIRTY_COLUMNS, [*_with_ages(found)]
        return COLUMNS, [row(each) for each in found]

    def _note(self, sentence: str) -> None:
        print(sentence, file=self.app.stderr, flush=True)


def is_wanted(listed: ListedNode, host: str, options: Any) -> bool:
    """Return whether a node is one that the options name.

    :param host: '' for all hosts
    :param options: with ``free``, ``with_server``, ``pinned`` and ``dirty``
    """
    return all(
        (
            host in ('', listed.held.host),
            not options.free or listed.is_free,
            not options.with_server or listed.has_server,
            not options.pinned or listed.held.pin is not None,
            not options.dirty or listed.dirty_s is not None,
        )
    )


def _with_ages(found: Iterable[ListedNode]) -> Iterator[tuple[Any, ...]]:
    for each in found:
        if each.dirty_s is not None:
            yield (*row(each), round(each.dirty_s, 1))


def owner_fields(
    facts: NodeFacts,
    held: Held,
    members: Iterable[Member],
    ring: Ring | None,
) -> dict[str, str]:
    """Return the fields of ``node owner``.

    :param members: the daemons of all pools
    :param ring: None: it is not known
    :raises NovaRefused: no host holds the node
    """
    if held.host is None:
        raise NovaRefused(
            f'No host holds node {facts.uuid}: Nova has no record of it; see '
            f'"ironic-computectl node explain {facts.uuid}"'
        )
    server, pin = server_of(held.host, members), held.pin
    return {
        'Node': facts.uuid,
        'Name': facts.name or '-',
        'Host': held.host,
        'Served by': server.home if server is not None else '-',
        'Machine': server.machine if server is not None else '-',
        'Server': facts.instance_uuid or '-',
        'Host in the ring': (ring.target(facts.uuid) if ring else None) or '-',
        'Pinned to': f'{pin.host} by {pin.by}' if pin is not None else '-',
    }


class NodeOwner(NodeArgument, show.ShowOne):
    """Show which host holds a node, and which daemon on which machine acts.

    All requests for a server go to the host that holds its node; the daemon
    that serves this host carries them out. The host that the hash ring names
    gets the node if it is free and not pinned. Example:

      ironic-computectl node owner bm-17
    """

    def take_action(self, parsed_args: Any) -> tuple[Any, Any]:
        """Read Ironic, Nova and the coordination backend.

        :raises NovaRefused: no host holds the node, or nova-conductor does not
            answer
        """
        members = tuple(read_members())
        facts = make_client(CONF, NeverOpen()).read_node(parsed_args.node)
        use_nova_conductor()
        with translated_conductor():
            held = _held(read_row(facts.uuid))
        every = [m for some in read_pools().values() for m in some]
        shown = owner_fields(facts, held, every, _try_ring(members))
        return tuple(shown), tuple(shown.values())


def _try_ring(members: Sequence[Member]) -> Ring | None:
    """Return the ring of the pool, if the daemons or their digest tell it."""
    answers = agent_ports.read_ports(members, agent_ports.RING)
    try:
        return Ring(find_ring(members, answers, lambda: NovaRefused('-')))
    except NovaRefused:
        return None

# SPDX-License-Identifier: Apache-2.0
"""The command that shows the hash ring, and what another host would change.

The daemons publish the digest of their ring and not its hosts. A daemon's port
names the hosts; without a port, the ring of all known hosts may have that
digest; else Nova says which of them are mapped and enabled. A list of hosts
counts only if it has the digest.
"""

import collections
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any

import nova.conf
from cliff import lister

from hashring.group import Boot, Member
from hashring.ring import Host, Ring, digest_of
from ironic_compute.cmd import agent_ports, nova_hosts
from ironic_compute.cmd.explained_command import ExplainedCommand, given_name
from ironic_compute.cmd.hosts import all_hosts, known_hosts, read_members
from ironic_compute.cmd.nova_access import NovaRefused
from ironic_compute.cmd.nova_hosts import NovaHosts
from ironic_compute.gate import NeverOpen
from ironic_compute.ironic_api.client import make_client

CONF = nova.conf.CONF

COLUMNS = ('Host', 'Nodes')
CHANGE_COLUMNS = (*COLUMNS, 'Nodes then', 'Gets', 'Gives')

_NOVA_TIMEOUT_S = 10.0
# The default of Ironic's [api] max_limit.
NODES_PER_PAGE = 1000

ReadNova = Callable[[], NovaHosts | NovaRefused]


def published_digest(members: Iterable[Member]) -> str:
    """Return the digest that most daemons publish.

    :raises NovaRefused: none publishes one
    """
    counts = collections.Counter(m.ring for m in members if m.ring)
    if not counts:
        raise NovaRefused(
            'No daemon of this pool has a ring yet: a worker must have read '
            'Nova\'s Services first; see "ironic-computectl host list"'
        )
    return max(sorted(counts), key=counts.__getitem__)


def find_ring(
    members: Iterable[Member],
    answers: Mapping[Boot, Any],
    read_nova: ReadNova,
) -> frozenset[Host]:
    """Return the hosts of the ring that most daemons have.

    :param answers: those of the ports for ``/api/v1/ring``
    :param read_nova: reads the known hosts from Nova, if the others do not
        suffice
    :raises NovaRefused: they cannot be found
    """
    members = tuple(members)
    digest, known = published_digest(members), frozenset(known_hosts(members))
    for hosts in (*map(_hosts_of, answers.values()), known):
        if digest_of(hosts) == digest:
            return hosts
    found = read_nova()
    why = found
    if not isinstance(found, NovaRefused):
        hosts = frozenset(h for h, each in found.items() if each.gets_nodes)
        if digest_of(hosts) == digest:
            return hosts
        why = NovaRefused('Nova has changed since the daemons have read it')
    raise NovaRefused(
        f'It is not known which hosts are in the ring: no port of a daemon '
        f'answers ([ironic_compute] agent_port), and {why}'
    )


def _hosts_of(answer: Any) -> frozenset[Host]:
    hosts = answer.get('hosts') if isinstance(answer, dict) else None
    if not isinstance(hosts, list):
        return frozenset()
    return frozenset(Host(str(host)) for host in hosts)


def changed_hosts(
    hosts: Collection[Host], added: Iterable[Host], removed: Iterable[Host]
) -> frozenset[Host]:
    """Return the hosts of the ring after a change.

    :raises NovaRefused: a host to be added is in the ring, one to be removed
        is not, or none would be left
    """
    added, removed = frozenset(added), frozenset(removed)
    for host in sorted(added & frozenset(hosts)):
        raise NovaRefused(f'Host {host} is in the ring already')
    for host in sorted(removed - frozenset(hosts)):
        raise NovaRefused(
            f'Host {host} is not in the ring, which has: '
            f'{", ".join(sorted(hosts))}'
        )
    then = (frozenset(hosts) | added) - removed
    if not then:
        raise NovaRefused(
            'No host would be left in the ring; all nodes would stay where '
            'they are'
        )
    return then


def rows(
    nodes: Iterable[str], hosts: Iterable[Host], ring: Ring
) -> list[tuple[str, int]]:
    """Return a row of ``ring show`` for each host.

    :param nodes: the uuids of the nodes of the pool
    :param hosts: hosts that need a row also if they are not in the ring
    """
    counts = collections.Counter(ring.target(node) for node in nodes)
    return [(host, counts[host]) for host in sorted({*hosts, *ring.hosts})]


def change_rows(
    nodes: Sequence[str], hosts: Iterable[Host], now: Ring, then: Ring
) -> list[tuple[str, int, int, int, int]]:
    """Return a row for each host, with what another ring would change.

    See :func:`rows`. The last columns are how many nodes it would get from
    other hosts, and give to them.
    """
    gets: collections.Counter[Host | None] = collections.Counter()
    gives: collections.Counter[Host | None] = collections.Counter()
    for node in nodes:
        before, after = now.target(node), then.target(node)
        if before != after:
            gives[before] += 1
            gets[after] += 1
    every = {*hosts, *now.hosts, *then.hosts}
    counts = dict(rows(nodes, every, now))
    return [
        (h, counts[h], counts[h] + gets[h] - gives[h], gets[h], gives[h])
        for h in sorted(every)
    ]


def describe_change(changes: Iterable[tuple[str, int, int, int, int]]) -> str:
    """Return how many nodes another ring would move, as a sentence."""
    changes = tuple(changes)
    total = sum(row[1] for row in changes)
    moved = sum(row[3] for row in changes)
    return (
        f'{moved} of {total} nodes would have another host. Those without a '
        f'server would move by themselves, the others with "pool rebalance '
        f'--with-servers"; those that "node move" has pinned would stay'
    )


def disagreement(members: Iterable[Member]) -> str | None:
    """Return a sentence if the daemons have different rings, else None."""
    members = tuple(members)
    digest = published_digest(members)
    others = sorted(m.home for m in members if m.ring not in ('', digest))
    if not others:
        return None
    return (
        f'The daemons do not agree about the ring; that of '
        f'{", ".join(others)} is another one than this'
    )


class RingShow(ExplainedCommand, lister.Lister):
    """Show how many nodes the hash ring gives to each host of this pool.

    With --with or --without, also how many it would give to each if a host
    came or went, and how many nodes would move. Nothing is changed. "pool
    rebalance" shows what each host really has. Examples:

      ironic-computectl ring show
      ironic-computectl ring show --with c4 --without c1
    """

    def get_parser(self, prog_name: str) -> Any:
        """Add the options."""
        parser = super().get_parser(prog_name)
        parser.add_argument(
            '--with',
            dest='added',
            type=given_name,
            action='append',
            default=[],
            metavar='HOST',
            help='as if this host were in the ring, too; may be given several '
            'times',
        )
        parser.add_argument(
            '--without',
            dest='removed',
            type=given_name,
            action='append',
            default=[],
            metavar='HOST',
            help='as if this host were not in the ring; may be given several '
            'times',
        )
        return parser

    def take_action(self, parsed_args: Any) -> tuple[Any, Any]:
        """Read the ring, and the nodes of the pool from Ironic.

        :raises NovaRefused: there is no ring, or no such change of it
        """
        members = tuple(read_members())
        now = self._read_ring(members)
        then = changed_hosts(now, parsed_args.added, parsed_args.removed)
        client = make_client(CONF, NeverOpen())
        nodes = [n.uuid for n in client.list_nodes(limit=NODES_PER_PAGE)]
        hosts = all_hosts(members)
        if then == now:
            return COLUMNS, rows(nodes, hosts, Ring(now))
        changes = change_rows(nodes, hosts, Ring(now), Ring(then))
        self._note(describe_change(changes))
        return CHANGE_COLUMNS, changes

    def _read_ring(self, members: Sequence[Member]) -> frozenset[Host]:
        found = find_ring(
            members,
            agent_ports.read_ports(members, agent_ports.RING),
            lambda: nova_hosts.read_soon(
                known_hosts(members), _NOVA_TIMEOUT_S
            ),
        )
        sentence = disagreement(members)
        if sentence is not None:
            self._note(sentence)
        return found

    def _note(self, sentence: str) -> None:
        print(sentence, file=self.app.stderr, flush=True)

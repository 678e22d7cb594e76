# SPDX-License-Identifier: Apache-2.0
"""ironic-computectl fsck: compares Ironic, Nova and Placement of one pool.

It only reads. ``ironic_compute.fsck`` has the checks.
"""

from collections.abc import Iterable
from typing import Any

import nova.conf
from cliff import lister

from hashring.clock import SystemClock
from hashring.group import Member
from ironic_compute.cmd.hosts import known_hosts, read_members
from ironic_compute.cmd.nova_access import use_nova_conductor
from ironic_compute.fsck.findings import Finding
from ironic_compute.fsck.look import Look, Looker
from ironic_compute.fsck.snapshot import PoolHosts
from ironic_compute.gate import NeverOpen
from ironic_compute.ironic_api.client import make_client
from ironic_compute.nodes import placement_reports
from resource_tracker.placement import Placement

CONF = nova.conf.CONF

COLUMNS = ('Check', 'Node', 'Server', 'Host', 'Finding', 'What to do')
_WAIT_S = 30.0


def pool_hosts(members: Iterable[Member]) -> PoolHosts:
    """Return what the agents of a pool publish about their hosts."""
    members = tuple(members)
    return PoolHosts(
        known=frozenset(known_hosts(members)),
        served=frozenset(host for m in members for host in m.serving),
        rings={m.home: m.ring for m in members if m.ring},
    )


def row(finding: Finding) -> tuple[str, ...]:
    """Return a finding as a row of the table."""
    subject = finding.subject
    return (
        finding.check.name,
        subject.node or '-',
        subject.server or '-',
        subject.host or '-',
        finding.text,
        finding.cure,
    )


def summary(look: Look) -> str:
    """Return what was compared, as a sentence."""
    snapshot = look.snapshot
    servers = [s for s in snapshot.servers.values() if not s.deleted]
    return (
        f'Compared {len(snapshot.nodes)} nodes, {len(servers)} servers and '
        f'{len(snapshot.pool.known)} hosts; {len(look.findings)} findings'
    )


class Fsck(lister.Lister):
    """Compare Ironic, Nova and Placement, and list what does not agree.

    Nothing is changed. What was found is looked at again after a while, and
    listed if it is still there, because in a busy pool something is always
    under way. The manual explains each check. Exit status: 0 if nothing was
    found, 1 if something was, or if a service did not answer.
    """

    _has_found = False

    def get_parser(self, prog_name: str) -> Any:
        """Add the options."""
        parser = super().get_parser(prog_name)
        parser.add_argument(
            '--deep',
            action='store_true',
            help='also read each provider and the last action of each server '
            'by itself, and all ports of Ironic; three requests to Placement '
            'for each node',
        )
        parser.add_argument(
            '--wait',
            type=float,
            default=_WAIT_S,
            metavar='SECONDS',
            help='time between the two looks (default: %(default)g)',
        )
        return parser

    def take_action(self, parsed_args: Any) -> tuple[Any, Any]:
        """Look at the pool twice.

        :raises NovaRefused: no daemon of the pool is up
        """
        look = self._looker(parsed_args.deep).look_twice(parsed_args.wait)
        self._has_found = bool(look.findings)
        self._note(summary(look))
        return COLUMNS, [row(finding) for finding in look.findings]

    def run(self, parsed_args: Any) -> int:
        """Run the command; return the exit status."""
        super().run(parsed_args)
        return int(self._has_found)

    def _note(self, sentence: str) -> None:
        print(sentence, file=self.app.stderr, flush=True)

    def _looker(self, is_deep: bool) -> Looker:
        from ironic_compute.fsck.nova_reader import RECORDS_PER_RPC, NovaReader
        from ironic_compute.fsck.placement_reader import PlacementReader
        from ironic_compute.nodes.compute_nodes import ComputeNodes

        use_nova_conductor()
        clock, noted = SystemClock(), set[str]()

        def note(sentence: str) -> None:
            """Print each sentence once, although there are two looks."""
            if sentence not in noted:
                noted.add(sentence)
                self._note(sentence)

        rows = ComputeNodes(NeverOpen(), clock, page_rows=RECORDS_PER_RPC)
        placement = Placement(placement_reports.make_adapter(CONF))
        return Looker(
            make_client(CONF, NeverOpen()),
            NovaReader(rows, clock, note),
            PlacementReader(placement, note, is_deep),
            lambda: pool_hosts(read_members()),
            clock,
            note,
            default_zone=CONF.default_availability_zone,
            capability_traits=frozenset(
                CONF.resource_tracker.capability_traits
            ),
            is_deep=is_deep,
        )

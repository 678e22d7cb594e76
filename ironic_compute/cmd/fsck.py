# SPDX-License-Identifier: Apache-2.0
"""ironic-computectl fsck: compares Ironic, Nova and Placement of one pool.

It only reads; with ``--repair`` it asks the workers to look. The checks are in
``ironic_compute.fsck``.
"""

import argparse
from collections.abc import Iterable, Sequence
from typing import Any

import nova.conf
from cliff import lister

from hashring.clock import SystemClock
from hashring.group import Member
from hashring.ring import Host
from ironic_compute.cmd.explained_command import ExplainedCommand
from ironic_compute.cmd.hosts import known_hosts, read_members
from ironic_compute.cmd.nova_access import (
    NovaRefused,
    ask_worker,
    translated_conductor,
    use_nova_conductor,
)
from ironic_compute.fsck.findings import Finding
from ironic_compute.fsck.snapshot import PoolHosts
from ironic_compute.gate import NeverOpen
from ironic_compute.ironic_api.client import make_client
from resource_tracker.node import NodeId

CONF = nova.conf.CONF

COLUMNS = ('Check', 'Node', 'Server', 'Host', 'Finding', 'What to do')
# A ``look.Look`` and a ``look.Looker``, whose module imports Nova's objects.
Look = Any
Looker = Any
_WAIT_S = 30.0
_WAIT_MAX_S = 86400.0


def seconds(text: str) -> float:
    """Parse a time that the operator gives.

    :raises argparse.ArgumentTypeError: it is negative, or no number
    """
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not 0.0 <= value <= _WAIT_MAX_S:
        raise argparse.ArgumentTypeError(
            f'{text} is no number of seconds from 0 to {_WAIT_MAX_S:g}'
        )
    return value


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


class Fsck(ExplainedCommand, lister.Lister):
    """Compare Ironic, Nova and Placement, and list what does not agree.

    The command changes nothing. What was found is looked at again after a
    while, and listed if it is still there, because in a busy pool something
    is always under way. The manual explains each check. Exit status: 0 if
    nothing was found, 1 if something was, or if a service did not answer.

    With --repair, the daemons check at once what they hold, and mend what they
    would have mended later. What is left is listed.
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
            '--repair',
            action='store_true',
            help='have the daemons mend now what they can, and list the rest',
        )
        parser.add_argument(
            '--wait',
            type=seconds,
            default=_WAIT_S,
            metavar='SECONDS',
            help='time between the two looks (default: %(default)g)',
        )
        return parser

    def take_action(self, parsed_args: Any) -> tuple[Any, Any]:
        """Look at the pool twice.

        :raises NovaRefused: no daemon of the pool is up, or nova-conductor
            does not answer, or has failed
        """
        with translated_conductor():
            look = self._look(parsed_args)
        self._has_found = bool(look.findings)
        self._note(summary(look))
        return COLUMNS, [row(finding) for finding in look.findings]

    def _look(self, parsed_args: Any) -> Look:
        looker, wait_s = self._looker(parsed_args.deep), parsed_args.wait
        look: Look = looker.look_twice(wait_s)
        if parsed_args.repair:
            from ironic_compute.cmd.fsck_repair import repair

            return repair(looker, look, wait_s, self._send)
        return look

    def run(self, parsed_args: Any) -> int:
        """Run the command; return the exit status."""
        super().run(parsed_args)
        return int(self._has_found)

    def _send(
        self, host: Host, servers: Sequence[str], nodes: Sequence[NodeId]
    ) -> None:
        """Ask the worker of a host to check all; note if it cannot."""
        from ironic_compute.ownership import peer_rpc

        try:
            ask_worker(
                lambda: peer_rpc.request_check(host, servers, nodes),
                no_answer=f'Host {host} does not answer; see '
                f'"ironic-computectl host list"',
                too_old=f'The daemon that serves host {host} is of an older '
                f'release, which has no repair',
            )
        except NovaRefused as exc:
            self._note(str(exc))

    def _note(self, sentence: str) -> None:
        print(sentence, file=self.app.stderr, flush=True)

    def _looker(self, is_deep: bool) -> Looker:
        from ironic_compute.fsck import look
        from ironic_compute.fsck.nova_reader import RECORDS_PER_RPC, NovaReader
        from ironic_compute.fsck.placement_reader import PlacementReader
        from ironic_compute.nodes import placement_reports
        from ironic_compute.nodes.compute_nodes import ComputeNodes
        from resource_tracker.placement import Placement

        use_nova_conductor()
        clock, noted = SystemClock(), set[str]()

        def note(sentence: str) -> None:
            """Print each sentence once, although there are two looks."""
            if sentence not in noted:
                noted.add(sentence)
                self._note(sentence)

        rows = ComputeNodes(NeverOpen(), clock, page_rows=RECORDS_PER_RPC)
        placement = Placement(placement_reports.make_adapter(CONF))
        return look.Looker(
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

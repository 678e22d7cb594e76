# SPDX-License-Identifier: Apache-2.0
"""Commands of ironic-computectl that empty a host: drain and undrain.

They send the order to the worker of the host, which stores it in Nova and
carries it out. The drain goes on when the command has ended; with ``--wait``
the command shows what is left.
"""

import argparse
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from cliff import command, lister

from hashring.clock import Clock, SystemClock
from hashring.ring import Host
from ironic_compute.cmd.hosts import HostArgument
from ironic_compute.cmd.nova_access import (
    NovaRefused,
    ask_worker,
    use_nova_conductor,
)

COLUMNS = ('Node', 'Server', 'To host', 'Waits because')
_LOOK_S = 5.0


# Each is a ``draining.PlannedMove``, whose module imports Nova.
Plan = Sequence[Any]
ReadPlan = Callable[[Host], Plan]


def rows(plan: Plan) -> list[tuple[str, ...]]:
    """Return a row for each node of a plan."""
    return [
        (m.node, m.server or '-', m.target or '-', m.why_not or '-')
        for m in plan
    ]


def ask(host: Host, request: Callable[[], Any]) -> Any:
    """Return the answer of a host's worker.

    :raises NovaRefused: it does not answer, or cannot drain
    """
    return ask_worker(
        request,
        no_answer=f'No daemon serves host {host}, or it does not answer; see '
        f'"ironic-computectl host list"',
        too_old=f'The daemon that serves host {host} is of an older release, '
        f'which cannot drain a host, or no ironic-compute',
    )


def order(host: Host, request: Callable[[Host], str | None]) -> None:
    """Send an order to a host's worker.

    :raises NovaRefused: with the reason
    """
    why_not = ask(host, lambda: request(host))
    if why_not is not None:
        raise NovaRefused(why_not)


def describe(host: Host, plan: Plan) -> str:
    """Return what is left to be moved, and one reason, as a sentence."""
    with_server = sum(move.server is not None for move in plan)
    sentence = (
        f'Host {host} has {len(plan)} nodes left, {with_server} of them with '
        f'a server'
    )
    reasons = [move.why_not for move in plan if move.why_not]
    return f'{sentence}. {reasons[0]}' if reasons else sentence


def wait_until_empty(
    host: Host, read_plan: ReadPlan, clock: Clock
) -> Iterator[str]:
    """Yield each new sentence about what is left, until nothing is."""
    said = ''
    while True:
        try:
            plan = ask(host, lambda: read_plan(host))
        except NovaRefused as exc:
            sentence = str(exc)
        else:
            if not plan:
                return
            sentence = describe(host, plan)
        if sentence != said:
            yield sentence
            said = sentence
        clock.sleep(_LOOK_S)


def _positive(text: str) -> int:
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError('must be 1 or more')
    return number


class HostDrain(HostArgument, lister.Lister):
    """Give all nodes of a host to other hosts, also those with servers.

    The host is disabled in Nova, so that it gets no more builds. Its free
    nodes go first. The others follow with their servers, as soon as a server
    has no task; the servers run on. The table shows each node of the host, and
    why a node has to wait.
    """

    def get_parser(self, prog_name: str) -> Any:
        """Add the options."""
        parser = super().get_parser(prog_name)
        parser.add_argument(
            '--dry-run',
            action='store_true',
            help='only show what would be moved',
        )
        parser.add_argument(
            '--limit',
            type=_positive,
            metavar='N',
            help='move no more than N servers in a minute',
        )
        parser.add_argument(
            '--wait',
            action='store_true',
            help='end when the host has no nodes left; say meanwhile what is '
            'left. The drain goes on if the command is stopped',
        )
        return parser

    def take_action(self, parsed_args: Any) -> tuple[Any, Any]:
        """Read the plan, send the order unless it is a dry run, and wait.

        :raises NovaRefused: with the reason
        """
        from ironic_compute.ownership import peer_rpc

        host = Host(parsed_args.host)
        use_nova_conductor()
        plan = ask(host, lambda: peer_rpc.request_drain_plan(host))
        if not parsed_args.dry_run:
            limit = parsed_args.limit
            order(host, lambda to: peer_rpc.request_drain(to, limit))
            if parsed_args.wait:
                self._wait(host, peer_rpc.request_drain_plan)
        return COLUMNS, rows(plan)

    def _wait(self, host: Host, read_plan: ReadPlan) -> None:
        try:
            for line in wait_until_empty(host, read_plan, SystemClock()):
                print(line, file=self.app.stderr, flush=True)
        except KeyboardInterrupt:
            print(
                f'The drain goes on; "ironic-computectl host undrain {host}" '
                f'ends it',
                file=self.app.stderr,
            )


class HostUndrain(HostArgument, command.Command):
    """Enable a host again that is drained.

    Free nodes come back as the hash ring says. Nodes with servers that have
    moved stay where they are.
    """

    def take_action(self, parsed_args: Any) -> None:
        """Send the order to the worker of the host.

        :raises NovaRefused: with the reason
        """
        from ironic_compute.ownership import peer_rpc

        host = Host(parsed_args.host)
        use_nova_conductor()
        order(host, peer_rpc.request_undrain)
        print(f'Host {host} is enabled.', file=self.app.stdout)

# SPDX-License-Identifier: Apache-2.0
"""ironic-computectl migrate plan: the steps from nova-computes to a pool.

It reads the coordination backend, Nova and Ironic, and changes nothing.
"""

import argparse
import os
from collections.abc import Callable, Iterator
from typing import Any

import nova.conf
from cliff import lister

from hashring import backend
from hashring.clock import SystemClock
from hashring.group import Member
from hashring.ring import Host
from ironic_compute.agent.groups import describe_pool
from ironic_compute.cmd.explained_command import ExplainedCommand
from ironic_compute.cmd.hosts import own_pool, read_pools
from ironic_compute.cmd.migration_evidence import Evidence, count_servers
from ironic_compute.cmd.migration_plan import (
    Found,
    Plan,
    plan_pool,
    plan_way_back,
)
from ironic_compute.cmd.migration_words import (
    KOLLA_CONTAINER,
    Tool,
    describe,
    fit,
    guess_tool,
    kolla_container,
)
from ironic_compute.cmd.nova_access import (
    translated_conductor,
    use_nova_conductor,
)
from ironic_compute.feed.notifications import queue_name
from ironic_compute.gate import NeverOpen
from ironic_compute.ironic_api.client import make_client
from resource_tracker.node import NodeId

CONF = nova.conf.CONF

COLUMNS = ('Step', 'Host', 'Where', 'Do', 'Why', 'Then', 'To undo')

# A host is asked twice as often as two consumers of its queue need.
_QUESTIONS_COUNT = 4

# The step that deletes the queues leaves the plan when the last nova-compute
# runs, whether it was carried out or not: the command cannot see the queues.
# Those that are left grow without end.
_QUEUES = (
    f'If "rabbitmqctl list_queues name consumers" still has names that begin '
    f'with {queue_name("")} and have no consumer, delete these queues, except '
    f'those of another pool: Ironic fills them, and nobody reads them'
)


def host_names(text: str) -> frozenset[Host]:
    """Parse the hosts that the operator names, with commas between them.

    :raises argparse.ArgumentTypeError: a name is empty
    """
    names = [name.strip() for name in text.split(',')]
    if not all(names):
        raise argparse.ArgumentTypeError(f'{text!r} has an empty name')
    return frozenset(map(Host, names))


def rows(
    plan: Plan, found: Found, tool: Tool, container: str = KOLLA_CONTAINER
) -> Iterator[tuple[Any, ...]]:
    """Yield a row of the table for each step."""
    for number, step in enumerate(fit(plan, tool), 1):
        words = describe(step, found, tool, container)
        yield (
            number,
            ', '.join(step.hosts),
            words.where,
            words.do,
            words.why,
            words.then,
            words.undo,
        )


def notes(
    plan: Plan,
    wanted: frozenset[Host],
    found: Found,
    *,
    is_folder: bool,
    is_back: bool = False,
) -> Iterator[str]:
    """Yield what an operator should know besides the steps.

    :param is_folder: the coordination backend is a folder of one machine
    :param is_back: the steps are those of the way back
    """
    hosts = wanted or frozenset(found.hosts)
    if not plan:
        yield f'Nothing is left to do in the pool ({found.pool})'
        if is_back:
            yield _QUEUES
    elif is_back:
        return
    elif len(hosts) == 1:
        yield (
            'One daemon alone has no other that serves its host when it is '
            'down; name more hosts with --hosts, also new ones'
        )
    elif is_folder:
        yield (
            '[coordination] backend_url is a folder, which serves one machine '
            'only; set it on all controllers before the first daemon starts'
        )


class MigratePlan(ExplainedCommand, lister.Lister):
    """List the steps from nova-compute to one pool of daemons, or back.

    The command looks at what there is: nova-computes with Ironic, one or
    several, and daemons of this pool. It lists the steps that are left, with
    the reason, what to see afterwards, and how to undo each. It changes
    nothing. Carry out the first step, or all in this order, and run it again:
    when nothing is left, the table is empty. Examples:

      ironic-computectl migrate plan
      ironic-computectl migrate plan --hosts c1,c2,c3
      ironic-computectl migrate plan --back --hosts c1
    """

    def get_parser(self, prog_name: str) -> Any:
        """Add the options."""
        parser = super().get_parser(prog_name)
        parser.add_argument(
            '--back',
            action='store_true',
            help='the way back, from daemons to nova-computes',
        )
        parser.add_argument(
            '--hosts',
            type=host_names,
            default=frozenset(),
            metavar='HOST,HOST',
            help='the hosts that shall be there at the end, also new ones; '
            'all others are retired (default: those that there are)',
        )
        parser.add_argument(
            '--tool',
            choices=[tool.name.lower() for tool in Tool],
            help='the tool that starts the daemons, for the commands '
            '(default: kolla if the names of all hosts end with -ironic)',
        )
        return parser

    def take_action(self, parsed_args: Any) -> tuple[Any, Any]:
        """Read what there is and list the steps.

        :raises NovaRefused: with the reason, if no steps can be listed
        """
        wanted = parsed_args.hosts
        with translated_conductor():
            found = _read(wanted)
        is_back = parsed_args.back
        plan = (plan_way_back if is_back else plan_pool)(found, wanted)
        self._note(
            notes(plan, wanted, found, is_folder=_is_folder(), is_back=is_back)
        )
        chosen = parsed_args.tool
        tool = Tool[chosen.upper()] if chosen else guess_tool(found.hosts)
        container = kolla_container(os.environ)
        return COLUMNS, list(rows(plan, found, tool, container))

    def _note(self, sentences: Iterator[str]) -> None:
        for sentence in sentences:
            print(sentence, file=self.app.stderr, flush=True)


def ask(
    host: Host, is_ironic_compute: Callable[[Host], bool | None]
) -> frozenset[bool]:
    """Return the answers of all that serve a host.

    RabbitMQ sends the messages of a queue to its consumers in turn.

    :param is_ironic_compute: returns None if nobody answers
    """
    answers = set()
    for _ in range(_QUESTIONS_COUNT):
        answer = is_ironic_compute(host)
        if answer is None:
            break
        answers.add(answer)
    return frozenset(answers)


def _is_folder() -> bool:
    return bool(_backend().path)


def _backend() -> Any:
    options = CONF.coordination
    return backend.parse(options.backend_url, term_s=options.lease_term_s)


def _read_members() -> tuple[Member, ...]:
    """Read the agents of this pool; none before the first daemon starts."""
    folder = _backend().path
    if folder and not os.path.isdir(folder):
        return ()
    return tuple(read_pools().get(own_pool(), ()))


def _read(wanted: frozenset[Host]) -> Found:
    """Read what there is from the backend, Nova and Ironic."""
    members = _read_members()
    ironic = make_client(CONF, NeverOpen())
    nodes = frozenset(facts.uuid for facts in ironic.list_nodes())
    has_group = CONF.ironic.conductor_group is not None
    has_shard = CONF.ironic.shard is not None
    all_nodes: frozenset[NodeId] = frozenset()
    if has_group or has_shard:
        listed = ironic.list_nodes_of_all_pools()
        all_nodes = frozenset(facts.uuid for facts in listed)
    use_nova_conductor()
    return Found(
        pool=describe_pool(own_pool()),
        hosts=read_hosts(members, nodes, all_nodes - nodes, wanted),
        has_group=has_group,
        has_shard=has_shard,
    )


def read_hosts(
    members: tuple[Member, ...],
    nodes: frozenset[NodeId],
    nodes_elsewhere: frozenset[NodeId],
    wanted: frozenset[Host],
) -> Any:
    """Read the hosts from Nova, and who serves them from the hosts."""
    from nova import context, objects, servicegroup

    from ironic_compute.fsck.nova_reader import RECORDS_PER_RPC, NovaReader
    from ironic_compute.nodes.compute_nodes import ComputeNodes
    from ironic_compute.ownership import peer_rpc
    from ironic_compute.pool.services import BINARY

    clock, liveness = SystemClock(), servicegroup.API()
    compute_nodes = ComputeNodes(NeverOpen(), clock, page_rows=RECORDS_PER_RPC)
    reader = NovaReader(compute_nodes, clock, lambda _: None)
    records = objects.ServiceList.get_by_binary(
        context.get_admin_context(), BINARY, include_disabled=True
    )
    evidence = Evidence(
        members=members,
        records={Host(each.host): each for each in records},
        up=frozenset(
            Host(each.host) for each in records if liveness.service_is_up(each)
        ),
        rows=reader.read_rows(),
        others=reader.read_other_holders(),
        nodes=nodes,
        nodes_elsewhere=nodes_elsewhere,
        mapped=reader.read_mapped(),
        wanted=wanted,
    )
    answers = {
        host: ask(host, peer_rpc.is_ironic_compute)
        for host in sorted(evidence.hosts_to_ask())
    }
    servers = reader.read_servers(evidence.hosts(answers))
    return evidence.states(answers, *count_servers(servers.values()))

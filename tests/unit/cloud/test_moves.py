# SPDX-License-Identifier: Apache-2.0
"""The looks, comparisons and kills of the scenario ``moves``."""

import dataclasses
import random
from types import SimpleNamespace

import pytest
from onemachine.chaos import killer, looks, moves, orders, pools, refusals
from onemachine.chaos.killer import Victim
from onemachine.chaos.load import WITH_STOPS, End, Kind, Load
from onemachine.chaos.looks import Look, Looks, Move, Server
from onemachine.chaos.moves import Phase
from onemachine.progress import CloudError

ACTIVE = Server('c1', 'n1', 'active', '-')


def look(**holders):
    """Return a look at nodes: node -> holder, and + with server s<node>."""
    places = {node: host.rstrip('+') for node, host in holders.items()}
    used = [node for node, host in holders.items() if host.endswith('+')]
    servers = {
        f's{node}': Server(places[node], node, 'active', '-') for node in used
    }
    return Look(
        {node: [host] for node, host in places.items()},
        {node: f's{node}' for node in used},
        servers,
        {f's{node}': frozenset({f'{node} 1 1'}) for node in used},
    )


def taken(*seen):
    """Return the looks that have seen these, one each second."""
    times = iter(range(len(seen)))
    found = Looks(None, lambda: float(next(times)))
    for one in seen:
        found.take(one)
    return found


def test_look_is_parsed():
    """A record counts as a holder only if Nova has a Service of its host."""
    found = looks.parse(
        'node\tn1\ts1\tc1\tc1\n'
        'node\tn2\t-\t-\t-\n'
        'node\tn3\t-\tgone\t-\n'
        'node\tn4\t-\tc1\tc1\n'
        'node\tn4\t-\tc2\tc2\n'
        'server\ts1\tc1\tn1\tactive\t-\n'
        'allocation\ts1\tn1\t3\t1\n'
    )
    assert found.holders == {
        'n1': ['c1'],
        'n2': [],
        'n3': [],
        'n4': ['c1', 'c2'],
    }
    assert found.holder == {'n1': 'c1'}
    assert found.on_node == {'n1': 's1'}
    assert found.servers == {'s1': ACTIVE}
    assert found.allocations == {'s1': frozenset({'n1 3 1'})}


def test_nodes_without_and_with_two_holders_are_collected():
    """One look is enough, also if the next one is good again."""
    odd = dataclasses.replace(
        look(n1='c1', n2='c1'), holders={'n1': [], 'n2': ['c1', 'c2']}
    )
    found = taken(look(n1='c1', n2='c1'), odd, look(n1='c1', n2='c1'))
    assert found.without_holder == {'n1'}
    assert found.with_two == {'n2'}


def test_moves_are_collected():
    """A move has the server that was on the node before and after."""
    found = taken(
        look(n1='c1', n2='c1+', n3='c1+'),
        look(n1='c2', n2='c2+', n3='c1+'),
        look(n1='c2', n2='c2+', n3='c2'),
    )
    assert found.moves == [
        Move('n1', None, 'c1', 'c2', 0.0),
        Move('n2', 'sn2', 'c1', 'c2', 0.0),
        Move('n3', None, 'c1', 'c2', 1.0),
    ]


def test_servers_in_error_and_apart_are_seen():
    """A server whose node has another holder is only counted."""
    bad = look(n1='c1+')
    bad = dataclasses.replace(
        bad, servers={'sn1': Server('c2', 'n1', 'error', '-')}
    )
    found = taken(look(n1='c1+'), bad)
    assert found.in_error == {'sn1'}
    assert found.apart_count == 1


@pytest.mark.parametrize(
    ('server', 'is_changed'),
    [
        (ACTIVE, True),
        (Server('c1', 'n1', 'stopped', 'powering-on'), True),
        (Server('c1', 'n1', 'active', 'deleting'), False),
        (Server('c1', 'n1', 'building', 'spawning'), False),
    ],
)
def test_changed_allocation_of_a_built_server(server, is_changed):
    """The allocation of a server that is being deleted may go."""
    before = dataclasses.replace(look(n1='c1+'), servers={'sn1': server})
    after = dataclasses.replace(before, allocations={})
    assert bool(taken(before, after).changed) is is_changed
    assert not taken(before, before).changed


def test_node_that_moves_twice_is_named():
    """A node that goes away and comes back has moved twice."""
    there = Move('n1', None, 'c1', 'c2', 0.0)
    back = Move('n1', None, 'c2', 'c1', 1.0)
    assert looks.moved_twice([there]) == []
    assert looks.moved_twice([there, back]) == ['n1: c1 c2 c1']


ROW = {'Node': 'n1', 'Server': 'sn1', 'To host': 'c2', 'Waits because': '-'}
MOVE = Move('n1', 'sn1', 'c3', 'c2', 0.0)


def drained(row=ROW, moves=(MOVE,), after=None):
    """Compare one line of a drain."""
    after = after or look(n1='c2+')
    return orders.compare_drain('c3', [row], list(moves), after)


def test_drain_as_in_the_dry_run():
    """The target and the server of each line are those of the move."""
    found = drained()
    assert (found.by_users, found.different) == (0, [])
    assert found.summary == '1 of 1, 0 by users'
    back = Move('n9', None, 'c1', 'c2', 0.0)
    assert not drained(moves=[MOVE, back]).different


@pytest.mark.parametrize(
    'moves',
    [
        [],
        [dataclasses.replace(MOVE, target='c1')],
        [dataclasses.replace(MOVE, server='other')],
        [MOVE, dataclasses.replace(MOVE, node='n2')],
    ],
)
def test_drain_that_differs_from_the_dry_run(moves):
    """So do a move to another host, of another server, or without a line."""
    assert len(drained(moves=moves).different) == 1


@pytest.mark.parametrize(
    ('row', 'move'),
    [
        (ROW, dataclasses.replace(MOVE, server=None)),
        ({**ROW, 'Server': '-'}, MOVE),
    ],
)
def test_user_deletes_or_boots_after_the_dry_run(row, move):
    """The node must go to the same host nevertheless."""
    found = drained(row, [move], look(n1='c2'))
    assert (found.by_users, found.different) == (1, [])
    elsewhere = dataclasses.replace(move, target='c1')
    assert drained(row, [elsewhere], look(n1='c1')).different


REBALANCED = (
    {'Host': 'c1', 'Nodes': 2, 'Nodes then': 1, 'Servers': 1},
    {'Host': 'c2', 'Nodes': 0, 'Nodes then': 1, 'Servers': 0},
)


def rebalanced(then, after):
    """Compare a dry run with two rows."""
    rows = [
        {**row, 'Servers then': count}
        for row, count in zip(REBALANCED, then, strict=True)
    ]
    before = look(n1='c1+', n2='c1')
    return orders.compare_rebalance(rows, before, after, ['c1', 'c2'])


def test_rebalance_as_in_the_dry_run():
    """What users delete and boot meanwhile makes no difference."""
    assert not rebalanced([0, 1], look(n1='c2+', n2='c1')).different
    assert not rebalanced([0, 1], look(n1='c2', n2='c1+')).different


def test_rebalance_that_differs_from_the_dry_run():
    """Each number that differs is named."""
    found = rebalanced([1, 0], look(n1='c2+', n2='c1'))
    assert found.different == [
        'c1: Servers then 1, seen 0',
        'c2: Servers then 0, seen 1',
    ]
    assert len(rebalanced([0, 1], look(n1='c1+', n2='c1')).different) == 4


@pytest.mark.parametrize(
    ('would', 'does'),
    [
        (
            'Node n with server s would move from host a to host b, and '
            'would be pinned there',
            'Node n with server s moved from host a to host b, and is pinned '
            'there',
        ),
        (
            'Node n would be pinned to host b, and would move there from host '
            'a within seconds',
            'Node n is pinned to host b, and moves there from host a within '
            'seconds',
        ),
    ],
)
def test_sentence_of_a_real_move(would, does):
    """It has the same words as that of the dry run."""
    assert orders.did(would) == does


def test_kills_are_spread_over_three_phases():
    """Ten kills: three, three, and four; each victim comes in turn."""
    found = killer.shares(10, 3)
    assert [len(part) for part in found] == [3, 3, 4]
    assert found[0] == [Victim.HOLDER, Victim.TARGET, Victim.BOTH]
    assert killer.shares(2, 3) == [[], [Victim.HOLDER], [Victim.TARGET]]


@pytest.mark.parametrize(
    ('victim', 'hosts'),
    [
        (Victim.HOLDER, ['c3']),
        (Victim.TARGET, ['c2']),
        (Victim.BOTH, ['c2', 'c3']),
    ],
)
def test_hosts_of_a_victim(victim, hosts):
    """They are those of the last move."""
    assert victim.hosts(MOVE) == hosts


def test_row_of_a_phase():
    """A hundred servers take a hundred times as long as one interval."""
    moved = [dataclasses.replace(MOVE, at_s=at_s) for at_s in (9.0, 11.0)]
    free = Move('n2', None, 'c3', 'c1', 8.0)
    phase = Phase('retire', [free, *moved], 5.0, [Victim.BOTH])
    row = phase.row('first')
    assert row == ('first', 'retire', 3, 2, '6', '200 s', 'both', '-')
    assert len(row) == len(moves._COLUMNS)
    assert moves.per_hundred(moved[:1]) == '-'


def test_slowest_request_of_each_kind():
    """The kinds come in the order of their names."""
    asked = [
        SimpleNamespace(kind=kind, took_s=took_s)
        for kind, took_s in (
            (Kind.STOP, 3.0),
            (Kind.BOOT, 61.0),
            (Kind.BOOT, 20.0),
        )
    ]
    load = SimpleNamespace(requests=asked)
    assert moves._slowest(load) == 'boot 61 s, stop 3 s'


def test_refusal_is_one_sentence():
    """The exit status, the number of lines and the words count."""
    good = orders.Answer(1, '', 'Host nobody is unknown\n', 1.0)
    assert refusals.why_wrong(good, 'nobody') is None
    assert 'exit status 0' in refusals.why_wrong(
        dataclasses.replace(good, status=0), 'nobody'
    )
    assert '2 lines' in refusals.why_wrong(
        dataclasses.replace(good, error='nobody\nTraceback'), 'nobody'
    )
    assert refusals.why_wrong(good, 'somebody') == 'Host nobody is unknown'


def test_each_pool_has_its_shard():
    """The hosts of the second pool have another shard than the others."""
    sections = {'ironic': {'a': 1}, 'ironic_compute': {'state_path': '/s'}}
    for host, shard in (('c1', 'rack-1'), ('c4', 'rack-2')):
        assert pools.rewrite(host, sections) == {
            'ironic': {'a': 1, 'shard': shard},
            'ironic_compute': {'state_path': '/s-of-shard'},
        }


class Compute:
    """Records the requests of users."""

    def __init__(self, message=None):
        self.asked = []
        self.message = message

    def __getattr__(self, name):
        """Return a method that records its call."""
        return lambda server, *_: self.asked.append((name, server))

    def server_actions(self, server):
        """Return a history with one action of each kind."""
        return [
            SimpleNamespace(action=name, message=self.message)
            for name in ('stop', 'start', 'reboot')
        ]


def make_load(compute, **options):
    """Return a load that sends no requests by itself."""
    contents = SimpleNamespace(cloud=SimpleNamespace(compute=compute))
    return Load(contents, random.Random(1), **options)


def shown(status):
    """Return a server as nova-api shows it."""
    return {'s': SimpleNamespace(status=status, task_state=None)}


@pytest.mark.parametrize(
    ('message', 'end'), [(None, End.DONE), ('Error', End.ERROR)]
)
def test_stop_ends_when_the_server_is_off(message, end):
    """Nova's history says whether it has failed."""
    load = make_load(Compute(message), population=1, kinds=[Kind.START])
    request = load.stop_server('s')
    load._follow(request, shown('SHUTOFF'))
    assert request.end is end


def test_stop_of_a_server_that_runs_on_is_pending_or_failed():
    """It has failed when Nova's history says so."""
    for message, end in ((None, End.PENDING), ('Error', End.ERROR)):
        load = make_load(Compute(message))
        request = load.stop_server('s')
        load._follow(request, shown('ACTIVE'))
        assert request.end is end


def test_stopped_server_is_only_started():
    """It is none of the servers that are rebooted or deleted."""
    compute = Compute()
    load = make_load(compute, population=1, kinds=WITH_STOPS)
    load._follow(load.stop_server('s'), shown('SHUTOFF'))
    for kind in (Kind.REBOOT, Kind.DELETE, Kind.STOP):
        load._ask(kind)
    load._ask(Kind.START)
    load._follow(load.requests[-1], shown('ACTIVE'))
    load._ask(Kind.DELETE)
    assert [name for name, _ in compute.asked] == [
        'stop_server',
        'start_server',
        'delete_server',
    ]


def test_pause_begins_when_all_requests_have_ended():
    """A request that does not end is an error."""
    load = make_load(Compute())
    with load.paused(1.0):
        pass
    load.stop_server('s')
    with (
        pytest.raises(CloudError, match='the requests to end'),
        load.paused(0.1),
    ):
        pass

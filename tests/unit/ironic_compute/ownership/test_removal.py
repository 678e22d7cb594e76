# SPDX-License-Identifier: Apache-2.0
"""Removal of deleted nodes, and of nodes that left the pool."""

import dataclasses
import threading
from collections.abc import Callable, Mapping
from typing import Any

import pytest
from nova import objects

from hashring.ring import Host
from ironic_compute import errors
from ironic_compute.nodes.held_nodes import HeldNodes
from ironic_compute.nodes.node_cache import NodeCache
from ironic_compute.nodes.unconfirmed_rows import UnconfirmedRows
from ironic_compute.ownership.removal import Removal
from resource_tracker.claims import ClaimBook
from resource_tracker.errors import PlacementError
from resource_tracker.node import NodeFacts, NodeId
from tests.fakes.clock import ManualClock
from tests.simulation.nova import ServerRecord
from tests.unit.ironic_compute.hosts import Cloud, One

objects.register_all()

N1 = NodeId('n1')
FACTS = NodeFacts(N1, provision_state='available')


class Nova:
    """Nova with the row of one node."""

    def __init__(self) -> None:
        self.row: Any = objects.ComputeNode(
            hypervisor_hostname='n1', host='c1', stats={}
        )
        self.broken: set[str] = set()

    def list_by_host(self, host: Host) -> list[Any]:
        return [self.row]

    def update_row(self, row: Any, facts: NodeFacts) -> None:
        """Nothing has changed."""

    def list_instances_of_any_host(self, node: NodeId) -> list[Any]:
        if node in self.broken:
            raise RuntimeError(node)
        return []

    def delete_row(self, row: Any) -> None:
        if row is self.row:
            self.row = None


class Ironic:
    """An Ironic that answers 404.

    :param shows_all: the 404 means that the node does not exist
    """

    def __init__(self, *, shows_all: bool = True) -> None:
        self._shows_all = shows_all

    def can_list_all_nodes(self) -> bool:
        return self._shows_all

    def is_in_pool(self, facts: NodeFacts) -> bool:
        return facts.shard is None

    def read_node(self, node: NodeId) -> NodeFacts:
        raise errors.NodeNotFound(f'no node {node}')


class Placement:
    """The provider of the node; its removal calls ``during``."""

    def __init__(self) -> None:
        self.is_there = self.is_withdrawn = False
        self.submitted: NodeFacts | None = None
        self.during = lambda: None

    def submit(self, facts: NodeFacts, situation: Any) -> None:
        self.is_there, self.is_withdrawn = True, False
        self.submitted = facts

    def withdraw_node(self, node: NodeId, row_id: str) -> None:
        self.is_withdrawn = True

    def forget_node(self, node: NodeId) -> None:
        """Nothing is under way."""

    def delete_provider(self, node: NodeId) -> bool:
        self.is_there = False
        self.during()
        return True


def _held_nodes(nova: Nova, placement: Placement) -> Any:
    held_nodes: Any = HeldNodes(
        Host('c1'),
        nova,  # type: ignore[arg-type]
        NodeCache(ManualClock(start_s=0.0)),
        ClaimBook(),
        placement,
        UnconfirmedRows(ManualClock(start_s=0.0), new_s=90.0),
        on_unheld=lambda facts: None,
    )
    held_nodes.load_rows()
    held_nodes.accept_facts(FACTS)
    return held_nodes


class _Removal(Removal):
    """A removal whose audits are two minutes apart."""

    def check_absent(self, nodes: Mapping[NodeId, NodeFacts]) -> None:
        self.clock.advance(120.0)
        super().check_absent(nodes)

    @property
    def clock(self) -> ManualClock:
        clock = self._clock
        assert isinstance(clock, ManualClock)
        return clock


def _removal(
    held_nodes: HeldNodes,
    nova: Any,
    ironic: Any,
    placement: Any,
) -> _Removal:
    clock = ManualClock(start_s=0.0)
    return _Removal(
        held_nodes, nova, ironic, placement, clock, lambda node: None
    )


def test_report_during_a_removal_does_not_recreate_the_provider() -> None:
    """A change of the host's status reports all nodes at any time."""
    nova, placement = Nova(), Placement()
    held_nodes = _held_nodes(nova, placement)
    assert placement.is_there
    reporting = threading.Thread(target=held_nodes.report_all_nodes)

    def report() -> None:
        reporting.start()
        reporting.join(0.2)

    placement.during = report
    removal = _removal(held_nodes, nova, Ironic(), placement)
    removal.check_absent({})
    assert placement.is_there and placement.is_withdrawn
    removal.check_absent({})
    reporting.join()
    assert not placement.is_there
    assert nova.row is None
    assert held_nodes.row(N1) is None


def test_two_audits_in_a_minute_remove_nothing() -> None:
    """Another worker's list may come just after the first one of a worker.

    A wrong 404 may last longer.
    """
    nova, placement = Nova(), Placement()
    held_nodes = _held_nodes(nova, placement)
    removal = _removal(held_nodes, nova, Ironic(), placement)
    for after_s in (0.0, 30.0, 29.0):
        removal.clock.advance(after_s)
        removal.check_absent_names(frozenset())
    assert held_nodes.row(N1) is not None
    removal.clock.advance(1.0)
    removal.check_absent_names(frozenset())
    assert held_nodes.row(N1) is None


def test_nothing_is_removed_if_ironic_does_not_show_all_nodes() -> None:
    """A service that sees only some projects reads 404 for other nodes."""
    nova, placement = Nova(), Placement()
    held_nodes = _held_nodes(nova, placement)
    blind = Ironic(shows_all=False)
    removal = _removal(held_nodes, nova, blind, placement)
    for _ in range(3):
        removal.check_absent({})
    assert placement.is_there and placement.is_withdrawn
    assert held_nodes.row(N1) is not None


def test_node_that_cannot_be_removed_stops_no_other_removal() -> None:
    """Nova may fail for the records of one node only."""
    nova, placement = Nova(), Placement()
    held_nodes = _held_nodes(nova, placement)
    other = objects.ComputeNode(hypervisor_hostname='n2', host='c1', stats={})
    held_nodes.add_rows([other], held_nodes.version())
    nova.broken = {'n1'}
    removal = _removal(held_nodes, nova, Ironic(), placement)
    for _ in range(2):
        removal.check_absent({})
    assert set(held_nodes.rows()) == {'n1'}
    nova.broken.clear()
    removal.check_absent({})
    assert not held_nodes.rows()


def test_outage_of_ironic_stops_the_reads_of_absent_nodes() -> None:
    """Each read may last 90 s, and no audit begins before the last one."""
    nova, placement = Nova(), Placement()
    held_nodes, ironic, reads = _held_nodes(nova, placement), Ironic(), []
    others = [
        objects.ComputeNode(hypervisor_hostname=f'n{n}', host='c1', stats={})
        for n in range(2, 6)
    ]
    held_nodes.add_rows(others, held_nodes.version())

    def fail(node: NodeId) -> NodeFacts:
        reads.append(node)
        if node in ('n2', 'n4') or is_down:
            raise errors.IronicUnavailable('no answer in 90 s')
        raise errors.NodeNotFound(node)

    ironic.read_node = fail  # type: ignore[method-assign]
    removal = _removal(held_nodes, nova, ironic, placement)
    is_down = True
    removal.check_absent({})
    assert (reads, held_nodes.is_missing(N1)) == (['n1'], False)
    is_down = False
    for _ in range(5):
        removal.check_absent({})
    assert set(held_nodes.rows()) == {'n2', 'n4'}, 'these fail each time'


@pytest.mark.parametrize(('shard', 'logs_count'), [('other', 1), (None, 0)])
def test_node_that_left_the_pool_is_logged_once(
    shard: str | None, logs_count: int, caplog: pytest.LogCaptureFixture
) -> None:
    """A node that a list does not contain yet is not logged."""
    nova, placement = Nova(), Placement()
    held_nodes, ironic = _held_nodes(nova, placement), Ironic()
    now = dataclasses.replace(FACTS, shard=shard)
    ironic.read_node = lambda node: now  # type: ignore[method-assign]
    removal = _removal(held_nodes, nova, ironic, placement)
    for _ in range(3):
        removal.check_absent({})
    assert caplog.text.count('not in this pool') == logs_count
    removal.check_absent({N1: FACTS})
    removal.check_absent({})
    assert caplog.text.count('not in this pool') == 2 * logs_count


def test_facts_of_a_node_that_left_the_pool_are_submitted() -> None:
    """Lists lack the node, which may be in maintenance now."""
    nova, placement = Nova(), Placement()
    held_nodes = _held_nodes(nova, placement)
    ironic = Ironic()
    now = dataclasses.replace(FACTS, maintenance=True, shard='other')
    ironic.read_node = lambda node: now  # type: ignore[method-assign]
    _removal(held_nodes, nova, ironic, placement).check_absent({})
    assert held_nodes.facts(N1) == now
    assert placement.submitted == now
    held_nodes.drop_node(N1)
    assert not held_nodes.update_facts(now)
    assert held_nodes.facts(N1) is None


def test_node_that_could_not_be_removed_stays_withdrawn() -> None:
    """The failed removal left the provider with its inventory."""
    nova, placement = Nova(), Placement()
    held_nodes = _held_nodes(nova, placement)
    removal = _removal(held_nodes, nova, Ironic(), placement)
    removal.check_absent({})

    def fail() -> None:
        placement.is_there, placement.is_withdrawn = True, False
        raise PlacementError('it is away')

    placement.during = fail
    removal.check_absent({})
    assert placement.is_there
    assert placement.is_withdrawn
    assert held_nodes.row(N1) is not None


# ---- suspects: removed a minute after their first 404


def _deleted(*nodes: str, server: str | None = None) -> tuple[Cloud, One]:
    """Return a host that holds n1 to n3, of which Ironic deleted some.

    :param server: the server on n1, if any
    """
    cloud = Cloud(['n1', 'n2', 'n3'])
    one = cloud.add('c1')
    cloud.show('c1')
    cloud.clock.advance(10.0)
    cloud.settle()
    assert set(cloud.providers) == {'n1', 'n2', 'n3'}
    if server is not None:
        cloud.nova.servers[server] = ServerRecord(
            server, 0.0, 'active', None, Host('c2'), N1
        )
    for node in nodes:
        del cloud.nodes[NodeId(node)]
    return cloud, one


def _pass(cloud: Cloud, one: One, seconds: float) -> None:
    """Let time pass, with a round every ten seconds."""
    for _ in range(int(seconds / 10.0)):
        cloud.clock.advance(10.0)
        assert one.removal.try_round() == 10.0


def _notify(cloud: Cloud, one: One) -> None:
    one.node_changes.note_deleted(N1)
    one.node_changes.note_deleted(NodeId('of another host'))


def _list(cloud: Cloud, one: One) -> None:
    one.audit()


def _list_nothing(cloud: Cloud, one: One) -> None:
    cloud.clock.advance(120.0)
    one.audit([])


EVIDENCE = pytest.mark.parametrize('become_evident', [_notify, _list])
Evidence = Callable[[Cloud, One], None]


@EVIDENCE
def test_node_that_ironic_deleted_is_removed_within_two_minutes(
    become_evident: Evidence,
) -> None:
    """Two 404s a minute apart suffice, without a second audit."""
    cloud, one = _deleted('n1')
    become_evident(cloud, one)
    _pass(cloud, one, 50.0)
    assert cloud.removed == []
    assert set(cloud.providers) == {'n2', 'n3'}
    _pass(cloud, one, 30.0)
    assert cloud.removed == ['provider of n1', 'n1']
    assert set(one.held_nodes.rows()) == {'n2', 'n3'}
    cloud.read_node = pytest.fail  # type: ignore[method-assign,assignment]
    _pass(cloud, one, 600.0)


@pytest.mark.parametrize(
    'error',
    [
        errors.IronicUnavailable('500'),
        errors.IronicNotReached('no route'),
        errors.IronicRefused('403'),
    ],
)
@EVIDENCE
def test_suspect_is_not_removed_because_of_an_error(
    become_evident: Evidence, error: Exception
) -> None:
    """Neither the first read nor the second may fail; 404s must be in turn."""
    cloud, one = _deleted('n1')
    cloud.hidden[N1] = error
    become_evident(cloud, one)
    _pass(cloud, one, 300.0)
    assert cloud.removed == []
    del cloud.hidden[N1]
    become_evident(cloud, one)
    _pass(cloud, one, 50.0)
    cloud.hidden[N1] = error
    _pass(cloud, one, 300.0)
    del cloud.hidden[N1]
    _pass(cloud, one, 60.0)
    assert cloud.removed == []


@EVIDENCE
@pytest.mark.parametrize('is_missing_again', [False, True])
def test_suspect_that_any_read_found_is_not_removed(
    become_evident: Evidence, is_missing_again: bool
) -> None:
    """The first 404 was wrong, so the next one is the first again.

    The mark of a later 404, of the feed, does not revive the first one.
    """
    cloud, one = _deleted('n1')
    become_evident(cloud, one)
    _pass(cloud, one, 50.0)
    one.node_changes.mark_present(N1)
    if is_missing_again:
        one.node_changes.mark_missing(N1)
    _pass(cloud, one, 60.0)
    assert cloud.removed == []
    _pass(cloud, one, 60.0)
    assert cloud.removed == ['provider of n1', 'n1']


@EVIDENCE
def test_suspect_is_read_by_the_feed_which_reads_it_until_it_is_found(
    become_evident: Evidence,
) -> None:
    """A wrong 404 would else keep the node from builds for a minute."""
    cloud, one = _deleted('n1')
    one.reads_requested.clear()
    become_evident(cloud, one)
    _pass(cloud, one, 10.0)
    assert one.held_nodes.is_missing(N1)
    assert one.reads_requested == [N1]


def test_node_that_any_read_found_between_two_audits_is_not_removed() -> None:
    """The two 404s are not in a row; those of the next audits are."""
    cloud, one = _deleted('n1', 'n2', 'n3')
    _list_nothing(cloud, one)
    one.node_changes.mark_present(N1)
    _list_nothing(cloud, one)
    assert set(one.held_nodes.rows()) == {N1}
    _list_nothing(cloud, one)
    assert not one.held_nodes.rows()


def test_node_found_between_two_audits_and_missing_again_is_not_removed() -> (
    None
):
    """Nor does the mark of the feed revive the 404 of an earlier audit."""
    cloud, one = _deleted('n1', 'n2', 'n3')
    _list_nothing(cloud, one)
    one.node_changes.mark_present(N1)
    one.node_changes.mark_missing(N1)
    _list_nothing(cloud, one)
    assert set(one.held_nodes.rows()) == {N1}
    _list_nothing(cloud, one)
    assert not one.held_nodes.rows()


def _find_n1_when_n2_is_read(cloud: Cloud, one: One) -> None:
    """Have another part of the worker find n1 after the next 404 of it."""
    read_node = cloud.read_node

    def read(node: str) -> NodeFacts:
        if node == 'n2':
            cloud.read_node = read_node  # type: ignore[method-assign]
            one.node_changes.mark_present(N1)
        return read_node(node)

    cloud.read_node = read  # type: ignore[method-assign]


def test_suspect_that_is_found_while_others_are_read_is_not_removed() -> None:
    """The 404 before that is not the first of two."""
    cloud, one = _deleted('n1', 'n2')
    for node in (N1, NodeId('n2')):
        one.node_changes.note_deleted(node)
    _find_n1_when_n2_is_read(cloud, one)
    _pass(cloud, one, 70.0)
    assert cloud.removed == ['provider of n2', 'n2']
    _pass(cloud, one, 10.0)
    assert cloud.removed[2:] == ['provider of n1', 'n1']


def test_node_that_is_found_during_an_audit_is_not_removed() -> None:
    """An audit may read thousands of nodes after the one with a wrong 404."""
    cloud, one = _deleted('n1', 'n2', 'n3')
    _find_n1_when_n2_is_read(cloud, one)
    _list_nothing(cloud, one)
    _list_nothing(cloud, one)
    assert set(one.held_nodes.rows()) == {N1}
    _list_nothing(cloud, one)
    assert not one.held_nodes.rows()


@EVIDENCE
def test_suspect_that_ironic_has_again_is_offered_again(
    become_evident: Evidence,
) -> None:
    """The node was enrolled again, or the 404 was wrong."""
    cloud, one = _deleted('n1')
    become_evident(cloud, one)
    _pass(cloud, one, 20.0)
    assert set(cloud.providers) == {'n2', 'n3'}
    cloud.nodes[N1] = NodeFacts(N1)
    _pass(cloud, one, 60.0)
    assert set(cloud.providers) == {'n1', 'n2', 'n3'}
    _pass(cloud, one, 600.0)
    assert cloud.removed == []


def test_list_that_contains_a_suspect_ends_the_suspicion() -> None:
    """A proxy may answer 404 for each single node."""
    cloud, one = _deleted()
    cloud.hidden[N1] = errors.NodeNotFound('n1')
    _notify(cloud, one)
    _pass(cloud, one, 50.0)
    one.audit()
    _pass(cloud, one, 600.0)
    assert cloud.removed == []


@pytest.mark.parametrize('is_removed', [False, True])
def test_node_that_is_not_held_any_more_is_not_read(
    *, is_removed: bool
) -> None:
    """A second audit has removed it, or another host holds it now."""
    cloud, one = _deleted('n1')
    one.audit()
    if is_removed:
        cloud.clock.advance(120.0)
        one.audit()
        assert cloud.removed == ['provider of n1', 'n1']
    else:
        one.held_nodes.drop_node(N1)
    reads: list[str] = []
    cloud.read_node = reads.append  # type: ignore[method-assign,assignment]
    _pass(cloud, one, 600.0)
    assert reads == []


def test_empty_list_makes_no_suspect() -> None:
    """An Ironic with an empty database answers 404 for each node as well."""
    cloud, one = _deleted('n1', 'n2', 'n3')
    _list_nothing(cloud, one)
    _pass(cloud, one, 600.0)
    assert cloud.removed == []
    _list_nothing(cloud, one)
    assert len(cloud.removed) == 6, 'two audits agree'


@EVIDENCE
def test_suspect_with_a_server_of_any_host_stays(
    become_evident: Evidence,
) -> None:
    """Its records are removed by an audit after the server was deleted."""
    cloud, one = _deleted('n1', server='s1')
    become_evident(cloud, one)
    _pass(cloud, one, 600.0)
    assert cloud.removed == []
    cloud.nova.servers['s1'].deleted = True
    one.audit()
    cloud.clock.advance(120.0)
    one.audit()
    assert cloud.removed == ['provider of n1', 'n1']


@EVIDENCE
def test_suspect_stays_if_ironic_does_not_show_all_nodes(
    become_evident: Evidence,
) -> None:
    """The 404 may mean that the node is of another project."""
    cloud, one = _deleted('n1')
    cloud.can_list_all_nodes = lambda: False  # type: ignore[method-assign]
    become_evident(cloud, one)
    _pass(cloud, one, 600.0)
    assert cloud.removed == []


def test_suspect_that_another_thread_found_last_is_not_removed() -> None:
    """Ironic is asked whether it shows all nodes after the second 404."""
    cloud, one = _deleted('n1')

    def find() -> bool:
        one.node_changes.mark_present(N1)
        return True

    cloud.can_list_all_nodes = find  # type: ignore[method-assign]
    _notify(cloud, one)
    _pass(cloud, one, 80.0)
    assert cloud.removed == []


def test_outage_of_ironic_ends_a_round() -> None:
    """Each read may last 90 s; the nodes behind it are read later."""
    cloud, one = _deleted('n1', 'n2')
    reads: list[str] = []

    def read(node: str) -> NodeFacts:
        reads.append(node)
        raise errors.IronicUnavailable('no answer in 90 s')

    for node in (N1, NodeId('n2')):
        one.node_changes.note_deleted(node)
    cloud.read_node = read  # type: ignore[method-assign]
    _pass(cloud, one, 20.0)
    assert reads == ['n1', 'n2'], 'the first one is read last'
    del cloud.read_node  # type: ignore[method-assign]
    _pass(cloud, one, 80.0)
    assert set(one.held_nodes.rows()) == {'n3'}


def test_round_that_fails_ends_no_thread(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """The next round goes on."""
    cloud, one = _deleted('n1')
    _notify(cloud, one)
    cloud.hidden[N1] = RuntimeError('a bug')
    _pass(cloud, one, 10.0)
    assert 'Could not check which nodes are deleted' in caplog.text
    del cloud.hidden[N1]
    _pass(cloud, one, 80.0)
    assert cloud.removed == ['provider of n1', 'n1']

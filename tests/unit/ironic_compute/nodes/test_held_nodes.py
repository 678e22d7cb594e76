# SPDX-License-Identifier: Apache-2.0
"""A new node is offered only when its row was read again as ours."""

import contextlib
import dataclasses
import pathlib
import threading
from collections.abc import Callable
from typing import Any

import pytest
from nova import objects

from hashring.clock import SystemClock
from hashring.ring import Host
from ironic_compute.nodes import records
from ironic_compute.nodes.held_nodes import HeldNodes
from ironic_compute.nodes.node_cache import NodeCache
from ironic_compute.nodes.unconfirmed_rows import UnconfirmedRows
from resource_tracker.claims import ClaimBook
from resource_tracker.disk_cache import FileDiskCache
from resource_tracker.node import NodeFacts, NodeId
from resource_tracker.provider import Situation
from resource_tracker.reconciler import Reconciler
from tests.fakes.clock import ManualClock
from tests.fakes.placement import FakePlacement

objects.register_all()

C1, N1 = Host('c1'), NodeId('n1')
FACTS = NodeFacts(N1, provision_state='available')


CLOCK = ManualClock(start_s=0.0)


def _row(host: str = 'c1', created_ago_s: float | None = None) -> Any:
    """Return a row; without an age: one without the mark of a new one."""
    stats = {}
    if created_ago_s is not None:
        stats[records.NEW] = f'{CLOCK.wall_s() - created_ago_s:.0f}'
    return objects.ComputeNode(
        hypervisor_hostname='n1', host=host, stats=stats
    )


@dataclasses.dataclass
class FakeRows:
    """Nova's rows as they are in the database."""

    present: Any
    while_reading: Callable[[], None] = lambda: None
    while_describing: Callable[[], None] = lambda: None
    trouble: Exception | None = None

    def list_by_host(self, host: Host) -> list[Any]:
        found = [self.present] if self.present else []
        self.while_reading()
        return found

    def update_row(self, row: Any, facts: NodeFacts) -> None:
        self.while_describing()
        if self.trouble is not None:
            raise self.trouble


class Reports:
    """Remembers what Placement was told."""

    def __init__(self) -> None:
        self.confirmed: dict[NodeId, bool] = {}
        self.withdrawn: list[NodeId] = []

    def submit(self, facts: NodeFacts, situation: Situation) -> None:
        self.confirmed[facts.uuid] = situation.confirmed

    def withdraw_node(self, node: NodeId, row_id: str) -> None:
        self.withdrawn.append(node)
        self.confirmed.pop(node, None)

    def forget_node(self, node: NodeId) -> None:
        self.confirmed.pop(node, None)


@pytest.fixture
def reports() -> Reports:
    """Return what Placement is told."""
    return Reports()


def _held_nodes(
    found: FakeRows,
    reports: Any,
    new_lock: Any = threading.Lock,
    on_unheld: Any = lambda facts: None,
) -> HeldNodes:
    compute_nodes: Any = found
    return HeldNodes(
        C1,
        compute_nodes,
        NodeCache(CLOCK),
        ClaimBook(),
        reports,
        UnconfirmedRows(CLOCK, 90.0),
        on_unheld,
        new_lock,
    )


def test_a_new_row_of_an_earlier_worker_is_not_offered(
    reports: Reports,
) -> None:
    """A worker that died between creating and confirming left it so."""
    held_nodes = _held_nodes(FakeRows(_row(created_ago_s=0.0)), reports)
    held_nodes.load_rows()
    held_nodes.accept_facts(FACTS)
    assert held_nodes.unconfirmed_rows.nodes() == {N1}
    assert reports.confirmed == {N1: False}
    held_nodes.confirm_row(N1, _row())
    assert not held_nodes.unconfirmed_rows.nodes()
    assert reports.confirmed == {N1: True}


@pytest.mark.parametrize('current', [None, _row(host='c2')])
def test_a_new_row_that_is_another_host_s_is_not_written(
    current: Any, reports: Reports
) -> None:
    """Who lost a row must not confirm it for who has it."""
    held_nodes = _held_nodes(FakeRows(_row(created_ago_s=0.0)), reports)
    held_nodes.load_rows()
    held_nodes.accept_facts(FACTS)
    held_nodes.confirm_row(N1, current)
    assert held_nodes.row(N1) is None


@pytest.mark.parametrize('age_s', [91.0, None])
def test_an_old_row_is_offered_at_once(
    age_s: float | None, reports: Reports
) -> None:
    """Marked or not: nobody writes a row only to take the mark off."""
    held_nodes = _held_nodes(FakeRows(_row(created_ago_s=age_s)), reports)
    held_nodes.load_rows()
    held_nodes.accept_facts(FACTS)
    assert reports.confirmed == {N1: True}


def test_a_node_that_could_not_be_offered_is_confirmed_again(
    reports: Reports,
) -> None:
    """Its row's first save fails: nobody else would try again."""
    found = FakeRows(_row(created_ago_s=0.0))
    held_nodes = _held_nodes(found, reports)
    held_nodes.load_rows()
    held_nodes.accept_facts(FACTS)
    found.trouble = TimeoutError()
    with pytest.raises(TimeoutError):
        held_nodes.confirm_row(N1, _row())
    assert held_nodes.unconfirmed_rows.nodes() == {N1}
    found.trouble = None
    held_nodes.confirm_row(N1, _row())
    assert reports.confirmed == {N1: True}


def test_a_node_that_left_while_rows_were_read_stays_away(
    reports: Reports,
) -> None:
    """A list of rows takes seconds; a push meanwhile is newer than it."""
    found = FakeRows(_row())
    held_nodes = _held_nodes(found, reports)
    held_nodes.load_rows()
    held_nodes.accept_facts(FACTS)

    def push() -> None:
        found.while_reading = lambda: None
        with held_nodes.locked_free_row(N1) as row:
            assert row is not None
            row.host = 'c2'

    found.while_reading = push
    found.present = _row()
    held_nodes.load_rows()
    assert held_nodes.row(N1) is None
    found.present = None
    held_nodes.load_rows()
    held_nodes.add_node(_row(), FACTS, held_nodes.version())  # It came back.
    assert held_nodes.row(N1) is not None


def test_a_node_that_came_while_rows_were_read_stays(
    reports: Reports,
) -> None:
    """It is no more missing than an answer that is older than it."""
    held_nodes = _held_nodes(FakeRows(None), reports)
    read_at = held_nodes.version()
    held_nodes.add_node(_row(), FACTS, held_nodes.version())
    held_nodes.drop_nodes({N1}, read_at)
    assert held_nodes.row(N1) is not None
    held_nodes.drop_nodes({N1}, held_nodes.version())
    assert held_nodes.row(N1) is None


def test_only_rows_of_ours_are_gained(reports: Reports) -> None:
    """A page of the cell's rows has those of everybody."""
    held_nodes = _held_nodes(FakeRows(None), reports)
    held_nodes.add_rows([_row(host='c2')], held_nodes.version())
    assert held_nodes.row(N1) is None
    held_nodes.add_rows([_row()], held_nodes.version())
    assert held_nodes.row(N1) is not None


def test_a_node_that_was_perhaps_given_away_is_left_alone(
    reports: Reports,
) -> None:
    """No answer to a push: only a new look at its row says whose it is."""
    strangers: list[NodeId] = []
    held_nodes = _held_nodes(
        FakeRows(_row()),
        reports,
        on_unheld=lambda facts: strangers.append(facts.uuid),
    )
    held_nodes.load_rows()
    held_nodes.accept_facts(FACTS)
    with pytest.raises(TimeoutError), held_nodes.locked_free_row(N1) as row:
        assert row is not None
        row.host = 'c2'
        raise TimeoutError
    with held_nodes.locked_free_row(N1) as row:
        assert row is None
    assert strangers == [N1]
    assert held_nodes.row(N1) is None


def test_who_waits_for_a_push_finds_no_claim_of_it(reports: Reports) -> None:
    """It would report a node as taken that was not given away after all."""
    free: list[bool] = []

    class Left(contextlib.nullcontext[None]):
        """The lock of a node, for which somebody has waited."""

        def __exit__(self, *exc: object) -> None:
            free.append(held_nodes.is_free(N1))

    held_nodes = _held_nodes(FakeRows(_row()), reports, new_lock=Left)
    held_nodes.load_rows()
    held_nodes.accept_facts(FACTS)
    free.clear()
    with held_nodes.locked_free_row(N1):
        assert not held_nodes.is_free(N1)
    assert free == [True]


def test_a_node_that_is_lost_while_it_is_reported_is_forgotten(
    reports: Reports,
) -> None:
    """What was submitted last would be written at each audit, for ever."""
    found = FakeRows(_row())
    held_nodes = _held_nodes(found, reports)
    held_nodes.load_rows()
    found.while_describing = lambda: held_nodes.drop_nodes(
        {N1}, held_nodes.version()
    )
    held_nodes.accept_facts(FACTS)
    assert held_nodes.row(N1) is None
    assert reports.confirmed == {}


@pytest.mark.parametrize('comes_back', [False, True])
def test_a_node_that_left_while_we_waited_is_not_written(
    reports: Reports, *, comes_back: bool
) -> None:
    """Its row is another worker's by then; or it is held anew."""
    again = _row()
    meanwhile: list[Callable[[], None]] = []

    class Waited(contextlib.nullcontext[None]):
        """The lock of a node, to which something happens meanwhile."""

        def __enter__(self) -> None:
            if meanwhile:
                meanwhile.pop()()

    def leave() -> None:
        held_nodes.drop_node(N1)
        if comes_back:
            held_nodes.add_node(again, FACTS, held_nodes.version())

    held_nodes = _held_nodes(FakeRows(_row()), reports, Waited)
    held_nodes.load_rows()
    meanwhile.append(leave)
    with held_nodes.locked_row(N1) as row:
        assert row is (again if comes_back else None)


def test_a_held_node_keeps_its_row_and_its_lock(reports: Reports) -> None:
    """Somebody may be writing; a second lock would let another one in."""
    held_nodes = _held_nodes(FakeRows(_row()), reports)
    held_nodes.load_rows()
    with held_nodes.locked_row(N1) as row:
        held_nodes.add_node(_row(), None, held_nodes.version())
        assert held_nodes.row(N1) is row
        assert held_nodes._held[N1].lock.locked()  # type: ignore[attr-defined]


def test_a_node_that_ironic_denies_is_withdrawn_until_it_is_found(
    reports: Reports,
) -> None:
    """Whatever else is new of its host, and whatever an old list says."""
    held_nodes = _held_nodes(FakeRows(_row()), reports)
    held_nodes.load_rows()
    held_nodes.mark_missing(N1)
    held_nodes.mark_missing(N1)
    held_nodes.update_host_status(disabled=True)
    assert reports.withdrawn == [N1]
    held_nodes.accept_facts(FACTS)
    assert not reports.confirmed
    held_nodes.mark_present(N1)
    held_nodes.accept_facts(FACTS)
    assert reports.confirmed == {N1: True}
    held_nodes.mark_missing(NodeId('of another host'))
    assert reports.withdrawn == [N1]


class _OpenGate:
    def is_open(self) -> bool:
        return True

    def wait(self) -> None:
        """Return at once."""


@pytest.mark.parametrize('is_restarted_first', [False, True])
def test_traits_of_a_missing_node_are_ours_after_a_restart(
    tmp_path: pathlib.Path, is_restarted_first: bool
) -> None:
    """Ironic denies the node before a restart, or right after it."""
    placement: Any = FakePlacement()
    row = _row()
    row.stats = {records.MADE: '100.5'}
    old = dataclasses.replace(FACTS, traits=frozenset({'CUSTOM_OLD'}))

    def live(*steps: str | NodeFacts) -> None:
        cache = FileDiskCache(tmp_path / 'cache', 'c1')
        reconciler = Reconciler(
            placement, _OpenGate(), SystemClock(), 1, disk_cache=cache
        )
        held_nodes = _held_nodes(FakeRows(row), reconciler)
        held_nodes.load_rows()
        for step in steps:
            if isinstance(step, str):
                held_nodes.mark_missing(N1)
            else:
                held_nodes.mark_present(N1)
                held_nodes.accept_facts(step)
            assert reconciler.drain(60.0)
        reconciler.stop()
        cache.close()

    first = [old] if is_restarted_first else [old, 'denied']
    second = ['denied', FACTS] if is_restarted_first else [FACTS]
    live(*first)
    assert 'CUSTOM_OLD' in placement.providers[N1].traits
    live(*second)
    assert 'CUSTOM_OLD' not in placement.providers[N1].traits


def test_host_has_servers_if_a_held_node_has_an_instance(
    reports: Reports,
) -> None:
    """A node that Ironic has not shown yet has none."""
    held_nodes = _held_nodes(FakeRows(_row()), reports)
    held_nodes.load_rows()
    seen = [held_nodes.has_servers()]
    for instance_uuid in (None, 's1'):
        held_nodes.accept_facts(
            dataclasses.replace(FACTS, instance_uuid=instance_uuid)
        )
        seen.append(held_nodes.has_servers())
    assert seen == [False, False, True]


def test_a_row_that_took_long_to_create_is_new(reports: Reports) -> None:
    """Longer than a row is new to others; a clock may have jumped, too."""
    held_nodes = _held_nodes(FakeRows(None), reports)
    row = _row(created_ago_s=3600.0)
    held_nodes.add_node(row, FACTS, held_nodes.version(), created=True)
    assert reports.confirmed == {N1: False}


class DroppedMeanwhile(NodeCache):
    """A node cache whose node is dropped while its facts are stored."""

    drop: Callable[[], None]

    def update_facts(self, facts: NodeFacts) -> bool:
        thread = threading.Thread(target=self.drop)
        thread.start()
        thread.join(0.2)
        return super().update_facts(facts)


def test_node_dropped_while_its_facts_come_leaves_the_cache(
    reports: Reports,
) -> None:
    """Facts of a node that is not held would be found by its instance."""
    node_cache = DroppedMeanwhile(CLOCK)
    rows: Any = FakeRows(_row())
    held_nodes = HeldNodes(
        C1,
        rows,
        node_cache,
        ClaimBook(),
        reports,
        UnconfirmedRows(CLOCK, 90.0),
        lambda facts: None,
    )
    held_nodes.load_rows()
    node_cache.drop = lambda: held_nodes.drop_node(N1)
    held_nodes.update_facts(dataclasses.replace(FACTS, instance_uuid='i1'))
    for _ in range(100):
        if not node_cache.list_nodes():
            break
        threading.Event().wait(0.01)
    assert node_cache.list_nodes() == ()
    assert node_cache.find_by_instance('i1') is None

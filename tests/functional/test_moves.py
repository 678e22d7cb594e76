# SPDX-License-Identifier: Apache-2.0
"""Servers that move to another host while users request something."""

import contextlib
import re
import threading
from collections.abc import Iterator, Mapping
from typing import Any

from nova import context as nova_context
from nova import exception, objects
from nova.compute import rpcapi

from hashring.clock import SystemClock
from hashring.group import Boot, Member
from hashring.ring import Host
from hashring.workers import HostRetired
from ironic_compute.cmd import history, node_moves, nova_access, rebalance
from ironic_compute.journal.moves import Move, Query
from ironic_compute.nodes.pins import Pin, read_pin
from ironic_compute.ownership import peer_rpc
from ironic_compute.ownership.eviction import Refused
from ironic_compute.ownership.rebalance_order import RebalanceOrder
from resource_tracker.node import NodeId
from tests.functional import base, pool

_OTHER = {'c1': 'c2', 'c2': 'c1'}


class MoveTest(pool.PoolTestCase):
    """A server on one of two hosts, which can be moved to the other one."""

    def setUp(self) -> None:
        """Boot one server."""
        super().setUp()
        self.context = nova_context.get_admin_context()
        self.server = self.boot(self.flavor)
        self.host = self._host()
        self.target = _OTHER[self.host]
        self.node = NodeId(self.node_of(self.server))
        self.evictor = self.manager(self.host).server_moves.evictor
        facts = self.components(self.host).held_nodes
        self.until(
            lambda: (
                (found := facts.facts(self.node)) is not None
                and found.provision_state == 'active'
            ),
            'the server deployed',
        )

    def _host(self) -> str:
        shown = self.api.get_server(self.server['id'])
        return str(shown['OS-EXT-SRV-ATTR:host'])

    def _move(self) -> None:
        """Move the server when the thread that has built it has ended."""

        def is_moved() -> bool:
            with contextlib.suppress(Refused):
                self.evictor.evict(self.node, Host(self.target))
                return True
            return False

        self.until(is_moved, 'moved')

    def _row(self) -> Any:
        return objects.Instance.get_by_uuid(self.context, self.server['id'])

    def _holder(self) -> str:
        row = objects.ComputeNode.get_by_nodename(self.context, self.node)
        return str(row.host)

    def _assert_moved(self) -> None:
        self.assertEqual((self.target, self.target), self._where())
        self.until(lambda: self.node in self.held(self.target), 'it is held')
        self.assertNotIn(self.node, self.held(self.host))

    def _where(self) -> tuple[str, str]:
        return self._host(), self._holder()

    def _do(self, action: str, status: str, argument: Any = None) -> None:
        """Have nova-api do something, and wait until it is done."""
        self.action(self.server, action, argument)

        def is_done() -> bool:
            shown = self.api.get_server(self.server['id'])
            task = shown['OS-EXT-STS:task_state']
            return task is None and shown['status'] == status

        self.until(is_done, f'{action} done')
        self.assertEqual('Success', self.last_events(self.server)[0]['result'])

    def test_moved_server_can_be_used_as_before(self) -> None:
        """Its new host reboots, stops, starts, rebuilds and deletes it."""
        nodes = list(self.allocations(self.server))
        self._move()
        self._assert_moved()
        self._do('reboot', 'ACTIVE', {'type': 'HARD'})
        self._do('os-stop', 'SHUTOFF')
        self._do('os-start', 'ACTIVE')
        self._do('rebuild', 'ACTIVE', {'imageRef': base.IMAGE_ID})
        self.assertEqual(nodes, list(self.allocations(self.server)))
        self.assertEqual(
            self.target, self.ironic.infos[self.node]['nova_host_id']
        )
        self.assertEqual((self.target, self.target), self._where())
        self.delete(self.server)
        self.until(lambda: self.offered() == self.NODES_COUNT, 'all free')

    def test_move_is_in_the_history_of_the_server(self) -> None:
        """Administrators see the former host; the names tell nobody."""
        self._move()
        actions = self.api.get_instance_actions(self.server['id'])
        self.assertEqual(
            {'create', 'ironic-compute: move'}, {a['action'] for a in actions}
        )
        (event,) = self.last_events(self.server)
        self.assertEqual('ironic_compute_leave_host', event['event'])
        self.assertEqual(
            (self.host, 'Success'), (event['host'], event['result'])
        )

    def test_nova_host_id_in_ironic_is_the_new_host(self) -> None:
        """Ironic's operators see it; a deploy has written it."""
        self.assertEqual(
            self.host, self.ironic.infos[self.node]['nova_host_id']
        )
        self._move()
        self.assertEqual(
            self.target, self.ironic.infos[self.node]['nova_host_id']
        )

    def test_server_is_not_moved_while_it_is_rebooted(self) -> None:
        """The reboot ends where it began; then the server moves."""
        with self._held_up('reboot') as door:
            self.action(self.server, 'reboot', {'type': 'HARD'})
            self.until(door.is_waited_for.is_set, 'the reboot at work')
            self.assertRaisesRegex(
                Refused,
                'is being worked on',
                self.evictor.evict,
                self.node,
                Host(self.target),
            )
        self._wait_for_state_change(self.server, 'ACTIVE')
        self._move()
        self._assert_moved()

    @contextlib.contextmanager
    def _held_up(self, method: str) -> Iterator['_Door']:
        """Hold a method of the present host's driver up."""
        driver: Any = self.manager(self.host).driver
        door, act = _Door(), getattr(driver, method)

        def wait_and_act(*args: Any, **kwargs: Any) -> Any:
            door.wait()
            return act(*args, **kwargs)

        setattr(driver, method, wait_and_act)
        try:
            yield door
        finally:
            setattr(driver, method, act)
            door.opened.set()

    def test_request_of_a_user_who_has_read_the_former_host(self) -> None:
        """nova-api had read the record before the move."""
        former, row = self._row(), self._row()
        self._move()
        row.task_state = former.task_state = 'powering-off'
        row.save(expected_task_state=[None])
        self.assertEqual(self.host, former.host)
        rpcapi.ComputeAPI().stop_instance(self.context, former)
        self._wait_for_state_change(self.server, 'SHUTOFF')
        self.assertEqual((self.target, self.target), self._where())

    def test_task_that_nova_api_has_saved_is_not_moved_away(self) -> None:
        """Its message is still under way."""
        row = self._row()
        row.task_state = 'powering-off'
        row.save()
        self.until(self._is_refused_for_its_task, 'refused')
        self.assertEqual((self.host, self.host), self._where())

    def _is_refused_for_its_task(self) -> bool:
        try:
            self.evictor.evict(self.node, Host(self.target))
        except Refused as exc:
            return 'has task powering-off' in str(exc)
        return False

    def test_operator_moves_a_node(self) -> None:
        """A dry run says what the run does then, or why it does nothing."""
        self._assert_refused('c9 is not a host of this pool', 'c9')
        would = self._say(self.target, is_dry_run=True)
        self.assertEqual((self.host, self.host), self._where())
        done = self._say(self.target, is_dry_run=False)
        would = would.replace('would move', 'moved')
        self.assertEqual(would.replace('would be', 'is'), done)
        self._assert_moved()
        self._assert_refused(f'is pinned to host {self.target}', self.host)

    def test_pinned_node_stays_when_its_server_is_deleted(self) -> None:
        """Its free node would else go where the ring says."""
        self._say(self.target, is_dry_run=False)
        self._assert_moved()
        self.delete(self.server)
        self.until(lambda: self.offered() == self.NODES_COUNT, 'all free')
        facts = self.components(self.target).held_nodes
        self.until(lambda: facts.is_free(self.node), 'it is free')
        self._let_rounds_pass()
        self.assertEqual(self.target, self._holder())
        self.assertIn(
            f'the hash ring names {self.host}',
            node_moves.unpin_node(self.node),
        )
        self.until(lambda: self._holder() == self.host, 'it is pushed')
        self.until(lambda: self.node in self.held(self.host), 'it is held')
        self.assertIn('is not pinned', node_moves.unpin_node(self.node))

    def _let_rounds_pass(self) -> None:
        """Wait until each worker has run two whole rounds."""
        rebalancers = [self.components(h).rebalancer for h in self.workers]
        counts = [each._rounds_count for each in rebalancers]
        self.until(
            lambda: all(
                each._rounds_count > count + 2
                for each, count in zip(rebalancers, counts, strict=True)
            ),
            'rounds were run',
        )

    def test_free_node_moves_and_outlasts_a_restart(self) -> None:
        """The next worker of its host reads the pin in the row."""
        node = NodeId(min(self.held(self.host) - {self.node}))
        done = node_moves.move_node(
            node,
            Pin(Host(self.target), 'ann'),
            replaces=False,
            is_dry_run=False,
        )
        self.assertIn(f'is pinned to host {self.target}', done)
        self.until(lambda: node in self.held(self.target), 'it is pushed')
        held_nodes = self.components(self.target).held_nodes
        held_nodes.drop_node(node)
        held_nodes.load_rows()
        self.assertEqual(
            Pin(Host(self.target), 'ann'), read_pin(held_nodes.row(node))
        )
        # As the agents do when their workers have read that it is disabled.
        pool.TheCloud.show(self.host)
        self.until(lambda: node in self.held(self.host), 'it left')
        pool.TheCloud.show(self.host, self.target)
        self.until(lambda: node in self.held(self.target), 'it came back')

    def test_pin_outlasts_reports_of_its_node(self) -> None:
        """Ironic's properties of a node are in the same field of its row."""
        node = NodeId(min(self.held(self.host) - {self.node}))
        node_moves.move_node(
            node,
            Pin(Host(self.host), 'ann'),
            replaces=False,
            is_dry_run=False,
        )
        self.ironic.change(
            node,
            properties={'cpu_arch': 'x86_64', 'capabilities': 'rack:7'},
        )

        def is_reported() -> bool:
            row = objects.ComputeNode.get_by_nodename(self.context, node)
            return (row.stats or {}).get('rack') == '7'

        self.until(is_reported, 'reported')
        row = objects.ComputeNode.get_by_nodename(self.context, node)
        self.assertEqual(Pin(Host(self.host), 'ann'), read_pin(row))

    def test_pool_is_rebalanced(self) -> None:
        """A server that was moved, and is not pinned, goes home."""
        self._move()
        self._assert_moved()
        # The row of a fresh node is read with the next audit.
        facts = self.components(self.target).held_nodes
        self.until(lambda: facts.facts(self.node) is not None, 'it is read')
        hosts = sorted(map(Host, self.workers))
        order = RebalanceOrder('k1', 'ann on ctl-1')
        work = rebalance.PoolRebalance(
            lambda: hosts,
            peer_rpc.request_rebalance_plan,
            lambda host, node: peer_rpc.request_rebalance_node(
                host, node, order.key
            ),
            SystemClock(),
            True,
        )
        for host in hosts:
            why_not = peer_rpc.request_begin_rebalance(
                host, order, is_dry_run=False
            )
            self.assertIsNone(why_not)
        plans = work.read_plans()
        rows = rebalance.rows(plans, with_servers=True)
        sentences = list(work.work_until_done(plans))
        self.assertEqual((self.host, self.host), self._where())
        self.assertIn(self.node, sentences[0])
        # The new host reads the row and the node when it is told.
        facts = self.components(self.host).held_nodes
        self.until(lambda: facts.facts(self.node) is not None, 'it is held')
        after = rebalance.rows(work.read_plans(), with_servers=True)
        self.assertEqual(
            [(row[0], row[2], row[4]) for row in rows],
            [(row[0], row[1], row[3]) for row in after],
        )
        self._do('reboot', 'ACTIVE', {'type': 'HARD'})
        self._assert_other_order_is_refused(hosts)
        self._assert_in_history(hosts[0])

    def _assert_other_order_is_refused(self, hosts: list[Host]) -> None:
        other = RebalanceOrder('k2', 'bob')
        why_not = peer_rpc.request_begin_rebalance(
            hosts[0], other, is_dry_run=True
        )
        result = peer_rpc.request_rebalance_node(
            Host(self.host), self.node, other.key
        )
        self.assertIn('ordered by ann on ctl-1', why_not or '')
        # A second may pass between the two answers.
        first, second = (
            re.sub(r'\d+ s\b', 'N s', said or '')
            for said in (why_not, result.why_not)
        )
        self.assertEqual(first, second)

    def _assert_in_history(self, host: Host) -> None:
        """Any worker of the machine has the moves of all of them."""
        members = [Member(host, Boot('b1'), serving=(host,))]
        query = Query(node=self.node)

        def moves() -> list[Move]:
            return history.read_history(
                members, query, history.ask_for_moves, self.fail
            )

        self.until(lambda: len(moves()) == 2, 'written')
        home, away = moves()
        self.assertEqual(('evict', 'rebalance'), (home.kind, home.reason))
        self.assertEqual('ann on ctl-1', home.by)
        self.assertEqual(self.server['id'], home.server)
        self.assertEqual((self.target, self.host), (home.source, home.target))
        self.assertEqual((self.host, self.target), (away.source, away.target))
        self.assertGreaterEqual(home.at_s, away.at_s)
        self.assertGreater(home.seconds, 0.0)

    def _assert_refused(self, why: str, host: str) -> None:
        for is_dry_run in (True, False):
            with self.assertRaisesRegex(nova_access.NovaRefused, why):
                self._say(host, is_dry_run=is_dry_run)

    def _say(self, host: str, *, is_dry_run: bool) -> str:
        """Return what the command says once the build has ended."""
        said: list[str] = []

        def has_ended() -> bool:
            try:
                said.append(
                    node_moves.move_node(
                        self.node,
                        Pin(Host(host), 'ann'),
                        replaces=False,
                        is_dry_run=is_dry_run,
                    )
                )
            except nova_access.NovaRefused as exc:
                if 'is being worked on' in str(exc):
                    return False
                raise
            return True

        self.until(has_ended, 'the build ended')
        return said[0]

    def test_delete_during_a_move_is_done_by_the_new_host(self) -> None:
        """Between the two writes, nova-api sends it to the new host."""
        rows: Any = self.components(self.host).compute_nodes
        door, write = _Door(), rows.write_holder

        def write_late(*args: Any) -> bool:
            door.wait()
            return bool(write(*args))

        rows.write_holder = write_late
        mover = threading.Thread(target=self._move)
        mover.start()
        self.addCleanup(mover.join)
        self.addCleanup(door.opened.set)
        self.until(door.is_waited_for.is_set, 'between the writes')
        self.assertEqual((self.target, self.host), self._where())
        deleted_by = self._record_deletes()
        self.api.delete_server(self.server['id'])
        door.opened.set()
        self._wait_until_deleted(self.server)
        self.assertEqual([self.target], deleted_by)
        self.until(lambda: self.offered() == self.NODES_COUNT, 'all free')

    def _record_deletes(self) -> list[str]:
        """Return a list that grows by each host that deletes a server."""
        deleted_by: list[str] = []
        for host in self.workers:
            driver: Any = self.manager(host).driver
            destroy = driver.destroy

            def record(
                *args: Any, host: str = host, destroy: Any = destroy, **kw: Any
            ) -> Any:
                deleted_by.append(host)
                return destroy(*args, **kw)

            driver.destroy = record
        return deleted_by

    def test_node_whose_row_was_not_written_follows(self) -> None:
        """As if the worker had ended between the two writes."""
        rows: Any = self.components(self.host).compute_nodes
        write, fails = rows.write_holder, [True]

        def write_holder(*args: Any) -> bool:
            if fails and fails.pop():
                raise TimeoutError
            return bool(write(*args))

        rows.write_holder = write_holder
        self._move()
        self.assertFalse(fails)
        self.until(lambda: self._holder() == self.target, 'it follows')
        self._do('reboot', 'ACTIVE', {'type': 'HARD'})
        self._assert_moved()

    def test_server_leaves_its_zone_only_if_that_is_wanted(self) -> None:
        """Its user would see another zone."""
        made = self.api.post_aggregate(
            {'aggregate': {'name': 'a', 'availability_zone': 'zone-2'}}
        )
        self.api.add_host_to_aggregate(made['id'], self.target)
        self.until(self._is_refused_for_its_zone, 'refused')
        self.assertEqual((self.host, self.host), self._where())
        self._drain_into_another_zone()

    def _drain_into_another_zone(self) -> None:
        """An operator may want that; the user then sees the zone."""
        here = Host(self.host)
        plan = peer_rpc.request_drain_plan(here)
        waiting = [m.server for m in plan if m.why_not]
        self.assertEqual([self.server['id']], waiting)
        plan = peer_rpc.request_drain_plan(here, changes_zone=True)
        self.assertEqual({None}, {m.why_not for m in plan})
        self.assertEqual(
            None, peer_rpc.request_drain(here, None, changes_zone=True)
        )
        pool.TheCloud.show(self.target)
        self.until(lambda: not self.held(self.host), 'it is empty')
        self.assertEqual((self.target, self.target), self._where())
        shown = self.api.get_server(self.server['id'])
        self.assertEqual('zone-2', shown['OS-EXT-AZ:availability_zone'])

    def _is_refused_for_its_zone(self) -> bool:
        try:
            self.evictor.evict(self.node, Host(self.target))
        except Refused as exc:
            return 'different availability zones, nova and zone-2' in str(exc)
        return False


class DrainTest(pool.PoolTestCase):
    """A host with servers is emptied, and takes nodes again."""

    def setUp(self) -> None:
        """Boot two servers; the host of the first one is to be drained."""
        super().setUp()
        self.servers = [self.boot(self.flavor) for _ in range(2)]
        self.host = self._host(self.servers[0])
        self.target = _OTHER[self.host]

    def _host(self, server: Mapping[str, Any]) -> str:
        shown = self.api.get_server(server['id'])
        return str(shown['OS-EXT-SRV-ATTR:host'])

    def _service(self) -> Mapping[str, Any]:
        (found,) = self.api.get_services(host=self.host)
        return found

    def test_drained_host_is_empty_and_comes_back(self) -> None:
        """What the plan has shown is done, and nothing else."""
        here = Host(self.host)
        plan = peer_rpc.request_drain_plan(here)
        self.assertEqual({m.node for m in plan}, self.held(self.host))
        self.assertEqual({self.target}, {m.target for m in plan})
        self.assertEqual(None, peer_rpc.request_drain(here, None))
        self.assertEqual('disabled', self._service()['status'])
        self.assertEqual(
            'ironic-compute: draining', self._service()['disabled_reason']
        )
        # As the agents do when their workers have read that.
        pool.TheCloud.show(self.target)
        self.until(lambda: not self.held(self.host), 'it is empty')
        self.assertEqual([], peer_rpc.request_drain_plan(here))
        for server in self.servers:
            self.assertEqual(self.target, self._host(server))
            self.action(server, 'reboot', {'type': 'HARD'})
            self._wait_for_state_change(server, 'ACTIVE')
        self.assertEqual(None, peer_rpc.request_undrain(here))
        self.assertEqual('enabled', self._service()['status'])
        pool.TheCloud.show(self.host, self.target)
        self.until(lambda: self.held(self.host), 'free nodes come back')
        for server in self.servers:
            self.assertEqual(self.target, self._host(server))
            self.delete(server)

    def test_disabled_host_is_drained_and_disabled_again(self) -> None:
        """What an operator has done before the drain outlasts it."""
        here = Host(self.host)
        self._disable('a new disk')
        self.assertEqual(None, peer_rpc.request_drain(here, None))
        self.assertEqual(
            'ironic-compute: draining; disabled before: a new disk',
            self._service()['disabled_reason'],
        )
        self.assertEqual(None, peer_rpc.request_undrain(here))
        self.assertEqual('disabled', self._service()['status'])
        self.assertEqual('a new disk', self._service()['disabled_reason'])
        why_not = peer_rpc.request_undrain(here)
        self.assertIn('with the reason a new disk', why_not or '')

    def _disable(self, reason: str) -> None:
        self.api.put_service(
            self._service()['id'],
            {'status': 'disabled', 'disabled_reason': reason},
        )

    def test_retired_host_is_gone(self) -> None:
        """Its servers live on, on another host."""
        here = Host(self.host)
        aggregate = self.api.post_aggregate({'aggregate': {'name': 'rack'}})
        for host in self.workers:
            self.api.add_host_to_aggregate(aggregate['id'], host)
        plan = peer_rpc.request_drain_plan(here)
        self.assertEqual(None, peer_rpc.request_retire(here, None))
        self.assertEqual(
            'ironic-compute: draining, then retired',
            self._service()['disabled_reason'],
        )
        pool.TheCloud.show(self.target)
        self.until(lambda: not self.held(self.host), 'it is empty')
        nodes = {m.node for m in plan}
        self.until(lambda: nodes <= self.held(self.target), 'moved as planned')
        draining: Any = self.manager(self.host).server_moves.draining
        draining._retirement._quiet_s = 0.0
        self.until(self._is_gone, 'its Service is deleted')
        self.until(
            lambda: HostRetired(here) in pool.TheCloud.ordered, 'agent told'
        )
        context = nova_context.get_admin_context()
        self.assertRaises(
            exception.HostMappingNotFound,
            objects.HostMapping.get_by_host,
            context,
            self.host,
        )
        (rack,) = objects.AggregateList.get_all(context)
        self.assertEqual([self.target], rack.hosts)
        for server in self.servers:
            self.assertEqual(self.target, self._host(server))
            self.action(server, 'reboot', {'type': 'HARD'})
            self._wait_for_state_change(server, 'ACTIVE')
            self.delete(server)

    def _is_gone(self) -> bool:
        return not self.api.get_services(host=self.host)


class _Door:
    """Holds threads up until it is opened."""

    def __init__(self) -> None:
        self.is_waited_for = threading.Event()
        self.opened = threading.Event()

    def wait(self) -> None:
        self.is_waited_for.set()
        assert self.opened.wait(120.0)

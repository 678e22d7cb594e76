# SPDX-License-Identifier: Apache-2.0
"""Messages and builds that reach a host which has lost the server or node."""

import contextlib
import functools
import threading
import types
from collections.abc import Mapping
from typing import Any

from nova import context as nova_context
from nova import exception, objects
from nova.compute import rpcapi

from hashring.ring import Host
from resource_tracker.node import NodeId
from tests.functional import base, pool

_OTHER = {'c1': 'c2', 'c2': 'c1'}


class MovedServerTest(pool.PoolTestCase):
    """A server whose records change under two live workers."""

    # Long: only the messages bring the records together here.
    OPTIONS: Mapping[str, Any] = types.MappingProxyType(
        {'upkeep_interval_s': 600.0}
    )

    def setUp(self) -> None:
        """Boot one server; ``former`` is what nova-api knows of it."""
        super().setUp()
        self.context = nova_context.get_admin_context()
        self.server = self.boot(self.flavor)
        self.former = self._row()
        self.host = str(self.former.host)
        self.other = _OTHER[self.host]
        self.node = NodeId(self.former.node)
        self.rpc = rpcapi.ComputeAPI()

    def _row(self) -> Any:
        return objects.Instance.get_by_uuid(self.context, self.server['id'])

    def _move_server(self) -> None:
        """Change the host in the server's record."""
        row = self._row()
        row.host = self.other
        row.save()

    def _move_node(self) -> None:
        """Change the holder of the server's node, and have both know it."""
        row = self._holder_row()
        row.host = self.other
        services = self.components(self.host).services
        record = services.find_record(Host(self.other))
        assert record is not None
        row.service_id = record.id
        row.save()
        self.components(self.host).held_nodes.drop_node(self.node)
        other = self.components(self.other)
        other.new_nodes.hold_if_ours(self.node)
        other.feed.request_read(self.node)
        self.until(lambda: other.held_nodes.facts(self.node), 'it was read')

    def _holder_row(self) -> Any:
        return objects.ComputeNode.get_by_nodename(self.context, self.node)

    def _stop(self) -> None:
        """Stop the server as nova-api does which has read an old record."""
        self.former.task_state = 'powering-off'
        with contextlib.suppress(Exception):
            self.former.save()
        self.rpc.stop_instance(self.context, self.former)
        self.until(lambda: self._row().vm_state == 'stopped', 'it stopped')

    def _assert_done_by(self, host: str) -> None:
        self.assertEqual(host, self._row().host)
        self.assertEqual(host, self._holder_row().host)
        self.until(lambda: self.node in self.held(host), 'its node held')
        self.assertNotIn(self.node, self.held(_OTHER[host]))

    def test_message_to_the_former_host_is_done_by_the_new_one(self) -> None:
        """Server and node have moved; the message was under way."""
        self._move_server()
        self._move_node()
        self._count_messages()
        self._stop()
        self._assert_done_by(self.other)
        self.assertEqual([self.other], self.stopped_by)

    def test_node_follows_its_server(self) -> None:
        """A move ended between the server's record and the node's."""
        self._move_server()
        self._stop()
        self._assert_done_by(self.other)

    def test_node_of_another_host_comes_back_to_its_server(self) -> None:
        """The node's row names a host that does not serve the server."""
        self._move_node()
        self._stop()
        self._assert_done_by(self.host)

    def test_call_to_the_former_host_is_answered_by_the_new_one(self) -> None:
        """The caller waits until the new host has done it."""
        self._move_server()
        self._move_node()
        self._count_messages()
        self.former.task_state = 'powering-off'
        self.former.save()
        self.rpc.stop_instance(self.context, self.former, do_cast=False)
        self.assertEqual('stopped', self._row().vm_state)
        self.assertEqual([self.other], self.stopped_by)

    def _count_messages(self) -> None:
        """Record which hosts handle a stop."""
        self.stopped_by: list[str] = []
        for host in self.workers:
            manager = self.manager(host)
            stop = manager.stop_instance

            def record(*args: Any, stop: Any = stop, **kwargs: Any) -> Any:
                self.stopped_by.append(stop.__self__.host)
                return stop(*args, **kwargs)

            manager.stop_instance = record  # type: ignore[method-assign]


class _Door:
    """A context manager that lets threads in when it is opened."""

    def __init__(self) -> None:
        self.is_waited_for = threading.Event()
        self._is_open = threading.Event()

    def open(self) -> None:
        self._is_open.set()

    def __enter__(self) -> None:
        self.is_waited_for.set()
        assert self._is_open.wait(120.0)

    def __exit__(self, *exc: object) -> None:
        pass


class LostNodesTest(pool.PoolTestCase):
    """A build whose nodes always turn out to be another one's."""

    NODES_COUNT = 4
    # Nova itself would try the first node and two alternates.
    LOSSES_COUNT = 5

    def setUp(self) -> None:
        """Have the first claims refused."""
        super().setUp()
        self.losses: list[str] = []
        for host in self.workers:
            rt = self.manager(host).rt
            rt.instance_claim = functools.partial(  # type: ignore[method-assign]
                self._lose, rt.instance_claim
            )

    def _lose(
        self, claim: Any, context: Any, instance: Any, node: str, *args: Any
    ) -> Any:
        if len(self.losses) < self.LOSSES_COUNT:
            self.losses.append(node)
            raise exception.ComputeResourcesUnavailable(reason='it is taken')
        return claim(context, instance, node, *args)

    def test_loser_of_more_nodes_than_nova_would_try_is_built(self) -> None:
        """The scheduler is asked again each time."""
        server = self.boot(self.flavor)
        self.assertEqual(self.LOSSES_COUNT, len(self.losses))
        self.assertEqual([self.node_of(server)], [*self.allocations(server)])


class PushedNodeTest(pool.PoolTestCase):
    """A pool with one node, which is pushed while a build comes to it."""

    NODES_COUNT = 1

    def setUp(self) -> None:
        """Find the node's holder."""
        super().setUp()
        (self.node,) = self.ironic.nodes
        (self.holder,) = (h for h in self.workers if self.held(h))
        self.other = _OTHER[self.holder]
        self.door = _Door()
        self.addCleanup(self.door.open)

    def _begin_boot(self) -> Mapping[str, Any]:
        request = self._build_server(
            image_uuid=base.IMAGE_ID,
            flavor_id=self.flavor['id'],
            networks='none',
        )
        server: Mapping[str, Any] = self.api.post_server({'server': request})
        return server

    def _assert_built_at_once(self, server: Any, host: str) -> None:
        """Assert that the build was never refused and scheduled again."""
        shown = self._wait_for_state_change(server, 'ACTIVE')
        self.assertEqual(host, shown['OS-EXT-SRV-ATTR:host'])
        names = [event['event'] for event in self.last_events(server)]
        self.assertEqual(['compute__do_build_and_run_instance'], names)
        self.assertEqual([self.node], list(self.allocations(server)))

    def _push(self) -> None:
        pool.TheCloud.show(self.other)
        self.until(lambda: bool(self.held(self.other)), 'the node pushed')

    def test_build_waits_for_a_push_and_goes_on_to_the_new_holder(
        self,
    ) -> None:
        """The holder is just being written when the build arrives."""
        rows = self.components(self.holder).compute_nodes
        write = rows.write_holder

        def write_late(*args: Any) -> bool:
            with self.door:
                return write(*args)

        rows.write_holder = write_late  # type: ignore[assignment,method-assign]
        pool.TheCloud.show(self.other)
        self.assertTrue(self.door.is_waited_for.wait(60.0))
        manager, came = self.manager(self.holder), threading.Event()
        forward_to = manager._forward_to

        def note_and_forward(*args: Any) -> Any:
            came.set()
            return forward_to(*args)

        manager._forward_to = note_and_forward  # type: ignore[assignment,method-assign]
        server = self._begin_boot()
        self.until(came.is_set, 'the build at the holder')
        self.door.open()
        self._assert_built_at_once(server, self.other)

    def test_build_that_waited_for_its_turn_follows_a_pushed_node(
        self,
    ) -> None:
        """The node was pushed after the message had been taken."""
        manager = self.manager(self.holder)
        manager._build_semaphore = self.door
        server = self._begin_boot()
        self.assertTrue(self.door.is_waited_for.wait(60.0))
        self._push()
        self.door.open()
        self._assert_built_at_once(server, self.other)

    def test_node_of_a_build_that_has_begun_is_not_pushed(self) -> None:
        """Nova's own steps before the claim take as long as they do."""
        client = self.manager(self.holder).reportclient
        read = client.get_allocations_for_consumer

        def read_late(*args: Any) -> Any:
            with self.door:
                return read(*args)

        client.get_allocations_for_consumer = read_late
        server = self._begin_boot()
        self.assertTrue(self.door.is_waited_for.wait(60.0))
        pool.TheCloud.show(self.other)
        # Some rounds of pushes.
        rounds = self.components(self.holder).rebalancer
        before = rounds._rounds_count
        self.until(lambda: rounds._rounds_count > before + 2, 'some rounds')
        self.door.open()
        self._assert_built_at_once(server, self.holder)

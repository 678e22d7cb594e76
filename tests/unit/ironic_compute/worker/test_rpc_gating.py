# SPDX-License-Identifier: Apache-2.0
"""How a worker receives RPC: a thread for each message, one at a time."""

import types

import oslo_messaging
from oslo_config import cfg
from oslo_messaging import server as messaging_server

from hashring.clock import SystemClock
from ironic_compute.agent import exit_codes
from ironic_compute.delivery import Deliveries
from ironic_compute.gate import LeaseGate
from ironic_compute.worker import rpc_gating, rpc_service
from tests.fakes.clock import ManualClock


class _Listener:
    """A connection; as with RabbitMQ, it cannot be stopped twice."""

    def __init__(self, fails: set[str]) -> None:
        self._fails = fails
        self.listens = self.is_clean = False

    def start(self, on_incoming) -> None:
        """Listen; a thread may be lacking."""
        if 'thread' in self._fails:
            raise RuntimeError('no thread')
        self.listens = True

    def stop(self) -> None:
        """Listen no more."""
        if not self.listens:
            raise RuntimeError('threads can only be started once')
        self.listens = False
        if 'stop' in self._fails:
            raise RuntimeError('cannot stop')

    def cleanup(self) -> None:
        """Close the connection."""
        self.is_clean = True
        if 'cleanup' in self._fails:
            raise RuntimeError('cannot close')


class _Server(messaging_server.MessageHandlingServer):
    """oslo.messaging's own server, over connections of a test."""

    def __init__(self) -> None:
        self.fails: set[str] = set()
        self.on_start = lambda: None
        self.listeners: list[_Listener] = []
        conf = cfg.ConfigOpts()
        conf([], default_config_files=[])
        super().__init__(types.SimpleNamespace(conf=conf), None)

    def _process_incoming(self, incoming) -> None:
        """Nothing comes."""

    def _create_listener(self) -> _Listener:
        if 'listener' in self.fails:
            raise OSError('no connection')
        self.on_start()
        self.listeners.append(_Listener(self.fails))
        return self.listeners[-1]

    @property
    def listens(self) -> list[bool]:
        """Which of the listeners there were are listening."""
        return [one.listens for one in self.listeners]


class _Worker:
    """Two servers that Nova has started, a gate, and who watches it."""

    def __init__(self, deadline_s: float = 110.0, *begin) -> None:
        self.clock = ManualClock(100.0)
        self.gate = LeaseGate(self.clock, deadline_s)
        self.servers = [_Server(), _Server()]
        self.late = [
            rpc_service.DeferredRpcServer(server, Deliveries())
            for server in self.servers
        ]
        self.exits: list[int] = []
        for server in self.late:
            server.start()
        self.gating = rpc_gating.RpcGating(
            self.gate, self.exits.append, *begin
        )
        self.gating.servers += self.late
        self.look()

    def look(self) -> float:
        """Follow the gate once; return the wait until the next time."""
        return self.gating.follow_gate()

    def lapse(self) -> None:
        """Let the lease lapse."""
        self.clock.advance(20.0)
        self.look()

    def renew(self) -> None:
        """Have the lease in force again."""
        self.gate.extend(self.clock.now_s() + 10.0)
        self.look()

    @property
    def serves(self) -> list[bool]:
        """Which of the servers receive something."""
        return [any(server.listens) for server in self.servers]


def test_rpc_follows_the_lease():
    """The servers stop at the deadline and start with the next lease."""
    worker = _Worker()
    assert worker.look() == 1.0
    assert worker.serves == [True, True]
    worker.lapse()
    assert worker.serves == [False, False]
    worker.look()
    worker.renew()
    for server in worker.servers:
        assert server.listens == [False, True]
        assert [one.is_clean for one in server.listeners] == [True, False]


def test_messages_are_expected_while_the_servers_should_run():
    """Without the lease, and while stopping, no message can be answered."""
    worker = _Worker()
    assert not worker.gating.should_receive()
    worker.gating.start()
    assert worker.gating.should_receive()
    worker.lapse()
    assert not worker.gating.should_receive()
    worker.renew()
    assert worker.gating.should_receive()
    worker.gating.stop()
    assert not worker.gating.should_receive()


def test_no_message_is_expected_while_all_threads_wait():
    """A host was given away, as if RabbitMQ was not reached."""
    clock = ManualClock()
    gate = LeaseGate(clock, clock.now_s() + 60.0)
    gating = rpc_gating.RpcGating(gate, lambda status: None, limit_count=2)
    gating.start()
    assert gating.should_receive()
    gating.deliveries.receive('m1', lambda: None)
    gating.deliveries.receive('m2', lambda: None)
    assert not gating.should_receive()
    message = gating.deliveries.find('m1')
    assert message is not None
    message.acknowledge()
    assert gating.should_receive()
    gating.stop()


def test_log_tells_the_first_opening_from_the_others(caplog):
    """Operators see a gap of the lease by the word "again"."""
    caplog.set_level('INFO')
    worker = _Worker()
    worker.lapse()
    worker.renew()
    opened = [text for text in caplog.messages if 'is in force:' in text]
    again = [text for text in caplog.messages if 'in force again:' in text]
    assert (len(opened), len(again)) == (1, 1)


def test_messages_go_back_when_the_lease_lapses():
    """RabbitMQ has them again when the connections are closed.

    Another worker may have adopted the host, and this one may never go on.
    """
    worker = _Worker()
    worker.lapse()
    clock = SystemClock()
    ends_s = clock.now_s() + 20.0
    while not all(s.listeners[0].is_clean for s in worker.servers):
        assert clock.now_s() < ends_s
        clock.sleep(0.02)


def test_connections_are_closed_in_a_thread_of_the_given_kind():
    """The simulation has threads of its own."""
    begun = []
    worker = _Worker(110.0, begun.append)
    worker.lapse()
    listeners = [server.listeners[0] for server in worker.servers]
    assert not any(listener.is_clean for listener in listeners)
    for close in begun:
        close()
    assert all(listener.is_clean for listener in listeners)


def test_nothing_is_received_before_the_lease_is_in_force():
    """A server that Nova has started still waits for the lease."""
    worker = _Worker(deadline_s=90.0)
    worker.look()
    assert worker.serves == [False, False]
    assert [server.listeners for server in worker.servers] == [[], []]
    worker.renew()
    assert worker.serves == [True, True]
    worker.lapse()
    assert worker.serves == [False, False]


def test_a_server_that_never_began_is_stopped_at_once():
    """The stop returns, where oslo.messaging would wait without end."""
    worker = _Worker(deadline_s=90.0)
    for server in worker.late:
        server.stop()
        server.wait()
    assert worker.serves == [False, False]


def test_a_start_that_fails_is_tried_again():
    """If one server cannot start, the other is stopped until both can."""
    worker = _Worker()
    worker.lapse()
    worker.servers[1].fails.add('listener')
    worker.renew()
    assert worker.serves == [False, False]
    assert worker.look() == 1.0
    assert worker.serves == [False, False]
    worker.servers[1].fails.clear()
    worker.look()
    assert worker.serves == [True, True]
    assert worker.servers[0].listens == [False, False, False, True]
    assert [one.is_clean for one in worker.servers[0].listeners] == [
        True,
        True,
        True,
        False,
    ]


def test_worker_that_stops_while_it_opens_receives_nothing():
    """A stop in the middle of an opening leaves no server that receives.

    Nova stops each server once, and one that has not begun has nothing to
    stop.
    """
    worker = _Worker(deadline_s=90.0)
    first, second = worker.late

    def stop() -> None:
        worker.gating.stop()
        second.stop()

    worker.servers[0].on_start = stop
    worker.renew()
    first.stop()
    assert worker.serves == [False, False]


def test_worker_that_stops_while_its_last_server_starts_receives_nothing():
    """A server that was starting meanwhile is stopped again."""
    worker = _Worker(deadline_s=90.0)
    worker.servers[1].on_start = worker.gating.stop
    worker.renew()
    assert worker.serves == [False, False]


def test_a_listener_without_a_thread_is_replaced():
    """A listener that can neither start nor stop delays no start."""
    worker = _Worker()
    worker.lapse()
    worker.servers[0].fails.add('thread')
    worker.renew()
    worker.look()
    worker.servers[0].fails.clear()
    for _ in range(3):
        worker.look()
    assert worker.serves == [True, True]
    assert worker.exits == []


def test_a_stop_that_fails_stops_the_other_too():
    """Both servers stop at the deadline and start again later."""
    worker = _Worker()
    worker.servers[0].fails.add('stop')
    worker.lapse()
    assert worker.serves == [False, False]
    worker.servers[0].fails.clear()
    worker.look()
    worker.renew()
    for _ in range(3):
        worker.look()
    assert worker.serves == [True, True]


def test_a_connection_that_cannot_be_closed_does_no_harm():
    """An old connection that cannot be closed does not stop the start."""
    worker = _Worker()
    worker.lapse()
    worker.servers[0].fails.add('cleanup')
    worker.renew()
    assert worker.serves == [True, True]
    assert worker.look() == 1.0


def test_a_worker_that_stays_deaf_ends():
    """The worker exits after ten failures in a row, not earlier."""
    worker = _Worker()
    worker.lapse()
    worker.servers[0].fails.add('listener')
    worker.renew()
    for _ in range(8):
        worker.look()
    assert worker.exits == []
    worker.renew()
    assert worker.exits == [exit_codes.EX_RPC_FAILED]


def test_defaults_stand_when_nova_sets_its_own():
    """The worker's defaults hold after Nova has registered its own."""
    conf = cfg.ConfigOpts()
    rpc_gating.set_defaults(conf)
    oslo_messaging.set_transport_defaults('nova')
    oslo_messaging.get_rpc_transport(conf, 'rabbit://nobody@127.0.0.1:1/')
    assert conf.executor_thread_pool_size == 1000
    assert conf.oslo_messaging_rabbit.rabbit_qos_prefetch_count == 1000


def test_an_operators_value_wins():
    """A value in nova.conf takes precedence over the worker's default."""
    conf = cfg.ConfigOpts()
    rpc_gating.set_defaults(conf)
    conf([], default_config_files=[])
    conf.set_override('executor_thread_pool_size', 7)
    rpc_gating.set_defaults(conf)
    assert conf.executor_thread_pool_size == 7

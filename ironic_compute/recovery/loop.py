# SPDX-License-Identifier: Apache-2.0
"""Recovery loop: a thread that finds unfinished work until the worker stops.

The first round comes five seconds after RPC is served. A round runs only while
the lease is in force. An error in one check does not prevent the other checks
of a round; the next round repeats the check.
"""

import functools
import math
import queue
import threading
from collections.abc import Callable, Iterable
from typing import TypeVar

import attrs
from oslo_log import log as logging

from hashring.clock import Clock
from ironic_compute.gate import Gate
from ironic_compute.loop_thread import LoopThread
from ironic_compute.recovery.interrupted_tasks import InterruptedTasks
from ironic_compute.recovery.lost_builds import LostBuilds
from ironic_compute.recovery.neglected_servers import NeglectedServers
from ironic_compute.recovery.requested_repairs import RequestedRepairs
from ironic_compute.recovery.stray_instances import StrayInstances
from resource_tracker.node import NodeId

LOG = logging.getLogger(__name__)

# Messages that waited in the queue are handled first, because a message has
# more details than the server's Instance record.
_FIRST_ROUND_S = 5.0
# Neglected servers are rare, and mostly found by the first check of a worker.
NEGLECTED_EVERY = 3

Taken = TypeVar('Taken')


@attrs.define(eq=False, repr=False, slots=False)
class RecoveryLoop:
    """One thread that makes all checks of the recovery room in turn.

    :param reaches_rabbitmq: returns whether RabbitMQ answers this worker
    :param interval_s: seconds between two rounds
    :param queue_s: seconds of RPC service after which every message that
        waited in the queue at the start has been taken from it
    :param lost_s: seconds between two checks for lost builds
    :param recheck_s: seconds after which the servers on all held nodes are
        checked again; each third time, neglected servers are searched
    """

    _tasks: InterruptedTasks
    _strays: StrayInstances
    _lost: LostBuilds
    _neglected: NeglectedServers
    _repairs: RequestedRepairs
    _gate: Gate
    _clock: Clock
    _reaches_rabbitmq: Callable[[], bool]
    _interval_s: float
    _queue_s: float
    _lost_s: float
    _recheck_s: float

    def __attrs_post_init__(self) -> None:
        self._served_since_s = 0.0
        self._was_served = True
        self._rechecked_at_s = 0.0
        self._lost_checked_at_s = -math.inf
        self._neglect_checked_at_s = -math.inf
        self._is_requested = threading.Event()
        self._requested: queue.SimpleQueue[str] = queue.SimpleQueue()
        self._requested_nodes: queue.SimpleQueue[NodeId] = queue.SimpleQueue()
        self._thread = LoopThread('recovery', self._run_round, _FIRST_ROUND_S)

    def start(self) -> None:
        """Start the thread; RPC is served from now on."""
        self._served_since_s = self._rechecked_at_s = self._clock.now_s()
        self._thread.start()

    def stop(self) -> None:
        """Start no further round; returns at once."""
        self._thread.stop()

    def check_now(
        self, servers: Iterable[str], nodes: Iterable[str] = ()
    ) -> None:
        """Begin all audits and checks, as an operator has requested.

        They only come sooner. Any thread may call; it does not block.

        :param servers: servers that may be neglected, whenever they changed,
            or whose allocation may be wrong
        :param nodes: nodes that may have something of a former server
        """
        for server in servers:
            self._requested.put(server)
        for node in nodes:
            self._requested_nodes.put(NodeId(node))
        self._repairs.request_audit()
        self._is_requested.set()
        self._thread.wake()

    def _run_round(self) -> float:
        """Run the checks that are due; return the seconds to the next round.

        While the gate is shut no check runs. The time for which RPC must have
        been served (``queue_s``), or a task or build unchanged, counts anew
        from the first round after that, or after a failure of RabbitMQ, in
        which messages waited however long it lasted.
        """
        now_s = self._clock.now_s()
        is_open = self._gate.is_open()
        self._note_service(now_s, is_open and self._reaches_rabbitmq())
        if not is_open:
            return _FIRST_ROUND_S
        is_requested = self._is_requested.is_set()
        if is_requested or now_s - self._rechecked_at_s >= self._recheck_s:
            # A request that comes from here on is for the next round.
            self._is_requested.clear()
            self._rechecked_at_s = now_s
            self._strays.forget_checked()
        self._run_check(self._tasks.check)
        self._run_check(self._strays.check)
        if now_s - self._served_since_s >= self._queue_s:
            self._run_rare_checks(now_s)
            self._check_requested()
        return self._interval_s

    def _note_service(self, now_s: float, is_served: bool) -> None:
        """Note whether RPC is served; if not, or not before, wait anew."""
        if not (is_served and self._was_served):
            self._served_since_s = now_s
            self._tasks.wait_anew()
            self._lost.wait_anew()
        self._was_served = is_served

    def _check_requested(self) -> None:
        """Check and repair the servers and nodes of :meth:`check_now`."""
        servers = _take_all(self._requested)
        nodes = _take_all(self._requested_nodes)
        if servers or nodes:
            repair = functools.partial(
                self._repairs.run, servers, nodes, self._neglected.recheck
            )
            self._run_check(repair)

    def _run_rare_checks(self, now_s: float) -> None:
        """Run the checks for work whose message no queue has any more."""
        if now_s - self._lost_checked_at_s >= self._lost_s:
            self._lost_checked_at_s = now_s
            self._run_check(self._lost.check)
        since_s = now_s - self._neglect_checked_at_s
        if since_s >= NEGLECTED_EVERY * self._recheck_s:
            self._neglect_checked_at_s = now_s
            self._run_check(self._neglected.check)

    def _run_check(self, check: Callable[[], None]) -> None:
        try:
            check()
        except Exception as exc:
            LOG.warning(
                'Could not search for interrupted tasks and will try again: '
                '%(error)s',
                {'error': exc},
            )


def _take_all(waiting: queue.SimpleQueue[Taken]) -> set[Taken]:
    """Return what waits in a queue that only the caller reads."""
    found = set()
    while not waiting.empty():
        found.add(waiting.get())
    return found

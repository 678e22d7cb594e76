# SPDX-License-Identifier: Apache-2.0
"""Composition root of what moves servers, and nodes to other pools.

The compute manager creates it, because a move of a server must exclude the
manager's messages and tasks; it starts and stops its threads. The objects live
as long as the process.
"""

import contextlib
from collections.abc import Callable
from typing import Any

import nova.conf

from ironic_compute.loop_thread import LoopThread
from ironic_compute.ownership import peer_endpoints, peer_rpc
from ironic_compute.ownership.departures import Departures
from ironic_compute.ownership.draining import ROUND_INTERVAL_S, Draining
from ironic_compute.ownership.eviction import Evictor, WorkOnServer
from ironic_compute.ownership.node_moves import make_node_moves
from ironic_compute.ownership.retirement import (
    Retirement,
    delete_api_records,
)
from ironic_compute.pool import host_aggregates
from ironic_compute.worker.components import Components
from resource_tracker.node import NodeId

CONF = nova.conf.CONF


class ServerMoves:
    """The moves of one worker's servers.

    ``endpoints`` receive the requests for moves.

    :param messages: records which servers messages are handled about
    :param in_progress: records which servers a thread works on otherwise
    :param lock_server: takes Nova's own lock of a server
    :param recheck: makes the recovery compare a node and its server again
    """

    def __init__(
        self,
        components: Components,
        messages: WorkOnServer,
        in_progress: WorkOnServer,
        lock_server: Callable[[str], contextlib.AbstractContextManager[Any]],
        recheck: Callable[[NodeId, str], None],
    ) -> None:
        self.evictor = Evictor(
            components.held_nodes,
            components.compute_nodes,
            components.client,
            components.services,
            components.pool,
            components.gate,
            messages,
            in_progress,
            lock_server,
            host_aggregates.find_difference,
            recheck,
            peer_rpc.notify_given,
            components.moves,
        )
        self.draining = self._make_draining(components)
        self.departures = self._make_departures(components)
        moves = make_node_moves(
            components.held_nodes,
            components.compute_nodes,
            components.client,
            components.pool,
            components.gate,
            self.evictor,
            self.departures.find_asker,
            CONF.ironic_compute.settle_s,
            components.clock,
            components.rebalancer.why_not_pushed,
        )
        self.endpoints = (
            peer_endpoints.MovesEndpoint(moves, self.draining),
            peer_endpoints.PoolsEndpoint(self.departures),
        )
        self._departing = LoopThread('departures', self.departures.try_round)
        self._threads = (
            LoopThread('drain', self.draining.try_round, ROUND_INTERVAL_S),
            self._departing,
        )

    def _make_departures(self, components: Components) -> Departures:
        return Departures(
            components.held_nodes,
            components.client,
            self.evictor,
            components.rebalancer.push,
            components.new_nodes.hold_if_ours,
            components.feed.request_read,
            peer_rpc.notify_given,
            components.gate,
            components.clock,
            components.row_writers,
            CONF.ironic_compute.push_budget,
            lambda: self._departing.wake(),
            components.moves,
        )

    def _make_draining(self, components: Components) -> Draining:
        retirement = Retirement(
            components.held_nodes.host,
            components.compute_nodes,
            components.services,
            components.gate,
            components.clock,
            delete_api_records,
            components.read_services_soon,
            components.send_to_agent,
            components.is_own_agent_away,
            moves=components.moves,
        )
        return Draining(
            components.held_nodes,
            components.compute_nodes,
            components.services,
            components.pool,
            components.gate,
            components.clock,
            self.evictor,
            retirement,
            CONF.ironic_compute.settle_s,
            components.read_services_soon,
            components.rebalancer.why_not_pushed,
        )

    def start(self) -> None:
        """Start the threads, once the worker serves its host."""
        for thread in self._threads:
            thread.start()

    def stop(self) -> None:
        """Begin no further move; one that has begun goes on."""
        for thread in self._threads:
            thread.stop()

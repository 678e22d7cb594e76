# SPDX-License-Identifier: Apache-2.0
"""Servers on our nodes that Nova has not here, and builds that were lost.

A delete that nova-api did alone while nobody served the host leaves a
deployed node behind; a build that was given up may leave its reservation; a
build that was received and not claimed before its worker was killed leaves a
server BUILDING for ever, with an allocation; one that failed when Ironic was
done may leave its claim. Each is looked for, and ended
only upon what Nova positively says; nothing follows from an error or from an
answer that leaves something out. One that cannot be brought in order, or that
takes long, never stops the others.
"""

from collections.abc import Callable, Iterator
from typing import Any, Protocol

from oslo_log import log as logging

from hashring.ring import Host
from ironic_compute.batching import run_isolated
from ironic_compute.nodes.compute_nodes import ComputeNodes
from ironic_compute.nodes.held_nodes import HeldNodes
from ironic_compute.recovery.decisions import StrayState, stray_state
from ironic_compute.recovery.in_progress import (
    InProgress,
    StartThread,
    start_thread,
)
from resource_tracker.node import NodeFacts, NodeId

LOG = logging.getLogger(__name__)

_Found = tuple[NodeId, str]

_REAP, _NOOP = 'reap', 'noop'

# So many servers are asked for in one RPC.
_FEW = 250


class Free(Protocol):
    """What gets a server off a node (the driver's teardown)."""

    def __call__(self, node: NodeId, instance_uuid: str) -> None:
        """Free one node of one server, from any state."""


class StrayInstances:
    """Look at the servers on held nodes; ``look`` is called each round.

    :param give_to: makes another host the holder of a node
    :param free: gets a server off a node
    :param tasks: who is at work on which server
    :param begin: does something beside everything else
    :param deleted_action: Nova's ``running_deleted_instance_action``; only
        ``reap`` frees the node of a server that Nova deleted
    """

    def __init__(
        self,
        held_nodes: HeldNodes,
        compute_nodes: ComputeNodes,
        give_to: Callable[[NodeId, Host], None],
        free: Free,
        in_progress: InProgress,
        begin: StartThread = start_thread,
        deleted_action: str = _REAP,
    ) -> None:
        self._held_nodes = held_nodes
        self._compute_nodes = compute_nodes
        self._give_to = give_to
        self._free = free
        self._in_progress = in_progress
        self._begin_task = begin
        self._deleted_action = deleted_action
        self._settled: set[_Found] = set()
        self._given_up: frozenset[_Found] = frozenset()
        self._told: set[_Found] = set()

    def forget_checked(self) -> None:
        """Look at all servers again: a full audit was made."""
        self._settled.clear()

    def check(self) -> None:
        """Ask Nova about the servers it was not asked about yet."""
        self._end_claims()
        found = {
            (facts.uuid, facts.instance_uuid): facts
            for facts in self._facts()
            if facts.instance_uuid is not None
        }
        self._settled &= set(found)
        asked = self._away(set(found) - self._settled)
        rows = self._compute_nodes.read_servers(
            {server for _, server in asked}
        )
        given_up = set()
        for key in sorted(asked):
            stray = stray_state(rows.get(key[1]), self._held_nodes.host)
            if stray is StrayState.HERE:
                self._settled.add(key)
            elif stray is StrayState.BUILD_FAILED:
                given_up.add(key)
            else:
                self._act(stray, key, rows)
        for key in sorted(given_up & self._given_up):
            self._begin(key, 'Nova has given its build up')
        self._given_up = frozenset(given_up)

    def _end_claims(self) -> None:
        """Strike out the claims of builds that nobody works on any more.

        A server whose build failed late, when Ironic had deployed it, has no
        node in Nova; whoever deletes it then cannot say which one is free.
        """
        for node, server in self._held_nodes.list_idle_claims():
            with self._in_progress.exclusive(server) as free:
                if free:
                    run_isolated(
                        node, self._held_nodes.release_claim, node, server
                    )

    def _away(self, asked: set[_Found]) -> set[_Found]:
        """Return those that have to be asked for one by one.

        Of many most are at home, and that takes their names alone: to parse
        thousands of servers would keep all other threads waiting.
        """
        if len(asked) <= _FEW:
            return asked
        here = self._compute_nodes.list_servers_of_host(self._held_nodes.host)
        at_home = {key for key in asked if key[1] in here}
        self._settled |= at_home
        return asked - at_home

    def _facts(self) -> Iterator[NodeFacts]:
        for node in self._held_nodes.rows():
            facts = self._held_nodes.facts(node)
            if facts is not None:
                yield facts

    def _act(
        self, stray: StrayState, key: _Found, rows: dict[str, Any]
    ) -> None:
        node, server = key
        match stray:
            case StrayState.DELETED:
                self._end_deleted(key)
            case StrayState.ON_OTHER_HOST:
                host = Host(rows[server].host)
                self._begin_task(
                    'stray', lambda: self._follow(node, server, host)
                )
            case StrayState.NOT_IN_NOVA:
                # Asked again after the next full audit, not each round.
                self._settled.add(key)
                self._tell_unknown(key)
            case _:
                pass

    def _end_deleted(self, key: _Found) -> None:
        """Do with a server that Nova deleted what the operator wants."""
        if self._deleted_action == _REAP:
            self._begin(key, 'Nova has deleted it')
            return
        # Asked again after the next full audit, not each round.
        self._settled.add(key)
        if self._deleted_action != _NOOP:
            LOG.warning(
                'Node %(node)s still has server %(server)s, which Nova has '
                'deleted; it is left so, as running_deleted_instance_action '
                'says',
                {'node': key[0], 'server': key[1]},
            )

    def _tell_unknown(self, key: _Found) -> None:
        if key not in self._told:
            self._told.add(key)
            LOG.warning(
                'Node %(node)s has server %(server)s, which Nova never '
                'had; it is left alone and not offered',
                {'node': key[0], 'server': key[1]},
            )

    def _follow(self, node: NodeId, server: str, host: Host) -> None:
        with self._in_progress.exclusive(server) as free:
            facts = self._held_nodes.facts(node)
            if not free or facts is None or facts.instance_uuid != server:
                return
            try:
                self._give_to(node, host)
            except Exception as exc:
                LOG.warning(
                    'Could not give node %(node)s to host %(host)s, where '
                    'its server is; trying again later: %(error)s',
                    {'node': node, 'host': host, 'error': exc},
                )

    def _begin(self, key: _Found, why: str) -> None:
        self._begin_task('stray', lambda: self._end(*key, why))

    def _end(self, node: NodeId, server: str, why: str) -> None:
        with self._in_progress.exclusive(server) as free:
            if not free:
                return
            LOG.info(
                'Freeing node %(node)s of server %(server)s: %(why)s',
                {'node': node, 'server': server, 'why': why},
            )
            try:
                # Of a build that failed after its claim was a success. Now:
                # Ironic may free the node though we are told of a failure,
                # and until it does, the node's own instance_uuid keeps it.
                self._held_nodes.release_claim(node, server)
                self._free(node, server)
            except Exception:
                LOG.exception(
                    'Could not free node %(node)s; trying again later',
                    {'node': node},
                )

# SPDX-License-Identifier: Apache-2.0
"""Stray instances: servers on held nodes that Nova lacks on this host.

A delete that nova-api did alone while no worker served the host leaves a
deployed node. A failed build may leave its reservation in Ironic or its claim
in this worker. A node is freed only after Nova has answered that the server is
deleted or that its build failed; an error or a missing answer changes nothing.
Each node is freed in a thread of its own, so that a slow or failing node never
delays the others.
"""

import functools
import queue
from collections.abc import Callable, Iterator
from typing import Any, Protocol

import attrs
from oslo_log import log as logging

from hashring.ring import Host
from ironic_compute import errors
from ironic_compute.batching import run_isolated
from ironic_compute.nodes.compute_nodes import ComputeNodes
from ironic_compute.nodes.held_nodes import HeldNodes
from ironic_compute.recovery import in_progress
from ironic_compute.recovery.decisions import StrayState, stray_state
from resource_tracker.node import NodeFacts, NodeId

LOG = logging.getLogger(__name__)

_Found = tuple[NodeId, str]

_REAP, _NOOP = 'reap', 'noop'

# The number of Instance records that are read in one RPC.
_READ_MAX = 250

# A node that Ironic could not free so often is left alone until the servers on
# all nodes are checked again. Each try has Ironic lock the node, so that the
# operator who mends it could not use it.
_TRIES_COUNT = 3


class FreeNode(Protocol):
    """The driver's teardown: removes a server from its node."""

    def __call__(self, node: NodeId, instance_uuid: str) -> None:
        """Tear down a node in any provision state; blocks until it is free."""


@attrs.define(eq=False, repr=False, slots=False)
class StrayInstances:
    """Checks the servers on held nodes; the recovery loop calls ``check``.

    :param give_to: makes another host the holder of a node
    :param free_node: removes a server from its node
    :param restore_host: gives this host to a server that Nova has without one
    :param in_progress: the servers that a thread of this worker works on
    :param begin: runs a function in a thread of its own
    :param deleted_action: Nova's ``running_deleted_instance_action``; only
        ``reap`` frees the node of a server that Nova deleted
    """

    _held_nodes: HeldNodes
    _compute_nodes: ComputeNodes
    _give_to: Callable[[NodeId, Host], None]
    _free_node: FreeNode
    _restore_host: Callable[[NodeId, str], None]
    _in_progress: in_progress.InProgress
    _begin: in_progress.StartThread = in_progress.start_thread
    _deleted_action: str = _REAP

    def __attrs_post_init__(self) -> None:
        self._checked: set[_Found] = set()
        self._to_recheck: queue.SimpleQueue[_Found] = queue.SimpleQueue()
        self._failed_builds: frozenset[_Found] = frozenset()
        self._logged: set[_Found] = set()
        # How often Ironic could not free a node.
        self._failures: dict[_Found, int] = {}

    def forget_checked(self) -> None:
        """Check the servers on all held nodes again in the next round."""
        self._checked.clear()

    def recheck(self, node: NodeId, server: str) -> None:
        """Check one node and its server again in the next round.

        Any thread may call; a round that is under way may have read the
        records before.
        """
        self._to_recheck.put((node, server))

    def check(self) -> None:
        """Read the Instances of servers that are not checked yet; act on them.

        Blocks while Nova answers; nodes are freed in other threads.
        """
        self._end_claims()
        while not self._to_recheck.empty():
            self._checked.discard(self._to_recheck.get())
        found = {
            (facts.uuid, facts.instance_uuid)
            for facts in self._list_facts()
            if facts.instance_uuid is not None
        }
        self._checked &= found
        for key in self._failures.keys() - found:
            self._failures.pop(key, None)
        keys = self._select_away(found - self._checked)
        rows = self._compute_nodes.read_servers({server for _, server in keys})
        failed_builds = set()
        for key in sorted(keys):
            stray = stray_state(rows.get(key[1]), self._held_nodes.host)
            if stray is StrayState.HERE:
                self._checked.add(key)
            elif stray is StrayState.BUILD_FAILED:
                failed_builds.add(key)
            else:
                self._act(stray, key, rows)
        for key in sorted(failed_builds & self._failed_builds):
            self._begin_freeing(key, 'Nova has given its build up')
        self._failed_builds = frozenset(failed_builds)

    def _end_claims(self) -> None:
        """Release the claims of builds that no thread works on.

        A server whose build failed after Ironic had deployed it has no node
        in Nova, so its delete does not release the claim on the node.
        """
        for node, server in self._held_nodes.list_idle_claims():
            with self._in_progress.exclusive(server) as free:
                if free:
                    run_isolated(
                        node, self._held_nodes.release_claim, node, server
                    )

    def _select_away(self, keys: set[_Found]) -> set[_Found]:
        """Return the nodes and servers whose Instance records must be read.

        If there are many, the servers of this host are left out: reading the
        list of their uuids is enough, and parsing thousands of records would
        block all other threads.
        """
        if len(keys) <= _READ_MAX:
            return keys
        here = self._compute_nodes.list_servers_of_host(self._held_nodes.host)
        checked = {key for key in keys if key[1] in here}
        self._checked |= checked
        return keys - checked

    def _list_facts(self) -> Iterator[NodeFacts]:
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
                self._begin(
                    'stray', lambda: self.follow_server(node, server, host)
                )
            case StrayState.HOST_LOST:
                self._begin('stray', lambda: self._run_restore(node, server))
            case StrayState.NOT_IN_NOVA:
                # The server is checked again only after ``forget_checked``.
                self._checked.add(key)
                self._held_nodes.foreign_servers.note(node, server)
                self._log_not_in_nova(key)
            case _:
                pass

    def _run_restore(self, node: NodeId, server: str) -> None:
        in_progress.run_exclusive(
            self._in_progress,
            server,
            functools.partial(self._restore_host, node, server),
            'Could not restore the host of server %(server)s; trying again '
            'later',
        )

    def _end_deleted(self, key: _Found) -> None:
        """Free a deleted server's node if ``deleted_action`` is ``reap``."""
        if self._deleted_action == _REAP:
            self._begin_freeing(key, 'Nova has deleted it')
            return
        # The server is checked again only after ``forget_checked``.
        self._checked.add(key)
        if self._deleted_action != _NOOP:
            LOG.warning(
                'Node %(node)s still has server %(server)s, which Nova has '
                'deleted; the server stays because of [DEFAULT] '
                'running_deleted_instance_action',
                {'node': key[0], 'server': key[1]},
            )

    def _log_not_in_nova(self, key: _Found) -> None:
        if key not in self._logged:
            self._logged.add(key)
            LOG.warning(
                'Node %(node)s has server %(server)s, which Nova never '
                'had; it is left alone and not offered',
                {'node': key[0], 'server': key[1]},
            )

    def follow_server(self, node: NodeId, server: str, host: Host) -> None:
        """Make the host of a server the holder of the server's node.

        Does nothing if this host does not hold the node, if Ironic has
        another server on it, or while a thread works on the server. Blocks;
        any thread may call, also one with a message about the server.
        """
        with self._in_progress.exclusive(
            server, despite_messages=True
        ) as free:
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

    def _begin_freeing(self, key: _Found, why: str) -> None:
        self._begin('stray', lambda: self._end(*key, why))

    def _end(self, node: NodeId, server: str, why: str) -> None:
        with self._in_progress.exclusive(server) as free:
            if not free:
                return
            LOG.info(
                'Freeing node %(node)s of server %(server)s: %(why)s',
                {'node': node, 'server': server, 'why': why},
            )
            try:
                # A build that failed after its deploy leaves its claim on the
                # node. The claim is released before the node is freed, because
                # Ironic may free the node although the request fails. Until
                # then the node's instance_uuid keeps other builds off.
                self._held_nodes.release_claim(node, server)
                self._free_node(node, server)
            except errors.IronicComputeError as exc:
                self._note_failure((node, server), exc)
            except Exception:
                LOG.exception(
                    'Could not free node %(node)s; trying again later',
                    {'node': node},
                )

    def _note_failure(self, key: _Found, exc: Exception) -> None:
        """Log why a node could not be freed; leave it if that is lasting."""
        LOG.warning(
            'Node %(node)s still has server %(server)s, and could not be '
            'freed; trying again later: %(error)s',
            {'node': key[0], 'server': key[1], 'error': exc},
        )
        if errors.is_node_kept(exc):
            self._failures[key] = self._failures.get(key, 0) + 1
            if self._failures[key] >= _TRIES_COUNT:
                self._checked.add(key)

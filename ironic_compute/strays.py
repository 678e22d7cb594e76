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

import functools
import re
import threading
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Protocol

from nova import context as nova_context
from nova import objects
from nova.compute import vm_states
from oslo_log import log as logging
from oslo_utils import timeutils

from hashring.ring import Host
from ironic_compute.ending import Ending
from ironic_compute.handover import Handover
from ironic_compute.holdings import Holdings
from ironic_compute.pace import tried
from ironic_compute.rows import Rows
from ironic_compute.tasks import Begin, LiveTasks, begin_thread, try_alone
from ironic_compute.unfinished import UNSHELVING, Stray, stray_of
from resource_tracker.node import NodeFacts, NodeId

LOG = logging.getLogger(__name__)

_Found = tuple[NodeId, str]

_REAP, _NOOP = 'reap', 'noop'

# So many servers are asked for in one RPC.
_FEW = 250

# As Nova reads it: resources:CUSTOM_X, resources1:CUSTOM_X, resources_A:….
_CUSTOM_CLASS = re.compile(r'resources[\w-]*:CUSTOM_')

LOST_STATES = (vm_states.BUILDING, vm_states.ERROR, vm_states.DELETED)
"""Of a server that has no host, and may have an allocation."""


class Free(Protocol):
    """What gets a server off a node (the driver's teardown)."""

    def __call__(self, node: NodeId, instance_uuid: str) -> None:
        """Free one node of one server, from any state."""


class Strays:
    """Look at the servers on held nodes; ``look`` is called each round.

    :param free: gets a server off a node
    :param tasks: who is at work on which server
    :param begin: does something beside everything else
    :param deleted_action: Nova's ``running_deleted_instance_action``; only
        ``reap`` frees the node of a server that Nova deleted
    """

    def __init__(
        self,
        holdings: Holdings,
        rows: Rows,
        handover: Handover,
        free: Free,
        tasks: LiveTasks,
        begin: Begin = begin_thread,
        deleted_action: str = _REAP,
    ) -> None:
        self._holdings = holdings
        self._rows = rows
        self._handover = handover
        self._free = free
        self._tasks = tasks
        self._begin_task = begin
        self._deleted_action = deleted_action
        self._settled: set[_Found] = set()
        self._given_up: frozenset[_Found] = frozenset()
        self._told: set[_Found] = set()

    def forget(self) -> None:
        """Look at all servers again: a full audit was made."""
        self._settled.clear()

    def look(self) -> None:
        """Ask Nova about the servers it was not asked about yet."""
        self._end_claims()
        found = {
            (facts.uuid, facts.instance_uuid): facts
            for facts in self._facts()
            if facts.instance_uuid is not None
        }
        self._settled &= set(found)
        asked = self._away(set(found) - self._settled)
        rows = self._rows.servers({server for _, server in asked})
        given_up = set()
        for key in sorted(asked):
            stray = stray_of(rows.get(key[1]), self._holdings.host)
            if stray is Stray.AT_HOME:
                self._settled.add(key)
            elif stray is Stray.GIVEN_UP:
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
        for node, server in self._holdings.idle_claims():
            with self._tasks.alone(server) as free:
                if free:
                    tried(node, self._holdings.release, node, server)

    def _away(self, asked: set[_Found]) -> set[_Found]:
        """Return those that have to be asked for one by one.

        Of many most are at home, and that takes their names alone: to parse
        thousands of servers would keep all other threads waiting.
        """
        if len(asked) <= _FEW:
            return asked
        here = self._rows.servers_of(self._holdings.host)
        at_home = {key for key in asked if key[1] in here}
        self._settled |= at_home
        return asked - at_home

    def _facts(self) -> Iterator[NodeFacts]:
        for node in self._holdings.rows():
            facts = self._holdings.facts(node)
            if facts is not None:
                yield facts

    def _act(self, stray: Stray, key: _Found, rows: dict[str, Any]) -> None:
        node, server = key
        match stray:
            case Stray.DELETED:
                self._end_deleted(key)
            case Stray.ELSEWHERE:
                host = Host(rows[server].host)
                self._begin_task(
                    'stray', lambda: self._follow(node, server, host)
                )
            case Stray.UNKNOWN:
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
        with self._tasks.alone(server) as free:
            facts = self._holdings.facts(node)
            if not free or facts is None or facts.instance_uuid != server:
                return
            try:
                self._handover.follow(node, host)
            except Exception as exc:
                LOG.warning(
                    'Could not give node %(node)s to host %(host)s, where '
                    'its server is; trying again later: %(error)s',
                    {'node': node, 'host': host, 'error': exc},
                )

    def _begin(self, key: _Found, why: str) -> None:
        self._begin_task('stray', lambda: self._end(*key, why))

    def _end(self, node: NodeId, server: str, why: str) -> None:
        with self._tasks.alone(server) as free:
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
                self._holdings.release(node, server)
                self._free(node, server)
            except Exception:
                LOG.exception(
                    'Could not free node %(node)s; trying again later',
                    {'node': node},
                )


class LostBuilds:
    """End builds whose message was lost; ``look`` is called now and then.

    To unshelve a server is a build, too, but if it is lost the server is
    shelved as before.

    A build that has failed, and whose worker was killed before it gave the
    allocation back, is one of them, and so is one that was deleted while it
    was built. Without its allocation nobody would find the first kind, so the
    row is always the first to change.

    :param node_of: returns the nodes a server has an allocation on
    :param lost_s: a build that nobody began for so long is lost
    :param begin: does something beside everything else
    """

    def __init__(
        self,
        holdings: Holdings,
        ending: Ending,
        node_of: Callable[[Any, str], list[NodeId]],
        tasks: LiveTasks,
        lost_s: float,
        begin: Begin = begin_thread,
    ) -> None:
        self._holdings = holdings
        self._ending = ending
        self._node_of = node_of
        self._tasks = tasks
        self._lost_s = lost_s
        self._begin = begin
        self._looking = threading.Lock()
        self._without_node: set[str] = set()

    def look(self) -> None:
        """Begin to end the lost builds with an allocation on a held node.

        To be called by a worker that has received messages for a while:
        otherwise a build may wait in its own queue. Placement is asked about
        each build of the cell that has no host, so that has its own time.
        """
        self._begin('lost-builds', self._look)

    def _look(self) -> None:
        if not self._looking.acquire(blocking=False):
            return  # The look before still waits for answers.
        try:
            context = nova_context.get_admin_context()
            for instance in self._waiting(context):
                self._look_at(context, instance)
        except Exception as exc:
            LOG.warning(
                'Could not look for lost builds and will try again: %(error)s',
                {'error': exc},
            )
        finally:
            self._looking.release()

    def _look_at(self, context: Any, instance: Any) -> None:
        try:
            if self._is_ours(context, instance):
                self._begin(
                    f'lost-{instance.uuid}',
                    functools.partial(self._one, context, instance),
                )
        except Exception as exc:
            LOG.warning(
                'Could not find out whether the build of server %(server)s '
                'was lost here and will try again: %(error)s',
                {'server': instance.uuid, 'error': exc},
            )

    def _waiting(self, context: Any) -> list[Any]:
        """Return the builds that nobody has begun for long; two RPC.

        Those of the cell's hypervisors are no concern of ours.
        """
        unshelving = {
            'vm_state': [vm_states.SHELVED_OFFLOADED],
            'task_state': list(UNSHELVING),
        }
        return [
            instance
            for wanted in ({'vm_state': list(LOST_STATES)}, unshelving)
            for instance in objects.InstanceList.get_by_filters(
                context,
                {'host': None, 'deleted': False, **wanted},
                expected_attrs=['info_cache', 'system_metadata', 'flavor'],
            )
            if asks_for_a_node(instance.flavor.extra_specs)
            and timeutils.is_older_than(
                instance.updated_at or instance.created_at, self._lost_s
            )
        ]

    def _is_ours(self, context: Any, instance: Any) -> bool:
        """Say whether it falls to this host to end a build.

        A delete that lacks no more than the row's end is anybody's.
        """
        if instance.uuid in self._without_node:
            return False
        nodes = self._node_of(context, instance.uuid)
        if not nodes and instance.vm_state == vm_states.ERROR:
            self._without_node.add(instance.uuid)  # And will never have one.
        if not nodes:
            return bool(instance.vm_state == vm_states.DELETED)
        held = self._holdings.rows()
        return any(node in held for node in nodes)

    def _one(self, context: Any, instance: Any) -> None:
        try_alone(
            self._tasks,
            instance.uuid,
            functools.partial(self._end, context, instance),
            'Could not end the lost build of server %(server)s; trying again '
            'later',
        )

    def _end(self, context: Any, instance: Any) -> None:
        instance.refresh()
        if instance.host is not None:
            return
        if instance.vm_state in LOST_STATES:
            self._ending.lost_build(context, instance)
        elif _is_unshelving(instance):
            self._ending.lost_unshelve(context, instance)


def _is_unshelving(instance: Any) -> bool:
    is_off = instance.vm_state == vm_states.SHELVED_OFFLOADED
    return is_off and instance.task_state in UNSHELVING


def asks_for_a_node(extra_specs: Mapping[str, str]) -> bool:
    """Say whether a flavor may be one of bare metal.

    A node offers one unit of a custom resource class and nothing else, so its
    flavor names one, maybe in a numbered group.
    """
    return any(map(_CUSTOM_CLASS.match, extra_specs))

# SPDX-License-Identifier: Apache-2.0
"""Finds neglected servers: deletes not done, allocations or ports missing.

This is a second net, for servers that have no task in Nova although something
is left to do: a delete whose task state was overwritten by the end of a build,
and whose message was lost, would never be done. Such a server gets its task
state back, and ``interrupted_tasks`` then does the delete like any other. A
server that lacks its allocation or its ports is logged and left alone.

An idle host costs one RPC in three audits, which reads up to 1,000 servers.
The actions of a server are read after each of its changes, and its allocation
and ports after its build, in one or two checks.
"""

import dataclasses
import datetime
import functools
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import attrs
from nova import context as nova_context
from nova import exception as nova_exception
from nova import objects
from nova.compute import task_states
from oslo_log import log as logging

from hashring.clock import Clock
from hashring.ring import Host
from ironic_compute.recovery import decisions, in_progress
from ironic_compute.recovery.decisions import Neglect, RestingServer
from resource_tracker.node import NodeId

LOG = logging.getLogger(__name__)

_SERVERS_PER_CHECK = 1000
# A worker checks the servers that have changed in the day before its start:
# the daemon that has left something undone ended in that time.
_BEFORE_START_S = 24 * 3600.0
# The clocks of this machine and of Nova's database may differ by this.
_OVERLAP_S = 3600.0
# Of the newest actions, one is a user's, unless power was switched all day.
_ACTIONS_COUNT = 50


@attrs.define(eq=False, repr=False, slots=False)
class NeglectedServers:
    """Finds the neglected servers of one host; ``RecoveryLoop`` calls it.

    :param list_allocated_nodes: returns the nodes on which a server has an
        allocation; one request to Placement
    :param has_ports: returns whether Neutron has any port of a server, or the
        server has none; one request to Neutron
    :param deletes_softly: users' deletes are soft ones (Nova's
        ``reclaim_instance_interval``)
    :param begin: runs a function in a thread of its own
    """

    _host: Host
    _list_allocated_nodes: Callable[[Any, str], list[NodeId]]
    _has_ports: Callable[[Any], bool]
    _in_progress: in_progress.InProgress
    _clock: Clock
    _deletes_softly: bool
    _begin: in_progress.StartThread = in_progress.start_thread

    def __attrs_post_init__(self) -> None:
        self._marker: str | None = None
        self._pass_began_s = self._clock.wall_s()
        self._changed_since_s = self._pass_began_s - _BEFORE_START_S
        self._logged: set[tuple[str, Neglect]] = set()
        # Servers whose check has failed, or that a thread worked on.
        self._unchecked: set[str] = set()

    def check(self) -> None:
        """Start a thread that checks the next 1,000 servers; returns at once.

        The worker must have served RPC for a while, because until then the
        message of a delete may wait in the worker's own queue.
        """
        self._begin('recovery-neglected', self._try_check)

    def recheck(self, servers: Iterable[str]) -> None:
        """Check some servers; blocks, and raises nothing.

        It may be called as early as :meth:`check`. It finds an unfinished
        delete also if the server has not changed lately.
        """
        context = nova_context.get_admin_context()
        for server in sorted(servers):
            try:
                instance = objects.Instance.get_by_uuid(
                    context, server, expected_attrs=[]
                )
            except nova_exception.InstanceNotFound:
                self._unchecked.discard(server)
            except Exception as exc:
                LOG.debug(
                    'Could not read server %(server)s: %(error)s',
                    {'server': server, 'error': exc},
                )
            else:
                self._check_one(instance)

    def _try_check(self) -> None:
        try:
            # The servers of a page are read only once after a change.
            self.recheck(self._unchecked)
            for instance in self._list_changed():
                self._check_one(instance)
        except Exception as exc:
            LOG.warning(
                'Could not search for neglected servers and will try again: '
                '%(error)s',
                {'error': exc},
            )

    def _list_changed(self) -> Iterator[Any]:
        """Yield the next servers without a task that have changed lately."""
        try:
            page = self._list_page()
        except nova_exception.MarkerNotFound:
            # The last server of the previous page was deleted.
            self._marker = None
            return
        since = _utc(self._changed_since_s)
        for instance in page:
            if instance.updated_at and instance.updated_at >= since:
                yield instance
        if len(page) < _SERVERS_PER_CHECK:
            self._begin_next_pass()
        else:
            self._marker = page[-1].uuid

    def _list_page(self) -> list[Any]:
        return list(
            objects.InstanceList.get_by_filters(
                nova_context.get_admin_context(),
                {'host': self._host, 'deleted': False, 'task_state': None},
                sort_key='uuid',
                sort_dir='asc',
                limit=_SERVERS_PER_CHECK,
                marker=self._marker,
                expected_attrs=[],
            )
        )

    def _begin_next_pass(self) -> None:
        self._marker = None
        self._changed_since_s = self._pass_began_s - _OVERLAP_S
        self._pass_began_s = self._clock.wall_s()

    def _check_one(self, instance: Any) -> None:
        self._unchecked.add(instance.uuid)
        in_progress.run_exclusive(
            self._in_progress,
            instance.uuid,
            functools.partial(self._end, instance),
            'Could not check server %(server)s, which may be neglected',
        )

    def _end(self, instance: Any) -> None:
        instance.refresh()
        if instance.host == self._host:
            self._end_neglect(instance)
        self._unchecked.discard(instance.uuid)

    def _end_neglect(self, instance: Any) -> None:
        neglect = decisions.find_neglect(self._read(instance))
        if neglect is Neglect.DELETE:
            self._restore_delete(instance)
        elif neglect is not None:
            self._log_once(instance.uuid, neglect)

    def _log_once(self, server: str, neglect: Neglect) -> None:
        if (server, neglect) in self._logged:
            return
        self._logged.add((server, neglect))
        if neglect is Neglect.NO_ALLOCATION:
            LOG.warning(
                'Server %(server)s is on its node, but Placement has no '
                'allocation of it',
                {'server': server},
            )
        else:
            LOG.warning(
                'Server %(server)s has none of its ports any more in Neutron',
                {'server': server},
            )

    def _read(self, instance: Any) -> RestingServer:
        context = nova_context.get_admin_context()
        server = RestingServer(
            instance.vm_state,
            instance.task_state,
            read_is_delete_unfinished(context, instance.uuid),
        )
        since = _utc(self._changed_since_s)
        is_new = instance.launched_at and instance.launched_at >= since
        if server.is_delete_unfinished or not is_new:
            return server
        return dataclasses.replace(
            server,
            has_allocation=bool(
                self._list_allocated_nodes(context, instance.uuid)
            ),
            has_ports=self._has_ports(instance),
        )

    def _restore_delete(self, instance: Any) -> None:
        """Put the task of a delete back, which ``interrupted_tasks`` does.

        nova-api saves the time of a soft delete. A forced delete has none, nor
        has the delete of a server that was never built.
        """
        is_soft = self._deletes_softly and instance.deleted_at is not None
        instance.task_state = (
            task_states.SOFT_DELETING if is_soft else task_states.DELETING
        )
        try:
            instance.save(expected_task_state=[None])
        except nova_exception.UnexpectedTaskStateError:
            return  # It has got another task meanwhile.
        LOG.warning(
            'The delete of server %(server)s was accepted and never done; it '
            'is done now',
            {'server': instance.uuid},
        )


def read_is_delete_unfinished(context: Any, server: str) -> bool:
    """Return whether a delete was accepted and never ended; 1 or 2 RPCs."""
    last = decisions.find_last_request(
        objects.InstanceActionList.get_by_instance_uuid(
            context, server, limit=_ACTIONS_COUNT
        )
    )
    if last is None or not decisions.is_delete_unfinished(last, ()):
        return False
    events = objects.InstanceActionEventList.get_by_action(context, last.id)
    return decisions.is_delete_unfinished(last, events)


def _utc(seconds: float) -> datetime.datetime:
    return datetime.datetime.fromtimestamp(seconds, datetime.UTC)

# SPDX-License-Identifier: Apache-2.0
"""Retirement: a drained host that is empty leaves the pool and Nova.

The worker that serves the host ends it, whether the host is at home there or
adopted. A host that is adopted although its own agent is in the group waits
for that agent: it is half alive, or its worker keeps dying, and its next
worker would make a new Service. When it serves the host again, its worker ends
the host; if it leaves the group, the worker of the adopted host does.

The order of the requests is the protocol:

#. The host has been empty for a while: no node, no server. Before that, a
   message or a write that is late may still need its worker.
#. What nova-api deletes together with a Service: the host's place in host
   aggregates and its mapping to a cell. A conductor without the API database
   cannot delete them; they do no harm, and the manual says how to.
#. The Service record. It contains the order, so it goes last: a worker that
   ends before this leaves the rest to the next one.
#. The agent is told, at once and again and again while reads show no such
   Service. It removes the host from the pool, and ends if it is the host's own
   agent; otherwise that agent's next worker would make a new Service. The
   host's daemon may be started again at any time, as that of a new host.
"""

import math
from collections.abc import Callable
from typing import Any

import attrs
import oslo_messaging
from nova import context as nova_context
from nova import exception as nova_exception
from nova import objects
from oslo_log import log as logging

from hashring.clock import Clock
from hashring.ring import Host
from hashring.workers import HostRetired
from ironic_compute.gate import Gate, without_waiting
from ironic_compute.journal.moves import (
    Cause,
    Kind,
    MoveLog,
    NoMoveLog,
    Reason,
)
from ironic_compute.nodes.compute_nodes import ComputeNodes
from ironic_compute.ownership.drain_order import read_order
from ironic_compute.pool.services import ServiceDirectory

LOG = logging.getLogger(__name__)

# Seconds for which a host must be empty. A conductor ends a request 60 s after
# it was sent at the latest, and nova-api sends messages to the host that it
# has read before.
QUIET_S = 90.0


def delete_api_records(host: Host) -> None:
    """Remove a host from its aggregates and delete its mapping; blocks.

    :raises oslo_messaging.RemoteError: the conductor has no API database
    """
    context = nova_context.get_admin_context()
    for aggregate in objects.AggregateList.get_by_host(context, host):
        aggregate.delete_host(host)
    try:
        objects.HostMapping.get_by_host(context, host).destroy()
    except nova_exception.HostMappingNotFound:
        return


@attrs.define(eq=False, repr=False, slots=False)
class Retirement:
    """Ends the host of one worker; one thread calls it, and it blocks.

    :param delete_api_records: see the function of that name
    :param services_changed: has the Service records read again soon
    :param send_to_agent: sends a message to the agent; it may be lost
    :param is_own_agent_away: returns whether the host's own agent is in the
        group, and this worker belongs to another agent
    :param quiet_s: seconds for which the host must be empty
    :param moves: notes the end of the host; it lasts from when it was empty
    """

    _host: Host
    _compute_nodes: ComputeNodes
    _services: ServiceDirectory
    _gate: Gate
    _clock: Clock
    _delete_api_records: Callable[[Host], None]
    _services_changed: Callable[[], None]
    _send_to_agent: Callable[[HostRetired], None]
    _is_own_agent_away: Callable[[], bool]
    _quiet_s: float = QUIET_S
    _moves: MoveLog = attrs.field(factory=NoMoveLog)

    def __attrs_post_init__(self) -> None:
        self._empty_since_s = math.inf
        self._is_deleting = False
        self._has_logged_wait = False

    def report(self) -> None:
        """Tell the agent that its host has ended, if it has."""
        if self._has_ended():
            self._tell_agent()

    def _tell_agent(self) -> None:
        self._send_to_agent(HostRetired(self._host))

    def _has_ended(self) -> bool:
        """Return whether the Service that was to be deleted is gone.

        The request to delete it may have had no answer.
        """
        services = self._services
        is_gone = services.is_read and not services.find_record(self._host)
        return self._is_deleting and is_gone

    def begin_anew(self) -> None:
        """Let the host be empty for the whole time from now on.

        It may have been in use since an earlier order ended.
        """
        self._empty_since_s = math.inf

    def run_round(self, *, is_empty: bool) -> None:
        """End the host if it has been empty for long enough.

        :param is_empty: whether the worker holds no node
        """
        now_s = self._clock.now_s()
        # The wait begins anew whenever the host's own agent is listed. The
        # file backend leaves out a member now and then.
        if not (is_empty and self._may_end() and self._is_unused()):
            self._empty_since_s = math.inf
            return
        self._empty_since_s = min(self._empty_since_s, now_s)
        if now_s - self._empty_since_s >= self._quiet_s:
            self._end()

    def why_waits(self) -> str | None:
        """Return why this worker does not end its host now, or None.

        Any thread may call; it does not block.
        """
        if not self._is_own_agent_away():
            return None
        return (
            f'Host {self._host} is retired when its own daemon, which is up, '
            f'serves it again, or when that daemon is stopped; see '
            f'"ironic-computectl host show {self._host}"'
        )

    def _may_end(self) -> bool:
        """Return whether no other worker is to end the empty host."""
        why = self.why_waits()
        if why is not None and not self._has_logged_wait:
            LOG.info('Not retired yet: %(why)s', {'why': why})
        self._has_logged_wait = why is not None
        return why is None

    def _is_unused(self) -> bool:
        """Read from Nova whether the host has neither nodes nor servers."""
        rows = self._compute_nodes.list_by_host(self._host)
        return not (
            rows or self._compute_nodes.list_servers_of_host(self._host)
        )

    def _end(self) -> None:
        """Delete all records of the host, if all is still as it was."""
        with without_waiting():
            if self._read_wanted() is None:
                return
            self._try_delete_api_records()
            self._delete_service()

    def _try_delete_api_records(self) -> None:
        try:
            self._delete_api_records(self._host)
        except oslo_messaging.RemoteError as exc:
            LOG.info(
                'Could not delete the host mapping and the aggregates of '
                'host %(host)s, which is retired: %(error)s',
                {'host': self._host, 'error': exc},
            )

    def _read_wanted(self) -> Any | None:
        """Read the Service record; None if it is not to be deleted now.

        An operator may have changed the order since the records were read
        last, or enabled the host with Nova's own command, or the host may be
        in use.
        """
        record = self._services.read_record(self._host)
        order = read_order(record)
        is_wanted = order is not None and order.retires
        return record if is_wanted and self._is_unused() else None

    def _delete_service(self) -> None:
        """Delete the Service record, if all is still as it was."""
        record = self._read_wanted()
        if record is None:
            return
        if self._is_own_agent_away():
            return
        self._gate.wait()
        self._is_deleting = True
        record.destroy()
        self._moves.add(
            Kind.RETIREMENT,
            Cause(Reason.RETIRE),
            begun_s=self._empty_since_s,
            source=self._host,
            target='',
            host=self._host,
        )
        LOG.info('Host %(host)s is retired', {'host': self._host})
        # First: when the agent reads that an adopted host has no Service, it
        # ends this worker, whose next round would come too late. Then no
        # agent would know that the host is retired, and another one would
        # adopt it.
        self._tell_agent()
        self._services_changed()

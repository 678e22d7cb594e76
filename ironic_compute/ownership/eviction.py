# SPDX-License-Identifier: Apache-2.0
"""Eviction: a node and the server on it are given to another host.

The other host is of this pool, or of the pool that the node has gone to. Only
the worker that serves the present holder of the node evicts. It works on
the server alone meanwhile: no message about the server is handled, and no
recovery works on it. What follows from a read is written at once or not at all
(``gate.without_waiting``). The order of the writes is the protocol:

#. ``Instance.host``, with the task and VM state that were read. From now on
   nova-api sends messages to the new host, and the former host forwards those
   that it still gets.
#. The holder in the node's row. If the worker ends before this write,
   ``recovery.stray_instances`` makes the row follow the server: soon after the
   start of the next worker, in each audit, and before a message is forwarded.
#. ``nova_host_id`` in Ironic, and an action in Nova's history of the server.
   Nothing depends on either, so an error is only logged.
"""

import contextlib
import dataclasses
from collections.abc import Callable, Iterator
from typing import Any, Protocol

import attrs
from nova import context as nova_context
from nova import exception as nova_exception
from nova import objects
from oslo_log import log as logging

from hashring.ring import Host
from ironic_compute import errors
from ironic_compute.gate import Gate, without_waiting
from ironic_compute.ironic_api.client import IronicClient
from ironic_compute.ironic_api.node_pool import NodePool, why_not_in_pool
from ironic_compute.journal.moves import (
    Cause,
    Kind,
    MoveLog,
    NoMoveLog,
    Reason,
)
from ironic_compute.nodes.compute_nodes import ComputeNodes
from ironic_compute.nodes.held_nodes import HeldNodes
from ironic_compute.nodes.pins import Pin, set_pin
from ironic_compute.nodes.records import clear_new_mark
from ironic_compute.ownership.drain_order import read_order
from ironic_compute.ownership.movability import (
    Found,
    why_node_stays,
    why_not_movable,
)
from ironic_compute.ownership.server_history import note_host, note_move
from ironic_compute.ownership.zone_change import (
    change_or_restore,
    change_zone,
    restore_zone,
)
from ironic_compute.pool.services import ServiceDirectory
from ironic_compute.pool.view import PoolView
from resource_tracker.node import NodeFacts, NodeId

LOG = logging.getLogger(__name__)

_REBALANCE = Cause(Reason.REBALANCE)


class WorkOnServer(Protocol):
    """Records which threads work on a server; see ``recovery.in_progress``."""

    def exclusive(
        self, server: str
    ) -> contextlib.AbstractContextManager[bool]:
        """Yield True if no other thread works on a server, and none begins."""


class Refused(errors.IronicComputeError):
    """A node is not evicted now; the message says why, and what to do."""


class _Overtaken(Refused):
    """A user's request came first, so the server has certainly not moved."""


class NotPinned(Refused):
    """A server has moved, and its node follows it, maybe without its pin."""


@dataclasses.dataclass(frozen=True, slots=True)
class Terms:
    """What differs between evictions.

    :param pin: is written together with the new holder; None: the node keeps
        the pin that it may have, unless it leaves its pool
    :param other_pool: the pool of the target, whose daemons have asked for
        the node; None: it is this pool
    :param changes_zone: also if the hosts are in different availability zones
        or host aggregates
    """

    pin: Pin | None = None
    other_pool: NodePool | None = None
    changes_zone: bool = False


_USUAL = Terms()


@attrs.define(eq=False, repr=False, slots=False)
class Evictor:
    """Evicts nodes of one host; any thread may call, and all methods block.

    :param messages: records which servers messages are handled about
    :param in_progress: records which servers a thread works on otherwise
    :param lock_server: takes Nova's own lock of a server
    :param find_difference: what of a move users could see; see
        ``pool.host_aggregates``
    :param recheck: makes the recovery compare a node and its server again
    :param notify_given: called with a host and the nodes it was given
    :param moves: notes each move
    :param change_zone: sets the zone of a server to that of a host
    """

    _held_nodes: HeldNodes
    _compute_nodes: ComputeNodes
    _client: IronicClient
    _services: ServiceDirectory
    _pool: PoolView
    _gate: Gate
    _messages: WorkOnServer
    _in_progress: WorkOnServer
    _lock_server: Callable[[str], contextlib.AbstractContextManager[Any]]
    _find_difference: Callable[[Host, Host], str | None]
    _recheck: Callable[[NodeId, str], None]
    _notify_given: Callable[[Host, list[NodeId]], None]
    _moves: MoveLog = attrs.field(factory=NoMoveLog)
    _change_zone: Callable[[Any, Host], None] = change_zone

    def __attrs_post_init__(self) -> None:
        # The servers that are being moved, with the new host and why.
        self._under_way: dict[str, tuple[Host, Cause]] = {}

    def evict(
        self,
        node: NodeId,
        target: Host,
        terms: Terms = _USUAL,
        *,
        cause: Cause = _REBALANCE,
    ) -> str:
        """Give a held node and its server to another host.

        :param cause: why, for the journal and for other operators
        :returns: the server
        :raises NotPinned: the server has moved; whether its node has the pin
            of ``terms`` is not known
        :raises Refused: nothing was written; the message says why
        """
        server = self._read_server_on(node)
        self._gate.wait()
        begun_s = self._moves.now_s()
        with (
            self._alone_with(server),
            self._marked(server, target, cause),
            self._lock_server(server),
        ):
            error = self._evict(node, server, target, terms)
        self._moves.add(
            Kind.EVICT,
            cause,
            begun_s=begun_s,
            source=self._held_nodes.host,
            target=target,
            node=node,
            server=server,
        )
        LOG.info(
            'Moved server %(server)s with node %(node)s from host %(here)s to '
            'host %(target)s',
            {
                'server': server,
                'node': node,
                'here': self._held_nodes.host,
                'target': target,
            },
        )
        self._tell(node, server, target)
        if error is not None and terms.pin is not None:
            raise _not_pinned(node, server, target) from error
        return server

    def check(self, node: NodeId, target: Host, terms: Terms = _USUAL) -> str:
        """Read what :meth:`evict` would read, and write nothing.

        :returns: the server
        :raises Refused: :meth:`evict` would refuse now
        """
        server = self._read_server_on(node)
        with (
            self._alone_with(server),
            self._held_nodes.locked_row(node) as row,
        ):
            self.check_target(target, terms)
            self._find(node, server, target, row, terms)
        return server

    def _read_server_on(self, node: NodeId) -> str:
        if self._held_nodes.row(node) is None:
            raise Refused(f'Host {self._held_nodes.host} does not hold {node}')
        facts = self._held_nodes.facts(node)
        if facts is None:
            raise Refused(f'Node {node} has not been read from Ironic yet')
        if facts.instance_uuid is None:
            raise Refused(f'Ironic shows no server on node {node}')
        return facts.instance_uuid

    @contextlib.contextmanager
    def _alone_with(self, server: str) -> Iterator[None]:
        with (
            self._messages.exclusive(server) as without_message,
            self._in_progress.exclusive(server) as without_work,
        ):
            if not (without_message and without_work):
                raise Refused(self._why_not_alone(server))
            yield

    def _why_not_alone(self, server: str) -> str:
        target, cause = self._under_way.get(server, (None, _REBALANCE))
        if target is None:
            return (
                f'A request for server {server} is being worked on; try '
                f'again when it has ended'
            )
        by = f', ordered by {cause.by}' if cause.by else ''
        return (
            f'Server {server} is being moved to host {target} '
            f'({cause.reason}{by}); try again when that has ended'
        )

    @contextlib.contextmanager
    def _marked(
        self, server: str, target: Host, cause: Cause
    ) -> Iterator[None]:
        """Let others see who moves a server."""
        self._under_way[server] = target, cause
        try:
            yield
        finally:
            self._under_way.pop(server, None)

    def _evict(
        self, node: NodeId, server: str, target: Host, terms: Terms
    ) -> Exception | None:
        """Move a server and its node; the recovery repeats the latter.

        :returns: why it is not known whether the row of the node was written
        """
        with self._held_nodes.locked_row(node) as row, without_waiting():
            service_id = self.check_target(target, terms)
            found = self._find(node, server, target, row, terms)
            # Again: the answers may have taken minutes.
            self.check_takes_nodes(target, terms.other_pool)
            if terms.changes_zone:
                change = self._change_zone
                answered(
                    lambda: change_or_restore(change, found.instance, target)
                )
            try:
                self._write_instance(found)
            except _Overtaken:
                if terms.changes_zone:
                    restore_zone(self._change_zone, found.instance, found.here)
                raise
            try:
                self._write_row(row, target, service_id, terms)
                self._held_nodes.drop_node(node)
            except Exception as exc:
                # The server has moved, so its node must follow.
                self._recheck(node, server)
                LOG.warning(
                    'Could not give node %(node)s to host %(host)s, where '
                    'its server is; trying again later: %(error)s',
                    {'node': node, 'host': target, 'error': exc},
                )
                return exc
        return None

    def check_target(self, target: Host, terms: Terms = _USUAL) -> int:
        """Check that another host can serve a server of this host now.

        :returns: the id of its Service record
        :raises Refused: it cannot
        """
        here = self._held_nodes.host
        if target == here:
            raise Refused(f'The node is at host {target} already')
        service_id = self.check_takes_nodes(target, terms.other_pool)
        if terms.changes_zone:
            return service_id
        difference = answered(lambda: self._find_difference(here, target))
        if difference is not None:
            raise Refused(
                f'Hosts {here} and {target} {difference}; if that is wanted, '
                f'use --change-zone with "ironic-computectl node move", "host '
                f'drain", "host retire" or "pool rebalance"'
            )
        return service_id

    def check_takes_nodes(
        self, target: Host, other_pool: NodePool | None = None
    ) -> int:
        """Check that a host, maybe this one, may be given nodes now.

        A host of another pool has said, when it asked for the node, that it is
        in the ring of its pool, and so mapped.

        :returns: the id of its Service record
        :raises Refused: it may not
        """
        is_here = other_pool is None
        if is_here and target not in self._pool.known:
            raise Refused(
                f'Host {target} is not a host of this pool; see '
                f'"ironic-computectl host list"'
            )
        record = answered(lambda: self._services.read_record(target))
        order = read_order(record)
        if order is not None:
            what = 'retired' if order.retires else 'drained'
            raise Refused(
                f'An operator has host {target} {what}; end that first: '
                f'ironic-computectl host undrain {target}'
            )
        if record is None or record.disabled:
            raise Refused(
                f'Host {target} is disabled or unknown in Nova; see '
                f'"openstack compute service list"'
            )
        if not self._services.is_record_up(record):
            raise Refused(
                f'Host {target} is down in Nova; try again when a daemon '
                f'serves it'
            )
        if is_here and target not in self._pool.ring_status().ring.hosts:
            raise Refused(
                f'Host {target} takes no nodes yet; it may have to be mapped '
                f'to a cell: nova-manage cell_v2 discover_hosts --by-service'
            )
        return int(record.id)

    def why_node_stays(
        self, facts: NodeFacts, terms: Terms = _USUAL
    ) -> str | None:
        """Return why a node with a server is not evicted, by its facts.

        It sends no request.
        """
        return why_node_stays(
            facts, why_not_in_pool(self._client.pool, facts, terms.other_pool)
        )

    def _find(
        self,
        node: NodeId,
        server: str,
        target: Host,
        row: Any | None,
        terms: Terms,
    ) -> Found:
        """Read the node and its server.

        :raises Refused: they cannot be moved now
        """
        here = self._held_nodes.host
        current = answered(lambda: self._compute_nodes.read_by_name(node))
        if row is None or current is None or current.host != here:
            raise Refused(f'Host {here} does not hold node {node} any more')
        facts = answered(lambda: self._client.read_node(node))
        found = Found(
            node,
            here,
            target,
            facts,
            why_not_in_pool(self._client.pool, facts, terms.other_pool),
            answered(lambda: _read_instance(server)),
            self._held_nodes.consumer(node),
        )
        why_not = self._why_not(found)
        if why_not is not None:
            raise Refused(why_not)
        return found

    def _why_not(self, found: Found) -> str | None:
        return why_not_movable(found)

    def _write_instance(self, found: Found) -> None:
        instance = found.instance
        instance.host = found.target
        try:
            instance.save(
                expected_vm_state=[instance.vm_state],
                expected_task_state=[None],
            )
        except nova_exception.InstanceUpdateConflict as exc:
            if self._is_saved(found):
                return
            raise _Overtaken(
                f'A user has just requested something for server '
                f'{instance.uuid}; try again when it has ended'
            ) from exc
        except nova_exception.InstanceNotFound as exc:
            raise Refused(f'Server {instance.uuid} is gone') from exc
        except Exception as exc:
            # It may have been written, or may be written later.
            self._recheck(found.node, instance.uuid)
            if isinstance(exc, errors.GateShut):
                raise no_lease() from exc
            raise Refused(
                f'Nova did not say whether server {instance.uuid} has been '
                f'moved: {exc}'
            ) from exc

    def _is_saved(self, found: Found) -> bool:
        """Read whether a save was carried out although it was refused.

        It is sent again if its answer is lost. By then the user of the server
        may have requested something of the new host.

        :raises Refused: Nova does not answer
        """
        server = found.instance.uuid
        self._recheck(found.node, server)
        current = answered(lambda: _read_instance(server))
        return current is not None and current.host == found.target

    def _write_row(
        self, row: Any, target: Host, service_id: int, terms: Terms
    ) -> None:
        clear_new_mark(row)
        if terms.pin is not None or terms.other_pool is not None:
            set_pin(row, terms.pin)
        if not self._compute_nodes.write_holder(row, target, service_id):
            raise Refused(f'Host {row.host} holds the node now')

    def _tell(self, node: NodeId, server: str, target: Host) -> None:
        """Tell the new host, which would else notice at its next audit.

        Then write what only people read: Nova's history, and Ironic's field.
        """
        try:
            self._notify_given(target, [node])
            note_move(server, self._held_nodes.host)
            note_host(self._client, node, target)
        except Exception as exc:
            LOG.info(
                'Server %(server)s has moved, which could not be told '
                'everywhere: %(error)s',
                {'server': server, 'error': exc},
            )


def _read_instance(server: str) -> Any | None:
    try:
        return objects.Instance.get_by_uuid(
            nova_context.get_admin_context(), server, expected_attrs=[]
        )
    except nova_exception.InstanceNotFound:
        return None


def answered(read: Callable[[], Any]) -> Any:
    """Return what a service answers.

    :raises Refused: it does not answer, or with an error
    """
    try:
        return read()
    except errors.GateShut as exc:
        raise no_lease() from exc
    except Exception as exc:
        raise Refused(f'Nova or Ironic did not answer: {exc}') from exc


def no_lease() -> Refused:
    """Return the refusal of a request while the lease is not in force."""
    return Refused(
        'The daemon has lost the coordination backend for a moment; try again'
    )


def _not_pinned(node: NodeId, server: str, target: Host) -> NotPinned:
    return NotPinned(
        f'Server {server} has moved to host {target}, and node {node} follows '
        f'it, but may not be pinned, because Nova did not say that its record '
        f'was written; run the command again in a minute'
    )

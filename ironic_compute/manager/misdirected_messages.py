# SPDX-License-Identifier: Apache-2.0
"""Forwards RPC messages about servers that another host serves by now.

Nova sends a message about a server to the host in the server's Instance
record. The message may reach this host although the server is on another host
by now: because it waited in the queue, or because its sender had read the
record before. The forwarder reads the record again before a handler runs, and
sends the message on, unchanged, to the host that the record names. A cast
stays a cast, which RabbitMQ keeps until RabbitMQ has the forwarded one as
well; the answer of a call is handed back to its caller.

The records of a node with a server should agree: the holder of the node (its
ComputeNode row) is the host of the server (its Instance). If they differ, the
server's record is right, and only the holder may write the node's row.
Therefore a message for a server whose node another host of the pool holds goes
to that host, which first gives the node away to the server's host.

The message of a build names a node, and no server with a host; it is forwarded
by ``forwarding``.
"""

import contextlib
import dataclasses
import functools
import threading
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Protocol

import attrs
import nova.conf
import oslo_messaging
from nova import context as nova_context
from nova import exception as nova_exception
from nova import objects
from nova import rpc as nova_rpc
from oslo_log import log as logging

from hashring.clock import Clock
from hashring.ring import Host
from ironic_compute.manager import request_context
from ironic_compute.manager.forwarding import HOPS, next_hop
from ironic_compute.manager.newer_messages import wait_for_translations
from ironic_compute.manager.retries import log_refused, while_kept
from ironic_compute.manager.stale_messages import read_until_answered
from ironic_compute.retry import retry
from resource_tracker.node import NodeId

CONF = nova.conf.CONF
LOG = logging.getLogger(__name__)

# The keys of a Nova object, as Nova's serializer sends it.
_NAME, _DATA = 'nova_object.name', 'nova_object.data'


@dataclasses.dataclass(frozen=True, slots=True)
class NamedServer:
    """A server that is an argument of a message.

    :param host: the host of the server when the message was sent
    """

    uuid: str
    host: str | None


def find_servers(args: Mapping[str, Any]) -> list[NamedServer]:
    """Return the servers that the arguments of a message name.

    :param args: the arguments as Nova's serializer sends them
    """
    found = []
    for value in args.values():
        for item in value if isinstance(value, list) else [value]:
            if isinstance(item, Mapping) and item.get(_NAME) == 'Instance':
                data = item[_DATA]
                found.append(NamedServer(data['uuid'], data.get('host')))
    return found


def select_servers(
    args: Mapping[str, Any], servers: frozenset[str]
) -> dict[str, Any]:
    """Return the arguments of a message, reduced to some of its servers.

    ``external_instance_event`` has a list of servers and a list of their
    events; both are reduced. Other arguments are returned unchanged.
    """
    if servers.issuperset(server.uuid for server in find_servers(args)):
        return dict(args)

    def is_of_others(item: Any) -> bool:
        data = item.get(_DATA, {}) if isinstance(item, Mapping) else {}
        is_server = data and item[_NAME] == 'Instance'
        server = data.get('uuid' if is_server else 'instance_uuid')
        return server is not None and server not in servers

    return {
        name: [item for item in value if not is_of_others(item)]
        if isinstance(value, list)
        else value
        for name, value in args.items()
    }


class Location(Protocol):
    """The fields of Nova's Instance record that say where a server is."""

    host: str | None
    node: str | None


def read_location(server: str, clock: Clock) -> Location | None:
    """Return a server's Instance record; None if it is gone or unreadable.

    Blocks while nova-conductor or its database is away: the message waits,
    and a cast waits in RabbitMQ as well.
    """

    def read() -> Location:
        found: Location = objects.Instance.get_by_uuid(
            nova_context.get_admin_context(), server, expected_attrs=[]
        )
        return found

    try:
        return read_until_answered(read, server, clock)
    except nova_exception.InstanceNotFound:
        return None
    except Exception as exc:
        LOG.warning(
            'Could not read which host serves server %(server)s, so its '
            'message is handled here: %(error)s',
            {'server': server, 'error': exc},
        )
        return None


@attrs.define(eq=False, repr=False, slots=False)
class MessageForwarder:
    """Decides for each message of an RPC server whether to forward it.

    The threads of the RPC servers call it.

    :param here: the host of this worker
    :param find_holder: returns the other host of the pool that holds a node;
        None if this host or no host of the pool holds it
    :param follow_server: gives a node with a server, if this host holds it, to
        the server's host
    :param working_on: records that the calling thread handles a message about
        a server; blocks while this host gives the server to another host
    :param with_message: has recovery leave a server alone, because it would
        end a request whose message waits for Nova
    :param read_location: reads a server's Instance record; blocks
    """

    _here: Host
    _find_holder: Callable[[NodeId], Host | None]
    _follow_server: Callable[[NodeId, str, Host], None]
    working_on: Callable[[str], contextlib.AbstractContextManager[Any]]
    with_message: Callable[[str], contextlib.AbstractContextManager[Any]]
    _clock: Clock
    _read_location: Callable[[str, Clock], Location | None] = read_location

    def attach_to(self, server: Any) -> None:
        """See each message of an RPC server before its handler does.

        :param server: an RPC server of oslo.messaging
        """
        dispatcher, topic = server.dispatcher, server._target.topic
        dispatcher.dispatch = functools.partial(
            self._dispatch, dispatcher.dispatch, topic
        )
        wait_for_translations(server, self._clock)

    def _dispatch(
        self, handle: Callable[[Any], Any], topic: str, incoming: Any
    ) -> Any:
        """Forward a message, handle it here, or do both with parts of it.

        The servers are recorded before their records are read. Otherwise a
        server could leave this host between the read and the handler. The
        message's context is set before anything is logged: until its handler
        runs, the thread would have the context of the message before.
        """
        request_context.begin(incoming.ctxt)
        args = incoming.message.get('args') or {}
        with contextlib.ExitStack() as stack:
            for uuid in sorted({server.uuid for server in find_servers(args)}):
                stack.enter_context(self.working_on(uuid))
                stack.enter_context(self.with_message(uuid))
            return self._route(handle, topic, incoming, args)

    def _route(
        self,
        handle: Callable[[Any], Any],
        topic: str,
        incoming: Any,
        args: Mapping[str, Any],
    ) -> Any:
        message = incoming.message
        hosts = self._find_hosts(args, incoming.ctxt.get(HOPS, 0))
        if hosts.keys() <= {self._here}:
            return handle(incoming)
        answer, rest = None, hosts.pop(self._here, frozenset())
        for host, servers in hosts.items():
            part = {**message, 'args': select_servers(args, servers)}
            try:
                answer = _forward(incoming, part, host, topic, self._clock)
            except oslo_messaging.MessageUndeliverable:
                rest |= servers
                _log_undeliverable(message, servers, host)
        if rest:
            incoming.message = {**message, 'args': select_servers(args, rest)}
            return handle(incoming)
        return answer

    def _find_hosts(
        self, args: Mapping[str, Any], hops_count: int
    ) -> dict[Host, frozenset[str]]:
        """Return the hosts that must get a message, each with its servers."""
        found: dict[Host, frozenset[str]] = {}
        for server in find_servers(args):
            # Some messages of a migration are for another host than the
            # server's; they are no messages of bare metal, and stay here.
            is_for_its_host = hops_count or server.host == self._here
            host = self._here
            if is_for_its_host:
                host = self._find_host(server.uuid, hops_count)
            found[host] = found.get(host, frozenset()) | {server.uuid}
        return found

    def _find_host(self, server: str, hops_count: int) -> Host:
        found = self._read_location(server, self._clock)
        if found is None or found.host is None:
            return self._here
        node = NodeId(found.node) if found.node else None
        host = next_hop(found.host, self._here, hops_count)
        if host is not None and node is not None:
            self._follow_server(node, server, Host(host))
        if found.host == self._here and node is not None:
            holder = self._try_find_holder(node)
            host = next_hop(holder, self._here, hops_count)
        return Host(host) if host is not None else self._here

    def _try_find_holder(self, node: NodeId) -> Host | None:
        try:
            return self._find_holder(node)
        except Exception as exc:
            LOG.warning(
                'Could not read which host holds node %(node)s: %(error)s',
                {'node': node, 'error': exc},
            )
            return None


def _forward(
    incoming: Any,
    message: Mapping[str, Any],
    host: Host,
    topic: str,
    clock: Clock,
) -> Any:
    """Send a message on; return the answer of a call.

    Blocks until RabbitMQ has the message, however long RabbitMQ is away. A
    cast is sent again after any error, too: a RabbitMQ that begins to answer
    may refuse it, and it would be lost.

    :raises oslo_messaging.MessageUndeliverable: the host has no queue
    :raises oslo_messaging.ExpectedException: the error that a call has raised
        at the other host
    """
    # Nova's serializers are not used, because nothing is to be changed.
    client = oslo_messaging.get_rpc_client(
        nova_rpc.TRANSPORT,
        oslo_messaging.Target(topic=topic),
        transport_options=oslo_messaging.TransportOptions(at_least_once=True),
    ).prepare(
        server=host,
        namespace=message.get('namespace'),
        version=message.get('version', '1.0'),
        **_patience(incoming),
    )
    context = {**incoming.ctxt, HOPS: incoming.ctxt.get(HOPS, 0) + 1}
    LOG.info(
        'Forwarding a message %(name)s to host %(host)s, which serves '
        '%(servers)s',
        {
            'name': message['method'],
            'host': host,
            'servers': _uuids(message['args']),
        },
    )
    if not _is_call(incoming):
        return retry(
            lambda: client.cast(context, message['method'], **message['args']),
            clock,
            _is_refused,
            functools.partial(log_refused, message['method'], f'host {host}'),
        )
    with _heartbeats(incoming), _errors_of_call():
        return client.call(context, message['method'], **message['args'])


def _patience(incoming: Any) -> dict[str, int | None]:
    """Return how long a forwarded call waits: not longer than its caller.

    RabbitMQ keeps a call for as long. A host that serves again later would
    attach a port, for instance, whose user was told that it is not.
    """
    is_long = bool(getattr(incoming, 'client_timeout', None))
    short_s, long_s = CONF.rpc_response_timeout, CONF.long_rpc_timeout
    return {
        'timeout': long_s if is_long else short_s,
        'call_monitor_timeout': short_s if is_long else None,
    }


def _is_refused(exc: Exception) -> bool:
    """Return whether to send a cast again, which RabbitMQ has not taken."""
    is_undeliverable = isinstance(exc, oslo_messaging.MessageUndeliverable)
    return while_kept(exc) and not is_undeliverable


def _uuids(args: Mapping[str, Any]) -> str:
    return ', '.join(sorted({server.uuid for server in find_servers(args)}))


def _is_call(incoming: Any) -> bool:
    """Return whether the sender of a message waits for an answer.

    oslo.messaging has no public attribute for it; the first one is of its
    RabbitMQ driver, the second one of its fake driver.
    """
    return bool(
        getattr(incoming, 'orig_msg_id', None)
        or getattr(incoming, '_reply_q', None)
    )


@contextlib.contextmanager
def _errors_of_call() -> Iterator[None]:
    """Hand the error of a forwarded call back without a traceback here."""
    try:
        yield
    except oslo_messaging.MessageUndeliverable:
        raise
    except Exception:
        raise oslo_messaging.ExpectedException() from None


@contextlib.contextmanager
def _heartbeats(incoming: Any) -> Iterator[None]:
    """Tell the caller of a long call, if it wants so, that we are at work."""
    if not incoming.client_timeout:
        yield
        return
    has_ended = threading.Event()

    def send() -> None:
        while not has_ended.wait(int(incoming.client_timeout) / 2):
            incoming.heartbeat()

    thread = threading.Thread(target=send, name='rpc-heartbeat', daemon=True)
    thread.start()
    try:
        yield
    finally:
        has_ended.set()


def _log_undeliverable(
    message: Mapping[str, Any], servers: frozenset[str], host: Host
) -> None:
    LOG.warning(
        'Handling a message %(name)s for %(servers)s here, because host '
        '%(host)s, which serves them, has no queue in RabbitMQ',
        {
            'name': message['method'],
            'servers': ', '.join(sorted(servers)),
            'host': host,
        },
    )

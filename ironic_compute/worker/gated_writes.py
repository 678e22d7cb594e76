# SPDX-License-Identifier: Apache-2.0
"""Makes the writes of Nova's own code wait at the lease gate.

Nova's handlers write Instances and other records through nova-conductor,
allocations to Placement, ports to Neutron and attachments to Cinder. Each such
request waits until the lease is in force, in the thread that makes it, before
a token is got for it and just before it is sent (``gated_transport``); reads
never wait. Two kinds of records are exceptions:

* The Service record: while the lease has lapsed the worker goes on reporting
  its host up, because nova-api deletes servers of a host that is down. Nor
  does it wait long for the answer to a report.
* ComputeNode records: ``nodes.compute_nodes`` alone writes them. It waits at
  the gate itself, because it must decide again after the gate has opened.

A write that waited and is no longer valid is refused by
``expected_task_state`` in Nova or by a generation in Placement. A worker that
lost its host for good is killed while it waits, so nothing is sent then.
"""

import functools
from collections.abc import Callable, Mapping
from typing import Any, Protocol

import amqp.exceptions
import oslo_messaging
import urllib3
from keystoneauth1 import exceptions as ksa_exceptions
from nova import exception as nova_exception
from nova import service_auth
from nova.conductor import rpcapi

from hashring.clock import Clock
from ironic_compute.gate import Gate
from ironic_compute.gated_transport import HTTP_READS, gate_transport
from ironic_compute.paths.repeated_requests import KeystoneAway
from ironic_compute.worker.proxy_answers import as_unavailable
from ironic_compute.worker.repeated_saves import is_saved
from resource_tracker.placement import ONCE

# A remote method whose name begins with none of these counts as a write.
_READS = (
    '_get',
    '_load',
    'check',
    'count',
    'exists',
    'get',
    'in_use',
    'limit_check',
    'refresh',
    'validate',
)
# A request that had no answer is sent so often, if that is safe. If a save was
# carried out, the second one is refused by its expected task, or changes
# nothing; a delete that was carried out finds nothing; an event of an action
# may get a second entry, while an error would end the action itself.
_TRIES_COUNT = 3
_REPEATED_WRITES = ('save', 'delete', 'destroy', 'event_')
# An error of nova-conductor whose database is away, as it is for seconds when
# another server of it takes over. A write is repeated for as long as that may
# last; an error would undo a deploy that has ended well. A RabbitMQ that has
# just been started may refuse all requests for as long.
# ``OperationalError`` is what oslo.db does not translate: MariaDB has too many
# connections, as after an outage, is stopping, or is read-only. SQLAlchemy's
# ``TimeoutError``: all connections of nova-conductor are in use.
_AWAY = frozenset(
    {
        'CantStartEngineError',
        'DBConnectionError',
        'DBDeadlock',
        'OperationalError',
        'TimeoutError',
    }
)
_AWAY_PAUSE_S, _AWAY_LIMIT_S = 3.0, 60.0
_EXEMPT = frozenset({'Service', 'ComputeNode'})
# A report that a RabbitMQ has lost which was restarted has no answer. If the
# worker waited for it as for others, a minute, Nova would show the host down.
# It makes the next report as soon as this one has failed.
_REPORT_TIMEOUT_S = 10
_PLACEMENT_WRITES = ('post', 'put', 'delete')
# Seconds before a write to Cinder is repeated; doubled each time.
_CINDER_PAUSE_S = 0.5


class Traffic(Protocol):
    """Notes the requests to one service."""

    def call(self, send: Callable[[], Any]) -> Any:
        """Call ``send``, note whether there was an answer, and return it."""


class SessionTraffic(Traffic, Protocol):
    """Notes the requests of a session."""

    def look_up(self, send: Callable[[], Any]) -> Any:
        """Call ``send``, which asks Keystone, and note a failure."""


class _NotNoted:
    """Not every cloud has Cinder, and few servers need it."""

    def call(self, send: Callable[[], Any]) -> Any:
        """Call ``send`` and return its answer."""
        return send()


class Repeats(Protocol):
    """Sends a request again if it had no answer."""

    def call(self, method: str, send: Callable[[], Any]) -> Any:
        """Send a request and return its response."""

    def look_up(self, send: Callable[[], Any]) -> Any:
        """Ask Keystone for something and return it."""


class GatedConductor(rpcapi.ConductorAPI):
    """Nova's client of nova-conductor, with a gate before each write.

    Any thread may call; a write blocks while the gate is shut.

    :param traffic: notes whether the requests are answered
    """

    def __init__(self, gate: Gate, traffic: Traffic, clock: Clock) -> None:
        super().__init__()
        self._gate = gate
        self._traffic = traffic
        self._clock = clock

    def object_class_action_versions(
        self,
        context: Any,
        objname: str,
        objmethod: str,
        *args: Any,
        **kwargs: Any,
    ) -> Any:
        """Call a class method of a Nova object; see nova.objects.base."""
        send = functools.partial(
            super().object_class_action_versions,
            context,
            objname,
            objmethod,
            *args,
            **kwargs,
        )
        return self._send(objname, objmethod, send)

    def object_action(
        self,
        context: Any,
        objinst: Any,
        objmethod: str,
        *args: Any,
        **kwargs: Any,
    ) -> Any:
        """Call a method of a Nova object; see nova.objects.base."""
        name = objinst.obj_name()
        act = super().object_action
        if _is_report(objinst, objmethod):
            act = self._report
        send = functools.partial(
            act, context, objinst, objmethod, *args, **kwargs
        )
        try:
            return self._send(name, objmethod, send)
        except nova_exception.UnexpectedTaskStateError:
            is_repeated = objmethod == 'save' and name not in _EXEMPT
            if not is_repeated or not is_saved(context, objinst):
                raise
            return {'obj_what_changed': []}, None

    def _report(
        self, context: Any, service: Any, method: str, args: Any, kwargs: Any
    ) -> Any:
        """Report a host up, as ``object_action`` does, with less patience."""
        client = self.client.prepare(timeout=_REPORT_TIMEOUT_S)
        return client.call(
            context,
            'object_action',
            objinst=service,
            objmethod=method,
            args=args,
            kwargs=kwargs,
        )

    def _send(self, name: str, method: str, send: Callable[[], Any]) -> Any:
        """Send a request, again if it has no answer and that is safe.

        :raises oslo_messaging.MessagingTimeout: no try had an answer
        :raises oslo_messaging.RemoteError: the database stayed away
        :raises oslo_messaging.MessageDeliveryFailure: RabbitMQ has refused
            the request, and has gone on to do so
        """
        is_safe = name not in _EXEMPT and method.startswith(
            (*_READS, *_REPEATED_WRITES)
        )
        is_write = is_safe and not method.startswith(_READS)
        left_count = _TRIES_COUNT - 1 if is_safe else 0
        left_s = _AWAY_LIMIT_S if is_write else 0.0
        while True:
            self._wait(name, method)
            begun_s = self._clock.now_s()
            try:
                return self._traffic.call(lambda: _send_or_fail(send))
            except oslo_messaging.MessagingTimeout:
                if not left_count:
                    raise
                left_count -= 1
            except oslo_messaging.MessagingException as exc:
                # Neither a lapse of the lease nor a lost answer counts.
                left_s -= self._clock.now_s() - begun_s
                if left_s <= 0.0 or not _is_away(exc):
                    raise
                left_s -= _AWAY_PAUSE_S
                self._clock.sleep(_AWAY_PAUSE_S)

    def _wait(self, name: str, method: str) -> None:
        if name not in _EXEMPT and not method.startswith(_READS):
            self._gate.wait()


def _is_report(record: Any, method: str) -> bool:
    """Return whether a call reports that a host is up."""
    if record.obj_name() != 'Service' or method != 'save':
        return False
    return bool(record.obj_what_changed() == {'report_count'})


def _send_or_fail(send: Callable[[], Any]) -> Any:
    """Send a request; if RabbitMQ refuses it, raise one kind of error only.

    oslo.messaging raises amqp's errors as they are if there was no connection
    yet.

    :raises oslo_messaging.MessageDeliveryFailure: RabbitMQ has refused it
    """
    try:
        return send()
    except amqp.exceptions.AMQPError as exc:
        raise oslo_messaging.MessageDeliveryFailure(str(exc)) from exc


def _is_away(exc: oslo_messaging.MessagingException) -> bool:
    """Return whether the database is away, or RabbitMQ takes no request."""
    if isinstance(exc, oslo_messaging.RemoteError):
        return exc.exc_type in _AWAY
    return isinstance(exc, oslo_messaging.MessageDeliveryFailure)


def gate_placement(client: Any, gate: Gate, traffic: Traffic) -> None:
    """Make the writes of a Placement client of Nova wait at the gate.

    Its reads are sent at once. The client is changed in place, so this holds
    for all its users from now on. keystoneauth1 does not repeat a write.

    :param traffic: notes whether reads and writes are answered; a build that
        waits for its allocations must show that Placement is away
    """
    client.get = _noted(traffic, client.get)
    for name in _PLACEMENT_WRITES:
        send = _noted(traffic, getattr(client, name))
        setattr(client, name, _after(gate, send))
    # Nova makes another adapter when Placement's address was not found.
    create = client._create_client
    client._create_client = lambda: _writing_once(create(), gate)
    client._client = _writing_once(client._client, gate)


def _writing_once(adapter: Any, gate: Gate) -> Any:
    """Let an adapter send each write once, with the lease; return it.

    The repeats that ``[placement]`` of nova.conf may set would be sent without
    the lease.
    """
    gate_transport(adapter.session, gate)
    for name in _PLACEMENT_WRITES:
        send = functools.partial(getattr(adapter, name), **ONCE)
        setattr(adapter, name, send)
    return adapter


def _noted(traffic: Traffic, send: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(send)
    def note_and_send(*args: Any, **kwargs: Any) -> Any:
        return traffic.call(lambda: send(*args, **kwargs))

    return note_and_send


def _after(gate: Gate, send: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(send)
    def wait_and_send(*args: Any, **kwargs: Any) -> Any:
        gate.wait()
        return send(*args, **kwargs)

    return wait_and_send


def gate_sessions(
    gate: Gate, neutron: SessionTraffic, repeats: Repeats, clock: Clock
) -> None:
    """Make the writes of Nova to Neutron and Cinder wait at the gate.

    Nova keeps one session for each service, which all its clients use. Call it
    once, after nova.conf was read.

    :param neutron: notes whether the requests to Neutron are answered
    :param repeats: repeats the requests to Neutron; each try waits at the gate
    :param clock: waits before a write to Cinder is repeated
    """
    session = service_auth.get_service_auth_session('cinder')
    gate_transport(session, gate)
    send = as_unavailable(session.request)
    session.request = _retried_for_writes(
        _after_for_writes(gate, _NotNoted(), send), clock
    )
    session = service_auth.get_service_auth_session('neutron')
    gate_transport(session, gate)
    send = as_unavailable(session.request)
    session.request = _repeated(
        repeats, _after_for_writes(gate, neutron, send)
    )
    session.get_endpoint = _looked_up(repeats, neutron, session.get_endpoint)


def _has_token(options: Mapping[str, Any]) -> bool:
    """Return whether a request has a token; those to Keystone have none.

    They are sent at once, because reads need tokens, too. Whoever needs the
    token or the endpoint asks again.
    """
    return options.get('authenticated') is not False


def _after_for_writes(
    gate: Gate, traffic: Traffic, send: Callable[..., Any]
) -> Any:
    @functools.wraps(send)
    def wait_and_send(url: str, method: str, *args: Any, **kwargs: Any) -> Any:
        request = functools.partial(send, url, method, *args, **kwargs)
        if not _has_token(kwargs):
            return request()
        if method.upper() not in HTTP_READS:
            gate.wait()
        return traffic.call(request)

    return wait_and_send


def _retried_for_writes(send: Callable[..., Any], clock: Clock) -> Any:
    """Wrap a ``request`` whose writes keystoneauth1 must not repeat itself.

    It would do so without the lease, and would have Cinder make a volume twice
    if the answer to the first request was lost. Nothing is lost with an answer
    of Keystone, which is asked before.
    """

    @functools.wraps(send)
    def request(url: str, method: str, *args: Any, **kwargs: Any) -> Any:
        if not _has_token(kwargs):
            return _ask_keystone(send, url, method, *args, **kwargs)
        if method.upper() in HTTP_READS:
            return send(url, method, *args, **kwargs)
        is_create = method.upper() == 'POST' and not url.endswith('/action')
        left_count = kwargs.pop('connect_retries', None) or 0
        kwargs['connect_retries'] = 0
        pause_s = _CINDER_PAUSE_S
        while True:
            try:
                return send(url, method, *args, **kwargs)
            except ksa_exceptions.RetriableConnectionFailure as exc:
                if not left_count or (is_create and not _is_refused(exc)):
                    raise
            clock.sleep(pause_s)
            left_count, pause_s = left_count - 1, 2 * pause_s

    return request


def _ask_keystone(send: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """Send a request to Keystone and return its response.

    :raises KeystoneAway: Keystone did not answer
    """
    try:
        return send(*args, **kwargs)
    except ksa_exceptions.ConnectionError as exc:
        raise KeystoneAway(str(exc)) from exc


def _is_refused(exc: Exception) -> bool:
    """Return whether nothing was sent to Cinder, as there was no connection.

    Or there was no token.
    """
    if isinstance(exc, KeystoneAway):
        return True
    (broken, *_) = getattr(exc.__context__, 'args', ()) or (None,)
    reason = getattr(broken, 'reason', None)
    return isinstance(reason, urllib3.exceptions.NewConnectionError)


def _repeated(repeats: Repeats, send: Callable[..., Any]) -> Any:
    @functools.wraps(send)
    def repeat(url: str, method: str, *args: Any, **kwargs: Any) -> Any:
        if not _has_token(kwargs):
            return _ask_keystone(send, url, method, *args, **kwargs)
        # keystoneauth1 itself would repeat a write without the lease.
        kwargs['connect_retries'] = 0
        return repeats.call(
            method.upper(), lambda: send(url, method, *args, **kwargs)
        )

    return repeat


def _looked_up(
    repeats: Repeats, traffic: SessionTraffic, send: Callable[..., Any]
) -> Any:
    """Wrap a method of a session that asks Keystone only.

    neutronclient asks for Neutron's endpoint before it sends a request.
    """

    @functools.wraps(send)
    def look_up(*args: Any, **kwargs: Any) -> Any:
        return repeats.look_up(
            lambda: traffic.look_up(lambda: send(*args, **kwargs))
        )

    return look_up

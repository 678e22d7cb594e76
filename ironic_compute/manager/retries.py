# SPDX-License-Identifier: Apache-2.0
"""Retries: a step of a request is repeated until the services answer it.

Nova would end the request in ERROR, or forget half of it. An error does not
show whether the step was done, so each step may be done twice, and reads the
server's record first if, for instance, a delete could make it wrong.

The thread keeps the server's lock, and RabbitMQ the message. If the process
ends, after a drain or without its lease, the next worker gets the message.
"""

import functools
import http
import math
from collections.abc import Callable
from typing import Any, TypeVar

import amqp.exceptions
import oslo_messaging
from cinderclient import exceptions as cinder_exceptions
from keystoneauth1 import exceptions as keystone_exceptions
from neutronclient.common import exceptions as neutron_exceptions
from nova import exception as nova_exception
from oslo_log import log as logging

from hashring.clock import Clock
from ironic_compute import delivery
from ironic_compute.retry import retry

LOG = logging.getLogger(__name__)

_Result = TypeVar('_Result')
_Errors = Callable[[Exception], bool]

# The errors that show that nova-conductor could do nothing. It answers with a
# RemoteError if it has no database: a refusal has a class of Nova's. The
# second error comes from a RabbitMQ that refuses a connection while it starts:
# oslo.messaging waits for one that is away, and gives up at once at this one.
NO_ANSWER_OF_NOVA: tuple[type[Exception], ...] = (
    oslo_messaging.MessagingTimeout,
    oslo_messaging.MessageDeliveryFailure,
    oslo_messaging.RemoteError,
)
# The errors that show that a service did not answer. An error of keystoneauth1
# with a status is one of Keystone: Nova's clients raise errors of their own.
NO_ANSWER: tuple[type[Exception], ...] = (
    *NO_ANSWER_OF_NOVA,
    nova_exception.CinderConnectionFailed,
    keystone_exceptions.ConnectionError,
    keystone_exceptions.DiscoveryFailure,
    keystone_exceptions.HttpServerError,
    neutron_exceptions.ConnectionFailed,
    neutron_exceptions.ServiceUnavailable,
)


# The statuses with which a proxy answers for a server that does not, or that
# gets too many requests.
_NOT_REACHED = (
    http.HTTPStatus.REQUEST_TIMEOUT,
    http.HTTPStatus.TOO_MANY_REQUESTS,
    http.HTTPStatus.BAD_GATEWAY,
    http.HTTPStatus.SERVICE_UNAVAILABLE,
    http.HTTPStatus.GATEWAY_TIMEOUT,
)


def after(*kind: type[Exception]) -> _Errors:
    """Repeat after these errors, and after those that they have caused."""
    return lambda exc: isinstance(exc, kind) or isinstance(exc.__cause__, kind)


def has_no_answer(exc: Exception) -> bool:
    """Repeat after the errors that show that a service did not answer."""
    if isinstance(exc, neutron_exceptions.NeutronClientException):
        return exc.status_code in _NOT_REACHED or after(*NO_ANSWER)(exc)
    return after(*NO_ANSWER)(exc) or _status_of_cinder(exc) in _NOT_REACHED


def _has_failed_in_cinder(exc: Exception) -> bool:
    return _status_of_cinder(exc) == http.HTTPStatus.INTERNAL_SERVER_ERROR


def _status_of_cinder(exc: Exception) -> int | None:
    if isinstance(exc, cinder_exceptions.ClientException):
        return int(exc.code)
    return None


is_refused = after(
    oslo_messaging.MessageDeliveryFailure, amqp.exceptions.AMQPError
)
"""Repeat a message that RabbitMQ refuses, as it does while it starts.

oslo.messaging raises the second error if it had to make a new connection.
"""


def log_refused(name: str, receiver: str, error: Exception) -> None:
    """Warn that a message waits, because RabbitMQ refuses it."""
    LOG.warning(
        'A message %(name)s for %(receiver)s is sent when RabbitMQ takes it: '
        '%(error)s',
        {'name': name, 'receiver': receiver, 'error': error},
    )


def while_kept(exc: Exception) -> bool:
    """Repeat after any error while RabbitMQ keeps this thread's message."""
    return delivery.current() is not None


def retried(
    sentence: str, is_repeated: _Errors, limit_s: float = math.inf
) -> Callable[[Callable[..., _Result]], Callable[..., _Result]]:
    """Repeat a method that takes a context and an Instance; see ``retry``.

    :param sentence: the warning, with ``%(server)s`` and ``%(error)s``
    :param limit_s: seconds after the first error in which one is repeated
    """

    def decorate(method: Callable[..., _Result]) -> Callable[..., _Result]:
        @functools.wraps(method)
        def repeat(
            self: Any, context: Any, server: Any, *args: Any, **kwargs: Any
        ) -> _Result:
            return retry(
                lambda: method(self, context, server, *args, **kwargs),
                self.clock,
                is_repeated,
                lambda exc: LOG.warning(
                    sentence, {'server': server.uuid, 'error': exc}
                ),
                limit_s=limit_s,
            )

        return repeat

    return decorate


_CINDER_S = 600.0

retried_in_cinder = retried(
    'Cinder has failed at a request for server %(server)s, which is repeated '
    'for ten minutes: %(error)s',
    _has_failed_in_cinder,
    limit_s=_CINDER_S,
)
"""Repeat a method after internal errors of Cinder, but not for ever.

Cinder's database or a driver of it may be away for a while, but there are
requests that fail so each time, and a delete of the server waits meanwhile.
"""


def retry_in_cinder(
    request: Callable[[], _Result],
    clock: Clock,
    log: Callable[[Exception], None],
) -> _Result:
    """Send a request until Cinder answers; for ten minutes if it fails.

    The minutes count from the last time without an answer, because Cinder may
    fail for a moment when it comes back.
    """

    def send() -> _Result:
        return retry(
            request, clock, _has_failed_in_cinder, log, limit_s=_CINDER_S
        )

    return retry(send, clock, has_no_answer, log)

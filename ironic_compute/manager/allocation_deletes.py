# SPDX-License-Identifier: Apache-2.0
"""Deletes of allocations: each one goes on until Placement has answered.

If Placement cannot be reached, Nova's client of it logs a warning and returns
None instead of an error. Nova would then delete the record of the server, or
end its failed build, and the allocation would stay for ever: nobody could use
the node, and no user could delete the allocation. The same holds for a 404 of
a proxy, which Nova's client takes for one of Placement.
"""

import functools
import inspect
from collections.abc import Callable
from typing import Any

from keystoneauth1 import exceptions as ksa_exceptions
from nova import exception as nova_exception
from oslo_log import log as logging

from hashring.clock import Clock
from ironic_compute.manager.retries import after
from ironic_compute.retry import retry

LOG = logging.getLogger(__name__)

_IS_NOT_DELETED = after(
    ksa_exceptions.ClientException,
    nova_exception.AllocationDeleteFailed,
    nova_exception.ConsumerAllocationRetrievalFailed,
)
# Waiting does not mend these: an operator has to.
_MISCONFIGURED = (
    ksa_exceptions.Unauthorized,
    ksa_exceptions.MissingAuthPlugin,
    ksa_exceptions.EndpointNotFound,
)


def repeat_deletes(client: Any, clock: Clock) -> None:
    """Make a Placement client of Nova repeat deletes without an answer.

    The client is changed in place, so all its users wait from now on. A delete
    may be sent twice, because nothing allocates a node to a server meanwhile:
    the thread has the server's lock, and its worker the lease.
    """
    send = client.delete_allocation_for_instance

    def delete(context: Any, consumer: str, *args: Any, **how: Any) -> bool:
        """Delete an allocation; return False if Placement had none."""
        return retry(
            lambda: _send(client, send, context, consumer, *args, **how),
            clock,
            _IS_NOT_DELETED,
            functools.partial(_log, consumer),
        )

    client.delete_allocation_for_instance = delete


def _send(
    client: Any, send: Callable[..., bool | None], *args: Any, **how: Any
) -> bool:
    """Call Nova's method without the decorator that hides its errors.

    :raises keystoneauth1.exceptions.ClientException: there is no answer
    """
    bare = inspect.unwrap(send)
    try:
        is_deleted = (
            send(*args, **how) if bare is send else bare(client, *args, **how)
        )
    except ksa_exceptions.EndpointNotFound:
        # The decorator makes the client read Keystone's catalog again.
        if (is_deleted := send(*args, **how)) is None:
            raise
    if is_deleted is None:
        raise ksa_exceptions.ClientException('no answer')
    if not is_deleted:
        context, consumer = args[:2]
        _check_none_left(client, context, consumer)
    return is_deleted


def _check_none_left(client: Any, context: Any, consumer: str) -> None:
    """Check that Placement has no allocation of a consumer.

    :raises keystoneauth1.exceptions.ClientException: it has one, or it was not
        Placement that answered
    """
    try:
        found = client.get_allocs_for_consumer(context, consumer)
        is_left = bool(found['allocations'])
    except (ValueError, KeyError, TypeError) as exc:
        raise ksa_exceptions.ClientException('no JSON object') from exc
    if is_left:
        raise ksa_exceptions.ClientException('it is not deleted')


def _log(consumer: str, error: Exception) -> None:
    if isinstance(error, _MISCONFIGURED):
        LOG.error(
            'The allocation of server %(server)s cannot be deleted with the '
            'options below [placement] in nova.conf; correct them and start '
            'ironic-compute again: %(error)s',
            {'server': consumer, 'error': error},
        )
    else:
        LOG.warning(
            'The allocation of server %(server)s is deleted when Placement '
            'answers: %(error)s',
            {'server': consumer, 'error': error},
        )

# SPDX-License-Identifier: Apache-2.0
"""Deletes of allocations: each one goes on until Placement has answered.

If Placement cannot be reached, Nova's client of it logs a warning and returns
None instead of an error. Nova would then delete the record of the server, or
end its failed build, and the allocation would stay for ever: nobody could use
the node, and no user could delete the allocation.
"""

import functools
import inspect
from collections.abc import Callable
from typing import Any

from keystoneauth1 import exceptions as ksa_exceptions
from nova import exception as nova_exception
from oslo_log import log as logging

from hashring.clock import Clock

LOG = logging.getLogger(__name__)

# Seconds until the delete of an allocation is sent again.
_RETRY_S = 10.0
_NOT_DELETED = (
    ksa_exceptions.ClientException,
    nova_exception.AllocationDeleteFailed,
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
    client.delete_allocation_for_instance = functools.partial(
        _delete, client, client.delete_allocation_for_instance, clock
    )


def _delete(
    client: Any,
    send: Callable[..., bool | None],
    clock: Clock,
    context: Any,
    consumer: str,
    *args: Any,
    **kwargs: Any,
) -> bool:
    """Delete an allocation; blocks until Placement has none any more.

    :returns: False if Placement had none
    """
    request = functools.partial(
        _send, client, send, context, consumer, *args, **kwargs
    )
    while True:
        error: Exception | str = 'no answer'
        try:
            is_deleted = request()
        except _NOT_DELETED as exc:
            error = exc
        else:
            if is_deleted is not None:
                return is_deleted
        _log(consumer, error)
        clock.sleep(_RETRY_S)


def _send(
    client: Any, send: Callable[..., bool | None], *args: Any, **kwargs: Any
) -> bool | None:
    """Call Nova's method without the decorator that hides its errors."""
    bare = inspect.unwrap(send)
    if bare is send:
        return send(*args, **kwargs)
    try:
        return bare(client, *args, **kwargs)
    except ksa_exceptions.EndpointNotFound:
        # The decorator makes the client read Keystone's catalog again.
        if (is_deleted := send(*args, **kwargs)) is None:
            raise
        return is_deleted


def _log(consumer: str, error: Exception | str) -> None:
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

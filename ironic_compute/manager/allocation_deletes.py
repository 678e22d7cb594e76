# SPDX-License-Identifier: Apache-2.0
"""Deletes of allocations: each one goes on until Placement has answered.

If Placement cannot be reached, Nova's client of it logs a warning and returns
None instead of an error. Nova would then delete the record of the server, or
end its failed build, and the allocation would stay for ever: nobody could use
the node, and no user could delete the allocation.
"""

import functools
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
    ksa_exceptions.ConnectionError,
    nova_exception.AllocationDeleteFailed,
)


def repeat_deletes(client: Any, clock: Clock) -> None:
    """Make a Placement client of Nova repeat deletes without an answer.

    The client is changed in place, so all its users wait from now on. A delete
    may be sent twice, because nothing allocates a node to a server meanwhile:
    the thread has the server's lock, and its worker the lease.
    """
    client.delete_allocation_for_instance = functools.partial(
        _delete, client.delete_allocation_for_instance, clock
    )


def _delete(
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
    while True:
        error: Exception | str = 'no answer'
        try:
            is_deleted = send(context, consumer, *args, **kwargs)
        except _NOT_DELETED as exc:
            error = exc
        else:
            if is_deleted is not None:
                return is_deleted
        LOG.warning(
            'The allocation of server %(server)s is deleted when Placement '
            'answers: %(error)s',
            {'server': consumer, 'error': error},
        )
        clock.sleep(_RETRY_S)

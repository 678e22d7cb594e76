# SPDX-License-Identifier: Apache-2.0
"""Messages of a newer Nova wait until nova-conductor has translated them.

During an upgrade of Nova the computes come last. Some objects in the messages
of a newer nova-conductor or nova-api have versions that are unknown here, and
Nova has nova-conductor translate them before a handler runs. Nova tries only
once, and drops the message if nova-conductor is just being restarted.
"""

import functools
from collections.abc import Callable
from typing import Any

import oslo_messaging
from oslo_log import log as logging

from hashring.clock import Clock
from ironic_compute.manager.retries import after, is_refused, while_kept
from ironic_compute.retry import retry

LOG = logging.getLogger(__name__)

# An error of nova-conductor itself is final: it cannot translate the object.
_is_silent = after(oslo_messaging.MessagingTimeout)


def wait_for_translations(server: Any, clock: Clock) -> None:
    """Have casts wait until nova-conductor answers; their senders do not.

    :param server: an RPC server of oslo.messaging
    """
    serializer = server.dispatcher.serializer
    serializer.deserialize_entity = functools.partial(
        _deserialize, serializer.deserialize_entity, clock
    )


def _deserialize(
    deserialize: Callable[[Any, Any], Any],
    clock: Clock,
    context: Any,
    argument: Any,
) -> Any:
    return retry(
        lambda: deserialize(context, argument),
        clock,
        lambda exc: (_is_silent(exc) or is_refused(exc)) and while_kept(exc),
        lambda exc: LOG.warning(
            'A message of a newer Nova waits until nova-conductor has '
            'translated it: %(error)s',
            {'error': exc},
        ),
    )

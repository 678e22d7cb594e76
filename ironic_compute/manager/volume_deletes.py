# SPDX-License-Identifier: Apache-2.0
"""Volumes of a deleted server: each request goes on until Cinder answers.

If Cinder does not answer, Nova logs a warning and deletes the server all the
same. Its volumes would be attached to it for ever, so nobody could use or
delete them, and those that are to be deleted with their server would stay.
"""

import contextlib
import contextvars
from collections.abc import Callable, Iterator
from typing import Any

from oslo_log import log as logging

from hashring.clock import Clock
from ironic_compute.manager.retries import retry_in_cinder

LOG = logging.getLogger(__name__)

# Nova asks for both while it deletes a server; they may be sent twice.
_REQUESTS = ('attachment_delete', 'delete')
_is_deleting = contextvars.ContextVar('is_deleting', default=False)


@contextlib.contextmanager
def deleting_server() -> Iterator[None]:
    """Have the requests of this thread in the body wait for Cinder.

    Other requests fail as before: a build ends in ERROR, for instance.
    """
    token = _is_deleting.set(True)
    try:
        yield
    finally:
        _is_deleting.reset(token)


def repeat_requests(client: Any, clock: Clock) -> None:
    """Make a Cinder client of Nova repeat requests without an answer.

    The client is changed in place; see :func:`deleting_server`.
    """
    for name in _REQUESTS:
        setattr(client, name, _repeated(getattr(client, name), clock))


def _repeated(send: Callable[..., Any], clock: Clock) -> Callable[..., Any]:
    def send_or_repeat(context: Any, what: str) -> Any:
        if not _is_deleting.get():
            return send(context, what)
        return retry_in_cinder(
            lambda: send(context, what),
            clock,
            lambda exc: LOG.warning(
                'Volume or attachment %(what)s of a deleted server is freed '
                'when Cinder answers: %(error)s',
                {'what': what, 'error': exc},
            ),
        )

    return send_or_repeat
